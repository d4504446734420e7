//! The events of an arena, as JSON Lines: the format `watermark-arena events 1`.
//!
//! Each line is an object with a field `op`. Fields and operations that are not known are passed over. A step begins
//! with a line `step`; that line is its moment 0, and each later line of the step is one moment more.

use std::borrow::Cow;
use std::collections::HashMap;

use arena_plan::formats;
use serde::Deserialize;

use crate::model::{Buffer, Figures, Recording, Region, Source, Step, Told};
use crate::names::{Interner, NameId};

/// What the first line says.
const FORMAT: &str = "watermark-arena events 1";

/// A line that is wrong, counted from 1.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) line: usize,
    pub(super) problem: String,
}

/// Whether a file begins as one with events does.
pub(super) fn is_begin(text: &[u8]) -> bool {
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    serde_json::from_slice(line).is_ok_and(|line: Line<'_>| line.op == "begin")
}

/// All fields of all lines.
#[derive(Debug, Deserialize)]
struct Line<'f> {
    #[serde(borrow)]
    op: Cow<'f, str>,
    #[serde(borrow)]
    format: Option<Cow<'f, str>>,
    #[serde(borrow)]
    device: Option<Cow<'f, str>>,
    capacity_bytes: Option<u64>,
    mark_bytes: Option<u64>,
    step: Option<u64>,
    #[serde(borrow)]
    key: Option<Cow<'f, str>>,
    variant: Option<u64>,
    #[serde(borrow)]
    mode: Option<Cow<'f, str>>,
    start_bytes: Option<u64>,
    kept_floor_bytes: Option<u64>,
    time_ns: Option<u64>,
    #[serde(borrow)]
    scope: Option<Cow<'f, str>>,
    depth: Option<usize>,
    id: Option<u64>,
    offset_bytes: Option<u64>,
    bytes: Option<u64>,
    alignment_bytes: Option<u64>,
    #[serde(borrow)]
    site: Option<Cow<'f, str>>,
    #[serde(borrow)]
    tag: Option<Cow<'f, str>>,
    last_use: Option<u32>,
    high_water_bytes: Option<u64>,
    used_bytes: Option<u64>,
    committed_bytes: Option<u64>,
    kept_bytes: Option<u64>,
    deviations: Option<u64>,
    #[serde(borrow)]
    error: Option<Cow<'f, str>>,
    loss: Option<f64>,
    predictions: Option<u64>,
    elapsed_ns: Option<u64>,
    steps: Option<u64>,
}

pub(super) fn read(bytes: &[u8]) -> Result<Recording, Wrong> {
    let text = formats::text(bytes)
        .map_err(|error| Wrong { line: error.position.line, problem: error.problem.to_string() })?;
    let mut reading = Reading::default();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |problem| Wrong { line: number + 1, problem };
        let line: Line<'_> = serde_json::from_str(line).map_err(|error| wrong(in_line(&error)))?;
        reading.line(line).map_err(wrong)?;
    }
    reading.close_step();
    let Reading { names, region, steps, lost_steps, .. } = reading;
    Ok(Recording { source: Source::Events, names: names.finish(), region, steps, lost_steps })
}

/// The parser counts lines too, but it was given only one.
fn in_line(error: &serde_json::Error) -> String {
    let text = arena_plan::files::shortened(&error.to_string()).to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&place) {
        Some(text) => format!("column {}: {text}", error.column()),
        None => text,
    }
}

#[derive(Default)]
struct Reading<'f> {
    names: Interner<'f>,
    region: Option<Region>,
    steps: Vec<Step>,
    lost_steps: u64,
    open: Option<Open>,
    /// The place of each step by its number, for what is said of it later.
    places: HashMap<u64, usize>,
}

/// The step that is being read.
struct Open {
    number: u64,
    step: Step,
    /// The moment of the next line.
    moment: u32,
    /// What was allocated so far.
    total_bytes: u64,
    /// The place of each buffer that is alive, by its id.
    alive: HashMap<u64, usize>,
    /// The open scopes: the path of each, and the ids of its buffers.
    scopes: Vec<(NameId, String, Vec<u64>)>,
}

impl<'f> Reading<'f> {
    fn line(&mut self, line: Line<'f>) -> Result<(), String> {
        match line.op.as_ref() {
            "begin" => return self.begin(&line),
            "lost" => {
                self.lost_steps = self.lost_steps.saturating_add(line.steps.unwrap_or(0));
                return Ok(());
            }
            "step" => return self.open_step(&line),
            "result" => return self.result(&line),
            "failed" => return self.failed(&line),
            "open" | "alloc" | "drop" | "close" | "merge" | "end" => {}
            _ => {
                // A line of the step all the same: last uses count it.
                if let Some(open) = self.open.as_mut().filter(|open| line.step == Some(open.number))
                {
                    open.moment += 1;
                }
                return Ok(());
            }
        }
        let number = needed(line.step, "step")?;
        let Some(open) = self.open.as_mut().filter(|open| open.number == number) else {
            return Err(format!("step {number} is not open"));
        };
        let moment = open.moment;
        open.moment =
            moment.checked_add(1).filter(|next| *next < u32::MAX).ok_or("too many lines")?;
        match line.op.as_ref() {
            "alloc" => open.alloc(&mut self.names, line, moment),
            "drop" => open.drop(needed(line.id, "id")?, moment),
            "open" => open.open_scope(&mut self.names, &line),
            "close" => open.close_scope(needed(line.depth, "depth")?, Some(moment)),
            "merge" => open.close_scope(needed(line.depth, "depth")?, None),
            _ => {
                open.end(&line);
                self.close_step();
                Ok(())
            }
        }
    }

    fn begin(&mut self, line: &Line<'_>) -> Result<(), String> {
        match line.format.as_deref() {
            Some(FORMAT) => {}
            other => {
                let other = arena_plan::files::shortened(other.unwrap_or("")).to_string();
                return Err(format!("the format is {other:?}, expected is {FORMAT:?}"));
            }
        }
        for bytes in [line.capacity_bytes, line.mark_bytes].into_iter().flatten() {
            if bytes > MAX_BYTES {
                return Err(format!("a region of {bytes} bytes is too large"));
            }
        }
        self.region = Some(Region {
            device: line.device.clone().unwrap_or_default().into_owned(),
            capacity_bytes: line.capacity_bytes.unwrap_or(0),
            mark_bytes: line.mark_bytes.unwrap_or(0),
        });
        Ok(())
    }

    fn open_step(&mut self, line: &Line<'f>) -> Result<(), String> {
        self.close_step();
        let number = needed(line.step, "step")?;
        let key = line.key.clone().unwrap_or_default();
        let variant = line.variant.filter(|variant| *variant > 0);
        let key = variant.map_or(key.clone(), |variant| Cow::Owned(format!("{key}:{variant}")));
        let root = self.names.name(key.clone());
        let mut step = Step::new(format!("step {number} {key}"), Told::ByFile, 1, Vec::new());
        step.name.truncate(step.name.trim_end().len());
        step.figures = Figures {
            mode: line.mode.as_deref().map(str::to_owned),
            start_bytes: line.start_bytes,
            kept_floor_bytes: line.kept_floor_bytes,
            time_ns: (line.time_ns, None),
            ..Figures::default()
        };
        let (mark, capacity) = self
            .region
            .as_ref()
            .map_or((0, 0), |region| (region.mark_bytes, region.capacity_bytes));
        let kept = line.kept_floor_bytes.map_or(0, |floor| capacity.saturating_sub(floor));
        step.through_bytes = mark.saturating_add(kept);
        let scopes = vec![(root, key.into_owned(), Vec::new())];
        let alive = HashMap::new();
        self.open = Some(Open { number, step, moment: 1, total_bytes: 0, alive, scopes });
        Ok(())
    }

    fn close_step(&mut self) {
        if let Some(mut open) = self.open.take() {
            open.step.moments = open.moment;
            self.places.insert(open.number, self.steps.len());
            self.steps.push(open.step);
        }
    }

    fn result(&mut self, line: &Line<'_>) -> Result<(), String> {
        let number = needed(line.step, "step")?;
        let step = match &mut self.open {
            Some(open) if open.number == number => {
                open.moment += 1;
                &mut open.step
            }
            // Of a step that was lost.
            _ => match self.places.get(&number) {
                Some(&place) => &mut self.steps[place],
                None => return Ok(()),
            },
        };
        let figures = &mut step.figures;
        figures.loss = line.loss.or(figures.loss);
        figures.predictions = line.predictions.or(figures.predictions);
        figures.elapsed_ns = line.elapsed_ns.or(figures.elapsed_ns);
        Ok(())
    }

    /// The run ended in the step before, or after it.
    fn failed(&mut self, line: &Line<'_>) -> Result<(), String> {
        let error = line.error.as_deref().ok_or("no error")?;
        let open = self.open.as_mut().map(|open| &mut open.step);
        if let Some(step) = open.or(self.steps.last_mut()) {
            step.figures.failed = Some(error.to_owned());
        }
        Ok(())
    }
}

impl Open {
    fn alloc<'f>(
        &mut self,
        names: &mut Interner<'f>,
        line: Line<'f>,
        moment: u32,
    ) -> Result<(), String> {
        let id = needed(line.id, "id")?;
        let bytes = needed(line.bytes, "bytes")?;
        let offset = needed(line.offset_bytes, "offset_bytes")?;
        let alignment = line.alignment_bytes.unwrap_or(1);
        if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT_BYTES {
            return Err(format!(
                "alignment {alignment} is not a power of two up to {MAX_ALIGNMENT_BYTES}"
            ));
        }
        // Sums of a step's sizes are taken unchecked from here on.
        let total = self.total_bytes.checked_add(bytes).filter(|total| *total <= MAX_BYTES);
        if total.is_none() || offset.checked_add(bytes).is_none_or(|end| end > MAX_BYTES) {
            return Err(format!("{bytes} bytes at {offset} are too many"));
        }
        self.total_bytes = total.unwrap_or(MAX_BYTES);
        if self.alive.insert(id, self.step.buffers.len()).is_some() {
            return Err(format!("id {id} is alive already"));
        }
        let scope = self.scopes.last_mut();
        let path = scope.map(|(path, _, ids)| {
            ids.push(id);
            *path
        });
        let buffer = Buffer::new(moment, bytes)
            .at(offset)
            .aligned(alignment)
            .within(path)
            .used_last(line.last_use)
            .requested_by(line.site.map(|site| names.site_of_text(site)))
            .tagged(line.tag.map(|tag| names.name(tag)));
        self.step.buffers.push(buffer);
        Ok(())
    }

    fn drop(&mut self, id: u64, moment: u32) -> Result<(), String> {
        let place = self.alive.remove(&id).ok_or_else(|| format!("id {id} is not alive"))?;
        let buffer = &mut self.step.buffers[place];
        *buffer = buffer.dropped_at(Some(moment));
        Ok(())
    }

    fn open_scope(&mut self, names: &mut Interner<'_>, line: &Line<'_>) -> Result<(), String> {
        let depth = needed(line.depth, "depth")?;
        if depth != self.scopes.len() + 1 {
            return Err(format!("depth {depth} opens, but {} scopes are open", self.scopes.len()));
        }
        let around = self.scopes.last().map_or("", |(_, path, _)| path);
        let name = line.scope.as_deref().filter(|name| !name.is_empty()).unwrap_or("scope");
        let path = format!("{around}/{name}");
        // A path per level: they add up if scopes are opened ever deeper.
        if path.len() > MAX_PATH_BYTES {
            return Err(format!(
                "the names of the open scopes have more than {MAX_PATH_BYTES} bytes"
            ));
        }
        let name = names.name(Cow::Owned(path.clone()));
        self.scopes.push((name, path, Vec::new()));
        Ok(())
    }

    /// Ends the innermost scope: its buffers are dropped, or else go to the scope around it.
    fn close_scope(&mut self, depth: usize, dropped: Option<u32>) -> Result<(), String> {
        if depth != self.scopes.len() || depth < 2 {
            return Err(format!("depth {depth} ends, but {} scopes are open", self.scopes.len()));
        }
        let (_, _, ids) = self.scopes.pop().unwrap_or_else(|| unreachable!("there are two"));
        match dropped {
            Some(moment) => {
                for id in ids {
                    // Most were dropped before.
                    let _ = self.drop(id, moment);
                }
            }
            None => {
                if let Some((_, _, around)) = self.scopes.last_mut() {
                    around.extend(ids);
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, line: &Line<'_>) {
        let figures = &mut self.step.figures;
        figures.ended = true;
        figures.time_ns.1 = line.time_ns;
        figures.high_water_bytes = line.high_water_bytes;
        figures.used_bytes = line.used_bytes;
        figures.committed_bytes = line.committed_bytes;
        figures.kept_bytes = line.kept_bytes;
        figures.deviations = line.deviations;
    }
}

/// More than any device has, and few enough to be added up.
const MAX_BYTES: u64 = arena_plan::Instance::MAX_TOTAL_BYTES;
const MAX_ALIGNMENT_BYTES: u64 = 1 << 40;

/// The longest path of scopes, in bytes.
const MAX_PATH_BYTES: usize = 4096;

fn needed<T>(value: Option<T>, field: &str) -> Result<T, String> {
    value.ok_or_else(|| format!("the field {field:?} is missing"))
}

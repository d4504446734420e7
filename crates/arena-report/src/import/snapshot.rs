//! PyTorch's memory snapshots: what a pickle of `torch.cuda.memory._snapshot()` holds.
//!
//! Shapes that occur: with `device_traces` or without; a bare list of segments; blocks with a `history` of frames in
//! place of `frames`; several devices; segments that grow (`segment_map`, `segment_unmap`); no frames at all.

use arena_plan::Instance;

use super::history::{self, Action, Block, Entry};
use crate::model::{Recording, Source};
use crate::names::{Interner, NameId, Site, SiteId};
use crate::pickle::{Pickle, PickleError, PickleProblem, Value};

/// The fewest bytes of a file for each entry of its traces: its keys and numbers need as many. The limit keeps the
/// memory of a read within four times the file.
const LEAST_ENTRY_BYTES: usize = 27;

/// The most frames of a stack in which a line of the program is looked for.
const MAX_FRAMES: usize = 64;

/// The longest part of a name that is kept, in bytes.
const MAX_NAME_BYTES: usize = 512;

pub(super) fn read(file: &[u8]) -> Result<Recording, PickleError> {
    let mut names = Interner::default();
    let mut steps = Vec::new();
    let devices = {
        let pickle = Pickle::read(file)?;
        Reading { pickle: &pickle, names: &mut names, file, total_bytes: 0 }.devices()?
    };
    let is_only = devices.iter().filter(|device| !device.is_empty()).count() < 2;
    for (number, device) in devices.into_iter().enumerate() {
        let before = if is_only { String::new() } else { format!("device {number}, ") };
        steps.extend(history::steps(device, number as u32, &before));
    }
    Ok(Recording {
        source: Source::Snapshot,
        names: names.finish(),
        region: None,
        steps,
        lost_steps: 0,
    })
}

struct Reading<'r, 'f> {
    pickle: &'r Pickle<'f>,
    names: &'r mut Interner<'f>,
    file: &'f [u8],
    /// What the entries and the blocks add up to.
    total_bytes: u64,
}

impl<'r, 'f: 'r> Reading<'r, 'f> {
    fn list(
        &self,
        value: Value,
        what: &'static str,
    ) -> Result<impl Iterator<Item = Value> + use<'r, 'f>, PickleError> {
        let pickle = self.pickle;
        pickle.list(value).ok_or_else(|| self.wrong(value, what, "a list"))
    }

    fn wrong(&self, at: Value, what: &'static str, expected: &'static str) -> PickleError {
        PickleProblem::NotA(what, expected).at(self.pickle.place(at))
    }

    fn devices(&mut self) -> Result<Vec<history::Device>, PickleError> {
        let root = self.pickle.root();
        let is_bare = self.pickle.list(root).is_some();
        let segments = if is_bare { Some(root) } else { self.pickle.get(root, "segments") };
        let segments = segments.ok_or_else(|| self.wrong(root, "\"segments\"", "a list"))?;
        let traces = if is_bare { None } else { self.pickle.get(root, "device_traces") };
        self.check_size(segments, traces)?;

        let mut devices: Vec<history::Device> = Vec::new();
        if let Some(traces) = traces {
            for trace in self.list(traces, "\"device_traces\"")? {
                let entries = self.list(trace, "a trace")?;
                let mut read = Vec::with_capacity(self.pickle.len(trace));
                for entry in entries {
                    read.extend(self.entry(entry)?);
                }
                let has_history = self.pickle.len(trace) > 0;
                devices.push(history::Device { entries: read, has_history, ..Default::default() });
            }
        }
        for segment in self.list(segments, "\"segments\"")? {
            let number =
                self.pickle.get(segment, "device").map_or(Some(0), |n| self.pickle.unsigned(n));
            // PyTorch knows at most 64 devices.
            let number = number.filter(|number| *number < 1024);
            let number =
                number.ok_or_else(|| self.wrong(segment, "\"device\"", "a small number"))?;
            if devices.len() <= number as usize {
                devices.resize_with(number as usize + 1, history::Device::default);
            }
            let total = self.number(segment, "total_size", "\"total_size\" of a segment")?;
            let device = &mut devices[number as usize];
            device.reserved_bytes = device.reserved_bytes.saturating_add(total);
            let blocks = self.blocks(segment)?;
            devices[number as usize].blocks.extend(blocks);
        }
        Ok(devices)
    }

    /// Refuses lists that together have more entries than the file has room for.
    fn check_size(&self, segments: Value, traces: Option<Value>) -> Result<(), PickleError> {
        let mut entries = 0_usize;
        for trace in traces.and_then(|traces| self.pickle.list(traces)).into_iter().flatten() {
            entries = entries.saturating_add(self.pickle.len(trace));
        }
        for segment in self.pickle.list(segments).into_iter().flatten() {
            let blocks = self.pickle.get(segment, "blocks");
            entries = entries.saturating_add(blocks.map_or(0, |blocks| self.pickle.len(blocks)));
        }
        if entries.saturating_mul(LEAST_ENTRY_BYTES) > self.file.len() {
            return Err(PickleProblem::Repeats.at(self.pickle.place(segments)));
        }
        Ok(())
    }

    fn number(&self, dict: Value, key: &str, what: &'static str) -> Result<u64, PickleError> {
        let found = self.pickle.get(dict, key).and_then(|value| self.pickle.unsigned(value));
        found.ok_or_else(|| self.wrong(dict, what, "a number"))
    }

    /// A size. All of them together are few enough to be added up unchecked from here on.
    fn size(&mut self, dict: Value, key: &str, what: &'static str) -> Result<u64, PickleError> {
        let bytes = self.number(dict, key, what)?;
        let total = self.total_bytes.checked_add(bytes);
        let total = total.filter(|total| *total <= Instance::MAX_TOTAL_BYTES);
        self.total_bytes = total.ok_or_else(|| self.wrong(dict, what, "a size that memory has"))?;
        Ok(bytes)
    }

    /// The blocks of a segment that are in use.
    fn blocks(&mut self, segment: Value) -> Result<Vec<Block>, PickleError> {
        let mut address = self.number(segment, "address", "\"address\" of a segment")?;
        let blocks = self.pickle.get(segment, "blocks");
        let blocks =
            blocks.ok_or_else(|| self.wrong(segment, "\"blocks\" of a segment", "a list"))?;
        let mut active = Vec::new();
        for block in self.list(blocks, "\"blocks\"")? {
            let bytes = self.size(block, "size", "\"size\" of a block")?;
            let state = self.pickle.get(block, "state").and_then(|state| self.pickle.text(state));
            let state = state.ok_or_else(|| self.wrong(block, "\"state\" of a block", "a text"))?;
            if state.starts_with(b"active") {
                let history = self.pickle.get(block, "history");
                let latest = history.and_then(|history| self.pickle.list(history)?.next());
                let number = |dict, key| self.pickle.unsigned(self.pickle.get(dict, key)?);
                let requested = number(block, "requested_size")
                    .or_else(|| number(latest?, "real_size"))
                    .filter(|requested| (1..=bytes).contains(requested))
                    .unwrap_or(bytes);
                let frames = self.pickle.get(block, "frames");
                let frames = frames.or_else(|| self.pickle.get(latest?, "frames"));
                let site = frames.and_then(|frames| self.site(frames));
                active.push(Block { address, bytes: requested, site });
            }
            address = address.saturating_add(bytes);
        }
        Ok(active)
    }

    /// An entry of a trace, if it is of a kind that matters.
    fn entry(&mut self, entry: Value) -> Result<Option<Entry>, PickleError> {
        let action = self.pickle.get(entry, "action").and_then(|action| self.pickle.text(action));
        let action = match action {
            None => return Err(self.wrong(entry, "\"action\" of a trace's entry", "a text")),
            Some(b"alloc") => Action::Alloc,
            Some(b"free_requested") => Action::FreeRequested,
            Some(b"free_completed" | b"free") => Action::FreeCompleted,
            Some(b"segment_alloc" | b"segment_map") => Action::Reserve,
            Some(b"segment_free" | b"segment_unmap") => Action::Release,
            Some(b"oom") => Action::OutOfMemory,
            Some(_) => return Ok(None),
        };
        let bytes = self.size(entry, "size", "\"size\" of a trace's entry")?;
        let address = match action {
            Action::OutOfMemory => 0,
            _ => self.number(entry, "addr", "\"addr\" of a trace's entry")?,
        };
        let (mut site, mut tag) = (None, None);
        if action == Action::Alloc {
            let frames = self.pickle.get(entry, "frames");
            site = frames.and_then(|frames| self.site(frames));
            let text =
                self.pickle.get(entry, "user_metadata").and_then(|tag| self.pickle.text(tag));
            tag = text.filter(|text| !text.is_empty()).map(|text| self.name(text));
        }
        Ok(Some(Entry { address, bytes, site, tag, action }))
    }

    /// The line of a program that a stack began in: of the frames, which come from the innermost out, the first of
    /// Python that is not PyTorch's own. If there is none, the first that is not of the recording itself.
    fn site(&mut self, frames: Value) -> Option<SiteId> {
        let mut found: Option<(Value, &[u8])> = None;
        for frame in self.pickle.list(frames)?.take(MAX_FRAMES) {
            let file = self.pickle.get(frame, "filename").and_then(|file| self.pickle.text(file));
            let Some(file) = file else { continue };
            if is_of_program(file) {
                found = Some((frame, file));
                break;
            }
            found = found.or(Some((frame, file)).filter(|_| !is_of_recording(file)));
        }
        let (frame, file) = found?;
        let line = self.pickle.get(frame, "line").and_then(|line| self.pickle.unsigned(line));
        let function = self.pickle.get(frame, "name").and_then(|name| self.pickle.text(name));
        let function = function.filter(|name| !name.is_empty()).map(|name| self.name(name));
        let file = self.name(file);
        let line = line.and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
        Some(self.names.site(Site { file, line, function }))
    }

    /// A text, of which the end is kept if it is long.
    fn name(&mut self, text: &'f [u8]) -> NameId {
        let text = &text[text.len().saturating_sub(MAX_NAME_BYTES)..];
        self.names.name(String::from_utf8_lossy(text))
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn is_of_program(file: &[u8]) -> bool {
    file.ends_with(b".py") && !contains(file, b"-packages/torch/")
}

/// The frames that PyTorch's own viewer leaves out too.
fn is_of_recording(file: &[u8]) -> bool {
    [
        &b"core/boxing"[..],
        b"/Register",
        b"/Redispatch",
        b"pythonrun.c",
        b"Modules/main.c",
        b"ceval.c",
        b"??",
    ]
    .iter()
    .any(|part| contains(file, part))
}

//! What an arena does, as a stream of events in a file: JSON Lines, written by a thread of its own.
//!
//! `docs/reading-memory.md` has the format. The loop hands over the record of each step and does not wait: where the
//! writer is behind, steps and results are left out, and counted.

use std::collections::HashMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use arena_scope::record::{StepEvent, StepLog, StepSignature};
use arena_scope::{Arena, Device, Stats, StepKey};
use serde::Serialize;

use crate::files::FileError;

/// The format and its version.
pub const FORMAT: &str = "watermark-arena events 1";

/// Steps and results that may wait for the writer.
const MOST_WAITING: usize = 64;

/// Writes the events of an arena's steps to a file. The arena has to be recorded.
///
/// A writer that is dropped waits until everything is written, as [`finish`](Self::finish) does.
///
/// ```
/// use arena_plan::{EventWriter, Lost};
/// use arena_scope::{Arena, ByteSize, Host, StepKey};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("events.jsonl");
/// let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
/// arena.mark()?;
/// arena.record(None);
/// let mut events = EventWriter::create(&path, &arena)?;
/// arena.scope_named("train", |step| step.alloc::<f32>(8).map(drop))?;
/// let step = events.step(&arena, StepKey::named("train"));
/// events.result(step, 0.25, 8);
/// assert_eq!(events.finish()?, Lost::default()); // nothing was lost
/// let lines = std::fs::read_to_string(&path)?;
/// // The file begins, the step, a request, its drop, the step ends, its result.
/// assert_eq!(lines.lines().count(), 6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct EventWriter {
    began: Instant,
    path: PathBuf,
    /// `None` once it is finished.
    sender: Option<SyncSender<Message>>,
    writer: Option<JoinHandle<io::Result<()>>>,
    /// Steps told so far.
    steps: u64,
    /// Root scopes that had closed when the last step was told.
    resets: u64,
    /// Since the last step that was handed over.
    lost: Lost,
    lost_in_all: Lost,
}

/// What is not in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Lost {
    /// Steps for which the writer had no room, and steps without a record, as the replays of a graph are.
    pub steps: u64,
    /// Results for which the writer had no room.
    pub results: u64,
}

/// What the loop hands over.
#[derive(Debug)]
enum Message {
    Step(Box<Step>),
    Result { step: u64, loss: f32, predictions: u64, elapsed_ns: u64 },
    Failed { error: String },
    Lost(Lost),
}

#[derive(Debug)]
struct Step {
    number: u64,
    /// Before it.
    lost: Lost,
    key: StepKey,
    is_planned: bool,
    deviations: u64,
    log: StepLog,
    signature: Option<StepSignature>,
    high_water_bytes: u64,
    stats: Stats,
}

impl EventWriter {
    /// Begins a file, which is replaced if there is one, and the thread that writes it.
    ///
    /// # Errors
    ///
    /// When the file cannot be written, or the system gives no thread.
    pub fn create<D: Device>(path: &Path, arena: &Arena<D>) -> Result<Self, FileError> {
        let failed = |reason| FileError::writing(path)(reason);
        let stats = arena.stats();
        let begin = Line::Begin {
            format: FORMAT,
            device: arena.device().name(),
            capacity_bytes: stats.capacity_bytes,
            mark_bytes: stats.mark_bytes,
        };
        let began = Instant::now();
        let mut file = BufWriter::new(File::create(path).map_err(failed)?);
        begin.write(&mut file).map_err(failed)?;
        let (sender, receiver) = sync_channel(MOST_WAITING);
        let thread = thread::Builder::new().name("arena events".to_owned());
        let writer = thread.spawn(move || write_all(&receiver, began, file)).map_err(failed)?;
        Ok(Self {
            began,
            path: path.to_owned(),
            sender: Some(sender),
            writer: Some(writer),
            steps: 0,
            resets: arena.resets(),
            lost: Lost::default(),
            lost_in_all: Lost::default(),
        })
    }

    /// Steps told so far: the number of the next.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Hands over the root scope that closed last, which was of this key. Returns the step's number. The step is left
    /// out and counted if the writer is behind, or if no recorded scope has closed since the last call.
    pub fn step<D: Device>(&mut self, arena: &Arena<D>, key: StepKey) -> u64 {
        let number = self.steps;
        self.steps += 1;
        let deviations = arena.plan_deviations(key);
        let resets = mem::replace(&mut self.resets, arena.resets());
        let log = (resets != self.resets).then(|| arena.last_recorded()).flatten();
        let step = log.map(|log| Step {
            number,
            lost: self.lost,
            key,
            is_planned: deviations.is_some(),
            deviations: deviations.map_or(0, |deviations| deviations.total()),
            log,
            signature: arena.last_step_signature(),
            high_water_bytes: arena.last_step_high_water_bytes(),
            stats: arena.stats(),
        });
        if step.is_some_and(|step| self.has_room_for(Message::Step(Box::new(step)))) {
            self.lost = Lost::default();
        } else {
            self.lost.steps += 1;
            self.lost_in_all.steps += 1;
        }
        number
    }

    /// What the program knows of the step of this number. It is left out and counted if the writer is behind.
    pub fn result(&mut self, step: u64, loss: f32, predictions: u64) {
        let elapsed_ns = since(self.began, Instant::now());
        if !self.has_room_for(Message::Result { step, loss, predictions, elapsed_ns }) {
            self.lost.results += 1;
            self.lost_in_all.results += 1;
        }
    }

    /// The run ends with this error. It waits for the writer, so that the error is never left out.
    pub fn failed(&mut self, error: &(impl Display + ?Sized)) {
        self.send(Message::Failed { error: error.to_string() });
    }

    fn has_room_for(&self, message: Message) -> bool {
        self.sender.as_ref().is_some_and(|sender| sender.try_send(message).is_ok())
    }

    /// Waits until there is room. Where the writer has ended, it says why in `end`.
    fn send(&self, message: Message) {
        let _ = self.sender.as_ref().map(|sender| sender.send(message));
    }

    /// Waits until everything is written. Returns what was left out, which the lines `lost` add up to.
    ///
    /// # Errors
    ///
    /// When a write failed; the file ends where it did.
    pub fn finish(mut self) -> Result<Lost, FileError> {
        self.end().map_err(FileError::writing(&self.path))?;
        Ok(self.lost_in_all)
    }

    /// The second time it does nothing.
    fn end(&mut self) -> io::Result<()> {
        if self.lost != Lost::default() {
            let lost = mem::take(&mut self.lost);
            self.send(Message::Lost(lost));
        }
        drop(self.sender.take());
        let Some(writer) = self.writer.take() else { return Ok(()) };
        writer.join().unwrap_or_else(|_| Err(io::Error::other("its thread has panicked")))
    }
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        // `finish` is there for who wants to know.
        let _ = self.end();
    }
}

/// One line.
#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Line<'l> {
    Begin {
        format: &'l str,
        device: String,
        capacity_bytes: u64,
        mark_bytes: u64,
    },
    Lost(Lost),
    Step {
        step: u64,
        key: &'l str,
        variant: u64,
        mode: &'l str,
        start_bytes: u64,
        kept_floor_bytes: u64,
        time_ns: u64,
    },
    Open {
        step: u64,
        scope: &'l str,
        depth: u32,
        time_ns: u64,
    },
    Alloc {
        step: u64,
        id: usize,
        offset_bytes: u64,
        bytes: u64,
        alignment_bytes: u64,
        site: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        tag: Option<&'l str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        last_use: Option<usize>,
        #[serde(skip_serializing_if = "Option::is_none")]
        last_site: Option<String>,
    },
    Drop {
        step: u64,
        id: usize,
    },
    Tag {
        step: u64,
        tag: &'l str,
        time_ns: u64,
    },
    Close {
        step: u64,
        depth: u32,
        time_ns: u64,
    },
    Merge {
        step: u64,
        depth: u32,
        time_ns: u64,
    },
    End {
        step: u64,
        time_ns: u64,
        high_water_bytes: u64,
        used_bytes: u64,
        committed_bytes: u64,
        kept_bytes: u64,
        deviations: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
    },
    Result {
        step: u64,
        loss: f32,
        predictions: u64,
        elapsed_ns: u64,
    },
    Failed {
        error: &'l str,
    },
}

impl Line<'_> {
    fn write(&self, to: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *to, self)?;
        to.write_all(b"\n")
    }
}

/// The time of something, in nanoseconds from the begin of the file.
fn since(began: Instant, time: Instant) -> u64 {
    u64::try_from(time.saturating_duration_since(began).as_nanos()).unwrap_or(u64::MAX)
}

fn write_all(
    messages: &Receiver<Message>,
    began: Instant,
    mut to: BufWriter<File>,
) -> io::Result<()> {
    for message in messages {
        match &message {
            Message::Step(step) => write_step(step, began, &mut to)?,
            &Message::Result { step, loss, predictions, elapsed_ns } => {
                Line::Result { step, loss, predictions, elapsed_ns }.write(&mut to)?;
            }
            Message::Failed { error } => Line::Failed { error }.write(&mut to)?,
            &Message::Lost(lost) => Line::Lost(lost).write(&mut to)?,
        }
    }
    to.flush()
}

fn write_step(told: &Step, began: Instant, to: &mut impl Write) -> io::Result<()> {
    let Step { number: step, log, stats, key, .. } = told;
    let step = *step;
    if told.lost != Lost::default() {
        Line::Lost(told.lost).write(to)?;
    }
    // Of the events that are neither requests nor drops.
    let mut times = log.times().iter().map(|time| since(began, *time));
    Line::Step {
        step,
        key: key.name,
        variant: key.variant,
        mode: if told.is_planned { "planned" } else { "bump" },
        start_bytes: stats.mark_bytes,
        kept_floor_bytes: stats.capacity_bytes - stats.kept_bytes,
        time_ns: times.clone().next().unwrap_or(0),
    }
    .write(to)?;
    let (mut depth, mut id, mut time_ns) = (0, 0, 0);
    let mut live = HashMap::new();
    // Of the open scopes.
    let mut tags: Vec<Option<&str>> = Vec::new();
    for event in log.events() {
        match *event {
            StepEvent::Alloc { offset_bytes, bytes, alignment } => {
                let Some(request) = log.requests().get(id) else { break };
                if bytes > 0 {
                    live.insert(offset_bytes, id);
                }
                Line::Alloc {
                    step,
                    id,
                    offset_bytes,
                    bytes,
                    alignment_bytes: alignment.bytes(),
                    site: request.call_site.to_string(),
                    tag: tags.last().copied().flatten(),
                    // It came before that event of the record, so after the one before that.
                    last_use: request.last_use.map(|last| last.before_event.saturating_sub(1)),
                    last_site: request.last_use.map(|last| last.call_site.to_string()),
                }
                .write(to)?;
                id += 1;
            }
            StepEvent::Drop { offset_bytes } => {
                if let Some(id) = live.remove(&offset_bytes) {
                    Line::Drop { step, id }.write(to)?;
                }
            }
            // The root's is the line `step`, and its close the line `end`.
            StepEvent::Open { name } => {
                time_ns = times.next().unwrap_or(time_ns);
                depth += 1;
                tags.push(tags.last().copied().flatten());
                if depth > 1 {
                    Line::Open { step, scope: name, depth, time_ns }.write(to)?;
                }
            }
            StepEvent::Close => {
                time_ns = times.next().unwrap_or(time_ns);
                if depth > 1 {
                    Line::Close { step, depth, time_ns }.write(to)?;
                }
                depth -= 1;
                tags.pop();
            }
            StepEvent::Merge => {
                time_ns = times.next().unwrap_or(time_ns);
                Line::Merge { step, depth, time_ns }.write(to)?;
                depth -= 1;
                tags.pop();
            }
            StepEvent::Tag { name } => {
                time_ns = times.next().unwrap_or(time_ns);
                if let Some(tag) = tags.last_mut() {
                    *tag = Some(name).filter(|name| !name.is_empty());
                }
                Line::Tag { step, tag: name, time_ns }.write(to)?;
            }
            _ => {}
        }
    }
    Line::End {
        step,
        time_ns,
        high_water_bytes: told.high_water_bytes,
        used_bytes: stats.used_bytes,
        committed_bytes: stats.committed_bytes,
        kept_bytes: stats.kept_bytes,
        deviations: told.deviations,
        signature: told.signature.map(|signature| signature.to_string()),
    }
    .write(to)
}

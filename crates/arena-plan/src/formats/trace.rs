//! Traces of allocations: `op,id,size_bytes,stream,step`, with `op` one of `alloc`, `free`, `mark`.
//!
//! A mark is where the persistent part ends; it allocates nothing. The stream is not used.

use std::collections::HashMap;

use super::table::{self, Column, Table};
use super::{InputError, Labelled, Problem};
use crate::trace::Trace;

const OP: usize = 0;
const ID: usize = 1;
const SIZE: usize = 2;
const STEP: usize = 4;

const COLUMNS: [Column; 5] = [
    Column { names: &["op"], required: true },
    Column { names: &["id"], required: true },
    Column { names: &["size_bytes"], required: true },
    Column { names: &["stream"], required: false },
    Column { names: &["step"], required: true },
];

/// What happened in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A buffer was allocated.
    Alloc,
    /// A buffer was freed.
    Free,
    /// The persistent part ended.
    Mark,
}

/// A row of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'t> {
    /// What happened.
    pub op: Op,
    /// The buffer's name, as it is written. It may be used again after a free.
    pub id: &'t str,
    /// The buffer's size.
    pub size_bytes: u64,
    /// The step in which it happened.
    pub step: u64,
}

/// Reads the rows, each checked with those before it: a name is allocated once until it is freed, and freed with the
/// size that was allocated.
///
/// ```
/// use arena_plan::formats::trace::{self, Op};
///
/// let text = "op,id,size_bytes,stream,step\nalloc,a,8,0,1\nfree,a,8,0,1\n";
/// let events = trace::events(text)?;
/// assert_eq!((events[1].op, events[1].id, events[1].step), (Op::Free, "a", 1));
/// assert!(trace::events("op,id,size_bytes,stream,step\nfree,a,8,0,1\n").is_err());
/// # Ok::<(), arena_plan::formats::InputError>(())
/// ```
///
/// # Errors
///
/// The first [`InputError`] in the text.
pub fn events(text: &str) -> Result<Vec<Event<'_>>, InputError> {
    let table = Table::new(text, &COLUMNS)?;
    let mut live_bytes: HashMap<&str, u64> = HashMap::new();
    let mut events = Vec::new();
    for row in table.rows() {
        let row = row?;
        let op = row.text(OP).unwrap_or("");
        let id = row.text(ID).unwrap_or("");
        let size_bytes = row.number(SIZE)?;
        let step = row.number(STEP)?;
        let op = match op {
            "alloc" => {
                if live_bytes.insert(id, size_bytes).is_some() {
                    return Err(Problem::DoubleId(id.to_owned()).at(row.position(ID)));
                }
                Op::Alloc
            }
            "free" => {
                let Some(allocated_bytes) = live_bytes.remove(id) else {
                    return Err(Problem::NotAllocated(id.to_owned()).at(row.position(ID)));
                };
                if allocated_bytes != size_bytes {
                    let problem = Problem::OtherSize { freed_bytes: size_bytes, allocated_bytes };
                    return Err(problem.at(row.position(SIZE)));
                }
                Op::Free
            }
            "mark" => Op::Mark,
            _ => return Err(Problem::UnknownOp(op.to_owned()).at(row.position(OP))),
        };
        events.push(Event { op, id, size_bytes, step });
    }
    Ok(events)
}

/// Reads the buffers born in one step, or without a step those of the whole file.
///
/// The event's number is its time. A buffer that outlives the step lives to its end; one that was born
/// in an earlier step is no part of this one.
///
/// # Errors
///
/// The first [`InputError`] in the text; other steps are checked too.
pub fn read(text: &str, step: Option<u64>) -> Result<Labelled, InputError> {
    let header = Table::new(text, &COLUMNS)?.header();
    let mut trace = Trace::new();
    let mut labels = Vec::new();
    // The number in the trace of each live buffer, if the trace has it.
    let mut live: HashMap<&str, Option<usize>> = HashMap::new();
    for event in events(text)? {
        let wanted = step.is_none_or(|step| step == event.step);
        match event.op {
            Op::Alloc => {
                let number = wanted.then(|| {
                    labels.push(table::name(event.id));
                    trace.alloc(event.size_bytes, 1)
                });
                live.insert(event.id, number);
            }
            Op::Free => {
                if let Some(number) = live.remove(event.id).flatten().filter(|_| wanted) {
                    // Cannot fail: it was live until now.
                    let logged = trace.free(number);
                    debug_assert!(logged.is_ok(), "{logged:?}");
                }
            }
            Op::Mark => {}
        }
    }
    if let Some(step) = step.filter(|_| trace.is_empty()) {
        return Err(Problem::NoSuchStep(step).at(header));
    }
    let instance = trace.instance().map_err(|error| Problem::Instance(error).at(header))?;
    Ok(Labelled { labels, instance, earlier: 0 })
}

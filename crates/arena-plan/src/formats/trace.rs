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

struct Live {
    size_bytes: u64,
    /// Its number in the trace, if the trace has it.
    number: Option<usize>,
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
    let table = Table::new(text, &COLUMNS)?;
    let mut trace = Trace::new();
    let mut labels = Vec::new();
    let mut live: HashMap<&str, Live> = HashMap::new();
    for row in table.rows() {
        let row = row?;
        let op = row.text(OP).unwrap_or("");
        let id = row.text(ID).unwrap_or("");
        let size_bytes = row.number(SIZE)?;
        let this_step = row.number(STEP)?;
        let wanted = step.is_none_or(|step| step == this_step);
        match op {
            "alloc" => {
                let number = wanted.then(|| {
                    labels.push(table::name(id));
                    trace.alloc(size_bytes, 1)
                });
                if live.insert(id, Live { size_bytes, number }).is_some() {
                    return Err(Problem::DoubleId(id.to_owned()).at(row.position(ID)));
                }
            }
            "free" => {
                let Some(freed) = live.remove(id) else {
                    return Err(Problem::NotAllocated(id.to_owned()).at(row.position(ID)));
                };
                let allocated_bytes = freed.size_bytes;
                if allocated_bytes != size_bytes {
                    let problem = Problem::OtherSize { freed_bytes: size_bytes, allocated_bytes };
                    return Err(problem.at(row.position(SIZE)));
                }
                if let Some(number) = freed.number.filter(|_| wanted) {
                    // Cannot fail: it was live until now.
                    let logged = trace.free(number);
                    debug_assert!(logged.is_ok(), "{logged:?}");
                }
            }
            "mark" => {}
            _ => return Err(Problem::UnknownOp(op.to_owned()).at(row.position(OP))),
        }
    }
    if let Some(step) = step.filter(|_| trace.is_empty()) {
        return Err(Problem::NoSuchStep(step).at(table.header()));
    }
    let instance = trace.instance().map_err(|error| Problem::Instance(error).at(table.header()))?;
    Ok(Labelled { labels, instance, earlier: 0 })
}

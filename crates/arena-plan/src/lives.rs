//! How long each buffer of a recorded step lives, by the events of the record.

use std::collections::HashMap;

use arena_scope::record::{StepEvent, StepLog};

use crate::trace::Trace;

/// A buffer that is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Life {
    /// Its request's number, with the empty ones ([`StepLog::requests`]).
    pub(crate) request: usize,
    pub(crate) bytes: u64,
    pub(crate) alignment_bytes: u64,
    /// The event of its request.
    pub(crate) birth: usize,
    /// The event at which it is dead: what is born at that event may have its bytes. [`NEVER`] if it is not freed.
    pub(crate) death: usize,
}

/// After every event.
pub(crate) const NEVER: usize = usize::MAX;

/// The buffers in the order of their births. A buffer dies when its handle is dropped, or else when its scope
/// closes.
pub(crate) fn lives(log: &StepLog) -> Vec<Life> {
    let (mut lives, mut request) = (Vec::<Life>::new(), 0);
    // Who lies at an offset now, and who was born in each open scope. The root's own opening may be
    // missing from the log.
    let mut at: HashMap<u64, usize> = HashMap::new();
    let mut scopes: Vec<Vec<u64>> = vec![Vec::new()];
    for (number, event) in log.events().iter().enumerate() {
        match *event {
            StepEvent::Alloc { offset_bytes, bytes, alignment } => {
                if bytes > 0 {
                    at.insert(offset_bytes, lives.len());
                    if let Some(scope) = scopes.last_mut() {
                        scope.push(offset_bytes);
                    }
                    let alignment_bytes = alignment.bytes();
                    let (birth, death) = (number, NEVER);
                    lives.push(Life { request, bytes, alignment_bytes, birth, death });
                }
                request += 1;
            }
            StepEvent::Drop { offset_bytes } => {
                if let Some(buffer) = at.remove(&offset_bytes) {
                    lives[buffer].death = number;
                }
            }
            StepEvent::Open { .. } => scopes.push(Vec::new()),
            StepEvent::Merge => {
                let merged = scopes.pop().unwrap_or_default();
                if let Some(around) = scopes.last_mut() {
                    around.extend(merged);
                }
            }
            StepEvent::Close => {
                for offset_bytes in scopes.pop().into_iter().flatten() {
                    if let Some(buffer) = at.remove(&offset_bytes) {
                        lives[buffer].death = number;
                    }
                }
            }
            _ => {}
        }
    }
    lives
}

/// The same as a trace; `lives` are in the order of births.
pub(crate) fn trace(lives: &[Life]) -> Trace {
    let mut trace = Trace::new();
    let mut deaths: Vec<usize> =
        (0..lives.len()).filter(|&buffer| lives[buffer].death != NEVER).collect();
    deaths.sort_by_key(|&buffer| lives[buffer].death); // Those of one event by their births.
    let mut deaths = deaths.into_iter().peekable();
    let mut free_until = |trace: &mut Trace, event: usize| {
        while let Some(buffer) = deaths.next_if(|&buffer| lives[buffer].death <= event) {
            // It was allocated before, and each is freed once.
            let freed = trace.free(buffer);
            debug_assert_eq!(freed, Ok(()));
        }
    };
    for life in lives {
        free_until(&mut trace, life.birth);
        trace.alloc(life.bytes, life.alignment_bytes);
    }
    free_until(&mut trace, NEVER);
    trace
}

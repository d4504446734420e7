//! The log of one step: allocations and deaths in the order in which they happen.

use thiserror::Error;

use crate::instance::{Buffer, Instance, InstanceError};

/// Collects the events of one step. The number of an event is its time, so recording needs no clock. A buffer
/// that is not freed lives to the end.
///
/// ```
/// use arena_plan::{Trace, lower_bound};
///
/// let mut trace = Trace::new();
/// let x = trace.alloc(100, 1);
/// let y = trace.alloc(50, 1);
/// trace.free(x).unwrap();
/// trace.alloc(60, 1); // may take the place of x
/// trace.free(y).unwrap();
/// assert_eq!(lower_bound(&trace.instance().unwrap()).rounded_bytes, 150);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// A death of 0 means still alive: nothing dies at the first event.
    buffers: Vec<Buffer>,
    events: u64,
}

/// An event that is not possible.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceError {
    /// No such buffer was allocated.
    #[error("buffer {0} was never allocated")]
    Unknown(usize),
    /// The buffer had already died.
    #[error("buffer {0} was freed twice")]
    FreedTwice(usize),
}

impl Trace {
    /// A trace without events.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Logs an allocation and returns the buffer's number: 0, 1, 2, ...
    pub fn alloc(&mut self, size_bytes: u64, alignment_bytes: u64) -> usize {
        self.buffers.push(Buffer {
            birth: self.events,
            death: 0,
            size_bytes,
            alignment_bytes,
            fixed_offset_bytes: None,
        });
        self.events += 1;
        self.buffers.len() - 1
    }

    /// Logs a death.
    ///
    /// # Errors
    ///
    /// [`TraceError`] when the buffer is not alive; nothing is logged then.
    ///
    /// ```
    /// # use arena_plan::{Trace};
    /// let mut step = Trace::new();
    /// let first = step.alloc(100, 1);
    /// step.free(first)?;
    /// assert!(step.free(first).is_err()); // twice
    /// let second = step.alloc(100, 1);
    /// let instance = step.instance()?;
    /// assert!(!instance.buffers()[first].overlaps_in_time(&instance.buffers()[second]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn free(&mut self, buffer: usize) -> Result<(), TraceError> {
        let logged = self.buffers.get_mut(buffer).ok_or(TraceError::Unknown(buffer))?;
        if logged.death != 0 {
            return Err(TraceError::FreedTwice(buffer));
        }
        logged.death = self.events;
        self.events += 1;
        Ok(())
    }

    /// Size in bytes of a buffer, if it was allocated.
    #[must_use]
    pub fn size_bytes(&self, buffer: usize) -> Option<u64> {
        self.buffers.get(buffer).map(|logged| logged.size_bytes)
    }

    /// How many buffers were allocated.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffers.len()
    }

    /// Whether nothing was allocated.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// The step as an instance to plan.
    ///
    /// # Errors
    ///
    /// [`InstanceError`] for an alignment that is not a power of two, or for sizes that are too large.
    pub fn instance(&self) -> Result<Instance, InstanceError> {
        let alive_to_the_end = |buffer: &Buffer| Buffer {
            death: if buffer.death == 0 { self.events } else { buffer.death },
            ..*buffer
        };
        Instance::new(self.buffers.iter().map(alive_to_the_end).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_events_are_refused_and_leave_no_trace() {
        let mut trace = Trace::new();
        let buffer = trace.alloc(8, 1);
        trace.free(buffer).unwrap();
        let before = trace.clone();
        assert_eq!(trace.free(buffer), Err(TraceError::FreedTwice(0)));
        assert_eq!(trace.free(7), Err(TraceError::Unknown(7)));
        assert_eq!(trace, before);
    }

    #[test]
    fn what_is_not_freed_lives_to_the_end() {
        let mut trace = Trace::new();
        let kept = trace.alloc(8, 1);
        let freed = trace.alloc(8, 1);
        trace.free(freed).unwrap();
        let instance = trace.instance().unwrap();
        assert_eq!((instance.buffers()[kept].birth, instance.buffers()[kept].death), (0, 3));
        assert_eq!((instance.buffers()[freed].birth, instance.buffers()[freed].death), (1, 2));
    }
}

//! Input slots and results of an arena on CUDA.

use arena_core::cuda::{InputSlots, ResultQueue};
use arena_core::{Cuda, Error, Pod};

use crate::arena::Arena;

impl Arena<Cuda> {
    /// `count` input slots of `len` elements. The copy of the next batch into a slot overlaps the step that reads
    /// another slot. Make them before the mark is set.
    ///
    /// # Errors
    ///
    /// As for [`InputSlots::new`].
    #[track_caller]
    pub fn input_slots<T: Pod>(&self, count: usize, len: usize) -> Result<InputSlots<T>, Error> {
        InputSlots::new(&self.state.steps, count, len)
    }

    /// A queue for results on their way to the host, with room for `count` results of `len` elements. For
    /// example losses that the host reads some steps later.
    ///
    /// # Errors
    ///
    /// As for [`ResultQueue::new`].
    pub fn result_queue<T: Pod>(&self, count: usize, len: usize) -> Result<ResultQueue<T>, Error> {
        ResultQueue::new(&self.state.steps, count, len)
    }
}

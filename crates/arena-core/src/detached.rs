//! Transient buffers without a lifetime: they know which scope made them, and are checked when they are used.

#![forbid(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::ScopeId;
use crate::packed::len_of;
use crate::steps::FrameId;

/// A transient buffer taken out of its lifetime. [`Steps`](crate::for_scopes::Steps) gives access to it as
/// long as the scope is open that it was detached in.
///
/// It holds no memory: what it names may be another buffer's once that scope has closed. So it can be sent
/// to another thread and dropped there, at any time.
pub struct Detached<T> {
    pub(crate) address: u64,
    /// The length and the slot, as in the transient buffer.
    pub(crate) packed: u64,
    pub(crate) made_in: MadeIn,
    drops: Arc<Drops>,
    elements: PhantomData<T>,
}

/// The scope in which a buffer was detached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MadeIn {
    pub(crate) frame: FrameId,
    pub(crate) depth: u32,
    pub(crate) name: &'static str,
}

impl MadeIn {
    pub(crate) fn id(self) -> ScopeId {
        ScopeId::new(self.frame.arena(), self.frame.number(), self.depth, self.name)
    }
}

impl<T> Detached<T> {
    pub(crate) fn new(address: u64, packed: u64, made_in: MadeIn, drops: &Arc<Drops>) -> Self {
        Self { address, packed, made_in, drops: Arc::clone(drops), elements: PhantomData }
    }

    /// Elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        len_of(self.packed)
    }

    /// Whether there is no element.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) const fn len_bytes(&self) -> u64 {
        self.len() as u64 * size_of::<T>() as u64
    }

    /// The address and the packed word of a buffer that goes on as a transient one: it is not dropped here.
    pub(crate) fn into_parts(mut self) -> (u64, u64) {
        let parts = (self.address, self.packed);
        self.packed = 0;
        parts
    }
}

impl<T> Drop for Detached<T> {
    fn drop(&mut self) {
        // As for a transient buffer: without a byte it has no place that could come free.
        if size_of::<T>() > 0 && self.packed != 0 {
            let (address, packed, frame) = (self.address, self.packed, self.made_in.frame);
            self.drops.push(Dropped { address, packed, frame });
        }
    }
}

impl<T> fmt::Debug for Detached<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = std::any::type_name::<T>();
        write!(f, "<{element}; {}>@{:#x} of {}", self.len(), self.address, self.made_in.id())
    }
}

/// A detached buffer that was dropped.
#[derive(Debug)]
pub(crate) struct Dropped {
    pub(crate) address: u64,
    pub(crate) packed: u64,
    pub(crate) frame: FrameId,
}

/// Detached buffers that were dropped, on any thread, since the arena looked last. There are never more of
/// them than there were detached buffers at once, for the arena looks whenever it makes one.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    /// Whether there may be any, to be asked without the lock.
    any: AtomicBool,
    queue: Mutex<Vec<Dropped>>,
}

impl Drops {
    fn push(&self, dropped: Dropped) {
        self.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(dropped);
        self.any.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes them in their order, each passed to `take`.
    pub(crate) fn drain(&self, take: impl FnMut(Dropped)) {
        self.any.store(false, Ordering::Release);
        let mut queue = self.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        queue.drain(..).for_each(take);
    }
}

//! Slices of cudarc's over memory of the arena, kept from one lending to the next. Making one costs two events, so a
//! step that repeats itself finds those of the step before.

use std::any::{Any, TypeId};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::{CudaSlice, CudaStream};

/// A slice whose memory is not its own: it must never be dropped as what it is.
pub(crate) type Lent<T> = Box<ManuallyDrop<CudaSlice<T>>>;
type Erased = Box<dyn Any + Send + Sync>;

/// More than this many are not kept; the one that was lent the longest time ago makes room.
pub(crate) const AT_MOST: usize = 4096;

/// The slices of one device.
#[derive(Default)]
pub(crate) struct LentSlices(Mutex<Slots>);

#[derive(Default)]
struct Slots {
    slots: Vec<Slot>,
    /// Where the next one is looked for first: steps lend in the order of the step before.
    next: usize,
    lendings: u64,
}

struct Slot {
    key: Key,
    /// Which lending used it last.
    lending: u64,
    /// `None` while it is lent.
    slice: Option<Kept>,
}

struct Kept {
    slice: Erased,
    retire: fn(Erased),
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    address: u64,
    len: usize,
    element: TypeId,
}

/// Where a slice goes back to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    slot: usize,
    lending: u64,
}

impl LentSlices {
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A slice over `len` elements at `address`: a kept one, or one that `make` makes.
    pub(crate) fn take<T: 'static, E>(
        &self,
        address: u64,
        len: usize,
        make: impl FnOnce() -> Result<Lent<T>, E>,
    ) -> Result<(Lent<T>, Place), E> {
        let key = Key { address, len, element: TypeId::of::<T>() };
        let found = self.lock().find(key);
        if let Some((kept, place)) = found
            && let Ok(slice) = kept.slice.downcast()
        {
            return Ok((slice, place));
        }
        let slice = make()?;
        let (place, evicted) = self.lock().place(key);
        if let Some(Kept { slice, retire }) = evicted {
            retire(slice);
        }
        Ok((slice, place))
    }

    /// Takes a slice back. `retires` says whether one without a place may call the driver to give up its events.
    pub(crate) fn give_back<T: 'static>(&self, slice: Lent<T>, place: Place, retires: bool) {
        let kept = Kept { slice, retire: retire::<T> };
        let without_place = self.lock().put_back(kept, place);
        if let Some(Kept { slice, retire }) = without_place
            && retires
        {
            retire(slice);
        }
    }
}

impl Slots {
    fn find(&mut self, key: Key) -> Option<(Kept, Place)> {
        let len = self.slots.len();
        for slot in (self.next..len).chain(0..self.next.min(len)) {
            if self.slots[slot].key == key
                && let Some(kept) = self.slots[slot].slice.take()
            {
                self.next = slot + 1;
                return Some((kept, self.mark(slot)));
            }
        }
        None
    }

    /// A place for a new slice, and the one that has to leave it.
    fn place(&mut self, key: Key) -> (Place, Option<Kept>) {
        if self.slots.len() < AT_MOST {
            self.slots.push(Slot { key, lending: 0, slice: None });
            let slot = self.slots.len() - 1;
            self.next = slot + 1;
            return (self.mark(slot), None);
        }
        // One that is lent loses its place too, if it is the oldest: it may have been forgotten.
        let oldest = self.slots.iter().enumerate().min_by_key(|(_, slot)| slot.lending);
        let slot = oldest.map_or(0, |(slot, _)| slot);
        let evicted = self.slots[slot].slice.take();
        self.slots[slot].key = key;
        self.next = slot + 1;
        (self.mark(slot), evicted)
    }

    fn mark(&mut self, slot: usize) -> Place {
        self.lendings += 1;
        self.slots[slot].lending = self.lendings;
        Place { slot, lending: self.lendings }
    }

    /// The slice again, if its place is another's by now.
    fn put_back(&mut self, kept: Kept, place: Place) -> Option<Kept> {
        match self.slots.get_mut(place.slot) {
            Some(slot) if slot.lending == place.lending => slot.slice.replace(kept),
            _ => Some(kept),
        }
    }
}

impl Drop for LentSlices {
    fn drop(&mut self) {
        let slots = self.0.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        for Kept { slice, retire } in slots.slots.drain(..).filter_map(|slot| slot.slice) {
            retire(slice);
        }
    }
}

/// Gives up what a slice holds beside memory: its events, and its part of the stream.
fn retire<T: 'static>(slice: Erased) {
    if let Ok(slice) = slice.downcast::<ManuallyDrop<CudaSlice<T>>>() {
        ManuallyDrop::into_inner(*slice).leak();
    }
}

/// Makes a slice over memory of the arena. The context is current.
pub(crate) fn over<T>(stream: &Arc<CudaStream>, address: u64, len: usize) -> Lent<T> {
    // SAFETY: what the slice is used for is the caller's to prove. Its drop, which would free the memory, never runs.
    Box::new(ManuallyDrop::new(unsafe { stream.upgrade_device_ptr(address, len) }))
}

impl fmt::Debug for LentSlices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentSlices")
            .field("slots", &self.lock().slots.len())
            .finish_non_exhaustive()
    }
}

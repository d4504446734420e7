//! Requests through a scope: each that is served goes into the step signature.

use std::hint::cold_path;
use std::panic::Location;

use arena_core::{Alignment, Device, Error, ErrorKind, Pod, Transient};

use super::State;
use crate::signature::Tag;

impl<D: Device> State<D> {
    #[inline]
    #[track_caller]
    pub(crate) fn alloc<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
        depth: u32,
    ) -> Result<Transient<'_, T, D>, Error> {
        let tag = Tag::new(alignment, depth);
        match self.raw.bump::<T>(len, alignment) {
            Some(buffer) => {
                self.sign(&buffer, len, tag);
                Ok(buffer)
            }
            None => {
                cold_path();
                self.alloc_otherwise(len, alignment, tag)
            }
        }
    }

    /// Not marked cold: under a plan every request comes here. What does not repeat an earlier step goes
    /// on elsewhere, so that what does keeps nothing for it.
    #[inline(never)]
    #[track_caller]
    fn alloc_otherwise<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
        tag: Tag,
    ) -> Result<Transient<'_, T, D>, Error> {
        if let Some(buffer) = self.raw.repeated(len, alignment) {
            self.sign(&buffer, len, tag);
            return Ok(buffer);
        }
        self.alloc_counted(len, alignment, tag)
    }

    #[inline(never)]
    #[track_caller]
    fn alloc_counted<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
        tag: Tag,
    ) -> Result<Transient<'_, T, D>, Error> {
        if let Some(buffer) = self.raw.planned(len, alignment) {
            self.sign(&buffer, len, tag);
            return Ok(buffer);
        }
        self.alloc_watched(len, alignment, tag.depth(alignment))
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn alloc_watched<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
        depth: u32,
    ) -> Result<Transient<'_, T, D>, Error> {
        let buffer = self.raw.transient_slowly(len, alignment, Location::caller());
        self.count(buffer, alignment, depth)
    }

    /// Adds a request that was served in the region to the signature.
    #[inline]
    fn sign<T: Pod>(&self, buffer: &Transient<'_, T, D>, len: usize, tag: Tag) {
        // In range, for the buffer lies in a region.
        let bytes = len as u64 * size_of::<T>() as u64;
        self.running.add(self.raw.offset_of(buffer.address()), bytes, tag);
    }

    /// Adds a request that was served to the signature, or what the scope knows to its error.
    pub(crate) fn count<'s, T: Pod>(
        &self,
        outcome: Result<Transient<'s, T, D>, Error>,
        alignment: Alignment,
        depth: u32,
    ) -> Result<Transient<'s, T, D>, Error> {
        match outcome {
            Ok(buffer) => {
                let bytes = buffer.len() as u64 * size_of::<T>() as u64;
                self.running.add(buffer.offset_bytes(), bytes, Tag::new(alignment, depth));
                Ok(buffer)
            }
            Err(error) => Err(self.in_scope(error, depth)),
        }
    }

    /// Adds what the scope knows to an error.
    #[cold]
    pub(crate) fn in_scope(&self, mut error: Error, depth: u32) -> Error {
        if let ErrorKind::Exhausted(exhausted) = error.kind_mut() {
            let frames = self.frames.borrow();
            let name = frames.get(depth as usize - 1).map_or("", |frame| frame.name);
            exhausted.scope = Some(self.running.facts(name, depth, self.resets.get()));
        }
        error
    }
}

//! Holding a region as it is, for work that was recorded with its addresses.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use crate::device::{Device, Host};
use crate::region::Region;

/// Keeps a region alive and its layout unchanged: while a pin exists, the bytes of dropped kept buffers are not
/// reused, and nothing is trimmed. A captured graph holds a pin, because it contains only addresses.
pub struct RegionPin<D: Device = Host>(Arc<Region<D>>);

impl<D: Device> RegionPin<D> {
    pub(crate) fn new(region: &Arc<Region<D>>) -> Self {
        region.pin();
        Self(Arc::clone(region))
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Region<D> {
        &self.0
    }

    /// Whether it is this region that is pinned.
    #[must_use]
    pub fn is_of(&self, region: &Region<D>) -> bool {
        std::ptr::eq(&raw const *self.0, region)
    }
}

impl<D: Device> Drop for RegionPin<D> {
    fn drop(&mut self) {
        self.0.unpin();
    }
}

impl<D: Device> fmt::Debug for RegionPin<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RegionPin").field(&self.0).finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Alignment, ByteSize, Error, ErrorKind, Host, RawArena};

    #[test]
    fn nothing_of_a_pinned_region_is_trimmed() -> Result<(), Error> {
        let mut arena = RawArena::new(Host::new(), ByteSize::mib(1))?;
        arena.set_mark()?;
        arena.transient::<u8>(1 << 19, Alignment::DEFAULT)?.view_mut().zero()?;
        arena.reset_to_mark();
        let pin = arena.pin();
        assert!(pin.is_of(arena.steps().region()));
        assert!(matches!(arena.trim(0).unwrap_err().kind(), ErrorKind::InUse { .. }));
        drop(pin);
        assert_eq!(arena.trim(0)?, 1 << 20);
        Ok(())
    }
}

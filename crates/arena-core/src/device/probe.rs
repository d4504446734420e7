//! A device without memory.

use super::{Device, Obtained, Pattern};
use crate::bytes::Alignment;
use crate::error::{DeviceError, DeviceErrorKind, Error, ErrorKind};
use crate::layout::region_fits;

/// A device that has addresses but no memory, so it can have any capacity up to 2⁶² bytes.
///
/// A program runs on it only for its shapes: fills and copies do nothing, and a read returns zeros. An arena on
/// it reports the smallest capacity that serves the same requests (`smallest_capacity_bytes`). The answer is
/// valid for a device whose regions have the same alignment, and for requests with at most that alignment.
#[derive(Debug, Clone)]
pub struct Probe {
    base_address: u64,
    stands_for: Option<String>,
}

impl Probe {
    const BASE_ADDRESS: u64 = 1 << 44;

    /// A probe whose regions have a larger alignment (16 TiB) than those of any real device.
    #[must_use]
    pub const fn new() -> Self {
        Self { base_address: Self::BASE_ADDRESS, stands_for: None }
    }

    /// A probe that stands for `device`: its regions have exactly the same alignment.
    ///
    /// ```
    /// # use arena_core::{Device, Host, Probe};
    /// let probe = Probe::like(&Host::new());
    /// assert_eq!(probe.base_alignment(), Host::new().base_alignment());
    /// ```
    #[must_use]
    pub fn like<D: Device>(device: &D) -> Self {
        Self {
            base_address: Self::BASE_ADDRESS + device.base_alignment().bytes(),
            stands_for: Some(device.name()),
        }
    }

    /// A probe whose regions start at a given address.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadAddress`] for an address above 2⁶¹, which leaves no room for a region.
    ///
    /// ```
    /// # use arena_core::{Device, Probe};
    /// let probe = Probe::at(512)?;
    /// assert_eq!(probe.base_alignment().bytes(), 512);
    /// assert!(Probe::at(u64::MAX).is_err());
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    pub fn at(base_address: u64) -> Result<Self, Error> {
        const HIGHEST: u64 = 1 << 61;
        if base_address > HIGHEST {
            return Err(ErrorKind::BadAddress { address: base_address, highest: HIGHEST }.into());
        }
        Ok(Self { base_address, stands_for: None })
    }
}

impl Default for Probe {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: by the duties' numbers. 1: its memory has no bytes that anybody could touch, and it is not host
// visible; regions of several arenas may have the same addresses, for nobody uses them. 2: the base is
// always the one that the alignment is computed from. 3 to 9: no call does anything, but that `copy_out`
// writes zeros before it returns. 10: it wraps nothing.
unsafe impl Device for Probe {
    type Memory = ();
    type Stream = ();
    type Event = ();
    const MEASURES_ONLY: bool = true;

    fn name(&self) -> String {
        match &self.stands_for {
            Some(name) => format!("probe of {name}"),
            None => "probe".to_owned(),
        }
    }

    fn base_alignment(&self) -> Alignment {
        // The lowest bit of the address, which is the largest power of two that divides it.
        Alignment::new(1 << self.base_address.trailing_zeros().min(61)).unwrap_or(Alignment::MAX)
    }

    fn obtain(&self, bytes: u64) -> Result<Obtained<()>, DeviceError> {
        if !region_fits(self.base_address, bytes) {
            return Err(DeviceError {
                device: self.name(),
                call: "obtain",
                reason: format!("{bytes} bytes reach beyond the largest address"),
                kind: DeviceErrorKind::Refused,
            });
        }
        Ok(Obtained { base_address: self.base_address, handle: () })
    }

    unsafe fn release(&self, _memory: Obtained<()>, _bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn give_back(&self, _address: u64, _bytes: u64) -> Result<u64, DeviceError> {
        Ok(0)
    }

    unsafe fn fill(
        &self,
        _address: u64,
        _bytes: u64,
        _pattern: Pattern,
    ) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn copy_in(&self, _to_address: u64, _from: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn copy_out(&self, to: &mut [u8], _from_address: u64) -> Result<(), DeviceError> {
        to.fill(0);
        Ok(())
    }

    unsafe fn copy_within(
        &self,
        _to_address: u64,
        _from_address: u64,
        _bytes: u64,
    ) -> Result<(), DeviceError> {
        Ok(())
    }

    fn synchronise(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn stream(&self) -> &() {
        &()
    }

    fn owns_stream(&self, _stream: &()) -> bool {
        true
    }

    fn new_event(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn record(&self, _event: &(), _stream: &()) -> Result<(), DeviceError> {
        Ok(())
    }

    fn wait(&self, _stream: &(), _event: &()) -> Result<(), DeviceError> {
        Ok(())
    }

    fn synchronise_stream(&self, _stream: &()) -> Result<(), DeviceError> {
        Ok(())
    }
}

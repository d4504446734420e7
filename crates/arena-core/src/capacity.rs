//! How much of a device's memory an arena takes.

#![forbid(unsafe_code)]

use crate::bytes::ByteSize;
use crate::device::{Device, DeviceMemory};
use crate::error::{DeviceError, DeviceErrorKind, Error};

/// A wish for a capacity: bytes, or a fraction of a device's memory, with headroom that is left to
/// the driver and to libraries.
///
/// ```
/// use arena_core::{ByteSize, Capacity, DeviceMemory};
/// let mib = |mib| ByteSize::mib(mib).bytes();
/// let memory = DeviceMemory::new("gpu".to_owned(), mib(850), mib(1000));
/// assert_eq!(Capacity::fraction_of_free(0.5).of(&memory)?, ByteSize::mib(425));
/// let headroom = ByteSize::mib(100);
/// assert_eq!(Capacity::fraction_of_free(1.0).headroom(headroom).of(&memory)?, ByteSize::mib(750));
/// let refused = Capacity::fraction_of_total(0.9).of(&memory).unwrap_err();
/// assert!(refused.to_string().contains("other programs"));
/// # Ok::<(), arena_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Capacity {
    wish: Wish,
    headroom: ByteSize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Wish {
    Bytes(ByteSize),
    OfTotal(f64),
    OfFree(f64),
}

impl Capacity {
    /// Exactly `size`.
    #[must_use]
    pub const fn exactly(size: ByteSize) -> Self {
        Self::new(Wish::Bytes(size))
    }

    /// A fraction of the device's total memory, or of what a container or another limit leaves of it; the same on
    /// each run: 0 to 1.
    #[must_use]
    pub const fn fraction_of_total(fraction: f64) -> Self {
        Self::new(Wish::OfTotal(fraction))
    }

    /// A fraction of what is free now less the headroom: 0 to 1. Two programs that start together
    /// race for it.
    #[must_use]
    pub const fn fraction_of_free(fraction: f64) -> Self {
        Self::new(Wish::OfFree(fraction))
    }

    const fn new(wish: Wish) -> Self {
        Self { wish, headroom: ByteSize::bytes_exact(0) }
    }

    /// Leaves at least so much of the free memory to the driver and libraries.
    #[must_use]
    pub const fn headroom(mut self, headroom: ByteSize) -> Self {
        self.headroom = headroom;
        self
    }

    /// The capacity on `device`. The device is asked for its [memory](Device::memory) only for a fraction, or
    /// for the headroom beside a number of bytes.
    ///
    /// ```
    /// use arena_core::{ByteSize, Capacity, Host};
    ///
    /// assert_eq!(Capacity::exactly(ByteSize::gib(1)).on(&Host::new())?, ByteSize::gib(1));
    /// let tenth = Capacity::fraction_of_total(0.1).on(&Host::new())?;
    /// assert!(tenth > ByteSize::mib(1));
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`of`](Self::of), or the device's refusal to tell its memory.
    pub fn on<D: Device>(self, device: &D) -> Result<ByteSize, Error> {
        match self.wish {
            Wish::Bytes(size) if self.headroom.bytes() == 0 => Ok(size),
            _ => self.of(&device.memory()?),
        }
    }

    /// The capacity on a device that has this memory.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::ErrorKind::Device) with
    /// [`DeviceErrorKind::OutOfMemory`] when it does not fit beside the headroom, with
    /// [`DeviceErrorKind::Refused`] when a fraction is not between 0 and 1, or when the whole free
    /// memory is asked for and no headroom is named.
    pub fn of(self, memory: &DeviceMemory) -> Result<ByteSize, Error> {
        let DeviceMemory { free_bytes, total_bytes, .. } = *memory;
        let usable_bytes = free_bytes.saturating_sub(self.headroom.bytes());
        let asked_bytes = match self.wish {
            Wish::Bytes(size) => size.bytes(),
            Wish::OfTotal(fraction) => {
                part(total_bytes.min(memory.limit_bytes), checked(fraction, memory)?)
            }
            Wish::OfFree(fraction) => part(usable_bytes, checked(fraction, memory)?),
        };
        let everything = asked_bytes == free_bytes && !matches!(self.wish, Wish::Bytes(_));
        if everything && free_bytes > 0 {
            return Err(refuse(
                memory,
                format!(
                    "all {free_bytes} free bytes were asked for, which leaves nothing to the driver \
                     and to libraries: name a headroom"
                ),
                DeviceErrorKind::Refused,
            ));
        }
        if asked_bytes > usable_bytes {
            let mut error = memory.shortage(asked_bytes).refuse(memory.device.clone(), "capacity");
            if self.headroom.bytes() > 0 {
                let headroom = self.headroom.bytes();
                error.reason = format!("with {headroom} bytes of headroom: {}", error.reason);
            }
            return Err(error.into());
        }
        Ok(ByteSize::bytes_exact(asked_bytes))
    }
}

impl From<ByteSize> for Capacity {
    fn from(size: ByteSize) -> Self {
        Self::exactly(size)
    }
}

fn checked(fraction: f64, memory: &DeviceMemory) -> Result<f64, Error> {
    if (0.0..=1.0).contains(&fraction) {
        return Ok(fraction);
    }
    let reason = format!("a fraction of memory is between 0 and 1, not {fraction}");
    Err(refuse(memory, reason, DeviceErrorKind::Refused))
}

fn refuse(memory: &DeviceMemory, reason: String, kind: DeviceErrorKind) -> Error {
    DeviceError { device: memory.device.clone(), call: "capacity", reason, kind }.into()
}

/// A fraction of a number of bytes, rounded down, and never more than the whole.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a fraction is not exact to the byte; the result is between 0 and the whole"
)]
fn part(bytes: u64, fraction: f64) -> u64 {
    ((bytes as f64 * fraction) as u64).min(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use rstest::rstest;

    const MEMORY: (u64, u64) = (850, 1000);

    fn of(capacity: Capacity, (free_bytes, total_bytes): (u64, u64)) -> Result<u64, String> {
        let memory = DeviceMemory::new("gpu".to_owned(), free_bytes, total_bytes);
        capacity.of(&memory).map(ByteSize::bytes).map_err(|error| error.to_string())
    }

    fn bytes(bytes: u64) -> ByteSize {
        ByteSize::bytes_exact(bytes)
    }

    #[rstest]
    #[case::fraction_of_free(Capacity::fraction_of_free(0.9), 765)]
    #[case::fraction_of_total(Capacity::fraction_of_total(0.5), 500)]
    #[case::exactly_what_is_free(Capacity::exactly(bytes(850)), 850)]
    #[case::less_headroom(Capacity::fraction_of_free(1.0).headroom(bytes(100)), 750)]
    #[case::bytes_beside_headroom(Capacity::exactly(bytes(750)).headroom(bytes(100)), 750)]
    #[case::nothing(Capacity::fraction_of_total(0.0), 0)]
    #[case::less_than_nothing(Capacity::fraction_of_free(1.0).headroom(bytes(900)), 0)]
    fn a_wish_becomes_bytes(#[case] capacity: Capacity, #[case] expected: u64) {
        assert_eq!(of(capacity, MEMORY), Ok(expected));
    }

    #[rstest]
    #[case::fraction_of_total(Capacity::fraction_of_total(0.9))]
    #[case::bytes(Capacity::exactly(bytes(900)))]
    #[case::no_room_for_the_headroom(Capacity::exactly(bytes(900)).headroom(bytes(1)))]
    fn more_than_is_free_is_refused_with_the_figures(#[case] capacity: Capacity) {
        let memory = DeviceMemory::new("gpu".to_owned(), 850, 1000);
        let error = capacity.of(&memory).unwrap_err();
        let ErrorKind::Device(device_error) = error.kind() else { panic!("{error}") };
        let expected = Some(memory.shortage(900));
        assert_eq!(device_error.kind, DeviceErrorKind::OutOfMemory(expected));
        assert!(error.to_string().contains("a fraction of what is free"), "{error}");
    }

    #[rstest]
    #[case(Capacity::fraction_of_free(1.0), "headroom")]
    #[case(Capacity::fraction_of_total(0.85), "headroom")]
    #[case(Capacity::fraction_of_free(1.01), "between 0 and 1")]
    #[case(Capacity::fraction_of_total(-0.5), "between 0 and 1")]
    #[case(Capacity::fraction_of_free(f64::NAN), "between 0 and 1")]
    fn everything_and_nonsense_are_refused(#[case] capacity: Capacity, #[case] why: &str) {
        let refused = of(capacity, MEMORY).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
}

//! A device that fails a call on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Call, DeviceMemory, calls::wrap_device};
use crate::error::{DeviceError, DeviceErrorKind};

/// Wraps a device and refuses the calls that its [`FailSwitch`] names. For tests.
#[derive(Debug)]
pub struct Failing<D> {
    inner: D,
    switch: FailSwitch,
}

impl<D> Failing<D> {
    /// Refuses nothing until the switch is set.
    pub fn new(inner: D) -> Self {
        Self { inner, switch: FailSwitch::default() }
    }

    /// A shared handle to the switch. It still works after the device has moved into an arena.
    #[must_use]
    pub fn switch(&self) -> FailSwitch {
        self.switch.clone()
    }
}

impl<D: super::Device> Failing<D> {
    fn before(&self, call: Call, bytes: u64) -> Result<(), DeviceError> {
        if self.switch.refuses(call) {
            return Err(DeviceError {
                device: self.inner.name(),
                call: call.name(),
                reason: format!("told to fail, for {bytes} bytes"),
                kind: DeviceErrorKind::Refused,
            });
        }
        Ok(())
    }

    fn not_obtained(&self, _bytes: u64) {}

    fn decommitted(&self, _bytes: u64) {}

    fn memory_left(&self, memory: DeviceMemory) -> DeviceMemory {
        memory
    }
}

wrap_device!(Failing);

/// Says which call of a [`Failing`] device fails next.
#[derive(Debug, Clone, Default)]
pub struct FailSwitch {
    /// For each call, and last for all of them together: 0 lets all pass, `n` refuses the `n`-th from now.
    countdown: Arc<[AtomicU64; Call::ALL.len() + 1]>,
}

/// Where all calls together are counted.
const ANY: usize = Call::ALL.len();

impl FailSwitch {
    /// Refuses the `n`-th such call from now, once; 1 is the next call. 0 cancels this.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// use arena_core::device::{Call, Failing};
    ///
    /// let device = Failing::new(Host::new());
    /// let switch = device.switch();
    /// let arena = RawArena::new(device, ByteSize::kib(4))?;
    /// switch.fail_nth(Call::CopyIn, 2);
    /// let tries = [(); 3].map(|()| arena.persistent_from(&[1.0_f32]).is_ok());
    /// assert_eq!(tries, [true, false, true]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    pub fn fail_nth(&self, call: Call, n: u64) {
        self.countdown[call as usize].store(n, Ordering::Relaxed);
    }

    /// Refuses the `n`-th call of any kind from now, once; 1 is the next call. 0 cancels this. Returns what was left
    /// of an earlier number: 0 if that call was refused.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// use arena_core::device::Failing;
    ///
    /// let device = Failing::new(Host::new());
    /// let switch = device.switch();
    /// switch.fail_nth_of_any(1);
    /// assert!(RawArena::new(device, ByteSize::kib(4)).is_err());
    /// assert_eq!(switch.fail_nth_of_any(0), 0);
    /// ```
    pub fn fail_nth_of_any(&self, n: u64) -> u64 {
        self.countdown[ANY].swap(n, Ordering::Relaxed)
    }

    fn refuses(&self, call: Call) -> bool {
        let reached = |place: usize| {
            let count = |n: u64| n.checked_sub(1);
            self.countdown[place].fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) == Ok(1)
        };
        let (this, any) = (reached(call as usize), reached(ANY));
        this || any
    }
}

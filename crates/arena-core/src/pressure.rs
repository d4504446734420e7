//! What a program is told, and asked, when memory gets scarce.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use crate::error::{DeviceError, DeviceErrorKind};
use crate::shortage::Shortage;

/// Why a program's callback is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pressure {
    /// The device has too little memory for the region, or for what it needs next. The answer says whether to ask the
    /// device once more.
    OutOfMemory {
        /// The figures, if the device tells them.
        shortage: Option<Shortage>,
        /// Bytes that the region holds.
        committed_bytes: u64,
    },
    /// The region has grown beyond its soft limit. It takes no more memory ahead, and gives back what its last step did
    /// not need. The answer does not matter.
    SoftLimit {
        /// The limit.
        limit_bytes: u64,
        /// Bytes that the region holds.
        committed_bytes: u64,
    },
}

/// A program's callback: it may free memory that something else holds, and returns whether the device is to be asked
/// once more.
///
/// It is called where physical memory is taken, on the thread that needs it, and nowhere else. It cannot reach the
/// arena, which is in use. What it must not do is to wait for another thread that uses the same region.
#[derive(Clone)]
pub struct OnPressure(Arc<dyn Fn(&Pressure) -> bool + Send + Sync>);

impl OnPressure {
    /// This function.
    pub fn new(callback: impl Fn(&Pressure) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(callback))
    }

    pub(crate) fn call(&self, pressure: Pressure) -> bool {
        (self.0)(&pressure)
    }
}

impl fmt::Debug for OnPressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnPressure")
    }
}

/// Asks a device for memory, and once more if it has too little and the program says so.
pub(crate) fn with_retry<R>(
    on_pressure: Option<&OnPressure>,
    committed_bytes: u64,
    ask: impl Fn() -> Result<R, DeviceError>,
) -> Result<R, DeviceError> {
    let first = ask();
    match (&first, on_pressure) {
        (Err(DeviceError { kind: DeviceErrorKind::OutOfMemory(shortage), .. }), Some(callback)) => {
            let pressure = Pressure::OutOfMemory { shortage: *shortage, committed_bytes };
            if callback.call(pressure) { ask() } else { first }
        }
        _ => first,
    }
}

//! Where memory gets scarce: the program is asked before the device's refusal counts, and told of its soft limit.

#![forbid(unsafe_code)]

use super::Region;
use crate::device::Device;
use crate::error::{DeviceError, DeviceErrorKind};
use crate::pressure::{OnPressure, Pressure};

/// Asks a device for memory, and once more if it has too little and the program says so.
pub(super) fn with_retry<R>(
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

impl<D: Device> Region<D> {
    /// The soft limit, in bytes.
    pub(crate) fn soft_limit_bytes(&self) -> u64 {
        self.soft_limit_bytes
    }

    /// Physical memory was committed: if that went beyond the soft limit, the program is told, and the next close of
    /// a root scope looks for what can go back.
    pub(super) fn note_growth(&self, before_bytes: u64, committed_bytes: u64) {
        let limit_bytes = self.soft_limit_bytes;
        if committed_bytes <= limit_bytes {
            return;
        }
        self.fences.set_beyond_limit(true);
        if let (true, Some(callback)) = (before_bytes <= limit_bytes, &self.on_pressure) {
            callback.call(Pressure::SoftLimit { limit_bytes, committed_bytes });
        }
    }
}

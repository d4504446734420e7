//! Whether there is a driver, and a device: asked before any call, for cudarc panics without a
//! library.

use cudarc::driver::{CudaContext, sys};

use super::code::{Failure, done};
use crate::error::{DeviceError, DeviceErrorKind};

/// The CUDA version that the driver must support, as it counts them. Functions of one major version
/// keep their meaning, and this crate calls one that came later than its first only where the driver has it.
const NEEDED_VERSION: i32 =
    if cfg!(any(feature = "cuda-13000", feature = "cuda-13040")) { 13_000 } else { 12_000 };

pub(super) fn unavailable(device: &str, call: &'static str, reason: String) -> DeviceError {
    DeviceError { device: device.to_owned(), call, reason, kind: DeviceErrorKind::Unavailable }
}

/// Why a driver that supports `version` does not do.
fn too_old(version: i32) -> Option<String> {
    let text = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
    (version < NEEDED_VERSION).then(|| {
        let (have, need) = (text(version), text(NEEDED_VERSION));
        format!("the driver is for CUDA {have}, this program needs one for CUDA {need} or later")
    })
}

/// The CUDA version that the driver supports. The library is there.
pub(super) fn driver_version() -> Result<i32, Failure> {
    let mut version = 0;
    // SAFETY: the number goes into a live variable, and the library is there.
    done("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
    Ok(version)
}

/// The number of devices, of which there is at least one; `device` is the name for errors.
pub(super) fn device_count(device: &str) -> Result<usize, DeviceError> {
    // SAFETY: loading the CUDA driver runs its initialisers, which any program may do at any time.
    if !unsafe { sys::is_culib_present() } {
        let reason = "no CUDA driver: the loader finds no libcuda.so".to_owned();
        return Err(unavailable(device, "load", reason));
    }
    let version = driver_version().map_err(|failure| without_device(device, failure))?;
    if let Some(reason) = too_old(version) {
        return Err(unavailable(device, "cuDriverGetVersion", reason));
    }
    match CudaContext::device_count().map(usize::try_from) {
        Ok(Ok(count)) if count > 0 => Ok(count),
        Ok(_) => Err(unavailable(device, "cuDeviceGetCount", "there is no CUDA device".to_owned())),
        Err(error) => {
            Err(without_device(device, Failure::Driver { call: "cuInit", code: error.0 }))
        }
    }
}

/// An error of the calls that come before any device is chosen.
fn without_device(device: &str, failure: Failure) -> DeviceError {
    let error = failure.on(device);
    let reason = match failure {
        Failure::Driver { code: sys::CUresult::CUDA_ERROR_NO_DEVICE, .. } => {
            format!("there is no CUDA device: {}", error.reason)
        }
        Failure::Driver { code: sys::CUresult::CUDA_ERROR_STUB_LIBRARY, .. } => {
            format!("the libcuda.so is a toolkit's stub, not a driver: {}", error.reason)
        }
        _ => error.reason,
    };
    unavailable(device, error.call, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_driver_is_refused_with_both_versions() {
        assert_eq!(too_old(NEEDED_VERSION), None);
        assert_eq!(too_old(NEEDED_VERSION + 80), None);
        let refused = too_old(11_040).unwrap();
        assert!(
            refused.contains("is for CUDA 11.4") && refused.contains(".0 or later"),
            "{refused}"
        );
    }
}

//! One context object for each device's primary context.
//!
//! Each object of cudarc counts its own streams and tracks its own events, so two objects for one context know
//! nothing of each other's work: a copy on a stream of one is not waited for by a stream of the other. So all devices
//! of [`Cuda::new`](super::Cuda::new) with one number share an object. Where other code has made
//! one, `new` is refused.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, sys};

use super::code::{Failure, done};
use crate::error::{DeviceError, DeviceErrorKind};

/// The objects that [`shared`] made, some of which may be gone.
static MADE: Mutex<Vec<Weak<CudaContext>>> = Mutex::new(Vec::new());

/// How long an object of ours that is being dropped on another thread may take to release its context.
const RELEASED_WITHIN: Duration = Duration::from_secs(1);

/// The context object of a device number. It is made if there is none. `device` is the name for errors.
pub(super) fn shared(ordinal: usize, device: &str) -> Result<Arc<CudaContext>, DeviceError> {
    let refused = |failure: Failure| failure.on(device);
    let mut made = MADE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // The last one: an object may outlive a context that was reset.
    let known = made
        .iter()
        .rposition(|context| context.upgrade().is_some_and(|context| context.ordinal() == ordinal));
    if let Some(context) = known.and_then(|known| made[known].upgrade())
        && is_active(ordinal).map_err(refused)?
    {
        return Ok(context);
    }
    // Dead entries are of any device: whichever died last may not have released its context yet.
    let dying = made.iter().any(|context| context.strong_count() == 0);
    let asked = Instant::now();
    while is_active(ordinal).map_err(refused)? {
        if !dying || asked.elapsed() > RELEASED_WITHIN {
            return Err(DeviceError {
                device: device.to_owned(),
                call: "cuDevicePrimaryCtxGetState",
                reason: "the program uses the device's primary context already, through another object, whose \
                         work would not be ordered with the arena's: pass its context to `Cuda::in_context`, or \
                         a stream of it to `Cuda::on`"
                    .to_owned(),
                kind: DeviceErrorKind::Refused,
            });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let context = CudaContext::new(ordinal).map_err(|error| {
        refused(Failure::Driver { call: "cuDevicePrimaryCtxRetain", code: error.0 })
    })?;
    made.retain(|context| context.strong_count() > 0);
    made.push(Arc::downgrade(&context));
    Ok(context)
}

/// Whether the process holds the device's primary context.
fn is_active(ordinal: usize) -> Result<bool, Failure> {
    let (mut device, mut flags, mut active) = (0, 0, 0);
    // A number that is too large for the driver is none of its devices.
    let ordinal = i32::try_from(ordinal).unwrap_or(i32::MAX);
    // SAFETY: the device goes into a live variable.
    done("cuDeviceGet", unsafe { sys::cuDeviceGet(&raw mut device, ordinal) })?;
    // SAFETY: both numbers go into live variables.
    let code = unsafe { sys::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    done("cuDevicePrimaryCtxGetState", code)?;
    Ok(active != 0)
}

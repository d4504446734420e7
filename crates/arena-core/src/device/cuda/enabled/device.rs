//! The device: one context, one stream, and how a program gets one.

mod calls;
mod copies;
mod duties;
mod streams;

use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use std::thread::ThreadId;

use cudarc::driver::{CudaContext, CudaStream, sys};

use super::code::{Failure, done};
use super::context::Restore;
use super::contexts;
use super::event::synchronise;
use super::every_stream::EveryStream;
use super::external::External;
use super::lent_slices::LentSlices;
use super::peers::Peers;
use super::presence;
use super::ranges::Ranges;
use super::staging::Staging;
use crate::bytes::Alignment;
use crate::error::{DeviceError, DeviceErrorKind, Error};

/// A CUDA device, with the stream that the arena belongs to.
///
/// Fills and copies are queued on that stream, and wait for no other stream. The region is obtained by one
/// `cuMemAlloc`. It is released by one `cuMemFree`, after the arena has waited for the stream. Each call makes
/// the device's context current on its thread and restores the previous context afterwards.
///
/// ```
/// use arena_core::{ByteSize, Cuda, RawArena};
///
/// match Cuda::new(0) {
///     Ok(device) => {
///         let arena = RawArena::new(device, ByteSize::mib(1))?;
///         let weights = arena.persistent_from(&[0.5_f32; 25])?;
///         assert_eq!(weights.view().to_vec()?[24], 0.5);
///     }
///     // No driver, no device, an old driver, or built without the feature: it says which.
///     Err(reason) => println!("not on a GPU: {reason}"),
/// }
/// # Ok::<(), arena_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Cuda {
    stream: Arc<CudaStream>,
    name: String,
    /// Streams made by this device: where one is handed to a call as a bare reference, its owner is
    /// found here.
    streams: Mutex<Vec<Weak<CudaStream>>>,
    /// The error that broke the device.
    lost: OnceLock<DeviceError>,
    ranges: Option<Ranges>,
    /// Read by calls that must not be captured, written by who begins a capture, with the thread that does.
    capturing: RwLock<Option<ThreadId>>,
    /// Contexts of other devices that may be reading the arena's memory.
    peers: Peers,
    /// Where uploads from pageable memory lie on their way; made by the first of them.
    staging: Mutex<Option<Staging>>,
    every_stream: EveryStream,
    pub(crate) lent: LentSlices,
    pub(super) external: External,
    /// Of each region's base.
    pub(super) alignment: Alignment,
    /// Last, to act when the fields above are gone.
    restore: Restore,
}

impl Cuda {
    /// The device with this number, in its primary context, with a new stream. For a program that does not use
    /// CUDA by itself: one that has a context passes it to [`in_context`](Self::in_context), or a stream to
    /// [`on`](Self::on). All devices of this call with one number share one context object.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::ErrorKind::Device) with [`DeviceErrorKind::Unavailable`] when there
    /// is no driver, no such device, or only an older driver; with [`DeviceErrorKind::Refused`] when the program
    /// uses the primary context already, or the driver refuses. The error says which. It never panics.
    ///
    /// A context that the program makes *after* this call cannot be noticed. Two context objects of cudarc do not
    /// wait for each other's work, so a copy on a stream of the one may come too late for the other. Take
    /// [`context`](Self::context) instead.
    pub fn new(ordinal: usize) -> Result<Self, Error> {
        let name = format!("cuda:{ordinal}");
        let count = presence::device_count(&name)?;
        if ordinal >= count {
            return Err(DeviceError {
                device: name,
                call: "cuDeviceGet",
                reason: format!("there is no such device: they are numbered 0 to {}", count - 1),
                kind: DeviceErrorKind::Unavailable,
            }
            .into());
        }
        let _restore = Restore::remember();
        Self::in_context(&contexts::shared(ordinal, &name)?)
    }

    /// The device of a context that the program has, with a new stream of it.
    ///
    /// # Errors
    ///
    /// The driver's refusal.
    pub fn in_context(context: &Arc<CudaContext>) -> Result<Self, Error> {
        let _restore = Restore::remember();
        let stream = context.new_stream().map_err(|error| {
            let name = format!("cuda:{}", context.ordinal());
            Failure::Driver { call: "cuStreamCreate", code: error.0 }.on(&name)
        })?;
        Self::on(stream)
    }

    /// The device of a stream that the program has, to which the arena then belongs. What the program queues on it
    /// is ordered with the arena's work. The null stream is accepted, but no graph can be captured on it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice) for the per-thread default stream: an arena can
    /// move to another thread, where that handle means another stream.
    pub fn on(stream: Arc<CudaStream>) -> Result<Self, Error> {
        let name = format!("cuda:{}", stream.context().ordinal());
        if is_per_thread(&stream) {
            return Err(crate::ErrorKind::WrongDevice {
                what: "the per-thread default stream, which is another one on each thread,".into(),
                device: name,
            }
            .into());
        }
        Ok(Self {
            stream,
            name,
            streams: Mutex::new(Vec::new()),
            lost: OnceLock::new(),
            ranges: None,
            capturing: RwLock::new(None),
            peers: Peers::default(),
            staging: Mutex::new(None),
            every_stream: EveryStream::default(),
            lent: LentSlices::default(),
            external: External::default(),
            alignment: Alignment::DEFAULT,
            restore: Restore::nothing(),
        })
    }

    /// The same device, but each scope is shown to profilers as an NVTX range with the scope's name, on the
    /// timeline of the host: from its opening to the end of its close. Without this call NVTX is not loaded.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::ErrorKind::Device) with [`DeviceErrorKind::Unavailable`] when NVTX
    /// is not installed.
    pub fn with_ranges(mut self) -> Result<Self, Error> {
        self.ranges = Some(Ranges::load(&self.name)?);
        Ok(self)
    }

    /// The number of devices.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new); there is at least one device otherwise.
    pub fn device_count() -> Result<usize, Error> {
        Ok(presence::device_count("cuda")?)
    }

    /// The context, which lives as long as the device.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        self.stream.context()
    }

    /// The arena's stream, for calls and launches of the program's own. It is
    /// [`Device::stream`](crate::Device::stream), for programs that do not import the trait.
    #[must_use]
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let staging = self.staging.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(staging) = staging.take() {
            let waited = self.call_even_if_lost(|| match synchronise(&self.stream) {
                Err(failure) if !failure.runs_nothing_more() => Err(failure),
                _ => Ok(()),
            });
            if waited.is_err() {
                staging.leak();
            }
        }
        self.restore = Restore::remember();
    }
}

/// Whether a stream is the per-thread default stream, which has the handle 2 on every thread.
fn is_per_thread(stream: &CudaStream) -> bool {
    stream.cu_stream().addr() == 2
}

pub(crate) fn memory_info() -> Result<(u64, u64), Failure> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both numbers go into live variables.
    done("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
    Ok((free as u64, total as u64))
}

//! Lending a buffer as a slice of cudarc's, for code that takes `&CudaSlice<T>`.
//!
//! Proof, by what safe code can do with what is lent:
//!
//! 1. **It never owns the slice**, so nothing frees the region. [`Lent`] gives a shared reference; what owns a slice
//!    (`drop`, `leak`, `mem::replace`) needs more. [`LentMut`] gives a `CudaViewMut`, which owns nothing: two of them
//!    can be swapped. A `&mut CudaSlice` comes from an `unsafe fn` alone. The slice inside is in a `ManuallyDrop`.
//! 2. **References end before the bytes are another's.** They borrow from the handle, whose lifetime is that of a view.
//!    Who writes needs a `ViewMut`, so nobody else uses the buffer meanwhile.
//! 3. **Queued work has ended before the bytes are another's**, whatever stream it is on, and however the handle ends.
//!    As long as a handle exists, and once after that, each close makes the arena's stream wait for *every* stream
//!    of the context and of the other devices' primary contexts, as does the region's end; and nothing that is dropped
//!    is used again before. The slice's own events could not tell: cudarc records a read on one stream over the
//!    read on another.
//! 4. **A step that is captured contains none of it**, for the wait cannot be captured: nothing is lent in a capture,
//!    and no capture begins while something is lent.
//! 5. With the context's event tracking off, 3 and 4 are not done: `disable_event_tracking` is `unsafe`, and whoever
//!    called it has promised that no slice is freed before its uses on other streams have ended. Here the end of a
//!    buffer's scope, or of the buffer, is that. Declared streams are waited for as always.
//!
//! What stays open is open for every slice of cudarc's, which is freed under such work: a graph that safe code
//! captured and launches later, calls of NCCL between the start and the end of a group, and streams of contexts that
//! are not primary.
//!
//! What a buffer *contains* is ordered as cudarc orders it: by the events of the slice. The handle passes them on: when
//! it is made, the slice counts as written on the arena's stream, and when it is dropped, that stream waits for the
//! last uses that cudarc recorded.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};

use bytemuck::Pod;
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaSlice, CudaViewMut, DevicePtrMut};

use crate::buffer::{Persistent, Transient, View, ViewMut};
use crate::device::cuda::enabled::code::Failure;
use crate::device::cuda::enabled::lent_slices::{self, Place};
use crate::device::{Cuda, Device};
use crate::error::{DeviceError, Error};
use crate::region::Region;

/// A buffer that is lent for reading: it goes where a `&CudaSlice<T>` is wanted.
///
/// Lending a buffer again, in another step too, uses the slice that was made the first time, so it neither allocates
/// nor creates an event. Some thousands of slices are kept.
///
/// `clone()` of a lent slice is cudarc's: it allocates from the driver.
///
/// While the context tracks events, as cudarc's do unless they are told not to, each lending costs a few calls of the
/// driver, a close after it waits, on the device, for all that any stream has queued, a plan uses no dropped buffer's
/// bytes again before that close, and nothing is lent while a graph is captured.
///
/// ```no_run
/// use arena_core::cudarc::driver::{CudaSlice, DriverError};
/// use arena_core::{Alignment, ByteSize, Cuda, Error, RawArena};
///
/// /// Somebody's function.
/// fn first(x: &CudaSlice<f32>) -> Result<f32, DriverError> {
///     Ok(x.stream().clone_dtoh(&x.slice(..1))?[0])
/// }
///
/// let arena = RawArena::new(Cuda::new(0)?, ByteSize::mib(1))?;
/// let x = arena.transient_from(&[0.5_f32; 100], Alignment::DEFAULT)?;
/// let lent = x.lend()?;
/// assert_eq!(first(&lent)?, 0.5); // in one expression: `first(&*x.lend()?)`
/// # Ok::<(), Error>(())
/// ```
///
/// A reference to the slice does not outlive the buffer:
///
/// ```compile_fail,E0505
/// # use arena_core::{Alignment, ByteSize, Cuda, RawArena};
/// # let arena = RawArena::new(Cuda::new(0).unwrap(), ByteSize::mib(1)).unwrap();
/// let x = arena.transient::<f32>(100, Alignment::DEFAULT).unwrap();
/// let lent = x.lend().unwrap();
/// drop(x);
/// println!("{}", lent.len());
/// ```
#[derive(Debug)]
pub struct Lent<'v, T: 'static> {
    /// Over the buffer's bytes. Taken by the drop alone.
    slice: ManuallyDrop<lent_slices::Lent<T>>,
    place: Place,
    region: &'v Region<Cuda>,
    address: u64,
    /// Who lent it.
    call_site: &'static Location<'static>,
    /// Whether the region waits for its uses.
    is_counted: bool,
    elements: PhantomData<&'v [T]>,
}

/// A buffer that is lent for reading and writing: it goes where a `&CudaSlice<T>` is wanted, and its
/// [`view_mut`](Self::view_mut) where a `CudaViewMut` is.
///
/// Otherwise as [`Lent`].
///
/// ```no_run
/// # use arena_core::{Alignment, ByteSize, Cuda, RawArena};
/// # let arena = RawArena::new(Cuda::new(0)?, ByteSize::mib(1))?;
/// let mut x = arena.transient::<f32>(100, Alignment::DEFAULT)?;
/// let stream = arena.device().stream().clone();
/// # use arena_core::Device;
/// stream.memset_zeros(&mut x.lend_mut()?.view_mut())?;
/// # Ok::<(), arena_core::Error>(())
/// ```
#[derive(Debug)]
pub struct LentMut<'v, T: 'static> {
    lent: Lent<'v, T>,
    exclusive: PhantomData<&'v mut [T]>,
}

impl<'v, T: Pod> View<'v, T, Cuda> {
    /// Lends the elements to code that takes a `&CudaSlice<T>`.
    ///
    /// # Errors
    ///
    /// The driver's refusal, an error that an earlier call of cudarc left behind in its context, or
    /// [`DeviceErrorKind::InCapture`](crate::DeviceErrorKind::InCapture) while a graph is captured and the context
    /// tracks events.
    #[track_caller]
    pub fn lend(self) -> Result<Lent<'v, T>, Error> {
        // SAFETY: invariants 1 to 3 of `View` hold for its lifetime; any bytes are a `T: Pod`.
        unsafe { lend(self.region(), self.address(), self.len()) }
    }
}

impl<'v, T: Pod> ViewMut<'v, T, Cuda> {
    /// Lends the elements to code that writes a `CudaViewMut<T>`.
    ///
    /// # Errors
    ///
    /// As for [`View::lend`].
    #[track_caller]
    pub fn lend_mut(self) -> Result<LentMut<'v, T>, Error> {
        let view = View::from(self);
        // SAFETY: invariants 1 to 3 of `ViewMut`, which was given up, hold for its lifetime; any bytes are a `T: Pod`.
        unsafe { lend_mut(view.region(), view.address(), view.len()) }
    }
}

macro_rules! lendable {
    ($buffer:ty) => {
        impl<T: Pod> $buffer {
            /// Lends the buffer to code that takes a `&CudaSlice<T>`.
            ///
            /// # Errors
            ///
            /// As for [`View::lend`].
            #[track_caller]
            pub fn lend(&self) -> Result<Lent<'_, T>, Error> {
                self.view().lend()
            }

            /// Lends the buffer to code that writes a `CudaViewMut<T>`.
            ///
            /// # Errors
            ///
            /// As for [`View::lend`].
            #[track_caller]
            pub fn lend_mut(&mut self) -> Result<LentMut<'_, T>, Error> {
                self.view_mut().lend_mut()
            }
        }
    };
}

lendable!(Transient<'_, T, Cuda>);
lendable!(Persistent<T, Cuda>);

/// Lends the elements at `address`.
///
/// # Errors
///
/// As for [`View::lend`].
///
/// # Safety
///
/// The invariants of [`View`], by number, for `'v`. The bytes are, and stay, values of `T`.
#[track_caller]
pub unsafe fn lend<'v, T: 'static>(
    region: &'v Region<Cuda>,
    address: u64,
    len: usize,
) -> Result<Lent<'v, T>, Error> {
    let (device, call_site) = (region.device(), Location::caller());
    device.health()?;
    let is_counted = device.context().is_event_tracking();
    if is_counted {
        device.refuse_in_capture("lend")?;
    }
    let (slice, place) = device.lent.take(address, len, || make(device, address, len))?;
    if is_counted {
        region.begin_lend(Cuda::wait_for_every_stream);
    }
    let slice = ManuallyDrop::new(slice);
    let elements = PhantomData;
    let mut lent = Lent { slice, place, region, address, call_site, is_counted, elements };
    pass_on(&mut lent.slice);
    // What the order met is in the context now, where the next call of cudarc would find it.
    device.call(|| earlier_error(device))?;
    Ok(lent)
}

/// Lends the elements at `address` for writing.
///
/// # Errors
///
/// As for [`View::lend`].
///
/// # Safety
///
/// The invariants of [`ViewMut`], by number, for `'v`. The bytes are, and stay, values of `T`; all values of `T` may be
/// written there.
#[track_caller]
pub unsafe fn lend_mut<'v, T: 'static>(
    region: &'v Region<Cuda>,
    address: u64,
    len: usize,
) -> Result<LentMut<'v, T>, Error> {
    // SAFETY: the caller's promise.
    let lent = unsafe { lend(region, address, len) }?;
    Ok(LentMut { lent, exclusive: PhantomData })
}

/// Lets the stream of a slice wait for the last uses of it that cudarc recorded, and counts as the last one.
fn pass_on<T>(slice: &mut CudaSlice<T>) {
    let stream = slice.stream().clone();
    drop(slice.device_ptr_mut(&stream));
}

fn earlier_error(device: &Cuda) -> Result<(), Failure> {
    let earlier = device.context().check_err();
    earlier.map_err(|error| Failure::Driver { call: "an earlier call of cudarc", code: error.0 })
}

fn make<T>(device: &Cuda, address: u64, len: usize) -> Result<lent_slices::Lent<T>, DeviceError> {
    device.call(|| {
        earlier_error(device)?;
        let refused = |code| Failure::Driver { call: "cuEventCreate", code };
        let context = device.context();
        if context.is_event_tracking() {
            // cudarc panics where it cannot make a slice's events. One that is made before tells the reason.
            context.new_event(None).map_err(|error| refused(error.0))?;
        }
        let made =
            catch_unwind(AssertUnwindSafe(|| lent_slices::over(device.stream(), address, len)));
        made.map_err(|_| refused(CUresult::CUDA_ERROR_UNKNOWN))
    })
}

impl<T: 'static> Deref for Lent<'_, T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T: 'static> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        // SAFETY: it is taken here alone, and the handle is not used again.
        let mut slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // A recording sees that it was used until now.
        self.region.uses().note_until(self.address, slice.num_bytes() as u64, self.call_site);
        let device = self.region.device();
        // An order that is captured would make the capture fail. Nothing runs meanwhile, and the next close waits.
        let may_order = device.refuse_in_capture("lend").is_ok();
        let _ = device.call(|| {
            if may_order {
                pass_on(&mut slice);
            }
            device.lent.give_back(slice, self.place, may_order);
            Ok(())
        });
        if self.is_counted {
            self.region.end_lend();
        }
    }
}

impl<T: 'static> LentMut<'_, T> {
    /// The elements, for writing.
    pub fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.lent.slice.as_view_mut()
    }

    /// The slice, for code that takes a `&mut CudaSlice<T>`.
    ///
    /// # Safety
    ///
    /// The slice stays where it is: it is not taken out of the reference (`mem::replace`, `mem::swap`, `ptr::read`), nor
    /// dropped in place. Its owner would free memory of the region, and could use it after its scope.
    ///
    /// A safe call does not compile:
    ///
    /// ```compile_fail,E0133
    /// # use arena_core::{Alignment, ByteSize, Cuda, RawArena};
    /// # let arena = RawArena::new(Cuda::new(0).unwrap(), ByteSize::mib(1)).unwrap();
    /// let mut x = arena.transient::<f32>(100, Alignment::DEFAULT).unwrap();
    /// let mut lent = x.lend_mut().unwrap();
    /// lent.as_mut_slice();
    /// ```
    pub unsafe fn as_mut_slice(&mut self) -> &mut CudaSlice<T> {
        &mut self.lent.slice
    }
}

impl<T: 'static> Deref for LentMut<'_, T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.lent
    }
}

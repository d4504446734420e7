//! The arena's buffers inside cudarc's calls: copies, memsets, launches, cuBLAS.
//!
//! They bring no events of their own. On the arena's stream none is needed. A stream that this device
//! made, or that was declared, is declared by being handed over here. Of any other stream only a bare
//! reference arrives, and it may be destroyed before the scope closes; so its work is waited for on the
//! host as soon as it is queued. Of a copy to another device not even that arrives: the close waits on the host for all
//! work of the other device, unless its stream was declared.

use cudarc::driver::{CudaStream, SyncOnDrop};

use crate::buffer::{Persistent, Transient, View, ViewMut};
use crate::device::Cuda;
use crate::error::Error;
use crate::fence::UNTIL_THE_ROOT_CLOSES;
use crate::region::Region;

/// Lets `stream` use a buffer of the region. It cannot fail, so an error waits for the next fallible
/// call.
pub fn hand_over<'a>(region: &Region<Cuda>, stream: &'a CudaStream) -> SyncOnDrop<'a> {
    let device = region.device();
    if *stream == **device.stream() {
        // A copy to another device asks for this stream too, and is queued on one of the other device.
        let declared = device.stream_for_peers().map_err(Error::from).and_then(|for_peers| {
            for_peers.map_or(Ok(()), |peers| region.declare(&peers, UNTIL_THE_ROOT_CLOSES))
        });
        if let Err(error) = declared {
            region.keep_failure(error);
        }
        return SyncOnDrop::Record(None);
    }
    let known = region
        .find_declared(|declared| std::ptr::eq(&raw const **declared, stream))
        .or_else(|| device.find_stream(stream));
    let (ordered, sync): (Result<(), Error>, _) = match known {
        Some(owner) => (region.declare(&owner, UNTIL_THE_ROOT_CLOSES), SyncOnDrop::Record(None)),
        None => (device.order_before(stream).map_err(Error::from), SyncOnDrop::sync_stream(stream)),
    };
    if let Err(error) = ordered {
        region.keep_failure(error);
    }
    sync
}

/// Makes types of buffers arguments of cudarc's calls; [`hand_over`] has what that means. Each has `len()`, `region()`,
/// and `address_ref()`: where its device address lies, asked for only when a call uses the buffer.
///
/// `read` is for each of them, `write` for those through which one may write.
#[doc(hidden)]
#[macro_export]
macro_rules! in_cudarc_calls {
    (read: $($buffer:ty),+) => {$(const _: () = {
        use $crate::cudarc::driver::{
            CudaStream, DevicePtr, DeviceSlice, LaunchArgs, PushKernelArg, SyncOnDrop, sys,
        };

        impl<T: $crate::Pod> DeviceSlice<T> for $buffer {
            fn len(&self) -> usize {
                self.len()
            }

            fn stream(&self) -> &std::sync::Arc<CudaStream> {
                self.region().device().stream()
            }
        }

        impl<T: $crate::Pod> DevicePtr<T> for $buffer {
            // Its caller is usually a function of cudarc.
            #[track_caller]
            fn device_ptr<'a>(
                &'a self,
                stream: &'a CudaStream,
            ) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
                (*self.address_ref(), $crate::for_scopes::hand_over(self.region(), stream))
            }
        }

        // SAFETY: the argument is the buffer's 64-bit device address, which is read when the kernel is
        // launched; the buffer is borrowed for longer than the builder lives.
        unsafe impl<'a, 'b: 'a, T: $crate::Pod> PushKernelArg<&'b $buffer> for LaunchArgs<'a> {
            #[inline(always)]
            #[track_caller]
            fn arg(&mut self, buffer: &'b $buffer) -> &mut Self {
                self.arg(buffer.address_ref())
            }
        }
    };)+};
    (write: $($buffer:ty),+) => {$(const _: () = {
        use $crate::cudarc::driver::{
            CudaStream, DevicePtrMut, LaunchArgs, PushKernelArg, SyncOnDrop, sys,
        };

        impl<T: $crate::Pod> DevicePtrMut<T> for $buffer {
            #[track_caller]
            fn device_ptr_mut<'a>(
                &'a mut self,
                stream: &'a CudaStream,
            ) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
                (*self.address_ref(), $crate::for_scopes::hand_over(self.region(), stream))
            }
        }

        // SAFETY: as for the shared reference.
        unsafe impl<'a, 'b: 'a, T: $crate::Pod> PushKernelArg<&'b mut $buffer> for LaunchArgs<'a> {
            #[inline(always)]
            #[track_caller]
            fn arg(&mut self, buffer: &'b mut $buffer) -> &mut Self {
                self.arg(buffer.address_ref())
            }
        }
    };)+};
}

in_cudarc_calls!(read: Persistent<T, Cuda>, Transient<'_, T, Cuda>);
in_cudarc_calls!(read: View<'_, T, Cuda>, ViewMut<'_, T, Cuda>);
in_cudarc_calls!(write: Persistent<T, Cuda>, Transient<'_, T, Cuda>, ViewMut<'_, T, Cuda>);

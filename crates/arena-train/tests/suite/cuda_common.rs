//! The kernels on the stand-in driver: compiled anew where NVRTC is installed and the driver takes
//! what it writes, or else from the committed PTX.

#![allow(unreachable_pub, reason = "it is no library")]

use std::sync::{Arc, OnceLock};

use arena_scope::{Arena, ByteSize, Cuda};
use arena_testing::open_nvrtc;
use arena_train::backend::cuda::{CudaBackend, Input, Kernels, Output, compile, ptx_architecture};
use cuda_standin::Standin;
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, DriverError,
    ValidAsZeroBits, sys,
};
use cudarc::nvrtc::Ptx;

/// The kernels for compute capability 7.5, by the NVRTC of CUDA 12.0: every later device and driver
/// takes them as well.
pub const COMMITTED: &str = include_str!("../ptx/kernels.ptx");

/// A device, the kernels on a stream of it, and the stand-in that it is.
pub struct Bench {
    pub kernels: Kernels,
    pub stream: Arc<CudaStream>,
    /// Last, so that it is given up only after the context.
    pub standin: Standin,
}

impl Bench {
    pub fn new() -> Self {
        Self::on(Standin::load().unwrap(), 0)
    }

    /// The stand-in started anew, with the order of its streams drawn from a seed.
    pub fn on(standin: Standin, seed: u64) -> Self {
        standin.reset(seed);
        let context = CudaContext::new(0).unwrap();
        // SAFETY: everything here is ordered by one stream.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().unwrap();
        let kernels = kernels(&stream);
        Self { kernels, stream, standin }
    }

    /// A buffer with these elements.
    pub fn up<T: DeviceRepr>(&self, values: &[T]) -> CudaSlice<T> {
        self.stream.clone_htod(values).unwrap()
    }

    /// An output that nobody has written yet: NaN, or 0xFF.
    pub fn stale<T: DeviceRepr + bytemuck::Pod>(&self, len: usize) -> CudaSlice<T> {
        let bytes = vec![0xFF_u8; len * size_of::<T>()];
        self.up(&bytemuck::pod_collect_to_vec::<u8, T>(&bytes))
    }

    /// The elements of a buffer, when the work before is done.
    #[track_caller]
    pub fn down<T: DeviceRepr + Default + Clone + ValidAsZeroBits>(
        &self,
        buffer: &CudaSlice<T>,
    ) -> Vec<T> {
        self.stream.synchronize().unwrap_or_else(|_| panic!("{}", self.standin.last_fault()));
        self.stream.clone_dtoh(buffer).unwrap()
    }

    /// Gives cuBLAS a workspace, as a run does: a persistent buffer of an arena on the stream.
    pub fn work_in_an_arena(&mut self) {
        let device = Cuda::on(self.stream.clone()).unwrap();
        let arena = Arena::builder(device).capacity(ByteSize::mib(4)).build().unwrap();
        self.kernels.set_blas_workspace(arena.persistent(4 << 20).unwrap()).unwrap();
    }

    pub fn input<'a, T>(&self, buffer: &'a CudaSlice<T>) -> Input<'a, T> {
        let len = buffer.len();
        // SAFETY: the buffer lies in the kernels' context; the tests use it on this stream alone
        // and free it after they have read a result.
        unsafe { Input::new(buffer.device_ptr(&self.stream).0, len) }
    }

    pub fn output<'a, T>(&self, buffer: &'a mut CudaSlice<T>) -> Output<'a, T> {
        let len = buffer.len();
        // SAFETY: as above, and the buffer is borrowed exclusively.
        unsafe { Output::new(buffer.device_ptr_mut(&self.stream).0, len) }
    }
}

/// The kernels' PTX for the device of a stream. Compiled once: all tests of a process have the same
/// device.
fn ptx(stream: &Arc<CudaStream>) -> &'static str {
    static PTX: OnceLock<String> = OnceLock::new();
    PTX.get_or_init(|| {
        if !open_nvrtc(sys::CUDA_VERSION) {
            println!("NVRTC is not installed: the committed PTX stands in for it");
            return COMMITTED.to_owned();
        }
        let capability = stream.context().compute_capability().unwrap();
        let fresh = compile(&ptx_architecture(capability).unwrap()).unwrap();
        match stream.context().load_module(Ptx::from_src(&fresh)) {
            Ok(_) => fresh,
            Err(DriverError(sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION)) => {
                println!("the driver is older than NVRTC: the committed PTX stands in for it");
                COMMITTED.to_owned()
            }
            Err(error) => panic!("{error}"),
        }
    })
}

fn kernels(stream: &Arc<CudaStream>) -> Kernels {
    Kernels::from_ptx(stream, ptx(stream)).unwrap()
}

/// The kernels on a device of the arena.
pub fn backend(device: &Cuda) -> CudaBackend {
    CudaBackend::from_ptx(device, ptx(device.stream())).unwrap()
}

/// Bits, so that NaNs and zeros of both signs can be told apart.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Each value within `tolerance` of the expected one, relative to the largest expected magnitude.
#[track_caller]
pub fn assert_near(what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    let scale = expected.iter().fold(f32::MIN_POSITIVE, |scale, value| scale.max(value.abs()));
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / scale;
        assert!(error <= tolerance, "{what}[{index}]: {found} instead of {expected}: {error:e}");
    }
}

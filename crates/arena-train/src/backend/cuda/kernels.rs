//! The kernels on one stream.

use std::sync::Arc;

use arena_scope::cuda::Blas;
use arena_scope::{Cuda, Error, Persistent};
use cudarc::driver::{CudaContext, CudaStream};
use cudarc::nvrtc::Ptx;

use super::compile::{compile, compile_cubin, ptx_architecture};
use super::error::{CudaError, count};
use super::module::{Grid, Module};
use super::range::Output;

/// The network's kernels, loaded into a context, and cuBLAS: all queue their work on one stream.
///
/// Each function checks its operands before anything is queued, and returns when the work is
/// queued; none allocates on the device, waits for it, or uses the host's heap. The stream's context
/// is made current on the calling thread, and stays so.
#[derive(Debug)]
pub struct Kernels {
    pub(super) module: Module,
    pub(super) blas: Blas,
}

impl Kernels {
    /// Compiles the kernels for the stream's device, and loads them.
    ///
    /// First to machine code, which a driver takes that is older than NVRTC; where NVRTC does not
    /// know the device, or the driver does not take the code, to PTX of the latest architecture
    /// that NVRTC knows.
    ///
    /// # Errors
    ///
    /// [`CudaError`] when NVRTC or cuBLAS are not there, or one of them or the driver refuses.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self, CudaError> {
        let capability = stream.context().compute_capability();
        let capability = capability.map_err(CudaError::driver("cuDeviceGetAttribute"))?;
        let (major, minor) = capability;
        let cubin = compile_cubin(&format!("sm_{major}{minor}"));
        match cubin.and_then(|cubin| Self::load(stream, Ptx::from_binary(cubin))) {
            Err(error) if error.wants_ptx() => {
                Self::from_ptx(stream, &compile(&ptx_architecture(capability)?)?)
            }
            outcome => outcome,
        }
    }

    /// Loads kernels that were compiled before, from [`SOURCE`](super::SOURCE): a driver takes PTX
    /// for its device's architecture and for older ones.
    ///
    /// # Errors
    ///
    /// [`CudaError`] when cuBLAS is not there, or it or the driver refuses.
    pub fn from_ptx(stream: &Arc<CudaStream>, ptx: &str) -> Result<Self, CudaError> {
        Self::load(stream, Ptx::from_src(ptx))
    }

    fn load(stream: &Arc<CudaStream>, code: Ptx) -> Result<Self, CudaError> {
        let module = Module::load(stream.context(), stream.clone(), code)?;
        Ok(Self { module, blas: Blas::on(stream)? })
    }

    /// The stream that everything is queued on.
    #[must_use]
    pub const fn stream(&self) -> &Arc<CudaStream> {
        self.module.stream()
    }

    /// The context of the stream.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        self.stream().context()
    }

    /// Gives cuBLAS memory to work in; without it, cuBLAS allocates behind the caller's back.
    ///
    /// # Errors
    ///
    /// As for [`Blas::set_workspace`].
    pub fn set_blas_workspace(&mut self, workspace: Persistent<u8, Cuda>) -> Result<(), Error> {
        self.blas.set_workspace(workspace)
    }

    /// Sets each element to `value`.
    ///
    /// # Errors
    ///
    /// When there are more than `i32::MAX` elements, or the device refuses.
    pub fn fill(&self, values: Output<'_, f32>, value: f32) -> Result<(), CudaError> {
        let count = count(values.len())?;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: a thread writes the element of its number, if that is below the length.
        unsafe { self.module.fill(Grid::flat(count), values.address(), value, count) }
    }
}

//! From the kernels' source to PTX, by NVRTC.

use cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts};

use super::error::CudaError;

/// The kernels, in CUDA C++ without includes.
pub const SOURCE: &str = concat!(
    "#line 1 \"conv.cu\"\n",
    include_str!("kernels/conv.cu"),
    "#line 1 \"linear.cu\"\n",
    include_str!("kernels/linear.cu"),
    "#line 1 \"loss.cu\"\n",
    include_str!("kernels/loss.cu"),
    "#line 1 \"optimizer.cu\"\n",
    include_str!("kernels/optimizer.cu"),
    "#line 1 \"batch.cu\"\n",
    include_str!("kernels/batch.cu"),
);

/// Compiles the kernels for a virtual architecture such as `compute_90`.
///
/// Multiplications and additions are not contracted: the elementwise kernels then round as the
/// host does and agree with it to the bit, and they wait for memory, not for arithmetic.
///
/// # Errors
///
/// [`CudaError::Library`] without NVRTC and [`CudaError::Compile`] when it refuses the source or
/// does not know the architecture.
pub fn compile(architecture: &str) -> Result<String, CudaError> {
    // SAFETY: opening NVRTC runs no code but its own initialisation.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Err(CudaError::Library { name: "libnvrtc" });
    }
    let options = CompileOptions {
        fmad: Some(false),
        options: vec![format!("--gpu-architecture={architecture}"), "--std=c++17".to_owned()],
        name: Some("arena_train.cu".to_owned()),
        ..CompileOptions::default()
    };
    match compile_ptx_with_opts(SOURCE, options) {
        Ok(ptx) => Ok(ptx.to_src()),
        Err(error) => {
            let log = match error {
                CompileError::CompileError { log, .. } => log.to_string_lossy().trim().to_owned(),
                other => other.to_string(),
            };
            Err(CudaError::Compile { architecture: architecture.to_owned(), log })
        }
    }
}

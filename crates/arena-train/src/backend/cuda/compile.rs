//! From the kernels' source to PTX and to machine code, by NVRTC.

use std::ffi::{CStr, CString};

use cudarc::nvrtc::{result, sys};

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
    "#line 1 \"decoder.cu\"\n",
    include_str!("kernels/decoder.cu"),
);

/// Compiles the kernels to PTX, for a virtual architecture such as `compute_90`.
///
/// A driver compiles PTX for its device, when the device is of that architecture or a later one and
/// the driver is not older than NVRTC: each writes the PTX version of its own release.
///
/// Multiplications and additions are not contracted: the elementwise kernels then round as the
/// host does and agree with it to the bit, and they wait for memory, not for arithmetic.
///
/// # Errors
///
/// [`CudaError::Library`] without NVRTC and [`CudaError::Compile`] when it refuses the source or
/// does not know the architecture.
pub fn compile(architecture: &str) -> Result<String, CudaError> {
    let mut ptx = Program::compile(architecture)?.output(
        architecture,
        sys::nvrtcGetPTXSize,
        sys::nvrtcGetPTX,
    )?;
    // NVRTC's text ends with a NUL.
    ptx.retain(|byte| *byte != 0);
    String::from_utf8(ptx).map_err(|error| refused(architecture, error.to_string()))
}

/// Compiles the kernels to a CUBIN, the machine code of an architecture such as `sm_90`.
///
/// It runs on devices of the same major number that are not older, with every driver of NVRTC's
/// major version: also with one that is too old for NVRTC's PTX.
///
/// # Errors
///
/// As for [`compile`].
pub fn compile_cubin(architecture: &str) -> Result<Vec<u8>, CudaError> {
    Program::compile(architecture)?.output(architecture, sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN)
}

/// The latest virtual architecture that NVRTC knows and a device of this compute capability takes:
/// `compute_90` for 9.0, and for 12.0 with an NVRTC that knows nothing later.
///
/// # Errors
///
/// [`CudaError::Library`] without NVRTC and [`CudaError::Compile`] when it knows only later
/// architectures.
pub fn ptx_architecture((major, minor): (i32, i32)) -> Result<String, CudaError> {
    present()?;
    let device = format!("compute_{major}{minor}");
    let mut count = 0;
    // SAFETY: the count goes into a live variable.
    let counted = unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) };
    counted.result().map_err(|error| refused(&device, error.to_string()))?;
    let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: there is room for as many numbers as NVRTC has just counted.
    let listed = unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) };
    listed.result().map_err(|error| refused(&device, error.to_string()))?;
    let latest = known.into_iter().filter(|known| *known <= 10 * major + minor).max();
    match latest {
        Some(latest) => Ok(format!("compute_{latest}")),
        None => Err(refused(&device, "it knows only later architectures".to_owned())),
    }
}

fn present() -> Result<(), CudaError> {
    // SAFETY: opening NVRTC runs no code but its own initialisation.
    if unsafe { sys::is_culib_present() } {
        Ok(())
    } else {
        Err(CudaError::Library { name: "libnvrtc" })
    }
}

fn refused(architecture: &str, log: String) -> CudaError {
    CudaError::Compile { architecture: architecture.to_owned(), log }
}

/// The kernels as NVRTC has compiled them.
struct Program {
    /// A live program of NVRTC's.
    program: sys::nvrtcProgram,
    /// NVRTC may look at it as long as the program lives.
    _source: CString,
}

impl Program {
    fn compile(architecture: &str) -> Result<Self, CudaError> {
        present()?;
        let source = CString::new(SOURCE).map_err(|e| refused(architecture, e.to_string()))?;
        let program = result::create_program(&source, Some(c"arena_train.cu"))
            .map_err(|error| refused(architecture, error.to_string()))?;
        let program = Self { program, _source: source };
        let target = format!("--gpu-architecture={architecture}");
        let options = ["--fmad=false", "--std=c++17", &target];
        // SAFETY: the program is live.
        let compiled = unsafe { result::compile_program(program.program, &options) };
        match compiled {
            Ok(()) => Ok(program),
            Err(error) => Err(refused(architecture, program.log().unwrap_or(error.to_string()))),
        }
    }

    /// What NVRTC has to say, if anything.
    fn log(&self) -> Option<String> {
        // SAFETY: the program is live.
        let log = unsafe { result::get_program_log(self.program) }.ok()?;
        let bytes: Vec<u8> = log.into_iter().map(|byte| byte.to_ne_bytes()[0]).collect();
        let text = CStr::from_bytes_until_nul(&bytes).ok()?.to_string_lossy().trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// One of the things that NVRTC has made.
    fn output(
        &self,
        architecture: &str,
        size: unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult,
        read: unsafe fn(sys::nvrtcProgram, *mut std::ffi::c_char) -> sys::nvrtcResult,
    ) -> Result<Vec<u8>, CudaError> {
        let failed = |error: result::NvrtcError| refused(architecture, error.to_string());
        let mut bytes = 0;
        // SAFETY: the program is live, and the size goes into a live variable.
        unsafe { size(self.program, &raw mut bytes) }.result().map_err(failed)?;
        let mut output = vec![0_u8; bytes];
        // SAFETY: the program is live, and there is room for as many bytes as NVRTC has just said.
        unsafe { read(self.program, output.as_mut_ptr().cast()) }.result().map_err(failed)?;
        Ok(output)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is live and is not used again. A refusal would only leave it behind.
        let _ = unsafe { result::destroy_program(self.program) };
    }
}

//! A rank as a program has it, in as few lines as possible. Several of one process do as well: each has a stream.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
use cudarc::nccl::result::get_uniqueid;
use cudarc::nccl::sys;

pub(crate) use cudarc::nccl::sys::ncclResult_t as Code;

/// The first fields of a configuration: no call waits.
#[repr(C)]
struct Config(usize, u32, u32, c_int);

pub(crate) struct Rank {
    pub(crate) comm: sys::ncclComm_t,
    pub(crate) stream: Arc<CudaStream>,
}

/// Ranks of this process that have begun to join, on streams of their own.
pub(crate) fn ranks(context: &Arc<CudaContext>, count: c_int) -> Vec<Rank> {
    let id = get_uniqueid().unwrap();
    (0..count)
        .map(|rank| {
            let mut comm = ptr::null_mut();
            let mut config = Config(size_of::<Config>(), 0xCAFE_BEEF, 22_605, 0);
            let config = (&raw mut config).cast();
            // SAFETY: both pointers are to live variables, of which the library reads as much as the size says.
            let code =
                unsafe { sys::ncclCommInitRankConfig(&raw mut comm, count, id, rank, config) };
            assert_eq!(code, Code::ncclInProgress);
            Rank { comm, stream: context.new_stream().unwrap() }
        })
        .collect()
}

/// The same, joined.
pub(crate) fn joined(context: &Arc<CudaContext>, count: c_int) -> Vec<Rank> {
    let ranks = ranks(context, count);
    ranks.iter().for_each(Rank::settle);
    ranks
}

/// The same for the only rank.
pub(crate) fn alone(context: &Arc<CudaContext>) -> Rank {
    joined(context, 1).remove(0)
}

/// What the last refusal was about.
pub(crate) fn why() -> String {
    // SAFETY: it takes null for any communicator.
    let text = unsafe { sys::ncclGetLastError(ptr::null_mut()) };
    // SAFETY: it is a text that ends in NUL, until the next refusal on this thread.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

impl Rank {
    pub(crate) fn floats(&self, values: &[f32]) -> CudaSlice<f32> {
        self.stream.clone_htod(values).unwrap()
    }

    /// What became of the calls so far.
    pub(crate) fn progress(&self) -> Code {
        let mut code = Code::ncclSuccess;
        // SAFETY: the stand-in knows which communicators there are; the code goes into a live variable.
        let asked = unsafe { sys::ncclCommGetAsyncError(self.comm, &raw mut code) };
        if asked == Code::ncclSuccess { code } else { asked }
    }

    pub(crate) fn settle(&self) {
        let code = (0..1000).map(|_| self.progress()).find(|code| *code != Code::ncclInProgress);
        assert_eq!(code, Some(Code::ncclSuccess));
    }

    pub(crate) fn sum(&self, from: &CudaSlice<f32>, into: &CudaSlice<f32>) -> Code {
        let address = |slice: &CudaSlice<f32>| slice.device_ptr(&self.stream).0;
        self.sum_at(address(from), address(into), from.len())
    }

    pub(crate) fn sum_at(&self, from: u64, into: u64, len: usize) -> Code {
        let (from, into) = (from as *const c_void, into as *mut c_void);
        let (float, sum) = (sys::ncclDataType_t::ncclFloat32, sys::ncclRedOp_t::ncclSum);
        let stream = self.stream.cu_stream().cast();
        // SAFETY: the stand-ins check all of it.
        unsafe { sys::ncclAllReduce(from, into, len, float, sum, self.comm, stream) }
    }

    /// Broadcasts all bytes in place.
    pub(crate) fn broadcast(&self, bytes: &CudaSlice<f32>, root: c_int) -> Code {
        let at = bytes.device_ptr(&self.stream).0 as *mut c_void;
        let (byte, len) = (sys::ncclDataType_t::ncclUint8, 4 * bytes.len());
        let stream = self.stream.cu_stream().cast();
        // SAFETY: the stand-ins check all of it.
        unsafe { sys::ncclBroadcast(at, at, len, byte, root, self.comm, stream) }
    }

    pub(crate) fn finalize(&self) -> Code {
        // SAFETY: the stand-in knows which communicators there are.
        unsafe { sys::ncclCommFinalize(self.comm) }
    }

    pub(crate) fn destroy(&self) -> Code {
        // SAFETY: as above.
        unsafe { sys::ncclCommDestroy(self.comm) }
    }

    pub(crate) fn abort(&self) -> Code {
        // SAFETY: as above.
        unsafe { sys::ncclCommAbort(self.comm) }
    }

    pub(crate) fn register(&self, address: u64, bytes: usize) -> Result<*mut c_void, Code> {
        let mut handle = ptr::null_mut();
        let at = address as *mut c_void;
        // SAFETY: the stand-in checks the memory; the handle goes into a live variable.
        match unsafe { sys::ncclCommRegister(self.comm, at, bytes, &raw mut handle) } {
            Code::ncclSuccess => Ok(handle),
            code => Err(code),
        }
    }

    pub(crate) fn deregister(&self, handle: *mut c_void) -> Code {
        // SAFETY: the stand-in knows which handles there are.
        unsafe { sys::ncclCommDeregister(self.comm, handle) }
    }
}

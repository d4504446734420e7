//! A communicator of NCCL. Cudarc's own hides its handle, so it can neither be aborted nor asked for errors, and it panics
//! when it is dropped.
//!
//! It is made such that no call waits (`blocking` is 0): each is followed by questions, [`Communicator::has_settled`], until
//! NCCL has taken it. All calls but `has_settled` have the context current in which it was made.

use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write;
use std::ptr;

use arena_scope::{Cuda, View, ViewMut};
use cudarc::driver::CudaStream;
use cudarc::nccl::{result, sys};

use super::device::Staging;

/// The first version with communicators whose calls do not wait: 2.14.
const OLDEST: c_int = 21_400;
/// The version of the bindings whose configuration is passed: 2.30.
const BINDINGS: u32 = 23_000;
/// What a configuration begins with.
const MAGIC: u32 = 0xCAFE_BEEF;
/// A number that NCCL chooses.
const UNDEFINED: c_int = c_int::MIN;

/// That NCCL is loaded, and new enough.
#[derive(Clone, Copy, Debug)]
pub(super) struct Library(());

impl Library {
    pub(super) fn load() -> Result<Self, String> {
        // SAFETY: opening NCCL runs no code but its own initialisation.
        if !unsafe { sys::is_culib_present() } {
            return Err("the loader finds no libnccl.so".to_owned());
        }
        let version = result::get_nccl_version().map_err(|error| in_words(error.0, None))?;
        if version < OLDEST {
            return Err(format!("version {version} is installed, and {OLDEST} is needed"));
        }
        Ok(Self(()))
    }

    pub(super) fn unique_id(self) -> Result<[u8; 128], String> {
        let id = result::get_uniqueid().map_err(|error| in_words(error.0, None))?;
        Ok(id.internal.map(c_char::cast_unsigned))
    }
}

/// One rank of a communicator. Only [`abort`](Self::abort) and [`destroy`](Self::destroy) end it, and both take it.
#[derive(Debug)]
pub(super) struct Communicator {
    /// Live as long as this is.
    handle: sys::ncclComm_t,
}

impl Communicator {
    /// Begins to join the others.
    pub(super) fn begin(
        _loaded: Library,
        rank: u32,
        size: u32,
        id: [u8; 128],
    ) -> Result<Self, String> {
        let no_rank = || format!("there is no rank {rank} among {size}");
        if rank >= size {
            return Err(no_rank());
        }
        let [c_rank, c_size] =
            [rank, size].map(|number| c_int::try_from(number).map_err(|_| no_rank()));
        let id = sys::ncclUniqueId { internal: id.map(u8::cast_signed) };
        let mut config = config();
        let mut handle = ptr::null_mut();
        // SAFETY: the handle goes into a live variable, and the configuration is live for the call, which copies it.
        let begun = unsafe {
            result::comm_init_rank_config(&raw mut handle, c_size?, id, c_rank?, &raw mut config)
        };
        begun.map_err(|error| in_words(error.0, None))?;
        Ok(Self { handle })
    }

    /// Whether NCCL has taken the last call. It is also how one hears of ranks that have ended.
    pub(super) fn has_settled(&self) -> Result<bool, String> {
        let mut status = sys::ncclResult_t::ncclSuccess;
        // SAFETY: the handle is live, and the status goes into a live variable.
        let asked = unsafe { sys::ncclCommGetAsyncError(self.handle, &raw mut status) };
        self.accepted(asked.result())?;
        match status {
            sys::ncclResult_t::ncclInProgress => Ok(false),
            status => self.accepted(status.result()).map(|()| true),
        }
    }

    /// Queues the sums of two buffers of one length, on the stream of their arena.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub(super) fn all_reduce_sum(
        &self,
        stream: &CudaStream,
        from: View<'_, f32, Cuda>,
        into: ViewMut<'_, f32, Cuda>,
    ) -> Result<(), String> {
        assert_eq!(from.len(), into.len(), "of one length");
        if from.is_empty() {
            return Ok(());
        }
        let (from, into, len) = (from.address(), into.address(), from.len());
        // SAFETY: live memory of `len` elements each, apart from one another by the views' borrows. The arena orders its
        // later use of them behind this stream, which is its own.
        unsafe { self.queue_sum(from, into, len, stream) }
    }

    /// Queues something that ends when every rank has come.
    pub(super) fn meet(&self, staging: &mut Staging) -> Result<(), String> {
        let at = staging.device();
        // SAFETY: one element of memory that is the staging's alone, whose contents do not matter. It is released once the
        // stream is idle.
        unsafe { self.queue_sum(at, at, 1, staging.stream()) }
    }

    /// # Safety
    ///
    /// `len` elements of `f32` in device memory at both addresses, which are the same or do not overlap; nobody else
    /// uses them until the stream has ended this.
    unsafe fn queue_sum(
        &self,
        from: u64,
        into: u64,
        len: usize,
        stream: &CudaStream,
    ) -> Result<(), String> {
        let (element, sum) = (sys::ncclDataType_t::ncclFloat32, sys::ncclRedOp_t::ncclSum);
        let (from, into) = (pointer(from).cast_const(), pointer(into));
        let stream = stream.cu_stream().cast();
        // SAFETY: the handle and the stream are live, and the memory is as the caller says.
        self.accepted(unsafe {
            result::all_reduce(from, into, len, element, sum, self.handle, stream)
        })
    }

    /// Queues a broadcast of the first `len` bytes of the staging.
    ///
    /// # Panics
    ///
    /// For more than it has.
    pub(super) fn broadcast(
        &self,
        staging: &mut Staging,
        len: usize,
        root: u32,
    ) -> Result<(), String> {
        assert!(len <= Staging::BYTES, "{len} bytes at once");
        let root = c_int::try_from(root).map_err(|_| format!("there is no rank {root}"))?;
        let (at, byte) = (pointer(staging.device()), sys::ncclDataType_t::ncclUint8);
        let stream = staging.stream().cu_stream().cast();
        // SAFETY: the handle and the stream are live. So is the memory, `len` bytes of the staging's alone, which is
        // released once the stream is idle.
        self.accepted(unsafe {
            result::broadcast(at.cast_const(), at, len, byte, root, self.handle, stream)
        })
    }

    /// Begins to end it in order, with the other ranks. The stream is idle.
    pub(super) fn finalize(&self) -> Result<(), String> {
        // SAFETY: the handle is live.
        self.accepted(unsafe { result::comm_finalize(self.handle) })
    }

    /// Frees it when it is finalized.
    pub(super) fn destroy(self) {
        // SAFETY: the handle is live, and not used again. What is left where NCCL refuses is lost.
        let _ = unsafe { result::comm_destroy(self.handle) };
    }

    /// Ends what is queued, wherever it stands, and frees it.
    pub(super) fn abort(self) {
        // SAFETY: the handle is live, and not used again. Nobody could do more where NCCL refuses.
        let _ = unsafe { result::comm_abort(self.handle) };
    }

    fn accepted(
        &self,
        status: Result<result::NcclStatus, result::NcclError>,
    ) -> Result<(), String> {
        status.map(|_| ()).map_err(|error| in_words(error.0, Some(self)))
    }
}

/// What NCCL says of a refusal.
fn in_words(status: sys::ncclResult_t, communicator: Option<&Communicator>) -> String {
    let mut words = format!("{status:?} ({})", status as u32);
    // SAFETY: NCCL is loaded, for it gave the status. It gives a text for each, or null.
    let meaning = unsafe { sys::ncclGetErrorString(status) };
    let handle = communicator.map_or(ptr::null_mut(), |communicator| communicator.handle);
    // SAFETY: null, or live. NCCL gives a text, or null.
    let details = unsafe { sys::ncclGetLastError(handle) };
    for text in [meaning, details].into_iter().filter(|text| !text.is_null()) {
        // SAFETY: not null, and so a text that ends in NUL, which NCCL keeps until its next refusal.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        if !text.trim().is_empty() {
            let _ = write!(words, ": {}", text.trim());
        }
    }
    words
}

/// Nothing chosen, but that no call waits.
fn config() -> sys::ncclConfig_t {
    sys::ncclConfig_t {
        size: size_of::<sys::ncclConfig_t>(),
        magic: MAGIC,
        version: BINDINGS,
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: UNDEFINED,
        netName: ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
        graphUsageMode: UNDEFINED,
        numRmaCtx: UNDEFINED,
        maxP2pPeers: UNDEFINED,
    }
}

/// A device address as the library takes it.
#[expect(clippy::cast_possible_truncation, reason = "cudarc asks for 64-bit addresses")]
const fn pointer(address: u64) -> *mut std::ffi::c_void {
    ptr::without_provenance_mut(address as usize)
}

//! Ranks on NCCL, with buffers in CUDA devices' memory.

#[allow(unsafe_code, reason = "calls of NCCL")]
mod communicator;
#[allow(unsafe_code, reason = "calls of the driver")]
mod device;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use arena_scope::{Cuda, View, ViewMut};
use cudarc::driver::{CudaStream, DeviceSlice};

use self::communicator::{Communicator, Library};
use self::device::{Staging, is_idle, with_current};
use crate::{Collective, CollectiveError};

/// A rank that waits asks without a pause for so long, and then sleeps between two questions.
const SPIN: Duration = Duration::from_millis(1);
const SLEEP: Duration = Duration::from_micros(50);

/// Ranks on NCCL, each a process with an arena on a device of its own.
///
/// [`all_reduce_sum`](Collective::all_reduce_sum) is queued on the arena's stream, also while a graph is captured; the host
/// does not wait. [`broadcast`](Collective::broadcast), [`barrier`](Collective::barrier) and [`wait`](Collective::wait) do, for no
/// longer than the timeout, and for all that was queued on the stream before: the timeout has to be longer than a step.
/// **Call [`wait`](Collective::wait) before anything else waits for the stream**, such as a read of a loss: CUDA's own waits have
/// no timeout, so a rank that hangs would stop this one as well.
///
/// Where the ranks did not come together in time, or one has ended, the rank aborts its communicator. What was queued then
/// ends, with no sums that mean anything; the call returns the error, and so does every call after it. NCCL does not tell
/// which rank did not come, so [`CollectiveError::TimedOut`] names none.
///
/// Drop it before the arena, whose own end waits for the stream. That ends the communicator: in order if all calls end
/// within the timeout, or else by an abort, as also while a panic unwinds. It never panics, and it waits no longer than
/// twice the timeout for the other ranks.
///
/// It takes a block of device memory outside the arena, and as much page-locked memory, of 256 KiB: through these go the
/// bytes of a broadcast. NCCL itself takes more.
///
/// ```no_run
/// use std::time::Duration;
///
/// use arena_collective::{Collective, Nccl};
/// use arena_scope::{Arena, ByteSize, Cuda};
///
/// # fn handed_over(id: Option<[u8; 128]>) -> [u8; 128] { id.unwrap() }
/// # let (rank, size) = (0, 2);
/// // Rank 0 makes the id and hands it to the others: by a file, a socket, or what starts them.
/// let id = handed_over(if rank == 0 { Some(Nccl::unique_id()?) } else { None });
/// let arena = Arena::builder(Cuda::new(rank as usize)?).capacity(ByteSize::mib(64)).build()?;
/// let ranks = Nccl::join(arena.device().stream(), rank, size, id, Duration::from_secs(60))?;
/// let gradients = arena.persistent_from(&[1.0_f32; 1000])?;
/// let mut sums = arena.persistent::<f32>(1000)?;
/// ranks.all_reduce_sum(gradients.view(), sums.view_mut())?;
/// ranks.wait()?;
/// assert_eq!(sums.view().to_vec()?, [size as f32; 1000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Nccl {
    rank: u32,
    size: u32,
    stream: Arc<CudaStream>,
    timeout: Duration,
    /// Calls so far.
    calls: Cell<u64>,
    inner: RefCell<Inner>,
}

struct Inner {
    /// `None` after an abort.
    communicator: Option<Communicator>,
    /// Taken by the drop alone; made right after the communicator.
    staging: Option<Staging>,
    /// The error that ended it: every later call returns it.
    ended: Option<CollectiveError>,
}

impl Nccl {
    /// A new id, which names one run. One rank makes it, before it joins, and the program hands it to the others.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::NotStarted`] where NCCL is not installed, is older than 2.14, or refuses. The loader has to find
    /// it as `libnccl.so`: the name of its development package, or a link to `libnccl.so.2`.
    pub fn unique_id() -> Result<[u8; 128], CollectiveError> {
        Library::load().and_then(Library::unique_id).map_err(not_started)
    }

    /// Joins the other ranks, for buffers of the arena whose stream this is ([`Cuda::stream`]). It waits until all `size`
    /// ranks have come.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::NotStarted`] as for [`unique_id`](Self::unique_id), when there is no such rank, or when not all
    /// ranks came within the timeout.
    pub fn join(
        stream: &Arc<CudaStream>,
        rank: u32,
        size: u32,
        id: [u8; 128],
        timeout: Duration,
    ) -> Result<Self, CollectiveError> {
        let library = Library::load().map_err(not_started)?;
        let context = stream.context();
        let begun = with_current(context, || Communicator::begin(library, rank, size, id));
        let communicator = Some(begun.map_err(not_started)?);
        // From here on the drop ends all of it.
        let this = Self {
            rank,
            size,
            stream: Arc::clone(stream),
            timeout,
            calls: Cell::new(0),
            inner: RefCell::new(Inner { communicator, staging: None, ended: None }),
        };
        let staging = with_current(context, || Staging::new(stream));
        let staging = staging.inspect_err(|_| this.abort()).map_err(not_started)?;
        this.inner.borrow_mut().staging = Some(staging);
        let joined =
            this.on_communicator("join", |communicator, _| this.settle("join", communicator));
        joined.map_err(|error| {
            not_started(match error {
                CollectiveError::TimedOut { waited, .. } => {
                    let waited = waited.as_secs_f32();
                    format!("rank {rank} waited {waited} s, and not all {size} ranks came")
                }
                CollectiveError::Refused { reason, .. } => reason,
                error => error.to_string(),
            })
        })?;
        Ok(this)
    }

    /// Does something with a communicator that is still good. One that fails is aborted.
    fn on_communicator(
        &self,
        call: &'static str,
        body: impl FnOnce(&Communicator, &mut Staging) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let mut inner = self.inner.borrow_mut();
        let Inner { communicator, staging, ended } = &mut *inner;
        let (Some(good), Some(staging), None) = (&*communicator, staging, &*ended) else {
            return Err(ended.clone().unwrap_or_else(|| refused(call, "it has ended".to_owned())));
        };
        let current = with_current(self.stream.context(), || Ok(body(good, staging)));
        let outcome = current.unwrap_or_else(|reason| Err(refused(call, reason)));
        if let Err(error) = &outcome {
            *ended = Some(error.clone());
            self.abort_now(communicator.take());
        }
        outcome
    }

    /// Waits until NCCL has taken the last call.
    fn settle(
        &self,
        call: &'static str,
        communicator: &Communicator,
    ) -> Result<(), CollectiveError> {
        self.until(call, || communicator.has_settled())
    }

    /// Waits until the stream has ended its work. As long as nobody aborts, that says that the ranks have all done theirs,
    /// even if one has ended since.
    fn until_idle(
        &self,
        call: &'static str,
        communicator: &Communicator,
    ) -> Result<(), CollectiveError> {
        let mut has_settled = false;
        self.until(call, || {
            // Before NCCL has taken the call, the stream may be idle because it has not begun.
            let is_idle = has_settled && is_idle(&self.stream)?;
            if !is_idle {
                has_settled = communicator.has_settled()?;
            }
            Ok(is_idle)
        })
    }

    fn until(
        &self,
        call: &'static str,
        mut is_done: impl FnMut() -> Result<bool, String>,
    ) -> Result<(), CollectiveError> {
        let begin = Instant::now();
        while !is_done().map_err(|reason| refused(call, reason))? {
            let waited = begin.elapsed();
            if waited > self.timeout {
                return Err(CollectiveError::TimedOut {
                    rank: self.rank,
                    size: self.size,
                    call,
                    number: self.calls.get(),
                    waited,
                    missing_ranks: Vec::new(),
                });
            }
            if waited > SPIN { thread::sleep(SLEEP) } else { thread::yield_now() }
        }
        Ok(())
    }

    fn count(&self) {
        self.calls.set(self.calls.get() + 1);
    }

    /// Aborts a communicator, which is not waited for. Where its context cannot be made current, NCCL does without.
    fn abort_now(&self, mut communicator: Option<Communicator>) {
        let _ = with_current(self.stream.context(), || {
            if let Some(communicator) = communicator.take() {
                communicator.abort();
            }
            Ok(())
        });
        if let Some(communicator) = communicator {
            communicator.abort();
        }
    }

    /// Ends a communicator in order. False where that does not work within the timeout.
    fn finish(&self, communicator: &Communicator) -> bool {
        let call = "drop";
        self.until_idle(call, communicator).is_ok()
            && communicator.finalize().is_ok()
            && self.settle(call, communicator).is_ok()
    }
}

impl Collective<Cuda> for Nccl {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn all_reduce_sum(
        &self,
        from: View<'_, f32, Cuda>,
        into: ViewMut<'_, f32, Cuda>,
    ) -> Result<(), CollectiveError> {
        let call = "all-reduce";
        CollectiveError::check_lengths(from.len(), into.len())?;
        if [DeviceSlice::stream(&from), DeviceSlice::stream(&into)]
            .iter()
            .any(|s| ***s != *self.stream)
        {
            let reason = "a buffer is of an arena on another stream than the ranks'".to_owned();
            return Err(refused(call, reason));
        }
        self.count();
        self.on_communicator(call, |communicator, _| {
            let queued = communicator.all_reduce_sum(&self.stream, from, into);
            queued.map_err(|reason| refused(call, reason))?;
            self.settle(call, communicator)
        })
    }

    fn broadcast(&self, bytes: &mut [u8], root: u32) -> Result<(), CollectiveError> {
        let call = "broadcast";
        CollectiveError::check_root(root, self.size)?;
        self.count();
        self.on_communicator(call, |communicator, staging| {
            let failed = |reason| refused(call, reason);
            for part in bytes.chunks_mut(Staging::BYTES) {
                if root == self.rank {
                    staging.send(part).map_err(failed)?;
                }
                communicator.broadcast(staging, part.len(), root).map_err(failed)?;
                self.settle(call, communicator)?;
                staging.fetch(part.len()).map_err(failed)?;
                self.until_idle(call, communicator)?;
                staging.take(part);
            }
            Ok(())
        })
    }

    fn wait(&self) -> Result<(), CollectiveError> {
        self.on_communicator("wait", |communicator, _| self.until_idle("wait", communicator))
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        let call = "barrier";
        self.count();
        self.on_communicator(call, |communicator, staging| {
            communicator.meet(staging).map_err(|reason| refused(call, reason))?;
            self.until_idle(call, communicator)
        })
    }

    fn abort(&self) {
        let mut inner = self.inner.borrow_mut();
        let Some(communicator) = inner.communicator.take() else { return };
        self.abort_now(Some(communicator));
        inner.ended = Some(refused("abort", "this rank has aborted".to_owned()));
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        let Inner { communicator, staging, .. } = &mut *self.inner.borrow_mut();
        let (communicator, staging) = (communicator.take(), staging.take());
        // A context that cannot be made current is broken: what it held is lost with it.
        let _ = with_current(self.stream.context(), || {
            if let Some(communicator) = communicator {
                // The others may be far from this call when a rank panics.
                if !thread::panicking() && self.finish(&communicator) {
                    communicator.destroy();
                } else {
                    communicator.abort();
                }
            }
            match (staging, self.until("drop", || is_idle(&self.stream))) {
                (Some(staging), Ok(())) => staging.free(),
                // Queued copies may use it for ever.
                (staging, _) => std::mem::forget(staging),
            }
            Ok(())
        });
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, size) = (self.rank, self.size);
        f.debug_struct("Nccl").field("rank", &rank).field("size", &size).finish_non_exhaustive()
    }
}

fn not_started(reason: String) -> CollectiveError {
    CollectiveError::NotStarted { engine: "NCCL", reason }
}

fn refused(call: &'static str, reason: String) -> CollectiveError {
    CollectiveError::Refused { call, reason }
}

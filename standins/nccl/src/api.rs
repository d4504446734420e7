//! The functions of the interface.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::communicator::{self, Communicator, fresh_handle};
use crate::driver::{count_handle, framed, is_known, on_the_host, submit};
use crate::folder::{Place, fresh_path};
use crate::status::{Outcome, Status, code, refused};
use crate::work::{Call, Work};

/// NCCL 2.26.5.
const VERSION: c_int = 22_605;
/// What a configuration begins with.
const MAGIC: u32 = 0xCAFE_BEEF;
/// How often a call that waits looks for the others.
const REST: Duration = Duration::from_millis(1);

/// An `ncclUniqueId`: here the path of a folder, and zeros.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Id([c_char; 128]);

/// The fields of an `ncclConfig_t` that every version has.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

/// A result that the caller takes through a pointer: null, or valid for one write. Only foreign callers make one.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    fn set(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(refused(Status::INVALID_ARGUMENT, "a null pointer for a result"));
        }
        // SAFETY: not null, and by the type's rule the foreign caller passed a pointer that is valid for this write.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

/// A configuration: null, or valid for a read. Only foreign callers make one.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct InConfig(*const Config);

impl InConfig {
    /// Whether calls wait.
    fn is_blocking(&self) -> Result<bool, Status> {
        if self.0.is_null() {
            return Ok(true);
        }
        // SAFETY: not null, and by the type's rule the foreign caller passed a pointer that is valid for this read.
        let config = unsafe { self.0.read() };
        if config.magic != MAGIC || config.size < size_of::<Config>() {
            return Err(refused(Status::INVALID_ARGUMENT, "no configuration"));
        }
        match config.blocking {
            0 => Ok(false),
            1 | c_int::MIN => Ok(true),
            _ => Err(refused(Status::INVALID_ARGUMENT, "blocking is neither 0 nor 1")),
        }
    }
}

// --- the library --------------------------------------------------------------------------------

#[unsafe(no_mangle)]
extern "C" fn ncclGetVersion(version: Out<c_int>) -> u32 {
    code(version.set(VERSION))
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetUniqueId(id: Out<Id>) -> u32 {
    code((|| {
        let mut text = [0; 128];
        let path = fresh_path().to_string_lossy().into_owned();
        if path.len() >= text.len() {
            return Err(refused(
                Status::SYSTEM_ERROR,
                "the folder for temporary files has a long path",
            ));
        }
        text.iter_mut().zip(path.bytes()).for_each(|(to, byte)| *to = byte.cast_signed());
        id.set(Id(text))
    })())
}

thread_local! {
    /// Groups that this thread has begun and not ended.
    static GROUPS: Cell<u32> = const { Cell::new(0) };
}

/// Nothing waits in a call here, so a group only has to end as often as it begins.
#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> u32 {
    GROUPS.set(GROUPS.get() + 1);
    0
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> u32 {
    match GROUPS.get().checked_sub(1) {
        Some(left) => {
            GROUPS.set(left);
            0
        }
        None => refused(Status::INVALID_USAGE, "a group ends that has not begun").0,
    }
}

// --- communicators ------------------------------------------------------------------------------

fn wait_for_ranks(communicator: &Communicator) -> Outcome {
    loop {
        match communicator.progress(false) {
            Err(Status::IN_PROGRESS) => thread::sleep(REST),
            Err(status) => {
                communicator.abort();
                return Err(status);
            }
            Ok(()) => return Ok(()),
        }
    }
}

fn init(
    out: Out<u64>,
    ranks: c_int,
    id: &Id,
    rank: c_int,
    is_blocking: Result<bool, Status>,
) -> Outcome {
    let is_blocking = is_blocking?;
    let (Ok(ranks), Ok(rank)) = (u32::try_from(ranks), u32::try_from(rank)) else {
        return Err(refused(Status::INVALID_ARGUMENT, "a negative rank"));
    };
    if rank >= ranks {
        let why = format!("there is no rank {rank} of {ranks}");
        return Err(refused(Status::INVALID_ARGUMENT, why));
    }
    let path = id.0.map(c_char::cast_unsigned);
    let path = CStr::from_bytes_until_nul(&path).ok().and_then(|path| path.to_str().ok());
    let Some(path) = path.filter(|path| !path.is_empty()) else {
        return Err(refused(Status::INVALID_ARGUMENT, "no unique id"));
    };
    let place = Place::take(Path::new(path), rank, ranks)
        .map_err(|error| refused(Status::SYSTEM_ERROR, format!("rank {rank}: {error}")))?;
    let handle = fresh_handle();
    let communicator = Communicator::new(place, is_blocking);
    if is_blocking {
        wait_for_ranks(&communicator)?;
    }
    out.set(handle)?;
    communicator::add(handle, communicator);
    count_handle(1)?;
    if is_blocking { Ok(()) } else { Err(Status::IN_PROGRESS) }
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRank(out: Out<u64>, ranks: c_int, id: Id, rank: c_int) -> u32 {
    framed("ncclCommInitRank", || init(out, ranks, &id, rank, Ok(true)))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRankConfig(
    out: Out<u64>,
    ranks: c_int,
    id: Id,
    rank: c_int,
    config: InConfig,
) -> u32 {
    framed("ncclCommInitRankConfig", || init(out, ranks, &id, rank, config.is_blocking()))
}

fn refuse_busy(comm: u64) -> Outcome {
    if communicator::is_busy(comm) {
        let why = "calls are queued, or captured in a graph that is still there";
        return Err(refused(Status::INVALID_USAGE, why));
    }
    Ok(())
}

/// On a communicator that waits it may not be busy: the stand-in's device gets on only when a stream is waited for.
#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(comm: u64) -> u32 {
    framed("ncclCommFinalize", || {
        if communicator::get(comm)?.is_blocking() {
            refuse_busy(comm)?;
        }
        let communicator = communicator::get(comm)?;
        communicator.check_ready()?;
        communicator.finalize();
        communicator.taken()
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommDestroy(comm: u64) -> u32 {
    // As for cuBLAS: it goes also when the call is told to fail, and in a broken context.
    let removed = refuse_busy(comm).and_then(|()| communicator::remove(comm));
    let outcome = removed.and_then(|communicator| {
        communicator.leave();
        count_handle(-1)
    });
    on_the_host("ncclCommDestroy", || outcome)
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(comm: u64) -> u32 {
    // First of all, and without the driver: another thread may hold it, and wait for what ends here.
    let removed = communicator::remove(comm).map(|communicator| communicator.abort());
    on_the_host("ncclCommAbort", || removed.and_then(|()| count_handle(-1)))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommGetAsyncError(comm: u64, out: Out<u32>) -> u32 {
    on_the_host("ncclCommGetAsyncError", || {
        let is_busy = communicator::is_busy(comm);
        let progress = communicator::get(comm)?.progress(is_busy);
        out.set(code(progress))
    })
}

// --- registered memory --------------------------------------------------------------------------

fn check_known([address, bytes]: [u64; 2], status: Status, why: &str) -> Outcome {
    let last = address.checked_add(bytes.saturating_sub(1)).unwrap_or(0);
    if bytes == 0 || !is_known(address)? || !is_known(last)? {
        return Err(refused(status, why));
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommRegister(comm: u64, address: u64, bytes: usize, out: Out<u64>) -> u32 {
    framed("ncclCommRegister", || {
        let communicator = communicator::get(comm)?;
        communicator.check_ready()?;
        let range = [address, bytes as u64];
        check_known(range, Status::INVALID_ARGUMENT, "the driver does not know the memory")?;
        let handle = fresh_handle();
        out.set(handle)?;
        communicator.register(handle, range);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommDeregister(comm: u64, handle: u64) -> u32 {
    framed("ncclCommDeregister", || {
        let range = communicator::get(comm)?.deregister(handle)?;
        let why = "registered memory was freed before it was deregistered";
        check_known(range, Status::INVALID_USAGE, why)
    })
}

// --- calls of all ranks -------------------------------------------------------------------------

fn queue(name: &'static str, comm: u64, stream: u64, call: Call) -> Outcome {
    let communicator = communicator::get(comm)?;
    communicator.check_ready()?;
    let Some(rank) = communicator.at_place(Place::rank) else {
        return Err(refused(Status::INVALID_USAGE, "the communicator was aborted"));
    };
    let ranges = call.ranges(rank);
    for [address, _] in &ranges {
        if !is_known(*address)? {
            let why = format!("{name}: the driver does not know the memory at {address:#x}");
            return Err(refused(Status::INVALID_ARGUMENT, why));
        }
    }
    let work = Work::new(communicator.clone(), call);
    submit(stream, name, &ranges, Box::new(move || work.go_on()))?;
    communicator.taken()
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllReduce(
    from: u64,
    to: u64,
    count: usize,
    element: u32,
    operation: u32,
    comm: u64,
    stream: u64,
) -> u32 {
    framed("ncclAllReduce", || {
        if element != 7 || operation != 0 {
            let why = "the stand-in adds up elements of f32, and does nothing else";
            return Err(refused(Status::INVALID_ARGUMENT, why));
        }
        if from != to && from.abs_diff(to) < 4 * count as u64 {
            return Err(refused(Status::INVALID_USAGE, "the two operands overlap"));
        }
        match count {
            0 => communicator::get(comm).map(|_| ()),
            _ => queue("ncclAllReduce", comm, stream, Call::Sum { from, to, count }),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclBroadcast(
    from: u64,
    to: u64,
    count: usize,
    element: u32,
    root: c_int,
    comm: u64,
    stream: u64,
) -> u32 {
    framed("ncclBroadcast", || {
        let bytes = match element {
            0 | 1 | 10 | 11 => 1,
            6 | 9 => 2,
            2 | 3 | 7 => 4,
            4 | 5 | 8 => 8,
            _ => return Err(refused(Status::INVALID_ARGUMENT, "no such element")),
        };
        let ranks = communicator::get(comm)?.at_place(Place::ranks).unwrap_or(0);
        let Some(root) = u32::try_from(root).ok().filter(|root| *root < ranks) else {
            return Err(refused(Status::INVALID_ARGUMENT, format!("there is no rank {root}")));
        };
        match count {
            0 => Ok(()),
            _ => {
                let call = Call::Copy { from, to, len: count * bytes, root };
                queue("ncclBroadcast", comm, stream, call)
            }
        }
    })
}

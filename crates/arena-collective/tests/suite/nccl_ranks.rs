//! What one rank does, in a process of its own: the test `rank` is run by those of `nccl.rs`, and does what its
//! environment says.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use arena_collective::{Collective, CollectiveError, Nccl, RankError, gather};
use arena_scope::cudarc::driver::CudaStream;
use arena_scope::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use arena_scope::{Arena, ByteSize, Cuda, Persistent};
use cuda_standin::{Mode, Standin};

use crate::launch::{RANK, Ranks};

const ROLE: &str = "ARENA_TEST_ROLE";
const RANKS: &str = "ARENA_TEST_RANKS";
const ID: &str = "ARENA_TEST_ID";
const FOLDER: &str = "ARENA_TEST_FOLDER";

/// The file in the folder that lets a rank go on that hangs.
pub(crate) const GO_ON: &str = "go on";

/// More than a part of a broadcast has.
const LONG: usize = (256 << 10) + 3;
/// With which a process ends that dies on purpose.
pub(crate) const DEAD: i32 = 7;
/// What the ranks wait for where one does not come, and what they may take on top of it on a busy machine.
const SHORT: Duration = Duration::from_secs(1);
const SLACK: Duration = Duration::from_secs(5);
/// What they wait for where all come, or one is told to be gone.
const PATIENT: Duration = Duration::from_secs(30);

/// Starts `started` of `size` ranks, which meet in an empty folder.
pub(crate) fn start(role: &str, started: u32, size: u32, folder: &Path) -> Ranks {
    let id: String = Nccl::unique_id().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    let folder = folder.to_str().unwrap().to_owned();
    let environment =
        [(ROLE, role.to_owned()), (RANKS, size.to_string()), (ID, id), (FOLDER, folder)];
    Ranks::start("nccl_ranks::rank", started, &environment)
}

/// A rank on a device of its own. The stand-in goes last.
struct Rank {
    rank: u32,
    size: u32,
    id: [u8; 128],
    arena: Arena<Cuda>,
    standin: Standin,
}

impl Rank {
    fn of_the_environment() -> Self {
        let number = |name| env::var(name).unwrap().parse::<u32>().unwrap();
        let (rank, size) = (number(RANK), number(RANKS));
        let id = env::var(ID).unwrap();
        let digit = |at: usize| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap();
        let id = std::array::from_fn(digit);
        let standin = Standin::load().unwrap();
        standin.reset(7 * u64::from(rank) + 1);
        standin.set_mode(if rank == 1 { Mode::Drawn } else { Mode::Deferred });
        let arena = Arena::builder(Cuda::new(0).unwrap()).capacity(ByteSize::kib(64));
        Self { rank, size, id, arena: arena.build().unwrap(), standin }
    }

    fn stream(&self) -> Arc<CudaStream> {
        self.arena.device().stream().clone()
    }

    fn join(&self, timeout: Duration) -> Nccl {
        Nccl::join(&self.stream(), self.rank, self.size, self.id, timeout).unwrap()
    }

    fn buffer(&self, values: &[f32]) -> Persistent<f32, Cuda> {
        self.arena.persistent_from(values).unwrap()
    }
}

#[test]
#[ignore = "a rank of other tests"]
fn rank() {
    let rank = Rank::of_the_environment();
    match env::var(ROLE).unwrap().as_str() {
        "sums" => sums(rank),
        "captured" => captured(rank),
        "broadcasts" => broadcasts(rank),
        "gathers" => gathers(rank),
        "one_dies" => one_dies(rank),
        "one_hangs_all_reduce" => one_hangs(rank, "wait", all_reduce),
        "one_hangs_broadcast" => {
            one_hangs(rank, "broadcast", |ranks, _, _| ranks.broadcast(&mut [1; 9], 0));
        }
        "one_hangs_broadcast_of_its" => {
            one_hangs(rank, "broadcast", |ranks, _, _| ranks.broadcast(&mut [1; 9], 1));
        }
        "one_hangs_barrier" => one_hangs(rank, "barrier", |ranks, _, _| ranks.barrier()),
        "one_hangs_drop" => drops_while_one_hangs(rank),
        "one_aborts" => one_aborts(rank),
        "one_panics" => one_panics(rank),
        "one_never_joins" => one_never_joins(rank),
        "other_lengths" => other_lengths(rank),
        "other_sizes" => other_sizes(rank),
        role => panic!("no role {role}"),
    }
}

/// Numbers whose sums depend on their order.
fn summand(rank: u32, step: u32) -> Vec<f32> {
    let scale = [1.0_f32, 3e4, -3e4, 1e-3][rank as usize % 4];
    (0..1000).map(|n| ((n * 37 + 11 * step + rank) as f32).sin() * scale).collect()
}

/// The sums in that order of the ranks.
fn sums_over(ranks: impl Iterator<Item = u32>, step: u32) -> Vec<f32> {
    ranks
        .map(|rank| summand(rank, step))
        .reduce(|sums, others| sums.iter().zip(&others).map(|(sum, other)| sum + other).collect())
        .unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn sums(mut rank: Rank) {
    let ranks = rank.join(PATIENT);
    let mut into = rank.buffer(&[0.0; 1000]);
    rank.arena.mark().unwrap();
    for step in 0..5 {
        let expected = sums_over(0..rank.size, step);
        if rank.size > 2 {
            let backwards = sums_over((0..rank.size).rev(), step);
            assert_ne!(bits(&expected), bits(&backwards), "the order of the ranks matters");
        }
        let number = rank.rank;
        let seen = rank.arena.scope(|scope| {
            let from = scope.upload(&summand(number, step))?;
            ranks.all_reduce_sum(from.view(), into.view_mut()).unwrap();
            ranks.wait().unwrap();
            scope.read(into.view())
        });
        let seen = seen.unwrap_or_else(|error| panic!("{error}: {}", rank.standin.last_fault()));
        assert_eq!(bits(&seen), bits(&expected), "step {step}");
    }
    drop(ranks);
    ends_clean(rank, into);
}

/// Nothing is left of the ranks, nor of the arena.
fn ends_clean(rank: Rank, buffer: Persistent<f32, Cuda>) {
    let Rank { arena, standin, .. } = rank;
    drop(buffer);
    drop(arena);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

fn captured(rank: Rank) {
    let ranks = rank.join(PATIENT);
    let (mut from, mut into) = (rank.buffer(&[0.0; 1000]), rank.buffer(&[0.0; 1000]));
    let stream = rank.stream();
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    ranks.all_reduce_sum(from.view(), into.view_mut()).unwrap();
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags).unwrap().unwrap();
    for step in 0..3 {
        from.view_mut().write(&summand(rank.rank, step)).unwrap();
        graph.launch().unwrap();
        ranks.wait().unwrap();
        let expected = sums_over(0..rank.size, step);
        assert_eq!(bits(&into.view().to_vec().unwrap()), bits(&expected), "step {step}");
    }
    drop(graph);
}

fn broadcasts(rank: Rank) {
    let ranks = rank.join(PATIENT);
    let bytes_of = |root: u32, len: usize| -> Vec<u8> {
        (0..len).map(|n| (n as u32 * 7 + root * 31 + 1) as u8).collect()
    };
    for root in 0..rank.size {
        for len in [0, 1, 5, LONG] {
            let mut bytes = bytes_of(rank.rank, len);
            ranks.broadcast(&mut bytes, root).unwrap();
            assert!(bytes == bytes_of(root, len), "{len} bytes from {root}");
        }
    }
    let error = ranks.broadcast(&mut [0], rank.size).unwrap_err();
    assert_eq!(error.to_string(), format!("broadcast: there is no rank {0} among {0}", rank.size));
    // That refusal has ended nothing.
    ranks.barrier().unwrap();
}

fn gathers(rank: Rank) {
    let ranks = rank.join(PATIENT);
    let (own, size) = (u64::from(rank.rank), u64::from(rank.size));
    let all = gather(&ranks, Ok([own, 100 + own])).unwrap().unwrap();
    assert_eq!(all, (0..size).map(|rank| [rank, 100 + rank]).collect::<Vec<_>>());
    let last = rank.size - 1;
    let mine = if rank.rank == last { Err("no data".to_owned()) } else { Ok([1]) };
    let failed = gather(&ranks, mine).unwrap().unwrap_err();
    assert_eq!(failed, RankError { rank: last, cause: "no data".to_owned() });
    // Of several, the lowest; and a text that is too long is cut where a letter ends.
    let failed = gather::<_, 1>(&ranks, Err("ä".repeat(3000))).unwrap().unwrap_err();
    assert_eq!(failed, RankError { rank: 0, cause: "ä".repeat(2048) });
}

/// A rank's call in which rank 1 is missing fails within `limit`, and so does every call after it; then all of it is
/// dropped, the arena too, and nothing hangs.
fn fails_alone(
    rank: Rank,
    ranks: Nccl,
    limit: Duration,
    call: impl FnOnce(
        &Nccl,
        &Persistent<f32, Cuda>,
        &mut Persistent<f32, Cuda>,
    ) -> Result<(), CollectiveError>,
    check: impl FnOnce(&CollectiveError),
) {
    let (from, mut into) = (rank.buffer(&[1.0; 100]), rank.buffer(&[0.0; 100]));
    let begin = Instant::now();
    let error = call(&ranks, &from, &mut into).unwrap_err();
    check(&error);
    assert_eq!(ranks.barrier().unwrap_err(), error);
    assert_eq!(ranks.wait().unwrap_err(), error);
    drop((ranks, from, into, rank));
    assert!(begin.elapsed() < limit, "{:?}", begin.elapsed());
}

fn all_reduce(
    ranks: &Nccl,
    from: &Persistent<f32, Cuda>,
    into: &mut Persistent<f32, Cuda>,
) -> Result<(), CollectiveError> {
    ranks.all_reduce_sum(from.view(), into.view_mut())?;
    ranks.wait()
}

fn is_remote(error: &CollectiveError) {
    let CollectiveError::Refused { reason, .. } = error else { panic!("{error:?}") };
    // Rank 1, or another one that has found that before.
    assert!(reason.contains("ncclRemoteError (6)") && reason.contains(" has gone"), "{reason}");
}

fn one_dies(rank: Rank) {
    let ranks = rank.join(PATIENT);
    ranks.barrier().unwrap();
    if rank.rank == 1 {
        process::exit(DEAD);
    }
    fails_alone(rank, ranks, PATIENT / 2, all_reduce, is_remote);
}

fn one_aborts(rank: Rank) {
    let ranks = rank.join(PATIENT);
    ranks.barrier().unwrap();
    if rank.rank != 1 {
        return fails_alone(rank, ranks, PATIENT / 2, all_reduce, is_remote);
    }
    ranks.abort();
    assert_eq!(rank.standin.leaks().library_handles, 0);
    ranks.abort();
    let error = ranks.barrier().unwrap_err();
    assert_eq!(error.to_string(), "abort: this rank has aborted");
    assert_eq!(ranks.broadcast(&mut [0], 0).unwrap_err(), error);
}

fn one_panics(rank: Rank) {
    let ranks = rank.join(PATIENT);
    ranks.barrier().unwrap();
    if rank.rank != 1 {
        return fails_alone(rank, ranks, PATIENT / 2, all_reduce, is_remote);
    }
    let begin = Instant::now();
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _ranks = ranks;
        panic!("on purpose");
    }));
    assert_eq!(told.unwrap_err().downcast_ref(), Some(&"on purpose"));
    assert!(begin.elapsed() < PATIENT / 2, "it waits for nobody: {:?}", begin.elapsed());
}

fn folder() -> PathBuf {
    PathBuf::from(env::var(FOLDER).unwrap())
}

/// Joins with a short timeout, when all processes have begun.
fn join_impatiently(rank: &Rank) -> Nccl {
    let folder = folder();
    fs::write(folder.join(rank.rank.to_string()), "").unwrap();
    while fs::read_dir(&folder).unwrap().count() < rank.size as usize {
        thread::sleep(Duration::from_millis(1));
    }
    rank.join(SHORT)
}

/// Does nothing until the test lets it go on, and is told then that it is too late.
fn hang(ranks: &Nccl) {
    while !folder().join(GO_ON).exists() {
        thread::sleep(Duration::from_millis(5));
    }
    is_remote(&ranks.barrier().unwrap_err());
}

fn one_hangs(
    rank: Rank,
    name: &str,
    call: impl FnOnce(
        &Nccl,
        &Persistent<f32, Cuda>,
        &mut Persistent<f32, Cuda>,
    ) -> Result<(), CollectiveError>,
) {
    let ranks = join_impatiently(&rank);
    ranks.barrier().unwrap();
    if rank.rank == 1 {
        return hang(&ranks);
    }
    let (own, all) = (rank.rank, rank.size);
    fails_alone(rank, ranks, SHORT + SLACK, call, |error| {
        let CollectiveError::TimedOut { rank, size, call, number, waited, missing_ranks } = error
        else {
            // Another rank may have found that before, and aborted.
            let CollectiveError::Refused { reason, .. } = error else { panic!("{error:?}") };
            assert!(all > 2 && reason.contains("ncclRemoteError"), "{error}");
            return;
        };
        assert_eq!((*rank, *size, *call, *number), (own, all, name, 2));
        assert!(*waited > SHORT && missing_ranks.is_empty(), "{error:?}");
    });
}

fn drops_while_one_hangs(rank: Rank) {
    let ranks = join_impatiently(&rank);
    ranks.barrier().unwrap();
    if rank.rank == 1 {
        return hang(&ranks);
    }
    let (from, mut into) = (rank.buffer(&[1.0; 100]), rank.buffer(&[0.0; 100]));
    ranks.all_reduce_sum(from.view(), into.view_mut()).unwrap();
    let begin = Instant::now();
    drop(ranks);
    // Among more, another one may have aborted before.
    let gives_time = rank.size > 2 || begin.elapsed() > SHORT;
    assert!(gives_time, "{:?}", begin.elapsed());
    drop((from, into, rank));
    assert!(begin.elapsed() < 2 * SHORT + SLACK, "{:?}", begin.elapsed());
}

fn one_never_joins(rank: Rank) {
    let begin = Instant::now();
    let joined = Nccl::join(&rank.stream(), rank.rank, rank.size, rank.id, SHORT);
    let error = joined.unwrap_err();
    assert!(begin.elapsed() < SHORT + SLACK, "{:?}", begin.elapsed());
    let CollectiveError::NotStarted { engine: "NCCL", reason } = error else { panic!("{error:?}") };
    assert!(reason.ends_with(", and not all 2 ranks came"), "{reason}");
    assert!(rank.standin.leaks().library_handles == 0, "the communicator is gone");
}

/// Each rank adds up another number of elements. That is found out, and not waited for.
fn other_lengths(rank: Rank) {
    let ranks = rank.join(PATIENT);
    let len = 10 + rank.rank as usize;
    let (from, mut into) = (rank.buffer(&vec![1.0; len]), rank.buffer(&vec![0.0; len]));
    ranks.all_reduce_sum(from.view(), into.view_mut()).unwrap();
    let error = ranks.wait().unwrap_err().to_string();
    // Whoever finds it first aborts, and the other may see only that.
    let finds = error.contains("all-reduce of 10 elements") && error.contains("of 11 elements");
    assert!(finds || error.contains("ncclRemoteError"), "{error}");
    println!("finds: {finds}");
}

fn other_sizes(rank: Rank) {
    let size = 2 + rank.rank;
    let joined = Nccl::join(&rank.stream(), rank.rank, size, rank.id, SHORT);
    let error = joined.unwrap_err().to_string();
    assert!(error.starts_with("NCCL did not start: "), "{error}");
}

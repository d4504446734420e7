//! Ranks on NCCL, on the stand-ins: each has a driver of its own, in a process of its own (`nccl_ranks.rs`).

use std::fs;
use std::path::Path;
use std::time::Duration;

use arena_collective::{Collective, CollectiveError, Nccl};
use arena_scope::cudarc::driver::CudaContext;
use arena_scope::cudarc::driver::result::ctx;
use arena_scope::{Arena, ByteSize, Cuda};
use arena_testing::time_limit;
use cuda_standin::Standin;
use rstest::rstest;
use tempfile::TempDir;

use crate::launch::Ranks;
use crate::nccl_ranks::{DEAD, GO_ON, start};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a role on every rank; what they print.
#[track_caller]
fn all_pass(role: &str, size: u32) -> Vec<String> {
    let _standin = Standin::load().unwrap();
    start(role, size, size, Path::new("")).all_pass()
}

#[rstest]
fn sums_are_those_of_a_loop_in_the_order_of_the_ranks(#[values(1, 2, 4)] size: u32) {
    all_pass("sums", size);
}

#[rstest]
fn an_all_reduce_is_captured_and_sums_anew_at_each_replay(#[values(1, 2)] size: u32) {
    all_pass("captured", size);
}

#[rstest]
fn every_rank_has_the_bytes_of_each_root(#[values(1, 2, 4)] size: u32) {
    all_pass("broadcasts", size);
}

#[rstest]
fn every_rank_is_told_what_all_found_or_who_failed_and_why(#[values(2, 4)] size: u32) {
    all_pass("gathers", size);
}

#[rstest]
fn a_rank_that_dies_is_an_error_of_the_others_long_before_the_timeout(#[values(2, 4)] size: u32) {
    let _standin = Standin::load().unwrap();
    let mut ranks = start("one_dies", size, size, Path::new(""));
    assert_eq!(ranks.wait(1).status.code(), Some(DEAD));
    all_but_1_pass(&mut ranks, size);
}

#[track_caller]
fn all_but_1_pass(ranks: &mut Ranks, size: u32) {
    (0..size).filter(|rank| *rank != 1).for_each(|rank| {
        ranks.passes(rank as usize);
    });
}

#[rstest]
fn a_rank_that_hangs_lets_the_others_wait_for_the_timeout_and_no_longer(
    #[values(
        "one_hangs_all_reduce",
        "one_hangs_broadcast",
        "one_hangs_broadcast_of_its",
        "one_hangs_barrier",
        "one_hangs_drop"
    )]
    role: &str,
    #[values(2, 4)] size: u32,
) {
    let _standin = Standin::load().unwrap();
    let folder = TempDir::new().unwrap();
    let mut ranks = start(role, size, size, folder.path());
    all_but_1_pass(&mut ranks, size);
    fs::write(folder.path().join(GO_ON), "").unwrap();
    ranks.passes(1);
}

#[rstest]
fn a_rank_may_abort_twice_and_the_others_are_told(#[values(2, 4)] size: u32) {
    all_pass("one_aborts", size);
}

#[test]
fn a_rank_that_panics_waits_for_nobody_and_the_others_are_told() {
    all_pass("one_panics", 2);
}

#[test]
fn a_rank_that_nobody_joins_gives_up_after_the_timeout() {
    let _standin = Standin::load().unwrap();
    start("one_never_joins", 1, 2, Path::new("")).all_pass();
}

#[test]
fn ranks_whose_calls_differ_are_told_so() {
    let told = all_pass("other_lengths", 2);
    assert!(told.iter().any(|told| told.contains("finds: true")), "{told:#?}");
}

#[test]
fn ranks_that_do_not_agree_on_their_number_do_not_start() {
    all_pass("other_sizes", 2);
}

#[test]
fn what_cannot_be_is_refused_and_ends_nothing() {
    let standin = Standin::load().unwrap();
    let _limit = time_limit(2 * TIMEOUT);
    let arena = |kib| Arena::builder(Cuda::new(0).unwrap()).capacity(ByteSize::kib(kib)).build();
    let (arena, other) = (arena(16).unwrap(), arena(16).unwrap());
    let stream = arena.device().stream();
    let id = Nccl::unique_id().unwrap();
    let error = Nccl::join(stream, 1, 1, id, TIMEOUT).unwrap_err();
    assert_eq!(error.to_string(), "NCCL did not start: there is no rank 1 among 1");
    let ranks = Nccl::join(stream, 0, 1, id, TIMEOUT).unwrap();
    assert_eq!((ranks.rank(), ranks.size()), (0, 1));
    let four = arena.persistent_from(&[1.0_f32; 4]).unwrap();
    let mut three = arena.persistent_from(&[0.0_f32; 3]).unwrap();
    let error = ranks.all_reduce_sum(four.view(), three.view_mut()).unwrap_err();
    assert_eq!(error, CollectiveError::Lengths { from: 4, into: 3 });
    let mut foreign = other.persistent_from(&[0.0_f32; 4]).unwrap();
    let error = ranks.all_reduce_sum(four.view(), foreign.view_mut()).unwrap_err();
    let reason = "all-reduce: a buffer is of an arena on another stream than the ranks'";
    assert_eq!(error.to_string(), reason);
    let mut sums = arena.persistent_from(&[0.0_f32; 4]).unwrap();
    ranks.all_reduce_sum(four.view(), sums.view_mut()).unwrap();
    ranks.wait().unwrap();
    assert_eq!(sums.view().to_vec().unwrap(), [1.0; 4]);
    drop((ranks, four, three, sums, foreign, arena, other));
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

#[test]
fn the_context_that_is_current_stays_current() {
    let standin = Standin::load().unwrap();
    let _limit = time_limit(2 * TIMEOUT);
    assert!(standin.set_devices(2));
    let arena = Arena::builder(Cuda::new(1).unwrap()).capacity(ByteSize::kib(16)).build().unwrap();
    let from = arena.persistent_from(&[1.0_f32; 4]).unwrap();
    let mut into = arena.persistent_from(&[0.0_f32; 4]).unwrap();
    let current = CudaContext::new(0).unwrap();
    current.bind_to_thread().unwrap();
    let is_current = || ctx::get_current().unwrap() == Some(current.cu_ctx());
    let id = Nccl::unique_id().unwrap();
    let ranks = Nccl::join(arena.device().stream(), 0, 1, id, TIMEOUT).unwrap();
    assert!(is_current(), "after joining");
    ranks.all_reduce_sum(from.view(), into.view_mut()).unwrap();
    assert!(is_current(), "after an all-reduce");
    ranks.broadcast(&mut [1], 0).unwrap();
    assert!(is_current(), "after a broadcast");
    ranks.abort();
    assert!(is_current(), "after an abort");
    drop(ranks);
    assert!(is_current(), "after the drop");
}

#[test]
fn no_failing_call_leaves_anything_behind_or_panics() {
    let standin = Standin::load().unwrap();
    let _limit = time_limit(2 * TIMEOUT);
    let calls =
        ["ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclAllReduce", "ncclBroadcast"];
    let calls = calls.into_iter().chain(["cuMemHostAlloc", "cuMemAlloc_v2", "cuStreamQuery"]);
    let calls = calls.chain(["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "ncclCommFinalize"]);
    for call in calls.chain(["ncclCommDestroy"]) {
        standin.reset(0);
        let arena = Arena::builder(Cuda::new(0).unwrap()).capacity(ByteSize::kib(16));
        let arena = arena.build().unwrap();
        let from = arena.persistent_from(&[1.0_f32; 4]).unwrap();
        let mut into = arena.persistent_from(&[0.0_f32; 4]).unwrap();
        let id = Nccl::unique_id().unwrap();
        // An internal error of NCCL, or one that the driver calls "not initialised".
        standin.fail_nth(call, 1, 3);
        let told = (|| {
            let ranks = Nccl::join(arena.device().stream(), 0, 1, id, TIMEOUT)?;
            ranks.all_reduce_sum(from.view(), into.view_mut())?;
            ranks.broadcast(&mut [1], 0)
        })();
        assert_eq!(standin.failures_to_come(), 0, "{call}");
        let is_of_the_drop = ["ncclCommFinalize", "ncclCommDestroy"].contains(&call);
        assert_eq!(told.is_ok(), is_of_the_drop, "{call}: {told:?}");
        drop((from, into, arena));
        let leaks = standin.leaks();
        assert!(leaks.is_clean(), "{call}: {leaks:?}");
    }
}

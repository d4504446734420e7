//! What the stand-in for NCCL does and refuses, called as a program calls it.

mod rank;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arena_testing::{TimeLimit, time_limit};
use cuda_standin::Standin;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, DevicePtr};
use cudarc::nccl::result::{
    comm_init_rank, get_nccl_version, get_uniqueid, group_end, group_start,
};

use rank::{Code, alone, joined, ranks, why};

/// The stand-ins, for a test that ends: a wait for a rank that never comes has no end of its own.
fn begin() -> (TimeLimit, Standin) {
    let standin = Standin::load().unwrap();
    (time_limit(Duration::from_secs(60)), standin)
}

fn context() -> Arc<CudaContext> {
    CudaContext::new(0).unwrap()
}

#[test]
fn ranks_of_one_process_add_up_in_their_order_under_every_order_of_streams() {
    let (_limit, standin) = begin();
    for seed in 0..20 {
        standin.reset(seed);
        let context = context();
        let all = joined(&context, 3);
        // The order matters: (1e8 - 1e8) + 1 is 1, and 1e8 + (-1e8 + 1) is 0.
        let from: Vec<_> =
            all.iter().zip([1e8, -1e8, 1.0]).map(|(rank, x)| rank.floats(&[x, 0.5])).collect();
        for (rank, from) in all.iter().zip(&from) {
            assert_eq!(rank.sum(from, from), Code::ncclInProgress);
        }
        for (rank, from) in all.iter().zip(&from) {
            rank.settle();
            assert_eq!(rank.stream.clone_dtoh(from).unwrap(), [1.0, 1.5]);
            assert_eq!(rank.finalize(), Code::ncclInProgress);
        }
        for rank in &all {
            rank.settle();
            assert_eq!(rank.destroy(), Code::ncclSuccess);
        }
        drop((from, all, context));
        assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
    }
}

#[test]
fn a_call_waits_for_the_rank_that_has_not_come_and_an_abort_ends_it() {
    let (_limit, _standin) = begin();
    let context = context();
    let all = joined(&context, 2);
    let from = all[0].floats(&[1.0]);
    assert_eq!(all[0].sum(&from, &from), Code::ncclInProgress);
    all[0].settle();
    assert!((0..100).all(|_| !query(&all[0])));
    // The other one still can come, and so it is no error.
    assert_eq!(all[0].progress(), Code::ncclSuccess);
    assert_eq!(all[0].destroy(), Code::ncclInvalidUsage);
    assert_eq!(all[0].abort(), Code::ncclSuccess);
    all[0].stream.synchronize().unwrap();
    assert_eq!(all[1].progress(), Code::ncclRemoteError);
    assert_eq!(why(), "rank 0 has gone");
    assert_eq!(all[1].abort(), Code::ncclSuccess);
}

fn query(rank: &rank::Rank) -> bool {
    // SAFETY: the stream is alive.
    let code = unsafe { cudarc::driver::sys::cuStreamQuery(rank.stream.cu_stream()) };
    code == CUresult::CUDA_SUCCESS
}

#[test]
fn a_rank_that_has_left_in_order_is_no_error() {
    let (_limit, _standin) = begin();
    let all = joined(&context(), 2);
    assert_eq!(all[1].destroy(), Code::ncclSuccess);
    assert_eq!(all[0].progress(), Code::ncclSuccess);
    assert_eq!(all[0].destroy(), Code::ncclSuccess);
}

#[test]
fn ranks_that_make_different_calls_are_told() {
    let (_limit, _standin) = begin();
    let all = joined(&context(), 2);
    let buffers = [all[0].floats(&[1.0; 4]), all[1].floats(&[1.0; 4])];
    assert_eq!(all[0].sum(&buffers[0], &buffers[0]), Code::ncclInProgress);
    assert_eq!(all[1].broadcast(&buffers[1], 0), Code::ncclInProgress);
    let found = (0..1000).any(|_| {
        all.iter().for_each(|rank| {
            query(rank);
        });
        all[0].progress() == Code::ncclInvalidUsage
    });
    assert!(found);
    let told =
        "rank 0 makes an all-reduce of 4 elements, and rank 1 a broadcast of 16 bytes from rank 0";
    assert_eq!(why(), told);
    all.iter().for_each(|rank| assert_eq!(rank.abort(), Code::ncclSuccess));
}

#[test]
fn a_communicator_that_has_not_settled_or_is_gone_is_refused() {
    let (_limit, _standin) = begin();
    let context = context();
    let waits = ranks(&context, 2);
    let from = waits[0].floats(&[1.0]);
    assert_eq!(waits[0].sum(&from, &from), Code::ncclInvalidArgument);
    assert_eq!(why(), "the communicator is used before its previous call has succeeded");
    waits.iter().for_each(|rank| assert_eq!(rank.abort(), Code::ncclSuccess));
    assert_eq!(waits[0].sum(&from, &from), Code::ncclInvalidArgument);
    assert_eq!(why(), "there is no such communicator");
    assert_eq!([waits[0].abort(), waits[0].destroy()], [Code::ncclInvalidArgument; 2]);
    assert_eq!(waits[0].progress(), Code::ncclInvalidArgument);
    let ended = alone(&context);
    assert_eq!(ended.finalize(), Code::ncclInProgress);
    ended.settle();
    assert_eq!(ended.sum(&from, &from), Code::ncclInvalidUsage);
    assert_eq!(why(), "the communicator was finalized");
    assert_eq!(ended.destroy(), Code::ncclSuccess);
}

#[test]
fn memory_that_the_driver_does_not_know_is_refused_and_a_range_past_its_end_breaks_the_context() {
    let (_limit, standin) = begin();
    let rank = alone(&context());
    let from = rank.floats(&[1.0; 4]);
    let at = from.device_ptr(&rank.stream).0;
    assert_eq!(rank.sum_at(64, at, 4), Code::ncclInvalidArgument);
    assert_eq!(why(), "ncclAllReduce: the driver does not know the memory at 0x40");
    assert_eq!(rank.sum_at(at, at + 4, 2), Code::ncclInvalidUsage);
    assert_eq!(why(), "the two operands overlap");
    assert_eq!(rank.broadcast(&from, 1), Code::ncclInvalidArgument);
    assert_eq!(why(), "there is no rank 1");
    assert_eq!(rank.sum_at(at, at, 5), Code::ncclInProgress);
    let error = rank.stream.synchronize().unwrap_err();
    assert_eq!(error.0, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert!(standin.last_fault().starts_with("ncclAllReduce touches 20 bytes at"));
    assert_eq!(rank.abort(), Code::ncclSuccess);
}

#[test]
fn registered_memory_is_known_and_is_freed_after_it_was_deregistered() {
    let (_limit, _standin) = begin();
    let rank = alone(&context());
    let buffer = rank.floats(&[1.0; 4]);
    let at = buffer.device_ptr(&rank.stream).0;
    assert_eq!(rank.register(at, 17), Err(Code::ncclInvalidArgument));
    assert_eq!(rank.register(at, 0), Err(Code::ncclInvalidArgument));
    let [first, second] = [16, 8].map(|bytes| rank.register(at, bytes).unwrap());
    assert_eq!(rank.deregister(first), Code::ncclSuccess);
    assert_eq!(rank.deregister(first), Code::ncclInvalidArgument);
    drop(buffer);
    rank.stream.synchronize().unwrap();
    assert_eq!(rank.deregister(second), Code::ncclInvalidUsage);
    assert_eq!(why(), "registered memory was freed before it was deregistered");
    assert_eq!(rank.destroy(), Code::ncclSuccess);
}

#[test]
fn a_captured_call_runs_at_each_launch_and_keeps_the_communicator() {
    let (_limit, _standin) = begin();
    let all = joined(&context(), 2);
    let buffers = [all[0].floats(&[1.0]), all[1].floats(&[2.0])];
    let graphs: Vec<_> = all
        .iter()
        .zip(&buffers)
        .map(|(rank, buffer)| {
            let stream = &rank.stream;
            // Cudarc orders an address behind its last use, which may not be captured.
            let at = buffer.device_ptr(stream).0;
            stream.synchronize().unwrap();
            let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            stream.begin_capture(mode).unwrap();
            assert_eq!(rank.sum_at(at, at, 1), Code::ncclInProgress);
            let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
            stream.end_capture(flags).unwrap().unwrap()
        })
        .collect();
    for sum in [3.0, 6.0, 12.0] {
        graphs.iter().for_each(|graph| graph.launch().unwrap());
        for (rank, buffer) in all.iter().zip(&buffers) {
            assert_eq!(rank.stream.clone_dtoh(buffer).unwrap(), [sum]);
        }
    }
    assert_eq!(all[0].destroy(), Code::ncclInvalidUsage);
    drop(graphs);
    all.iter().for_each(|rank| assert_eq!(rank.destroy(), Code::ncclSuccess));
}

#[test]
fn a_communicator_whose_calls_wait_joins_as_soon_as_all_have_come() {
    let (_limit, _standin) = begin();
    let context = context();
    let id = get_uniqueid().unwrap();
    thread::scope(|scope| {
        for rank in 0..2 {
            let context = &context;
            scope.spawn(move || {
                context.bind_to_thread().unwrap();
                let mut comm = std::ptr::null_mut();
                // SAFETY: the handle goes into a live variable.
                unsafe { comm_init_rank(&raw mut comm, 2, id, rank) }.unwrap();
                let rank = rank::Rank { comm, stream: context.new_stream().unwrap() };
                assert_eq!(rank.progress(), Code::ncclSuccess);
                assert_eq!(rank.destroy(), Code::ncclSuccess);
            });
        }
    });
}

#[test]
fn it_tells_its_version_and_groups_end_as_often_as_they_begin() {
    let (_limit, _standin) = begin();
    assert_eq!(get_nccl_version().unwrap(), 22_605);
    group_start().unwrap();
    group_end().unwrap();
    assert_eq!(group_end().err().unwrap().0, Code::ncclInvalidUsage);
}

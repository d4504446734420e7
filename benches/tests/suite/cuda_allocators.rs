//! On the stand-in: what each allocator asks of the driver for one training step.

use arena_benches::cuda::{
    DeviceAllocator, DriverAsync, DriverSync, Graph, Request, Requests, Watermark, measure,
};
use arena_scope::Cuda;
use arena_train::backend::CudaBackend;
use cuda_standin::Standin;

/// The kernels are not run here, only asked what workspaces they need.
const PTX: &str = include_str!("../../../crates/arena-train/tests/ptx/kernels.ptx");

/// Driver calls for memory.
const NAMES: [&str; 4] = ["cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemFreeAsync"];

const STEPS: u64 = 3;

fn requests(device: &Cuda) -> Requests {
    Requests::record(device, &CudaBackend::from_ptx(device, PTX).unwrap(), 4).unwrap()
}

/// That three steps, after a first one, make so many calls for memory.
fn calls_are(
    expected: [u64; 4],
    standin: &Standin,
    allocator: Box<dyn DeviceAllocator>,
    requests: &Requests,
) {
    let mut allocators = [allocator];
    measure(&mut allocators, requests, 1, 1).unwrap();
    standin.clear_calls();
    // A round is run twice, with and without a clock, after as many steps to warm up.
    measure(&mut allocators, requests, 1, 1).unwrap();
    if !standin.is_real_driver() {
        assert_eq!(NAMES.map(|name| standin.calls(name)), expected);
    }
}

#[test]
fn a_step_is_the_network_s() {
    let _standin = Standin::load().unwrap();
    let requests = requests(&Cuda::new(0).unwrap());
    let drops = requests.list.iter().filter(|r| matches!(r, Request::Drop { .. })).count();
    assert_eq!(requests.list.len(), requests.buffers + drops);
    assert!(requests.buffers >= 15, "{requests:?}");
    assert_eq!(drops, requests.buffers, "the network drops each buffer before its step ends");
    let pixels = Request::Alloc { slot: 0, size_bytes: 4 * 28 * 28 * 4 };
    assert_eq!(requests.list[0], pixels);
}

#[test]
fn the_arena_and_its_graph_call_the_driver_for_no_memory() {
    let standin = Standin::load().unwrap();
    let requests = requests(&Cuda::new(0).unwrap());
    let watermark = Watermark::new(Cuda::new(0).unwrap(), &requests).unwrap();
    calls_are([0; 4], &standin, Box::new(watermark), &requests);
    if !standin.is_real_driver() {
        let fills = requests.buffers as u64 * STEPS;
        assert_eq!(standin.calls("cuMemsetD8Async"), fills, "each buffer is used");
    }
    let graph = Graph::new(Cuda::new(0).unwrap(), &requests).unwrap();
    calls_are([0; 4], &standin, Box::new(graph), &requests);
    if !standin.is_real_driver() {
        assert_eq!((standin.calls("cuGraphLaunch"), standin.calls("cuMemsetD8Async")), (STEPS, 0));
        assert_eq!(standin.calls("cuStreamSynchronize"), STEPS + 1, "once a step, and at the end");
    }
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

#[test]
fn the_driver_s_allocators_are_called_for_each_buffer() {
    let standin = Standin::load().unwrap();
    {
        let device = Cuda::new(0).unwrap();
        let requests = requests(&device);
        let n = requests.buffers as u64 * STEPS;
        let pooled = DriverAsync::new(&device).unwrap();
        calls_are([0, 0, n, n], &standin, Box::new(pooled), &requests);
        let plain = DriverSync::new(&device).unwrap();
        calls_are([n, n, 0, 0], &standin, Box::new(plain), &requests);
    }
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

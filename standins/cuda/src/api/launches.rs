//! Kernel launches and occupancy.

use crate::abi::{Code, CuResult, Handle, In, LaunchConfig, Out};
use crate::device::limits;
use crate::driver::{Class, Driver, call};
use crate::ptx::Grid;
use crate::work::Work;
use std::ffi::{c_int, c_void};

/// Pointers to the arguments, in the order of the parameters.
type Arguments = In<In<u8>>;

fn launch(
    d: &mut Driver,
    function: Handle,
    grid: Grid,
    stream: Handle,
    arguments: Arguments,
    extra: *const c_void,
) -> CuResult<()> {
    if !extra.is_null() {
        return Err(Code::NOT_SUPPORTED);
    }
    let key = d.own_stream_key(stream)?;
    if d.functions.get(function)?.context != d.streams.get(key)?.context {
        return Err(Code::INVALID_HANDLE);
    }
    let fetch = |index: usize, bytes: u64| {
        if arguments.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        arguments.at(index).get()?.list(bytes as usize)
    };
    let launch = d.prepare_launch(function, grid, &fetch)?;
    d.enqueue(key, Work::Kernel(launch), &[]).map(|_| ())
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: Handle,
    arguments: Arguments,
    extra: *const c_void,
) -> u32 {
    call("cuLaunchKernel", Class::Context, |d| {
        let grid = Grid {
            blocks: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            dynamic_shared: u64::from(shared_bytes),
        };
        launch(d, function, grid, stream, arguments, extra)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernelEx(
    config: In<LaunchConfig>,
    function: Handle,
    arguments: Arguments,
    extra: *const c_void,
) -> u32 {
    call("cuLaunchKernelEx", Class::Context, |d| {
        let config = config.get()?;
        let grid = Grid {
            blocks: config.grid,
            block: config.block,
            dynamic_shared: u64::from(config.shared_bytes),
        };
        launch(d, function, grid, config.stream, arguments, extra)
    })
}

/// Blocks run one after another, so a grid-wide barrier cannot work.
#[unsafe(no_mangle)]
extern "C" fn cuLaunchCooperativeKernel() -> u32 {
    call("cuLaunchCooperativeKernel", Class::Context, |_| Err(Code::NOT_SUPPORTED))
}

fn occupancy(
    d: &mut Driver,
    function: Handle,
    threads: c_int,
    dynamic_shared: usize,
) -> CuResult<c_int> {
    let threads = u32::try_from(threads).map_err(|_| Code::INVALID_VALUE)?;
    d.functions.get(function)?.blocks_per_multiprocessor(threads, dynamic_shared as u64)
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: Out<c_int>,
    function: Handle,
    threads: c_int,
    dynamic_shared: usize,
) -> u32 {
    call("cuOccupancyMaxActiveBlocksPerMultiprocessor", Class::Context, |d| {
        blocks.set(occupancy(d, function, threads, dynamic_shared)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: Out<c_int>,
    function: Handle,
    threads: c_int,
    dynamic_shared: usize,
    _flags: u32,
) -> u32 {
    call("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", Class::Context, |d| {
        blocks.set(occupancy(d, function, threads, dynamic_shared)?)
    })
}

/// How much dynamic shared memory a block of a size needs.
type SharedBySize = Option<extern "C" fn(c_int) -> usize>;

fn best_block(
    d: &mut Driver,
    function: Handle,
    shared: SharedBySize,
    fixed: usize,
    limit: c_int,
) -> CuResult<[c_int; 2]> {
    let most = d.functions.get(function)?.max_threads() as c_int;
    let most = if limit > 0 { most.min(limit) } else { most };
    let mut best = (0, 0, 0);
    for threads in (1..=most).rev().filter(|threads| threads % 32 == 0 || *threads == most) {
        let bytes = shared.map_or(fixed, |shared| shared(threads));
        let blocks = occupancy(d, function, threads, bytes)?;
        best = best.max((blocks * threads, threads, blocks));
    }
    Ok([best.2 * limits::MULTIPROCESSORS, best.1])
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxPotentialBlockSize(
    grid: Out<c_int>,
    threads: Out<c_int>,
    function: Handle,
    shared: SharedBySize,
    fixed: usize,
    limit: c_int,
) -> u32 {
    call("cuOccupancyMaxPotentialBlockSize", Class::Context, |d| {
        let [blocks, size] = best_block(d, function, shared, fixed, limit)?;
        grid.set(blocks)?;
        threads.set(size)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: Out<c_int>,
    threads: Out<c_int>,
    function: Handle,
    shared: SharedBySize,
    fixed: usize,
    limit: c_int,
    _flags: u32,
) -> u32 {
    call("cuOccupancyMaxPotentialBlockSizeWithFlags", Class::Context, |d| {
        let [blocks, size] = best_block(d, function, shared, fixed, limit)?;
        grid.set(blocks)?;
        threads.set(size)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: Out<usize>,
    function: Handle,
    blocks: c_int,
    _threads: c_int,
) -> u32 {
    call("cuOccupancyAvailableDynamicSMemPerBlock", Class::Context, |d| {
        let blocks =
            u64::try_from(blocks).ok().filter(|blocks| *blocks > 0).ok_or(Code::INVALID_VALUE)?;
        let each = limits::OPT_IN_SHARED_BYTES / blocks;
        bytes.set(each.saturating_sub(d.functions.get(function)?.kernel().shared_bytes) as usize)
    })
}

//! The blocks of a launch, and the meeting points of a block's threads.

use super::machine::{Machine, SpecialValues, State, Stop, Thread};
use super::memory::Global;
use super::order::Order;
use super::rounding::Rounding;
use super::{FaultKind, Grid, Kernel, KernelFault, LaneMask, Program, Special, warp};

/// Instructions that one block may run, so that a kernel that never ends is an error and no hang.
const BUDGET: u64 = 500_000_000;

/// A launch on a device: what its threads are given.
#[derive(Debug)]
pub(crate) struct Conditions {
    /// The device addresses that the kernel may touch, sorted and apart: start and end.
    pub(crate) ranges: Vec<(u64, u64)>,
    pub(crate) order: Order,
    pub(crate) rounding: Rounding,
    /// What the clock registers begin with.
    pub(crate) clock: u64,
}

/// Runs a kernel. Gives what its clock registers ended with.
pub(crate) fn execute(
    program: &Program,
    kernel: usize,
    grid: &Grid,
    arguments: &[u8],
    conditions: Conditions,
) -> Result<u64, KernelFault> {
    let kernel = program.kernel(kernel);
    let Conditions { ranges, mut order, rounding, mut clock } = conditions;
    let mut global = Global::new(ranges);
    let [width, height, depth] = grid.blocks.map(u64::from);
    let mut to_come = order.walk(width * height * depth).map(|number| {
        [number % width, number / width % height, number / (width * height)].map(|n| n as u32)
    });
    let mut running: Vec<Block<'_>> = Vec::new();
    loop {
        while running.len() < order.side_by_side()
            && let Some(block) = to_come.next()
        {
            running.push(Block::new(Position { kernel, grid, block }, arguments));
        }
        if running.is_empty() {
            return Ok(clock);
        }
        let at = order.pick(running.len());
        let block = &mut running[at];
        let mut machine = Machine {
            kernel,
            global: &mut global,
            shared: &mut block.shared,
            budget: &mut block.budget,
            clock: &mut clock,
            specials: &block.position,
            rounding,
        };
        if run_round(&mut machine, &block.position, &mut block.threads, &mut order)? {
            running.swap_remove(at);
        }
    }
}

/// A block that has begun.
#[derive(Debug)]
struct Block<'k> {
    position: Position<'k>,
    threads: Vec<Thread>,
    shared: Vec<u8>,
    /// Instructions that it may still run.
    budget: u64,
}

impl<'k> Block<'k> {
    fn new(position: Position<'k>, arguments: &[u8]) -> Self {
        let Position { kernel, grid, .. } = position;
        let [width, height, _] = grid.block;
        // Threads that cannot tell who they are do all the same, as threads in step would: one stands for all.
        let count = if kernel.threads_are_alike { 1 } else { position.threads() };
        let mut threads: Vec<Thread> = (0..count)
            .map(|number| {
                let index = [number % width, number / width % height, number / (width * height)];
                Thread::new(index, number)
            })
            .collect();
        for thread in &mut threads {
            let mut parameters = vec![0; kernel.functions[0].parameter_bytes];
            parameters[..arguments.len()].copy_from_slice(arguments);
            thread.enter(kernel, &position, 0, parameters);
        }
        let shared_bytes = kernel.shared_bytes.next_multiple_of(16) + grid.dynamic_shared;
        Self { position, threads, shared: vec![0xCB; shared_bytes as usize], budget: BUDGET }
    }
}

/// Where a block stands in its grid.
#[derive(Clone, Copy, Debug)]
struct Position<'k> {
    kernel: &'k Kernel,
    grid: &'k Grid,
    block: [u32; 3],
}

impl Position<'_> {
    fn threads(&self) -> u32 {
        self.grid.block.iter().product()
    }

    fn fault(&self, thread: &Thread, stop: &Stop) -> KernelFault {
        let text = format!(
            "thread {:?} of block {:?} {} PTX line {}",
            thread.index, self.block, stop.what, stop.line
        );
        KernelFault { kind: stop.kind, text }
    }
}

impl SpecialValues for Position<'_> {
    fn fill(&self, function: usize, registers: &mut [u64], thread: &Thread) {
        for (register, special) in &self.kernel.functions[function].specials {
            let value = match *special {
                Special::Thread(axis) => thread.index[usize::from(axis)],
                Special::BlockSize(axis) => self.grid.block[usize::from(axis)],
                Special::Block(axis) => self.block[usize::from(axis)],
                Special::GridSize(axis) => self.grid.blocks[usize::from(axis)],
                Special::Lane => thread.lane,
                Special::Warp => thread.warp,
                Special::Warps => self.threads().div_ceil(32),
                Special::LaneMask(mask) => lane_mask(mask, thread.lane),
                Special::DynamicShared => self.kernel.shared_bytes.next_multiple_of(16) as u32,
                Special::DynamicSharedBytes => self.grid.dynamic_shared as u32,
                Special::Zero => 0,
            };
            registers[*register as usize] = u64::from(value);
        }
    }
}

fn lane_mask(mask: LaneMask, lane: u32) -> u32 {
    let own = 1u32 << lane;
    match mask {
        LaneMask::Equal => own,
        LaneMask::Below => own - 1,
        LaneMask::UpTo => own | (own - 1),
        LaneMask::Above => !(own | (own - 1)),
        LaneMask::From => !(own - 1),
    }
}

/// Gives every warp a turn. True when all threads have ended.
fn run_round(
    machine: &mut Machine<'_>,
    position: &Position<'_>,
    threads: &mut [Thread],
    order: &mut Order,
) -> Result<bool, KernelFault> {
    let mut moved = false;
    let mut warps: Vec<&mut [Thread]> = threads.chunks_mut(32).collect();
    order.shuffle(&mut warps);
    for warp in warps {
        moved |= run_warp(machine, position, warp, order)?;
    }
    moved |= release_barriers(threads);
    if threads.iter().all(|thread| thread.state == State::Done) {
        return Ok(true);
    }
    if moved { Ok(false) } else { Err(deadlock(machine, position, threads)) }
}

/// Runs the threads of a warp until each has ended or waits at a barrier, or has had its turns. False when none could.
fn run_warp(
    machine: &mut Machine<'_>,
    position: &Position<'_>,
    warp: &mut [Thread],
    order: &mut Order,
) -> Result<bool, KernelFault> {
    let mut moved = false;
    let mut lanes: [usize; 32] = std::array::from_fn(|lane| lane);
    let lanes = &mut lanes[..warp.len()];
    for _ in 0..order.turns_of_a_warp() {
        let mut ran = false;
        order.shuffle(lanes);
        let turn = order.turn();
        for lane in &*lanes {
            let thread = &mut warp[*lane];
            if thread.state == State::Ready {
                machine.run(thread, turn).map_err(|stop| position.fault(thread, &stop))?;
                ran = true;
            }
        }
        ran |= warp::resolve(machine, warp);
        moved |= ran;
        if !ran {
            break;
        }
    }
    Ok(moved)
}

/// Lets threads go on when all that a barrier waits for have come. Threads that have ended count as come.
fn release_barriers(threads: &mut [Thread]) -> bool {
    let (mut ended, mut numbers) = (0, 0u16);
    for thread in &*threads {
        match thread.state {
            State::Done => ended += 1,
            State::AtBarrier { number, .. } => numbers |= 1 << (number & 15),
            State::Ready | State::AtWarp => {}
        }
    }
    let mut moved = false;
    for number in (0..16).filter(|number| numbers >> number & 1 == 1) {
        let waits = |thread: &&Thread| matches!(thread.state, State::AtBarrier { number: n, .. } if n == number);
        let waiting = threads.iter().filter(waits).count();
        let Some(State::AtBarrier { threads: wanted, .. }) =
            threads.iter().find(waits).map(|thread| thread.state)
        else {
            continue;
        };
        let complete =
            if wanted == 0 { waiting + ended >= threads.len() } else { waiting >= wanted as usize };
        if !complete {
            continue;
        }
        moved = true;
        for thread in threads.iter_mut() {
            if matches!(thread.state, State::AtBarrier { number: n, .. } if n == number) {
                thread.state = State::Ready;
                if let Some(frame) = thread.frames.last_mut() {
                    frame.pc += 1;
                }
            }
        }
    }
    moved
}

fn deadlock(machine: &Machine<'_>, position: &Position<'_>, threads: &[Thread]) -> KernelFault {
    let waiting = threads.iter().filter(|thread| thread.state != State::Done);
    let mut lines: Vec<u32> = waiting.clone().map(|thread| machine.line(thread)).collect();
    let count = lines.len();
    lines.sort_unstable();
    lines.dedup();
    let text = format!(
        "{count} threads of block {:?} wait for each other at PTX lines {lines:?}",
        position.block
    );
    KernelFault { kind: FaultKind::Stuck, text }
}

//! Blocks, one after another, and the meeting points of a block's threads.

use super::machine::{Machine, SpecialValues, State, Stop, Thread};
use super::memory::Global;
use super::{FaultKind, Grid, Kernel, KernelFault, LaneMask, Program, Special, warp};

/// Instructions that one block may run, so that a kernel that never ends is an error and no hang.
const BUDGET: u64 = 500_000_000;

/// Runs a kernel. `ranges` are the device addresses that it may touch, sorted and apart.
pub(crate) fn execute(
    program: &Program,
    kernel: usize,
    grid: &Grid,
    arguments: &[u8],
    ranges: Vec<(u64, u64)>,
) -> Result<(), KernelFault> {
    let kernel = program.kernel(kernel);
    let shared_bytes = kernel.shared_bytes.next_multiple_of(16) + grid.dynamic_shared;
    let mut global = Global::new(ranges);
    for z in 0..grid.blocks[2] {
        for y in 0..grid.blocks[1] {
            for x in 0..grid.blocks[0] {
                let position = Position { kernel, grid, block: [x, y, z] };
                let shared = vec![0xCB; shared_bytes as usize];
                let mut machine =
                    Machine { kernel, global, shared, budget: BUDGET, specials: &position };
                run_block(&mut machine, &position, arguments)?;
                global = machine.global;
            }
        }
    }
    Ok(())
}

/// Where a block stands in its grid.
#[derive(Debug)]
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

fn run_block(
    machine: &mut Machine<'_>,
    position: &Position<'_>,
    arguments: &[u8],
) -> Result<(), KernelFault> {
    let [width, height, _] = position.grid.block;
    let mut threads: Vec<Thread> = (0..position.threads())
        .map(|number| {
            Thread::new(
                [number % width, number / width % height, number / (width * height)],
                number,
            )
        })
        .collect();
    for thread in &mut threads {
        let mut parameters = vec![0; machine.kernel.functions[0].parameter_bytes];
        parameters[..arguments.len()].copy_from_slice(arguments);
        machine.enter(thread, 0, parameters);
    }
    loop {
        let mut moved = false;
        for warp in threads.chunks_mut(32) {
            moved |= run_warp(machine, position, warp)?;
        }
        moved |= release_barriers(&mut threads);
        if threads.iter().all(|thread| thread.state == State::Done) {
            return Ok(());
        }
        if !moved {
            return Err(deadlock(machine, position, &threads));
        }
    }
}

/// Runs the threads of a warp until each has ended or waits at a barrier, or has had its turn. False when none could.
fn run_warp(
    machine: &mut Machine<'_>,
    position: &Position<'_>,
    warp: &mut [Thread],
) -> Result<bool, KernelFault> {
    let mut moved = false;
    for _ in 0..64 {
        let mut ran = false;
        for thread in warp.iter_mut().filter(|thread| thread.state == State::Ready) {
            machine.run(thread).map_err(|stop| position.fault(thread, &stop))?;
            ran = true;
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
    let ended = threads.iter().filter(|thread| thread.state == State::Done).count();
    let mut moved = false;
    for number in 0..16 {
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

//! What the lanes of a warp do together, once those that take part have arrived.

use super::instruction::{NONE, Op, Reduction, WarpCall, WarpOp};
use super::machine::{Machine, State, Thread};
use super::types::Type;

/// A lane that waits at a warp instruction.
struct Arrival {
    /// Its place among the threads of the block.
    thread: usize,
    lane: u32,
    /// Which instruction it waits at.
    at: (usize, usize),
    mask: u32,
}

/// Lets the lanes of one warp go on whose partners have all arrived. Threads that have ended count as arrived. False
/// when nobody could go on.
pub(super) fn resolve(machine: &Machine<'_>, threads: &mut [Thread]) -> bool {
    if !threads.iter().any(|thread| thread.state == State::AtWarp) {
        return false;
    }
    let alive: u32 = lanes(threads, |thread| thread.state != State::Done);
    let arrivals: Vec<Arrival> = (threads.iter().enumerate())
        .filter(|(_, thread)| thread.state == State::AtWarp)
        .filter_map(|(index, thread)| arrival(machine, index, thread))
        .collect();
    let mut moved = false;
    let mut done = vec![false; arrivals.len()];
    for first in 0..arrivals.len() {
        if done[first] {
            continue;
        }
        let Arrival { at, mask, .. } = arrivals[first];
        let group: Vec<usize> = (first..arrivals.len())
            .filter(|i| arrivals[*i].at == at && arrivals[*i].mask == mask)
            .collect();
        let present = group.iter().fold(0, |lanes, i| lanes | 1 << arrivals[*i].lane);
        if mask & alive & !present != 0 {
            continue;
        }
        group.iter().for_each(|i| done[*i] = true);
        let members: Vec<(u32, usize)> =
            group.iter().map(|i| (arrivals[*i].lane, arrivals[*i].thread)).collect();
        perform(machine, threads, at, &members);
        moved = true;
    }
    moved
}

fn lanes(threads: &[Thread], which: impl Fn(&Thread) -> bool) -> u32 {
    threads.iter().filter(|thread| which(thread)).fold(0, |lanes, thread| lanes | 1 << thread.lane)
}

fn call<'m>(machine: &'m Machine<'_>, at: (usize, usize)) -> Option<&'m WarpCall> {
    match &machine.kernel.functions[at.0].instructions[at.1].op {
        Op::Warp(call) => Some(call),
        _ => None,
    }
}

fn arrival(machine: &Machine<'_>, index: usize, thread: &Thread) -> Option<Arrival> {
    let frame = thread.frames.last()?;
    let at = (frame.function, frame.pc);
    let call = call(machine, at)?;
    // Whoever is here belongs together when the program names no lanes.
    let mask = if call.mask == NONE { 0 } else { frame.registers[call.mask as usize] as u32 };
    Some(Arrival { thread: index, lane: thread.lane, at, mask })
}

/// Carries out an instruction for the lanes that have met at it: `(lane, thread)`.
fn perform(
    machine: &Machine<'_>,
    threads: &mut [Thread],
    at: (usize, usize),
    members: &[(u32, usize)],
) {
    let Some(call) = call(machine, at) else { return };
    let register = |threads: &[Thread], thread: usize, register: u32| {
        threads[thread]
            .frames
            .last()
            .filter(|_| register != NONE)
            .map_or(0, |f| f.registers[register as usize])
    };
    let mut values = [None; 32];
    for (lane, thread) in members {
        values[*lane as usize] = Some(register(threads, *thread, call.value));
    }
    for (lane, thread) in members {
        let operands = Operands {
            lane: register(threads, *thread, call.lane) as u32,
            clamp: register(threads, *thread, call.clamp) as u32,
        };
        let (result, valid) = outcome(call, &values, *lane, operands);
        let thread = &mut threads[*thread];
        if let Some(frame) = thread.frames.last_mut() {
            if call.to != NONE {
                frame.registers[call.to as usize] = result;
            }
            if call.valid != NONE {
                frame.registers[call.valid as usize] = u64::from(valid);
            }
            frame.pc += 1;
        }
        thread.state = State::Ready;
    }
}

/// A lane's own operands of a shuffle.
#[derive(Clone, Copy)]
struct Operands {
    lane: u32,
    clamp: u32,
}

/// Result and predicate for one lane, from the values of all lanes that take part.
fn outcome(
    call: &WarpCall,
    values: &[Option<u64>; 32],
    lane: u32,
    operands: Operands,
) -> (u64, bool) {
    let present =
        || values.iter().enumerate().filter_map(|(lane, value)| value.map(|value| (lane, value)));
    let holds = |value: u64| (value & 1 == 1) != call.negated;
    let own = values[lane as usize].unwrap_or(0);
    let lanes_where = |which: &dyn Fn(u64) -> bool| {
        present()
            .filter(|(_, value)| which(*value))
            .fold(0u64, |lanes, (lane, _)| lanes | 1 << lane)
    };
    let mask = u64::MAX >> (64 - 8 * u32::from(call.bytes.max(1)));
    match call.op {
        WarpOp::ShuffleUp | WarpOp::ShuffleDown | WarpOp::ShuffleXor | WarpOp::ShuffleIndex => {
            let (source, valid) = shuffle_source(call.op, lane, operands);
            // A lane that takes no part has no value to give; the device leaves it undefined.
            (if valid { values[source as usize].unwrap_or(own) } else { own }, valid)
        }
        WarpOp::VoteAll => (u64::from(present().all(|(_, value)| holds(value))), true),
        WarpOp::VoteAny => (u64::from(present().any(|(_, value)| holds(value))), true),
        WarpOp::VoteUniform => {
            (u64::from(present().all(|(_, value)| holds(value) == holds(own))), true)
        }
        WarpOp::Ballot => (lanes_where(&holds), true),
        WarpOp::ActiveMask => (lanes_where(&|_| true), true),
        WarpOp::MatchAny => (lanes_where(&|value| value & mask == own & mask), true),
        WarpOp::MatchAll => {
            let all = present().all(|(_, value)| value & mask == own & mask);
            (if all { lanes_where(&|_| true) } else { 0 }, all)
        }
        WarpOp::Synchronise => (0, true),
        WarpOp::Reduce(reduction, kind) => {
            (reduce(reduction, kind, present().map(|(_, value)| value)), true)
        }
    }
}

/// Which lane a shuffle reads, and whether that lane is in range: the formula of the PTX manual.
fn shuffle_source(op: WarpOp, lane: u32, operands: Operands) -> (u32, bool) {
    let (by, clamp) = (operands.lane & 31, operands.clamp & 31);
    let segment = operands.clamp >> 8 & 31;
    let highest = lane & segment | clamp & !segment;
    let lowest = lane & segment;
    match op {
        WarpOp::ShuffleUp => (lane.wrapping_sub(by), lane as i32 - by as i32 >= highest as i32),
        WarpOp::ShuffleDown => (lane + by, lane + by <= highest),
        WarpOp::ShuffleXor => (lane ^ by, (lane ^ by) <= highest),
        _ => {
            let source = lowest | by & !segment;
            (source, source <= highest)
        }
    }
}

fn reduce(reduction: Reduction, kind: Type, values: impl Iterator<Item = u64>) -> u64 {
    let joined = values.map(|value| value as u32).reduce(|a, b| match reduction {
        Reduction::Add => a.wrapping_add(b),
        Reduction::And => a & b,
        Reduction::Or => a | b,
        Reduction::Xor => a ^ b,
        Reduction::Min if kind.is_signed() => (a as i32).min(b as i32) as u32,
        Reduction::Max if kind.is_signed() => (a as i32).max(b as i32) as u32,
        Reduction::Min => a.min(b),
        Reduction::Max => a.max(b),
    });
    u64::from(joined.unwrap_or(0))
}

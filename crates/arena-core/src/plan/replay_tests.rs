//! A million random steps that deviate from random plans in every way, against a set of intervals.

use std::collections::BTreeMap;
use std::panic::Location;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use std::cell::Cell;

use super::replay::Replay;
use super::{Deviations, PlannedSlot, SlotTable};
use crate::bytes::Alignment;
use crate::signature::{Running, StepSignature};

const STEPS: u64 = 1_000_000;
const STEPS_PER_PLAN: u64 = 40;

/// What a planned step does, in order.
#[derive(Debug, Clone, Copy)]
enum Op {
    Alloc { buffer: usize },
    Drop { buffer: usize },
    Open,
    Close,
}

/// A step and a plan for it.
#[derive(Debug)]
struct Program {
    ops: Vec<Op>,
    slots: Vec<PlannedSlot>,
}

impl Program {
    /// 20 to 40 buffers in nested scopes, dropped in any order, each at the lowest offset that is free
    /// for its whole life.
    fn random(rng: &mut ChaCha8Rng) -> Self {
        let buffers = rng.random_range(20..=40);
        let (mut ops, mut slots) = (Vec::new(), Vec::new());
        let mut live: Vec<(usize, u32)> = Vec::new();
        let mut depth = 0;
        while slots.len() < buffers {
            match rng.random_range(0..10) {
                0 if depth < 3 => {
                    depth += 1;
                    ops.push(Op::Open);
                }
                1 if depth > 0 => {
                    // A scope's buffers are dropped before it closes.
                    live.retain(|&(buffer, born)| {
                        let stays = born < depth;
                        if !stays {
                            ops.push(Op::Drop { buffer });
                        }
                        stays
                    });
                    depth -= 1;
                    ops.push(Op::Close);
                }
                2..5 if !live.is_empty() => {
                    let (buffer, _) = live.swap_remove(rng.random_range(0..live.len()));
                    ops.push(Op::Drop { buffer });
                }
                _ => {
                    let bytes = rng.random_range(1..=64);
                    let alignment = 1 << rng.random_range(0..4);
                    let offset_bytes = lowest_free(&slots, &live, bytes, alignment);
                    let alignment = Alignment::new(alignment).unwrap();
                    let buffer = slots.len();
                    slots.push(PlannedSlot { offset_bytes, bytes, alignment });
                    live.push((buffer, depth));
                    ops.push(Op::Alloc { buffer });
                }
            }
        }
        ops.extend(live.iter().map(|&(buffer, _)| Op::Drop { buffer }));
        ops.extend((0..depth).map(|_| Op::Close));
        Self { ops, slots }
    }
}

fn lowest_free(slots: &[PlannedSlot], live: &[(usize, u32)], bytes: u64, alignment: u64) -> u64 {
    let mut taken: Vec<(u64, u64)> = live
        .iter()
        .map(|&(buffer, _)| {
            let slot = &slots[buffer];
            (slot.offset_bytes, slot.offset_bytes + slot.bytes)
        })
        .collect();
    taken.sort_unstable();
    let mut offset = 0;
    for (start, end) in taken {
        if offset + bytes <= start {
            break;
        }
        offset = offset.max(end).next_multiple_of(alignment);
    }
    offset
}

/// How one step deviates: the chances, in percent, of each kind for each operation.
#[derive(Debug, Clone, Copy, Default)]
struct Chances {
    smaller: u32,
    larger: u32,
    extra: u32,
    missing: u32,
    late: u32,
    forgotten: u32,
    guard_forgotten: u32,
    abort: u32,
}

/// The live ranges by start, of slots alone; a second live range over a byte is a failure.
#[derive(Debug, Default)]
struct Oracle {
    live: BTreeMap<u64, u64>,
}

impl Oracle {
    fn insert(&mut self, start: u64, end: u64) {
        let before = self.live.range(..start).next_back();
        assert!(before.is_none_or(|(_, &before_end)| before_end <= start), "overlap below");
        let after = self.live.range(start..).next();
        assert!(after.is_none_or(|(&after_start, _)| end <= after_start), "overlap above");
        self.live.insert(start, end);
    }

    fn remove(&mut self, start: u64) {
        assert!(self.live.remove(&start).is_some(), "freed what was not live");
    }
}

/// A handle: its slot and range, and the depth of the scope that it came from.
#[derive(Debug, Clone, Copy)]
struct Handle {
    slot: u32,
    start: u64,
    depth: u32,
}

/// Follows a plan as an arena does: repeating as long as it can, counted from then on, and signed.
#[derive(Debug)]
struct Follower {
    replay: Replay,
    repeats: Cell<bool>,
    running: Running,
    depth: Cell<u32>,
}

impl Follower {
    fn new(table: SlotTable) -> Self {
        let mut replay = Replay::new(table, 0);
        replay.unfold();
        let (running, depth) = (Running::default(), Cell::new(0));
        Self { replay, repeats: Cell::new(false), running, depth }
    }

    fn open_root(&self) {
        self.running.restart(0);
        self.depth.set(1);
        self.replay.begin(0);
        self.repeats.set(self.replay.can_repeat());
    }

    fn count(&self) {
        if self.repeats.take() {
            self.replay.count_common(|at, bytes, alignment, depth| {
                self.running.add(at, bytes, alignment, depth);
            });
        }
    }

    fn open(&self) {
        if !(self.repeats.get() && self.replay.open_as_before()) {
            self.count();
            self.replay.open();
        }
        self.depth.set(self.depth.get() + 1);
    }

    fn close(&self) {
        if !(self.repeats.get() && self.replay.close_as_before()) {
            self.count();
            self.replay.close();
        }
        self.depth.set(self.depth.get() - 1);
    }

    fn close_root(&self) -> StepSignature {
        if self.repeats.get()
            && let Some(signature) = self.replay.end_as_before()
        {
            return signature;
        }
        self.count();
        self.replay.end(self.running.finish());
        self.running.finish()
    }

    fn merge(&self) {
        self.count();
        self.replay.merge();
        self.depth.set(self.depth.get() - 1);
    }

    /// The slot and the address, for a plan that starts at the address 0.
    fn ask_for(&self, bytes: u64, alignment: Alignment) -> Option<(u32, u64)> {
        if self.repeats.get()
            && let Some((address, slot)) = self.replay.place_as_before(bytes, alignment)
        {
            return Some((slot, address));
        }
        self.count();
        let (address, slot) = self.replay.place(bytes, alignment, Location::caller())?;
        self.running.add(address, bytes, alignment, self.depth.get());
        Some((slot, address))
    }

    fn ask(&self, bytes: u64) -> Option<u32> {
        self.ask_for(bytes, Alignment::ONE).map(|(slot, _)| slot - 1)
    }

    fn drop_slot(&self, slot: u32) {
        if !(self.repeats.get() && self.replay.drop_as_before(slot)) {
            self.count();
            self.replay.drop_slot(slot);
        }
    }

    fn deviations(&self) -> Deviations {
        self.replay.deviations()
    }
}

struct Run<'p> {
    program: &'p Program,
    replay: Follower,
    /// The same without comparing steps with one before: each is counted. It must give the same.
    counted: Follower,
    rng: ChaCha8Rng,
    oracle: Oracle,
    handles: Vec<Option<Handle>>,
    /// Handles that are dropped later than planned, or that no planned buffer is for.
    strays: Vec<Handle>,
    /// For each open scope whether its guard was forgotten since.
    scopes: Vec<bool>,
}

impl Run<'_> {
    fn step(&mut self, chances: Chances) {
        let program = self.program;
        self.replay.replay.prepare();
        self.replay.open_root();
        self.counted.open_root();
        self.scopes = vec![false];
        self.handles = vec![None; program.slots.len()];
        for op in &program.ops {
            if self.chance(chances.abort) {
                break;
            }
            if self.chance(chances.extra) {
                let bytes = self.rng.random_range(1..=64);
                if let Some(handle) = self.ask(bytes, Alignment::ONE) {
                    self.strays.push(handle);
                }
            }
            if self.chance(chances.late) && !self.strays.is_empty() {
                let at = self.rng.random_range(0..self.strays.len());
                let handle = self.strays.swap_remove(at);
                self.drop(handle);
            }
            self.op(*op, chances);
        }
        while !self.scopes.is_empty() {
            self.close();
        }
        assert!(self.oracle.live.is_empty() && self.strays.is_empty());
        assert_eq!(self.replay.deviations(), self.counted.deviations(), "compared, and counted");
    }

    fn op(&mut self, op: Op, chances: Chances) {
        match op {
            Op::Alloc { .. } if self.chance(chances.missing) => {}
            Op::Alloc { buffer } => {
                let PlannedSlot { mut bytes, alignment, .. } = self.program.slots[buffer];
                if self.chance(chances.smaller) {
                    bytes = self.rng.random_range(1..=bytes);
                } else if self.chance(chances.larger) {
                    bytes += self.rng.random_range(1..=32);
                }
                self.handles[buffer] = self.ask(bytes, alignment);
            }
            Op::Drop { buffer } => {
                let Some(handle) = self.handles[buffer].take() else { return };
                if self.chance(chances.late) || self.chance(chances.forgotten) {
                    self.strays.push(handle);
                } else {
                    self.drop(handle);
                }
            }
            Op::Open => {
                // A scope that opens settles what was forgotten in the one around it.
                self.settle();
                self.replay.open();
                self.counted.open();
                self.scopes.push(false);
            }
            Op::Close if self.scopes.len() > 1 => {
                self.settle();
                if self.chance(chances.guard_forgotten) {
                    self.end_lives_of_depth(self.scopes.len() as u32);
                    if let Some(forgotten) = self.scopes.last_mut() {
                        *forgotten = true;
                    }
                } else {
                    self.close();
                }
            }
            Op::Close => {}
        }
    }

    /// Merges the scopes whose guards were forgotten into the ones around them.
    fn settle(&mut self) {
        while self.scopes.last() == Some(&true) {
            self.replay.merge();
            self.counted.merge();
            self.scopes.pop();
            let outer = self.scopes.len() as u32;
            for handle in self.handles.iter_mut().flatten().chain(&mut self.strays) {
                handle.depth = handle.depth.min(outer);
            }
        }
    }

    fn close(&mut self) {
        self.settle();
        self.end_lives_of_depth(self.scopes.len() as u32);
        self.scopes.pop();
        if self.scopes.is_empty() {
            let signature = self.replay.close_root();
            assert_eq!(signature, self.counted.close_root(), "compared, and counted");
            self.oracle.live.clear();
        } else {
            self.replay.close();
            self.counted.close();
        }
    }

    /// No handle outlives its scope. What a forgotten guard leaves is dead to the program, but its
    /// bytes stay taken until the scope around it closes: the oracle keeps them.
    fn end_lives_of_depth(&mut self, depth: u32) {
        let oracle = &mut self.oracle;
        let mut end = |handle: &Handle| {
            oracle.live.remove(&handle.start);
        };
        for handle in &mut self.handles {
            if handle.is_some_and(|handle| handle.depth >= depth) {
                handle.take().as_ref().map(&mut end);
            }
        }
        self.strays.retain(|handle| {
            let stays = handle.depth < depth;
            if !stays {
                end(handle);
            }
            stays
        });
    }

    fn ask(&mut self, bytes: u64, alignment: Alignment) -> Option<Handle> {
        let placed = self.replay.ask_for(bytes, alignment);
        assert_eq!(placed, self.counted.ask_for(bytes, alignment), "compared, and counted");
        let (slot, start) = placed?;
        let planned = &self.program.slots[slot as usize - 1];
        assert!(start == planned.offset_bytes && bytes <= planned.bytes);
        assert!(alignment.divides(start));
        self.oracle.insert(start, start + bytes);
        // A scope whose guard was forgotten is none to the program.
        let open = self.scopes.iter().filter(|forgotten| !**forgotten).count();
        Some(Handle { slot, start, depth: open as u32 })
    }

    fn drop(&mut self, handle: Handle) {
        self.oracle.remove(handle.start);
        self.replay.drop_slot(handle.slot);
        self.counted.drop_slot(handle.slot);
    }

    fn chance(&mut self, percent: u32) -> bool {
        percent > 0 && self.rng.random_range(0..100) < percent
    }
}

fn chances(rng: &mut ChaCha8Rng) -> Chances {
    let mut chances = Chances::default();
    let fields = [
        &mut chances.smaller,
        &mut chances.larger,
        &mut chances.extra,
        &mut chances.missing,
        &mut chances.late,
        &mut chances.forgotten,
        &mut chances.guard_forgotten,
    ];
    for chance in fields {
        // Some kinds alone, some together.
        *chance = if rng.random_range(0..3) == 0 { rng.random_range(1..25) } else { 0 };
    }
    chances.abort = if rng.random_range(0..4) == 0 { 4 } else { 0 };
    chances
}

#[test]
fn a_million_deviating_steps_never_overlap_and_the_next_whole_step_is_as_planned() {
    let mut rng = ChaCha8Rng::seed_from_u64(20);
    let mut seen = Deviations::default();
    let (mut steps, mut requests) = (0, 0_u64);
    while steps < STEPS {
        let program = Program::random(&mut rng);
        let table = SlotTable::new(&program.slots).unwrap();
        let mut run = Run {
            replay: Follower::new(table.clone()),
            counted: Follower::new(table),
            rng: ChaCha8Rng::seed_from_u64(rng.random()),
            oracle: Oracle::default(),
            handles: Vec::new(),
            strays: Vec::new(),
            scopes: Vec::new(),
            program: &program,
        };
        let mut last = (Chances::default(), rng.random());
        for _ in 0..STEPS_PER_PLAN {
            match rng.random_range(0..4) {
                // A whole step: whatever happened before, it must be as planned.
                0 => {
                    let before = run.replay.deviations();
                    run.step(Chances::default());
                    assert_eq!(run.replay.deviations(), before, "a whole step after a broken one");
                    continue;
                }
                // The last step once more, deviations and all.
                1 => {}
                _ => last = (chances(&mut rng), rng.random()),
            }
            run.rng = ChaCha8Rng::seed_from_u64(last.1);
            run.step(last.0);
            steps += 1;
        }
        let of_plan = run.replay.deviations();
        seen.smaller += of_plan.smaller;
        seen.larger += of_plan.larger;
        seen.extra += of_plan.extra;
        seen.missing += of_plan.missing;
        seen.late += of_plan.late;
        seen.unfreed += of_plan.unfreed;
        seen.steps += of_plan.steps;
        requests += STEPS_PER_PLAN * program.slots.len() as u64;
    }
    println!("{steps} deviating steps, about {requests} requests, {seen:?}");
    let kinds = [seen.smaller, seen.larger, seen.extra, seen.missing, seen.late, seen.unfreed];
    assert!(kinds.iter().all(|&count| count > 10_000), "each kind was met often: {seen:?}");
}

fn slot(offset_bytes: u64, bytes: u64) -> PlannedSlot {
    PlannedSlot { offset_bytes, bytes, alignment: Alignment::ONE }
}

fn replay(slots: &[PlannedSlot]) -> Follower {
    Follower::new(SlotTable::new(slots).unwrap())
}

#[test]
fn a_refused_slot_gives_no_credit_to_the_next_on_its_bytes() {
    // P > K > S on the same bytes. P is late, so K is refused; S must not be given out while P lives.
    let replay = replay(&[slot(0, 8), slot(0, 8), slot(0, 8)]);
    replay.open_root();
    assert_eq!(replay.ask(8), Some(0));
    assert_eq!(replay.ask(8), None, "K: P is alive");
    assert_eq!(replay.ask(8), None, "S: P is still alive");
    replay.drop_slot(1);
    replay.close_root();
    let Deviations { late, unfreed, steps, .. } = replay.deviations();
    assert_eq!((late, unfreed, steps), (2, 0, 1), "who was refused has nothing to free");
}

#[test]
fn an_aborted_step_leaves_no_trace_wherever_it_ends() {
    let slots = [slot(0, 8), slot(8, 8), slot(0, 16), slot(0, 4), slot(4, 8)];
    for abort_after in 0..=slots.len() {
        let replay = replay(&slots);
        replay.open_root();
        for slot in 0..abort_after as u32 {
            // Dropping the one before makes room for the next.
            assert_eq!(replay.ask(slots[slot as usize].bytes), Some(slot));
            replay.drop_slot(slot + 1);
        }
        replay.close_root();
        let aborted = replay.deviations();
        replay.open_root();
        for slot in 0..slots.len() as u32 {
            assert_eq!(replay.ask(slots[slot as usize].bytes), Some(slot));
            replay.drop_slot(slot + 1);
        }
        replay.close_root();
        assert_eq!(replay.deviations(), aborted, "aborted after {abort_after}");
    }
}

#[test]
fn a_larger_request_is_passed_by_and_the_step_finds_back_to_its_plan() {
    let replay = replay(&[slot(0, 10), slot(10, 20), slot(30, 30), slot(60, 40)]);
    replay.open_root();
    assert_eq!(replay.ask(10), Some(0));
    assert_eq!(replay.ask(25), None, "no slot of this size");
    assert_eq!(replay.ask(30), Some(2), "the one after it gets its own");
    assert_eq!(replay.ask(40), Some(3));
    assert_eq!(replay.ask(5), None, "one more than planned");
    replay.close_root();
    let deviations = replay.deviations();
    assert_eq!((deviations.larger, deviations.missing, deviations.extra), (1, 1, 1));
}

#[test]
fn smaller_requests_keep_their_addresses_and_their_plan() {
    let replay = replay(&[slot(0, 10), slot(10, 20), slot(0, 10)]);
    replay.open_root();
    for (slot, bytes) in [(0, 5), (1, 10), (2, 5)] {
        assert_eq!(replay.ask(bytes), Some(slot));
        replay.drop_slot(slot + 1);
    }
    replay.close_root();
    let deviations = replay.deviations();
    assert_eq!((deviations.smaller, deviations.total(), deviations.steps), (3, 0, 0));
}

#[test]
fn what_an_inner_scope_forgot_is_free_when_it_closes() {
    let replay = replay(&[slot(0, 8), slot(8, 8), slot(8, 8)]);
    replay.open_root();
    assert_eq!(replay.ask(8), Some(0));
    replay.open();
    assert_eq!(replay.ask(8), Some(1));
    replay.close(); // the handle of slot 1 was never dropped
    assert_eq!(replay.ask(8), Some(2), "its bytes are free all the same");
    replay.drop_slot(1);
    replay.drop_slot(3);
    replay.close_root();
    assert_eq!((replay.deviations().unfreed, replay.deviations().total()), (1, 0));
}

//! From the entries of an allocator's trace to steps.

use crate::measure;
use crate::model::{Buffer, Held, Origin, Step, Told};
use crate::names::{NameId, SiteId};
use crate::repetition::{self, Allocation, Repetition};
use crate::split::{Part, split};

/// What happened in an allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Alloc,
    FreeRequested,
    /// The bytes can be used again.
    FreeCompleted,
    /// The allocator took memory from the device.
    Reserve,
    /// It gave memory back.
    Release,
    OutOfMemory,
}

/// An entry of a trace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) site: Option<SiteId>,
    pub(super) tag: Option<NameId>,
    pub(super) action: Action,
}

/// A block that was in use when the snapshot was taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) site: Option<SiteId>,
}

/// What a snapshot has of a device.
#[derive(Debug, Default)]
pub(super) struct Device {
    pub(super) entries: Vec<Entry>,
    pub(super) has_history: bool,
    pub(super) blocks: Vec<Block>,
    /// What the allocator had reserved when the snapshot was taken.
    pub(super) reserved_bytes: u64,
}

impl Device {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.blocks.is_empty()
    }
}

/// What kernels expect of an address, and `cudaMalloc` gives at least.
const ALIGNMENT_BYTES: u64 = 256;

/// The steps of a device; the text stands before their names.
pub(super) fn steps(device: Device, number: u32, before: &str) -> Vec<Step> {
    if device.is_empty() {
        return Vec::new();
    }
    if !device.has_history {
        return vec![held_at_the_end(&device, number, before)];
    }
    let reserved = Reserved::of(&device);
    let failures = failures(&device.entries);
    let (lives, moments) = lives(device);
    let repetition = repetition::find(&allocations(&lives, moments));
    let (parts, told) = parts(repetition, &lives, moments, before);
    let mut steps = split(&lives, &parts, moments, told);
    drop(lives);
    for (step, part) in steps.iter_mut().zip(&parts) {
        step.device = number;
        let end = part.begin + step.moments - 1;
        // A step's own moments begin with the one before its first event.
        let peak = part.begin + measure::live_peak(step).moment.saturating_sub(1);
        let most_bytes = reserved.most(part.begin, end);
        let at_live_peak_bytes = reserved.at(peak);
        step.held = Some(Held { most_bytes, at_live_peak_bytes });
        let first = failures.partition_point(|(at, _)| *at < part.begin);
        let failed = failures.get(first).filter(|(at, _)| *at <= end);
        step.figures.failed =
            failed.map(|(_, bytes)| format!("out of memory: {bytes} bytes were requested"));
    }
    steps
}

/// Without a history: all blocks that were in use.
fn held_at_the_end(device: &Device, number: u32, before: &str) -> Step {
    let buffer = |block: &Block| {
        let buffer = Buffer::new(0, block.bytes).at(block.address).requested_by(block.site);
        aligned(buffer)
    };
    let buffers = device.blocks.iter().map(buffer).collect();
    let name = format!("{before}when the snapshot was taken");
    let mut step = Step::new(name, Told::NoHistory, 1, buffers);
    step.device = number;
    let (most_bytes, at_live_peak_bytes) = (device.reserved_bytes, device.reserved_bytes);
    step.held = Some(Held { most_bytes, at_live_peak_bytes });
    step
}

fn aligned(buffer: Buffer) -> Buffer {
    buffer.aligned(ALIGNMENT_BYTES)
}

/// Whether an entry is an event of the history: one that brings a buffer to life or ends it.
fn counts(entry: &Entry) -> bool {
    matches!(entry.action, Action::Alloc | Action::FreeCompleted)
}

/// The buffers in the order of their births, and how many moments there are. What the history began with is carried.
fn lives(device: Device) -> (Vec<Buffer>, u32) {
    let Device { entries, blocks, .. } = device;
    // By address: so that no table of what is live is needed. The moments are in the order of time.
    let mut order: Vec<u32> =
        (0..entries.len() as u32).filter(|&at| counts(&entries[at as usize])).collect();
    let moments = order.len() as u32;
    let mut moment_of = Vec::with_capacity(entries.len());
    let mut moment = 0;
    for entry in &entries {
        moment_of.push(moment);
        moment += u32::from(counts(entry));
    }
    order.sort_unstable_by_key(|&at| (entries[at as usize].address, at));
    let allocations = entries.iter().filter(|entry| entry.action == Action::Alloc).count();
    let mut lives = Vec::with_capacity(allocations + blocks.len());
    // Where a buffer is alive when the history ends.
    let mut alive_at_end = Vec::new();
    for of_address in
        order.chunk_by(|&a, &b| entries[a as usize].address == entries[b as usize].address)
    {
        let mut open: Option<Buffer> = None;
        for &at in of_address {
            let (entry, moment) = (&entries[at as usize], moment_of[at as usize]);
            match (entry.action, open.take()) {
                (Action::Alloc, before) => {
                    // Its free is missing in the trace.
                    lives.extend(before.map(|buffer| buffer.dropped_at(Some(moment))));
                    let buffer = Buffer::new(moment, entry.bytes).at(entry.address);
                    open = Some(aligned(buffer.requested_by(entry.site).tagged(entry.tag)));
                }
                (_, Some(buffer)) => lives.push(buffer.dropped_at(Some(moment))),
                (_, None) => {
                    let older =
                        Buffer::new(0, entry.bytes).at(entry.address).with_origin(Origin::Carried);
                    lives.push(aligned(older).dropped_at(Some(moment)));
                }
            }
        }
        if let Some(buffer) = open {
            lives.push(buffer);
            alive_at_end.push(entries[of_address[0] as usize].address);
        }
    }
    for block in &blocks {
        // The addresses were met in order.
        if alive_at_end.binary_search(&block.address).is_err() {
            let older = Buffer::new(0, block.bytes).at(block.address).with_origin(Origin::Carried);
            lives.push(aligned(older).requested_by(block.site));
        }
    }
    lives.sort_unstable_by_key(|life| {
        (life.origin() == Origin::Step, life.birth(), life.offset_bytes())
    });
    (lives, moments)
}

/// The allocations of a history, with what was live before each.
fn allocations(lives: &[Buffer], moments: u32) -> Vec<Allocation> {
    let mut change = vec![0_u64; moments as usize];
    let mut live: u64 = 0;
    for life in lives {
        match life.origin() {
            Origin::Step => {
                let at = &mut change[life.birth() as usize];
                *at = at.wrapping_add(life.bytes());
            }
            Origin::Carried => live = live.wrapping_add(life.bytes()),
        }
        if let Some(dropped) = life.dropped() {
            let at = &mut change[dropped as usize];
            *at = at.wrapping_sub(life.bytes());
        }
    }
    let mut moment = 0;
    let own = lives.iter().filter(|life| life.origin() == Origin::Step);
    own.map(|life| {
        for change in &change[moment..life.birth() as usize] {
            live = live.wrapping_add(*change);
        }
        moment = life.birth() as usize;
        Allocation { bytes: life.bytes(), live_before_bytes: live }
    })
    .collect()
}

/// The parts of a history whose allocations repeat or not.
fn parts(
    repetition: Option<Repetition>,
    lives: &[Buffer],
    moments: u32,
    before: &str,
) -> (Vec<Part>, Told) {
    let part =
        |name: String, begin, is_whole| Part { name: format!("{before}{name}"), begin, is_whole };
    let Some(Repetition { first, period, steps }) = repetition else {
        return (vec![part("the whole history".to_owned(), 0, true)], Told::DoesNotRepeat);
    };
    let births: Vec<u32> =
        lives.iter().filter(|life| life.origin() == Origin::Step).map(Buffer::birth).collect();
    let begin_of = |step: usize| births.get(first + step * period).copied().unwrap_or(moments);
    let mut parts = Vec::with_capacity(steps + 2);
    if begin_of(0) > 0 {
        parts.push(part("before the steps".to_owned(), 0, false));
    }
    parts.extend((0..steps).map(|step| part(format!("step {}", step + 1), begin_of(step), true)));
    if begin_of(steps) < moments {
        parts.push(part("after the steps".to_owned(), begin_of(steps), false));
    }
    (parts, Told::ByRepetition { allocations: period as u32 })
}

/// When requests failed, and how many bytes they asked for.
fn failures(entries: &[Entry]) -> Vec<(u32, u64)> {
    let mut moment = 0;
    let mut failures = Vec::new();
    for entry in entries {
        moment += u32::from(counts(entry));
        if entry.action == Action::OutOfMemory {
            failures.push((moment, entry.bytes));
        }
    }
    failures
}

/// What the allocator had reserved, from each of these moments on.
struct Reserved(Vec<(u32, u64)>);

impl Reserved {
    fn of(device: &Device) -> Self {
        // Backwards from the end, which is known.
        let mut moment = device.entries.iter().filter(|entry| counts(entry)).count() as u32;
        let mut reserved = device.reserved_bytes;
        let mut changes = Vec::new();
        for entry in device.entries.iter().rev() {
            moment -= u32::from(counts(entry));
            match entry.action {
                Action::Reserve => {
                    changes.push((moment, reserved));
                    reserved = reserved.saturating_sub(entry.bytes);
                }
                Action::Release => {
                    changes.push((moment, reserved));
                    reserved = reserved.saturating_add(entry.bytes);
                }
                _ => {}
            }
        }
        changes.push((0, reserved));
        changes.reverse();
        Self(changes)
    }

    fn at(&self, moment: u32) -> u64 {
        let after = self.0.partition_point(|(begin, _)| *begin <= moment);
        self.0[after.saturating_sub(1)].1
    }

    /// The most from one moment to another, both inclusive.
    fn most(&self, begin: u32, end: u32) -> u64 {
        let place = |moment: u32| self.0.partition_point(|(at, _)| *at < moment);
        let changes = self.0[place(begin)..place(end.saturating_add(1))].iter();
        changes.map(|(_, reserved)| *reserved).fold(self.at(begin), u64::max)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::Path;

    use arena_plan::formats::trace::{self, Op};
    use rstest::rstest;

    use super::*;
    use crate::measure::live_peak;

    /// A whole run that PyTorch made, without what its file says of the steps. Beside the history, for each step of the
    /// file with a whole step's work its number of allocations and the most that is live in it.
    fn run(name: &str) -> (Device, Vec<(usize, u64)>) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/traces");
        let text = std::fs::read_to_string(path.join(format!("{name}.csv"))).unwrap();
        let (mut entries, mut addresses, mut next) = (Vec::new(), HashMap::new(), 0);
        let mut steps: Vec<(u64, usize, u64)> = Vec::new();
        let mut live = 0;
        for event in trace::events(&text).unwrap() {
            if steps.last().is_none_or(|(step, ..)| *step != event.step) {
                steps.push((event.step, 0, 0));
            }
            let step = steps.last_mut().unwrap();
            let action = match event.op {
                Op::Mark => continue,
                Op::Alloc => {
                    next += 1;
                    addresses.insert(event.id.to_owned(), next);
                    live += event.size_bytes;
                    (step.1, step.2) = (step.1 + 1, step.2.max(live));
                    Action::Alloc
                }
                Op::Free => {
                    live -= event.size_bytes;
                    Action::FreeCompleted
                }
            };
            let (address, bytes) = (addresses[event.id], event.size_bytes);
            entries.push(Entry { address, bytes, site: None, tag: None, action });
        }
        let steps = steps.into_iter().filter(|(step, ..)| *step > 0);
        let steps = steps.map(|(_, allocations, peak)| (allocations, peak)).collect();
        (Device { entries, has_history: true, blocks: Vec::new(), reserved_bytes: 0 }, steps)
    }

    #[rstest]
    #[case("mnist")]
    #[case("mnistadam")]
    #[case("gpt2")]
    #[case("gpt2flash")]
    #[case("resnet50")]
    fn repetition_tells_the_steps_of_real_runs_apart_as_their_files_do(#[case] name: &str) {
        let (device, expected) = run(name);
        let steps = steps(device, 0, "");
        let whole = steps.iter().filter(|step| step.is_whole);
        let found: Vec<_> = whole.map(|step| (step.own().count(), live_peak(step).bytes)).collect();
        // The first step of a run may differ from the others: then it is not one of those that repeat.
        let (first, rest) = expected.split_first().unwrap();
        let expected = if rest.contains(first) { &expected[..] } else { rest };
        assert_eq!(found, expected);
    }
}

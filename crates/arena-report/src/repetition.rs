//! Finds where steps begin in a file that does not say it: by the sizes of the allocations, and by what is live, which
//! repeat.

use std::collections::HashMap;

/// Allocations in a group: equal groups are looked for.
const GROUP: usize = 8;

/// The most frequent distances between equal groups are tried as the length of a step: the most of them.
const CANDIDATES: usize = 32;

/// The fewest allocations of a step. Fewer are more often a part of one.
const LEAST_ALLOCATIONS: usize = 2;

/// An allocation, in the order of allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) bytes: u64,
    /// What was live just before it.
    pub(crate) live_before_bytes: u64,
}

/// Where steps begin: at the allocation `first`, and after each `period` of them, so often as there are `steps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Repetition {
    pub(crate) first: usize,
    pub(crate) period: usize,
    pub(crate) steps: usize,
}

/// The steps of a history, if its sizes repeat.
///
/// A step is the shortest period with which the sizes repeat over at least half of the history, and over two periods
/// at least, and after which as much is live as before it: the layers of a network repeat too, but what they leave
/// grows. The steps begin where least is live.
pub(crate) fn find(allocations: &[Allocation]) -> Option<Repetition> {
    let best = candidates(allocations)
        .into_iter()
        .map(|period| (period, longest(allocations, period)))
        .filter(|&(period, ref stretch)| {
            let covered = stretch.len() + period;
            stretch.len() >= period
                && covered * 2 >= allocations.len()
                && returns(allocations, period, stretch.end - 1)
        })
        // Twice a period is not among them: a group that repeats has its like one period before.
        .max_by_key(|(period, stretch)| stretch.len() + period);
    let (period, stretch) = best?;
    let end = stretch.end + period;
    let first = (stretch.start..stretch.start + period)
        .min_by_key(|&at| (allocations[at].live_before_bytes, at))?;
    Some(Repetition { first, period, steps: (end - first) / period })
}

/// The distances between groups of allocations that are alike.
fn candidates(allocations: &[Allocation]) -> Vec<usize> {
    let mut seen: HashMap<u64, u32> = HashMap::with_capacity(allocations.len());
    let mut distances = Vec::with_capacity(allocations.len());
    for (at, group) in allocations.windows(GROUP.min(allocations.len().max(1))).enumerate() {
        if let Some(before) = seen.insert(hash(group), at as u32) {
            distances.push(at as u32 - before);
        }
    }
    drop(seen);
    distances.sort_unstable();
    let mut counted: Vec<(usize, u32)> = Vec::new();
    for alike in distances.chunk_by(|a, b| a == b) {
        counted.push((alike.len(), alike[0]));
    }
    counted.sort_unstable_by_key(|&(count, distance)| (usize::MAX - count, distance));
    let distances = counted.iter().take(CANDIDATES).map(|&(_, distance)| distance as usize);
    distances.filter(|&distance| distance >= LEAST_ALLOCATIONS).collect()
}

/// FNV-1a over the sizes.
fn hash(group: &[Allocation]) -> u64 {
    group.iter().fold(0xcbf2_9ce4_8422_2325, |hash, allocation| {
        (hash ^ allocation.bytes).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The longest stretch of allocations of which each is as large as the one a period later.
fn longest(allocations: &[Allocation], period: usize) -> std::ops::Range<usize> {
    let (mut best, mut start) = (0..0, 0);
    for at in 0..allocations.len().saturating_sub(period) {
        if allocations[at].bytes != allocations[at + period].bytes {
            start = at + 1;
        } else if at + 1 - start > best.len() {
            best = start..at + 1;
        }
    }
    best
}

/// Whether about as much is live after a period as before it. Asked of the last one: what was allocated before the
/// history began is dead by then.
fn returns(allocations: &[Allocation], period: usize, start: usize) -> bool {
    let sum: u64 =
        allocations[start..start + period].iter().map(|one| one.bytes).fold(0, u64::saturating_add);
    let before = allocations[start].live_before_bytes;
    let after = allocations[start + period].live_before_bytes;
    before.abs_diff(after) <= sum / 16
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Allocations of these sizes. After each of them so many of the oldest are freed, as the second number says.
    fn history(events: &[(u64, usize)]) -> Vec<Allocation> {
        let mut live = std::collections::VecDeque::new();
        let mut allocations = Vec::new();
        for &(bytes, freed) in events {
            allocations.push(Allocation { bytes, live_before_bytes: live.iter().sum() });
            live.push_back(bytes);
            live.drain(..freed);
        }
        allocations
    }

    const STEP: [(u64, usize); 4] = [(10, 0), (20, 0), (30, 0), (40, 4)];

    #[test]
    fn a_step_is_found_after_a_beginning_and_before_a_rest() {
        let mut events = vec![(7, 0), (9, 2), (8, 0), (5, 2)];
        for _ in 0..5 {
            events.extend(STEP);
        }
        events.extend([(10, 0), (20, 0)]);
        let found = find(&history(&events));
        assert_eq!(found, Some(Repetition { first: 4, period: 4, steps: 5 }));
    }

    #[test]
    fn a_step_begins_where_least_is_live() {
        // The history begins in the middle of a step: 30 bytes of it are there already.
        let mut events = vec![(30, 0), (40, 2)];
        for _ in 0..4 {
            events.extend(STEP);
        }
        let mut history = history(&events);
        history[..2].iter_mut().for_each(|one| one.live_before_bytes += 30);
        let found = find(&history);
        assert_eq!(found, Some(Repetition { first: 2, period: 4, steps: 4 }));
    }

    #[test]
    fn layers_that_leave_something_are_no_steps() {
        let layer = [(100, 0), (50, 0), (70, 0)];
        let events: Vec<_> = layer.iter().cycle().take(60).copied().collect();
        assert_eq!(find(&history(&events)), None);
    }

    #[rstest]
    #[case::nothing(0)]
    #[case::one(1)]
    #[case::all_different(100)]
    fn what_does_not_repeat_has_no_steps(#[case] count: u64) {
        let events: Vec<_> =
            (0..count).map(|bytes| (bytes * bytes + 1, usize::from(bytes > 0))).collect();
        assert_eq!(find(&history(&events)), None);
    }

    #[test]
    fn a_repetition_over_less_than_half_is_not_the_step() {
        let mut events: Vec<_> =
            (0..100).map(|bytes| (1000 + bytes * bytes, usize::from(bytes > 0))).collect();
        events.push((1, 1));
        for _ in 0..3 {
            events.extend(STEP);
        }
        assert_eq!(find(&history(&events)), None);
    }
}

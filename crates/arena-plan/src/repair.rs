//! Repair: from a plan slightly above its target to one that meets it.
//!
//! A large training step has one fullest moment, and near the bound little else is tight. At that moment the live
//! buffers must lie one above another without a hole. So they are stacked in the order in which the plan has them,
//! and stay there. Buffers of other moments that are now in their way, or reach above the target, are taken out and
//! put back, the largest first, each at the lowest free range. Where there is none, the cheapest window is freed:
//! those in it are taken out in turn, and each becomes more costly to take out again. So the buffers that are hard
//! to place find theirs first, and the easy ones make way.

use std::collections::BinaryHeap;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::deadline::Deadline;
use crate::packing::Packing;

/// A placed buffer, or a free range.
#[derive(Clone, Copy, Debug)]
struct Range {
    from: u64,
    to: u64,
}

/// A buffer of the stack: its range and its sections.
struct Stacked {
    range: Range,
    first: u32,
    end: u32,
}

/// Reusable storage for [`Repair::attempt`].
pub(crate) struct Repair<'a> {
    packing: &'a Packing,
    deadline: Deadline,
    random: ChaCha8Rng,
    /// Which items are live at the fullest moment.
    at_full: Vec<bool>,
    /// The others: those that live longer than [`Self::NARROW`] sections, and the rest by birth.
    wide: Vec<u32>,
    narrow: Vec<u32>,
    /// The first of `narrow` that is born in or after each section.
    narrow_from: Vec<u32>,
    /// By rising offset, without a hole but for alignment.
    stack: Vec<Stacked>,
    offsets: Vec<u64>,
    /// Of the items outside the stack.
    placed: Vec<bool>,
    /// What it costs to take an item out.
    costs: Vec<u128>,
    /// What is free between the stacked ones that the item to place meets, if it is large enough.
    room: Vec<Range>,
    /// The other placed ones that it meets there, by rising offset.
    met: Vec<(Range, u32)>,
    /// Looks at items since the attempt began.
    looks: u64,
}

impl<'a> Repair<'a> {
    /// Looks that one attempt may cost: two to three seconds.
    const LOOKS_PER_ATTEMPT: u64 = 400_000_000;
    /// Looks between two looks at the clock.
    const LOOKS_PER_TIME: u64 = 10_000;
    /// Sorting and summing those that are met, in looks for each of them.
    const LOOKS_PER_MET: u64 = 8;
    /// Who is met is found by birth, which takes a longest lifetime; those that live longer are all looked at.
    const NARROW: u32 = 64;
    /// The cost of taking out each byte of a buffer, and the most that is added at random.
    const COST: u32 = 16;
    const NOISE: u32 = 2;

    /// Items with fixed offsets are not respected.
    pub(crate) fn new(packing: &'a Packing, deadline: Deadline, seed: u64) -> Self {
        let items = &packing.items;
        let full = fullest(packing);
        let at_full: Vec<bool> =
            items.iter().map(|item| item.first <= full && full < item.end).collect();
        let (wide, narrow): (Vec<u32>, Vec<u32>) = packing
            .in_order_of(|item| item.first)
            .into_iter()
            .filter(|&item| !at_full[item as usize])
            .partition(|&item| items[item as usize].width() > u64::from(Self::NARROW));
        let mut narrow_from = vec![0; packing.sections as usize + 1];
        for &item in &narrow {
            narrow_from[items[item as usize].first as usize + 1] += 1;
        }
        for section in 1..narrow_from.len() {
            narrow_from[section] += narrow_from[section - 1];
        }
        Self {
            packing,
            deadline,
            random: ChaCha8Rng::seed_from_u64(seed),
            at_full,
            wide,
            narrow,
            narrow_from,
            stack: Vec::new(),
            offsets: Vec::new(),
            placed: Vec::new(),
            costs: Vec::new(),
            room: Vec::new(),
            met: Vec::new(),
            looks: 0,
        }
    }

    /// Offsets with a peak of at most `target`, made from those of a valid plan; `None` if there is no way, no time
    /// or not enough `work`, of which is taken what it cost.
    pub(crate) fn attempt(
        &mut self,
        plan: &[u64],
        target: u64,
        work: &mut u64,
    ) -> Option<Vec<u64>> {
        self.looks = 0;
        let limit = Self::LOOKS_PER_ATTEMPT.min(*work);
        let repaired = self.stack(plan) <= target && self.place_rest(plan, target, limit);
        *work = work.saturating_sub(self.looks);
        repaired.then(|| std::mem::take(&mut self.offsets))
    }

    /// Closes the holes of the fullest moment, and returns how high it then reaches.
    fn stack(&mut self, plan: &[u64]) -> u64 {
        let items = &self.packing.items;
        let mut order: Vec<usize> = (0..items.len()).filter(|&item| self.at_full[item]).collect();
        order.sort_unstable_by_key(|&item| plan[item]);
        self.offsets = plan.to_vec();
        self.stack.clear();
        let mut top = 0_u64;
        for index in order {
            let item = &items[index];
            let from = top.next_multiple_of(item.align);
            top = from + item.size;
            self.offsets[index] = from;
            let range = Range { from, to: top };
            self.stack.push(Stacked { range, first: item.first, end: item.end });
        }
        top
    }

    fn place_rest(&mut self, plan: &[u64], target: u64, limit: u64) -> bool {
        let items = &self.packing.items;
        let (least, most) = (Self::COST, Self::COST + Self::NOISE);
        self.costs.clear();
        for item in items {
            let factor = self.random.random_range(least..=most);
            self.costs.push(u128::from(item.size) * u128::from(factor));
        }
        self.placed = vec![false; items.len()];
        let mut next_look = 0;
        let mut out = BinaryHeap::new();
        for (number, item) in (0_u32..).zip(items) {
            let index = number as usize;
            if self.at_full[index] {
                continue;
            }
            let range = Range { from: plan[index], to: plan[index] + item.size };
            self.placed[index] = range.to <= target && !self.hits_stack(number, range);
            if !self.placed[index] {
                out.push((item.size, number));
            }
            if self.is_over(limit, &mut next_look) {
                return false;
            }
        }
        while let Some((_, number)) = out.pop() {
            if self.is_over(limit, &mut next_look) {
                return false;
            }
            self.find_room(number, target);
            self.find_met(number);
            let Some(from) = self.lowest_gap(number).or_else(|| self.cheapest_window(number))
            else {
                return false;
            };
            let range = Range { from, to: from + items[number as usize].size };
            self.offsets[number as usize] = from;
            self.placed[number as usize] = true;
            for &(other, hit) in &self.met {
                if other.from < range.to && range.from < other.to {
                    let size = items[hit as usize].size;
                    self.placed[hit as usize] = false;
                    self.costs[hit as usize] += u128::from(size) * u128::from(Self::COST);
                    out.push((size, hit));
                }
            }
        }
        true
    }

    fn is_over(&self, limit: u64, next_look: &mut u64) -> bool {
        if self.looks >= limit {
            return true;
        }
        if self.looks < *next_look {
            return false;
        }
        *next_look = self.looks + Self::LOOKS_PER_TIME;
        self.deadline.has_passed()
    }

    fn hits_stack(&mut self, number: u32, range: Range) -> bool {
        let item = &self.packing.items[number as usize];
        let begin = self.stack.partition_point(|stacked| stacked.range.to <= range.from);
        let beside = self.stack[begin..].iter().take_while(|stacked| stacked.range.from < range.to);
        let mut hits = false;
        for stacked in beside {
            self.looks += 1;
            hits |= stacked.first < item.end && item.first < stacked.end;
        }
        self.looks += 1;
        hits
    }

    fn find_room(&mut self, number: u32, target: u64) {
        let item = &self.packing.items[number as usize];
        self.looks += self.stack.len() as u64;
        self.room.clear();
        let mut from = 0_u64;
        let mut add = |from: u64, to: u64| {
            if from.next_multiple_of(item.align) + item.size <= to {
                self.room.push(Range { from, to });
            }
        };
        for stacked in &self.stack {
            if stacked.first < item.end && item.first < stacked.end {
                add(from, stacked.range.from);
                from = stacked.range.to;
            }
        }
        add(from, target);
    }

    fn find_met(&mut self, number: u32) {
        let items = &self.packing.items;
        let item = &items[number as usize];
        let earliest = item.first.saturating_sub(Self::NARROW) as usize;
        let narrow =
            self.narrow_from[earliest] as usize..self.narrow_from[item.end as usize] as usize;
        self.met.clear();
        for &other in self.wide.iter().chain(&self.narrow[narrow.clone()]) {
            if !self.placed[other as usize] || !items[other as usize].meets(item) {
                continue;
            }
            let from = self.offsets[other as usize];
            let range = Range { from, to: from + items[other as usize].size };
            let room = self.room.partition_point(|room| room.to <= range.from);
            if self.room.get(room).is_some_and(|room| room.from < range.to) {
                self.met.push((range, other));
            }
        }
        self.met.sort_unstable_by_key(|&(range, other)| (range.from, other));
        self.looks += (self.wide.len() + narrow.len()) as u64;
        self.looks += self.met.len() as u64 * Self::LOOKS_PER_MET;
    }

    /// Where the item fits without taking one out.
    fn lowest_gap(&self, number: u32) -> Option<u64> {
        let item = &self.packing.items[number as usize];
        let mut met = self.met.iter().peekable();
        let mut reach = 0;
        for room in &self.room {
            loop {
                let from = room.from.max(reach).next_multiple_of(item.align);
                let next = met.next_if(|(range, _)| range.from < room.to);
                if from + item.size <= next.map_or(room.to, |(range, _)| range.from) {
                    return Some(from);
                }
                let Some((range, _)) = next else { break };
                reach = reach.max(range.to);
            }
        }
        None
    }

    /// Where the ones in the item's way cost least; equal costs: the lowest. `None` if the stack leaves no room.
    fn cheapest_window(&self, number: u32) -> Option<u64> {
        let item = &self.packing.items[number as usize];
        let summed = |mut ends: Vec<(u64, u128)>| {
            ends.sort_unstable();
            let mut sum = 0;
            for (_, cost) in &mut ends {
                sum += *cost;
                *cost = sum;
            }
            ends
        };
        let cost = |other: u32| self.costs[other as usize];
        let begins =
            summed(self.met.iter().map(|&(range, other)| (range.from, cost(other))).collect());
        let ends = summed(self.met.iter().map(|&(range, other)| (range.to, cost(other))).collect());
        let first = |sums: &[(u64, u128)], count: usize| {
            count.checked_sub(1).map_or(0, |last| sums[last].1)
        };
        // Those that begin below the window's end, without those that end below it.
        let cost_at = |from: u64| {
            let begun = begins.partition_point(|&(begin, _)| begin < from + item.size);
            let ended = ends.partition_point(|&(end, _)| end <= from);
            first(&begins, begun) - first(&ends, ended)
        };
        let mut best: Option<(u128, u64)> = None;
        let down = |offset: u64| offset / item.align * item.align;
        for room in &self.room {
            let (low, high) = (room.from.next_multiple_of(item.align), down(room.to - item.size));
            let on_top = ends[ends.partition_point(|&(end, _)| end <= low)..]
                .iter()
                .map(|&(end, _)| end.next_multiple_of(item.align))
                .take_while(|&from| from <= high);
            let below = begins[begins.partition_point(|&(begin, _)| begin < low + item.size)..]
                .iter()
                .map(|&(begin, _)| down(begin - item.size))
                .take_while(|&from| from <= high);
            for from in [low, high].into_iter().chain(on_top).chain(below) {
                let candidate = (cost_at(from), from);
                if best.is_none_or(|best| candidate < best) {
                    best = Some(candidate);
                }
            }
        }
        best.map(|(_, from)| from)
    }
}

/// The section with the largest live total, the first of those.
fn fullest(packing: &Packing) -> u32 {
    let most = packing.items.iter().map(|item| item.total).max().unwrap_or(0);
    let mut change = vec![(0_u64, 0_u64); packing.sections as usize + 1];
    for item in &packing.items {
        change[item.first as usize].0 += item.size;
        change[item.end as usize].1 += item.size;
    }
    let mut live = 0;
    let full = change.iter().position(|(gained, lost)| {
        live = live + gained - lost;
        live == most
    });
    full.map_or(0, |full| u32::try_from(full).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;
    use crate::instance::{Buffer, Instance};
    use crate::skyline::{Skyline, order_by};
    use crate::sweep;
    use crate::validate::validate_peak;

    /// A step with its fullest moment in the middle: buffers that live through it, mostly nested, and short ones
    /// beside them, which leave a two-hundredth free.
    fn step(seed: u64) -> Instance {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let middle = 1_000_u64;
        let mut buffers = Vec::new();
        for age in 1..150_u64 {
            let birth = middle - 1 - age * 6 + random.random_range(0..6);
            let death = middle + 1 + age * 6 - random.random_range(0..60).min(age * 6 - 1);
            let size = 64 << random.random_range(0..6);
            buffers.push(Buffer::new(birth, death, size + random.random_range(0..3)));
        }
        let live_at = |buffers: &[Buffer], time: u64| -> u64 {
            let live = |buffer: &&Buffer| buffer.birth <= time && time < buffer.death;
            buffers.iter().filter(live).map(|buffer| buffer.size_bytes).sum()
        };
        let full = live_at(&buffers, middle);
        for _ in 0..6_000 {
            let birth = random.random_range(0..2 * middle);
            let death = birth + random.random_range(1..12);
            let size = 32 << random.random_range(0..6);
            let fits = |time| live_at(&buffers, time) + size <= full - full / 200;
            if (death <= middle || middle < birth) && (birth..death).all(fits) {
                buffers.push(Buffer::new(birth, death, size));
            }
        }
        Instance::new(buffers).unwrap()
    }

    /// The best of the skyline's plans.
    fn skyline(packing: &Packing) -> (u64, Vec<u64>) {
        let mut skyline = Skyline::new(packing, Deadline::NEVER);
        let items = &packing.items;
        let orders = [
            order_by(packing, |i| items[i].size),
            order_by(packing, |i| items[i].size * items[i].width()),
            order_by(packing, |i| items[i].width()),
        ];
        let plans = orders.map(|order| {
            let peak = skyline.pack(&order, u64::MAX).unwrap();
            (peak, skyline.offsets.clone())
        });
        plans.into_iter().min().unwrap()
    }

    fn judged(instance: &Instance, packing: &Packing, offsets: &[u64]) -> u64 {
        let offsets_bytes = packing.offsets_bytes(instance, offsets);
        let peak_bytes = packing.peak(offsets) * packing.unit_bytes;
        validate_peak(instance, &offsets_bytes, peak_bytes).unwrap();
        peak_bytes
    }

    #[test]
    fn a_plan_slightly_above_the_bound_is_brought_down_to_it() {
        for seed in [0, 1, 2, 3, 4, 6] {
            let instance = step(seed);
            let packing = Packing::new(&instance);
            let (peak, plan) = skyline(&packing);
            assert!(peak > packing.bound, "the skyline met it, seed {seed}");
            let mut repair = Repair::new(&packing, Deadline::NEVER, 0);
            let mut work = 20_000_000;
            let repaired = repair.attempt(&plan, packing.bound, &mut work);
            let repaired = repaired.unwrap_or_else(|| panic!("seed {seed}"));
            assert_eq!(judged(&instance, &packing, &repaired), packing.bound_bytes.rounded_bytes);
        }
    }

    #[test]
    fn the_work_of_an_attempt_is_counted_and_limited() {
        let packing = Packing::new(&step(0));
        let (_, plan) = skyline(&packing);
        let attempt = |mut work: u64, deadline| {
            let mut repair = Repair::new(&packing, deadline, 0);
            let before = work;
            let repaired = repair.attempt(&plan, packing.bound, &mut work);
            (repaired.is_some(), before - work)
        };
        let (repaired, looks) = attempt(u64::MAX, Deadline::NEVER);
        assert!(repaired && looks > 0);
        let few = looks / 2;
        let (repaired, looks) = attempt(few, Deadline::NEVER);
        assert!(!repaired && looks == few, "{looks}");
        assert_eq!(attempt(0, Deadline::NEVER), (false, 0));
        let past = Deadline::new(Instant::now(), Some(Duration::ZERO), Duration::ZERO);
        let (repaired, looks) = attempt(u64::MAX, past);
        assert!(!repaired && looks < Repair::LOOKS_PER_TIME);
    }

    fn buffers() -> impl Strategy<Value = Vec<Buffer>> {
        let buffer = (0..90_u64, 1..90_u64, 0..40_u64, prop::sample::select(vec![1_u64, 2, 8]));
        let buffer = buffer.prop_map(|(birth, life, size, alignment)| {
            Buffer::new(birth, birth + life, size).aligned(alignment)
        });
        prop::collection::vec(buffer, 0..40)
    }

    proptest! {
        #[test]
        fn what_is_repaired_is_valid_and_at_most_the_target(
            buffers in buffers(),
            above in 0..30_u64,
            seed in 0..4_u64,
        ) {
            let instance = Instance::new(buffers).unwrap();
            let packing = Packing::new(&instance);
            let target = packing.bound + above;
            let plan = sweep::place(&packing);
            let mut repair = Repair::new(&packing, Deadline::NEVER, seed);
            for _ in 0..2 {
                let mut work = 1_000_000;
                if let Some(repaired) = repair.attempt(&plan, target, &mut work) {
                    let peak = judged(&instance, &packing, &repaired);
                    prop_assert!(peak <= target * packing.unit_bytes);
                }
            }
        }
    }
}

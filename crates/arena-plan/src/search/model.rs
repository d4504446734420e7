//! One connected group of items, prepared for search: who meets whom, who lives in which section.

use crate::packing::{Item, Packing};

pub(super) const NONE: u32 = u32::MAX;

/// Lists of different length in one allocation.
#[derive(Clone)]
pub(super) struct Lists {
    start: Vec<u32>,
    values: Vec<u32>,
}

impl Lists {
    /// Lists of these lengths, to be filled.
    fn of_lengths(lengths: &[u32]) -> Self {
        let mut start = vec![0];
        let mut end = 0;
        for length in lengths {
            end += length;
            start.push(end);
        }
        Self { start, values: vec![0; end as usize] }
    }

    pub(super) fn of(&self, index: usize) -> &[u32] {
        &self.values[self.start[index] as usize..self.start[index + 1] as usize]
    }

    pub(super) fn of_mut(&mut self, index: usize) -> &mut [u32] {
        &mut self.values[self.start[index] as usize..self.start[index + 1] as usize]
    }
}

pub(super) struct Model {
    /// In order of birth, sections counted from the group's first.
    pub(super) items: Vec<Item>,
    /// Their sizes and alignments once more, close together for the inner loops.
    pub(super) sizes: Vec<u64>,
    pub(super) aligns: Vec<u64>,
    /// The item of the packing that each one is.
    pub(super) origin: Vec<u32>,
    pub(super) sections: usize,
    /// For each item those it meets.
    pub(super) meets: Lists,
    /// For each section the items alive in it.
    pub(super) members: Lists,
    /// For each section its live total as a share of the largest.
    pub(super) fullness: Vec<f64>,
    /// For each item the next one of the same size and lifetime, or `NONE`.
    pub(super) twin_after: Vec<u32>,
}

impl Model {
    /// More pairs than this are not searched: a node would cost too much.
    const MAX_PAIRS: usize = 4_000_000;

    /// `group` holds item numbers of the packing in order of birth. `None` when it is too large, or when
    /// `stop` says so.
    pub(super) fn new(packing: &Packing, group: &[u32], stop: &dyn Fn() -> bool) -> Option<Self> {
        if group.len() > Self::MAX_PAIRS {
            return None;
        }
        let shift = packing.items[*group.first()? as usize].first;
        let items: Vec<Item> = group
            .iter()
            .map(|&number| {
                let item = packing.items[number as usize];
                Item { first: item.first - shift, end: item.end - shift, ..item }
            })
            .collect();
        let sections = items.iter().map(|item| item.end).max().unwrap_or(0) as usize;
        let mut pairs = 0;
        let mut later = Vec::with_capacity(items.len());
        let mut met = vec![0_u32; items.len()];
        for (index, item) in items.iter().enumerate() {
            // In order of birth, those that meet `item` and come after it are one run.
            let run = items[index + 1..].iter().take_while(|other| other.first < item.end).count();
            pairs += run;
            if pairs > Self::MAX_PAIRS {
                return None;
            }
            let run = index + 1..index + 1 + run;
            met[index] += run.len() as u32;
            met[run.clone()].iter_mut().for_each(|count| *count += 1);
            later.push(run);
        }
        if stop() {
            return None;
        }
        let mut meets = Lists::of_lengths(&met);
        let mut next = meets.start.clone();
        let mut add = |index: usize, other: usize| {
            meets.values[next[index] as usize] = other as u32;
            next[index] += 1;
        };
        for (index, run) in later.into_iter().enumerate() {
            for other in run {
                add(index, other);
                add(other, index);
            }
        }
        let mut twin_after = vec![NONE; items.len()];
        for (index, item) in items.iter().enumerate() {
            let same = |other: &Item| {
                (item.first, item.end, item.size, item.align)
                    == (other.first, other.end, other.size, other.align)
                    && item.fixed.is_none()
                    && other.fixed.is_none()
            };
            let next = items[index + 1..]
                .iter()
                .take_while(|other| other.first == item.first)
                .position(same);
            if let Some(next) = next {
                twin_after[index] = (index + 1 + next) as u32;
            }
        }
        Some(Self {
            origin: group.to_vec(),
            sections,
            meets,
            fullness: fullness(&items, sections),
            members: members(&items, sections),
            twin_after,
            sizes: items.iter().map(|item| item.size).collect(),
            aligns: items.iter().map(|item| item.align).collect(),
            items,
        })
    }

    /// What looking at every item once in each of its sections costs.
    pub(super) fn area(&self) -> u64 {
        self.members.values.len() as u64
    }
}

#[expect(clippy::cast_precision_loss, reason = "only used to weigh sections")]
fn fullness(items: &[Item], sections: usize) -> Vec<f64> {
    let mut totals = vec![0_u64; sections];
    for item in items {
        for total in &mut totals[item.first as usize..item.end as usize] {
            *total += item.size;
        }
    }
    let most = totals.iter().copied().max().unwrap_or(0).max(1) as f64;
    totals.into_iter().map(|total| total as f64 / most).collect()
}

fn members(items: &[Item], sections: usize) -> Lists {
    let mut lengths = vec![0; sections];
    for item in items {
        lengths[item.first as usize..item.end as usize].iter_mut().for_each(|length| *length += 1);
    }
    let mut members = Lists::of_lengths(&lengths);
    let mut next = members.start.clone();
    for (index, item) in (0..).zip(items) {
        for next in &mut next[item.first as usize..item.end as usize] {
            members.values[*next as usize] = index;
            *next += 1;
        }
    }
    members
}

//! One connected group of items, prepared for search: who meets whom, who lives in which section.

use crate::packing::{Item, Packing};

pub(super) const NONE: u32 = u32::MAX;

/// Lists of different length in one allocation.
pub(super) struct Lists {
    start: Vec<u32>,
    values: Vec<u32>,
}

impl Lists {
    fn collect(lists: impl Iterator<Item = Vec<u32>>) -> Self {
        let (mut start, mut values) = (vec![0], Vec::new());
        for list in lists {
            values.extend(list);
            start.push(u32::try_from(values.len()).expect("as checked in Model::new"));
        }
        Self { start, values }
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
    pairs: usize,
    /// For each item those it meets.
    pub(super) meets: Lists,
    /// For each item the next one of the same size and lifetime, or `NONE`.
    pub(super) twin_after: Vec<u32>,
}

impl Model {
    /// More pairs than this are not searched: a node would cost too much.
    const MAX_PAIRS: usize = 4_000_000;

    /// `group` holds item numbers of the packing in order of birth. `None` when it is too large.
    pub(super) fn new(packing: &Packing, group: &[u32]) -> Option<Self> {
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
        for (index, item) in items.iter().enumerate() {
            // In order of birth, those that meet `item` and come after it are one run.
            let run = items[index + 1..].iter().take_while(|other| other.first < item.end).count();
            pairs += run;
            if pairs > Self::MAX_PAIRS {
                return None;
            }
            later.push(index + 1..index + 1 + run);
        }
        let mut meets = vec![Vec::new(); items.len()];
        for (index, run) in later.into_iter().enumerate() {
            for other in run {
                meets[index].push(other as u32);
                meets[other].push(index as u32);
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
            pairs,
            meets: Lists::collect(meets.into_iter()),
            twin_after,
            sizes: items.iter().map(|item| item.size).collect(),
            aligns: items.iter().map(|item| item.align).collect(),
            items,
        })
    }

    /// For each section its live total as a share of the largest.
    #[expect(clippy::cast_precision_loss, reason = "only used to weigh sections")]
    pub(super) fn fullness(&self) -> Vec<f64> {
        let mut totals = vec![0_u64; self.sections];
        for item in &self.items {
            for section in item.first..item.end {
                totals[section as usize] += item.size;
            }
        }
        let most = totals.iter().copied().max().unwrap_or(0).max(1) as f64;
        totals.into_iter().map(|total| total as f64 / most).collect()
    }

    /// What a node costs, in nodes of a model where each item meets 64 others.
    pub(super) fn node_cost(&self) -> u64 {
        (self.pairs as u64 / (32 * self.items.len().max(1) as u64)).max(1)
    }

    /// For each section the items alive in it.
    pub(super) fn members(&self) -> Lists {
        let mut members = vec![Vec::new(); self.sections];
        for (index, item) in (0..).zip(&self.items) {
            for section in item.first..item.end {
                members[section as usize].push(index);
            }
        }
        Lists::collect(members.into_iter())
    }
}

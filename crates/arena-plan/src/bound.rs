//! The lower bound: the most bytes that are live at once. No plan can need less.

use crate::instance::Instance;
use crate::sections::Sections;

/// Live peaks of an instance, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Sizes rounded up to the granule: what every plan's peak is measured against.
    pub rounded_bytes: u64,
    /// Sizes as requested.
    pub requested_bytes: u64,
}

/// The largest sum of sizes that are live at one moment, rounded and as requested.
///
/// ```
/// use arena_plan::{Buffer, Instance, lower_bound};
///
/// let instance = Instance::new(vec![
///     Buffer::new(0, 2, 4).aligned(256),
///     Buffer::new(1, 3, 4).aligned(256),
///     Buffer::new(2, 4, 4).aligned(256),
/// ])
/// .unwrap();
/// let bound = lower_bound(&instance);
/// assert_eq!((bound.rounded_bytes, bound.requested_bytes), (512, 8));
/// ```
#[must_use]
pub fn lower_bound(instance: &Instance) -> Bound {
    lower_bound_in(instance, &Sections::new(instance))
}

/// [`lower_bound`] with the sections already known.
pub(crate) fn lower_bound_in(instance: &Instance, sections: &Sections) -> Bound {
    let peak_of = |size_bytes: &dyn Fn(usize) -> u64| {
        live_totals(sections, size_bytes).into_iter().max().unwrap_or(0)
    };
    // A fixed buffer needs its own end, however little is live with it.
    let fixed_bytes = (0..instance.len())
        .filter(|&index| instance.buffers()[index].size_bytes > 0)
        .filter_map(|index| {
            let offset_bytes = instance.buffers()[index].fixed_offset_bytes?;
            Some(offset_bytes + instance.occupied_bytes(index))
        })
        .max()
        .unwrap_or(0);
    Bound {
        rounded_bytes: peak_of(&|index| instance.occupied_bytes(index)).max(fixed_bytes),
        requested_bytes: peak_of(&|index| instance.buffers()[index].size_bytes),
    }
}

/// The sum of the sizes of the buffers that live in each section.
pub(crate) fn live_totals(sections: &Sections, size: &dyn Fn(usize) -> u64) -> Vec<u64> {
    let mut gained = vec![0_u64; sections.count as usize + 1];
    let mut lost = gained.clone();
    for (index, &(first, end)) in sections.ranges.iter().enumerate() {
        gained[first as usize] += size(index);
        lost[end as usize] += size(index);
    }
    gained.truncate(sections.count as usize);
    let mut live = 0;
    for (total, lost) in gained.iter_mut().zip(lost) {
        live = live + *total - lost;
        *total = live;
    }
    gained
}

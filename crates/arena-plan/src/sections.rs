//! Compressed time, which the solvers use instead of birth and death.

use crate::instance::Instance;

/// Time cut into sections. A new section begins only at the first death after births. So each section is a
/// maximal set of buffers that are live at once, and two buffers overlap in time exactly if they share a
/// section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sections {
    /// How many sections there are.
    pub count: u32,
    /// For each buffer the half-open range of sections it lives in.
    pub ranges: Vec<(u32, u32)>,
}

impl Sections {
    /// Compresses the instance's time; O(n log n).
    ///
    /// ```
    /// use arena_plan::{Buffer, Instance, Sections};
    ///
    /// let instance = Instance::new(vec![
    ///     Buffer::new(0, 10, 1),
    ///     Buffer::new(3, 5, 1),
    ///     Buffer::new(7, 9, 1),
    /// ])
    /// .unwrap();
    /// let sections = Sections::new(&instance);
    /// assert_eq!(sections.count, 2);
    /// assert_eq!(sections.ranges, [(0, 2), (0, 1), (1, 2)]);
    /// ```
    #[must_use]
    pub fn new(instance: &Instance) -> Self {
        let buffers = instance.buffers();
        // Deaths before births at the same moment: lifetimes are half-open.
        let mut events: Vec<(u64, bool, u32)> = Vec::with_capacity(2 * buffers.len());
        for (index, buffer) in (0..).zip(buffers) {
            events.push((buffer.birth, true, index));
            events.push((buffer.death, false, index));
        }
        events.sort_unstable();
        let mut ranges = vec![(0, 0); buffers.len()];
        let mut section = 0;
        let mut births_seen = false;
        for (_, is_birth, index) in events {
            if is_birth {
                births_seen = true;
                ranges[index as usize].0 = section;
            } else {
                if births_seen {
                    section += 1;
                    births_seen = false;
                }
                ranges[index as usize].1 = section;
            }
        }
        Self { count: section, ranges }
    }
}

//! How work is cut into parts.

/// Items of each part when `count` items are cut into at most `threads` parts: all parts have this
/// many but the last, which may have fewer. Never zero.
pub(super) fn part_len(count: usize, threads: usize) -> usize {
    count.div_ceil(threads.max(1)).max(1)
}

/// Number of parts that [`part_len`] leads to.
pub(super) fn part_count(count: usize, threads: usize) -> usize {
    count.div_ceil(part_len(count, threads))
}

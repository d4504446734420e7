//! Where the buffers of a recorded step lie: one thread writes, and others read what is there.
//!
//! A list that grows without moving, so that a request waits for no lock and needs no locked instruction.

#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

type Chunk = Box<[[AtomicU64; 2]]>;

/// Entries of the first chunk; each other one has twice as many as the one before.
const FIRST: usize = 256;

/// More than any memory has room for.
const CHUNKS: usize = 32;

/// Starts and ends of spans. One thread alone may change it.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    len: AtomicUsize,
    chunks: [OnceLock<Chunk>; CHUNKS],
}

impl Spans {
    /// How many there are; a reader can get each of them.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    pub(crate) fn push(&self, start: u64, end: u64) {
        let len = self.len.load(Ordering::Relaxed);
        let (chunk, at) = place(len);
        let entry = &self.chunks[chunk].get_or_init(|| {
            let empty = || [AtomicU64::new(0), AtomicU64::new(0)];
            std::iter::repeat_with(empty).take(FIRST << chunk).collect()
        })[at];
        entry[0].store(start, Ordering::Relaxed);
        entry[1].store(end, Ordering::Relaxed);
        self.len.store(len + 1, Ordering::Release);
    }

    /// The first so many stay.
    pub(crate) fn truncate(&self, len: usize) {
        self.len.store(len, Ordering::Release);
    }

    /// The span of this number.
    pub(crate) fn get(&self, number: usize) -> Option<(u64, u64)> {
        if number >= self.len() {
            return None;
        }
        let (chunk, at) = place(number);
        let [start, end] = &self.chunks[chunk].get()?[at];
        Some((start.load(Ordering::Relaxed), end.load(Ordering::Relaxed)))
    }
}

/// The chunk of a number, and the place in it.
const fn place(number: usize) -> (usize, usize) {
    let chunk = (number / FIRST + 1).ilog2();
    (chunk as usize, number - FIRST * ((1 << chunk) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_pushed_is_there_for_others_while_more_comes() {
        let spans = Spans::default();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while spans.len() < 5000 {
                    for number in (0..spans.len()).rev().take(3) {
                        let number_too = number as u64;
                        assert_eq!(spans.get(number), Some((number_too, number_too + 1)));
                    }
                }
            });
            (0..5000).for_each(|number| spans.push(number, number + 1));
        });
        assert!((0..5000).all(|number| spans.get(number as usize) == Some((number, number + 1))));
        assert_eq!(spans.get(5000), None);
        spans.truncate(300);
        spans.push(7, 9);
        assert_eq!((spans.get(300), spans.get(301)), (Some((7, 9)), None));
    }
}

//! Ranks that are threads of one process.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arena_scope::{Host, View, ViewMut};

use crate::{Collective, CollectiveError};

/// A rank that is a thread of this process, with an arena in host memory: for tests of a loop, without an MPI.
///
/// Sums are in the order of the ranks. A rank that fails or is gone lets the others wait until the timeout.
pub struct Local {
    rank: u32,
    size: u32,
    timeout: Duration,
    shared: Arc<Shared>,
}

struct Shared {
    meeting: Mutex<Meeting>,
    /// Something has changed.
    changed: Condvar,
}

/// One call of all ranks: each brings its part, and takes the result.
struct Meeting {
    /// Meetings that have ended.
    number: u64,
    /// The call that the first rank came for.
    call: Option<Call>,
    /// What each rank brought, and whether it is here.
    parts: Vec<(Vec<u8>, bool)>,
    /// Of the last meeting. Each rank takes it before it comes to the next one, so no rank misses it.
    result: Vec<u8>,
    /// Why there is no meeting any more.
    broken: Option<CollectiveError>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    AllReduce(usize),
    Broadcast(usize, u32),
    Barrier,
}

impl Call {
    const fn name(self) -> &'static str {
        match self {
            Self::AllReduce(_) => "an all-reduce",
            Self::Broadcast(..) => "a broadcast",
            Self::Barrier => "a barrier",
        }
    }
}

impl Local {
    /// `size` ranks, each of which goes to a thread.
    ///
    /// ```
    /// use arena_collective::{Collective, Local};
    /// use std::time::Duration;
    ///
    /// let ranks = Local::ranks(2, Duration::from_secs(10));
    /// let told: Vec<_> = std::thread::scope(|threads| {
    ///     let threads: Vec<_> = ranks
    ///         .into_iter()
    ///         .map(|rank| {
    ///             threads.spawn(move || {
    ///                 let mut bytes = [rank.rank() as u8];
    ///                 rank.broadcast(&mut bytes, 1).map(|()| bytes[0])
    ///             })
    ///         })
    ///         .collect();
    ///     threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    /// });
    /// assert_eq!(told, [Ok(1), Ok(1)]);
    /// ```
    #[must_use]
    pub fn ranks(size: u32, timeout: Duration) -> Vec<Self> {
        let meeting = Meeting {
            number: 0,
            call: None,
            parts: (0..size).map(|_| (Vec::new(), false)).collect(),
            result: Vec::new(),
            broken: None,
        };
        let shared = Shared { meeting: Mutex::new(meeting), changed: Condvar::new() };
        let shared = Arc::new(shared);
        (0..size).map(|rank| Self { rank, size, timeout, shared: Arc::clone(&shared) }).collect()
    }

    /// Meetings so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.lock().number
    }

    fn lock(&self) -> MutexGuard<'_, Meeting> {
        self.shared.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `is_so`, or the time is up, or there is no meeting any more.
    fn wait<'m>(
        &self,
        call: Call,
        mut meeting: MutexGuard<'m, Meeting>,
        is_so: impl Fn(&Meeting) -> bool,
    ) -> Result<MutexGuard<'m, Meeting>, CollectiveError> {
        let begin = Instant::now();
        loop {
            if let Some(error) = &meeting.broken {
                return Err(error.clone());
            }
            if is_so(&meeting) {
                return Ok(meeting);
            }
            let waited = begin.elapsed();
            if waited >= self.timeout {
                let ranks = (0..).zip(&meeting.parts);
                let missing = ranks.filter(|(_, (_, is_here))| !is_here).map(|(rank, _)| rank);
                let error = CollectiveError::TimedOut {
                    rank: self.rank,
                    size: self.size,
                    call: call.name(),
                    number: meeting.number + 1,
                    waited,
                    missing_ranks: missing.collect(),
                };
                meeting.broken = Some(error.clone());
                self.shared.changed.notify_all();
                return Err(error);
            }
            let left = self.timeout - waited;
            let woken = self.shared.changed.wait_timeout(meeting, left);
            (meeting, _) = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Brings a part, and takes the result when every rank has come.
    fn meet(&self, call: Call, part: &[u8], into: &mut [u8]) -> Result<(), CollectiveError> {
        let mut meeting = self.wait(call, self.lock(), |_| true)?;
        let expected = *meeting.call.get_or_insert(call);
        if expected != call {
            let reason = format!("rank {} came for {call:?}, others for {expected:?}", self.rank);
            let error = CollectiveError::Refused { call: call.name(), reason };
            meeting.broken = Some(error.clone());
            self.shared.changed.notify_all();
            return Err(error);
        }
        let number = meeting.number;
        let (mine, is_here) = &mut meeting.parts[self.rank as usize];
        mine.clear();
        mine.extend_from_slice(part);
        *is_here = true;
        if meeting.parts.iter().all(|(_, is_here)| *is_here) {
            meeting.conclude(call);
            self.shared.changed.notify_all();
        }
        let meeting = self.wait(call, meeting, |meeting| meeting.number > number)?;
        into.copy_from_slice(&meeting.result[..into.len()]);
        Ok(())
    }
}

impl Meeting {
    fn conclude(&mut self, call: Call) {
        let Self { number, parts, result, .. } = self;
        result.clear();
        match call {
            Call::AllReduce(_) => {
                result.extend_from_slice(&parts[0].0);
                for (part, _) in &parts[1..] {
                    let (sums, _) = result.as_chunks_mut();
                    let (values, _) = part.as_chunks();
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum =
                            (f32::from_ne_bytes(*sum) + f32::from_ne_bytes(*value)).to_ne_bytes();
                    }
                }
            }
            Call::Broadcast(_, root) => result.extend_from_slice(&parts[root as usize].0),
            Call::Barrier => {}
        }
        *number += 1;
        self.call = None;
        parts.iter_mut().for_each(|(_, is_here)| *is_here = false);
    }
}

impl Collective<Host> for Local {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn all_reduce_sum(
        &self,
        from: View<'_, f32>,
        into: ViewMut<'_, f32>,
    ) -> Result<(), CollectiveError> {
        let (from, into) = (from.as_slice(), into.into_mut_slice());
        CollectiveError::check_lengths(from.len(), into.len())?;
        let (from, into) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(into));
        self.meet(Call::AllReduce(from.len()), from, into)
    }

    fn broadcast(&self, bytes: &mut [u8], root: u32) -> Result<(), CollectiveError> {
        CollectiveError::check_root(root, self.size)?;
        let mine = bytes.to_vec();
        self.meet(Call::Broadcast(bytes.len(), root), &mine, bytes)
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        self.meet(Call::Barrier, &[], &mut [])
    }

    fn abort(&self) {
        let reason = format!("rank {} gave up", self.rank);
        let mut meeting = self.lock();
        meeting.broken.get_or_insert(CollectiveError::Refused { call: "abort", reason });
        self.shared.changed.notify_all();
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("rank", &self.rank).finish_non_exhaustive()
    }
}

//! Ranks on MPI, with buffers in host memory.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use arena_scope::{Host, View, ViewMut};
use mpi::collective::SystemOperation;
use mpi::environment::Universe;
use mpi::request::{self, Request};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Destination, Root, Source};
use mpi::{Threading, initialize_with_threading};

use crate::{Collective, CollectiveError};

/// The tag of the message with which a rank says that it waits.
const WAITING: i32 = 0x5741;
/// How long a rank collects such messages when its time is up.
const LISTEN: Duration = Duration::from_secs(2);
/// A rank that waits asks without a pause for so long, and then sleeps between two questions.
const SPIN: Duration = Duration::from_millis(1);
const SLEEP: Duration = Duration::from_micros(50);

/// Ranks that `mpirun` has started, with the system's MPI.
///
/// MPI can take back no call that has begun. So where the ranks do not come together within the timeout, a rank prints
/// which ones did not come, and ends all of them (`MPI_Abort`). A rank that dies is seen by `mpirun`, which ends the
/// others.
pub struct Mpi {
    world: SimpleCommunicator,
    timeout: Duration,
    /// Calls so far.
    calls: Cell<u64>,
    /// Ends MPI when it is dropped.
    _universe: Universe,
}

impl Mpi {
    /// Joins the other ranks. A process can do this once.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::NotStarted`] where MPI was begun already.
    pub fn join(timeout: Duration) -> Result<Self, CollectiveError> {
        let started = initialize_with_threading(Threading::Funneled);
        let (universe, _) = started.ok_or_else(|| CollectiveError::NotStarted {
            engine: "MPI",
            reason: "it was begun before in this process".to_owned(),
        })?;
        Ok(Self { world: universe.world(), timeout, calls: Cell::new(0), _universe: universe })
    }

    /// Waits for a request of all ranks, or ends the program.
    fn wait<'a, D: ?Sized, S: request::Scope<'a>>(
        &self,
        call: &'static str,
        mut request: Request<'a, D, S>,
    ) {
        let begin = Instant::now();
        loop {
            match request.test() {
                Ok(_) => return,
                Err(pending) => request = pending,
            }
            let waited = begin.elapsed();
            if waited > self.timeout {
                self.give_up(call, waited);
            }
            if waited > SPIN { thread::sleep(SLEEP) } else { thread::yield_now() }
        }
    }

    /// Says who waits, hears who else does, and ends every rank.
    fn give_up(&self, call: &'static str, waited: Duration) -> ! {
        let (rank, size) = (self.world.rank(), self.world.size());
        let number = self.calls.get();
        request::scope(|scope| {
            let others = (0..size).filter(|other| *other != rank);
            let told = others.map(|other| {
                let to = self.world.process_at_rank(other);
                to.immediate_send_with_tag(scope, &number, WAITING)
            });
            // They are not waited for: the process ends.
            told.for_each(std::mem::forget);
            let mut waits = vec![false; usize::try_from(size).unwrap_or(0)];
            let begin = Instant::now();
            while begin.elapsed() < LISTEN {
                let any = self.world.any_process();
                if let Some((message, status)) = any.immediate_matched_probe_with_tag(WAITING) {
                    let mut its = 0_u64;
                    message.matched_receive_into(&mut its);
                    if let Ok(from) = usize::try_from(status.source_rank()) {
                        waits[from] = true;
                    }
                }
                thread::sleep(SPIN);
            }
            let ranks = (0_u32..).zip(&waits);
            let missing_ranks = ranks
                .filter(|(other, waits)| !**waits && *other != rank.unsigned_abs())
                .map(|(other, _)| other)
                .collect();
            let (rank, size) = (rank.unsigned_abs(), size.unsigned_abs());
            let error =
                CollectiveError::TimedOut { rank, size, call, number, waited, missing_ranks };
            // Nobody is left who could. In one piece, for the others write there too.
            let _ = io::stderr().write_all(format!("{error}\n").as_bytes());
            self.world.abort(1)
        })
    }

    fn count(&self) {
        self.calls.set(self.calls.get() + 1);
    }
}

impl Collective<Host> for Mpi {
    fn rank(&self) -> u32 {
        self.world.rank().unsigned_abs()
    }

    fn size(&self) -> u32 {
        self.world.size().unsigned_abs()
    }

    fn all_reduce_sum(
        &self,
        from: View<'_, f32>,
        into: ViewMut<'_, f32>,
    ) -> Result<(), CollectiveError> {
        let (from, into) = (from.as_slice(), into.into_mut_slice());
        CollectiveError::check_lengths(from.len(), into.len())?;
        check_count("all-reduce", from.len())?;
        self.count();
        request::scope(|scope| {
            let sum = SystemOperation::sum();
            self.wait(
                "an all-reduce",
                self.world.immediate_all_reduce_into(scope, from, into, sum),
            );
        });
        Ok(())
    }

    fn broadcast(&self, bytes: &mut [u8], root: u32) -> Result<(), CollectiveError> {
        check_count("broadcast", bytes.len())?;
        CollectiveError::check_root(root, self.size())?;
        let root = self.world.process_at_rank(root.cast_signed());
        self.count();
        request::scope(|scope| {
            self.wait("a broadcast", root.immediate_broadcast_into(scope, bytes))
        });
        Ok(())
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        self.count();
        self.wait("a barrier", self.world.immediate_barrier());
        Ok(())
    }

    fn abort(&self) {
        self.world.abort(1)
    }
}

/// MPI counts elements by an `int`.
fn check_count(call: &'static str, len: usize) -> Result<(), CollectiveError> {
    let reason = || format!("MPI takes at most {} elements at once, not {len}", i32::MAX);
    match i32::try_from(len) {
        Ok(_) => Ok(()),
        Err(_) => Err(CollectiveError::Refused { call, reason: reason() }),
    }
}

impl fmt::Debug for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, size) = (self.world.rank(), self.world.size());
        f.debug_struct("Mpi").field("rank", &rank).field("size", &size).finish_non_exhaustive()
    }
}

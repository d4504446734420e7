//! Communicators: what a handle remembers, and how far its ranks have come.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::folder::{Place, Standing};
use crate::status::{Outcome, Status, refused};

/// A rank of a communicator. Calls that are queued, or captured in a graph, hold it too.
#[derive(Debug)]
pub(crate) struct Communicator {
    is_blocking: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` once the rank has aborted.
    place: Option<Place>,
    has_joined: bool,
    is_finalized: bool,
    /// How often the rank is told to ask again.
    asks_again: u32,
    /// Calls of all ranks that this one has ended.
    ended: u64,
    error: Option<(Status, String)>,
    /// Registered memory: address and bytes.
    registered: BTreeMap<u64, [u64; 2]>,
}

impl Communicator {
    pub(crate) fn new(place: Place, is_blocking: bool) -> Self {
        let state = State {
            place: Some(place),
            has_joined: false,
            is_finalized: false,
            asks_again: 0,
            ended: 0,
            error: None,
            registered: BTreeMap::new(),
        };
        Self { is_blocking, state: Mutex::new(state) }
    }

    pub(crate) const fn is_blocking(&self) -> bool {
        self.is_blocking
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the other ranks have brought about so far: success, `IN_PROGRESS`, or an error, which stays.
    pub(crate) fn progress(&self, is_busy: bool) -> Outcome {
        let mut state = self.state();
        state.look_around(is_busy);
        if let Some((status, why)) = &state.error {
            return Err(refused(*status, why.as_str()));
        }
        let waits = state.asks_again > 0 || state.is_finalized && is_busy;
        state.asks_again = state.asks_again.saturating_sub(1);
        if waits || !state.has_joined { Err(Status::IN_PROGRESS) } else { Ok(()) }
    }

    /// Refuses a call before the one before has succeeded, or after the end.
    pub(crate) fn check_ready(&self) -> Outcome {
        let state = self.state();
        if !state.has_joined || state.asks_again > 0 {
            let why = "the communicator is used before its previous call has succeeded";
            return Err(refused(Status::INVALID_ARGUMENT, why));
        }
        if state.is_finalized {
            return Err(refused(Status::INVALID_USAGE, "the communicator was finalized"));
        }
        Ok(())
    }

    /// What a call gives that was taken: success, or that it goes on behind the caller.
    pub(crate) fn taken(&self) -> Outcome {
        if self.is_blocking {
            return Ok(());
        }
        self.state().asks_again = 1;
        Err(Status::IN_PROGRESS)
    }

    pub(crate) fn finalize(&self) {
        self.state().is_finalized = true;
    }

    /// Keeps the first error.
    pub(crate) fn fail(&self, status: Status, why: String) {
        self.state().error.get_or_insert((status, why));
    }

    /// The number of the call of all ranks that is under way, or is the next one.
    pub(crate) fn number(&self) -> u64 {
        self.state().ended
    }

    /// The call that is under way has ended.
    pub(crate) fn end_call(&self) {
        let mut state = self.state();
        if let Some(place) = &state.place {
            place.end(state.ended);
        }
        state.ended += 1;
    }

    /// Does something in the place of this rank; `None` after an abort.
    pub(crate) fn at_place<R>(&self, body: impl FnOnce(&Place) -> R) -> Option<R> {
        self.state().place.as_ref().map(body)
    }

    /// Ends what is queued, wherever it stands. The others find this rank gone.
    pub(crate) fn abort(&self) {
        let mut state = self.state();
        if let Some(place) = state.place.take() {
            place.abandon(state.ended);
        }
    }

    /// Leaves the others in order.
    pub(crate) fn leave(&self) {
        let place = self.state().place.take();
        if let Some(place) = place {
            place.leave();
        }
    }

    pub(crate) fn register(&self, handle: u64, range: [u64; 2]) {
        self.state().registered.insert(handle, range);
    }

    pub(crate) fn deregister(&self, handle: u64) -> Result<[u64; 2], Status> {
        let range = self.state().registered.remove(&handle);
        range.ok_or_else(|| refused(Status::INVALID_ARGUMENT, "no such memory is registered"))
    }
}

impl State {
    /// Looks whether the ranks are all there, and whether one has gone.
    fn look_around(&mut self, is_busy: bool) {
        let Some(place) = &self.place else { return };
        if self.error.is_some() {
            return;
        }
        let standings: Vec<_> = place.others().map(|rank| (rank, place.standing(rank))).collect();
        // What it has given before is still good.
        let is_missed = |rank| !is_busy || !place.has_given(self.ended, rank);
        let gone = standings.iter().filter(|(_, standing)| *standing == Standing::Gone);
        if let Some((rank, _)) = gone.into_iter().find(|(rank, _)| is_missed(*rank)) {
            self.error = Some((Status::REMOTE_ERROR, format!("rank {rank} has gone")));
            return;
        }
        if self.has_joined || standings.iter().any(|(_, standing)| *standing == Standing::Absent) {
            return;
        }
        let ranks = place.ranks();
        match place.others().find(|rank| place.ranks_of(*rank) != Some(ranks)) {
            Some(rank) => {
                let why = format!("rank {rank} has come for another number of ranks than {ranks}");
                self.error = Some((Status::INVALID_USAGE, why));
            }
            None => self.has_joined = true,
        }
    }
}

static HANDLES: Mutex<(u64, BTreeMap<u64, Arc<Communicator>>)> =
    Mutex::new((0x4CC1_0000, BTreeMap::new()));

fn with<R>(body: impl FnOnce(&mut u64, &mut BTreeMap<u64, Arc<Communicator>>) -> R) -> R {
    let mut table = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    let (next, handles) = &mut *table;
    body(next, handles)
}

/// A number that no handle has had.
pub(crate) fn fresh_handle() -> u64 {
    with(|next, _| {
        *next += 16;
        *next
    })
}

pub(crate) fn add(handle: u64, communicator: Communicator) {
    with(|_, handles| handles.insert(handle, Arc::new(communicator)));
}

/// A communicator that is neither destroyed nor aborted.
pub(crate) fn get(handle: u64) -> Result<Arc<Communicator>, Status> {
    let found = with(|_, handles| handles.get(&handle).cloned());
    found.ok_or_else(|| refused(Status::INVALID_ARGUMENT, "there is no such communicator"))
}

pub(crate) fn remove(handle: u64) -> Result<Arc<Communicator>, Status> {
    let found = with(|_, handles| handles.remove(&handle));
    found.ok_or_else(|| refused(Status::INVALID_ARGUMENT, "there is no such communicator"))
}

/// Whether calls are queued, or captured in a graph.
pub(crate) fn is_busy(handle: u64) -> bool {
    with(|_, handles| handles.get(&handle).is_some_and(|held| Arc::strong_count(held) > 1))
}

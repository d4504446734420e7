//! The calls of all ranks, as their streams run them.

use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::communicator::Communicator;
use crate::folder::Place;
use crate::status::Status;

/// What the ranks do together.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    /// `count` elements of `f32` are added up from `from` to `to`.
    Sum { from: u64, to: u64, count: usize },
    /// `len` bytes go from `from` on the root to `to` on every rank.
    Copy { from: u64, to: u64, len: usize, root: u32 },
}

/// A call on one rank. A graph runs it again and again.
pub(crate) struct Work {
    communicator: Arc<Communicator>,
    call: Call,
    begun: Mutex<Option<Begun>>,
}

/// Where a run of it stands.
struct Begun {
    /// Among all calls of the communicator.
    number: u64,
    /// What each rank has given, as far as it has.
    given: Vec<Option<Vec<u8>>>,
}

impl Call {
    /// The device memory that this rank touches: address and bytes.
    pub(crate) fn ranges(self, rank: u32) -> Vec<[u64; 2]> {
        match self {
            Self::Sum { from, to, count } => [from, to].map(|at| [at, 4 * count as u64]).into(),
            Self::Copy { from, to, len, root } => {
                let source = (rank == root).then_some([from, len as u64]);
                source.into_iter().chain([[to, len as u64]]).collect()
            }
        }
    }

    /// What has to be the same on every rank.
    fn words(self) -> String {
        match self {
            Self::Sum { count, .. } => format!("an all-reduce of {count} elements"),
            Self::Copy { len, root, .. } => format!("a broadcast of {len} bytes from rank {root}"),
        }
    }

    /// What a rank gives.
    fn given(self, rank: u32) -> Vec<u8> {
        match self {
            Self::Sum { from, count, .. } => read(from, 4 * count),
            Self::Copy { from, len, root, .. } if rank == root => read(from, len),
            Self::Copy { .. } => Vec::new(),
        }
    }

    /// Makes of what all ranks have given what every one gets.
    fn finish(self, given: &[&[u8]]) {
        match self {
            Self::Sum { to, .. } => {
                let mut sums = given[0].to_vec();
                for others in &given[1..] {
                    let (sums, _) = sums.as_chunks_mut();
                    for (sum, other) in sums.iter_mut().zip(others.as_chunks().0) {
                        *sum =
                            (f32::from_ne_bytes(*sum) + f32::from_ne_bytes(*other)).to_ne_bytes();
                    }
                }
                write(to, &sums);
            }
            Self::Copy { to, root, .. } => write(to, given[root as usize]),
        }
    }
}

impl Work {
    pub(crate) const fn new(communicator: Arc<Communicator>, call: Call) -> Self {
        Self { communicator, call, begun: Mutex::new(None) }
    }

    /// Goes on as far as it can. Whether it is done: it ends when every rank has come, and when this one aborts.
    pub(crate) fn go_on(&self) -> bool {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let done = self.communicator.at_place(|place| place.rank());
        let Some(rank) = done else { return true };
        let begun_now = begun.is_none();
        let run = begun
            .get_or_insert_with(|| Begun { number: self.communicator.number(), given: Vec::new() });
        if begun_now {
            let message = message(&self.call.words(), &self.call.given(rank));
            let outcome = self.communicator.at_place(|place| place.give(run.number, &message));
            if let Some(Err(error)) = outcome {
                self.communicator.fail(Status::SYSTEM_ERROR, error.to_string());
            }
        }
        let Some(()) = self.communicator.at_place(|place| run.look(place)) else { return true };
        let Some(messages) = run.messages() else { return false };
        let words = self.call.words();
        let other = (0..).zip(&messages).find(|(_, (theirs, _))| **theirs != *words.as_bytes());
        if let Some((other, (theirs, _))) = other {
            let theirs = String::from_utf8_lossy(theirs);
            let why = format!("rank {rank} makes {words}, and rank {other} {theirs}");
            // A device would wait for ever, or compute something; so only an abort ends it.
            self.communicator.fail(Status::INVALID_USAGE, why);
            return false;
        }
        let given: Vec<&[u8]> = messages.into_iter().map(|(_, bytes)| bytes).collect();
        self.call.finish(&given);
        self.communicator.end_call();
        *begun = None;
        true
    }
}

impl Begun {
    /// Reads what has been given since.
    fn look(&mut self, place: &Place) {
        self.given.resize(place.ranks() as usize, None);
        let missing = (0..).zip(&mut self.given).filter(|(_, given)| given.is_none());
        missing.for_each(|(rank, given)| *given = place.take_from(self.number, rank));
    }

    /// The words and the bytes of every rank; `None` as long as one is missing.
    fn messages(&self) -> Option<Vec<(&[u8], &[u8])>> {
        self.given.iter().map(|given| given.as_deref().map(parts)).collect()
    }
}

/// Words, a NUL, and bytes.
fn message(words: &str, bytes: &[u8]) -> Vec<u8> {
    [words.as_bytes(), &[0], bytes].concat()
}

fn parts(message: &[u8]) -> (&[u8], &[u8]) {
    let end = message.iter().position(|byte| *byte == 0).unwrap_or(message.len());
    (&message[..end], message.get(end + 1..).unwrap_or_default())
}

fn read(address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let from = ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: the driver has found the range in live memory of the device right before this work, which it runs alone.
    unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
    bytes
}

fn write(address: u64, bytes: &[u8]) {
    let to = ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: as above. A message of another length has other words, and is refused.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

//! Pickles, read without running anything, and written.
//!
//! [`Pickle::read`] knows the opcodes that the dumps of PyTorch's memory snapshots are made of, and refuses all
//! others: those that import or call something are refused as such. It reads a file twice. The first pass counts what
//! the second will hold, so that a file which would unpack to too much is refused before anything is allocated.
//!
//! Numbers and texts are not copied: a [`Value`] is the place of its opcode in the file, or the number of a container.

mod opcodes;
mod write;

use thiserror::Error;

use opcodes::{Op, Reader};
pub(crate) use write::Writer;

/// A place in a pickle, and what is wrong there.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("byte {at}: {problem}")]
pub struct PickleError {
    /// The byte, counted from 0.
    pub at: usize,
    /// What is wrong there.
    pub problem: PickleProblem,
}

/// What can be wrong with a pickle.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PickleProblem {
    /// It ends in the middle.
    #[error("the file ends too early")]
    Truncated,
    /// Only the protocols 2 to 5 are known.
    #[error("pickle protocol {0} is not known, only 2 to 5 are")]
    Protocol(u8),
    /// An opcode that imports, makes or calls something.
    #[error("opcode 0x{0:02x} would run code, which a memory snapshot has no need of")]
    RunsCode(u8),
    /// An opcode that no snapshot has.
    #[error("opcode 0x{0:02x} is not one of a memory snapshot")]
    UnknownOpcode(u8),
    /// An opcode takes more from the stack than is there.
    #[error("the pickle takes a value that is not there")]
    EmptyStack,
    /// Open marks, or memo entries that are not there.
    #[error("the pickle has more than {MAX_MARKS} open marks")]
    TooDeep,
    /// A memo entry that was not written, or one that leaves others out.
    #[error("memo entry {0} is not the next one")]
    Memo(u32),
    /// Something else than a list is appended to, or than a dictionary is filled.
    #[error("there is no {0} here to be filled")]
    NotAContainer(&'static str),
    /// A number of more than 64 bits.
    #[error("a number of {0} bytes is too long")]
    LongNumber(usize),
    /// It would unpack to too much.
    #[error("the file would unpack to {0} bytes, more than three times its size")]
    TooLarge(u64),
    /// Something follows its end.
    #[error("the pickle has ended, but the file goes on")]
    GoesOn,
    /// A value is not what a snapshot has there.
    #[error("{0} is missing or not {1}")]
    NotA(&'static str, &'static str),
    /// One list or dictionary stands in several places, and so unpacks to much more than the file.
    #[error("the lists of the file repeat each other")]
    Repeats,
}

impl PickleProblem {
    pub(crate) fn at(self, at: usize) -> PickleError {
        PickleError { at, problem: self }
    }
}

/// Marks that may be open at once. A snapshot has not even ten.
const MAX_MARKS: usize = 64;

/// What even a tiny file may unpack to.
const LEAST_BYTES: u64 = 4096;

/// Most pairs of a dictionary that is searched for keys. A snapshot's have at most 20.
const MAX_PAIRS: usize = 64;

/// The place of an opcode, or with this bit the number of a container.
const CONTAINER: u32 = 1 << 31;

/// A value of a pickle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Value(u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    List,
    Tuple,
    Dict,
}

#[derive(Debug, Clone, Copy)]
struct Container {
    kind: Kind,
    /// Where it begins in the file.
    at: u32,
    first: u32,
    last: u32,
}

/// Items that one opcode has put into a container.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    start: u32,
    len: u32,
    next: u32,
}

const NO_CHUNK: u32 = u32::MAX;

/// A pickle that was read.
#[derive(Debug)]
pub(crate) struct Pickle<'f> {
    file: &'f [u8],
    items: Vec<Value>,
    chunks: Vec<Chunk>,
    containers: Vec<Container>,
    root: Value,
}

/// What a pickle unpacks to.
#[derive(Debug, Default)]
struct Counts {
    items: usize,
    chunks: usize,
    containers: usize,
    memo: usize,
    stack: usize,
}

impl Counts {
    /// Reads the file once, and follows only how many values are on the stack.
    fn of(file: &[u8]) -> Result<Self, PickleError> {
        let mut counts = Self::default();
        let (mut depth, mut marks) = (0_usize, Vec::with_capacity(MAX_MARKS));
        let mut reader = Reader::new(file)?;
        loop {
            let (at, op) = reader.next()?;
            let taken = match op {
                Op::Stop => break,
                Op::Mark if marks.len() == MAX_MARKS => {
                    return Err(PickleProblem::TooDeep.at(at));
                }
                Op::Mark => {
                    marks.push(depth);
                    0
                }
                Op::ToMark(_) => {
                    let mark = marks.pop().ok_or(PickleProblem::EmptyStack.at(at))?;
                    depth.checked_sub(mark).ok_or(PickleProblem::EmptyStack.at(at))?
                }
                Op::Make(_, items) | Op::Fill(_, items) => items,
                Op::Put(_) | Op::Memoize => {
                    counts.memo += 1;
                    0
                }
                Op::Get(_) | Op::Scalar => 0,
            };
            let floor = marks.last().copied().unwrap_or(0);
            depth = depth
                .checked_sub(taken)
                .filter(|depth| *depth >= floor)
                .ok_or(PickleProblem::EmptyStack.at(at))?;
            if taken > 0 {
                counts.items += taken;
                counts.chunks += 1;
            }
            if op.makes() {
                counts.containers += 1;
            }
            depth += usize::from(op.pushes());
            counts.stack = counts.stack.max(depth);
        }
        Ok(counts)
    }

    fn bytes(&self) -> u64 {
        let of = |count: usize, size: usize| count as u64 * size as u64;
        of(self.items + self.memo + self.stack, size_of::<Value>())
            + of(self.chunks, size_of::<Chunk>())
            + of(self.containers, size_of::<Container>())
    }
}

impl<'f> Pickle<'f> {
    /// Reads a pickle.
    pub(crate) fn read(file: &'f [u8]) -> Result<Self, PickleError> {
        if file.len() > CONTAINER as usize {
            return Err(PickleProblem::TooLarge(file.len() as u64).at(0));
        }
        let counts = Counts::of(file)?;
        if counts.bytes() > (3 * file.len() as u64).max(LEAST_BYTES) {
            return Err(PickleProblem::TooLarge(counts.bytes()).at(0));
        }
        let mut machine = Machine {
            pickle: Self {
                file,
                items: Vec::with_capacity(counts.items),
                chunks: Vec::with_capacity(counts.chunks),
                containers: Vec::with_capacity(counts.containers),
                root: Value(0),
            },
            stack: Vec::with_capacity(counts.stack),
            marks: Vec::with_capacity(MAX_MARKS),
            memo: Vec::with_capacity(counts.memo),
        };
        machine.run()?;
        Ok(machine.pickle)
    }

    pub(crate) fn root(&self) -> Value {
        self.root
    }

    /// Where a value begins in the file.
    pub(crate) fn place(&self, value: Value) -> usize {
        self.container(value).map_or(value.0, |container| container.at) as usize
    }

    /// The number of a container, by which it is known again.
    pub(crate) fn number(&self, value: Value) -> Option<u32> {
        (value.0 & CONTAINER != 0).then_some(value.0 & !CONTAINER)
    }

    fn container(&self, value: Value) -> Option<Container> {
        Some(self.containers[self.number(value)? as usize])
    }

    fn items_of(&self, container: Container) -> impl Iterator<Item = &[Value]> {
        let mut next = container.first;
        std::iter::from_fn(move || {
            let chunk = *self.chunks.get(next as usize)?;
            next = chunk.next;
            Some(&self.items[chunk.start as usize..][..chunk.len as usize])
        })
    }

    /// The items of a list or a tuple.
    pub(crate) fn list(&self, value: Value) -> Option<impl Iterator<Item = Value>> {
        let container = self.container(value).filter(|container| container.kind != Kind::Dict)?;
        Some(self.items_of(container).flatten().copied())
    }

    /// How many items a list or a tuple has; 0 for what is none.
    pub(crate) fn len(&self, value: Value) -> usize {
        let container = self.container(value).filter(|container| container.kind != Kind::Dict);
        container.map_or(0, |container| self.items_of(container).map(<[_]>::len).sum())
    }

    /// A dictionary's value of a key, the last one that was set. `None` for what is no dictionary, or has too many
    /// pairs to be one of a snapshot.
    pub(crate) fn get(&self, dict: Value, key: &str) -> Option<Value> {
        let mut found = None;
        let mut pairs = 0;
        for [name, value] in self.pairs(dict)? {
            pairs += 1;
            if pairs > MAX_PAIRS {
                return None;
            }
            if self.text(name) == Some(key.as_bytes()) {
                found = Some(value);
            }
        }
        found
    }

    fn pairs(&self, dict: Value) -> Option<impl Iterator<Item = [Value; 2]>> {
        let container = self.container(dict).filter(|container| container.kind == Kind::Dict)?;
        Some(
            self.items_of(container)
                .flat_map(|items| items.chunks_exact(2).map(|pair| [pair[0], pair[1]])),
        )
    }

    /// How many values one opcode has put into a list or a dictionary at most.
    #[cfg(test)]
    pub(crate) fn largest_chunk(&self) -> u32 {
        self.chunks.iter().map(|chunk| chunk.len).max().unwrap_or(0)
    }

    /// A text, as its bytes.
    pub(crate) fn text(&self, value: Value) -> Option<&'f [u8]> {
        if value.0 & CONTAINER != 0 { None } else { opcodes::text(self.file, value.0 as usize) }
    }

    /// A whole number from 0 to `u64::MAX`.
    pub(crate) fn unsigned(&self, value: Value) -> Option<u64> {
        u64::try_from(self.integer(value)?).ok()
    }

    /// A whole number.
    pub(crate) fn integer(&self, value: Value) -> Option<i128> {
        if value.0 & CONTAINER != 0 { None } else { opcodes::integer(self.file, value.0 as usize) }
    }
}

/// The second pass.
struct Machine<'f> {
    pickle: Pickle<'f>,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: Vec<Value>,
}

impl Machine<'_> {
    fn run(&mut self) -> Result<(), PickleError> {
        let file = self.pickle.file;
        let mut reader = Reader::new(file)?;
        loop {
            let (at, op) = reader.next()?;
            match op {
                Op::Stop => {
                    self.pickle.root = self.stack.pop().ok_or(PickleProblem::EmptyStack.at(at))?;
                    if reader.at() < file.len() {
                        return Err(PickleProblem::GoesOn.at(reader.at()));
                    }
                    return Ok(());
                }
                Op::Mark => self.marks.push(self.stack.len()),
                Op::Scalar => self.stack.push(Value(at as u32)),
                Op::Put(number) => self.remember(number, at)?,
                Op::Memoize => self.remember(self.memo.len() as u32, at)?,
                Op::Get(number) => {
                    let value = self.memo.get(number as usize).copied();
                    self.stack.push(value.ok_or(PickleProblem::Memo(number).at(at))?);
                }
                Op::Make(kind, items) => self.make(kind, items, at)?,
                Op::Fill(kind, items) => self.fill(kind, items, at)?,
                Op::ToMark(what) => {
                    let mark = self.marks.pop().ok_or(PickleProblem::EmptyStack.at(at))?;
                    let items = self.stack.len() - mark;
                    match what {
                        opcodes::ToMark::Make(kind) => self.make(kind, items, at)?,
                        opcodes::ToMark::Fill(kind) => self.fill(kind, items, at)?,
                    }
                }
            }
        }
    }

    fn remember(&mut self, number: u32, at: usize) -> Result<(), PickleError> {
        let top = *self.stack.last().ok_or(PickleProblem::EmptyStack.at(at))?;
        let known = self.memo.len();
        match self.memo.get_mut(number as usize) {
            Some(entry) => *entry = top,
            None if number as usize == known => self.memo.push(top),
            None => return Err(PickleProblem::Memo(number).at(at)),
        }
        Ok(())
    }

    /// Takes the topmost values into a chunk.
    fn chunk(&mut self, items: usize) -> Option<u32> {
        if items == 0 {
            return None;
        }
        let pickle = &mut self.pickle;
        let (start, len) = (pickle.items.len() as u32, items as u32);
        pickle.items.extend(self.stack.drain(self.stack.len() - items..));
        pickle.chunks.push(Chunk { start, len, next: NO_CHUNK });
        Some((pickle.chunks.len() - 1) as u32)
    }

    fn make(&mut self, kind: Kind, items: usize, at: usize) -> Result<(), PickleError> {
        if kind == Kind::Dict && items % 2 == 1 {
            return Err(PickleProblem::EmptyStack.at(at));
        }
        let chunk = self.chunk(items).unwrap_or(NO_CHUNK);
        self.stack.push(Value(self.pickle.containers.len() as u32 | CONTAINER));
        self.pickle.containers.push(Container { kind, at: at as u32, first: chunk, last: chunk });
        Ok(())
    }

    fn fill(&mut self, kind: Kind, items: usize, at: usize) -> Result<(), PickleError> {
        let missing =
            PickleProblem::NotAContainer(if kind == Kind::Dict { "dictionary" } else { "list" });
        let below = self.stack.len().checked_sub(items + 1).map(|place| self.stack[place]);
        let number = below.and_then(|below| self.pickle.number(below));
        let Some(number) =
            number.filter(|number| self.pickle.containers[*number as usize].kind == kind)
        else {
            return Err(missing.at(at));
        };
        if kind == Kind::Dict && items % 2 == 1 {
            return Err(PickleProblem::EmptyStack.at(at));
        }
        if let Some(chunk) = self.chunk(items) {
            let container = &mut self.pickle.containers[number as usize];
            let last = std::mem::replace(&mut container.last, chunk);
            if last == NO_CHUNK {
                container.first = chunk;
            } else {
                self.pickle.chunks[last as usize].next = chunk;
            }
        }
        Ok(())
    }
}

//! The opcodes of a snapshot, one after another.

use super::{Kind, PickleError, PickleProblem};

/// What an opcode does to the stack.
#[derive(Debug, Clone, Copy)]
pub(super) enum Op {
    Stop,
    Mark,
    /// A number, a text, a truth value or None.
    Scalar,
    /// A container of the topmost values; the number says how many.
    Make(Kind, usize),
    /// The topmost values go into the container below them; the number says how many.
    Fill(Kind, usize),
    /// The same with the values above the last mark.
    ToMark(ToMark),
    Put(u32),
    Memoize,
    Get(u32),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum ToMark {
    Make(Kind),
    Fill(Kind),
}

impl Op {
    /// Whether it makes a container.
    pub(super) fn makes(self) -> bool {
        matches!(self, Self::Make(..) | Self::ToMark(ToMark::Make(_)))
    }

    /// Whether it leaves a value on the stack that was not there.
    pub(super) fn pushes(self) -> bool {
        self.makes() || matches!(self, Self::Scalar | Self::Get(_))
    }
}

const PROTO: u8 = 0x80;
const FRAME: u8 = 0x95;
const LONG1: u8 = 0x8a;
const BININT: u8 = b'J';
const BININT1: u8 = b'K';
const BININT2: u8 = b'M';
const SHORT_BINUNICODE: u8 = 0x8c;
const BINUNICODE: u8 = b'X';
const BINUNICODE8: u8 = 0x8d;

/// The longest whole number: 64 bits, and one for the sign.
const MAX_NUMBER_BYTES: usize = 9;

pub(super) struct Reader<'f> {
    file: &'f [u8],
    at: usize,
}

impl<'f> Reader<'f> {
    /// Reads the head of a pickle.
    pub(super) fn new(file: &'f [u8]) -> Result<Self, PickleError> {
        match *file {
            [PROTO, 2..=5, ..] => Ok(Self { file, at: 2 }),
            [PROTO, version, ..] => Err(PickleProblem::Protocol(version).at(1)),
            [PROTO] | [] => Err(PickleProblem::Truncated.at(file.len())),
            [other, ..] => Err(PickleProblem::UnknownOpcode(other).at(0)),
        }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The next opcode and where it lies. All of its argument is in the file.
    pub(super) fn next(&mut self) -> Result<(usize, Op), PickleError> {
        loop {
            let at = self.at;
            let code = self.bytes(1)?[0];
            let op = match code {
                // A frame says how many bytes belong together. Nothing depends on it.
                FRAME => {
                    let frame = self.number(8)?;
                    if frame > (self.file.len() - self.at) as u64 {
                        return Err(PickleProblem::Truncated.at(at));
                    }
                    continue;
                }
                b'.' => Op::Stop,
                b'(' => Op::Mark,
                b']' => Op::Make(Kind::List, 0),
                b'}' => Op::Make(Kind::Dict, 0),
                b')' => Op::Make(Kind::Tuple, 0),
                0x85..=0x87 => Op::Make(Kind::Tuple, usize::from(code - 0x84)),
                b't' => Op::ToMark(ToMark::Make(Kind::Tuple)),
                b'l' => Op::ToMark(ToMark::Make(Kind::List)),
                b'd' => Op::ToMark(ToMark::Make(Kind::Dict)),
                b'a' => Op::Fill(Kind::List, 1),
                b's' => Op::Fill(Kind::Dict, 2),
                b'e' => Op::ToMark(ToMark::Fill(Kind::List)),
                b'u' => Op::ToMark(ToMark::Fill(Kind::Dict)),
                b'q' => Op::Put(self.number(1)? as u32),
                b'r' => Op::Put(self.number(4)? as u32),
                0x94 => Op::Memoize,
                b'h' => Op::Get(self.number(1)? as u32),
                b'j' => Op::Get(self.number(4)? as u32),
                b'N' | 0x88 | 0x89 => Op::Scalar,
                BININT1 => self.scalar(1)?,
                BININT2 => self.scalar(2)?,
                BININT => self.scalar(4)?,
                b'G' => self.scalar(8)?,
                LONG1 => {
                    let bytes = self.number(1)? as usize;
                    if bytes > MAX_NUMBER_BYTES {
                        return Err(PickleProblem::LongNumber(bytes).at(at));
                    }
                    self.scalar(bytes)?
                }
                SHORT_BINUNICODE => self.text(1)?,
                BINUNICODE => self.text(4)?,
                BINUNICODE8 => self.text(8)?,
                // Imports, calls and builds; persistent ids; the classes of protocols 0 to 2.
                b'c'
                | b'i'
                | b'o'
                | b'R'
                | b'b'
                | b'P'
                | b'Q'
                | 0x81
                | 0x82..=0x84
                | 0x92
                | 0x93 => {
                    return Err(PickleProblem::RunsCode(code).at(at));
                }
                _ => return Err(PickleProblem::UnknownOpcode(code).at(at)),
            };
            return Ok((at, op));
        }
    }

    fn bytes(&mut self, count: usize) -> Result<&'f [u8], PickleError> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.file.len());
        let end = end.ok_or(PickleProblem::Truncated.at(self.file.len()))?;
        let bytes = &self.file[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn number(&mut self, bytes: usize) -> Result<u64, PickleError> {
        Ok(unsigned(self.bytes(bytes)?))
    }

    fn scalar(&mut self, bytes: usize) -> Result<Op, PickleError> {
        self.bytes(bytes)?;
        Ok(Op::Scalar)
    }

    fn text(&mut self, length_bytes: usize) -> Result<Op, PickleError> {
        let length = self.number(length_bytes)?;
        self.scalar(usize::try_from(length).unwrap_or(usize::MAX))
    }
}

/// At most eight bytes, the lowest first.
fn unsigned(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The text of an opcode that was read before.
pub(super) fn text(file: &[u8], at: usize) -> Option<&[u8]> {
    let length_bytes = match file[at] {
        SHORT_BINUNICODE => 1,
        BINUNICODE => 4,
        BINUNICODE8 => 8,
        _ => return None,
    };
    let (length, rest) = file[at + 1..].split_at(length_bytes);
    Some(&rest[..unsigned(length) as usize])
}

/// The whole number of an opcode that was read before.
pub(super) fn integer(file: &[u8], at: usize) -> Option<i128> {
    let rest = &file[at + 1..];
    let (bytes, is_signed) = match file[at] {
        BININT1 => (&rest[..1], false),
        BININT2 => (&rest[..2], false),
        BININT => (&rest[..4], true),
        LONG1 => (&rest[1..][..usize::from(rest[0])], true),
        _ => return None,
    };
    let is_negative = is_signed && bytes.last().is_some_and(|last| *last >= 0x80);
    let number = bytes.iter().rev().fold(0_i128, |number, byte| number << 8 | i128::from(*byte));
    Some(if is_negative { number - (1_i128 << (8 * bytes.len())) } else { number })
}

//! Decoded instructions: operands are register numbers, constants included, so that the loop looks nothing up.

use super::convert::Conversion;
use super::scalar::{Binary, Ternary, Unary};
use super::types::Type;

/// Number of a register. Numbers and special registers live in registers of their own.
pub(crate) type Register = u32;

/// Stands for "no register".
pub(crate) const NONE: Register = Register::MAX;

/// An instruction and the predicate that it hangs on.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// The predicate, or [`NONE`].
    pub(crate) guard: Register,
    /// Whether it runs when the predicate is false.
    pub(crate) negated: bool,
    pub(crate) op: Op,
}

/// State spaces that an address may belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Shared,
    Local,
    Param,
    /// Told by the address.
    Generic,
}

/// An address: a register (or [`NONE`]) plus a constant, in a space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) space: Space,
    pub(crate) base: Register,
    pub(crate) offset: i64,
}

/// What a comparison's result is joined with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Join {
    And,
    Or,
    Xor,
}

/// Read-modify-write operations.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AtomicOp {
    /// The new value from the old one and the operand.
    Update(Binary),
    CompareAndSwap,
}

/// What the lanes of a warp do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WarpOp {
    ShuffleUp,
    ShuffleDown,
    ShuffleXor,
    ShuffleIndex,
    VoteAll,
    VoteAny,
    VoteUniform,
    Ballot,
    MatchAny,
    MatchAll,
    ActiveMask,
    Synchronise,
    /// A reduction; `Type` says how the lanes' values are seen.
    Reduce(Reduction, Type),
}

/// How `redux.sync` joins values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

/// A warp instruction's operands. Unused ones are [`NONE`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct WarpCall {
    pub(crate) op: WarpOp,
    pub(crate) to: Register,
    /// The predicate that says whether the value came from another lane in range.
    pub(crate) valid: Register,
    pub(crate) value: Register,
    pub(crate) negated: bool,
    pub(crate) lane: Register,
    pub(crate) clamp: Register,
    pub(crate) mask: Register,
    /// Bytes of a value that is matched.
    pub(crate) bytes: u8,
}

/// A call's function and the bytes that go over: `(from, to, bytes)` in the caller's and the callee's parameter space.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) function: usize,
    pub(crate) arguments: Vec<(u32, u32, u32)>,
    pub(crate) results: Vec<(u32, u32, u32)>,
}

/// What an instruction does.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Nop,
    Move {
        to: Register,
        a: Register,
    },
    Unary {
        f: Unary,
        to: Register,
        a: Register,
    },
    Binary {
        f: Binary,
        to: Register,
        a: Register,
        b: Register,
    },
    /// A function of `f32` that a device computes only nearly.
    Approximate {
        f: Unary,
        to: Register,
        a: Register,
    },
    ApproximateQuotient {
        f: Binary,
        to: Register,
        a: Register,
        b: Register,
    },
    /// Reads a clock.
    Clock {
        to: Register,
    },
    Convert {
        conversion: Conversion,
        to: Register,
        a: Register,
    },
    Ternary {
        f: Ternary,
        to: Register,
        a: Register,
        b: Register,
        c: Register,
    },
    // The commonest operations again, without the indirect call.
    AddF32 {
        to: Register,
        a: Register,
        b: Register,
    },
    MulF32 {
        to: Register,
        a: Register,
        b: Register,
    },
    FmaF32 {
        to: Register,
        a: Register,
        b: Register,
        c: Register,
    },
    Add32 {
        to: Register,
        a: Register,
        b: Register,
    },
    Add64 {
        to: Register,
        a: Register,
        b: Register,
    },
    Mad32 {
        to: Register,
        a: Register,
        b: Register,
        c: Register,
    },
    MulWide32 {
        to: Register,
        a: Register,
        b: Register,
    },
    Load32 {
        to: Register,
        base: Register,
        offset: i32,
        shared: bool,
    },
    /// A comparison, its negation in `also`, and what both are joined with.
    Compare {
        f: Binary,
        to: Register,
        also: Register,
        a: Register,
        b: Register,
    },
    CompareJoin(Box<CompareJoin>),
    Select {
        to: Register,
        a: Register,
        b: Register,
        when: Register,
    },
    Logic3 {
        lut: u8,
        to: Register,
        a: Register,
        b: Register,
        c: Register,
    },
    InsertBits(Box<[Register; 5]>, bool),
    /// Addition or subtraction through the carry register.
    Carry(Box<Carry>),
    /// Several small registers into one: each takes `bytes`.
    Pack {
        to: Register,
        parts: Box<[Register]>,
        bytes: u8,
    },
    /// One register into several small ones.
    Unpack {
        parts: Box<[Register]>,
        a: Register,
        bytes: u8,
    },
    /// The address of this call's local memory.
    LocalAddress {
        to: Register,
        offset: u32,
    },
    Load(Box<Load>),
    Store(Box<Store>),
    Atomic(Box<Atomic>),
    Branch {
        to: u32,
    },
    IndexedBranch {
        index: Register,
        targets: Box<[u32]>,
    },
    Call(Box<Call>),
    Return,
    Exit,
    Trap,
    /// A failed assertion of the program.
    Assert,
    /// A barrier of the block: its number, and how many threads it waits for (0: all).
    Barrier(Box<Barrier>),
    Warp(Box<WarpCall>),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct CompareJoin {
    pub(crate) f: Binary,
    pub(crate) to: Register,
    pub(crate) also: Register,
    pub(crate) a: Register,
    pub(crate) b: Register,
    pub(crate) with: Register,
    pub(crate) negated: bool,
    pub(crate) join: Join,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Carry {
    pub(crate) to: Register,
    pub(crate) a: Register,
    pub(crate) b: Register,
    /// Holds the carry between the instructions of a chain.
    pub(crate) flag: Register,
    pub(crate) subtract: bool,
    pub(crate) carry_in: bool,
    pub(crate) carry_out: bool,
    pub(crate) wide: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) place: Place,
    pub(crate) kind: Type,
    pub(crate) to: Box<[Register]>,
}

#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) place: Place,
    pub(crate) kind: Type,
    pub(crate) from: Box<[Register]>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Atomic {
    pub(crate) op: AtomicOp,
    pub(crate) place: Place,
    pub(crate) kind: Type,
    /// [`NONE`] for a reduction without a result.
    pub(crate) to: Register,
    pub(crate) operand: Register,
    /// The value to swap in.
    pub(crate) swap: Register,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Barrier {
    pub(crate) number: Register,
    pub(crate) threads: Register,
}

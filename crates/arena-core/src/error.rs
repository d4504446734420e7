//! What can go wrong, with the numbers that tell what to do about it.

#![forbid(unsafe_code)]

use std::fmt;

use crate::bytes::{Alignment, BadAlignment};
use crate::exhausted::Exhausted;
use crate::named::Named;
use crate::plan::SlotTableError;
use crate::shortage::Shortage;

/// An error of the arena: one pointer, so that the allocation's result stays small.
///
/// What happened is in [`kind`](Self::kind).
pub struct Error(Box<ErrorKind>);

impl Error {
    /// What happened.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// What happened, for a layer that completes it with what it knows.
    pub fn kind_mut(&mut self) -> &mut ErrorKind {
        &mut self.0
    }

    /// The facts of a request that did not fit, or `None` for any other error.
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let too_large = arena.transient::<u8>(5000, Alignment::ONE).unwrap_err();
    /// let facts = too_large.as_exhausted().expect("it does not fit");
    /// assert_eq!((facts.free_bytes, facts.missing_bytes), (4096, 904));
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[must_use]
    pub fn as_exhausted(&self) -> Option<&Exhausted> {
        match self.kind() {
            ErrorKind::Exhausted(exhausted) => Some(exhausted),
            _ => None,
        }
    }

    /// Whether the device, or the arena, can never be used again.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self.kind() {
            ErrorKind::Device(error) => error.kind == DeviceErrorKind::Final,
            ErrorKind::OrderLost(_) => true,
            ErrorKind::ClosingFailed { cause, .. } => cause.is_final(),
            _ => false,
        }
    }

    /// Whether the call was refused because a graph is being captured: the driver was not called.
    pub(crate) fn is_refused_in_capture(&self) -> bool {
        matches!(self.kind(), ErrorKind::Device(error) if error.kind == DeviceErrorKind::InCapture)
    }

    /// Whether the arena was too small for the request: a larger capacity or a smaller batch
    /// would have served it.
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let too_large = arena.transient::<u8>(5000, Alignment::ONE).unwrap_err();
    /// assert!(too_large.is_exhausted());
    /// assert!(!arena.transient::<u8>(usize::MAX, Alignment::ONE).unwrap_err().is_exhausted());
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.as_exhausted().is_some()
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// A number of elements, of which `u64::MAX` says that it overflowed.
struct Elements(u64);

impl fmt::Display for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == u64::MAX { f.write_str("2^64 or more") } else { self.0.fmt(f) }
    }
}

impl<K: Into<ErrorKind>> From<K> for Error {
    fn from(kind: K) -> Self {
        Self(Box::new(kind.into()))
    }
}

/// The kinds of [`Error`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "an error holds it in a box")]
pub enum ErrorKind {
    /// The request does not fit into what is free now.
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    /// The request is larger than any memory: more than `isize::MAX` bytes.
    #[error(
        "the buffer is larger than any memory (elements: {}, bytes of one: {element_bytes})",
        Elements(*elements)
    )]
    TooBig {
        /// Elements asked for (`u64::MAX` where even their number overflows).
        elements: u64,
        /// Bytes of one element.
        element_bytes: u64,
    },
    /// An arena was to be built without a capacity.
    #[error(
        "the arena has no capacity, and there is no right default: give one to the builder. To find it, run \
         one step of each kind on an arena of the device `Probe` and call `smallest_capacity_bytes()`"
    )]
    NoCapacity,
    /// A number was asked for as an alignment that cannot be one.
    #[error(transparent)]
    BadAlignment(#[from] BadAlignment),
    /// A device was to be made whose regions start at an address that leaves no room for a region.
    #[error(
        "a region cannot start at address {address:#x}: the highest possible start is {highest:#x}"
    )]
    BadAddress {
        /// The address that was asked for.
        address: u64,
        /// The highest address that is accepted.
        highest: u64,
    },
    /// The mark was set before, by `mark()` or by the first scope.
    #[error("the mark is already set, at offset {mark_bytes}: it can be set only once")]
    MarkAlreadySet {
        /// Where it is, in bytes from the base.
        mark_bytes: u64,
    },
    /// A range reaches beyond its buffer or its rows, or ends before it starts.
    #[error("range {start}..{end} is not valid for a length of {len}")]
    OutOfBounds {
        /// First element of the range.
        start: u64,
        /// One past its last element.
        end: u64,
        /// Elements of the buffer, or rows of the layout.
        len: u64,
    },
    /// Two lengths that must agree do not.
    #[error("the lengths do not match: expected {expected}, given {given}")]
    LengthMismatch {
        /// Elements that were expected: those of the destination, or 1 for a single value.
        expected: u64,
        /// Elements that were given.
        given: u64,
    },
    /// A buffer cannot be cut into that many aligned pieces.
    #[error(
        "the buffer cannot be cut into aligned parts: length {len}, parts {parts}, alignment {alignment}"
    )]
    BadParts {
        /// Elements of the buffer.
        len: u64,
        /// Pieces asked for.
        parts: u64,
        /// Alignment of each piece.
        alignment: Alignment,
    },
    /// An operand does not start at a multiple of the alignment that was asked for.
    #[error(
        "the operand starts at {address:#x}, which is not a multiple of its alignment {alignment} (remainder {})",
        address & alignment.low_bits()
    )]
    Misaligned {
        /// The device address of its first element.
        address: u64,
        /// The alignment that was asked for.
        alignment: Alignment,
    },
    /// A layout was made for elements of another size, for which its rows or parts are not aligned.
    #[error(
        "the layout is for elements of another size: bytes of an element in the layout {expected}, \
         in the buffer {given}"
    )]
    ElementMismatch {
        /// Bytes of an element of the layout.
        expected: u64,
        /// Bytes of an element of the buffer.
        given: u64,
    },
    /// A part of one block's layout was asked of a block with another layout.
    #[error(
        "no part of this block's layout has {len} elements from element {start} on: the part is of another layout"
    )]
    OtherLayout {
        /// First element of the part in its own layout.
        start: u64,
        /// Elements of the part.
        len: u64,
    },
    /// A buffer still contains bytes that were not written since they were poisoned.
    #[error("{} was not written: element {index} still holds the poison pattern", Named(buffer))]
    Unwritten {
        /// The name that the caller gave the buffer.
        buffer: String,
        /// The first element that is unwritten.
        index: u64,
    },
    /// `check_written` cannot tell whether a buffer was written, because the poison pattern is a value of its type.
    #[error(
        "`check_written` cannot tell whether {} was written, because the poison pattern is a value of \
         `{element}`: use `check_written_by`",
        Named(buffer)
    )]
    CannotTell {
        /// The name that the caller gave the buffer.
        buffer: String,
        /// The type of its elements.
        element: &'static str,
    },
    /// A root scope follows a plan now: plans change between root scopes only.
    #[error("a root scope follows a plan: plans can only be changed between root scopes")]
    PlanInUse,
    /// Slots that an arena cannot follow as a plan.
    #[error(transparent)]
    SlotTable(#[from] SlotTableError),
    /// A stream or buffer of another device was given.
    #[error("{what} does not belong to {device}, the arena's device")]
    WrongDevice {
        /// The stream or device that was given.
        what: String,
        /// The arena's device.
        device: String,
    },
    /// A write outside a buffer was found.
    #[error(transparent)]
    GuardZone(#[from] GuardZone),
    /// The device refused a call.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The result to be queued lies in another arena, whose stream orders it.
    #[error("the result lies in another arena than the queue")]
    OtherArena,
    /// Something is still in use: wait until that use has ended, or take the result first.
    #[error("{what} is in use by {by}")]
    InUse {
        /// What is in use.
        what: &'static str,
        /// What uses it.
        by: &'static str,
    },
    /// Input slots, or a queue of results, were to be made with room for none.
    #[error("0 slots were asked for: at least one is needed")]
    NoSlots,
    /// The next batch was asked for, and no input slot holds one.
    #[error("no input slot holds a batch: call `fill` before `next`")]
    NotFilled,
    /// There was nothing to choose from.
    #[error("nothing to choose from was given for {}: give at least one choice", Named(what))]
    NoChoice {
        /// What was to be done.
        what: &'static str,
    },
    /// The operating system gave no thread.
    #[error("the operating system gives no thread for {what}: {cause}")]
    NoThread {
        /// What was to be done on it.
        what: &'static str,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// A step cannot be captured as a graph.
    #[error("the step cannot be captured: {reason}")]
    NotCaptured {
        /// Why.
        reason: String,
    },
    /// A graph was captured under conditions that no longer hold. Nothing was launched.
    #[error("the captured step is stale: {reason}")]
    StaleGraph {
        /// What has changed.
        reason: String,
    },
    /// An earlier close failed where no error could be returned: the scope's guard was dropped, or its body
    /// failed or panicked. Or what a close left undone, told or not, was tried again and failed. This call
    /// did nothing; the cursor is back, and what the device did not do is tried again by the next request or
    /// opening.
    #[error("closing scope {} (depth {depth}) failed earlier: {cause}", Named(scope))]
    ClosingFailed {
        /// The scope's name.
        scope: &'static str,
        /// Its depth: 1 is a root scope.
        depth: u32,
        /// What failed.
        #[source]
        cause: Error,
    },
    /// A buffer without a lifetime is used after the scope that made it has ended.
    #[error("the buffer was made in {made_in}, which has ended; it cannot be used in {used_in}")]
    StaleBuffer {
        /// The scope that the buffer belongs to.
        made_in: ScopeId,
        /// The scope that it was used in.
        used_in: ScopeId,
    },
    /// A buffer of one arena is used in a scope of another.
    #[error("the buffer was made in {made_in}, and cannot be used in another arena, in {used_in}")]
    ForeignBuffer {
        /// The scope that the buffer belongs to.
        made_in: ScopeId,
        /// The scope that it was used in.
        used_in: ScopeId,
    },
    /// A scope of another arena was to be closed; nothing was closed. Lifetimes rule it out in safe code.
    #[error("the scope belongs to another arena")]
    ForeignFrame,
    /// The arena is paused: its memory is given back, and nothing can be read, written or asked for until `resume`.
    #[error("the arena is paused: call `resume` first")]
    Paused,
    /// The arena can only be paused without its contents if there are none.
    #[error(
        "the arena cannot be paused without keeping its persistent buffers while there are any (now: {persistent}): \
         drop them, or keep them with `Keep::Persistent`"
    )]
    WouldBeLost {
        /// Persistent buffers that exist.
        persistent: u64,
    },
    /// The host has no memory for the contents that a pause keeps. Nothing was paused.
    #[error("the host has no memory for the persistent bytes that a pause keeps ({bytes})")]
    NoHostMemory {
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// The region is of a kind that cannot do this.
    #[error(
        "`{call}` needs a region of the kind Virtual: build the arena with `RegionKind::Virtual`"
    )]
    NotVirtual {
        /// The call.
        call: &'static str,
    },
    /// The arena was built in another process, of which this one is a fork. The device's memory belongs to that
    /// process alone.
    #[error("the arena belongs to process {built_in}: it cannot be used in its fork {used_in}")]
    Forked {
        /// The process that built it.
        built_in: u32,
        /// The process of the call.
        used_in: u32,
    },
    /// A stream that used the arena's memory could not be waited for when a scope closed, neither on
    /// the device nor on the host, so nothing may be reused: the arena takes no further scope.
    #[error("the arena is closed: a stream that used its memory could not be waited for: {0}")]
    OrderLost(#[source] DeviceError),
}

/// A write outside a buffer of a [`Placement::Separate`](crate::Placement::Separate) arena, found when
/// the buffer's scope closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a write outside a buffer was found when scope {} closed: request {request} of the step, size in \
     bytes {bytes}, damaged at offset {offset_bytes} from the buffer's start",
    Named(scope)
)]
#[non_exhaustive]
pub struct GuardZone {
    /// The scope whose close found it; empty where the scope has no name.
    pub scope: &'static str,
    /// The buffer's request, counted from 0 since the root scope opened.
    pub request: u64,
    /// Bytes of the buffer.
    pub bytes: u64,
    /// The first damaged byte, counted from the buffer's start: below zero before it, at least `bytes`
    /// behind it.
    pub offset_bytes: i64,
}

impl GuardZone {
    pub(crate) const fn new(request: u64, bytes: u64, offset_bytes: i64) -> Self {
        Self { scope: "", request, bytes, offset_bytes }
    }
}

/// One scope of one arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScopeId {
    /// Its arena: the arenas of a process are counted from 0.
    pub arena: u64,
    /// Its number: the scopes of an arena, of any depth, are counted from 1.
    pub number: u64,
    /// Its depth: 1 is a root scope.
    pub depth: u32,
    /// Its name.
    pub name: &'static str,
}

impl ScopeId {
    pub(crate) const fn new(arena: u64, number: u64, depth: u32, name: &'static str) -> Self {
        Self { arena, number, depth, name }
    }
}

impl fmt::Display for ScopeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { arena, number, depth, name } = self;
        write!(f, "scope {} (depth {depth}, number {number} of arena {arena})", Named(name))
    }
}

/// A call that a device refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{device}: {call} failed: {reason}")]
pub struct DeviceError {
    /// The device's name.
    pub device: String,
    /// The call, as its interface names it.
    pub call: &'static str,
    /// Why, in words, with the code where there is one.
    pub reason: String,
    /// What it means for what comes next.
    pub kind: DeviceErrorKind,
}

impl Shortage {
    /// The error of `call` on this device.
    pub(crate) fn refuse(self, device: String, call: &'static str) -> DeviceError {
        let kind = DeviceErrorKind::OutOfMemory(Some(self));
        DeviceError { device, call, reason: self.to_string(), kind }
    }
}

/// What a refused call means for what comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceErrorKind {
    /// This call failed; others may succeed.
    Refused,
    /// The device has less free memory than was asked for. `None` where only the code of a failed call is known,
    /// such as that of a call of cudarc.
    OutOfMemory(Option<Shortage>),
    /// The call is not allowed while a graph is captured on the arena's stream. The driver was not
    /// called, and the capture goes on.
    InCapture,
    /// The device never does this with memory of this kind. A region of another
    /// [kind](crate::RegionKind) may.
    Unsupported,
    /// There is no such device here: it was not built in, or has no driver, or does not exist.
    Unavailable,
    /// The device is broken for this process: every other call fails as well.
    Final,
}

//! Every text of an error, with the values for which a sentence goes wrong first: 0, 1, and names that are
//! empty.

use rstest::rstest;

use crate::bytes::{Alignment, BadAlignment};
use crate::error::{DeviceError, DeviceErrorKind, Error, ErrorKind, GuardZone, ScopeId};
use crate::exhausted::{Exhausted, PlanFacts, ScopeFacts};
use crate::plan::{Deviations, SlotTableError};

fn device_error(reason: &str) -> DeviceError {
    let (device, reason) = ("gpu".to_owned(), reason.to_owned());
    DeviceError { device, call: "fill", reason, kind: DeviceErrorKind::Refused }
}

#[rstest]
#[case(
    ErrorKind::TooBig { elements: 1, element_bytes: u64::MAX },
    "the buffer is larger than any memory (elements: 1, bytes of one: 18446744073709551615)"
)]
#[case(
    ErrorKind::TooBig { elements: u64::MAX, element_bytes: 1 },
    "the buffer is larger than any memory (elements: 2^64 or more, bytes of one: 1)"
)]
#[case(BadAlignment { asked: 0 }.into(), "0 is not an alignment: an alignment is a power of two from 1 to 2^61")]
#[case(
    ErrorKind::BadAddress { address: 1 << 62, highest: 1 << 61 },
    "a region cannot start at address 0x4000000000000000: the highest possible start is \
     0x2000000000000000"
)]
#[case(ErrorKind::Paused, "the arena is paused: call `resume` first")]
#[case(
    ErrorKind::WouldBeLost { persistent: 1 },
    "the arena cannot be paused without keeping its persistent buffers while there are any (now: 1): drop them, or \
     keep them with `Keep::Persistent`"
)]
#[case(
    ErrorKind::NoHostMemory { bytes: 1 },
    "the host has no memory for the persistent bytes that a pause keeps (1)"
)]
#[case(
    ErrorKind::NotVirtual { call: "pause" },
    "`pause` needs a region of the kind Virtual: build the arena with `RegionKind::Virtual`"
)]
#[case(
    ErrorKind::Forked { built_in: 1, used_in: 0 },
    "the arena belongs to process 1: it cannot be used in its fork 0"
)]
#[case(ErrorKind::MarkAlreadySet { mark_bytes: 0 }, "the mark is already set, at offset 0: it can be set only once")]
#[case(ErrorKind::OutOfBounds { start: 0, end: 1, len: 0 }, "range 0..1 is not valid for a length of 0")]
#[case(ErrorKind::OutOfBounds { start: 3, end: 1, len: 9 }, "range 3..1 is not valid for a length of 9")]
#[case(ErrorKind::LengthMismatch { expected: 1, given: 0 }, "the lengths do not match: expected 1, given 0")]
#[case(
    ErrorKind::BadParts { len: 1, parts: 0, alignment: Alignment::ONE },
    "the buffer cannot be cut into aligned parts: length 1, parts 0, alignment 1"
)]
#[case(
    ErrorKind::NoCapacity,
    "the arena has no capacity, and there is no right default: give one to the builder. To find it, run one \
     step of each kind on an arena of the device `Probe` and call `smallest_capacity_bytes()`"
)]
#[case(
    ErrorKind::Misaligned { address: 0x1001, alignment: Alignment::DEFAULT },
    "the operand starts at 0x1001, which is not a multiple of its alignment 256 (remainder 1)"
)]
#[case(
    ErrorKind::ElementMismatch { expected: 1, given: 4 },
    "the layout is for elements of another size: bytes of an element in the layout 1, in the buffer 4"
)]
#[case(
    ErrorKind::OtherLayout { start: 0, len: 1 },
    "no part of this block's layout has 1 elements from element 0 on: the part is of another layout"
)]
#[case(
    ErrorKind::Unwritten { buffer: String::new(), index: 0 },
    "(unnamed) was not written: element 0 still holds the poison pattern"
)]
#[case(
    ErrorKind::CannotTell { buffer: String::new(), element: "u8" },
    "`check_written` cannot tell whether (unnamed) was written, because the poison pattern is a value of `u8`: \
     use `check_written_by`"
)]
#[case(
    ErrorKind::PlanInUse,
    "a root scope follows a plan: plans can only be changed between root scopes"
)]
#[case(SlotTableError::Empty { slot: 0 }.into(), "slot 0 is empty")]
#[case(SlotTableError::TooBig { slot: 0 }.into(), "slot 0 ends above the largest address")]
#[case(
    SlotTableError::Misaligned { slot: 1, offset_bytes: 1, alignment: Alignment::DEFAULT }.into(),
    "slot 1 starts at offset 1, which is not a multiple of its alignment 256"
)]
#[case(
    SlotTableError::TooMany { slots: 1 << 20 }.into(),
    "a plan of 1048576 slots has too many slots"
)]
#[case(
    ErrorKind::WrongDevice { what: "the stream".to_owned(), device: "cuda:0".to_owned() },
    "the stream does not belong to cuda:0, the arena's device"
)]
#[case(ErrorKind::OtherArena, "the result lies in another arena than the queue")]
#[case(
    ErrorKind::InUse { what: "every input slot", by: "a batch that no step has taken" },
    "every input slot is in use by a batch that no step has taken"
)]
#[case(ErrorKind::NoSlots, "0 slots were asked for: at least one is needed")]
#[case(ErrorKind::NotFilled, "no input slot holds a batch: call `fill` before `next`")]
#[case(
    ErrorKind::NoChoice { what: "" },
    "nothing to choose from was given for (unnamed): give at least one choice"
)]
#[case(
    ErrorKind::NoThread { what: "the planner", cause: std::io::Error::other("") },
    "the operating system gives no thread for the planner: "
)]
#[case(
    ErrorKind::NotCaptured { reason: "no step has run before".to_owned() },
    "the step cannot be captured: no step has run before"
)]
#[case(
    ErrorKind::StaleGraph { reason: "it was captured on another arena".to_owned() },
    "the captured step is stale: it was captured on another arena"
)]
#[case(
    ErrorKind::ClosingFailed { scope: "", depth: 1, cause: device_error("no").into() },
    "closing scope (unnamed) (depth 1) failed earlier: gpu: fill failed: no"
)]
#[case(
    ErrorKind::StaleBuffer { made_in: ScopeId::new(0, 1, 1, ""), used_in: ScopeId::new(0, 2, 1, "train") },
    "the buffer was made in scope (unnamed) (depth 1, number 1 of arena 0), which has ended; it cannot be used \
     in scope `train` (depth 1, number 2 of arena 0)"
)]
#[case(
    ErrorKind::ForeignBuffer { made_in: ScopeId::new(0, 1, 1, ""), used_in: ScopeId::new(1, 1, 1, "") },
    "the buffer was made in scope (unnamed) (depth 1, number 1 of arena 0), and cannot be used in another arena, \
     in scope (unnamed) (depth 1, number 1 of arena 1)"
)]
#[case(ErrorKind::ForeignFrame, "the scope belongs to another arena")]
#[case(
    ErrorKind::OrderLost(device_error("no")),
    "the arena is closed: a stream that used its memory could not be waited for: gpu: fill failed: no"
)]
#[case(
    GuardZone::new(0, 1, -1).into(),
    "a write outside a buffer was found when scope (unnamed) closed: request 0 of the step, size in bytes 1, \
     damaged at offset -1 from the buffer's start"
)]
#[case(
    GuardZone { scope: "train", request: 1, bytes: 100, offset_bytes: 100 }.into(),
    "a write outside a buffer was found when scope `train` closed: request 1 of the step, size in bytes 100, \
     damaged at offset 100 from the buffer's start"
)]
fn an_error_reads_as_a_sentence_at_its_extremes(#[case] kind: ErrorKind, #[case] text: &str) {
    assert_eq!(Error::from(kind).to_string(), text);
}

fn exhausted() -> Exhausted {
    Exhausted {
        asked_bytes: 1,
        alignment: Alignment::ONE,
        capacity_bytes: 0,
        mark_bytes: 0,
        used_bytes: 0,
        free_bytes: 0,
        kept_bytes: 0,
        missing_bytes: 1,
        call_site: None,
        scope: None,
        kept: Vec::new(),
        plan: None,
    }
}

fn scope(name: &'static str, counts: Option<(u64, u64)>) -> ScopeFacts {
    ScopeFacts {
        name,
        path: vec![name],
        depth: 1,
        requests: counts.map(|(requests, _)| requests),
        largest_bytes: counts.map(|(_, largest_bytes)| largest_bytes),
        resets: 0,
        record: None,
    }
}

fn plan(is_outgrown: bool) -> Option<PlanFacts> {
    let deviations = Deviations { larger: 1, steps: 1, ..Deviations::default() };
    Some(PlanFacts { peak_bytes: 1, deviations, last: None, is_outgrown })
}

const START: &str = "out of arena memory: 1 bytes were asked for at alignment 1, and 0 are free";
const REGION: &str = "region      0 bytes (0 bytes); mark 0, used 0, kept 0";
const UNRECORDED: &str =
    "holds       not recorded: `arena.record(None)` before the loop names the calls";
const CAUSE: &str =
    "cause       this one request: it takes most of what an empty step has, or more";
const ENOUGH: &str = "enough      a capacity of 1 bytes (1 byte) for this request";
const PLAN: &str = "plan        1 bytes; deviations so far: 1 larger, 0 extra, 0 missing, 0 freed late, 0 unfreed, 0 \
                    smaller, 0 smaller by design (steps that deviated: 1)";

#[rstest]
#[case::nobody_known(exhausted(), &[REGION])]
#[case::without_a_name(
    Exhausted { scope: Some(scope("", None)), ..exhausted() },
    &["in scope    (unnamed) (depth 1)", REGION, "step        0 resets before", UNRECORDED]
)]
#[case::counted(
    Exhausted { scope: Some(scope("train", Some((1, 1)))), ..exhausted() },
    &[
        "in scope    `train` (depth 1)",
        REGION,
        "step        1 request since its root scope opened, the largest 1 bytes; 0 resets before",
        UNRECORDED,
    ]
)]
#[case::under_a_plan(Exhausted { plan: plan(false), ..exhausted() }, &[REGION, PLAN])]
#[case::under_a_plan_that_is_what_does_not_fit(
    Exhausted { plan: plan(true), ..exhausted() },
    &[
        REGION,
        PLAN,
        "            it does not fit, though the step would without it: the next step of this kind does not follow it",
    ]
)]
fn out_of_memory_says_what_is_known(#[case] exhausted: Exhausted, #[case] known: &[&str]) {
    let lines = [&[START], known, &[CAUSE, ENOUGH]].concat();
    assert_eq!(Error::from(exhausted).to_string(), lines.join("\n  "));
}

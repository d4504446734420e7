//! A request that does not fit: what was asked, who holds the memory, and which of four causes it is.

#![forbid(unsafe_code)]

use std::fmt;
use std::panic::Location;

use crate::bytes::{Alignment, ByteSize};
use crate::named::Named;
use crate::plan::{DeviationSite, Deviations};

/// Call sites that an error lists.
pub(crate) const MOST_HOLDERS: usize = 5;

/// A request that does not fit. Nothing was changed by it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exhausted {
    /// Bytes asked for.
    pub asked_bytes: u64,
    /// Alignment asked for.
    pub alignment: Alignment,
    /// Bytes of the region.
    pub capacity_bytes: u64,
    /// End of the persistent part, in bytes from the base.
    pub mark_bytes: u64,
    /// The cursor, in bytes from the base.
    pub used_bytes: u64,
    /// Bytes between the cursor and the kept part.
    pub free_bytes: u64,
    /// Bytes of the kept part at the region's top, its gaps included.
    pub kept_bytes: u64,
    /// Bytes by which the capacity is too small for this request. Exact where nothing is kept; the
    /// padding of kept buffers moves with the capacity, and may ask for up to their alignment more.
    pub missing_bytes: u64,
    /// The call that asked.
    pub call_site: Option<&'static Location<'static>>,
    /// The scope that asked, if one did.
    pub scope: Option<ScopeFacts>,
    /// The calls that made the kept buffers, those that hold most first, at most five.
    pub kept: Vec<Holder>,
    /// The plan that the step follows, if it has one, and how steps deviated from it.
    pub plan: Option<PlanFacts>,
}

/// What is known about the plan that a step follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanFacts {
    /// Bytes that the plan takes above the mark.
    pub peak_bytes: u64,
    /// How often steps deviated from it since it was installed, this step included.
    pub deviations: Deviations,
    /// The last deviation whose call is known: often this request.
    pub last: Option<DeviationSite>,
    /// Whether the plan is what does not fit: the bump alone would have had room for the request. The next step of
    /// this kind is bumped.
    pub is_outgrown: bool,
}

/// What is known about the scope that asked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScopeFacts {
    /// Its name.
    pub name: &'static str,
    /// The names of the open scopes from the root to this one.
    pub path: Vec<&'static str>,
    /// Its depth: 1 is a root scope.
    pub depth: u32,
    /// Requests served since the root scope opened, if the step is observed, recorded or planned.
    pub requests: Option<u64>,
    /// The size of the largest of them in bytes, under the same conditions.
    pub largest_bytes: Option<u64>,
    /// Root scopes closed before this one: resets to the mark so far.
    pub resets: u64,
    /// What the record of the step says, if it is recorded.
    pub record: Option<RecordFacts>,
}

/// What the record of a step says when a request of it does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordFacts {
    /// The call that made the largest request.
    pub largest_site: Option<&'static Location<'static>>,
    /// The calls whose buffers hold most now, those that hold most first, at most five.
    pub holders: Vec<Holder>,
    /// Whether the same requests come again and again, from the first one on and at least three times.
    pub repeats: Option<Repeats>,
}

/// Requests that come again and again in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repeats {
    /// How many requests come again.
    pub requests: u64,
    /// How often they came, the last time perhaps in part.
    pub times: u64,
}

/// A call, and the memory that its buffers hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The call. For a helper with `#[track_caller]` it is the call of the helper.
    pub call_site: &'static Location<'static>,
    /// Its buffers that are alive.
    pub buffers: u64,
    /// Their bytes.
    pub bytes: u64,
    /// For kept buffers, how many different steps made them: the time before the first step and between two steps
    /// counts as part of the next one. For a step's buffers 1.
    pub steps: u64,
}

/// Why a request did not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// It alone does not fit into an empty step, or takes most of one.
    RunawayRequest,
    /// It would fit if nothing were kept.
    KeptBytes,
    /// Its step asks for the same again and again: a loop runs in one scope, and never closes it.
    NoReset(Repeats),
    /// The step needs more than there is.
    StepTooBig,
}

impl Exhausted {
    /// The capacity with which this request would have been served. Later ones may need more.
    #[must_use]
    pub const fn enough_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_add(self.missing_bytes)
    }

    /// Why it did not fit. That a reset never came can only be told of a step that is recorded.
    #[must_use]
    pub fn cause(&self) -> Cause {
        let room_bytes = self.capacity_bytes - self.mark_bytes;
        let held_bytes = self.used_bytes.saturating_sub(self.mark_bytes);
        let is_most = self.asked_bytes > room_bytes / 2 && self.asked_bytes > held_bytes;
        let needed_bytes = self.missing_bytes.saturating_add(self.free_bytes);
        let fits_without_kept = self.kept_bytes > 0
            && self.used_bytes.saturating_add(needed_bytes) <= self.capacity_bytes;
        let record = self.scope.as_ref().and_then(|scope| scope.record.as_ref());
        if self.asked_bytes > room_bytes {
            Cause::RunawayRequest
        } else if fits_without_kept {
            Cause::KeptBytes
        } else if is_most {
            Cause::RunawayRequest
        } else if let Some(repeats) = record.and_then(|record| record.repeats) {
            Cause::NoReset(repeats)
        } else {
            Cause::StepTooBig
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call_site, buffers, bytes, steps } = self;
        write!(f, "{bytes} bytes in {buffers} buffer{} of {call_site}", plural(*buffers))?;
        if *steps > 1 { write!(f, ", made in {steps} steps") } else { Ok(()) }
    }
}

const fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// The names of scopes from the root on.
struct Path<'a>(&'a [&'static str]);

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, name) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str(" > ")?;
            }
            Named(name).fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked_bytes, alignment, free_bytes, capacity_bytes, mark_bytes, .. } = self;
        let size = ByteSize::bytes_exact;
        write!(
            f,
            "out of arena memory: {asked_bytes} bytes were asked for at alignment {alignment}, and {free_bytes} are free"
        )?;
        let mut line = |what: &str, text: fmt::Arguments<'_>| write!(f, "\n  {what:<12}{text}");
        if let Some(call_site) = self.call_site {
            line("asked at", format_args!("{call_site}"))?;
        }
        if let Some(scope) = &self.scope {
            line("in scope", format_args!("{} (depth {})", Path(&scope.path), scope.depth))?;
        }
        line(
            "region",
            format_args!(
                "{capacity_bytes} bytes ({}); mark {mark_bytes}, used {}, kept {}",
                size(*capacity_bytes),
                self.used_bytes,
                self.kept_bytes
            ),
        )?;
        if let Some(scope) = &self.scope {
            let (resets, record) = (scope.resets, scope.record.as_ref());
            match (scope.requests, scope.largest_bytes) {
                (Some(requests), Some(largest)) => {
                    let site = record.and_then(|record| record.largest_site);
                    let at = site.map_or(String::new(), |site| format!(" at {site}"));
                    line(
                        "step",
                        format_args!(
                            "{requests} request{} since its root scope opened, the largest {largest} bytes{at}; \
                             {resets} reset{} before",
                            plural(requests),
                            plural(resets)
                        ),
                    )?;
                }
                _ => line("step", format_args!("{resets} reset{} before", plural(resets)))?,
            }
            match record {
                Some(record) => {
                    for holder in &record.holders {
                        line("holds", format_args!("{holder}"))?;
                    }
                }
                None => line(
                    "holds",
                    format_args!(
                        "not recorded: `arena.record(None)` before the loop names the calls"
                    ),
                )?,
            }
        }
        for holder in &self.kept {
            line("kept", format_args!("{holder}"))?;
        }
        if let Some(PlanFacts { peak_bytes, deviations, last, is_outgrown }) = &self.plan {
            line("plan", format_args!("{peak_bytes} bytes; deviations so far: {deviations}"))?;
            if let Some(site) = last {
                line("", format_args!("the last one: {site}"))?;
            }
            if *is_outgrown {
                line(
                    "",
                    format_args!(
                        "it does not fit, though the step would without it: the next step of this kind does not follow it"
                    ),
                )?;
            }
        }
        match self.cause() {
            Cause::RunawayRequest => line(
                "cause",
                format_args!("this one request: it takes most of what an empty step has, or more"),
            )?,
            Cause::KeptBytes => line(
                "cause",
                format_args!(
                    "kept bytes: without the persistent buffers made after the mark it would fit; make them before \
                     `mark()`, or drop them"
                ),
            )?,
            Cause::NoReset(Repeats { requests, times }) => line(
                "cause",
                format_args!(
                    "no reset: the same {requests} request{} came {times} times in one root scope; give each of these \
                     steps a scope",
                    plural(requests)
                ),
            )?,
            Cause::StepTooBig => {
                line(
                    "cause",
                    format_args!("the step needs more than there is; or take a smaller batch"),
                )?;
            }
        }
        let enough = self.enough_bytes();
        line(
            "enough",
            format_args!("a capacity of {enough} bytes ({}) for this request", size(enough)),
        )
    }
}

impl std::error::Error for Exhausted {}

//! Growth inside a root scope that stays open: a loop whose steps run in one scope, and never reset it.
//!
//! Steps that are root scopes are compared with each other. Where most of a run is one root scope, the steps are inside
//! it, so its record is looked into: an inner scope that is opened again must find the cursor where it was the first
//! time, and no call may be asked for one buffer after the other.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;

use arena_core::{StepEvent, StepLog};

use crate::step_key::StepKey;

type Site = &'static Location<'static>;

/// Requests of one call in one scope that are a loop.
const LEAST_REQUESTS: u64 = 3;

/// A root scope that grows while it is open.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Growth {
    /// The root scope's name and variant.
    pub key: StepKey,
    /// The names of the scopes from the root to the one that grows.
    pub path: Vec<&'static str>,
    /// What came again.
    pub again: Again,
    /// By how many bytes the scope has grown from the first time to the last.
    pub grown_bytes: u64,
}

/// What came again in a scope that grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Again {
    /// An inner scope of this name.
    Scope {
        /// The name.
        name: &'static str,
        /// How often it was opened.
        visits: u64,
        /// The first visit that found more than the first did, counted from 1.
        visit: u64,
    },
    /// Requests of one call, in the scope itself.
    Call {
        /// The call.
        call_site: &'static Location<'static>,
        /// How many.
        requests: u64,
    },
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, path, again, grown_bytes } = self;
        write!(f, "{key} was opened once, and grew by {grown_bytes} bytes while it was open: ")?;
        let named = |name: &&'static str| if name.is_empty() { "(unnamed)" } else { name };
        let path = path.iter().map(named).collect::<Vec<_>>().join(" > ");
        match again {
            Again::Scope { name, visits, visit } => write!(
                f,
                "the inner scope `{}` was opened {visits} times in `{path}`, and found more than the first time from \
                 visit {visit} on",
                named(name)
            )?,
            Again::Call { call_site, requests } => {
                write!(f, "{call_site} was asked {requests} times in `{path}`")?;
            }
        }
        f.write_str("; give each step a scope of its own")
    }
}

/// A scope that is open in the record.
#[derive(Debug)]
struct Frame {
    name: &'static str,
    /// The cursor when it opened, and now, in bytes from the base.
    begin_bytes: u64,
    end_bytes: u64,
    requests: u64,
    visits: HashMap<&'static str, Visits>,
    calls: HashMap<Site, Calls>,
    /// The largest growth of an inner scope, with the name of the scope that was opened in this one.
    inner: Option<(&'static str, Growth)>,
}

#[derive(Debug, Default)]
struct Visits {
    count: u64,
    first_bytes: u64,
    last_bytes: u64,
    /// The first visit that found more than the first did.
    grown: Option<u64>,
}

#[derive(Debug, Default)]
struct Calls {
    requests: u64,
    bytes: u64,
    first_bytes: u64,
}

impl Frame {
    fn new(name: &'static str, begin_bytes: u64) -> Self {
        let (visits, calls) = (HashMap::new(), HashMap::new());
        Self { name, begin_bytes, end_bytes: begin_bytes, requests: 0, visits, calls, inner: None }
    }

    fn note_visit(&mut self, name: &'static str) {
        let found_bytes = self.end_bytes - self.begin_bytes;
        let visits = self.visits.entry(name).or_default();
        visits.count += 1;
        if visits.count == 1 {
            visits.first_bytes = found_bytes;
        } else if found_bytes > visits.first_bytes {
            visits.grown.get_or_insert(visits.count);
        }
        visits.last_bytes = found_bytes;
        // What grows in a scope that comes again ends with each visit.
        if visits.count > 1 {
            self.inner = self.inner.take().filter(|(within, _)| *within != name);
        }
    }

    /// An inner scope has closed, and grew while it was open.
    fn note_inner(&mut self, name: &'static str, growth: Growth) {
        let comes_again = self.visits.get(name).is_some_and(|visits| visits.count > 1);
        let is_more = |(_, found): &(_, Growth)| growth.grown_bytes > found.grown_bytes;
        if !comes_again && self.inner.as_ref().is_none_or(is_more) {
            self.inner = Some((name, growth));
        }
    }

    fn note_request(&mut self, call_site: Site, end_bytes: u64) {
        let bytes = end_bytes - self.end_bytes;
        self.end_bytes = end_bytes;
        self.requests += 1;
        let calls = self.calls.entry(call_site).or_default();
        if calls.requests == 0 {
            calls.first_bytes = bytes;
        }
        calls.requests += 1;
        calls.bytes += bytes;
    }

    /// What came again in it, and by how much it grew. A scope whose inner scopes come again, and find what they found
    /// the first time, is a loop that is steady.
    fn growth(&self) -> Option<(Again, u64)> {
        let again = || self.visits.iter().filter(|(_, visits)| visits.count > 1);
        if again().next().is_some() {
            let grown = again().filter_map(|(&name, visits)| {
                let again = Again::Scope { name, visits: visits.count, visit: visits.grown? };
                Some((again, visits.last_bytes - visits.first_bytes))
            });
            return grown.max_by_key(|(_, grown_bytes)| *grown_bytes);
        }
        let looped = || self.calls.iter().filter(|(_, calls)| calls.requests >= LEAST_REQUESTS);
        let requests: u64 = looped().map(|(_, calls)| calls.requests).sum();
        let grown = looped().map(|(&call_site, calls)| {
            let again = Again::Call { call_site, requests: calls.requests };
            (again, calls.bytes - calls.first_bytes)
        });
        grown.max_by_key(|(_, grown_bytes)| *grown_bytes).filter(|_| 2 * requests > self.requests)
    }
}

/// Whether the root scope of this record grew while it was open. A step whose requests get bytes again that others had
/// follows a plan, and is not looked into.
pub(crate) fn growth(key: StepKey, log: &StepLog) -> Option<Growth> {
    let offsets = log.events().iter().filter_map(|event| match *event {
        StepEvent::Alloc { offset_bytes, .. } => Some(offset_bytes),
        _ => None,
    });
    let begin_bytes = offsets.min()?;
    let mut sites = log.requests().iter().map(|request| request.call_site);
    // The record of a step begins with its root scope.
    let mut open: Vec<Frame> = Vec::new();
    for event in log.events() {
        match *event {
            StepEvent::Open { name } => {
                let begin_bytes = open.last().map_or(begin_bytes, |frame| frame.end_bytes);
                if let Some(frame) = open.last_mut() {
                    frame.note_visit(name);
                }
                open.push(Frame::new(name, begin_bytes));
            }
            StepEvent::Alloc { offset_bytes, bytes, .. } => {
                let (site, frame) = sites.next().zip(open.last_mut())?;
                if bytes > 0 {
                    if offset_bytes < frame.end_bytes {
                        return None;
                    }
                    frame.note_request(site, offset_bytes + bytes);
                }
            }
            StepEvent::Close | StepEvent::Merge => {
                let path = open.iter().map(|frame| frame.name).collect();
                let mut closed = open.pop()?;
                let inner = closed.inner.take().map(|(_, growth)| growth);
                let own = closed.growth();
                let own = own.map(|(again, grown_bytes)| Growth { key, path, again, grown_bytes });
                let found = own.into_iter().chain(inner).max_by_key(|growth| growth.grown_bytes);
                let Some(outer) = open.last_mut() else { return found };
                if *event == StepEvent::Merge {
                    outer.end_bytes = closed.end_bytes;
                }
                if let Some(growth) = found {
                    outer.note_inner(closed.name, growth);
                }
            }
            _ => {}
        }
    }
    None
}

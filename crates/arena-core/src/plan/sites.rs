//! Where in a program a step was not as planned.

use std::fmt;
use std::panic::Location;

/// How a request is not as planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviationKind {
    /// It is smaller than its slot. It got the slot's address.
    Smaller,
    /// It is larger than the next slot, and no slot further on fits.
    Larger,
    /// It comes after the last slot.
    Extra,
    /// No request took one or more slots before its own.
    Missing,
    /// The bytes of its slot still belonged to a live buffer.
    Late,
}

impl DeviationKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Smaller => "smaller",
            Self::Larger => "larger",
            Self::Extra => "extra",
            Self::Missing => "missing before",
            Self::Late => "freed late",
        }
    }
}

/// A call in the program whose requests are not as planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviationSite {
    /// How they deviate.
    pub kind: DeviationKind,
    /// The call that makes the request.
    pub call_site: &'static Location<'static>,
    /// How often so far, over all steps.
    pub count: u64,
}

impl fmt::Display for DeviationSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} (times: {})", self.kind.name(), self.call_site, self.count)
    }
}

/// The first [`MOST`] places. More would not say more: a step that has so many is another step.
#[derive(Debug, Clone, Default)]
pub(super) struct Sites {
    sites: Vec<DeviationSite>,
    /// The one noted last, if it was kept.
    last: Option<usize>,
}

const MOST: usize = 32;

impl Sites {
    /// From now on noting one allocates nothing.
    pub(super) fn reserve(&mut self) {
        self.sites.reserve_exact(MOST - self.sites.len());
    }

    /// Keeps no more room than they need.
    pub(super) fn shrink(&mut self) {
        self.sites.shrink_to_fit();
    }

    /// The host memory that they take.
    pub(super) fn host_bytes(&self) -> u64 {
        (self.sites.capacity() * size_of::<DeviationSite>()) as u64
    }

    pub(super) fn note(&mut self, kind: DeviationKind, call_site: &'static Location<'static>) {
        let same = |site: &DeviationSite| site.kind == kind && site.call_site == call_site;
        self.last = self.sites.iter().position(same);
        if self.last.is_none() && self.sites.len() < MOST {
            self.last = Some(self.sites.len());
            self.sites.push(DeviationSite { kind, call_site, count: 0 });
        }
        if let Some(last) = self.last {
            self.sites[last].count += 1;
        }
    }

    pub(super) fn all(&self) -> &[DeviationSite] {
        &self.sites
    }

    pub(super) fn last(&self) -> Option<DeviationSite> {
        self.last.map(|last| self.sites[last])
    }
}

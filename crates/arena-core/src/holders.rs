//! Which calls hold memory: of the buffers that a recorded step holds, and of the kept ones.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::panic::Location;

use crate::exhausted::{Holder, MOST_HOLDERS, RecordFacts, Repeats};
use crate::layout::Span;
use crate::step_log::{StepEvent, StepLog};

type Site = &'static Location<'static>;

/// Of the kept buffers, by their first byte: who made each, in which step. A buffer in the place of another allocates
/// nothing.
#[derive(Debug, Default)]
pub(crate) struct Keepers(HashMap<u64, Keeper>);

#[derive(Debug)]
struct Keeper {
    call_site: Site,
    bytes: u64,
    /// Root scopes closed before.
    resets: u64,
}

impl Keepers {
    /// A buffer was kept.
    pub(crate) fn add(&mut self, span: Span, call_site: Site, resets: u64) {
        self.0.insert(span.start_bytes, Keeper { call_site, bytes: span.len_bytes(), resets });
    }

    /// Its bytes are free again.
    pub(crate) fn remove(&mut self, span: Span) {
        self.0.remove(&span.start_bytes);
    }

    /// The calls that hold most.
    pub(crate) fn holders(&self) -> Vec<Holder> {
        let all = self.0.values().map(|kept| (kept.call_site, kept.bytes, kept.resets));
        holders(all)
    }
}

/// The calls that hold most, of buffers with their bytes and the number of their step.
fn holders(buffers: impl Iterator<Item = (Site, u64, u64)>) -> Vec<Holder> {
    let mut by_site: HashMap<Site, (Holder, Vec<u64>)> = HashMap::new();
    for (call_site, bytes, step) in buffers {
        let new = || (Holder { call_site, buffers: 0, bytes: 0, steps: 0 }, Vec::new());
        let (holder, steps) = by_site.entry(call_site).or_insert_with(new);
        holder.buffers += 1;
        holder.bytes += bytes;
        steps.push(step);
    }
    let mut all: Vec<Holder> = by_site
        .into_values()
        .map(|(holder, mut steps)| {
            steps.sort_unstable();
            steps.dedup();
            Holder { steps: steps.len() as u64, ..holder }
        })
        .collect();
    // Of equal ones, the order of the program's lines.
    all.sort_unstable_by_key(|holder| {
        let site = holder.call_site;
        (std::cmp::Reverse(holder.bytes), site.file(), site.line(), site.column())
    });
    all.truncate(MOST_HOLDERS);
    all
}

/// What the record of a step says when a request does not fit: `asked` is its call and its bytes.
pub(crate) fn record_facts(log: &StepLog, asked: (Site, u64)) -> RecordFacts {
    // The live buffers by offset, with their scope's depth.
    let mut live: BTreeMap<u64, (Site, u64, u32)> = BTreeMap::new();
    let (mut depth, mut requests) = (0, Vec::new());
    let mut sites = log.requests().iter().map(|request| request.call_site);
    let mut largest: Option<(u64, Site)> = None;
    for event in log.events() {
        match *event {
            StepEvent::Alloc { offset_bytes, bytes, .. } => {
                let Some(site) = sites.next() else { break };
                requests.push((site, bytes));
                if bytes > 0 {
                    live.insert(offset_bytes, (site, bytes, depth));
                }
                if largest.is_none_or(|(most, _)| bytes > most) {
                    largest = Some((bytes, site));
                }
            }
            StepEvent::Drop { offset_bytes } => {
                live.remove(&offset_bytes);
            }
            StepEvent::Tag { .. } => {}
            StepEvent::Open { .. } => depth += 1,
            StepEvent::Close => {
                live.retain(|_, (_, _, of)| *of < depth);
                depth -= 1;
            }
            StepEvent::Merge => {
                depth -= 1;
                live.values_mut().for_each(|(_, _, of)| *of = depth.min(*of));
            }
        }
    }
    requests.push(asked);
    RecordFacts {
        largest_site: largest.map(|(_, site)| site),
        holders: holders(live.values().map(|(site, bytes, _)| (*site, *bytes, 0))),
        // The same request fitted before, so something has grown since.
        repeats: repeats(&requests),
    }
}

/// Whether a sequence is one part that is repeated at least three times. The last repetition may be cut off.
fn repeats<T: PartialEq>(sequence: &[T]) -> Option<Repeats> {
    // The longest proper prefix of each prefix that is also its suffix (Knuth, Morris and Pratt, 1977).
    let mut borders = vec![0; sequence.len()];
    for at in 1..sequence.len() {
        let mut border = borders[at - 1];
        while border > 0 && sequence[at] != sequence[border] {
            border = borders[border - 1];
        }
        borders[at] = border + usize::from(sequence[at] == sequence[border]);
    }
    let period = sequence.len() - borders.last()?;
    let (requests, times) = (period as u64, sequence.len().div_ceil(period) as u64);
    (sequence.len() >= 3 * period).then_some(Repeats { requests, times })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Repeats, repeats};

    #[rstest]
    #[case("", None)]
    #[case("a", None)]
    #[case("aa", None)]
    #[case("aaa", Some((1, 3)))]
    #[case("abcabc", None)]
    #[case("abcabcabc", Some((3, 3)))]
    #[case("abcabcabca", Some((3, 4)))]
    // What comes before the first repetition makes it a step with a loop in it.
    #[case("xabcabcabcabc", None)]
    #[case("abcabcabcabd", None)]
    #[case("aabaabaab", Some((3, 3)))]
    fn a_sequence_repeats_from_its_beginning_or_not_at_all(
        #[case] sequence: &str,
        #[case] expected: Option<(u64, u64)>,
    ) {
        let found = repeats(sequence.as_bytes());
        assert_eq!(found, expected.map(|(requests, times)| Repeats { requests, times }));
    }
}

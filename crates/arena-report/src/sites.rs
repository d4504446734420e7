//! Who holds the memory: the lines of a program, by what they hold at the peak, and by what they cost.

use std::collections::HashMap;

use serde::Serialize;

use crate::measure::{bumped, live_bytes, live_peak};
use crate::model::{Buffer, Origin, Recording, Step};
use crate::names::{NameId, SiteId};

/// What the buffers of one line of a program hold in a step. Where the file knows no lines, those of one tag or of one
/// scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SiteFigures {
    /// The line, the tag or the scope.
    pub label: String,
    /// How many buffers these are in the step.
    pub buffers: usize,
    /// What they add up to, in bytes.
    pub sum_bytes: u64,
    /// What they hold while the most is live, in bytes.
    pub at_peak_bytes: u64,
    /// Bytes that a bump leaves unused before them, so that they begin at their alignment.
    pub padding_bytes: u64,
    /// By how many bytes less would be live at most, if each of them were dropped right after its last use. `None` if
    /// the file does not know the last uses.
    pub earlier_drop_saves_bytes: Option<u64>,
}

/// Who asked for a buffer, as exactly as the file knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    Site(SiteId),
    Tag(NameId),
    Scope(NameId),
    Unknown,
}

impl Who {
    pub(crate) fn of(buffer: &Buffer) -> Self {
        let site = buffer.site().map(Self::Site).or(buffer.tag().map(Self::Tag));
        site.or(buffer.scope().map(Self::Scope)).unwrap_or(Self::Unknown)
    }

    pub(crate) fn label(self, recording: &Recording) -> String {
        match self {
            Self::Site(site) => recording.names.site(site),
            Self::Tag(name) | Self::Scope(name) => recording.names.get(name).to_owned(),
            Self::Unknown => "not said by the file".to_owned(),
        }
    }
}

/// The lines of a step that hold buffers, those first that hold most at the peak.
///
/// # Panics
///
/// When the step is not one of the recording.
#[must_use]
pub fn sites(recording: &Recording, step: usize) -> Vec<SiteFigures> {
    let step = &recording.steps[step];
    let live = live_bytes(step);
    let peak = live_peak(step).moment;
    let padding = padding(step);
    let mut places: HashMap<Who, usize> = HashMap::new();
    let mut groups: Vec<(Who, Vec<usize>)> = Vec::new();
    for (place, buffer) in step.buffers.iter().enumerate() {
        let who = Who::of(buffer);
        let group = *places.entry(who).or_insert_with(|| {
            groups.push((who, Vec::new()));
            groups.len() - 1
        });
        groups[group].1.push(place);
    }
    let mut figures: Vec<SiteFigures> = groups
        .iter()
        .map(|(who, members)| {
            let buffers = || members.iter().map(|&place| &step.buffers[place]);
            let at_peak = buffers().filter(|buffer| is_live(buffer, step, peak));
            SiteFigures {
                label: who.label(recording),
                buffers: members.len(),
                sum_bytes: buffers().map(Buffer::bytes).sum(),
                at_peak_bytes: at_peak.map(Buffer::bytes).sum(),
                padding_bytes: members.iter().map(|&place| padding[place]).sum(),
                earlier_drop_saves_bytes: saves(step, &live, peak, &mut buffers()),
            }
        })
        .collect();
    figures.sort_by(|a, b| {
        let order = |site: &SiteFigures| (site.at_peak_bytes, site.sum_bytes);
        order(b).cmp(&order(a)).then_with(|| a.label.cmp(&b.label))
    });
    figures
}

fn is_live(buffer: &Buffer, step: &Step, moment: u32) -> bool {
    (buffer.birth()..buffer.death(step.moments)).contains(&moment)
}

/// What a bump leaves unused before each buffer.
fn padding(step: &Step) -> Vec<u64> {
    let offsets = bumped(&mut step.own()).0;
    let (mut end, mut offsets) = (0, offsets.into_iter());
    let padding = step.buffers.iter().map(|buffer| {
        if buffer.origin() == Origin::Carried {
            return 0;
        }
        let offset = offsets.next().unwrap_or(end);
        let before = offset - end;
        end = offset + buffer.bytes();
        before
    });
    padding.collect()
}

/// The first moment at which a buffer would be dead if it were dropped right after its last use.
pub(crate) fn early_death(buffer: &Buffer, moments: u32) -> Option<u32> {
    let last_use = buffer.last_use()?;
    Some(last_use.saturating_add(1).max(buffer.birth() + 1).min(buffer.death(moments)))
}

/// By how much less would be live at most, if these buffers were dropped right after their last uses.
fn saves(
    step: &Step,
    live: &[u64],
    peak: u32,
    buffers: &mut dyn Iterator<Item = &Buffer>,
) -> Option<u64> {
    let mut idle: Vec<(u32, u32, u64)> = Vec::new();
    let mut is_known = false;
    for buffer in buffers {
        let Some(early) = early_death(buffer, step.moments) else { continue };
        is_known = true;
        idle.push((early, buffer.death(step.moments), buffer.bytes()));
    }
    if !is_known {
        return None;
    }
    // Nothing else lowers the highest moment.
    if !idle.iter().any(|&(from, to, bytes)| bytes > 0 && (from..to).contains(&peak)) {
        return Some(0);
    }
    let mut freed = vec![(0_u64, 0_u64); live.len() + 1];
    for (from, to, bytes) in idle {
        freed[from as usize].0 += bytes;
        freed[to as usize].1 += bytes;
    }
    let mut now = 0;
    let lowered = live.iter().zip(&freed).map(|(live, (begun, ended))| {
        now = now + begun - ended;
        live - now
    });
    let lowered = lowered.max().unwrap_or(0);
    Some(live[peak as usize] - lowered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Source, Told};
    use crate::names::Interner;

    #[test]
    fn a_line_is_told_by_what_it_holds_wastes_and_could_save() {
        let mut names = Interner::default();
        let [first, second] =
            ["a.rs:1", "a.rs:2"].map(|site| Some(names.site_of_text(site.into())));
        let buffers = vec![
            Buffer::new(0, 100).requested_by(first).used_last(Some(1)),
            Buffer::new(1, 50).aligned(64).requested_by(second).used_last(Some(4)),
            Buffer::new(2, 80).requested_by(second).dropped_at(Some(4)).used_last(Some(3)),
            Buffer::new(5, 1),
        ];
        let step = Step::new("step".to_owned(), Told::ByFile, 6, buffers);
        let (names, steps) = (names.finish(), vec![step]);
        let recording =
            Recording { source: Source::Events, names, region: None, steps, lost_steps: 0 };
        let told: Vec<_> = sites(&recording, 0)
            .into_iter()
            .map(|site| {
                let saves = site.earlier_drop_saves_bytes;
                (
                    site.label,
                    site.buffers,
                    site.sum_bytes,
                    site.at_peak_bytes,
                    site.padding_bytes,
                    saves,
                )
            })
            .collect();
        // 230 bytes are live from moment 2 on. Without the first buffer 150 are, at moment 1.
        let first = ("a.rs:1".to_owned(), 1, 100, 100, 0, Some(80));
        let second = ("a.rs:2".to_owned(), 2, 130, 130, 28, Some(0));
        let last = ("not said by the file".to_owned(), 1, 1, 0, 0, None);
        assert_eq!(told, [second, first, last]);
    }
}

//! Where dropping a buffer earlier would lower a plan's peak.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;

use arena_scope::record::{LastUse, StepLog};
use arena_scope::{ByteSize, StepKey};

use crate::lives::{self, Life};
use crate::planned_run::PlannedKind;
use crate::solve::{Options, solve};

type Site = &'static Location<'static>;

/// Where a program holds buffers longer than it uses them, and what that costs: see
/// [`PlannedRun::advice`](crate::PlannedRun::advice).
#[derive(Debug, Clone)]
pub struct Advice {
    /// One for each kind of step that is planned.
    pub kinds: Vec<KindAdvice>,
}

/// What earlier drops would save in one kind of step.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct KindAdvice {
    /// The key of its root scopes.
    pub key: StepKey,
    /// The peak of its plan.
    pub planned_bytes: u64,
    /// The peak of a plan for the step if each buffer were dropped right after its last use.
    pub by_last_use_bytes: u64,
    /// The drops that save most, at most [`Advice::MOST`], in the order in which to write them.
    pub drops: Vec<DropAdvice>,
}

/// An earlier drop: of all buffers that are requested by one call, and used last by one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DropAdvice {
    /// The call that requests them.
    pub requested_at: Site,
    /// The call that uses them last, after which the drop belongs. `None` if nothing uses them after the request.
    pub last_used_at: Option<Site>,
    /// A call that the first of them outlives: of the requests and last uses in the record, the last one before it
    /// was dropped.
    pub alive_at: Site,
    /// How many buffers these are in one step.
    pub buffers: usize,
    /// By how much this drop lowers the plan's peak when the drops before it in the list are written. If it is 0,
    /// the drops after it save less without it.
    pub saves_bytes: u64,
}

impl Advice {
    /// The most drops of one kind of step.
    pub const MOST: usize = 10;

    pub(crate) fn of(kinds: &[PlannedKind], options: &Options) -> Self {
        Self { kinds: kinds.iter().filter_map(|kind| KindAdvice::of(kind, options)).collect() }
    }
}

impl KindAdvice {
    fn of(kind: &PlannedKind, options: &Options) -> Option<Self> {
        let planned_bytes = kind.step.as_ref().ok()?.plan.peak_bytes();
        let mut lives = lives::lives(&kind.log);
        // A plan holds for shorter lives as well, so a worse one that the solver finds for them does not count.
        let peak_bytes = |lives: &[Life], before_bytes: u64| {
            let instance = lives::trace(lives).instance().ok()?;
            Some(solve(&instance, options).plan.peak_bytes().min(before_bytes))
        };
        let mut groups = Group::all(&kind.log, &lives);
        let mut early = lives.clone();
        groups.iter().for_each(|group| group.shorten(&mut early));
        let by_last_use_bytes = peak_bytes(&early, planned_bytes)?;

        let mut drops = Vec::new();
        let mut reached_bytes = planned_bytes;
        let mut excess = Excess::new(&lives, &early);
        while drops.len() < Advice::MOST
            && let Some(best) = excess.best(&groups)
        {
            let group = groups.remove(best);
            lower(&mut excess.moments, &group);
            group.shorten(&mut lives);
            let now_bytes = peak_bytes(&lives, reached_bytes)?;
            drops.push(group.advice(&kind.log, reached_bytes - now_bytes));
            reached_bytes = now_bytes;
        }
        Some(Self { key: kind.key, planned_bytes, by_last_use_bytes, drops })
    }
}

/// The buffers that one drop in the program's text would free.
#[derive(Debug)]
struct Group {
    requested_at: Site,
    last_used_at: Option<Site>,
    members: Vec<Member>,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    /// Its place in the list of lives.
    buffer: usize,
    life: Life,
    /// When it would be dead.
    death: usize,
}

impl Group {
    fn all(log: &StepLog, lives: &[Life]) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        let mut known = HashMap::new();
        for (buffer, &life) in lives.iter().enumerate() {
            let Some(request) = log.requests().get(life.request) else { continue };
            let last_used_at = request.last_use.map(|last| last.call_site);
            let used_until = request.last_use.map_or(0, |last| last.before_event);
            let death = used_until.max(life.birth + 1).min(life.death);
            let number = *known.entry((request.call_site, last_used_at)).or_insert_with(|| {
                let (requested_at, members) = (request.call_site, Vec::new());
                groups.push(Self { requested_at, last_used_at, members });
                groups.len() - 1
            });
            groups[number].members.push(Member { buffer, life, death });
        }
        groups
    }

    /// Lets its buffers die where they are used last.
    fn shorten(&self, lives: &mut [Life]) {
        for member in &self.members {
            lives[member.buffer].death = member.death;
        }
    }

    fn advice(&self, log: &StepLog, saves_bytes: u64) -> DropAdvice {
        let Self { requested_at, last_used_at, ref members } = *self;
        // One that would die earlier: that is why the group was chosen.
        let first = members.iter().find(|member| member.death < member.life.death);
        let death = first.map_or(0, |member| member.life.death);
        DropAdvice {
            requested_at,
            last_used_at,
            alive_at: last_call_before(log, death, requested_at.file()).unwrap_or(requested_at),
            buffers: members.len(),
            saves_bytes,
        }
    }
}

/// Of the requests and the last uses in a record the last one before an event. Of several uses between the same
/// events one in this file is taken, the furthest down.
fn last_call_before(log: &StepLog, event: usize, file: &str) -> Option<Site> {
    use arena_scope::record::StepEvent::Alloc;
    let is_request = |event: &usize| matches!(log.events()[*event], Alloc { .. });
    let requests = (0..event.min(log.events().len())).filter(is_request).zip(log.requests());
    let (requested, request) = requests.last()?;
    let uses = log.requests().iter().filter_map(|request| request.last_use);
    let later = uses.filter(|last| (requested + 1..=event).contains(&last.before_event));
    let order = |last: &LastUse| {
        let site = last.call_site;
        (last.before_event, site.file() == file, site.line())
    };
    Some(later.max_by_key(order).map_or(request.call_site, |last| last.call_site))
}

/// What is live at the births at which more is live than need be.
#[derive(Debug)]
struct Excess {
    /// The event, and the bytes above what is live at most if every buffer dies at its last use.
    moments: Vec<(usize, u64)>,
}

impl Excess {
    fn new(lives: &[Life], early: &[Life]) -> Self {
        let target_bytes = live_at_births(early).into_iter().map(|(_, live)| live).max();
        let above = |(event, live): (usize, u64)| Some((event, live.checked_sub(target_bytes?)?));
        let moments = live_at_births(lives).into_iter().filter_map(above);
        Self { moments: moments.filter(|moment| moment.1 > 0).collect() }
    }

    /// The place of the group after whose drop the least is live at most; of several, the one that lowers most
    /// besides. `None` if nothing is live that need not be.
    fn best(&self, groups: &[Group]) -> Option<usize> {
        let measure = |lowered: &[(usize, u64)]| {
            let highest = lowered.iter().map(|moment| moment.1).max().unwrap_or(0);
            (highest, lowered.iter().map(|moment| u128::from(moment.1)).sum::<u128>())
        };
        let now = measure(&self.moments);
        let mut lowered = Vec::with_capacity(self.moments.len());
        let measured = groups.iter().enumerate().map(|(place, group)| {
            lowered.clone_from(&self.moments);
            lower(&mut lowered, group);
            (measure(&lowered), place)
        });
        let (best, place) = measured.min()?;
        (best < now).then_some(place)
    }
}

/// Takes what a group's drop frees off the moments that it frees it for.
fn lower(moments: &mut [(usize, u64)], group: &Group) {
    for Member { life, death, .. } in &group.members {
        let from = moments.partition_point(|moment| moment.0 < *death);
        for moment in moments[from..].iter_mut().take_while(|moment| moment.0 < life.death) {
            moment.1 = moment.1.saturating_sub(occupied_bytes(life));
        }
    }
}

/// The event of each birth, and how many bytes are live then.
fn live_at_births(lives: &[Life]) -> Vec<(usize, u64)> {
    let mut deaths: Vec<&Life> = lives.iter().collect();
    deaths.sort_by_key(|life| life.death);
    let (mut deaths, mut live) = (deaths.into_iter().peekable(), 0);
    let at_birth = |born: &Life| {
        while let Some(dead) = deaths.next_if(|dead| dead.death <= born.birth) {
            live -= occupied_bytes(dead);
        }
        live += occupied_bytes(born);
        (born.birth, live)
    };
    lives.iter().map(at_birth).collect()
}

const fn occupied_bytes(life: &Life) -> u64 {
    life.bytes.next_multiple_of(life.alignment_bytes)
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kinds.iter().try_for_each(|kind| kind.fmt(f))
    }
}

impl fmt::Display for KindAdvice {
    /// A line for the step, and one for each drop.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, planned_bytes, by_last_use_bytes, drops } = self;
        write!(f, "{key}: planned {planned_bytes} bytes, ")?;
        if by_last_use_bytes == planned_bytes {
            return writeln!(f, "and no earlier drop saves a byte");
        }
        writeln!(f, "{by_last_use_bytes} if each buffer were dropped after its last use")?;
        drops.iter().try_for_each(|drop| writeln!(f, "  {drop}"))
    }
}

impl fmt::Display for DropAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requested_at, last_used_at, alive_at, buffers, saves_bytes } = *self;
        let beside = Beside(requested_at.file());
        write!(f, "{}:{}: ", requested_at.file(), requested_at.line())?;
        if buffers > 1 {
            write!(f, "{buffers} buffers, ")?;
        }
        match last_used_at {
            Some(site) => write!(f, "last used at {}", beside.site(site))?,
            None => write!(f, "never used")?,
        }
        write!(f, ", still alive at {}; dropping after ", beside.site(alive_at))?;
        write!(f, "{} ", beside.site(last_used_at.unwrap_or(requested_at)))?;
        if saves_bytes == 0 {
            return write!(f, "lets the next ones save more");
        }
        write!(f, "saves {saves_bytes} bytes ({})", ByteSize::bytes_exact(saves_bytes))
    }
}

/// Sites as they are told beside one in this file.
struct Beside(&'static str);

impl Beside {
    fn site(&self, site: Site) -> String {
        let file = if site.file() == self.0 { "" } else { site.file() };
        format!("{file}:{}", site.line())
    }
}

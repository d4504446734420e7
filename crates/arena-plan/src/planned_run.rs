//! From a program to an arena of just the bytes that its planned steps need.

mod run_file;

use std::collections::HashMap;
use std::fmt;

use arena_scope::plan::SlotTable;
use arena_scope::record::{RunDemand, StepLog};
use arena_scope::{Arena, ArenaBuilder, ByteSize, Device, Error, Probe, ScopeOptions, StepKey};

use crate::advice::Advice;
use crate::below_bump;
use crate::record::{PlannedStep, StepError};
use crate::run_planner::RunPlanner;
use crate::solve::Options;

pub use run_file::{RunFileError, saved_plans};

/// A run of a program: a plan for each kind of its steps, and the capacity that it needs with them.
///
/// ```
/// use arena_plan::{Options, PlannedRun};
/// use arena_scope::{Arena, Device, Error, Host};
///
/// /// One step of each kind is enough. It is generic over the device, so a probe can run it.
/// fn one_run<D: Device>(arena: &mut Arena<D>) -> Result<(), Error> {
///     let _weights = arena.persistent_zeroed::<f32>(1000)?;
///     arena.scope_named("train", |step| {
///         let x = step.alloc::<f32>(2000)?;
///         let y = step.alloc::<f32>(1000)?;
///         drop(x); // the next one may have its bytes
///         drop((step.alloc::<f32>(2000)?, y));
///         Ok(())
///     })
/// }
///
/// let run = PlannedRun::probe(&Host::new(), &Options::default(), one_run)?; // no memory is taken
/// assert!(run.capacity().bytes() < run.bumped_capacity().bytes());
/// let mut arena = run.build(Host::new())?;
/// one_run(&mut arena)?; // just fits
/// assert_eq!(arena.stats().peak_bytes, arena.stats().capacity_bytes);
/// # arena_scope::Ok(())
/// ```
#[derive(Debug, Clone)]
pub struct PlannedRun {
    kinds: Vec<PlannedKind>,
    demand: RunDemand,
    persistent_bytes: u64,
    capacity_bytes: u64,
    bumped_bytes: u64,
    /// What the steps that do not follow their plans need beside them.
    deviating_bytes: u64,
    options: Options,
    /// Records that the arena had forgotten.
    forgotten: u64,
}

/// One kind of step, and its plan.
#[derive(Debug, Clone)]
pub struct PlannedKind {
    /// The key of its root scopes.
    pub key: StepKey,
    /// The plan. Without one the steps are bumped, and this is the reason.
    pub step: Result<PlannedStep, String>,
    /// The bytes that a bumped step takes above the mark.
    pub bumped_bytes: u64,
    /// The bytes that a step takes above the mark as it is: its plan's and the padding before them, or what the bump
    /// takes.
    pub needed_bytes: u64,
    /// The step that was recorded.
    pub(crate) log: StepLog,
}

impl PlannedKind {
    /// A kind with this plan, if an arena can follow it.
    fn new(
        key: StepKey,
        log: StepLog,
        step: Result<PlannedStep, StepError>,
        mark_bytes: u64,
    ) -> Self {
        let ends = below_bump::ends_from(mark_bytes, &log);
        let bumped_bytes = ends.into_iter().max().unwrap_or(mark_bytes) - mark_bytes;
        let slots = step.and_then(|step| step.slots().map(|slots| (step, slots)));
        let (step, needed_bytes) = match slots {
            Ok((step, slots)) => {
                let padded_bytes = mark_bytes.next_multiple_of(slots.alignment().bytes());
                (Ok(step), padded_bytes - mark_bytes + slots.peak_bytes())
            }
            Err(error) => (Err(error.to_string()), bumped_bytes),
        };
        Self { key, step, bumped_bytes, needed_bytes, log }
    }
}

impl PlannedRun {
    /// Runs a program on a device without memory, plans each kind of its steps, and runs it once more to learn the
    /// capacity to the byte. `one_run` asks for the persistent buffers and makes at least one step of each kind;
    /// `device` is the device that the arena is for.
    ///
    /// # Errors
    ///
    /// What `one_run` returns.
    pub fn probe<D: Device, E: From<Error>>(
        device: &D,
        options: &Options,
        mut one_run: impl FnMut(&mut Arena<Probe>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut bumped = roomy(device)?;
        bumped.record(None);
        one_run(&mut bumped)?;
        let mut run = Self::from_record(&bumped, options);
        let mut planned = roomy(device)?;
        run.follow(&mut planned);
        one_run(&mut planned)?;
        run.deviating_bytes = planned.smallest_capacity_bytes().saturating_sub(run.capacity_bytes);
        run.size();
        Ok(run)
    }

    /// Plans what an arena has recorded ([`Arena::record`]), on any device. Call `record` before the first step. The
    /// capacity is exact to the byte for a run like the recorded one, if each step of a key repeats the first: kept
    /// buffers and their padding are counted, as for the bump. Steps that differ need keys that differ, or more
    /// room; [`probe`](Self::probe) finds out how much. A record that the arena has
    /// [forgotten](arena_scope::ArenaBuilder::step_memory) is missing, and `Display` says how many are.
    ///
    /// ```
    /// use arena_plan::{Options, PlannedRun};
    /// use arena_scope::{Arena, ByteSize, Host};
    ///
    /// let one_run = |arena: &mut Arena| {
    ///     let moment = arena.scope_named("train", |step| {
    ///         drop(step.upload(&[1_u8; 2000])?);
    ///         let result = step.alloc_zeroed::<u8>(1000)?;
    ///         step.promote(result.view()) // kept at the top
    ///     })?;
    ///     arena_scope::Ok(moment.len())
    /// };
    /// let mut roomy = Arena::builder(Host::new()).capacity(ByteSize::mib(1)).build()?;
    /// roomy.record(None);
    /// one_run(&mut roomy)?;
    /// let run = PlannedRun::from_record(&roomy, &Options::default());
    /// assert_eq!((run.capacity().bytes(), run.bumped_capacity().bytes()), (3048, 4072));
    /// one_run(&mut run.build(Host::new())?)?;
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn from_record<D: Device>(arena: &Arena<D>, options: &Options) -> Self {
        let mark_bytes = arena.stats().mark_bytes;
        let (seen, forgotten) =
            arena.observed().map(|seen| (seen.kinds, seen.forgotten)).unwrap_or_default();
        let plan = |key| {
            let log = arena.recorded(key)?;
            let step = PlannedStep::solve(&log, options);
            Some(PlannedKind::new(key, log, step, mark_bytes))
        };
        let kinds: Vec<_> = seen.iter().filter_map(|kind| plan(kind.key)).collect();
        let demand = arena.recorded_demand();
        // What was planned already would need other bytes if it were bumped.
        let bumped_bytes = demand.smallest_capacity_bytes(|key| {
            let kind = kinds.iter().find(|kind| kind.key == key)?;
            arena.plan_span(key).map(|_| mark_bytes + kind.bumped_bytes)
        });
        let mut run = Self {
            kinds,
            demand,
            persistent_bytes: mark_bytes,
            capacity_bytes: 0,
            bumped_bytes,
            deviating_bytes: 0,
            options: options.clone(),
            forgotten,
        };
        run.size();
        run
    }

    /// Finds the capacity for the present plans.
    fn size(&mut self) {
        let end_of = |key| {
            let kind = self.kinds.iter().find(|kind| kind.key == key && kind.step.is_ok())?;
            Some(self.persistent_bytes + kind.needed_bytes)
        };
        self.capacity_bytes = self.demand.smallest_capacity_bytes(end_of) + self.deviating_bytes;
    }

    /// The same run without plans: its steps are bumped, and its capacity is what they need then.
    #[must_use]
    pub fn without_plans(mut self) -> Self {
        for kind in &mut self.kinds {
            kind.step = Err("plans are not followed".to_owned());
            kind.needed_bytes = kind.bumped_bytes;
        }
        self.capacity_bytes = self.bumped_bytes;
        self
    }

    /// The kinds of step, in the order in which they came.
    #[must_use]
    pub fn kinds(&self) -> &[PlannedKind] {
        &self.kinds
    }

    /// What the buffers below the mark need.
    #[must_use]
    pub const fn persistent(&self) -> ByteSize {
        ByteSize::bytes_exact(self.persistent_bytes)
    }

    /// What the planned run needs.
    #[must_use]
    pub const fn capacity(&self) -> ByteSize {
        ByteSize::bytes_exact(self.capacity_bytes)
    }

    /// What the same run needs without plans.
    #[must_use]
    pub const fn bumped_capacity(&self) -> ByteSize {
        ByteSize::bytes_exact(self.bumped_bytes)
    }

    /// An arena of just the [capacity](Self::capacity), whose steps follow the plans.
    ///
    /// # Errors
    ///
    /// As for [`ArenaBuilder::build`].
    pub fn build<D: Device>(&self, device: D) -> Result<Arena<D>, Error> {
        self.build_with(Arena::builder(device))
    }

    /// [`build`](Self::build) with other settings than the default; the capacity is set here.
    ///
    /// # Errors
    ///
    /// As for [`ArenaBuilder::build`].
    pub fn build_with<D: Device>(&self, builder: ArenaBuilder<D>) -> Result<Arena<D>, Error> {
        let mut arena = builder.capacity(self.capacity()).build()?;
        self.follow(&mut arena);
        Ok(arena)
    }

    /// Lets the steps of an arena follow the plans, from its next root scope on, when the mark is set. A plan for
    /// which there is no room is left out. This takes the place of the arena's planner, which then has the plans in 16
    /// bytes for each request; this run can be dropped.
    pub fn follow<D: Device>(&self, arena: &mut Arena<D>) {
        arena.set_planner(Box::new(RunPlanner::new(self.slots(), |_| None)), u32::MAX);
    }

    /// Lets an arena that has run without plans [follow](Self::follow) them, and gives back the memory that they do not
    /// need. So a program that cannot be probed need not know its capacity: it records its first steps in a large
    /// [`RegionKind::Virtual`](arena_scope::RegionKind) region, plans them ([`from_record`](Self::from_record)), and
    /// fits. Returns the number of bytes given back; the region grows again if a step needs more.
    ///
    /// ```
    /// use arena_plan::{Options, PlannedRun};
    /// use arena_scope::{Arena, ByteSize, Host, RegionKind};
    ///
    /// let builder = Arena::builder(Host::new()).capacity(ByteSize::gib(64));
    /// let mut arena = builder.region(RegionKind::Virtual).build()?;
    /// arena.record(None);
    /// arena.scope(|step| (0..8).try_for_each(|_| step.alloc::<u8>(4 << 20).map(drop)))?;
    /// assert_eq!(arena.stats().committed_bytes, 32 << 20);
    /// let run = PlannedRun::from_record(&arena, &Options::default());
    /// assert_eq!(run.fit(&mut arena)?, 28 << 20);
    /// # arena_scope::Ok(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Arena::trim`]. The plans are followed all the same.
    pub fn fit<D: Device>(&self, arena: &mut Arena<D>) -> Result<u64, Error> {
        self.follow(arena);
        let needed = self.kinds.iter().map(|kind| kind.needed_bytes).max().unwrap_or(0);
        arena.trim_to(self.persistent_bytes + needed + self.deviating_bytes)
    }

    /// The slots of all plans.
    pub(crate) fn slots(&self) -> HashMap<StepKey, SlotTable> {
        let slots = |kind: &PlannedKind| Some((kind.key, kind.step.as_ref().ok()?.slots().ok()?));
        self.kinds.iter().filter_map(slots).collect()
    }

    /// Options for a root scope of this key, which refuse a step for which there is no room before it begins.
    #[must_use]
    pub fn options(&self, key: impl Into<StepKey>) -> ScopeOptions {
        let key = key.into();
        let known = self.kinds.iter().find(|kind| kind.key == key);
        ScopeOptions::from(key).needs(known.map_or(0, |kind| kind.needed_bytes))
    }

    /// Where dropping buffers earlier would lower the peaks of the plans. A plan can give a buffer's bytes to others
    /// once its handle is dropped; a local variable lives to the end of its function, however early it was used last.
    ///
    /// For each kind of step it tells the peak that the plan has, the one that it would have if each buffer were
    /// dropped right after its last use, and the drops in the program's text that bring most. They are to be written
    /// in the order of the list: each tells what it saves when those before it are written. The first is the one that
    /// saves most alone. The solver plans the step anew for each, with the options of this run, so the bytes come true
    /// if the program changes in nothing else.
    ///
    /// A *use* is a call that takes a view, a slice, the address or a kernel's argument of a buffer, or that reads,
    /// writes or copies it through a view ([`LastUse`]). What is kept of such a call is used later than the record
    /// knows: a slice in a variable, an address in a struct, work on another stream. If a drop does not compile,
    /// because something is borrowed that is used later, the advice does not hold and is to be ignored. The same
    /// goes for memory that is used by its address alone, which no compiler sees. A last use inside a loop is the one
    /// of its last round: there the drop belongs after the loop.
    ///
    /// A helper that allocates or uses buffers is named itself, unless it has `#[track_caller]`.
    ///
    /// ```
    /// use arena_plan::{Options, PlannedRun};
    /// use arena_scope::{Arena, Device, Error, Host};
    ///
    /// fn one_run<D: Device>(arena: &mut Arena<D>) -> Result<(), Error> {
    ///     arena.scope_named("train", |step| {
    ///         let mut x = step.alloc::<f32>(1024)?;
    ///         let mut y = step.alloc::<f32>(1024)?;
    ///         y.view_mut().copy_from(x.view())?; // x is dead from here on, but lives to the end of the closure
    ///         let mut z = step.alloc::<f32>(1024)?;
    ///         z.view_mut().copy_from(y.view())
    ///     })
    /// }
    ///
    /// let advice = PlannedRun::probe(&Host::new(), &Options::default(), one_run)?.advice();
    /// let step = &advice.kinds[0];
    /// assert_eq!((step.planned_bytes, step.by_last_use_bytes), (12_288, 8192));
    /// assert_eq!((step.drops.len(), step.drops[0].saves_bytes), (1, 4096));
    /// # arena_scope::Ok(())
    /// ```
    ///
    /// [`LastUse`]: arena_scope::record::LastUse
    #[must_use]
    pub fn advice(&self) -> Advice {
        Advice::of(&self.kinds, &self.options)
    }
}

/// An arena without memory, in which everything fits. Nothing of its record is forgotten.
pub(crate) fn roomy<D: Device>(device: &D) -> Result<Arena<Probe>, Error> {
    let builder = Arena::builder(Probe::like(device)).capacity(ByteSize::bytes_exact(1 << 61));
    builder.step_memory(ByteSize::bytes_exact(u64::MAX)).build()
}

impl fmt::Display for PlannedRun {
    /// A line for each kind of step, and the capacities.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for PlannedKind { key, step, bumped_bytes, .. } in &self.kinds {
            write!(f, "{key}: ")?;
            match step {
                Ok(step) => {
                    let (peak, bound) = (step.plan.peak_bytes(), step.bound.rounded_bytes);
                    let optimal = if peak == bound { ", optimal" } else { "" };
                    writeln!(
                        f,
                        "requests {}, sum {} bytes, live at once {bound}, planned {peak}{optimal}",
                        step.plan.instance().len(),
                        step.sum_bytes,
                    )?;
                }
                Err(reason) => {
                    writeln!(f, "bumped in {bumped_bytes} bytes, not planned: {reason}")?
                }
            }
        }
        if self.forgotten > 0 {
            writeln!(
                f,
                "records that the arena forgot: {}; give it more `step_memory` to plan those too",
                self.forgotten
            )?;
        }
        let (capacity, bumped) = (self.capacity(), self.bumped_capacity());
        writeln!(f, "persistent {} bytes", self.persistent_bytes)?;
        writeln!(
            f,
            "capacity {} bytes ({capacity}) planned, {} ({bumped}) bumped",
            self.capacity_bytes, self.bumped_bytes
        )
    }
}

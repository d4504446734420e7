//! From a program to an arena of just the bytes that its planned steps need.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use arena_scope::plan::SlotTable;
use arena_scope::record::StepLog;
use arena_scope::{Arena, ArenaBuilder, ByteSize, Device, Error, Probe, ScopeOptions, StepKey};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::advice::Advice;
use crate::files::{self, FileError};
use crate::plan::{Plan, PlanError};
use crate::record::{PlannedStep, StepError};
use crate::run_planner::RunPlanner;
use crate::solve::Options;

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
    persistent_bytes: u64,
    capacity_bytes: u64,
    bumped_bytes: u64,
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
    /// The step that was recorded.
    pub(crate) log: StepLog,
}

impl PlannedKind {
    /// What a step takes above a mark: its plan's bytes and the padding before them, or what the bump takes.
    fn needed_bytes(&self, mark_bytes: u64) -> u64 {
        let Ok(step) = &self.step else { return self.bumped_bytes };
        let alignment_bytes = step.plan.instance().alignment_bytes();
        mark_bytes.next_multiple_of(alignment_bytes) - mark_bytes + step.plan.peak_bytes()
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
        run.bumped_bytes = bumped.smallest_capacity_bytes();
        let mut planned = roomy(device)?;
        run.follow(&mut planned);
        one_run(&mut planned)?;
        run.capacity_bytes = planned.smallest_capacity_bytes();
        Ok(run)
    }

    /// Plans what an arena has recorded ([`Arena::record`]), on any device. The capacity is exact where no
    /// persistent buffer was made after the mark was set; those that are kept now are counted with their
    /// present padding. A record that the arena has [forgotten](arena_scope::ArenaBuilder::step_memory) is missing, and
    /// `Display` says how many are.
    #[must_use]
    pub fn from_record<D: Device>(arena: &Arena<D>, options: &Options) -> Self {
        let stats = arena.stats();
        let (seen, forgotten) =
            arena.observed().map(|seen| (seen.kinds, seen.forgotten)).unwrap_or_default();
        let plan = |log: &StepLog| {
            let step = PlannedStep::solve(log, options)?;
            step.slots()?; // An arena can follow it.
            Ok(step)
        };
        let kinds: Vec<_> = seen
            .iter()
            .filter_map(|kind| {
                let log = arena.recorded(kind.key)?;
                let step = plan(&log).map_err(|error: StepError| error.to_string());
                let bumped_bytes = kind.high_water_bytes - stats.mark_bytes;
                Some(PlannedKind { key: kind.key, step, bumped_bytes, log })
            })
            .collect();
        let end = |kind: &PlannedKind| stats.mark_bytes + kind.needed_bytes(stats.mark_bytes);
        let bumped_end = |kind: &PlannedKind| stats.mark_bytes + kind.bumped_bytes;
        let highest = |ends: &dyn Fn(&PlannedKind) -> u64| {
            kinds.iter().map(ends).max().unwrap_or(stats.mark_bytes) + stats.kept_bytes
        };
        let (capacity_bytes, bumped_bytes) = (highest(&end), highest(&bumped_end));
        let (persistent_bytes, options) = (stats.mark_bytes, options.clone());
        Self { kinds, persistent_bytes, capacity_bytes, bumped_bytes, options, forgotten }
    }

    /// The kinds of step, in the order in which they came.
    #[must_use]
    pub fn kinds(&self) -> &[PlannedKind] {
        &self.kinds
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
        let needs = known.map_or(0, |kind| kind.needed_bytes(self.persistent_bytes));
        ScopeOptions::from(key).needs(needs)
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

    // --- files ----------------------------------------------------------------------------------

    /// Writes all plans to one file, whole or not at all.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), RunFileError> {
        let planned =
            self.kinds.iter().filter_map(|kind| Some((kind.key, kind.step.as_ref().ok()?)));
        let kinds = planned.map(|(key, step)| {
            let mut plan = Vec::new();
            step.plan.save(&mut plan)?;
            let plan = serde_json::from_slice(&plan)?;
            Ok(KindInFile { name: key.name.to_owned(), variant: key.variant, plan })
        });
        let kinds = kinds.collect::<Result<Vec<_>, PlanError>>();
        let kinds = kinds.map_err(|cause| RunFileError::plan(path, None, cause))?;
        let file = RunFile { format: FORMAT.to_owned(), version: VERSION, kinds };
        Ok(files::write(path, |to| {
            serde_json::to_writer(&mut *to, &file)?;
            writeln!(to)
        })?)
    }

    /// Takes the plans of a file instead of its own: such as ones that a longer search has found.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, is damaged, or is for another program: the error names the kind of step and the
    /// first buffer that differs. Nothing is changed then.
    pub fn load(&mut self, path: &Path) -> Result<(), RunFileError> {
        let damaged = |cause: serde_json::Error| RunFileError::plan(path, None, cause.into());
        let file: RunFile = serde_json::from_slice(&files::read(path)?).map_err(damaged)?;
        if (file.format.as_str(), file.version) != (FORMAT, VERSION) {
            let cause = PlanError::Format { format: file.format, version: file.version };
            return Err(RunFileError::plan(path, None, cause));
        }
        let mut kinds = self.kinds.clone();
        for kind in &mut kinds {
            let Ok(step) = &mut kind.step else { continue };
            let same = |in_file: &&KindInFile| {
                (in_file.name.as_str(), in_file.variant) == (kind.key.name, kind.key.variant)
            };
            let Some(in_file) = file.kinds.iter().find(same) else {
                return Err(RunFileError::Missing { path: path.to_owned(), key: kind.key });
            };
            let instance = step.plan.instance().clone();
            let plan = Plan::load(in_file.plan.get().as_bytes());
            let plan = plan.and_then(|plan| plan.check_for(&instance).map(|()| plan));
            let plan = plan.map_err(|cause| RunFileError::plan(path, Some(kind.key), cause))?;
            *step = PlannedStep::loaded(instance, plan);
        }
        self.kinds = kinds;
        Ok(())
    }
}

const FORMAT: &str = "arena-plan run";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunFile {
    format: String,
    version: u32,
    kinds: Vec<KindInFile>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KindInFile {
    name: String,
    variant: u64,
    plan: Box<RawValue>,
}

/// Why the plans of a run could not be saved or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunFileError {
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is damaged, or a plan in it is for another program.
    #[error("{}: {}{cause}", path.display(), of(*key))]
    Plan {
        /// The file.
        path: PathBuf,
        /// The kind of step, if one is known.
        key: Option<StepKey>,
        /// What is wrong.
        cause: Box<PlanError>,
    },
    /// The file has no plan for a kind of step that the program makes.
    #[error("{}: no plan for steps {key}: the file is of another program", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The kind of step.
        key: StepKey,
    },
}

impl RunFileError {
    fn plan(path: &Path, key: Option<StepKey>, cause: PlanError) -> Self {
        Self::Plan { path: path.to_owned(), key, cause: Box::new(cause) }
    }
}

fn of(key: Option<StepKey>) -> String {
    key.map_or_else(String::new, |key| format!("steps {key}: "))
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

//! Plans made beside the running loop: recorded from a step, solved on a thread, installed when ready.

use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;

use arena_scope::plan::{Planner, SlotTable};
use arena_scope::record::StepLog;
use arena_scope::{Arena, Device, Error, ErrorKind, StepKey};

use crate::record::PlannedStep;
use crate::solve::Options;

/// After this many consecutive steps that deviate, the step is recorded and planned again.
pub const PATIENCE: u32 = 8;

/// The most records that wait for the thread. A record that finds no room is dropped, and a later step is recorded
/// instead. So the host memory of a loop whose steps never repeat does not grow.
const WAITING: usize = 4;

/// Solves recorded steps on a separate thread, which ends when the planner is dropped.
#[derive(Debug)]
pub struct BackgroundPlanner {
    records: SyncSender<(StepKey, StepLog)>,
    plans: Receiver<(StepKey, SlotTable)>,
    fits: bool,
}

impl BackgroundPlanner {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoThread`] when the operating system gives no thread.
    pub fn start(options: Options) -> Result<Self, Error> {
        let (records, to_solve) = sync_channel::<(StepKey, StepLog)>(WAITING);
        let (solved, plans) = channel();
        let solve = move || {
            for (key, log) in to_solve {
                // A step that cannot be planned goes on as it is.
                let planned =
                    PlannedStep::solve(&log, &options).and_then(|step| step.yielding_slots(&log));
                if let Ok(table) = planned
                    && solved.send((key, table)).is_err()
                {
                    return; // The planner is gone.
                }
            }
        };
        let thread = thread::Builder::new().name("arena-plan".to_owned()).spawn(solve);
        thread.map_err(|cause| ErrorKind::NoThread { what: "the planner", cause })?;
        Ok(Self { records, plans, fits: false })
    }

    /// The arena gives back what its steps do not need, each time that plans were installed: as
    /// [`AutoPlan::auto_fit`].
    #[must_use]
    pub fn fitting(mut self) -> Self {
        self.fits = true;
        self
    }
}

impl Planner for BackgroundPlanner {
    fn recorded(&mut self, key: StepKey, log: &StepLog) -> bool {
        // Without its thread there are no more plans, and steps go on as they are.
        self.records.try_send((key, log.clone())).is_ok()
    }

    fn ready(&mut self) -> Option<(StepKey, SlotTable)> {
        self.plans.try_recv().ok()
    }

    fn fits(&self) -> bool {
        self.fits
    }
}

/// An arena that plans its steps automatically.
pub trait AutoPlan {
    /// Records the first step of each kind, solves it on another thread while the next steps run, and follows the
    /// plan when it is ready. After [`PATIENCE`] consecutive steps that deviate, the step is recorded and planned
    /// again.
    ///
    /// ```
    /// use arena_plan::{AutoPlan, Options};
    /// use arena_scope::{Arena, ByteSize, Host, StepKey};
    ///
    /// let mut arena = Arena::builder(Host::new()).capacity(ByteSize::mib(1)).build()?;
    /// arena.auto_plan(Options::default())?;
    /// let step = StepKey::named("step");
    /// while arena.plan_span(step).is_none() {
    ///     arena.scope_with(step, |scope| {
    ///         drop(scope.alloc::<f32>(1000)?);
    ///         scope.alloc::<f32>(1000).map(drop)     // a plan gives it the bytes of the first one
    ///     })?;
    /// }
    /// assert_eq!(arena.plan_span(step).map(|span| span.len_bytes()), Some(4000));
    /// # arena_scope::Ok(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoThread`] when the operating system gives no thread.
    fn auto_plan(&mut self, options: Options) -> Result<(), Error>;

    /// [`auto_plan`](Self::auto_plan), and each time that plans were installed the arena gives back what its steps do not
    /// need, as [`Arena::fit`] does: for a program that does not know its capacity and takes a
    /// [`RegionKind::Virtual`](arena_scope::RegionKind) region. Of a kind without a plan its first step counts, so a
    /// kind that is seen later makes the region grow again.
    ///
    /// Nothing is given back where the device refuses it, or while a captured graph holds the region.
    ///
    /// ```
    /// use arena_plan::{AutoPlan, Options};
    /// use arena_scope::{Arena, ByteSize, Host, RegionKind, StepKey};
    ///
    /// let builder = Arena::builder(Host::new()).capacity(ByteSize::gib(64));
    /// let mut arena = builder.region(RegionKind::Virtual).build()?;
    /// arena.auto_fit(Options::default())?;
    /// let step = StepKey::named("step");
    /// while arena.plan_span(step).is_none() {
    ///     arena.scope_with(step, |scope| {
    ///         (0..8).try_for_each(|_| scope.alloc::<u8>(4 << 20).map(drop))
    ///     })?;
    /// }
    /// assert_eq!(arena.stats().committed_bytes, 4 << 20);
    /// # arena_scope::Ok(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`auto_plan`](Self::auto_plan).
    fn auto_fit(&mut self, options: Options) -> Result<(), Error>;
}

impl<D: Device> AutoPlan for Arena<D> {
    fn auto_plan(&mut self, options: Options) -> Result<(), Error> {
        self.set_planner(Box::new(BackgroundPlanner::start(options)?), PATIENCE);
        Ok(())
    }

    fn auto_fit(&mut self, options: Options) -> Result<(), Error> {
        self.set_planner(Box::new(BackgroundPlanner::start(options)?.fitting()), PATIENCE);
        Ok(())
    }
}

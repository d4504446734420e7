//! From an arena's record of a step to a plan that the arena replays.

use std::time::Duration;

use arena_scope::Alignment;
use arena_scope::errors::SlotTableError;
use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::record::StepLog;
use thiserror::Error;

use crate::below_bump;
use crate::bound::{Bound, lower_bound};
use crate::instance::{Instance, InstanceError};
use crate::lives;
use crate::plan::Plan;
use crate::solve::{Options, solve};
use crate::trace::Trace;

/// The step that an arena recorded. A buffer dies when its handle is dropped, or else when its scope closes.
/// Empty requests are left out, because they need no byte.
///
/// ```
/// # use arena_plan::{trace_of};
/// use arena_scope::{Arena, ByteSize, Probe};
///
/// let mut probe = Arena::builder(Probe::new()).capacity(ByteSize::gib(1)).build()?;
/// probe.record(None);
/// probe.scope_named("train", |step| step.alloc::<f32>(100).map(drop))?;
/// let trace = trace_of(&probe.recorded("train").expect("the step was recorded"));
/// assert_eq!((trace.len(), trace.size_bytes(0)), (1, Some(400)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn trace_of(log: &StepLog) -> Trace {
    lives::trace(&lives::lives(log))
}

/// The slots of a plan, which an arena can follow. They are in the order of births; an instance from a file may
/// have another order.
///
/// # Errors
///
/// [`SlotTableError`] for more slots than an arena can follow, or an alignment that no region has.
pub fn slot_table(plan: &Plan) -> Result<SlotTable, SlotTableError> {
    slots_of(plan.instance(), plan.offsets_bytes())
}

fn slots_of(instance: &Instance, offsets_bytes: &[u64]) -> Result<SlotTable, SlotTableError> {
    let mut buffers: Vec<_> = instance.buffers().iter().zip(offsets_bytes).collect();
    buffers.sort_by_key(|(buffer, _)| buffer.birth);
    let slots: Vec<PlannedSlot> = buffers
        .into_iter()
        .filter(|(buffer, _)| buffer.size_bytes > 0)
        .map(|(buffer, &offset_bytes)| PlannedSlot {
            offset_bytes,
            bytes: buffer.size_bytes,
            // An instance's alignments are powers of two; one above the largest that a region may
            // have makes the offset misaligned or the table too big, which is then said.
            alignment: Alignment::new(buffer.alignment_bytes).unwrap_or(Alignment::MAX),
        })
        .collect();
    SlotTable::new(&slots)
}

/// A recorded step and its plan.
#[derive(Debug, Clone)]
pub struct PlannedStep {
    /// The plan.
    pub plan: Plan,
    /// The sum of the bytes of all its buffers, each rounded up to its alignment: what the bump needs.
    pub sum_bytes: u64,
    /// The most bytes that are live at once: the lower bound of every plan.
    pub bound: Bound,
    /// How long solving took; zero for a plan that was loaded.
    pub elapsed: Duration,
}

/// Why a step cannot be planned.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StepError {
    /// The record is not a valid instance.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// An arena cannot follow the plan.
    #[error(transparent)]
    Slots(#[from] SlotTableError),
}

impl PlannedStep {
    /// Plans what an arena recorded.
    ///
    /// # Errors
    ///
    /// [`StepError::Instance`] when the sum of the sizes is larger than the solver supports.
    ///
    /// ```
    /// # use arena_plan::{Options, PlannedStep};
    /// use arena_scope::{Arena, ByteSize, Error, Host, Probe, Scope};
    ///
    /// fn step(scope: &mut Scope<'_, '_, impl arena_scope::Device>) -> Result<u64, Error> {
    ///     for _ in 0..10 {
    ///         drop(scope.alloc::<f32>(1024)?); // the next one may have its bytes
    ///     }
    ///     Ok(scope.stats().used_bytes)
    /// }
    ///
    /// let mut probe = Arena::builder(Probe::new()).capacity(ByteSize::gib(1)).build()?;
    /// probe.record(None);
    /// let bumped_bytes = probe.scope_named("train", |scope| step(scope))?;
    /// let log = probe.recorded("train").expect("the step was recorded");
    ///
    /// let planned = PlannedStep::solve(&log, &Options::default())?;
    /// let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.install_plan("train", planned.slots()?)?;
    /// let planned_bytes = arena.scope_named("train", |scope| step(scope))?;
    /// assert_eq!((bumped_bytes, planned_bytes), (40_960, 4096));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn solve(log: &StepLog, options: &Options) -> Result<Self, StepError> {
        let instance = trace_of(log).instance()?;
        let solution = solve(&instance, options);
        Ok(Self::of(instance, solution.plan, solution.elapsed))
    }

    /// A recorded step with a plan that was made for it before.
    #[must_use]
    pub fn loaded(instance: Instance, plan: Plan) -> Self {
        Self::of(instance, plan, Duration::ZERO)
    }

    fn of(instance: Instance, plan: Plan, elapsed: Duration) -> Self {
        let (sum_bytes, bound) = (instance.sum_bytes(), lower_bound(&instance));
        Self { plan, sum_bytes, bound, elapsed }
    }

    /// The slots for an arena.
    ///
    /// # Errors
    ///
    /// As for [`slot_table`].
    pub fn slots(&self) -> Result<SlotTable, StepError> {
        Ok(slot_table(&self.plan)?)
    }

    /// The slots of a plan that [yields](SlotTable::yielding) to the bump, for the step that `log` records: this
    /// plan if no buffer lies higher in it than under the bump, or else another in which none does. That one may
    /// need more bytes.
    ///
    /// # Errors
    ///
    /// As for [`slot_table`].
    pub fn yielding_slots(&self, log: &StepLog) -> Result<SlotTable, StepError> {
        let (instance, limits) = (self.plan.instance(), below_bump::limits(log));
        if below_bump::holds(instance, self.plan.offsets_bytes(), &limits) {
            return Ok(self.slots()?.yielding());
        }
        Ok(slots_of(instance, &below_bump::place(instance, &limits))?.yielding())
    }
}

//! Plans for keys that no run has seen, made before their first step.

use arena_scope::{Arena, Device, Probe, StepKey};

use crate::planned_run::{PlannedRun, roomy};
use crate::record::PlannedStep;
use crate::run_planner::RunPlanner;
use crate::solve::Options;

impl PlannedRun {
    /// [`follow`](Self::follow), and a key that this run has not seen is planned before its first step: `one_step` makes
    /// a step of the key on a device without memory, which is recorded and solved. So no step is bumped first, as with
    /// [`auto_plan`](crate::AutoPlan::auto_plan). The first step of each such key waits until its plan is solved.
    ///
    /// `one_step` gets a new arena each time, and the key, with the variant that tells for example the length. It makes
    /// what persistent buffers the step needs, and a root scope of just this key. If it fails, or makes no such scope, or
    /// if there is no room for the plan, the steps of this key are bumped; it is not called for the key again, unless
    /// the arena has [forgotten](arena_scope::ArenaBuilder::step_memory) the key.
    ///
    /// # Panics
    ///
    /// The opening of a root scope panics if `one_step` does.
    ///
    /// ```
    /// use arena_plan::{Options, PlannedRun};
    /// use arena_scope::{Arena, Device, Error, Host, StepKey};
    ///
    /// /// A step for a sequence of `key.variant` elements.
    /// fn one_step<D: Device>(arena: &mut Arena<D>, key: StepKey) -> Result<(), Error> {
    ///     arena.scope_with(key, |step| {
    ///         let hidden = step.alloc::<f32>(100 * key.variant as usize)?;
    ///         let output = step.alloc::<f32>(10)?;
    ///         drop(hidden);
    ///         drop((step.alloc::<f32>(100 * key.variant as usize)?, output));
    ///         Ok(())
    ///     })
    /// }
    ///
    /// let length = |length| StepKey::named("train").variant(length);
    /// let (device, options) = (Host::new(), Options::default());
    /// // The longest sequence says what capacity is needed.
    /// let run = PlannedRun::probe(&device, &options, |arena| one_step(arena, length(64)))?;
    /// let mut arena = run.build(device)?;
    /// run.on_demand(&mut arena, &options, one_step);
    /// for n in [64, 7, 30, 7] {
    ///     one_step(&mut arena, length(n))?;
    /// }
    /// let deviations = arena.plan_deviations(length(30)).expect("it was planned before its first step");
    /// assert_eq!(deviations.unplanned(), 0);
    /// # arena_scope::Ok(())
    /// ```
    pub fn on_demand<D: Device, E>(
        &self,
        arena: &mut Arena<D>,
        options: &Options,
        mut one_step: impl FnMut(&mut Arena<Probe>, StepKey) -> Result<(), E> + Send + 'static,
    ) {
        let (probe, options) = (Probe::like(arena.device()), options.clone());
        let plan = move |key| {
            let mut arena = roomy(&probe).ok()?;
            arena.record(None);
            one_step(&mut arena, key).ok()?;
            PlannedStep::solve(&arena.recorded(key)?, &options).ok()?.slots().ok()
        };
        arena.set_planner(Box::new(RunPlanner::new(self.slots(), plan)), u32::MAX);
    }
}

//! The result of a run, for people and as JSON.

use std::fmt;

use arena_plan::PlannedStep;
use arena_scope::plan::{DeviationSite, Deviations};
use arena_scope::steady::SteadyState;
use arena_scope::{ByteSize, Stats};
use serde::Serialize;

use crate::network::Network;
use crate::training::{Evaluation, Trained};

/// What a training step's buffers need. All sizes are bytes.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Step {
    /// The sum of a step's buffers, each rounded up to its alignment: what the bump needs. Null when no step was
    /// recorded.
    pub step_sum_bytes: Option<u64>,
    /// The most bytes that are live at once, rounded up in the same way: the lower bound of every plan.
    pub live_peak_bytes: Option<u64>,
    /// The most bytes that are live at once, not rounded.
    pub live_requested_bytes: Option<u64>,
    /// The plan's peak; null where steps bump.
    pub planned_peak_bytes: Option<u64>,
    /// Seconds that solving took; null where steps bump.
    pub plan_seconds: Option<f64>,
    /// Requests, slots and drops that were not as planned, without the smaller requests of the short last batch. Null
    /// where steps bump.
    pub deviations: Option<u64>,
    /// The calls in the program that were not as planned, in which way and how often.
    pub deviation_sites: Vec<String>,
}

impl Step {
    /// The figures of a planned step; of its plan, if steps follow it; and of how a run did, if there was one.
    #[must_use]
    pub fn new(
        planned: Option<&PlannedStep>,
        is_followed: bool,
        deviations: Option<Deviations>,
        sites: &[DeviationSite],
    ) -> Self {
        let followed = planned.filter(|_| is_followed);
        Self {
            step_sum_bytes: planned.map(|step| step.sum_bytes),
            live_peak_bytes: planned.map(|step| step.bound.rounded_bytes),
            live_requested_bytes: planned.map(|step| step.bound.requested_bytes),
            planned_peak_bytes: followed.map(|step| step.plan.peak_bytes()),
            plan_seconds: followed.map(|step| step.elapsed.as_secs_f64()),
            deviations: deviations.map(|deviations| deviations.unplanned()),
            deviation_sites: sites.iter().map(DeviationSite::to_string).collect(),
        }
    }
}

/// The summary of a run. All sizes are bytes.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Share of the predictions about the test data that were right; null when the run was stopped before all were made.
    pub accuracy: Option<f64>,
    /// Their mean loss in nats.
    pub test_loss: Option<f64>,
    /// Whether a signal stopped the run before its end.
    pub interrupted: bool,
    /// Mean loss of the last step's predictions; null when no step was done.
    pub final_loss: Option<f32>,
    /// Images trained per second, of a network of images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images_per_second: Option<f64>,
    /// Bytes of text trained per second, of a network of text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<f64>,
    /// Steps done in all, those before a resumed checkpoint included.
    pub steps: u64,
    /// The region's size.
    pub capacity_bytes: u64,
    /// End of the persistent part.
    pub persistent_bytes: u64,
    /// The most bytes that transient buffers took at one time.
    pub peak_transient_bytes: u64,
    /// The kept part at the end.
    pub kept_bytes: u64,
    /// Driver allocations of the whole run.
    pub driver_allocations_total: u64,
    /// Driver allocations after the first step of each kind.
    pub driver_allocations_after_first_step: u64,
    /// The most heap allocations in one steady step; null when no kind of step ran three times.
    pub host_allocations_per_step: Option<u64>,
    /// The most heap allocations in one step inside a linear-algebra library's calls.
    pub library_allocations_per_step: u64,
    /// Whether each step got the addresses of the first step of its kind.
    pub signature_stable: bool,
    /// Root scopes after which the cursor was not back at the mark.
    pub scopes_off_the_mark: u64,
    /// Training steps that were replayed from a graph.
    pub graph_replays: u64,
    /// What a training step's buffers need.
    #[serde(flatten)]
    pub step: Step,
    #[serde(skip)]
    observed: SteadyState,
    #[serde(skip)]
    evaluation: Option<Evaluation>,
}

/// What a run would need, of `--device probe`. All sizes are bytes.
#[derive(Debug, Clone, Serialize)]
pub struct Needs {
    /// The smallest capacity that serves.
    pub capacity_bytes: u64,
    /// Of these, the persistent part.
    pub persistent_bytes: u64,
    /// What a training step's buffers need.
    #[serde(flatten)]
    pub step: Step,
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, bytes) in
            [("smallest capacity", self.capacity_bytes), ("persistent", self.persistent_bytes)]
        {
            writeln!(f, "{what:<18} {bytes} bytes ({})", ByteSize::bytes_exact(bytes))?;
        }
        Ok(())
    }
}

impl Summary {
    /// Puts together what training, evaluation, the arena and its observer say.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 images")]
    pub fn new<N: Network>(
        trained: &Trained,
        evaluation: Option<Evaluation>,
        stats: Stats,
        observed: SteadyState,
        step: Step,
    ) -> Self {
        let seconds = trained.elapsed.as_secs_f64();
        let rate = if seconds > 0.0 { trained.predictions as f64 / seconds } else { 0.0 };
        let rate_of = |what| (N::PREDICTIONS == what).then_some(rate);
        Self {
            accuracy: evaluation.map(|evaluation| evaluation.accuracy()),
            test_loss: evaluation.map(|evaluation| evaluation.loss()),
            interrupted: trained.interrupted || evaluation.is_none(),
            final_loss: trained.final_loss,
            images_per_second: rate_of("images"),
            bytes_per_second: rate_of("bytes"),
            steps: trained.steps,
            capacity_bytes: stats.capacity_bytes,
            persistent_bytes: stats.mark_bytes,
            peak_transient_bytes: stats.peak_transient_bytes(),
            kept_bytes: stats.kept_bytes,
            driver_allocations_total: stats.driver_allocations,
            driver_allocations_after_first_step: observed.late_driver_allocations(),
            host_allocations_per_step: observed.heap_allocations_per_step(),
            library_allocations_per_step: trained.library_allocations_per_step,
            signature_stable: observed.is_stable(),
            scopes_off_the_mark: trained.off_the_mark,
            graph_replays: trained.replays,
            step,
            observed,
            evaluation,
        }
    }
}

impl Summary {
    /// Takes the most that any rank had of driver allocations after the first step, and of heap allocations in a steady one.
    pub const fn take_most(&mut self, [driver, heap]: [u64; 2]) {
        self.driver_allocations_after_first_step = driver;
        self.host_allocations_per_step = Some(heap);
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = ByteSize::bytes_exact;
        let line = |f: &mut fmt::Formatter<'_>, what: &str, text: fmt::Arguments<'_>| {
            writeln!(f, "{what:<18} {text}")
        };
        if self.interrupted {
            line(f, "stopped", format_args!("on request, after step {}", self.steps))?;
        }
        match self.evaluation {
            Some(evaluation) => {
                let Evaluation { hits, predictions, .. } = evaluation;
                let (percent, loss) = (100.0 * evaluation.accuracy(), evaluation.loss());
                line(f, "test accuracy", format_args!("{percent:.2} % ({hits} of {predictions})"))?;
                line(f, "test loss", format_args!("{loss:.4} nats"))?;
            }
            None => line(f, "test accuracy", format_args!("not known: it was stopped before"))?,
        }
        if let Some(loss) = self.final_loss {
            line(f, "final loss", format_args!("{loss:.6}"))?;
        }
        for (rate, what) in [(self.images_per_second, "images"), (self.bytes_per_second, "bytes")] {
            if let (Some(rate), steps) = (rate, self.steps) {
                line(f, "training", format_args!("{steps} steps, {rate:.0} {what}/s"))?;
            }
        }
        if self.graph_replays > 0 {
            line(f, "graph", format_args!("replayed {} times", self.graph_replays))?;
        }
        line(f, "capacity", format_args!("{}", size(self.capacity_bytes)))?;
        line(f, "persistent", format_args!("{}", size(self.persistent_bytes)))?;
        line(f, "peak transient", format_args!("{}", size(self.peak_transient_bytes)))?;
        if let (Some(sum), Some(live)) = (self.step.step_sum_bytes, self.step.live_peak_bytes) {
            let (sum, live) = (size(sum), size(live));
            line(f, "a step's buffers", format_args!("{sum} in all, {live} live at once"))?;
        }
        if let (Some(peak), Some(seconds), Some(deviations)) =
            (self.step.planned_peak_bytes, self.step.plan_seconds, self.step.deviations)
        {
            let peak = size(peak);
            let milliseconds = 1e3 * seconds;
            let told =
                format_args!("{peak}, {milliseconds:.2} ms to solve, {deviations} deviations");
            line(f, "plan", told)?;
        }
        for site in &self.step.deviation_sites {
            line(f, "not as planned", format_args!("{site}"))?;
        }
        if self.kept_bytes > 0 {
            line(f, "kept", format_args!("{}", size(self.kept_bytes)))?;
        }
        let (total, late) =
            (self.driver_allocations_total, self.driver_allocations_after_first_step);
        line(f, "driver allocations", format_args!("{total}, after step 1: {late}"))?;
        match self.host_allocations_per_step {
            Some(allocations) => line(
                f,
                "heap allocations",
                format_args!(
                    "{allocations} per steady step (inside the matrix library: {})",
                    self.library_allocations_per_step
                ),
            )?,
            None => line(f, "heap allocations", format_args!("no kind of step ran three times"))?,
        }
        match &self.observed.divergence {
            None => line(f, "addresses", format_args!("the same in each step of a kind:"))?,
            Some(divergence) => line(f, "addresses", format_args!("changed: {divergence}"))?,
        }
        for kind in &self.observed.kinds {
            if let Some(signature) = kind.signature {
                let (name, variant, steps) = (kind.key.name, kind.key.variant, kind.steps);
                let kind = format_args!("{name} {variant}: {steps} times, signature {signature}");
                line(f, "", kind)?;
            }
        }
        match self.scopes_off_the_mark {
            0 => line(f, "used", format_args!("at the mark after every step")),
            scopes => line(f, "used", format_args!("not at the mark after {scopes} scopes")),
        }
    }
}

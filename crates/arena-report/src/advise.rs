//! Whether a step would fit: what it adds up to, what a bump and a plan need, and what was held for it.

use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

use arena_plan::{InstanceError, Options, Plan, solve};
use serde::Serialize;

use crate::measure::{bumped, live_peak, readable, readable_need};
use crate::model::{Origin, Recording, Step, Told};

/// So many kinds of step are solved with the whole budget of the solver, those with the most live bytes.
const SOLVED_WELL: usize = 16;

/// What a recording says about the memory that its steps need. All sizes are bytes.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Advice {
    /// What kind of file it was.
    pub source: String,
    /// One line to act on.
    pub line: String,
    /// What the steps of the most demanding device need, planned, with what lives through them.
    pub fits_bytes: u64,
    /// What the recorded allocator held at most in the steps of that device.
    pub held_bytes: Option<u64>,
    /// What the arena's region has.
    pub capacity_bytes: Option<u64>,
    /// Steps that are alike are one kind.
    pub kinds: Vec<KindAdvice>,
    /// So many steps are not in the file.
    pub lost_steps: u64,
}

/// What one kind of step needs. All sizes are bytes.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct KindAdvice {
    /// The name of its first step.
    pub name: String,
    /// The place in the recording of the step whose figures these are: the one that most lives through.
    pub step: usize,
    /// How many steps are alike.
    pub steps: usize,
    /// The number of the device.
    pub device: u32,
    /// Whether it is a step, and not what lies before, between or after them.
    pub is_whole: bool,
    /// How its steps were told apart.
    pub told: String,
    /// The buffers that are born in it.
    pub buffers: usize,
    /// What these add up to, as requested.
    pub sum_bytes: u64,
    /// The most that is live at once, with what lives through the step.
    pub live_peak_bytes: u64,
    /// What was live before it and is after it.
    pub through_bytes: u64,
    /// What was born before it, and is dropped in it.
    pub carried_bytes: u64,
    /// What a bump needs for its own buffers.
    pub bump_bytes: u64,
    /// What the plan needs for its own buffers.
    pub plan_bytes: u64,
    /// No plan for its own buffers needs less than this.
    pub proved_bytes: u64,
    /// What the recorded allocator had reserved.
    pub held: Option<HeldAdvice>,
}

/// What an allocator had reserved, in bytes.
#[derive(Debug, Clone, Copy, Serialize)]
#[non_exhaustive]
pub struct HeldAdvice {
    /// At most, in the step.
    pub most_bytes: u64,
    /// While the most was live.
    pub at_live_peak_bytes: u64,
    /// The part of that which was not live.
    pub fragmentation: f64,
}

impl KindAdvice {
    /// Whether the plan is proved to be the best.
    #[must_use]
    pub fn is_optimal(&self) -> bool {
        self.plan_bytes == self.proved_bytes
    }

    /// What is there beside the step's own buffers, if what it takes over or hands on is kept outside of its plan.
    fn beside_bytes(&self) -> u64 {
        self.through_bytes + self.carried_bytes
    }
}

/// Why there is no advice.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {cause}")]
pub struct AdviceError {
    /// The name of the step.
    pub name: String,
    /// What is wrong with it.
    pub cause: InstanceError,
}

/// Plans each kind of step of a recording.
///
/// ```
/// use arena_plan::Options;
/// use arena_report::{advise, parse};
///
/// let table = b"id,lower,upper,size\na,0,2,100\nb,1,3,50\nc,2,4,100\n";
/// let recording = parse(std::path::Path::new("step.csv"), table)?;
/// let advice = advise(&recording, &Options::default())?;
/// assert_eq!((advice.kinds[0].sum_bytes, advice.kinds[0].plan_bytes), (250, 150));
/// assert_eq!(advice.line, "this step fits in 150 bytes; bumped it needs 250 bytes");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`AdviceError`] when the sizes of a step add up to more than the planner supports.
pub fn advise(recording: &Recording, options: &Options) -> Result<Advice, AdviceError> {
    advise_with_plans(recording, options).map(|(advice, _)| advice)
}

/// The same, with the plan of each kind of step.
pub(crate) fn advise_with_plans(
    recording: &Recording,
    options: &Options,
) -> Result<(Advice, Vec<Plan>), AdviceError> {
    let mut groups = kinds(recording);
    // The most demanding first, so that they get the budget.
    let mut order: Vec<usize> = (0..groups.len()).collect();
    let peak = |group: &[usize]| live_peak(&recording.steps[group[0]]).bytes;
    order.sort_by_cached_key(|&at| {
        (!recording.steps[groups[at][0]].is_whole, u64::MAX - peak(&groups[at]))
    });
    let hurried = Options { restart_budget: 0, node_budget: 0, ..options.clone() };
    let mut advice: Vec<(usize, KindAdvice, Plan)> = Vec::new();
    for (rank, at) in order.into_iter().enumerate() {
        let group = std::mem::take(&mut groups[at]);
        let options = if rank < SOLVED_WELL { options } else { &hurried };
        let (kind, plan) = kind(recording, &group, options)?;
        advice.push((at, kind, plan));
    }
    advice.sort_by_key(|(at, ..)| *at);
    let (kinds, plans): (Vec<_>, Vec<_>) =
        advice.into_iter().map(|(_, kind, plan)| (kind, plan)).unzip();
    let capacity_bytes = recording.region.as_ref().map(|region| region.capacity_bytes);
    let (fits_bytes, held_bytes) = needs(&kinds);
    let line = line(recording, &kinds, fits_bytes, held_bytes, capacity_bytes);
    let advice = Advice {
        source: recording.source.to_string(),
        line,
        fits_bytes,
        held_bytes,
        capacity_bytes,
        kinds,
        lost_steps: recording.lost_steps,
    };
    Ok((advice, plans))
}

/// The places of the steps, those that are alike together, in the order of the first of each.
pub(crate) fn kinds(recording: &Recording) -> Vec<Vec<usize>> {
    let mut known: HashMap<u64, usize> = HashMap::new();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (place, step) in recording.steps.iter().enumerate() {
        let group = *known.entry(shape(step)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[group].push(place);
    }
    groups
}

/// A hash of what a step itself needs. What lives through it may grow from step to step.
fn shape(step: &Step) -> u64 {
    let mut hasher = DefaultHasher::new();
    (step.device, step.is_whole, step.moments).hash(&mut hasher);
    for buffer in &step.buffers {
        let (birth, death) = (buffer.birth(), buffer.dropped());
        let is_own = buffer.origin() == Origin::Step;
        (birth, death, buffer.bytes(), buffer.alignment_bytes(), is_own).hash(&mut hasher);
    }
    hasher.finish()
}

fn kind(
    recording: &Recording,
    group: &[usize],
    options: &Options,
) -> Result<(KindAdvice, Plan), AdviceError> {
    let through = |place: &usize| (recording.steps[*place].through_bytes, usize::MAX - place);
    let most = group.iter().copied().max_by_key(through).unwrap_or(group[0]);
    let step = &recording.steps[most];
    let wrong = |cause| AdviceError { name: step.name.clone(), cause };
    let solution = solve(&step.instance().map_err(wrong)?, options);
    let peak_bytes = live_peak(step).bytes;
    let most_held = group.iter().filter_map(|&step| Some(recording.steps[step].held?.most_bytes));
    let held = step.held.zip(most_held.max()).map(|(held, most_bytes)| HeldAdvice {
        most_bytes,
        at_live_peak_bytes: held.at_live_peak_bytes,
        fragmentation: unused(peak_bytes, held.at_live_peak_bytes),
    });
    let carried = step.buffers.iter().filter(|buffer| buffer.origin() == Origin::Carried);
    let advice = KindAdvice {
        name: recording.steps[group[0]].name.clone(),
        step: most,
        steps: group.len(),
        device: step.device,
        is_whole: step.is_whole,
        told: step.told.to_string(),
        buffers: step.own().count(),
        sum_bytes: step.own().map(|buffer| buffer.bytes()).sum(),
        live_peak_bytes: peak_bytes,
        through_bytes: step.through_bytes,
        carried_bytes: carried.map(|buffer| buffer.bytes()).sum(),
        bump_bytes: bumped(&mut step.own()).1,
        plan_bytes: solution.plan.peak_bytes(),
        proved_bytes: solution.proved_bytes,
        held,
    };
    Ok((advice, solution.plan))
}

/// The part of what is held that is not live.
fn unused(live_bytes: u64, held_bytes: u64) -> f64 {
    if held_bytes == 0 {
        return 0.0;
    }
    #[expect(clippy::cast_precision_loss, reason = "a share is shown in percent")]
    let share = held_bytes.saturating_sub(live_bytes) as f64 / held_bytes as f64;
    share
}

/// Of the device that needs most: what its steps need, and what was held for them.
///
/// All plans lie in the same bytes, so the largest counts, and beside it the most that lives through or is carried.
fn needs(kinds: &[KindAdvice]) -> (u64, Option<u64>) {
    let any_whole = kinds.iter().any(|kind| kind.is_whole);
    let counted = || kinds.iter().filter(|kind| kind.is_whole || !any_whole);
    let of = |device: u32| {
        let of_device = || counted().filter(move |kind| kind.device == device);
        let plan = of_device().map(|kind| kind.plan_bytes).max().unwrap_or(0);
        let beside = of_device().map(KindAdvice::beside_bytes).max().unwrap_or(0);
        let held = of_device().filter_map(|kind| Some(kind.held?.most_bytes)).max();
        (plan + beside, held)
    };
    counted().map(|kind| of(kind.device)).max().unwrap_or((0, None))
}

fn line(
    recording: &Recording,
    kinds: &[KindAdvice],
    fits_bytes: u64,
    held_bytes: Option<u64>,
    capacity_bytes: Option<u64>,
) -> String {
    let whole = kinds.iter().filter(|kind| kind.is_whole).count();
    let (this, fits, it) =
        if whole > 1 { ("these steps", "fit", "they") } else { ("this step", "fits", "it") };
    let held_or_capacity_bytes = held_bytes.or(capacity_bytes).unwrap_or(0);
    let (need, there) = compared(fits_bytes, held_or_capacity_bytes);
    let has_history = recording.steps.iter().any(|step| step.told != Told::NoHistory);
    match (held_bytes, capacity_bytes) {
        (Some(_), _) if !has_history => format!(
            "what is live takes {need}; PyTorch held {there}. The file has no history, so no step can be planned: see \
             torch.cuda.memory._record_memory_history"
        ),
        (Some(held), _) if held > fits_bytes => {
            format!("{this} {fits} in {need}; PyTorch held {there}")
        }
        (Some(_), _) => {
            format!("{this} {fits} in {need}; PyTorch held {there}, a plan saves nothing")
        }
        (None, Some(_)) => format!("{this} {fits} in {need}; the arena has {there}"),
        (None, None) => {
            let bump = kinds.iter().filter(|kind| kind.is_whole || whole == 0);
            let bump = bump.map(|kind| kind.bump_bytes + kind.beside_bytes()).max().unwrap_or(0);
            let word = if whole > 1 { "need" } else { "needs" };
            format!("{this} {fits} in {need}; bumped {it} {word} {}", readable_need(bump))
        }
    }
}

/// What is needed and what there is, as people read them. Where rounding could hide which is more, both are in bytes.
fn compared(need_bytes: u64, there_bytes: u64) -> (String, String) {
    if need_bytes.abs_diff(there_bytes) < there_bytes / 50 {
        (format!("{need_bytes} bytes"), format!("{there_bytes} bytes"))
    } else {
        (readable_need(need_bytes), readable(there_bytes))
    }
}

impl Advice {
    /// The advice as people read it. The last line is the one to act on.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.source);
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        for kind in &self.kinds {
            let alike = if kind.steps > 1 {
                format!(" and {} alike", kind.steps - 1)
            } else {
                String::new()
            };
            writeln!(text, "{}{alike}: {}", kind.name, kind.told)?;
            let row = |text: &mut String, bytes: u64, what: &str| {
                writeln!(text, "  {bytes:>20} {:>13}  {what}", format!("({})", readable(bytes)))
            };
            row(text, kind.sum_bytes, &format!("sum of {} buffers", kind.buffers))?;
            row(text, kind.live_peak_bytes, "live at once, at most")?;
            if kind.through_bytes > 0 {
                row(text, kind.through_bytes, "of it was there before and is there after")?;
            }
            if kind.carried_bytes > 0 {
                row(
                    text,
                    kind.carried_bytes,
                    "was there before and is dropped in it: kept outside of its plan",
                )?;
            }
            if let Some(held) = kind.held {
                row(text, held.most_bytes, "held by PyTorch at most")?;
                let share = held.fragmentation * 100.0;
                let what = format!("held while the most was live: {share:.1} % of it not live");
                row(text, held.at_live_peak_bytes, &what)?;
            }
            row(text, kind.bump_bytes, "needed by a bump, for its own buffers")?;
            let proof = if kind.is_optimal() {
                "proved to be the least"
            } else {
                "not proved to be the least"
            };
            row(text, kind.plan_bytes, &format!("needed by a plan, {proof}"))?;
            if !kind.is_optimal() {
                row(text, kind.proved_bytes, "no plan is below this")?;
            }
        }
        if self.lost_steps > 0 {
            writeln!(text, "{} steps are not in the file: its writer was behind", self.lost_steps)?;
        }
        self.write_beyond(text)?;
        writeln!(text, "{}", self.line)
    }

    /// What lies outside of the steps and is more than they need.
    fn write_beyond(&self, text: &mut String) -> std::fmt::Result {
        for kind in self.kinds.iter().filter(|kind| !kind.is_whole) {
            if kind.live_peak_bytes > self.fits_bytes {
                let bytes = readable(kind.live_peak_bytes);
                writeln!(
                    text,
                    "{}: {bytes} are live at once, more than the steps need",
                    kind.name
                )?;
            }
        }
        Ok(())
    }
}

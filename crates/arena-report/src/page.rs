//! One page that shows the steps of a recording. It holds its data as JSON, and loads nothing from elsewhere.

use std::collections::HashMap;
use std::path::Path;

use arena_plan::{Options, Plan};
use serde::Serialize;

use crate::advise::{Advice, AdviceError, KindAdvice, advise_with_plans};
use crate::measure::live_peak;
use crate::model::{Buffer, Origin, Recording, Step};
use crate::names::NameId;
use crate::sites::{SiteFigures, Who, early_death, sites};

const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPTS: [&str; 4] = [
    include_str!("page/data.js"),
    include_str!("page/map.js"),
    include_str!("page/charts.js"),
    include_str!("page/main.js"),
];

/// The most buffers that the maps of a page have in all. The first map is there even if it has more.
const MOST_BUFFERS: usize = 200_000;
/// The most kinds of step that a page has a map of.
const MOST_MAPS: usize = 12;

/// Writes the page of a recording; the file's name is its title.
///
/// # Errors
///
/// [`AdviceError`] when the sizes of a step add up to more than the planner supports.
pub fn page(recording: &Recording, file: &Path, options: &Options) -> Result<String, AdviceError> {
    let (advice, plans) = advise_with_plans(recording, options)?;
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    let data = Data::of(recording, &name, &advice, &plans);
    // A number that is not finite is not JSON; nothing else fails.
    let json = serde_json::to_string(&data).unwrap_or_else(|error| format!("\"{error}\""));
    // Inside of a script element, where no text may end it.
    let json = json.replace('<', "\\u003c");
    let title = name.replace('&', "&amp;").replace('<', "&lt;").replace('$', "&#36;");
    let page = TEMPLATE.replace("$TITLE", &title).replace("$STYLE", STYLE);
    let page = page.replace("$SCRIPT", &SCRIPTS.join("\n"));
    Ok(page.replace("$DATA", &json))
}

/// All that the page knows. All sizes are bytes.
#[derive(Serialize)]
struct Data<'r> {
    file: &'r str,
    source: &'r str,
    line: &'r str,
    fits_bytes: u64,
    held_bytes: Option<u64>,
    region: Option<RegionData<'r>>,
    lost_steps: u64,
    /// Kinds of step without a map.
    left_out: usize,
    steps: Series<'r>,
    kinds: Vec<Kind<'r>>,
}

#[derive(Serialize)]
struct RegionData<'r> {
    device: &'r str,
    capacity_bytes: u64,
    mark_bytes: u64,
}

/// The figures of all steps, a column each.
#[derive(Serialize, Default)]
struct Series<'r> {
    name: Vec<&'r str>,
    is_whole: Vec<bool>,
    live_peak_bytes: Vec<u64>,
    sum_bytes: Vec<u64>,
    through_bytes: Vec<u64>,
    used_bytes: Vec<Option<u64>>,
    high_water_bytes: Vec<Option<u64>>,
    committed_bytes: Vec<Option<u64>>,
    kept_bytes: Vec<Option<u64>>,
    held_bytes: Vec<Option<u64>>,
    mode: Vec<Option<&'r str>>,
    deviations: Vec<Option<u64>>,
    failed: Vec<Option<&'r str>>,
    loss: Vec<Option<f64>>,
    /// Predictions in a second.
    throughput: Vec<Option<f64>>,
}

/// A kind of step, with its map.
#[derive(Serialize)]
struct Kind<'r> {
    #[serde(flatten)]
    advice: &'r KindAdvice,
    moments: u32,
    peak_moment: u32,
    start_bytes: Option<u64>,
    kept_floor_bytes: Option<u64>,
    mode: Option<&'r str>,
    sites: Vec<SiteFigures>,
    /// The texts that the columns name.
    labels: Vec<String>,
    buffers: Columns,
}

/// The buffers of a step, a column each. A column whose values are all the same is that value.
#[derive(Serialize)]
struct Columns {
    count: usize,
    /// Each less the one before.
    birth: Column,
    /// From birth to death.
    life: Column,
    /// From birth to right after the last use; 0 if that is not known.
    used: Column,
    bytes: Column,
    alignment_log2: Column,
    /// 1 for one that was born before the step.
    carried: Column,
    /// Where it was recorded; without addresses that the step never uses.
    recorded: Option<Column>,
    /// Where the plan puts it, from the plan's start. 0 for what is carried.
    planned: Column,
    /// A label, counted from 1, or 0: who asked for it, its scope and its tag.
    who: Column,
    scope: Column,
    tag: Column,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Column {
    Same(u64),
    Each(Vec<u64>),
}

impl Column {
    fn of(values: impl Iterator<Item = u64>) -> Self {
        let values: Vec<u64> = values.collect();
        match values.first() {
            Some(&first) if values.iter().any(|value| *value != first) => Self::Each(values),
            first => Self::Same(first.copied().unwrap_or(0)),
        }
    }
}

impl<'r> Data<'r> {
    fn of(recording: &'r Recording, file: &'r str, advice: &'r Advice, plans: &[Plan]) -> Self {
        let mut order: Vec<(&KindAdvice, &Plan)> = advice.kinds.iter().zip(plans).collect();
        order.sort_by_key(|(kind, _)| (!kind.is_whole, u64::MAX - kind.live_peak_bytes));
        let (mut kinds, mut buffers) = (Vec::new(), 0);
        for &(kind, plan) in &order {
            let count = recording.steps[kind.step].buffers.len();
            if kinds.is_empty() || (buffers + count <= MOST_BUFFERS && kinds.len() < MOST_MAPS) {
                buffers += count;
                kinds.push(Kind::of(recording, kind, plan));
            }
        }
        Self {
            file,
            source: &advice.source,
            line: &advice.line,
            fits_bytes: advice.fits_bytes,
            held_bytes: advice.held_bytes,
            region: recording.region.as_ref().map(|region| RegionData {
                device: &region.device,
                capacity_bytes: region.capacity_bytes,
                mark_bytes: region.mark_bytes,
            }),
            lost_steps: recording.lost_steps,
            left_out: order.len() - kinds.len(),
            steps: Series::of(recording),
            kinds,
        }
    }
}

impl<'r> Series<'r> {
    fn of(recording: &'r Recording) -> Self {
        let mut series = Self::default();
        for step in &recording.steps {
            let figures = &step.figures;
            series.name.push(&step.name);
            series.is_whole.push(step.is_whole);
            series.live_peak_bytes.push(live_peak(step).bytes);
            series.sum_bytes.push(step.own().map(|buffer| buffer.bytes()).sum());
            series.through_bytes.push(step.through_bytes);
            series.used_bytes.push(figures.used_bytes);
            series.high_water_bytes.push(figures.high_water_bytes);
            series.committed_bytes.push(figures.committed_bytes);
            series.kept_bytes.push(figures.kept_bytes);
            series.held_bytes.push(step.held.map(|held| held.most_bytes));
            series.mode.push(figures.mode.as_deref());
            series.deviations.push(figures.deviations);
            series.failed.push(figures.failed.as_deref());
            series.loss.push(figures.loss.filter(|loss| loss.is_finite()));
        }
        series.throughput = throughput(&recording.steps);
        series
    }
}

/// Predictions in a second at each step whose result was told: those since an earlier result, at least a hundredth of
/// the run before, so that results which were told together are no peak.
#[expect(clippy::cast_precision_loss, reason = "a rate that is drawn")]
fn throughput(steps: &[Step]) -> Vec<Option<f64>> {
    let mut rates = vec![None; steps.len()];
    let told = |(place, step): (usize, &Step)| {
        Some((place, step.figures.elapsed_ns?, step.figures.predictions?))
    };
    let told: Vec<_> = steps.iter().enumerate().filter_map(told).collect();
    let least_ns = told.last().map_or(0, |last| last.1 / 100).max(1);
    let (mut from, mut predictions) = (0, 0_u128);
    for (number, &(place, elapsed_ns, its)) in told.iter().enumerate().skip(1) {
        predictions += u128::from(its);
        let since = |from: usize| elapsed_ns.saturating_sub(told[from].1);
        while from + 1 < number && since(from + 1) >= least_ns {
            from += 1;
            predictions -= u128::from(told[from].2);
        }
        if since(from) >= least_ns {
            rates[place] = Some(predictions as f64 * 1e9 / since(from) as f64);
        }
    }
    rates
}

impl<'r> Kind<'r> {
    fn of(recording: &'r Recording, advice: &'r KindAdvice, plan: &Plan) -> Self {
        let step = &recording.steps[advice.step];
        let mut labels = Labels::default();
        let buffers = Columns::of(recording, step, plan, &mut labels);
        Self {
            advice,
            moments: step.moments,
            peak_moment: live_peak(step).moment,
            start_bytes: step.figures.start_bytes,
            kept_floor_bytes: step.figures.kept_floor_bytes,
            mode: step.figures.mode.as_deref(),
            sites: sites(recording, advice.step),
            labels: labels.texts,
            buffers,
        }
    }
}

/// The texts that a map names.
#[derive(Default)]
struct Labels {
    texts: Vec<String>,
    known: HashMap<Who, u64>,
}

impl Labels {
    /// The number of a text, counted from 1.
    fn number(&mut self, recording: &Recording, who: Who) -> u64 {
        if who == Who::Unknown {
            return 0;
        }
        *self.known.entry(who).or_insert_with(|| {
            self.texts.push(who.label(recording));
            self.texts.len() as u64
        })
    }

    fn of_name(&mut self, recording: &Recording, name: Option<NameId>) -> u64 {
        name.map_or(0, |name| self.number(recording, Who::Tag(name)))
    }
}

impl Columns {
    fn of(recording: &Recording, step: &Step, plan: &Plan, labels: &mut Labels) -> Self {
        let buffers = &step.buffers;
        let mut before = 0;
        let birth = Column::of(buffers.iter().map(|buffer| {
            let birth = u64::from(buffer.birth());
            let later = birth - before;
            before = birth;
            later
        }));
        let since_birth = |buffer: &Buffer, moment: Option<u32>| {
            moment.map_or(0, |moment| u64::from(moment - buffer.birth()))
        };
        let mut planned = plan.offsets_bytes().iter();
        let planned = buffers.iter().map(|buffer| match buffer.origin() {
            Origin::Step => planned.next().copied().unwrap_or(0),
            Origin::Carried => 0,
        });
        Self {
            count: buffers.len(),
            birth,
            life: Column::of(
                buffers.iter().map(|buffer| since_birth(buffer, Some(buffer.death(step.moments)))),
            ),
            used: Column::of(
                buffers.iter().map(|buffer| since_birth(buffer, early_death(buffer, step.moments))),
            ),
            bytes: Column::of(buffers.iter().map(|buffer| buffer.bytes())),
            alignment_log2: Column::of(
                buffers.iter().map(|buffer| u64::from(buffer.alignment_bytes().trailing_zeros())),
            ),
            carried: Column::of(
                buffers.iter().map(|buffer| u64::from(buffer.origin() == Origin::Carried)),
            ),
            recorded: recorded(recording, step).map(|offsets| Column::of(offsets.into_iter())),
            planned: Column::of(planned),
            who: Column::of(buffers.iter().map(|buffer| labels.number(recording, Who::of(buffer)))),
            scope: Column::of(
                buffers.iter().map(|buffer| labels.of_name(recording, buffer.scope())),
            ),
            tag: Column::of(buffers.iter().map(|buffer| labels.of_name(recording, buffer.tag()))),
        }
    }
}

/// Where the buffers were recorded: from the base of a region, or addresses of which those that the step never uses are
/// left out.
fn recorded(recording: &Recording, step: &Step) -> Option<Vec<u64>> {
    let offsets: Option<Vec<u64>> = step.buffers.iter().map(Buffer::offset_bytes).collect();
    let mut offsets = offsets?;
    if recording.region.is_some() {
        return Some(offsets);
    }
    let mut order: Vec<usize> = (0..offsets.len()).collect();
    order.sort_by_key(|&place| offsets[place]);
    let (mut end, mut left_out) = (0_u64, 0_u64);
    for place in order {
        let offset = offsets[place];
        left_out += offset.saturating_sub(end);
        end = end.max(offset.saturating_add(step.buffers[place].bytes()));
        offsets[place] = offset - left_out;
    }
    Some(offsets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Told;

    fn rates(results: &[Option<(u64, u64)>]) -> Vec<Option<f64>> {
        let step = |result: &Option<(u64, u64)>| {
            let mut step = Step::new(String::new(), Told::ByFile, 1, Vec::new());
            step.figures.elapsed_ns = result.map(|(elapsed_ns, _)| elapsed_ns);
            step.figures.predictions = result.map(|(_, predictions)| predictions);
            step
        };
        throughput(&results.iter().map(step).collect::<Vec<_>>())
    }

    #[test]
    fn a_rate_is_of_the_time_since_the_result_before() {
        // The first result has none before it; a step without a result counts for nothing.
        let told =
            rates(&[Some((5_000_000, 10)), None, Some((6_000_000, 10)), Some((8_000_000, 10))]);
        assert_eq!(told, [None, None, Some(10_000.0), Some(5_000.0)]);
    }

    #[test]
    fn results_that_were_told_together_have_the_rate_of_a_hundredth_of_the_run() {
        // 1000 steps of a millisecond, told ten at a time within a nanosecond each.
        let step = |number: u64| Some((number / 10 * 10_000_000 + number % 10, 64));
        let told = rates(&(0..1000).map(step).collect::<Vec<_>>());
        let (slow, fast) = told.iter().flatten().fold((f64::MAX, 0.0), |(slow, fast), &rate| {
            (f64::min(slow, rate), f64::max(fast, rate))
        });
        assert!(slow >= 64_000.0 * 0.09 && fast <= 64_000.0 * 2.0, "{slow} to {fast}");
    }

    #[test]
    fn times_that_go_back_give_no_rate() {
        assert_eq!(rates(&[Some((9, u64::MAX)), Some((3, u64::MAX)), Some((3, 1))]), [None; 3]);
    }
}

//! The traces, tables and plans that `arena-plan` reads.

use std::borrow::Cow;
use std::collections::HashMap;

use arena_plan::formats::trace::{Event, Op};
use arena_plan::formats::{self, InputError, Position, Problem, minimalloc, trace};
use arena_plan::{Instance, InstanceError, PlanError, saved_plans};

use crate::model::{Buffer, Recording, Source, Step, Told};
use crate::names::Interner;
use crate::split::{Part, split};

/// A trace or a table, as its header tells.
pub(super) fn read(bytes: &[u8]) -> Result<Recording, InputError> {
    let text = formats::text(bytes)?;
    if formats::is_trace(text) {
        let events = trace::events(text)?;
        let sizes = events.iter().map(|event| u128::from(event.size_bytes));
        if sizes.sum::<u128>() > u128::from(Instance::MAX_TOTAL_BYTES) {
            let problem = Problem::Instance(InstanceError::TooLarge);
            return Err(InputError { position: Position { line: 1, column: 1 }, problem });
        }
        return Ok(of_events(&events));
    }
    let labelled = minimalloc::read(text)?;
    let mut names = Interner::default();
    let offsets = labelled.instance.buffers().iter().map(|buffer| buffer.fixed_offset_bytes);
    let mut step = step("step", &labelled.instance, offsets);
    for (buffer, label) in step.buffers.iter_mut().zip(labelled.labels) {
        // A number names nothing.
        if label.bytes().any(|byte| !byte.is_ascii_digit()) {
            *buffer = buffer.tagged(Some(names.name(Cow::Owned(label))));
        }
    }
    step.buffers.sort_by_key(Buffer::birth);
    Ok(recording(Source::Table, names, vec![step]))
}

/// All plans of a file.
pub(super) fn plans(bytes: &[u8]) -> Result<Recording, PlanError> {
    let plans = saved_plans(bytes)?.into_iter().map(|(key, plan)| {
        let offsets = plan.offsets_bytes().iter().map(|offset| Some(*offset));
        let mut step = step(if key.is_empty() { "step" } else { &key }, plan.instance(), offsets);
        step.buffers.sort_by_key(Buffer::birth);
        step
    });
    Ok(recording(Source::Plan, Interner::default(), plans.collect()))
}

fn recording(source: Source, names: Interner<'_>, steps: Vec<Step>) -> Recording {
    Recording { source, names: names.finish(), region: None, steps, lost_steps: 0 }
}

/// A step of an instance, whose times become moments: the times at which something is born or dies, counted.
fn step(name: &str, instance: &Instance, offsets: impl Iterator<Item = Option<u64>>) -> Step {
    let buffers = instance.buffers();
    let mut times: Vec<u64> =
        buffers.iter().flat_map(|buffer| [buffer.birth, buffer.death]).collect();
    times.sort_unstable();
    times.dedup();
    let moment = |time: u64| times.partition_point(|other| *other < time) as u32;
    let buffers = buffers.iter().zip(offsets).map(|(planned, offset)| {
        let buffer = Buffer::new(moment(planned.birth), planned.size_bytes)
            .dropped_at(Some(moment(planned.death)))
            .aligned(planned.alignment_bytes);
        offset.map_or(buffer, |offset| buffer.at(offset))
    });
    Step::new(name.to_owned(), Told::ByFile, times.len() as u32, buffers.collect())
}

/// The steps of a trace. What lies before its mark is the persistent part, and no step.
fn of_events(events: &[Event<'_>]) -> Recording {
    let (mut lives, mut live) = (Vec::new(), HashMap::new());
    let (mut parts, mut moment, mut current) = (Vec::<Part>::new(), 0_u32, None);
    for event in events {
        if current != Some(event.step) {
            current = Some(event.step);
            let name = format!("step {}", event.step);
            parts.push(Part { name, begin: moment, is_whole: true });
        }
        match event.op {
            Op::Alloc => {
                live.insert(event.id, lives.len());
                lives.push(Buffer::new(moment, event.size_bytes));
            }
            Op::Free => {
                if let Some(buffer) = live.remove(event.id) {
                    lives[buffer] = lives[buffer].dropped_at(Some(moment));
                }
            }
            Op::Mark => {
                if let Some(part) = parts.last_mut() {
                    part.is_whole = false;
                    part.name += ", the persistent part";
                }
                continue;
            }
        }
        moment += 1;
    }
    let steps = split(&lives, &parts, moment, Told::ByFile);
    recording(Source::Trace, Interner::default(), steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_moments_and_numbers_no_tags() {
        let text = b"id,lower,upper,size,alignment\nb,500,900,7,4\n1,0,500,3,1\n";
        let read = read(text).unwrap();
        let step = &read.steps[0];
        assert_eq!((step.moments, step.buffers.len()), (3, 2));
        let [first, second] = step.buffers[..] else { panic!() };
        assert_eq!(
            (first.birth(), first.dropped(), first.bytes(), first.tag()),
            (0, Some(1), 3, None)
        );
        assert_eq!((second.birth(), second.dropped(), second.alignment_bytes()), (1, Some(2), 4));
        assert_eq!(second.tag().map(|tag| read.names.get(tag)), Some("b"));
    }

    #[test]
    fn the_part_before_the_mark_is_no_step_and_lives_through_the_others() {
        let text = b"op,id,size_bytes,stream,step\nalloc,1,8,0,0\nmark,0,0,0,0\nalloc,2,30,0,1\n\
                     free,2,30,0,1\nalloc,2,40,0,2\nfree,2,40,0,2\n";
        let read = read(text).unwrap();
        let told: Vec<_> = read
            .steps
            .iter()
            .map(|step| (step.name.as_str(), step.is_whole, step.through_bytes, step.buffers.len()))
            .collect();
        let persistent = ("step 0, the persistent part", false, 0, 1);
        assert_eq!(told, [persistent, ("step 1", true, 8, 1), ("step 2", true, 8, 1)]);
    }
}

//! From the lives of the buffers of a whole history to its steps.

use crate::model::{Buffer, Origin, Step, Told};

/// A step of a history: from the moment `begin`, inclusive, to the next one's.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) begin: u32,
    pub(crate) is_whole: bool,
}

/// Cuts a history of `moments` events into its parts, the steps. The first part begins at 0. The moments of the lives
/// count the events of the history. Lives that were there before it are carried.
///
/// A buffer belongs to the step that it is born in. One that lives on is no buffer of the steps between, which only
/// count its bytes, and is again one of the step that drops it: so there are at most twice as many as in the history.
pub(crate) fn split(lives: &[Buffer], parts: &[Part], moments: u32, told: Told) -> Vec<Step> {
    let end_of = |part: usize| parts.get(part + 1).map_or(moments, |next| next.begin);
    let part_of =
        |moment: u32| parts.partition_point(|part| part.begin <= moment).saturating_sub(1);
    let mut counts = vec![0_usize; parts.len()];
    // What begins and what ends to be live through a whole part, at that part.
    let mut through = vec![(0_i128, 0_i64); parts.len() + 1];
    for life in lives {
        let (first, last) = places(life, parts.len(), &part_of);
        let from = first.map_or(0, |first| first + 1);
        if let Some(first) = first {
            counts[first] += 1;
        }
        if let Some(last) = last.filter(|last| first != Some(*last)) {
            counts[last] += 1;
        }
        let to = last.unwrap_or(parts.len());
        if from < to {
            let bytes = i128::from(life.bytes());
            through[from].0 += bytes;
            through[from].1 += 1;
            through[to].0 -= bytes;
            through[to].1 -= 1;
        }
    }
    let mut steps: Vec<Step> = parts
        .iter()
        .zip(&counts)
        .enumerate()
        .map(|(number, (part, &count))| {
            // One moment before the first event, for what was born earlier.
            let moments = end_of(number) - part.begin + 1;
            let mut step = Step::new(part.name.clone(), told, moments, Vec::with_capacity(count));
            step.is_whole = part.is_whole;
            step
        })
        .collect();
    let (mut bytes, mut buffers) = (0_i128, 0_i64);
    for (step, (more_bytes, more_buffers)) in steps.iter_mut().zip(&through) {
        bytes += more_bytes;
        buffers += more_buffers;
        step.through_bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        step.through_buffers = u64::try_from(buffers).unwrap_or(0);
    }
    // What a step was handed on comes first: it is born before all others.
    for life in lives {
        let (first, last) = places(life, parts.len(), &part_of);
        if let Some(last) = last.filter(|last| first != Some(*last)) {
            let dropped = life.dropped().map(|moment| moment - parts[last].begin + 1);
            let buffer = life.born(0).dropped_at(dropped).with_origin(Origin::Carried);
            steps[last].buffers.push(buffer);
        }
    }
    for life in lives {
        let (first, last) = places(life, parts.len(), &part_of);
        if let Some(first) = first {
            let begin = parts[first].begin;
            let dropped = life.dropped().filter(|_| last == Some(first));
            let buffer = life.born(life.birth() - begin + 1);
            steps[first].buffers.push(buffer.dropped_at(dropped.map(|moment| moment - begin + 1)));
        }
    }
    steps
}

/// The part in which a buffer is born, if it is in one, and the part in which it is dropped, if it is.
fn places(
    life: &Buffer,
    parts: usize,
    part_of: &dyn Fn(u32) -> usize,
) -> (Option<usize>, Option<usize>) {
    if parts == 0 {
        return (None, None);
    }
    let first = (life.origin() == Origin::Step).then(|| part_of(life.birth()));
    (first, life.dropped().map(part_of))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(birth: u32, dropped: Option<u32>, bytes: u64) -> Buffer {
        Buffer::new(birth, bytes).dropped_at(dropped)
    }

    fn part(begin: u32) -> Part {
        Part { name: format!("from {begin}"), begin, is_whole: true }
    }

    #[test]
    fn a_buffer_belongs_to_the_step_of_its_birth_and_is_carried_to_that_of_its_drop() {
        let older = life(0, Some(7), 1000).with_origin(Origin::Carried);
        let lives = [older, life(0, Some(1), 1), life(2, Some(9), 10), life(4, None, 100)];
        let steps = split(&lives, &[part(0), part(3), part(6)], 10, Told::ByFile);
        let told: Vec<_> = steps
            .iter()
            .map(|step| {
                let buffers = step.buffers.iter().map(|buffer| {
                    (buffer.bytes(), buffer.birth(), buffer.dropped(), buffer.origin())
                });
                (
                    step.through_bytes,
                    step.through_buffers,
                    step.moments,
                    buffers.collect::<Vec<_>>(),
                )
            })
            .collect();
        use Origin::{Carried, Step as Own};
        assert_eq!(told[0], (1000, 1, 4, vec![(1, 1, Some(2), Own), (10, 3, None, Own)]));
        assert_eq!(told[1], (1010, 2, 4, vec![(100, 2, None, Own)]));
        let carried = vec![(1000, 0, Some(2), Carried), (10, 0, Some(4), Carried)];
        assert_eq!(told[2], (100, 1, 5, carried));
    }
}

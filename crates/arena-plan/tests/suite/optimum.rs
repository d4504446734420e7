//! The solver against a naive search for the optimum, and its promises on larger random instances.

use arena_plan::generate::Guillotine;
use arena_plan::{Buffer, Instance, Options, lower_bound, solve, validate_peak};
use proptest::prelude::*;
use std::num::NonZeroUsize;

fn buffer(alignments: &'static [u64]) -> impl Strategy<Value = Buffer> {
    (0..12_u64, 1..8_u64, 0..40_u64, prop::sample::select(alignments)).prop_map(
        |(birth, life, size_bytes, alignment_bytes)| Buffer {
            birth,
            death: birth + life,
            size_bytes,
            alignment_bytes,
            fixed_offset_bytes: None,
        },
    )
}

/// Tries every order in which buffers can lie above one another; each rests on those before it.
fn naive_optimum(instance: &Instance) -> u64 {
    fn descend(instance: &Instance, placed: &mut Vec<(usize, u64)>, peak: u64, best: &mut u64) {
        if placed.len() == instance.len() {
            *best = peak.min(*best);
            return;
        }
        for index in 0..instance.len() {
            if placed.iter().any(|&(other, _)| other == index) {
                continue;
            }
            let buffer = instance.buffers()[index];
            let mut offset = placed
                .iter()
                .filter(|&&(other, _)| buffer.overlaps_in_time(&instance.buffers()[other]))
                .map(|&(_, top)| top)
                .max()
                .unwrap_or(0)
                .next_multiple_of(buffer.alignment_bytes);
            if let Some(fixed) = buffer.fixed_offset_bytes {
                if offset > fixed && buffer.size_bytes > 0 {
                    continue;
                }
                offset = fixed;
            }
            let end = offset + instance.occupied_bytes(index);
            let (top, peak) = if buffer.size_bytes == 0 { (0, peak) } else { (end, peak.max(end)) };
            placed.push((index, top));
            descend(instance, placed, peak, best);
            placed.pop();
        }
    }
    let mut best = u64::MAX;
    descend(instance, &mut Vec::new(), 0, &mut best);
    best
}

fn naive_bound(instance: &Instance) -> u64 {
    let live_at = |time: u64| -> u64 {
        (0..instance.len())
            .filter(|&index| {
                let buffer = instance.buffers()[index];
                buffer.birth <= time && time < buffer.death
            })
            .map(|index| instance.occupied_bytes(index))
            .sum()
    };
    instance.buffers().iter().map(|buffer| live_at(buffer.birth)).max().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn tiny_instances_are_solved_to_the_optimum_and_it_is_proved(
        buffers in prop::collection::vec(buffer(&[1, 4, 16]), 0..=7)
    ) {
        let instance = Instance::new(buffers).unwrap();
        let solution = solve(&instance, &Options::default());
        let optimum = naive_optimum(&instance);
        prop_assert_eq!(solution.plan.peak_bytes(), optimum);
        prop_assert_eq!(solution.proved_bytes, optimum);
        prop_assert!(naive_bound(&instance) <= optimum);
    }

    #[test]
    fn fixed_buffers_stay_where_they_are_and_the_rest_is_still_optimal(
        buffers in prop::collection::vec((buffer(&[1, 4]), prop::option::of(0..12_u64)), 1..=6)
    ) {
        let buffers: Vec<Buffer> = buffers
            .into_iter()
            .map(|(buffer, slot)| Buffer {
                fixed_offset_bytes: slot.map(|slot| slot * 8),
                ..buffer
            })
            .collect();
        // Fixed buffers may lie on each other: then there is nothing to solve.
        if let Ok(instance) = Instance::new(buffers) {
            let solution = solve(&instance, &Options::default());
            for (buffer, &offset) in
                instance.buffers().iter().zip(solution.plan.offsets_bytes())
            {
                prop_assert!(buffer.fixed_offset_bytes.is_none_or(|fixed| fixed == offset));
            }
            prop_assert_eq!(solution.plan.peak_bytes(), naive_optimum(&instance));
            prop_assert!(solution.is_optimal());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn larger_plans_are_valid_and_never_below_the_bound(
        buffers in prop::collection::vec(buffer(&[1, 8, 64, 256]), 8..120),
        seed: u64,
    ) {
        let instance = Instance::new(buffers).unwrap();
        let options = Options {
            seed,
            restart_budget: 2_000,
            node_budget: 5_000,
            ..Options::default()
        };
        let solution = solve(&instance, &options);
        let plan = &solution.plan;
        prop_assert!(
            validate_peak(&instance, plan.offsets_bytes(), plan.peak_bytes()).is_ok()
        );
        let bound = lower_bound(&instance);
        prop_assert_eq!(bound.rounded_bytes, naive_bound(&instance));
        prop_assert!(bound.requested_bytes <= bound.rounded_bytes);
        prop_assert!(bound.rounded_bytes <= solution.proved_bytes);
        prop_assert!(solution.proved_bytes <= plan.peak_bytes());
        // The same again, to the byte.
        prop_assert_eq!(&solve(&instance, &options).plan, plan);
    }
}

#[test]
fn a_cut_rectangle_is_put_together_again_by_one_thread_and_by_two() {
    let instance = Guillotine { buffers: 100, shortened_percent: 10, seed: 7 }.generate();
    for threads in [1, 2] {
        let options = Options {
            capacity_bytes: Some(Guillotine::CAPACITY_BYTES),
            threads: NonZeroUsize::new(threads).unwrap(),
            restart_budget: 0, // or a lucky restart leaves nothing to search
            node_budget: 5_000_000,
            ..Options::default()
        };
        let solution = solve(&instance, &options);
        assert!(solution.plan.peak_bytes() <= Guillotine::CAPACITY_BYTES, "{threads} threads");
        assert_eq!(solution.stage, arena_plan::Stage::Search);
    }
}

#[test]
fn an_unreachable_capacity_is_not_looked_for() {
    let instance = Guillotine { buffers: 100, shortened_percent: 0, seed: 7 }.generate();
    let options = Options {
        capacity_bytes: Some(Guillotine::CAPACITY_BYTES - 1),
        restart_budget: u64::MAX,
        node_budget: u64::MAX,
        ..Options::default()
    };
    // Without a time limit this would never end if it tried.
    assert!(solve(&instance, &options).plan.peak_bytes() >= Guillotine::CAPACITY_BYTES);
}

#[test]
fn nothing_to_plan_needs_nothing() {
    for buffers in [vec![], vec![Buffer::new(0, 5, 0).aligned(64)]] {
        let solution = solve(&Instance::new(buffers).unwrap(), &Options::default());
        assert_eq!(solution.plan.peak_bytes(), 0);
        assert!(solution.is_optimal());
    }
}

#[test]
fn independent_phases_do_not_add_up() {
    // Two groups that never meet: each may use the whole range.
    let buffers = vec![
        Buffer::new(0, 4, 100),
        Buffer::new(2, 6, 50),
        Buffer::new(6, 9, 70),
        Buffer::new(7, 10, 80),
    ];
    let solution = solve(&Instance::new(buffers).unwrap(), &Options::default());
    assert_eq!(solution.plan.peak_bytes(), 150);
}

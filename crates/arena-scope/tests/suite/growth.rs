//! A root scope that stays open while the loop runs inside it: the steady-state check sees whether it grows.

use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::steady::{Again, Growth, NotSteady};
use arena_scope::{Alignment, Arena, ByteSize, Error, Host, Scope, StepKey};
use rstest::rstest;

use crate::common::Outcome;

type Body = fn(&mut Scope<'_, '_>) -> Result<(), Error>;

fn arena() -> Arena {
    let builder = Arena::builder(Host::new()).capacity(ByteSize::mib(1));
    builder.build().expect("there is a mebibyte")
}

/// What is found of `steps` root scopes named "run".
fn found(steps: u64, body: Body) -> Result<Option<Growth>, Error> {
    let seen = arena().steady_state(steps, |arena, _| arena.scope_named("run", body))?;
    match (seen.check(), seen.growth) {
        (Ok(()), None) => Ok(None),
        (Err(NotSteady::Grows(told)), Some(growth)) if told == growth => Ok(Some(growth)),
        (told, growth) => panic!("{told:?}, {growth:?}"),
    }
}

/// A step whose layers each leave a buffer behind, until it ends.
fn step_of_layers(step: &mut Scope<'_, '_>) -> Result<(), Error> {
    for _ in 0..12 {
        step.alloc::<u8>(1024).map(drop)?;
        step.scope_named("layer", |layer| layer.alloc::<u8>(512).map(drop))?;
    }
    Ok(())
}

fn ten_thousand_bytes_twenty_times(run: &mut Scope<'_, '_>) -> Result<(), Error> {
    (0..20).try_for_each(|_| run.alloc::<u8>(10_000).map(drop))
}

#[test]
fn a_call_that_is_asked_again_and_again_is_named_with_its_bytes() -> Outcome {
    let growth = found(1, ten_thousand_bytes_twenty_times)?.expect("it grows");
    let Again::Call { call_site, requests: 20 } = growth.again else { panic!("{growth:?}") };
    assert!(call_site.file().ends_with("growth.rs"));
    // 19 more, each at a multiple of 256.
    assert_eq!((growth.grown_bytes, growth.path), (19 * 10_240, vec!["run"]));
    assert_eq!(growth.key, StepKey::named("run"));
    let text = NotSteady::Grows(found(1, ten_thousand_bytes_twenty_times)?.expect("as before"));
    let text = text.to_string();
    assert!(text.starts_with("`run` (0) was opened once, and grew by 194560 bytes"), "{text}");
    let told = format!("{call_site} was asked 20 times in `run`");
    assert!(text.contains(&told), "{text}");
    Ok(())
}

#[rstest]
#[case::at_once(0, 2)]
#[case::later(3, 5)]
fn an_inner_scope_that_finds_more_than_the_first_time_is_named_with_its_visit(
    #[case] quiet: u64,
    #[case] first: u64,
) -> Outcome {
    let mut arena = arena();
    let seen = arena.steady_state(1, |arena, _| {
        arena.scope_named("run", |run| {
            let _weights = run.alloc::<u8>(100)?;
            run.scope_named("training", |training| {
                for n in 0..10 {
                    training.scope_named("step", step_of_layers)?;
                    if n >= quiet {
                        training.alloc::<u8>(300)?; // the loss of each step
                    }
                }
                arena_scope::Ok(())
            })
        })
    })?;
    let growth = seen.growth.as_ref().expect("it grows");
    let visit = Again::Scope { name: "step", visits: 10, visit: first };
    assert_eq!((growth.again, &growth.path[..]), (visit, &["run", "training"][..]));
    // Behind the weights' 100 bytes, at multiples of 256.
    assert_eq!(growth.grown_bytes, 256 - 100 + (8 - quiet) * 512 + 300);
    let text = seen.check().unwrap_err().to_string();
    let told = format!(
        "`step` was opened 10 times in `run > training`, and found more than the first time from visit {first} on"
    );
    assert!(text.contains(&told), "{text}");
    Ok(())
}

#[test]
fn a_scope_without_a_name_is_told_as_that() -> Outcome {
    let seen = arena().steady_state(1, |arena, _| {
        arena.scope_named("", |run| {
            for _ in 0..3 {
                run.scope_named("", |step| step.alloc::<u8>(1).map(drop))?;
                run.alloc::<u8>(1)?;
            }
            arena_scope::Ok(())
        })
    })?;
    let text = seen.check().unwrap_err().to_string();
    assert!(
        text.contains("the inner scope `(unnamed)` was opened 3 times in `(unnamed)`"),
        "{text}"
    );
    Ok(())
}

#[rstest]
#[case::steps_in_scopes_of_their_own(1, |run: &mut Scope<'_, '_>| {
    let _weights = run.alloc::<u8>(100)?;
    (0..10).try_for_each(|_| run.scope_named("step", step_of_layers))
})]
#[case::buffers_made_in_a_loop_before_the_steps(1, |run: &mut Scope<'_, '_>| {
    (0..8).try_for_each(|_| run.alloc::<u8>(100).map(drop))?;
    (0..10).try_for_each(|_| run.scope_named("step", step_of_layers))
})]
#[case::a_loop_that_is_less_than_half_of_a_step(1, |run: &mut Scope<'_, '_>| {
    (0..3).try_for_each(|_| run.alloc::<u8>(100).map(drop))?;
    run.alloc::<u8>(1)?;
    run.alloc::<u8>(2)?;
    run.alloc::<u8>(3).map(drop)
})]
#[case::empty_buffers(1, |run: &mut Scope<'_, '_>| (0..20).try_for_each(|_| run.alloc::<u8>(0).map(drop)))]
#[case::root_scopes_that_come_again(2, step_of_layers)]
#[case::loops_in_root_scopes_that_come_again(2, ten_thousand_bytes_twenty_times)]
fn what_ends_with_its_step_is_no_growth(#[case] steps: u64, #[case] body: Body) -> Outcome {
    assert_eq!(found(steps, body)?, None);
    Ok(())
}

#[test]
fn a_step_that_comes_once_beside_others_is_no_run() -> Outcome {
    let mut arena = arena();
    // Sequences of another length each, and one evaluation.
    let seen = arena.steady_state(6, |arena, n| {
        let name = if n == 5 { "evaluate" } else { "train" };
        arena.scope_with(StepKey::named(name).variant(n), step_of_layers)
    })?;
    assert_eq!((seen.growth.as_ref(), seen.check()), (None, Ok(())));
    Ok(())
}

#[test]
fn what_a_forgotten_guard_leaves_behind_counts_to_the_scope_around_it() -> Outcome {
    let growth = found(1, |run| {
        for _ in 0..4 {
            let mut guard = run.enter_with(StepKey::named("step"))?;
            guard.scope().alloc::<u8>(1000)?;
            std::mem::forget(guard);
        }
        Ok(())
    })?;
    let growth = growth.expect("it grows");
    assert_eq!(growth.again, Again::Scope { name: "step", visits: 4, visit: 2 });
    assert_eq!(growth.grown_bytes, 2 * 1024 + 1000);
    Ok(())
}

#[test]
fn a_scope_that_follows_a_plan_does_not_grow_beyond_it() -> Outcome {
    let mut arena = arena();
    let slot = PlannedSlot { offset_bytes: 0, bytes: 10_000, alignment: Alignment::DEFAULT };
    arena.install_plan(StepKey::named("run"), SlotTable::new(&[slot; 20])?)?;
    let seen = arena
        .steady_state(1, |arena, _| arena.scope_named("run", ten_thousand_bytes_twenty_times))?;
    assert_eq!((seen.growth.as_ref(), seen.check()), (None, Ok(())));
    Ok(())
}

#[test]
fn only_recorded_steps_are_looked_into() -> Outcome {
    let mut arena = arena();
    arena.observe(None);
    arena.scope_named("run", ten_thousand_bytes_twenty_times)?;
    let seen = arena.observed().expect("it is observed");
    assert_eq!((seen.steps(), seen.growth), (1, None));
    Ok(())
}

//! Steps that follow a plan through scopes, forgotten ones too.

use arena_core::for_scopes::{PlanId, Steps};
use arena_core::{Alignment, Deviations, Error, ErrorKind, Host, PlannedSlot, Reset, SlotTable};

use super::{A256, ask, close, open, open_inner, plain, table};

fn planned(places: &[u64]) -> (Steps<Host>, PlanId) {
    let mut steps = plain(Reset::Keep);
    let plan = steps.add_plan(table(places)).unwrap();
    (steps, plan)
}

fn ask_for(steps: &Steps<Host>, bytes: usize) -> Result<u64, Error> {
    steps.transient::<u8>(bytes, A256, steps.depth()).map(|buffer| buffer.offset_bytes())
}

fn deviations(steps: &Steps<Host>, plan: PlanId) -> Deviations {
    steps.plan_deviations(plan).unwrap()
}

#[test]
fn no_root_scope_opens_over_what_is_kept_in_its_plan_s_bytes() {
    let (mut steps, plan) = planned(&[0, 4]);
    steps.select_plan(Some(plan));
    let mut kept = steps.persistent::<u8>(3072, A256, 0).unwrap();
    kept.as_mut_slice().fill(7);
    let root = open(&steps, None);
    assert_eq!((steps.stats().used_bytes, ask(&steps), ask(&steps)), (0, 0, 256), "it is bumped");
    assert_eq!(ask_for(&steps, 1024).unwrap_err().as_exhausted().unwrap().plan, None);
    close(&steps, root).unwrap();
    assert_eq!((deviations(&steps, plan).missing, deviations(&steps, plan).steps), (2, 1));
    assert_eq!(kept.as_slice(), [7; 3072]);
    drop(kept);
    for expected in [[0, 256], [0, 1024], [0, 1024]] {
        steps.select_plan(Some(plan));
        let root = open(&steps, None);
        assert_eq!(
            [ask(&steps), ask(&steps)],
            expected,
            "as planned, once a close has given the room back"
        );
        close(&steps, root).unwrap();
    }
}

#[test]
fn what_a_plan_has_not_lies_above_its_bytes() {
    let (mut steps, plan) = planned(&[1]);
    steps.select_plan(Some(plan));
    let root = open(&steps, None);
    assert_eq!(steps.stats().used_bytes, 512);
    let (a, b, c) = (ask(&steps), ask(&steps), ask(&steps));
    assert_eq!((a, b, c), (256, 512, 768));
    close(&steps, root).unwrap();
    assert_eq!(steps.stats().used_bytes, 0);
}

#[test]
fn a_plan_starts_where_its_slots_are_aligned() {
    let mut steps = plain(Reset::Keep);
    steps.persistent::<u8>(100, A256, 0).unwrap();
    let plan = steps.add_plan(table(&[0])).unwrap();
    assert_eq!(steps.plan_span(plan).unwrap().start_bytes, 256);
    steps.select_plan(Some(plan));
    let root = open(&steps, None);
    let slot = steps.transient::<u8>(256, A256, 1).unwrap();
    assert!(slot.view().is_aligned(A256));
    drop(slot);
    close(&steps, root).unwrap();
}

#[test]
fn a_replaced_plan_is_the_one_that_is_followed() {
    let (mut steps, plan) = planned(&[0]);
    steps.replace_plan(plan, table(&[2])).unwrap();
    steps.select_plan(Some(plan));
    let root = open(&steps, None);
    assert_eq!(ask(&steps), 512);
    let (other, refused) = (table(&[0]), |error: &ErrorKind| matches!(error, ErrorKind::PlanInUse));
    close(&steps, root).unwrap();
    assert!(!steps.add_plan(other).is_err_and(|error| refused(error.kind())), "the step has ended");
}

#[test]
fn equal_addresses_under_different_plans_have_different_signatures() {
    let mut steps = plain(Reset::Keep);
    let plans = [&[0, 1][..], &[0, 2]].map(|places| steps.add_plan(table(places)).unwrap());
    let signatures = plans.map(|plan| {
        steps.select_plan(Some(plan));
        let root = open(&steps, None);
        assert_eq!(ask(&steps), 0);
        close(&steps, root).unwrap();
        steps.last_step().signature.unwrap()
    });
    assert_ne!(signatures[0], signatures[1]);
}

#[test]
fn what_an_inner_scope_forgot_to_free_is_free_when_it_closes() {
    let (mut steps, plan) = planned(&[0, 0]);
    for n in 1..=3 {
        steps.select_plan(Some(plan));
        let root = open(&steps, None);
        let inner = open_inner(&steps, None);
        std::mem::forget(steps.transient::<u8>(256, A256, 2).unwrap());
        close(&steps, inner).unwrap();
        assert_eq!(ask(&steps), 0);
        close(&steps, root).unwrap();
        assert_eq!((deviations(&steps, plan).unfreed, deviations(&steps, plan).steps), (n, 0));
    }
}

/// A step with an inner scope, whose guard may be forgotten. It may end before its last request.
fn step_with_inner(steps: &mut Steps<Host>, plan: PlanId, forgets: bool, whole: bool) {
    steps.select_plan(Some(plan));
    let root = open(steps, None);
    ask(steps);
    let inner = open_inner(steps, None);
    ask(steps);
    if forgets {
        // What opens in the root next ends it.
        let next = open_inner(steps, None);
        close(steps, next).unwrap();
    } else {
        close(steps, inner).unwrap();
        let next = open_inner(steps, None);
        close(steps, next).unwrap();
    }
    if whole {
        ask(steps);
    }
    close(steps, root).unwrap();
}

// The first step is counted, and later ones repeat it up to the forgotten guard.
#[test]
fn a_step_with_a_forgotten_scope_ends_with_its_root() {
    for before in [0, 3] {
        let (mut steps, plan) = planned(&[0, 0, 0]);
        for _ in 0..before {
            step_with_inner(&mut steps, plan, false, true);
        }
        let signature = steps.last_step().signature;
        step_with_inner(&mut steps, plan, true, false);
        let told = deviations(&steps, plan);
        assert_eq!((told.missing, told.total(), told.steps), (1, 1, 1), "after {before}");
        assert_eq!(told.unfreed, 0, "what the forgotten scope freed is free");
        for _ in 0..3 {
            step_with_inner(&mut steps, plan, false, true);
            assert_eq!(deviations(&steps, plan), told, "whole steps after it are as planned");
        }
        assert!(before == 0 || steps.last_step().signature == signature);
    }
}

#[test]
fn a_step_that_repeats_asks_for_the_alignment_that_was_asked_for() {
    let slot = PlannedSlot { offset_bytes: 256, bytes: 64, alignment: A256 };
    let mut steps = plain(Reset::Keep);
    let plan = steps.add_plan(SlotTable::new(&[slot]).unwrap()).unwrap();
    let mut step = |alignment: u64| {
        steps.select_plan(Some(plan));
        let root = open(&steps, None);
        let alignment = Alignment::new(alignment).unwrap();
        drop(steps.transient::<u8>(64, alignment, 1).unwrap());
        close(&steps, root).unwrap();
        steps.last_step().signature.unwrap()
    };
    let [coarse, fine] = [256, 64].map(&mut step);
    assert_ne!(coarse, fine);
    for n in 0..3 {
        assert_eq!([256, 256, 64, 256].map(&mut step), [coarse, coarse, fine, coarse], "{n}");
    }
    for n in 0..3 {
        assert_eq!([64, 64, 64, 256].map(&mut step), [fine, fine, fine, coarse], "{n}");
    }
}

#[test]
fn the_first_step_of_a_plan_repeats_none() {
    let slot = PlannedSlot { offset_bytes: 0, bytes: 64, alignment: Alignment::ONE };
    let mut steps = plain(Reset::Keep);
    let plan = steps.add_plan(SlotTable::new(&[slot, slot]).unwrap()).unwrap();
    steps.select_plan(Some(plan));
    let root = open(&steps, None);
    let a = steps.transient::<u8>(64, Alignment::ONE, 1).unwrap();
    let b = steps.transient::<u8>(64, Alignment::ONE, 1).unwrap();
    assert!(a.address().abs_diff(b.address()) >= 64, "{a:?}, {b:?}");
    drop((a, b));
    close(&steps, root).unwrap();
}

// While an error waits the mode is another, and what was common is counted.
#[test]
fn a_step_in_which_an_error_was_told_goes_on_as_planned() {
    let (mut steps, plan) = planned(&[0, 1, 0]);
    let mut step = |fails: bool| {
        steps.select_plan(Some(plan));
        let root = open(&steps, None);
        let a = steps.transient::<u8>(256, A256, 1).unwrap();
        let b = steps.transient::<u8>(256, A256, 1).unwrap();
        drop(a);
        if fails {
            steps.quietly(root, || Err(ErrorKind::ForeignFrame.into()));
            steps.ready().unwrap_err();
        }
        assert_eq!((b.offset_bytes(), ask(&steps)), (256, 0));
        drop(b);
        close(&steps, root).unwrap();
        steps.last_step().signature.unwrap()
    };
    let usual = step(false);
    for fails in [false, false, true, false, true, true, false] {
        assert_eq!(step(fails), usual, "{fails}");
    }
    assert_eq!(deviations(&steps, plan), Deviations::default());
}

#[test]
fn the_close_of_a_scope_clears_no_slot_that_it_was_refused() {
    let (mut steps, plan) = planned(&[0, 0]);
    steps.select_plan(Some(plan));
    let root = open(&steps, None);
    let mut x = steps.transient::<u8>(256, A256, 1).unwrap();
    x.as_mut_slice().fill(7);
    let inner = open_inner(&steps, Some(Reset::Zero));
    assert_eq!(ask(&steps), 256, "the slot is taken, so the bump serves");
    close(&steps, inner).unwrap();
    assert_eq!(x.as_slice(), [7; 256]);
    drop(x);
    close(&steps, root).unwrap();
}

// --- plans that yield to the bump ---------------------------------------------------------------------

fn yielding(places: &[u64], reset: Reset) -> (Steps<Host>, PlanId) {
    let mut steps = plain(reset);
    let plan = steps.add_plan(table(places).yielding()).unwrap();
    steps.select_plan(Some(plan));
    (steps, plan)
}

#[test]
fn a_step_leaves_a_yielding_plan_before_a_slot_that_lies_higher_than_the_bump_would_put_it() {
    let (steps, plan) = yielding(&[0, 2, 1], Reset::Keep);
    let root = open(&steps, None);
    let asked = [(); 3].map(|()| steps.transient::<u8>(256, A256, 1).unwrap());
    let offsets = asked.each_ref().map(|buffer| buffer.offset_bytes());
    assert_eq!(offsets, [0, 256, 512], "from the second on they are bumped");
    drop(asked);
    close(&steps, root).unwrap();
    assert_eq!((deviations(&steps, plan).late, deviations(&steps, plan).missing), (1, 2));
}

#[test]
fn where_the_bump_would_be_goes_back_with_an_inner_scope_unless_that_was_forgotten() {
    for forgotten in [false, true] {
        let (steps, plan) = yielding(&[0, 1, 2, 2, 2], Reset::Keep);
        let root = open(&steps, None);
        let outer = steps.transient::<u8>(256, A256, 1).unwrap();
        let inner = open_inner(&steps, None);
        assert_eq!((ask(&steps), ask(&steps)), (256, 512));
        if !forgotten {
            close(&steps, inner).unwrap();
        }
        let next = open_inner(&steps, None);
        // The slot lies at 512. The bump would be at 256, or at 768 with the forgotten scope's bytes.
        assert_eq!(ask(&steps), if forgotten { 512 } else { 256 });
        close(&steps, next).unwrap();
        drop(outer);
        close(&steps, root).unwrap();
        assert_eq!(deviations(&steps, plan).late, u64::from(!forgotten));
    }
}

#[test]
fn a_step_that_has_left_its_plan_goes_on_above_what_is_alive_in_each_scope() {
    let (steps, _) = yielding(&[0, 1, 2, 3], Reset::Keep);
    let root = open(&steps, None);
    let outer = steps.transient::<u8>(256, A256, 1).unwrap();
    drop(steps.transient::<u8>(256, A256, 1).unwrap());
    let inner = open_inner(&steps, None);
    let live = steps.transient::<u8>(256, A256, 2).unwrap();
    assert_eq!((outer.offset_bytes(), live.offset_bytes()), (0, 512));
    assert_eq!(ask_for(&steps, 512).unwrap(), 768, "above both");
    drop(live);
    close(&steps, inner).unwrap();
    assert_eq!(ask_for(&steps, 512).unwrap(), 256, "above what the inner scope found");
    drop(outer);
    close(&steps, root).unwrap();
}

#[test]
fn what_a_step_wrote_before_it_left_its_plan_is_cleared_too() {
    let (mut steps, _) = yielding(&[0, 1, 2, 3], Reset::Zero);
    let root = open(&steps, None);
    for _ in 0..3 {
        let mut buffer = steps.transient::<u8>(256, A256, 1).unwrap();
        buffer.view_mut().fill_bytes(0xff).unwrap();
    }
    assert_eq!(ask_for(&steps, 100).unwrap(), 0, "it has left the plan");
    close(&steps, root).unwrap();
    steps.select_plan(None);
    let root = open(&steps, None);
    let look = steps.transient::<u8>(1024, A256, 1).unwrap();
    assert_eq!(look.as_slice(), [0; 1024]);
    drop(look);
    close(&steps, root).unwrap();
}

#[test]
fn a_kept_buffer_that_the_bump_would_have_room_for_makes_a_step_leave_its_plan() {
    for yields in [false, true] {
        let mut steps = plain(Reset::Keep);
        let table = if yields { table(&[0, 1, 2, 15]).yielding() } else { table(&[0, 1, 2, 15]) };
        let plan = steps.add_plan(table).unwrap();
        steps.select_plan(Some(plan));
        let root = open(&steps, None);
        let live = steps.transient::<u8>(256, A256, 1).unwrap();
        let kept = steps.persistent::<u8>(2048, A256, 1).unwrap();
        assert!(kept.is_kept() && kept.offset_bytes() >= 2048);
        assert_eq!((live.offset_bytes(), ask(&steps)), (0, 256));
        assert!(steps.persistent::<u8>(2048, A256, 1).unwrap_err().is_exhausted());
        drop(live);
        close(&steps, root).unwrap();
    }
}

#[test]
fn the_step_after_one_that_left_its_plan_behind_the_last_slot_is_as_planned() {
    let mut steps = plain(Reset::Keep);
    let plan = steps.add_plan(table(&[0, 14, 0])).unwrap();
    for n in 0..3 {
        steps.select_plan(Some(plan));
        let root = open(&steps, None);
        assert_eq!((ask(&steps), ask(&steps)), (0, 14 * 256));
        let last = steps.transient::<u8>(256, A256, 1).unwrap();
        assert_eq!(last.offset_bytes(), 0);
        if n == 0 {
            drop(steps.persistent::<u8>(1024, A256, 1).unwrap());
        }
        drop(last);
        close(&steps, root).unwrap();
        assert_eq!(deviations(&steps, plan), Deviations::default(), "step {n}");
    }
}

#[test]
fn a_step_does_not_leave_its_plan_below_what_was_bumped_above_it() {
    let (mut steps, plan) = planned(&[0, 1]);
    steps.select_plan(Some(plan));
    let root = open(&steps, None);
    assert_eq!(ask(&steps), 0);
    let above = steps.transient::<u8>(512, A256, 1).unwrap();
    assert_eq!(above.offset_bytes(), 512);
    assert!(ask_for(&steps, 3100).unwrap_err().is_exhausted());
    drop(above);
    close(&steps, root).unwrap();
}

#[test]
fn a_plan_that_was_outgrown_says_so_and_the_next_step_is_bumped() {
    let (mut steps, plan) = planned(&[0, 15]);
    steps.select_plan(Some(plan));
    let root = open(&steps, None);
    let both = [steps.transient::<u8>(256, A256, 1), steps.transient::<u8>(256, A256, 1)];
    let told = ask_for(&steps, 1024).unwrap_err(); // The second lies at the region's end.
    let facts = told.as_exhausted().unwrap().plan.unwrap();
    assert!(facts.is_outgrown, "{told}");
    drop(both);
    close(&steps, root).unwrap();

    steps.select_plan(Some(plan));
    let root = open(&steps, None);
    assert_eq!((ask(&steps), ask(&steps), ask_for(&steps, 1024).unwrap()), (0, 256, 512));
    let told = ask_for(&steps, 4096).unwrap_err();
    assert_eq!(told.as_exhausted().unwrap().plan, None);
    close(&steps, root).unwrap();

    steps.select_plan(Some(plan));
    let root = open(&steps, None);
    assert_eq!((ask(&steps), ask(&steps)), (0, 15 * 256), "the bump has no room either");
    close(&steps, root).unwrap();
}

#[test]
fn a_plan_that_is_removed_or_folded_leaves_the_selected_one_as_it_is() {
    let (mut steps, plan) = planned(&[2]);
    let (other, third) =
        (steps.add_plan(table(&[4])).unwrap(), steps.add_plan(table(&[6])).unwrap());
    let folded_bytes = steps.plan_host_bytes(plan);
    assert!(steps.select_plan(Some(plan)), "it takes memory");
    let unfolded_bytes = steps.plan_host_bytes(plan);
    assert!(folded_bytes < 2048 && unfolded_bytes > 16 << 10);
    steps.fold_plan(plan);
    assert_eq!(steps.plan_host_bytes(plan), unfolded_bytes, "not while it is selected");
    steps.remove_plan(other);
    steps.replace_plan(third, table(&[8])).unwrap();
    let root = open(&steps, None);
    assert_eq!(ask(&steps), 512, "it is followed");
    close(&steps, root).unwrap();

    assert!(steps.select_plan(Some(third)));
    steps.fold_plan(plan);
    assert!(steps.plan_host_bytes(plan) < 2048);
    assert_eq!(steps.plan_deviations(other), None);
    assert_eq!(steps.add_plan(table(&[10])).unwrap(), other, "the number is free");
    assert_eq!(deviations(&steps, other), Deviations::default());
    for (plan, took_memory, place) in [(plan, true, 2), (other, true, 10), (plan, false, 2)] {
        assert_eq!(steps.select_plan(Some(plan)), took_memory);
        let root = open(&steps, None);
        assert_eq!(ask(&steps), place * 256);
        close(&steps, root).unwrap();
    }
    steps.remove_plan(plan);
    let root = open(&steps, None);
    assert_eq!(ask(&steps), 0, "a plan that was selected is followed no more");
    close(&steps, root).unwrap();
}

#[test]
fn smaller_requests_that_are_expected_are_counted_apart() {
    let (mut steps, plan) = planned(&[1, 2]);
    for by_design in [true, false] {
        steps.select_plan(Some(plan));
        steps.expect_smaller(by_design);
        let root = open(&steps, None);
        assert_eq!((ask_for(&steps, 100).unwrap(), ask(&steps)), (256, 512));
        close(&steps, root).unwrap();
        let Deviations { smaller, smaller_by_design, .. } = deviations(&steps, plan);
        assert_eq!((smaller, smaller_by_design), (u64::from(!by_design), 1));
        assert_eq!(deviations(&steps, plan).unplanned(), smaller);
        assert_eq!(steps.plan_deviation_sites(plan).len() as u64, smaller);
    }
}

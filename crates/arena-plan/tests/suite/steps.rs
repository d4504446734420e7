//! Recorded training steps: the plan reaches the lower bound.

use std::fs;
use std::path::PathBuf;

use arena_plan::formats;
use arena_plan::{Options, solve, validate_peak};
use rstest::rstest;

#[rstest]
fn every_recorded_step_is_planned_at_its_lower_bound(#[files("data/steps/*.csv")] path: PathBuf) {
    let text = fs::read_to_string(&path).unwrap();
    let labelled = formats::read(&text, None).unwrap();
    let solution = solve(&labelled.instance, &Options::default());
    let plan = &solution.plan;
    validate_peak(&labelled.instance, plan.offsets_bytes(), plan.peak_bytes()).unwrap();
    assert_eq!(plan.peak_bytes(), plan.bound().rounded_bytes);
    assert!(solution.is_optimal());
}

#[test]
fn all_twenty_steps_are_there() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data/steps");
    assert_eq!(fs::read_dir(folder).unwrap().count(), 20);
}

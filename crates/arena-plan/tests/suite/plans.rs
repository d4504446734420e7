//! Plans as files: they come back as they were, and nothing in them is taken on trust.

use arena_plan::{Buffer, Instance, Options, Plan, PlanError, solve};
use proptest::prelude::*;
use rstest::rstest;

fn step() -> Instance {
    Instance::new(vec![
        Buffer::new(0, 4, 100).aligned(64),
        Buffer::new(1, 3, 50).aligned(64),
        Buffer::new(3, 6, 60).aligned(64),
    ])
    .unwrap()
}

fn saved() -> String {
    let mut file = Vec::new();
    solve(&step(), &Options::default()).plan.save(&mut file).unwrap();
    String::from_utf8(file).unwrap()
}

#[test]
fn a_saved_plan_comes_back_as_it_was() {
    let plan = solve(&step(), &Options::default()).plan;
    let loaded = Plan::load(saved().as_bytes()).unwrap();
    assert_eq!(loaded, plan);
    assert_eq!(loaded.signature(), plan.signature());
    loaded.check_for(&step()).unwrap();
}

#[test]
fn the_file_format_is_what_it_was() {
    // A change here is a new version of the format.
    assert_eq!(
        saved(),
        "{\"format\":\"arena-plan\",\"version\":1,\"signature\":\"c3ed3ca09fa6cf6c\",\
         \"alignment_bytes\":64,\"peak_bytes\":192,\"bound_bytes\":192,\"requested_bytes\":160,\
         \"buffers\":[[0,4,100,64,0],[1,3,50,64,128],[3,6,60,64,128]]}\n"
    );
}

#[rstest]
#[case::longer_life(0, Buffer::new(0, 5, 100).aligned(64))]
#[case::larger(1, Buffer::new(1, 3, 51).aligned(64))]
#[case::other_alignment(2, Buffer::new(3, 6, 60).aligned(128))]
fn a_plan_is_refused_for_another_program(#[case] index: usize, #[case] changed: Buffer) {
    let plan = solve(&step(), &Options::default()).plan;
    let mut buffers = step().buffers().to_vec();
    buffers[index] = changed;
    let other = Instance::new(buffers).unwrap();
    match plan.check_for(&other) {
        Err(PlanError::OtherProgram { index: found, .. }) => assert_eq!(found, index),
        outcome => panic!("{outcome:?}"),
    }
    let replanned = solve(&other, &Options::default()).plan;
    assert_ne!(plan.signature(), replanned.signature());
}

#[test]
fn a_plan_is_refused_for_a_program_of_another_length() {
    let plan = solve(&step(), &Options::default()).plan;
    let shorter = Instance::new(step().buffers()[..2].to_vec()).unwrap();
    assert!(matches!(
        plan.check_for(&shorter),
        Err(PlanError::OtherLength { planned: 3, asked: 2 })
    ));
}

#[rstest]
#[case::cut_off("]]}", "]", "EOF")]
#[case::other_kind("arena-plan", "something", "expected is format \"arena-plan\" version 1")]
#[case::later_version(
    "\"version\":1",
    "\"version\":2",
    "expected is format \"arena-plan\" version 1"
)]
#[case::extra_field("{\"format\"", "{\"more\":1,\"format\"", "unknown field `more`")]
#[case::missing_field("\"peak_bytes\":192,", "", "missing field `peak_bytes`")]
#[case::negative("[0,4,100", "[-1,4,100", "invalid value")]
#[case::four_numbers("[0,4,100,64,0]", "[0,4,100,64]", "invalid length 4")]
#[case::six_numbers("[0,4,100,64,0]", "[0,4,100,64,0,0]", "trailing characters")]
#[case::bad_alignment("[0,4,100,64,0]", "[0,4,100,63,0]", "not a power of two")]
#[case::no_life("[0,4,100", "[4,4,100", "death must come after")]
#[case::overlap("[1,3,50,64,128]", "[1,3,50,64,64]", "share bytes")]
#[case::misaligned("[1,3,50,64,128]", "[1,3,50,64,129]", "not a multiple")]
#[case::far("[1,3,50,64,128]", "[1,3,50,64,18446744073709551552]", "above the largest")]
#[case::wrong_peak("\"peak_bytes\":192", "\"peak_bytes\":128", "states peak_bytes 128")]
#[case::wrong_bound("\"bound_bytes\":192", "\"bound_bytes\":190", "states bound_bytes 190")]
#[case::wrong_request("\"requested_bytes\":160", "\"requested_bytes\":1", "requested_bytes 1,")]
#[case::alignment("\"alignment_bytes\":64", "\"alignment_bytes\":8", "states alignment_bytes 8")]
#[case::changed_size("[3,6,60", "[3,6,61", "the plan states")]
#[case::signature("\"signature\":\"", "\"signature\":\"0", "states signature")]
fn a_damaged_plan_is_refused(#[case] from: &str, #[case] to: &str, #[case] words: &str) {
    let whole = saved();
    assert!(whole.contains(from), "{whole}");
    let error = Plan::load(whole.replacen(from, to, 1).as_bytes()).unwrap_err();
    assert!(error.to_string().contains(words), "{error}");
}

proptest! {
    #[test]
    fn no_change_of_one_byte_panics_or_passes_for_another_plan(at: prop::sample::Index, byte: u8) {
        let mut file = saved().into_bytes();
        let at = at.index(file.len());
        file[at] = byte;
        if let Ok(plan) = Plan::load(file.as_slice()) {
            prop_assert_eq!(plan, solve(&step(), &Options::default()).plan);
        }
    }
}

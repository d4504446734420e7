//! PyTorch's snapshots of several shapes, as the program `tests/data/snapshots.py` makes them.

use arena_report::{Origin, Source, Told, live_peak};
use rstest::rstest;

use crate::common::{bytes, expected, recording};

#[rstest]
#[case::training("training")]
#[case::two_devices("two_devices")]
#[case::expandable("expandable")]
#[case::no_frames("no_frames")]
#[case::from_the_middle("from_the_middle")]
#[case::changing("changing")]
#[case::old_without_traces("old_without_traces")]
fn the_steps_of_a_snapshot_are_those_that_the_program_made(#[case] shape: &str) {
    let expected = expected(shape);
    let read = recording(&bytes(&format!("{shape}.pickle"))).unwrap();
    assert_eq!(read.source, Source::Snapshot);
    let whole = read.steps.iter().filter(|step| step.is_whole && step.device == 0);
    let whole: Vec<_> = whole.collect();
    assert_eq!(
        whole.len(),
        expected.steps,
        "{:?}",
        read.steps.iter().map(|s| &s.name).collect::<Vec<_>>()
    );
    for step in whole {
        let own: Vec<_> = step.own().collect();
        assert_eq!(
            (own.len(), step.through_bytes),
            (expected.buffers, expected.through),
            "{}",
            step.name
        );
        assert_eq!(own.iter().map(|buffer| buffer.bytes()).sum::<u64>(), expected.sum);
        assert_eq!(live_peak(step).bytes, expected.own_peak + expected.through, "{}", step.name);
        assert!(step.buffers.iter().all(|buffer| buffer.origin() == Origin::Step), "{}", step.name);
    }
    let held = read.steps.iter().filter(|step| step.device == 0).filter_map(|step| step.held);
    assert_eq!(held.map(|held| held.most_bytes).max(), Some(expected.reserved));
}

#[rstest]
#[case("training", Told::ByRepetition { allocations: 15 })]
#[case("changing", Told::DoesNotRepeat)]
#[case("old_without_traces", Told::NoHistory)]
fn how_steps_were_told_apart_is_said(#[case] shape: &str, #[case] told: Told) {
    let read = recording(&bytes(&format!("{shape}.pickle"))).unwrap();
    assert!(read.steps.iter().all(|step| step.told == told), "{:?}", read.steps[0].told);
}

#[test]
fn a_site_is_the_line_of_the_program_and_not_of_pytorch() {
    for shape in ["training", "old_without_traces"] {
        let read = recording(&bytes(&format!("{shape}.pickle"))).unwrap();
        let sites =
            read.steps.iter().flat_map(|step| &step.buffers).filter_map(|buffer| buffer.site());
        let mut sites: Vec<_> = sites.map(|site| read.names.site(site)).collect();
        sites.sort();
        sites.dedup();
        assert!(sites.iter().all(|site| site.starts_with("/home/user/train.py:")), "{sites:?}");
        assert!(sites.contains(&"/home/user/train.py:3 step".to_owned()), "{sites:?}");
    }
    let none = recording(&bytes("no_frames.pickle")).unwrap();
    assert!(none.steps.iter().flat_map(|step| &step.buffers).all(|buffer| buffer.site().is_none()));
}

#[test]
fn each_device_has_its_own_steps() {
    let read = recording(&bytes("two_devices.pickle")).unwrap();
    let of = |device| {
        let whole = read.steps.iter().filter(|step| step.is_whole && step.device == device);
        whole.map(|step| step.name.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(of(0).len(), 4);
    assert_eq!(of(1), ["device 1, step 1", "device 1, step 2", "device 1, step 3"]);
}

#[test]
fn a_history_that_begins_in_a_step_knows_what_was_there_by_its_frees() {
    let read = recording(&bytes("from_the_middle.pickle")).unwrap();
    let first = &read.steps[0];
    assert!(!first.is_whole && first.name == "before the steps", "{}", first.name);
    let carried: Vec<_> =
        first.buffers.iter().filter(|buffer| buffer.origin() == Origin::Carried).collect();
    // The scratch of the third layer, and the activations of the first three.
    let sizes: Vec<_> = carried.iter().map(|buffer| buffer.bytes()).collect();
    assert_eq!(sizes.len(), 4, "{sizes:?}");
    for bytes in [300_000, 700_001, 1_500_000, 750_000] {
        assert!(sizes.contains(&bytes), "{bytes}: {sizes:?}");
    }
    assert!(carried.iter().all(|buffer| buffer.birth() == 0 && buffer.dropped().is_some()));
    // A free that waits for a stream has not freed anything.
    let last = read.steps.last().unwrap();
    assert_eq!(last.name, "after the steps");
    let waiting = last.own().find(|buffer| buffer.bytes() == 9_999).unwrap();
    assert_eq!(waiting.dropped(), None);
}

#[test]
fn what_was_reserved_is_told_of_each_step() {
    let read = recording(&bytes("training.pickle")).unwrap();
    let held: Vec<_> = read.steps.iter().map(|step| step.held.unwrap().most_bytes).collect();
    // The parameters take two segments of 2 MiB, and the first step the others.
    assert_eq!(held, [4 << 20, 10 << 20, 10 << 20, 10 << 20, 10 << 20]);
}

//! Steps written as snapshots of PyTorch, and read back.

use arena_plan::Options;
use arena_report::{
    Origin, Recording, Source, Step, advise, live_bytes, live_peak, parse, snapshot_of,
};
use rstest::rstest;

use crate::common::{bytes, recording};

fn read_back(recording: &Recording, step: usize) -> Recording {
    let file = snapshot_of(recording, step);
    let read = parse(std::path::Path::new("file"), &file).unwrap();
    assert_eq!(read.source, Source::Snapshot);
    read
}

/// Sizes, births and drops in their order; without the empty ones, which have no address.
fn lives(step: &Step) -> Vec<(u64, bool, bool)> {
    let buffers = step.buffers.iter().filter(|buffer| buffer.bytes() > 0);
    buffers
        .map(|buffer| (buffer.bytes(), buffer.origin() == Origin::Step, buffer.dropped().is_some()))
        .collect()
}

#[rstest]
#[case("training")]
#[case("from_the_middle")]
#[case("changing")]
#[case("expandable")]
fn a_step_that_is_written_is_read_back_with_its_figures(#[case] shape: &str) {
    let first = recording(&bytes(&format!("{shape}.pickle"))).unwrap();
    for place in 0..first.steps.len() {
        let step = &first.steps[place];
        let back = read_back(&first, place);
        let again = &back.steps[0];
        assert_eq!(back.steps.len(), 1, "{}", step.name);
        assert_eq!(
            (again.through_bytes, lives(again)),
            (step.through_bytes, lives(step)),
            "{}",
            step.name
        );
        assert_eq!(live_peak(again).bytes, live_peak(step).bytes, "{}", step.name);
        // At one moment of a snapshot there is one event.
        let changes = |step: &Step| {
            let mut live = live_bytes(step);
            live.dedup();
            live
        };
        assert_eq!(changes(again), changes(step), "{}", step.name);
    }
}

#[test]
fn an_events_step_keeps_its_places_scopes_and_lines() {
    let text = concat!(
        r#"{"op":"begin","format":"watermark-arena events 1","device":"host","capacity_bytes":8192,"mark_bytes":1000}"#,
        "\n",
        r#"{"op":"step","step":0,"key":"train","mode":"bump","start_bytes":1000,"kept_floor_bytes":8000}"#,
        "\n",
        r#"{"op":"open","step":0,"scope":"block","depth":2}"#,
        "\n",
        r#"{"op":"alloc","step":0,"id":0,"offset_bytes":1024,"bytes":512,"alignment_bytes":256,"site":"src/model.rs:10:5","tag":"hidden"}"#,
        "\n",
        r#"{"op":"close","step":0,"depth":2}"#,
        "\n",
        r#"{"op":"alloc","step":0,"id":1,"offset_bytes":1024,"bytes":100,"alignment_bytes":1,"site":"src/model.rs:12:5"}"#,
        "\n",
        r#"{"op":"end","step":0}"#,
    );
    let first = recording(text.as_bytes()).unwrap();
    let back = read_back(&first, 0);
    let step = &back.steps[0];
    assert_eq!((step.through_bytes, step.through_buffers), (1000 + 192, 2));
    assert_eq!(step.held.unwrap().most_bytes, 8192);
    let told: Vec<_> = step
        .buffers
        .iter()
        .map(|buffer| {
            let offset = buffer.offset_bytes().unwrap() - 0x7f00_0000_0000;
            (
                offset,
                buffer.bytes(),
                buffer.dropped().is_some(),
                back.names.site(buffer.site().unwrap()),
            )
        })
        .collect();
    // Both are dead when the step has ended.
    assert_eq!(told[0], (1024, 512, true, "src/model.rs:10".to_owned()));
    assert_eq!(told[1], (1024, 100, true, "src/model.rs:12".to_owned()));
    assert_eq!(step.buffers[0].tag().map(|tag| back.names.get(tag)), Some("hidden"));
}

/// A list of many entries is written in parts, as the viewer wants.
#[test]
fn a_step_of_many_buffers_needs_the_same_after_it_was_written() {
    let mut table = "id,lower,upper,size\n".to_owned();
    for number in 0..5000_u64 {
        let (birth, bytes) = (2 * number, 1 + ((number * 2_654_435_761) >> 11) % 9973);
        table += &format!("{number},{birth},{},{bytes}\n", birth + 1 + number % 100);
    }
    let first = recording(table.as_bytes()).unwrap();
    let back = read_back(&first, 0);
    let of =
        |recording: &Recording| advise(recording, &Options::default()).unwrap().kinds[0].clone();
    let (first, back) = (of(&first), of(&back));
    assert_eq!((back.buffers, back.sum_bytes), (5000, first.sum_bytes));
    assert_eq!(back.live_peak_bytes, first.live_peak_bytes);
}

//! The events of an arena.

use arena_plan::{EventWriter, Lost};
use arena_report::{Source, Told, live_peak};
use arena_scope::{Arena, ByteSize, Host, StepKey};
use rstest::rstest;

use crate::common::recording;

const BEGIN: &str = r#"{"op":"begin","format":"watermark-arena events 1","device":"host","capacity_bytes":4096,"mark_bytes":1000}"#;

fn events(lines: &[&str]) -> String {
    let mut text = BEGIN.to_owned() + "\n";
    for line in lines {
        text += line;
        text.push('\n');
    }
    text
}

const STEP: [&str; 12] = [
    r#"{"op":"step","step":7,"key":"train","variant":64,"mode":"bump","start_bytes":1000,"kept_floor_bytes":4000,"time_ns":10}"#,
    r#"{"op":"alloc","step":7,"id":0,"offset_bytes":1024,"bytes":100,"alignment_bytes":64,"site":"src/a.rs:1:2","last_use":4}"#,
    r#"{"op":"open","step":7,"scope":"block","depth":2,"later":{"field":[1]}}"#,
    r#"{"op":"alloc","step":7,"id":1,"offset_bytes":1152,"bytes":50,"alignment_bytes":64,"tag":"logits"}"#,
    r#"{"op":"merge","step":7,"depth":2}"#,
    r#"{"op":"open","step":7,"scope":"","depth":2}"#,
    r#"{"op":"alloc","step":7,"id":2,"offset_bytes":1216,"bytes":30,"alignment_bytes":64}"#,
    r#"{"op":"something new","step":7}"#,
    r#"{"op":"close","step":7,"depth":2}"#,
    r#"{"op":"drop","step":7,"id":1}"#,
    r#"{"op":"end","step":7,"time_ns":90,"high_water_bytes":1246,"used_bytes":1000,"committed_bytes":4096,"kept_bytes":96,"deviations":0,"signature":"ab"}"#,
    r#"{"op":"result","step":7,"loss":0.5,"predictions":64,"elapsed_ns":80}"#,
];

#[test]
fn a_step_of_events_has_its_scopes_drops_and_figures() {
    let read = recording(events(&STEP).as_bytes()).unwrap();
    assert_eq!(read.source, Source::Events);
    let region = read.region.as_ref().unwrap();
    assert_eq!(
        (region.device.as_str(), region.capacity_bytes, region.mark_bytes),
        ("host", 4096, 1000)
    );
    let [step] = &read.steps[..] else { panic!("{}", read.steps.len()) };
    assert_eq!(
        (step.name.as_str(), step.told, step.moments),
        ("step 7 train:64", Told::ByFile, 11)
    );
    assert_eq!(step.through_bytes, 1000 + 96);
    let told: Vec<_> = step
        .buffers
        .iter()
        .map(|buffer| {
            let scope = read.names.get(buffer.scope().unwrap());
            (
                buffer.offset_bytes().unwrap(),
                buffer.birth(),
                buffer.last_use(),
                buffer.dropped(),
                scope,
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            (1024, 1, Some(4), None, "train:64"),
            (1152, 3, None, Some(9), "train:64/block"),
            (1216, 6, None, Some(8), "train:64/scope"),
        ]
    );
    assert_eq!(read.names.site(step.buffers[0].site().unwrap()), "src/a.rs:1:2");
    assert_eq!(read.names.get(step.buffers[1].tag().unwrap()), "logits");
    assert_eq!(live_peak(step).bytes, 1096 + 180);
    let figures = &step.figures;
    assert_eq!(
        (figures.loss, figures.predictions, figures.elapsed_ns),
        (Some(0.5), Some(64), Some(80))
    );
    assert_eq!((figures.committed_bytes, figures.high_water_bytes), (Some(4096), Some(1246)));
    assert_eq!((figures.time_ns, figures.ended), ((Some(10), Some(90)), true));
}

#[test]
fn a_step_without_an_end_and_lost_steps_are_told() {
    let failed = r#"{"op":"failed","step":7,"error":"out of memory"}"#;
    let lines =
        [STEP[0], STEP[1], failed, r#"{"op":"lost","steps":3}"#, r#"{"op":"lost","steps":2}"#];
    let read = recording(events(&lines).as_bytes()).unwrap();
    let figures = &read.steps[0].figures;
    assert_eq!((figures.failed.as_deref(), figures.ended), (Some("out of memory"), false));
    assert_eq!(read.lost_steps, 5);
}

#[rstest]
#[case::no_json("nonsense", "file:3: column 2: expected ident")]
#[case::no_op("{}", "file:3: column 2: missing field `op`")]
#[case::no_step(r#"{"op":"drop","id":1}"#, "file:3: the field \"step\" is missing")]
#[case::other_step(r#"{"op":"drop","step":8,"id":1}"#, "file:3: step 8 is not open")]
#[case::no_id(r#"{"op":"drop","step":7}"#, "file:3: the field \"id\" is missing")]
#[case::not_alive(r#"{"op":"drop","step":7,"id":5}"#, "file:3: id 5 is not alive")]
#[case::no_bytes(
    r#"{"op":"alloc","step":7,"id":5,"offset_bytes":0}"#,
    "file:3: the field \"bytes\" is missing"
)]
#[case::alignment(
    r#"{"op":"alloc","step":7,"id":5,"offset_bytes":0,"bytes":1,"alignment_bytes":3}"#,
    "file:3: alignment 3 is not"
)]
#[case::huge(
    r#"{"op":"alloc","step":7,"id":5,"offset_bytes":1,"bytes":18446744073709551615}"#,
    "file:3: 18446744073709551615 bytes at 1 are too many"
)]
#[case::depth(
    r#"{"op":"open","step":7,"scope":"a","depth":4}"#,
    "file:3: depth 4 opens, but 1 scopes are open"
)]
#[case::root(r#"{"op":"close","step":7,"depth":1}"#, "file:3: depth 1 ends, but 1 scopes are open")]
fn a_wrong_line_is_named(#[case] line: &str, #[case] problem: &str) {
    let told = recording(events(&[STEP[0], line]).as_bytes()).unwrap_err();
    assert!(told.starts_with(problem) && !told.contains('\n'), "{told}");
}

#[test]
fn sizes_that_cannot_be_added_up_are_refused() {
    let alloc = |id| {
        format!(r#"{{"op":"alloc","step":7,"id":{id},"offset_bytes":0,"bytes":{}}}"#, 1_u64 << 61)
    };
    let lines = [STEP[0], &alloc(0), &alloc(1)];
    let told = recording(events(&lines).as_bytes()).unwrap_err();
    assert!(told.starts_with("file:4: 2305843009213693952 bytes at 0 are too many"), "{told}");
    let trace =
        format!("op,id,size_bytes,stream,step\nalloc,1,{0},0,0\nalloc,2,{0},0,0\n", u64::MAX);
    let told = recording(trace.as_bytes()).unwrap_err();
    assert!(told.starts_with("file:1:1: the sizes and fixed offsets add up to more"), "{told}");
}

#[test]
fn another_format_is_refused() {
    let text = BEGIN.replace("events 1", "events 2");
    let told = recording(text.as_bytes()).unwrap_err();
    assert!(told.starts_with("file:1: the format is \"watermark-arena events 2\""), "{told}");
}

#[test]
fn a_file_without_an_allocation_is_said_to_be_empty() {
    let told = recording(events(&[]).as_bytes()).unwrap_err();
    assert_eq!(told, "file: it has no allocation");
}

/// What an arena writes is what it did: every figure of the file is the arena's own.
#[test]
fn an_arena_s_own_events_have_its_figures() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let builder = Arena::builder(Host::new()).capacity(ByteSize::kib(64));
    let mut arena = builder.build().unwrap();
    let _weights = arena.persistent::<u8>(1000).unwrap();
    arena.mark().unwrap();
    arena.record(None);
    let mut events = EventWriter::create(&path, &arena).unwrap();
    let mut kept = Vec::new();
    let mut peaks = Vec::new();
    for variant in 0..3_u64 {
        let key = StepKey::named("train").variant(variant);
        arena
            .scope_with(key, |step| {
                let a = step.alloc_zeroed::<u8>(500 + variant as usize)?;
                step.scope_named("block", |block| {
                    let b = block.alloc_zeroed::<u8>(300)?;
                    drop(block.alloc::<u8>(0)?);
                    drop(b);
                    block.alloc::<u8>(40).map(drop)
                })?;
                kept.push(step.promote(a.view())?);
                arena_scope::Ok(())
            })
            .unwrap();
        let step = events.step(&arena, key);
        events.result(step, 0.5 * (variant + 1) as f32, 64);
        peaks.push((arena.last_step_high_water_bytes(), arena.stats()));
    }
    let failed = arena.scope(|step| step.alloc::<u8>(1 << 20).map(drop)).unwrap_err();
    events.step(&arena, StepKey::named("scope"));
    events.failed(&failed);
    assert_eq!(events.finish().unwrap(), Lost::default());

    let read = arena_report::read(&path).unwrap();
    let region = read.region.as_ref().unwrap();
    assert_eq!((region.capacity_bytes, region.mark_bytes), (64 << 10, 1000));
    assert_eq!((read.steps.len(), read.lost_steps), (4, 0));
    assert!(read.steps[3].figures.failed.as_ref().unwrap().starts_with("out of arena memory"));
    for (number, (step, (high_water, stats))) in read.steps.iter().zip(&peaks).enumerate() {
        let figures = &step.figures;
        assert_eq!(figures.high_water_bytes, Some(*high_water));
        assert_eq!(figures.used_bytes, Some(stats.used_bytes));
        assert_eq!(figures.committed_bytes, Some(stats.committed_bytes));
        assert_eq!(figures.kept_bytes, Some(stats.kept_bytes));
        assert_eq!(figures.loss, Some(0.5 * (number + 1) as f64));
        let [a, b, empty, last] = &step.buffers[..] else { panic!("{step:?}") };
        let of = |buffer: &arena_report::Buffer| (buffer.offset_bytes().unwrap(), buffer.bytes());
        assert_eq!(of(a), (1024, 500 + number as u64));
        assert_eq!((of(b), of(empty).1, of(last)), ((1536, 300), 0, (1536 + 512, 40)));
        assert!(read.names.get(b.scope().unwrap()).ends_with("/block"));
        // The weights, and what was kept before this step.
        assert!(step.through_bytes >= 1000);
        let site = read.names.site(b.site().unwrap());
        assert!(site.contains("events.rs:"), "{site}");
        assert_eq!((b.last_use(), b.dropped()), (None, Some(5)), "used by nobody");
        assert_eq!((a.last_use(), a.dropped()), (Some(8), Some(9)), "promoted behind the block");
    }
}

#[test]
fn a_tag_is_of_the_requests_behind_it_until_the_next_or_the_end_of_its_scope() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(64)).build().unwrap();
    let key = StepKey::named("train");
    let step = |arena: &mut Arena| {
        arena.scope_with(key, |step| {
            let a = step.alloc_zeroed::<u8>(1)?;
            step.tag("forward");
            let b = step.alloc_zeroed::<u8>(2)?;
            step.scope(|inner| {
                inner.alloc_zeroed::<u8>(3)?;
                inner.tag("attention");
                inner.alloc_zeroed::<u8>(4).map(drop)
            })?;
            drop((a, b));
            let c = step.alloc_zeroed::<u8>(5)?;
            step.tag("");
            step.alloc_zeroed::<u8>(6)?;
            c.view().to_vec().map(drop)
        })
    };
    step(&mut arena).unwrap(); // Not recorded: tags do nothing.
    arena.record(None);
    let mut events = EventWriter::create(&path, &arena).unwrap();
    step(&mut arena).unwrap();
    events.step(&arena, key);
    assert_eq!(events.finish().unwrap(), Lost::default());
    let read = arena_report::read(&path).unwrap();
    let tags: Vec<_> = read.steps[0]
        .buffers
        .iter()
        .map(|buffer| (buffer.bytes(), buffer.tag().map(|tag| read.names.get(tag))))
        .collect();
    let (forward, attention) = (Some("forward"), Some("attention"));
    assert_eq!(
        tags,
        [(1, None), (2, forward), (3, forward), (4, attention), (5, forward), (6, None)]
    );
    // Tags are lines of the step: uses are counted in lines. The fifth buffer was read at the end.
    let fifth = read.steps[0].buffers[4];
    assert!(
        fifth.last_use().is_some_and(|use_| use_ > read.steps[0].buffers[5].birth()),
        "{fifth:?}"
    );
    assert_eq!(fifth.dropped(), Some(read.steps[0].moments - 2));
}

//! The file of events: what is in it, what is left out, and how it ends.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use arena_plan::{EventWriter, Lost};
use arena_scope::device::Deferred;
use arena_scope::{Arena, ByteSize, Device, Host, StepKey};
use serde_json::Value;

const TRAIN: StepKey = StepKey::named("train");

fn recorded<D: Device>(device: D) -> Arena<D> {
    let mut arena = Arena::builder(device).capacity(ByteSize::kib(64)).build().unwrap();
    arena.mark().unwrap();
    arena.record(None);
    arena
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn lines_of(path: &Path) -> Vec<Value> {
    lines(&fs::read_to_string(path).unwrap())
}

/// How many lines there are of this operation.
fn count(lines: &[Value], op: &str) -> u64 {
    lines.iter().filter(|line| line["op"] == op).count() as u64
}

/// What the lines `lost` add up to.
fn lost(lines: &[Value]) -> Lost {
    let sum = |field: &str| {
        let lost = lines.iter().filter(|line| line["op"] == "lost");
        lost.map(|line| line[field].as_u64().unwrap()).sum()
    };
    Lost { steps: sum("steps"), results: sum("results") }
}

#[test]
fn a_step_is_written_once_and_a_replay_which_has_no_record_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let mut arena = recorded(Deferred::new(1));
    let mut out = arena.persistent::<u8>(100).unwrap();
    let mut events = EventWriter::create(&path, &arena).unwrap();
    arena.scope_with(TRAIN, |step| step.alloc_zeroed::<u8>(100).map(drop)).unwrap();
    assert_eq!(events.step(&arena, TRAIN), 0);
    assert_eq!(events.step(&arena, TRAIN), 1, "no scope was opened since");
    let graph = arena
        .capture(TRAIN, |step| out.view_mut().copy_from(step.alloc_zeroed::<u8>(100)?.view()))
        .unwrap();
    assert_eq!(events.step(&arena, TRAIN), 2);
    graph.replay(&mut arena).unwrap();
    assert_eq!(events.step(&arena, TRAIN), 3);
    arena.scope_with(TRAIN, |step| step.alloc::<u8>(1 << 20).map(drop)).unwrap_err();
    assert_eq!((events.step(&arena, TRAIN), events.steps()), (4, 5));
    assert_eq!(events.finish().unwrap(), Lost { steps: 2, results: 0 });
    let lines = lines_of(&path);
    let numbers = lines.iter().filter(|line| line["op"] == "step").map(|line| &line["step"]);
    assert_eq!(numbers.collect::<Vec<_>>(), [0, 2, 4]);
    assert_eq!(lost(&lines), Lost { steps: 2, results: 0 });
}

#[test]
fn a_tag_is_of_the_requests_behind_it_until_the_end_of_its_scope() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let mut arena = recorded(Host::new());
    let mut events = EventWriter::create(&path, &arena).unwrap();
    arena
        .scope_with(TRAIN, |step| {
            step.tag("forward");
            step.scope(|inner| {
                inner.alloc::<u8>(1)?;
                inner.tag("attention");
                inner.alloc::<u8>(1).map(drop)
            })?;
            step.alloc::<u8>(1)?;
            step.tag("");
            step.alloc::<u8>(1).map(drop)
        })
        .unwrap();
    events.step(&arena, TRAIN);
    events.finish().unwrap();
    let lines = lines_of(&path);
    let of_requests = lines.iter().filter(|line| line["op"] == "alloc").map(|line| &line["tag"]);
    let [forward, attention] = ["forward", "attention"].map(Value::from);
    assert_eq!(of_requests.collect::<Vec<_>>(), [&forward, &attention, &forward, &Value::Null]);
}

#[test]
fn times_go_on_from_the_begin_of_the_file_through_scopes_to_the_result() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let mut arena = recorded(Host::new());
    let mut events = EventWriter::create(&path, &arena).unwrap();
    let pause = || thread::sleep(Duration::from_millis(2));
    for _ in 0..2 {
        pause();
        arena
            .scope_with(TRAIN, |step| {
                pause();
                step.scope(|inner| {
                    inner.alloc::<u8>(1)?;
                    pause();
                    inner.tag("later");
                    pause();
                    arena_scope::Ok(())
                })
            })
            .unwrap();
        let step = events.step(&arena, TRAIN);
        pause();
        events.result(step, 0.0, 1);
    }
    events.finish().unwrap();
    let lines = lines_of(&path);
    let timed = lines.iter().filter_map(|line| {
        let time = line["time_ns"].as_u64().or(line["elapsed_ns"].as_u64());
        Some((line["op"].as_str().unwrap(), time?))
    });
    let (ops, times): (Vec<_>, Vec<_>) = timed.unzip();
    assert_eq!(ops, ["step", "open", "tag", "close", "end", "result"].repeat(2));
    let mut before = 0;
    for (op, time) in ops.into_iter().zip(times) {
        // The inner scope is the last thing of the step.
        let least = if op == "end" { 0 } else { 2_000_000 };
        assert!(time >= before + least, "{op} at {time} after {before}");
        before = time;
    }
}

#[test]
fn an_arena_that_is_not_recorded_has_every_step_counted_as_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let mut arena = recorded(Host::new());
    arena.observe(None);
    let mut events = EventWriter::create(&path, &arena).unwrap();
    for _ in 0..3 {
        arena.scope_with(TRAIN, |step| step.alloc::<u8>(1).map(drop)).unwrap();
        events.step(&arena, TRAIN);
    }
    assert_eq!(events.finish().unwrap().steps, 3);
    assert_eq!(lost(&lines_of(&path)).steps, 3);
}

/// A writer that is held up by its reader, which begins to read only when the loop has ended.
#[test]
fn a_writer_that_is_behind_is_not_waited_for_and_what_is_left_out_is_counted() {
    const STEPS: u64 = 500;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let (begin, may_begin) = mpsc::channel();
    let reader = thread::spawn({
        let path = path.clone();
        move || {
            let mut text = String::new();
            let mut pipe = File::open(path).unwrap();
            may_begin.recv().unwrap();
            pipe.read_to_string(&mut text).unwrap();
            text
        }
    });
    let mut arena = recorded(Host::new());
    let mut events = EventWriter::create(&path, &arena).unwrap();
    let body = |step: &arena_scope::Scope<'_, '_, Host>| {
        (0..100).try_for_each(|_| step.alloc::<u8>(1).map(drop))
    };
    for _ in 0..STEPS {
        arena.scope_with(TRAIN, |step| body(step)).unwrap();
        let step = events.step(&arena, TRAIN);
        events.result(step, 0.5, 1);
    }
    // That the loop came here shows that it did not wait.
    begin.send(()).unwrap();
    let told = events.finish().unwrap();
    let lines = lines(&reader.join().unwrap());
    assert!(told.steps > 0 && told.results > 0, "{told:?}");
    assert_eq!(lost(&lines), told);
    assert_eq!(count(&lines, "step") + told.steps, STEPS);
    assert_eq!(count(&lines, "end") + told.steps, STEPS, "no step is half written");
    assert_eq!(count(&lines, "result") + told.results, STEPS);
}

#[test]
fn a_writer_that_is_dropped_has_written_everything_and_the_error_last() {
    const STEPS: u64 = 60;
    for _ in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let mut arena = recorded(Host::new());
        let mut events = EventWriter::create(&path, &arena).unwrap();
        for _ in 0..STEPS {
            arena.scope_with(TRAIN, |step| step.alloc::<u8>(1).map(drop)).unwrap();
            events.step(&arena, TRAIN);
        }
        events.failed("the loss is no number");
        drop(events);
        let lines = lines_of(&path);
        assert_eq!(count(&lines, "end") + lost(&lines).steps, STEPS);
        assert_eq!(count(&lines, "failed"), 1);
        assert!(lines.iter().any(|line| line["error"] == "the loss is no number"));
    }
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_of_the_end() {
    let mut arena = recorded(Host::new());
    let mut events = EventWriter::create(Path::new("/dev/full"), &arena).unwrap();
    arena.scope_with(TRAIN, |step| step.alloc::<u8>(1).map(drop)).unwrap();
    events.step(&arena, TRAIN);
    let told = events.finish().unwrap_err().to_string();
    assert!(told.contains("/dev/full") && told.contains("space"), "{told}");
}

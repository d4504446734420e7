//! The advice, beside a few independent lines of computation.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use arena_plan::Options;
use arena_report::{advise, parse, read};
use rstest::rstest;

use crate::common::{bytes, expected, recording};

fn trace(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/traces").join(format!("{name}.csv"))
}

/// Of a step of a trace: its allocations, their sum, and the most bytes of them that are live at once.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
struct Sums {
    buffers: usize,
    sum: u64,
    live: u64,
    peak: u64,
}

/// What each step of a trace adds up to, and what the steps before it have left.
fn sums(text: &str) -> Vec<(String, Sums, u64)> {
    let mut steps: Vec<(String, Sums, u64)> = Vec::new();
    let mut born: HashMap<&str, String> = HashMap::new();
    let mut left = 0;
    for line in text.lines().skip(1) {
        let [op, id, bytes, _, step] = line.split(',').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let bytes: u64 = bytes.parse().unwrap();
        if steps.last().is_none_or(|(name, ..)| name != step) {
            left += steps.last().map_or(0, |(_, sums, _)| sums.live);
            steps.push((step.to_owned(), Sums::default(), left));
        }
        let (_, now, _) = steps.last_mut().unwrap();
        match op {
            "alloc" => {
                born.insert(id, step.to_owned());
                now.buffers += 1;
                now.sum += bytes;
                now.live += bytes;
                now.peak = now.peak.max(now.live);
            }
            "free" => {
                assert_eq!(born[id], step, "these traces free in the same step");
                now.live -= bytes;
            }
            _ => {}
        }
    }
    steps
}

#[rstest]
#[case("mnist")]
#[case("mnistadam")]
#[case("resnet50")]
#[case("gpt2")]
#[case("gpt2flash")]
#[case("synth_mnist")]
#[case("synth_resnet50")]
#[case("synth_gpt2")]
fn the_advice_for_a_trace_is_what_its_lines_add_up_to(#[case] name: &str) {
    let sums = sums(&std::fs::read_to_string(trace(name)).unwrap());
    let recording = read(&trace(name)).unwrap();
    assert_eq!(recording.steps.len(), sums.len());
    let advice = advise(&recording, &Options::default()).unwrap();
    assert_eq!(advice.kinds.iter().map(|kind| kind.steps).sum::<usize>(), sums.len());
    for kind in &advice.kinds {
        let (step, sums, left) = &sums[kind.step];
        assert!(kind.name.starts_with(&format!("step {step}")), "{}", kind.name);
        assert_eq!(
            (kind.buffers, kind.sum_bytes, kind.bump_bytes),
            (sums.buffers, sums.sum, sums.sum)
        );
        assert_eq!((kind.live_peak_bytes, kind.through_bytes), (left + sums.peak, *left));
        assert!(kind.proved_bytes >= sums.peak && kind.plan_bytes >= kind.proved_bytes);
        // On these traces the planner reaches the bound, as `arena-plan`'s own tests hold.
        assert_eq!((kind.plan_bytes, kind.is_optimal()), (sums.peak, true), "{}", kind.name);
    }
    let whole = sums.iter().filter(|(step, ..)| step != "0");
    let needs = whole.clone().map(|(_, sums, _)| sums.peak).max().unwrap()
        + whole.map(|(_, _, left)| *left).max().unwrap();
    assert_eq!(advice.fits_bytes, needs);
    assert!(advice.line.contains(" in ") && advice.line.contains("bumped"), "{}", advice.line);
}

#[rstest]
#[case::training("training", "this step fits in 7.35 MiB; PyTorch held 10.00 MiB")]
#[case::old(
    "old_without_traces",
    "what is live takes 980.75 KiB; PyTorch held 4.00 MiB. The file has no history"
)]
fn the_advice_for_a_snapshot_is_one_line_to_act_on(#[case] shape: &str, #[case] line: &str) {
    let recording = recording(&bytes(&format!("{shape}.pickle"))).unwrap();
    let advice = advise(&recording, &Options::default()).unwrap();
    let expected = expected(shape);
    assert!(advice.line.starts_with(line), "{}", advice.line);
    assert_eq!(advice.held_bytes, Some(expected.reserved));
    let kind = advice.kinds.iter().find(|kind| kind.is_whole).unwrap();
    assert_eq!((kind.buffers, kind.sum_bytes), (expected.buffers, expected.sum));
    // Sizes are rounded up to 256 bytes.
    let rounded = expected.own_peak..=expected.own_peak + 256 * expected.buffers as u64;
    assert!(rounded.contains(&kind.plan_bytes), "{kind:?}");
    assert!(advice.text().ends_with(&format!("{}\n", advice.line)));
}

#[test]
fn what_pytorch_held_without_use_is_told_as_a_share() {
    let recording = recording(&bytes("training.pickle")).unwrap();
    let advice = advise(&recording, &Options::default()).unwrap();
    let kind = advice.kinds.iter().find(|kind| kind.is_whole).unwrap();
    let held = kind.held.unwrap();
    let expected = expected("training");
    let live = expected.own_peak + expected.through;
    assert_eq!((held.most_bytes, kind.live_peak_bytes), (expected.reserved, live));
    let share = (held.at_live_peak_bytes - live) as f64 / held.at_live_peak_bytes as f64;
    assert!((held.fragmentation - share).abs() < 1e-12 && share > 0.1, "{held:?}");
}

#[test]
fn steps_that_do_not_repeat_are_said_to_be_so() {
    let recording = recording(&bytes("changing.pickle")).unwrap();
    let text = advise(&recording, &Options::default()).unwrap().text();
    assert!(text.contains("the sizes do not repeat: taken as one step"), "{text}");
}

/// A buffer of one step that the next one frees is counted beside the plan, which cannot hold it.
#[test]
fn what_a_step_hands_on_is_counted_beside_the_plan() {
    let text = "op,id,size_bytes,stream,step\nalloc,p,1000,0,0\nmark,0,0,0,0\n\
                alloc,a,100,0,1\nalloc,b,30,0,1\nfree,a,100,0,1\n\
                free,b,30,0,2\nalloc,a,100,0,2\nfree,a,100,0,2\n";
    let recording = parse(Path::new("trace.csv"), text.as_bytes()).unwrap();
    let advice = advise(&recording, &Options::default()).unwrap();
    let kinds: Vec<_> = advice
        .kinds
        .iter()
        .map(|kind| (kind.plan_bytes, kind.through_bytes, kind.carried_bytes, kind.live_peak_bytes))
        .collect();
    assert_eq!(kinds, [(1000, 0, 0, 1000), (130, 1000, 0, 1130), (100, 1000, 30, 1100 + 30 - 30)]);
    assert_eq!(advice.fits_bytes, 130 + 1030);
}

#[rstest]
#[case::there_is_room(4096, "these steps fit in 1.23 KiB; the arena has 4.00 KiB")]
#[case::one_byte_is_missing(1255, "these steps fit in 1256 bytes; the arena has 1255 bytes")]
fn alike_steps_are_one_kind_and_a_region_is_compared_with(
    #[case] capacity_bytes: u64,
    #[case] line: &str,
) {
    let begin =
        r#"{"op":"begin","format":"watermark-arena events 1","device":"host","mark_bytes":1000"#;
    let mut text = format!(r#"{begin},"capacity_bytes":{capacity_bytes}}}"#);
    for step in 0..3 {
        for (place, line) in [
            r#""op":"step","step":S,"key":"train","mode":"bump","start_bytes":1000,"kept_floor_bytes":4096"#,
            r#""op":"alloc","step":S,"id":0,"offset_bytes":1024,"bytes":100,"alignment_bytes":64"#,
            r#""op":"drop","step":S,"id":0"#,
            r#""op":"alloc","step":S,"id":1,"offset_bytes":1152,"bytes":100,"alignment_bytes":64"#,
            r#""op":"end","step":S"#,
        ]
        .iter()
        .enumerate()
        {
            // The last step drops nothing.
            if step < 2 || place != 2 {
                text += &format!("\n{{{}}}", line.replace('S', &step.to_string()));
            }
        }
    }
    let recording = parse(Path::new("events"), text.as_bytes()).unwrap();
    let advice = advise(&recording, &Options::default()).unwrap();
    let kinds: Vec<_> =
        advice.kinds.iter().map(|kind| (kind.steps, kind.plan_bytes, kind.bump_bytes)).collect();
    assert_eq!(kinds, [(2, 128, 228), (1, 256, 228)]);
    assert_eq!(advice.line, line);
}

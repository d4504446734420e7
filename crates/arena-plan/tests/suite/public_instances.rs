//! Public hard instances, which are not part of this repository: skipped, with a line, when absent.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use arena_plan::formats::{self, Labelled};
use arena_plan::{Options, solve};

fn shared(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(folder)
}

/// The instances that are there; prints how many are not.
fn present(folder: &str, names: &[&str]) -> Vec<(String, Labelled)> {
    let mut found = Vec::new();
    for name in names {
        if let Ok(text) = fs::read_to_string(shared(folder).join(name)) {
            found.push(((*name).to_owned(), formats::read(&text, None).unwrap()));
        }
    }
    println!("{folder}: skipped {} of {} instances", names.len() - found.len(), names.len());
    found
}

#[test]
fn the_minimalloc_instances_fit_into_their_capacity() {
    let names: Vec<String> = ('A'..='K').map(|letter| format!("{letter}.1048576.csv")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for (name, labelled) in present("plan/challenging", &names) {
        let options = Options {
            capacity_bytes: Some(1 << 20),
            node_budget: 20_000_000,
            ..Options::default()
        };
        let solution = solve(&labelled.instance, &options);
        assert!(solution.plan.peak_bytes() <= 1 << 20, "{name}: {}", solution.plan.peak_bytes());
    }
}

#[test]
fn the_idealloc_instances_are_planned_at_or_near_their_bound() {
    let names = ["G_1.csv", "resnet50.csv", "pangu_2.6B.csv", "Y_1.csv", "S_1.csv"];
    for (name, labelled) in present("plan/idealloc", &names) {
        let allowed = if name == "S_1.csv" { 1.0015 } else { 1.0 };
        let options = Options {
            restart_budget: 6_000_000,
            time_limit: Some(Duration::from_secs(60)),
            ..Options::default()
        };
        let solution = solve(&labelled.instance, &options);
        let bound = solution.plan.bound().rounded_bytes as f64;
        let ratio = solution.plan.peak_bytes() as f64 / bound;
        assert!(ratio <= allowed, "{name}: {ratio}");
    }
}

#[test]
fn a_step_of_a_trace_is_the_step_that_was_cut_from_it() {
    // `peer_*` are last steps of traces, with sizes rounded up to 512 bytes.
    let mut skipped = 0;
    for name in ["mnist", "mnistadam", "resnet50", "gpt2", "gpt2flash"] {
        let Ok(trace) = fs::read_to_string(shared("traces").join(format!("{name}.csv"))) else {
            skipped += 1;
            continue;
        };
        let last = trace.lines().last().unwrap().rsplit(',').next().unwrap().parse().unwrap();
        let from_trace = formats::read(&trace, Some(last)).unwrap().instance;
        let cut = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("data/steps/peer_{name}.csv"));
        let cut = formats::read(&fs::read_to_string(cut).unwrap(), None).unwrap().instance;
        let sizes = |instance: &arena_plan::Instance| -> Vec<u64> {
            instance.buffers().iter().map(|b| b.size_bytes.next_multiple_of(512)).collect()
        };
        assert_eq!(sizes(&from_trace), sizes(&cut), "{name}");
    }
    println!("traces: skipped {skipped} of 5");
}

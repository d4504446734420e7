//! Public hard instances, which are not part of this repository, and steps cut from traces, which are.

use std::env;
use std::fs;
use std::path::Path;
use std::time::Duration;

use arena_plan::formats::{self, Labelled};
use arena_plan::{Options, solve};
use arena_testing::skip;

/// Names the folder of the public instances; in it are folders named after where they come from.
const FOLDER: &str = "ARENA_PUBLIC_INSTANCES";

/// The instances of one of the folders; `None` when nobody says where they are.
fn instances(folder: &str, names: &[&str]) -> Option<Vec<(String, Labelled)>> {
    let Some(all) = env::var_os(FOLDER) else {
        skip(&format!("{FOLDER} names no folder"));
        return None;
    };
    let read = |name: &str| {
        let path = Path::new(&all).join(folder).join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        (name.to_owned(), formats::read(&text, None).unwrap())
    };
    Some(names.iter().map(|name| read(name)).collect())
}

#[test]
#[ignore = "needs public instances; just instances FOLDER"]
fn the_minimalloc_instances_fit_into_their_capacity() {
    let names: Vec<String> = ('A'..='K').map(|letter| format!("{letter}.1048576.csv")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for (name, labelled) in instances("challenging", &names).unwrap_or_default() {
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
#[ignore = "needs public instances; just instances FOLDER"]
fn the_idealloc_instances_are_planned_at_or_near_their_bound() {
    let names = ["G_1.csv", "resnet50.csv", "pangu_2.6B.csv", "Y_1.csv", "S_1.csv"];
    for (name, labelled) in instances("idealloc", &names).unwrap_or_default() {
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["mnist", "mnistadam", "resnet50", "gpt2", "gpt2flash"] {
        let trace = root.join(format!("../../benches/traces/{name}.csv"));
        let trace = fs::read_to_string(trace).unwrap();
        let last = trace.lines().last().unwrap().rsplit(',').next().unwrap().parse().unwrap();
        let from_trace = formats::read(&trace, Some(last)).unwrap().instance;
        let cut = root.join(format!("data/steps/peer_{name}.csv"));
        let cut = formats::read(&fs::read_to_string(cut).unwrap(), None).unwrap().instance;
        let sizes = |instance: &arena_plan::Instance| -> Vec<u64> {
            instance.buffers().iter().map(|b| b.size_bytes.next_multiple_of(512)).collect()
        };
        assert_eq!(sizes(&from_trace), sizes(&cut), "{name}");
    }
}

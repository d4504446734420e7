//! The page: what it holds is what the recording says.

use std::path::Path;

use arena_plan::Options;
use arena_report::{Buffer, Recording, Source, Step, advise, live_peak, page, parse, sites};
use rstest::rstest;
use serde_json::Value;

use crate::common::{bytes, recording};

/// The JSON in a page.
fn data(page: &str) -> Value {
    let begin = "<script type=\"application/json\" id=\"data\">";
    let from = page.find(begin).unwrap() + begin.len();
    let json = &page[from..];
    serde_json::from_str(&json[..json.find("</script>").unwrap()]).unwrap()
}

fn page_of(recording: &Recording, name: &str) -> String {
    page(recording, Path::new(name), &Options::default()).unwrap()
}

/// A column as it is unpacked: one value stands for all.
fn column(values: &Value, count: usize) -> Vec<u64> {
    match values {
        Value::Array(values) => values.iter().map(|value| value.as_u64().unwrap()).collect(),
        one => vec![one.as_u64().unwrap(); count],
    }
}

fn check_map(kind: &Value, recording: &Recording, step: &Step) {
    let columns = &kind["buffers"];
    let count = columns["count"].as_u64().unwrap() as usize;
    assert_eq!(count, step.buffers.len());
    let of = |name: &str| column(&columns[name], count);
    let (mut birth, [life, used, bytes, alignment]) =
        (of("birth"), ["life", "used", "bytes", "alignment_log2"].map(of));
    for place in 1..count {
        birth[place] += birth[place - 1];
    }
    let (who, scope, tag) = (of("who"), of("scope"), of("tag"));
    let label =
        |number: u64| (number > 0).then(|| kind["labels"][number as usize - 1].as_str().unwrap());
    for (place, buffer) in step.buffers.iter().enumerate() {
        assert_eq!(birth[place], u64::from(buffer.birth()));
        assert_eq!(birth[place] + life[place], u64::from(buffer.death(step.moments)));
        assert_eq!(
            (bytes[place], 1 << alignment[place]),
            (buffer.bytes(), buffer.alignment_bytes())
        );
        let last_use = buffer.last_use().map(|moment| {
            u64::from((moment + 1).max(buffer.birth() + 1).min(buffer.death(step.moments)))
        });
        assert_eq!((used[place] > 0).then(|| birth[place] + used[place]), last_use);
        assert_eq!(label(scope[place]), buffer.scope().map(|name| recording.names.get(name)));
        assert_eq!(label(tag[place]), buffer.tag().map(|name| recording.names.get(name)));
        if let Some(site) = buffer.site() {
            assert_eq!(label(who[place]).unwrap(), recording.names.site(site));
        }
    }
    if recording.source == Source::Snapshot {
        // Addresses that the step never uses are left out.
        let recorded = of("recorded");
        let top = recorded.iter().zip(&bytes).map(|(offset, bytes)| offset + bytes).max();
        assert!(top.unwrap() <= bytes.iter().sum(), "{top:?}");
    }
    // The plan that is drawn has the peak that is stated, and keeps apart what is live together.
    let planned = of("planned");
    let mut own: Vec<(u64, u64, u64, u64)> = Vec::new();
    for (place, buffer) in step.buffers.iter().enumerate() {
        if buffer.origin() == arena_report::Origin::Step {
            own.push((birth[place], birth[place] + life[place], planned[place], bytes[place]));
        }
    }
    let top = own.iter().map(|(.., offset, bytes)| offset + bytes).max().unwrap_or(0);
    let stated = kind["plan_bytes"].as_u64().unwrap();
    assert!(top <= stated && stated < top + 512, "{top} {stated}");
    for (place, a) in own.iter().enumerate() {
        for b in &own[..place] {
            let together = a.0 < b.1 && b.0 < a.1 && a.3 > 0 && b.3 > 0;
            assert!(!together || a.2 + a.3 <= b.2 || b.2 + b.3 <= a.2, "{a:?} {b:?}");
        }
    }
}

#[rstest]
#[case::training("training.pickle")]
#[case::from_the_middle("from_the_middle.pickle")]
#[case::changing("changing.pickle")]
#[case::without_history("old_without_traces.pickle")]
#[case::events("events.jsonl")]
fn every_number_of_the_page_is_the_recording_s(#[case] name: &str) {
    let recording = recording(&bytes(name)).unwrap();
    let data = data(&page_of(&recording, name));
    let advice = advise(&recording, &Options::default()).unwrap();
    assert_eq!(data["line"], advice.line.as_str());
    assert_eq!(data["fits_bytes"], advice.fits_bytes);
    assert_eq!(data["held_bytes"].as_u64(), advice.held_bytes);
    assert_eq!(data["lost_steps"], recording.lost_steps);
    let region =
        data["region"].as_object().map(|region| region["capacity_bytes"].as_u64().unwrap());
    assert_eq!(region, recording.region.as_ref().map(|region| region.capacity_bytes));

    let steps = &data["steps"];
    assert_eq!(steps["name"].as_array().unwrap().len(), recording.steps.len());
    let mut result_before = None;
    for (place, step) in recording.steps.iter().enumerate() {
        let of = |column: &str| steps[column][place].clone();
        let figures = &step.figures;
        assert_eq!((of("name"), of("is_whole")), (step.name.as_str().into(), step.is_whole.into()));
        assert_eq!(of("live_peak_bytes"), live_peak(step).bytes);
        assert_eq!(of("sum_bytes"), step.own().map(Buffer::bytes).sum::<u64>());
        assert_eq!(of("through_bytes"), step.through_bytes);
        assert_eq!(of("used_bytes").as_u64(), figures.used_bytes);
        assert_eq!(of("high_water_bytes").as_u64(), figures.high_water_bytes);
        assert_eq!(of("committed_bytes").as_u64(), figures.committed_bytes);
        assert_eq!(of("kept_bytes").as_u64(), figures.kept_bytes);
        assert_eq!(of("held_bytes").as_u64(), step.held.map(|held| held.most_bytes));
        assert_eq!(of("mode").as_str(), figures.mode.as_deref());
        assert_eq!(of("deviations").as_u64(), figures.deviations);
        assert_eq!(of("failed").as_str(), figures.failed.as_deref());
        assert_eq!(of("loss").as_f64(), figures.loss);
        // The times are since the begin of the file.
        let rate = figures.predictions.zip(figures.elapsed_ns).zip(result_before);
        let rate = rate.map(|((predictions, now), before): (_, u64)| {
            assert!(now > before, "the file's results have their order");
            predictions as f64 * 1e9 / (now - before) as f64
        });
        assert_eq!(of("throughput").as_f64().map(f64::round), rate.map(f64::round));
        result_before = figures.elapsed_ns.or(result_before);
    }

    let kinds = data["kinds"].as_array().unwrap();
    assert_eq!(kinds.len(), advice.kinds.len());
    for kind in kinds {
        let advised = advice.kinds.iter().find(|advised| kind["step"] == advised.step).unwrap();
        let stated = serde_json::to_value(advised).unwrap();
        for (field, value) in stated.as_object().unwrap() {
            // The columns take the place of their number.
            if field != "buffers" {
                assert_eq!(&kind[field], value, "{field}");
            }
        }
        let step = &recording.steps[advised.step];
        assert_eq!(kind["moments"], step.moments);
        assert_eq!(kind["peak_moment"], live_peak(step).moment);
        assert_eq!(kind["sites"], serde_json::to_value(sites(&recording, advised.step)).unwrap());
        check_map(kind, &recording, step);
    }
}

#[test]
fn sites_at_the_peak_add_up_to_what_is_live() {
    for name in ["training.pickle", "changing.pickle", "events.jsonl"] {
        let recording = recording(&bytes(name)).unwrap();
        for (place, step) in recording.steps.iter().enumerate() {
            let held: u64 = sites(&recording, place).iter().map(|site| site.at_peak_bytes).sum();
            assert_eq!(held + step.through_bytes, live_peak(step).bytes, "{name}, {}", step.name);
        }
    }
}

/// Names of a file end neither the script nor its data, and nothing is loaded.
#[test]
fn a_name_in_a_file_cannot_become_markup() {
    let evil = "</script><script>alert(1)</script>";
    let table = format!("id,lower,upper,size\n{evil},0,2,100\n");
    let recording = parse(Path::new("file"), table.as_bytes()).unwrap();
    let page = page_of(&recording, "<b>&$DATA.csv");
    assert_eq!(page.matches("</script>").count(), 2);
    assert!(page.contains("<title>&lt;b>&amp;&#36;DATA.csv</title>"));
    assert!(!page.contains("alert(1)</script"));
    assert_eq!(data(&page)["kinds"][0]["labels"][0], evil);
    for outside in ["http:", "https:", "src=", "url(", "@import", "fetch(", "XMLHttpRequest"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn the_page_of_99_160_buffers_is_below_15_megabytes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../arena-plan/data/steps/gpt2xl_b2_ckpt_amp_accum16.csv");
    let recording = arena_report::read(&path).unwrap();
    // How good the plan is makes no difference to the size.
    let options = Options { restart_budget: 0, node_budget: 0, ..Options::default() };
    let page = page(&recording, &path, &options).unwrap();
    assert_eq!(data(&page)["kinds"][0]["buffers"]["count"], 99_160);
    assert!(page.len() < 15 << 20, "{}", page.len());
}

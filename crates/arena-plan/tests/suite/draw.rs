//! The picture of a step.

use arena_plan::{Buffer, Instance, Plan, draw};

/// Three buffers of 1, 2 and 1 MiB, of which the last takes the place of the first.
fn plan() -> Plan {
    const MIB: u64 = 1 << 20;
    let step = vec![
        Buffer::new(0, 2, MIB).aligned(256),
        Buffer::new(1, 4, 2 * MIB).aligned(256),
        Buffer::new(3, 5, MIB).aligned(256),
    ];
    Plan::new(Instance::new(step).unwrap(), vec![0, MIB, 0]).unwrap()
}

/// The value of an attribute of an element, as a number.
fn attribute(element: &str, name: &str) -> f64 {
    let begin = element.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
    element[begin..].split('"').next().unwrap().parse().unwrap()
}

#[test]
fn each_buffer_is_one_rectangle_in_each_panel_as_wide_as_its_life_and_as_high_as_its_bytes() {
    let svg = draw(&plan(), "a step");
    let buffers: Vec<&str> = svg.lines().filter(|line| line.contains("class=\"b\"")).collect();
    assert_eq!(buffers.len(), 6);
    // Both panels are 4 MiB high, the sum of the step: 90 pixels each, and 80 pixels an event.
    let shape = |element: &str| (attribute(element, "width"), attribute(element, "height"));
    assert_eq!(
        buffers.iter().map(|buffer| shape(buffer)).collect::<Vec<_>>(),
        [(160.0, 90.0), (240.0, 180.0), (160.0, 90.0)].repeat(2)
    );
    let y: Vec<f64> = buffers.iter().map(|buffer| attribute(buffer, "y")).collect();
    let floor = y[0] + 90.0;
    assert_eq!(y[..3], [floor - 90.0, floor - 270.0, floor - 360.0], "bumped");
    assert_eq!(y[3..], [floor - 90.0, floor - 270.0, floor - 90.0], "planned");
}

#[test]
fn peaks_and_axes_are_labelled() {
    let svg = draw(&plan(), "a step");
    for label in ["peak 4.00 MiB", "peak 3.00 MiB", ">a step<", ">bytes<", "time: events"] {
        assert!(svg.contains(label), "{label}");
    }
}

#[test]
fn the_legend_names_the_sizes_that_there_are_and_no_others() {
    let svg = draw(&plan(), "a step");
    for label in ["by its size", ">to 16 MiB<", ">the memory that the step takes<"] {
        assert!(svg.contains(label), "{label}");
    }
    assert!(!svg.contains("KiB<") && !svg.contains(">more<"), "{svg}");
}

#[test]
fn the_picture_is_well_formed_whatever_the_title() {
    let svg = draw(&plan(), "a < b & \"c\" > d");
    let mut open = Vec::new();
    let mut rest = svg.as_str();
    while let Some(begin) = rest.find('<') {
        assert!(!rest[..begin].contains('>'), "a stray bracket before {}", &rest[begin..]);
        let end = begin + rest[begin..].find('>').unwrap();
        let tag = &rest[begin + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        assert!(!tag.contains('<'), "{tag}");
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed));
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().unwrap());
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty() && rest.trim().is_empty());
    assert!(svg.contains("a &lt; b &amp; \"c\" &gt; d"));
}

#[test]
fn an_empty_step_is_an_empty_picture() {
    let empty = Plan::new(Instance::new(vec![]).unwrap(), vec![]).unwrap();
    let svg = draw(&empty, "nothing");
    assert!(!svg.contains("class=\"b\"") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

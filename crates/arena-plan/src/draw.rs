//! A picture of a step: the same buffers, first bumped and then planned, at the same scale.
//!
//! Time runs to the right, in events of the step; bytes go up. Each buffer is a rectangle: its width is its
//! lifetime, and its height is the bytes that it occupies.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use crate::plan::Plan;

/// Width and height of a panel, and what is left around it, in pixels.
const PANEL: (f64, f64) = (400.0, 360.0);
const LEFT: f64 = 96.0;
const BETWEEN: f64 = 44.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 84.0;
const WIDTH: f64 = LEFT + 2.0 * PANEL.0 + BETWEEN + 28.0;
const HEIGHT: f64 = TOP + PANEL.1 + BOTTOM;

/// From the smallest buffers to the largest, in steps of a factor of 16, darker from one to the next, so that they
/// differ in greyscale as well (the colour map viridis).
const COLOURS: [(&str, &str); 6] = [
    ("#fde725", "below 256 bytes"),
    ("#7ad151", "to 4 KiB"),
    ("#22a884", "to 64 KiB"),
    ("#2a788e", "to 1 MiB"),
    ("#414487", "to 16 MiB"),
    ("#440154", "more"),
];

const PEAK: &str = "stroke=\"#c1121f\" stroke-dasharray=\"5 3\"";

/// An SVG of a plan beside the bump of the same step, where each buffer lies above the one before and no byte is
/// reused. The title is plain text, not markup.
///
/// ```
/// # use arena_plan::{Buffer, Instance, Options, draw, solve};
/// let instance = Instance::new(vec![Buffer::new(0, 2, 512), Buffer::new(1, 3, 256)])?;
/// let svg = draw(&solve(&instance, &Options::default()).plan, "two buffers");
/// assert!(svg.starts_with("<svg") && svg.contains("two buffers"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn draw(plan: &Plan, title: &str) -> String {
    let mut svg = String::new();
    // Writing to a string does not fail.
    let _ = picture(&mut svg, plan, title);
    svg
}

/// Where a bump puts each buffer, in bytes from the step's start, and how high that reaches.
fn bumped(plan: &Plan) -> (Vec<u64>, u64) {
    let mut cursor = 0_u64;
    let place = |(index, buffer): (usize, &crate::instance::Buffer)| {
        let offset = cursor.next_multiple_of(buffer.alignment_bytes);
        cursor = offset + plan.instance().occupied_bytes(index);
        offset
    };
    let offsets = plan.instance().buffers().iter().enumerate().map(place).collect();
    (offsets, cursor)
}

fn picture(svg: &mut String, plan: &Plan, title: &str) -> fmt::Result {
    let (bump_offsets, bump_peak) = bumped(plan);
    let buffers = plan.instance().buffers();
    let from = buffers.iter().map(|buffer| buffer.birth).min().unwrap_or(0);
    let to = buffers.iter().map(|buffer| buffer.death).max().unwrap_or(1);
    let top = u64::max(bump_peak, plan.peak_bytes()).max(1);
    let scale = Scale { from, x: PANEL.0 / length(to - from), y: PANEL.1 / length(top) };

    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">"
    )?;
    writeln!(svg, "<style>.b{{stroke:#fff;stroke-width:.4}}</style>")?;
    let title = escaped(title);
    writeln!(svg, "<title>{title}</title>")?;
    // Its own background: readable on a light and on a dark page.
    writeln!(svg, "<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#fff\"/>")?;
    text(svg, (WIDTH / 2.0, 28.0), "middle", "font-size=\"16\" font-weight=\"bold\"", &title)?;
    let label = format!("translate(20 {}) rotate(-90)", TOP + PANEL.1 / 2.0);
    writeln!(svg, "<text transform=\"{label}\" text-anchor=\"middle\">bytes</text>")?;

    let count = buffers.len();
    let bump = Panel {
        left: LEFT,
        name: format!("bump: {count} buffers, each above the one before"),
        offsets: &bump_offsets,
        peak: bump_peak,
    };
    let planned = Panel {
        left: LEFT + PANEL.0 + BETWEEN,
        name: "planned: bytes are reused after a drop".to_owned(),
        offsets: plan.offsets_bytes(),
        peak: plan.peak_bytes(),
    };
    for panel in [bump, planned] {
        panel.draw(svg, plan, &scale, top)?;
    }
    legend(svg, plan)?;
    writeln!(svg, "</svg>")
}

/// From events and bytes to pixels.
struct Scale {
    from: u64,
    x: f64,
    y: f64,
}

struct Panel<'a> {
    left: f64,
    name: String,
    offsets: &'a [u64],
    peak: u64,
}

impl Panel<'_> {
    fn draw(&self, svg: &mut String, plan: &Plan, scale: &Scale, top: u64) -> fmt::Result {
        let (left, right, floor) = (self.left, self.left + PANEL.0, TOP + PANEL.1);
        text(svg, (left + PANEL.0 / 2.0, TOP - 28.0), "middle", "", &self.name)?;
        for quarter in 0..=4_u32 {
            let share = f64::from(quarter) / 4.0;
            let y = floor - PANEL.1 * share;
            line(svg, (left, y), (right, y), "stroke=\"#ddd\"")?;
            if self.left == LEFT {
                let bytes = format!("{:.2} MiB", mib(top) * share);
                text(svg, (left - 6.0, y + 4.0), "end", "font-size=\"10\"", &bytes)?;
            }
        }
        for (index, buffer) in plan.instance().buffers().iter().enumerate() {
            let bytes = plan.instance().occupied_bytes(index);
            let (height, offset) = (length(bytes) * scale.y, length(self.offsets[index]) * scale.y);
            writeln!(
                svg,
                "<rect class=\"b\" x=\"{:.2}\" y=\"{:.3}\" width=\"{:.2}\" height=\"{height:.3}\" fill=\"{}\"/>",
                left + length(buffer.birth - scale.from) * scale.x,
                floor - offset - height,
                length(buffer.death - buffer.birth) * scale.x,
                COLOURS[class(bytes)].0,
            )?;
        }
        line(svg, (left, TOP), (left, floor), "stroke=\"#222\"")?;
        line(svg, (left, floor), (right, floor), "stroke=\"#222\"")?;
        let y = floor - length(self.peak) * scale.y;
        line(svg, (left, y), (right, y), PEAK)?;
        let peak = format!("peak {:.2} MiB", mib(self.peak));
        text(svg, (left + 6.0, y - 5.0), "start", "fill=\"#c1121f\" font-weight=\"bold\"", &peak)?;
        text(svg, (left + PANEL.0 / 2.0, floor + 28.0), "middle", "", "time: events of the step")
    }
}

/// What the colours of this plan's buffers stand for, and the dashed line.
fn legend(svg: &mut String, plan: &Plan) -> fmt::Result {
    let y = HEIGHT - 22.0;
    let mut x = LEFT;
    let classes: BTreeSet<usize> = (0..plan.instance().len())
        .map(|index| class(plan.instance().occupied_bytes(index)))
        .collect();
    text(svg, (x, y), "start", "", "a buffer, by its size:")?;
    x += 134.0;
    for (colour, label) in classes.into_iter().map(|class| COLOURS[class]) {
        writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>",
            y - 10.0
        )?;
        text(svg, (x + 17.0, y), "start", "", label)?;
        x += if label.len() > 9 { 116.0 } else { 84.0 };
    }
    line(svg, (x, y - 4.0), (x + 24.0, y - 4.0), PEAK)?;
    text(svg, (x + 30.0, y), "start", "", "the memory that the step takes")
}

/// The colour of a buffer with this many bytes: its place in `COLOURS`.
fn class(bytes: u64) -> usize {
    let class = bytes.max(1).ilog2().saturating_sub(4) / 4;
    usize::min(class as usize, COLOURS.len() - 1)
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), style: &str) -> fmt::Result {
    let ((x1, y1), (x2, y2)) = (from, to);
    writeln!(svg, "<line x1=\"{x1}\" y1=\"{y1:.3}\" x2=\"{x2}\" y2=\"{y2:.3}\" {style}/>")
}

fn text(svg: &mut String, at: (f64, f64), anchor: &str, style: &str, text: &str) -> fmt::Result {
    let (x, y) = at;
    writeln!(svg, "<text x=\"{x}\" y=\"{y:.3}\" text-anchor=\"{anchor}\" {style}>{text}</text>")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn mib(bytes: u64) -> f64 {
    length(bytes) / f64::from(1 << 20)
}

#[expect(clippy::cast_precision_loss, reason = "a pixel is coarser than 52 bits")]
fn length(value: u64) -> f64 {
    value as f64
}

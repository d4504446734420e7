//! Progress while training: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use arena_plan::files::tell;
use arena_scope::ByteSize;
use indicatif::{ProgressBar, ProgressStyle};

use crate::training::StepReport;

/// Shows steps on standard error.
#[derive(Debug)]
pub struct Progress {
    /// `None` where standard error is no terminal.
    bar: Option<ProgressBar>,
    /// What a step predicts, in the plural.
    predictions: &'static str,
    drawn: Duration,
}

/// How often the bar's message is made anew: it costs a few allocations and a write.
const REDRAW: Duration = Duration::from_millis(100);

/// Steps between two plain lines.
const LINE_STEPS: u64 = 100;

impl Progress {
    /// Nothing shown yet. `predictions` is what a step predicts, in the plural.
    #[must_use]
    pub fn new(predictions: &'static str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
            let bar = ProgressBar::no_length();
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { bar, predictions, drawn: Duration::ZERO }
    }

    /// Shows a step.
    pub fn step(&mut self, report: &StepReport) {
        let last = report.step == report.steps_in_all;
        match &self.bar {
            Some(bar) if last || report.elapsed >= self.drawn + REDRAW => {
                self.drawn = report.elapsed;
                bar.set_length(report.steps_in_all);
                bar.set_position(report.step);
                bar.set_message(message(report, self.predictions));
            }
            Some(_) => {}
            None if last || report.step.is_multiple_of(LINE_STEPS) => {
                let (step, all) = (report.step, report.steps_in_all);
                tell(format_args!("step {step}/{all}  {}", message(report, self.predictions)));
            }
            None => {}
        }
    }

    /// Takes the bar away, so that a summary can follow.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish();
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 images")]
fn message(report: &StepReport, predictions: &str) -> String {
    let rate = report.predictions as f64 / report.elapsed.as_secs_f64().max(1e-9);
    let (used, peak) = (report.stats.used_bytes, report.stats.peak_bytes);
    let size = ByteSize::bytes_exact;
    let (epoch, loss) = (report.epoch, report.loss);
    let (used, peak) = (size(used), size(peak));
    format!("epoch {epoch}  {rate:.0} {predictions}/s  loss {loss:.4}  used {used}  peak {peak}")
}

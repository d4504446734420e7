//! `arena-plan`: solves, checks and bounds steps from files.

use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use arena_plan::files::{Access, FileError};
use arena_plan::formats::{self, InputError, Labelled, minimalloc};
use arena_plan::{Options, Plan, draw, files, lower_bound, saved_plans, solve, validate};
use clap::{Args, Parser, Subcommand};

/// Plan the offsets of a step's buffers.
///
/// Reads minimalloc CSV and traces of allocations (op,id,size_bytes,stream,step) from a regular file, or from the
/// standard input if FILE is -. The last line of the output is peak=N bound=N buffers=N seconds=S optimal=yes|no, in
/// bytes. Files are written whole or not at all. Exit status: 0 within the capacity, 1 not found, not valid or not
/// written, 2 bad input.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find offsets.
    Solve(Solve),
    /// Check a solution: a CSV with offsets, or a plan (.json).
    Check {
        /// The solution.
        file: PathBuf,
        /// The kind of step, NAME or NAME:VARIANT, if the file has the plans of a whole run.
        #[arg(long)]
        key: Option<String>,
        /// The capacity in bytes. Without it every peak is accepted.
        #[arg(long)]
        capacity: Option<u64>,
    },
    /// Print the most bytes that are live at once, a lower bound for every plan.
    Bound {
        /// The step.
        file: PathBuf,
        /// The step of a trace of allocations; without it the whole trace is one step.
        #[arg(long)]
        step: Option<u64>,
    },
    /// Draw a step as SVG, bumped and planned.
    Draw {
        /// A step, which is solved first, or a plan (.json).
        file: PathBuf,
        /// The kind of step, NAME or NAME:VARIANT, if the file has the plans of a whole run.
        #[arg(long)]
        key: Option<String>,
        /// The step of a trace of allocations; without it the whole trace is one step.
        #[arg(long)]
        step: Option<u64>,
        /// Write the picture to this file instead of the standard output.
        #[arg(long)]
        out: Option<PathBuf>,
    },
}

#[derive(Args)]
struct Solve {
    /// The step.
    file: PathBuf,
    /// Stop at a peak of at most this many bytes. Without it the solver aims at the lower bound and accepts every
    /// peak.
    #[arg(long)]
    capacity: Option<u64>,
    /// Stop solving after this many seconds instead of after a fixed amount of work. That is over in less than a
    /// second for most files, and in about 10 seconds of one core for the hardest, with some 10 microseconds for
    /// each buffer above 100,000. A million buffers need about a second at least.
    #[arg(long)]
    seconds: Option<f64>,
    /// Equal seeds give equal plans with one thread and no time limit.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads for the search.
    #[arg(long, default_value_t = NonZeroUsize::MIN)]
    threads: NonZeroUsize,
    /// The step of a trace of allocations; without it the whole trace is one step.
    #[arg(long)]
    step: Option<u64>,
    /// Write the result to this file: as a plan if the name ends in .json, otherwise as minimalloc CSV.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Solve(arguments) => solve_file(&arguments),
        Command::Check { file, key, capacity } => check_file(&file, key.as_deref(), capacity),
        Command::Bound { file, step } => bound_file(&file, step),
        Command::Draw { file, key, step, out } => {
            draw_file(&file, key.as_deref(), step, out.as_deref())
        }
    };
    let ended = done.and_then(|(text, code)| {
        files::print(&text)?;
        Ok(code)
    });
    ended.unwrap_or_else(|error| {
        let file = error.downcast_ref::<FileError>();
        if !file.is_some_and(FileError::is_closed_output) {
            files::tell(format_args!("arena-plan: {error:#}"));
        }
        let unwritten = file.is_some_and(|file| file.access == Access::Write);
        ExitCode::from(if unwritten { 1 } else { 2 })
    })
}

/// What a command prints, after it has written its files; and its exit status.
type Done = Result<(String, ExitCode)>;

fn solve_file(arguments: &Solve) -> Done {
    let labelled = read(&arguments.file, arguments.step)?;
    let mut options = Options::default();
    if let Some(seconds) = arguments.seconds {
        let limit = Duration::try_from_secs_f64(seconds).context("--seconds")?;
        options = Options::within(limit);
    }
    options.capacity_bytes = arguments.capacity;
    options.seed = arguments.seed;
    options.threads = arguments.threads;
    let solution = solve(&labelled.instance, &options);
    let plan = &solution.plan;
    if let Some(out) = &arguments.out {
        files::write(out, |to| {
            if is_plan(out) {
                Ok(plan.save(to)?)
            } else {
                minimalloc::write_solution(to, &labelled, plan.offsets_bytes())
            }
        })?;
    }
    let mut text = format!(
        "sum={} requested={} found by {:?}\n",
        plan.instance().sum_bytes(),
        plan.bound().requested_bytes,
        solution.stage
    );
    if solution.proved_bytes > plan.bound().rounded_bytes {
        text += &format!("proved: no plan is below {}\n", solution.proved_bytes);
    }
    text += &report(plan, solution.elapsed, solution.is_optimal());
    Ok((text, within(plan.peak_bytes(), arguments.capacity)))
}

fn check_file(path: &Path, key: Option<&str>, capacity: Option<u64>) -> Done {
    let begin = Instant::now();
    let bytes = files::read(path)?;
    let plan = if holds_plan(path, &bytes) {
        load(path, &bytes, key)?
    } else {
        let read = formats::text(&bytes).and_then(minimalloc::read_solution);
        let (labelled, offsets_bytes) = read.map_err(|error| located(path, &error))?;
        if let Err(violation) = validate(&labelled.instance, &offsets_bytes) {
            files::tell(format_args!("arena-plan: {}: {violation}", path.display()));
            return Ok((String::new(), ExitCode::from(1)));
        }
        Plan::new(labelled.instance, offsets_bytes)?
    };
    let optimal = plan.peak_bytes() == plan.bound().rounded_bytes;
    Ok((report(&plan, begin.elapsed(), optimal), within(plan.peak_bytes(), capacity)))
}

fn bound_file(path: &Path, step: Option<u64>) -> Done {
    let labelled = read(path, step)?;
    let begin = Instant::now();
    let bound = lower_bound(&labelled.instance);
    let text = format!(
        "bound={} requested={} sum={} buffers={} seconds={:.6}\n",
        bound.rounded_bytes,
        bound.requested_bytes,
        labelled.instance.sum_bytes(),
        labelled.instance.len(),
        begin.elapsed().as_secs_f64()
    );
    Ok((text, ExitCode::SUCCESS))
}

fn draw_file(path: &Path, key: Option<&str>, step: Option<u64>, out: Option<&Path>) -> Done {
    let bytes = files::read(path)?;
    let plan = if holds_plan(path, &bytes) {
        load(path, &bytes, key)?
    } else {
        solve(&parse(path, &bytes, step)?.instance, &Options::default()).plan
    };
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let picture = draw(&plan, &name);
    let Some(out) = out else { return Ok((picture, ExitCode::SUCCESS)) };
    files::write(out, |to| to.write_all(picture.as_bytes()))?;
    Ok((String::new(), ExitCode::SUCCESS))
}

/// The plan of a file, or of a kind of step in it.
fn load(path: &Path, bytes: &[u8], key: Option<&str>) -> Result<Plan> {
    let plans = saved_plans(bytes).with_context(|| path.display().to_string())?;
    let is_asked = |label: &str| {
        let name = label.rsplit_once(':').map(|(name, _)| name);
        key.is_none_or(|key| label.is_empty() || label == key || name == Some(key))
    };
    let found: Vec<_> = plans.iter().filter(|(label, _)| is_asked(label)).collect();
    if let [(_, plan)] = found[..] {
        return Ok(plan.clone());
    }
    let labels: Vec<_> = plans.iter().map(|(label, _)| label.as_str()).collect();
    Err(anyhow!("{}: name one of its plans with --key: {}", path.display(), labels.join(", ")))
}

fn read(path: &Path, step: Option<u64>) -> Result<Labelled> {
    parse(path, &files::read(path)?, step)
}

fn parse(path: &Path, bytes: &[u8], step: Option<u64>) -> Result<Labelled> {
    formats::text(bytes)
        .and_then(|text| formats::read(text, step))
        .map_err(|error| located(path, &error))
}

/// FILE:LINE:COLUMN, which editors and terminals turn into a link.
fn located(path: &Path, error: &InputError) -> anyhow::Error {
    let InputError { position, problem } = error;
    anyhow!("{}:{}:{}: {problem}", path.display(), position.line, position.column)
}

/// Whether an input is a plan. The standard input has no name, but no CSV begins with a brace.
fn holds_plan(path: &Path, bytes: &[u8]) -> bool {
    is_plan(path) || bytes.trim_ascii_start().starts_with(b"{")
}

fn is_plan(path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str) == Some("json")
}

fn report(plan: &Plan, elapsed: Duration, optimal: bool) -> String {
    format!(
        "peak={} bound={} buffers={} seconds={:.6} optimal={}\n",
        plan.peak_bytes(),
        plan.bound().rounded_bytes,
        plan.instance().len(),
        elapsed.as_secs_f64(),
        if optimal { "yes" } else { "no" }
    )
}

fn within(peak_bytes: u64, capacity: Option<u64>) -> ExitCode {
    let found = capacity.is_none_or(|capacity| peak_bytes <= capacity);
    ExitCode::from(u8::from(!found))
}

//! `arena-report`: who holds the memory of a training step, and whether it would fit.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use arena_plan::Options;
use arena_plan::files::{self, FileError};
use arena_report::{Recording, advise, live_peak, page, read, readable, snapshot_of};
use clap::{Args, Parser, Subcommand};

/// Show who holds the memory of a training step, and whether it would fit.
///
/// FILE has the events of an arena (JSON Lines), or is a memory snapshot of PyTorch (a pickle, of which nothing is
/// run), a trace of allocations (op,id,size_bytes,stream,step), a table of buffers (id,lower,upper,size), or a plan; - is
/// the standard input. Without --out and --pytorch its steps are listed. Files are written whole or not at all. Exit
/// status: 0, 1 if something failed, 2 for wrong arguments.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    show: Show,
}

#[derive(Subcommand)]
enum Command {
    /// Say what the steps of a file need: their sum, what is live at once, what a bump and a plan need.
    Advise {
        /// The file.
        file: PathBuf,
        /// Write the figures to this file, as JSON.
        #[arg(long)]
        json: Option<PathBuf>,
    },
}

#[derive(Args)]
struct Show {
    /// The file.
    #[arg(required = true)]
    file: Option<PathBuf>,
    /// Write a page (HTML) that shows the steps.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Write one step as a memory snapshot of PyTorch, for its viewer.
    #[arg(long, value_name = "OUT")]
    pytorch: Option<PathBuf>,
    /// The step, by its name or its number in the list; without it the one with the most live bytes.
    #[arg(long)]
    step: Option<String>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match (cli.command, cli.show.file.as_ref()) {
        (Some(Command::Advise { file, json }), _) => advise_file(&file, json.as_deref()),
        (None, Some(file)) => show_file(file, &cli.show),
        // Refused by the parser.
        (None, None) => Err(anyhow!("a file is missing")),
    };
    let ended = done.and_then(|text| Ok(files::print(&text)?));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let file = error.downcast_ref::<FileError>();
            if !file.is_some_and(FileError::is_closed_output) {
                files::tell(format_args!("arena-report: {error:#}"));
            }
            ExitCode::from(1)
        }
    }
}

fn advise_file(path: &Path, json: Option<&Path>) -> Result<String> {
    let recording = read(path)?;
    let advice =
        advise(&recording, &Options::default()).with_context(|| path.display().to_string())?;
    if let Some(json) = json {
        files::write(json, |to| {
            serde_json::to_writer_pretty(&mut *to, &advice)?;
            writeln!(to)
        })?;
    }
    Ok(advice.text())
}

fn show_file(path: &Path, show: &Show) -> Result<String> {
    let recording = read(path)?;
    let step =
        pick(&recording, show.step.as_deref()).with_context(|| path.display().to_string())?;
    if let Some(out) = &show.pytorch {
        let snapshot = snapshot_of(&recording, step);
        files::write(out, |to| to.write_all(&snapshot))?;
    }
    if let Some(out) = &show.out {
        let page = page(&recording, path, &Options::default())
            .with_context(|| path.display().to_string())?;
        files::write(out, |to| to.write_all(page.as_bytes()))?;
    }
    if show.pytorch.is_some() || show.out.is_some() {
        return Ok(String::new());
    }
    Ok(list(&recording))
}

/// The place of the step that is asked for, or of the whole one with the most live bytes.
fn pick(recording: &Recording, asked: Option<&str>) -> Result<usize> {
    let steps = &recording.steps;
    let found = match asked {
        Some(asked) => {
            let by_name = steps.iter().position(|step| step.name == asked);
            let by_number =
                || asked.parse::<usize>().ok()?.checked_sub(1).filter(|at| *at < steps.len());
            by_name.or_else(by_number)
        }
        None => (0..steps.len())
            .max_by_key(|&at| (steps[at].is_whole, live_peak(&steps[at]).bytes, usize::MAX - at)),
    };
    found.ok_or_else(|| anyhow!("it has no step {:?}, only {}", asked.unwrap_or(""), steps.len()))
}

fn list(recording: &Recording) -> String {
    let mut text = format!("{}\n", recording.source);
    for (number, step) in recording.steps.iter().enumerate() {
        let peak = readable(live_peak(step).bytes);
        text += &format!(
            "{:>5}  {}: {} buffers, at most {peak} live; {}\n",
            number + 1,
            step.name,
            step.own().count(),
            step.told
        );
    }
    text
}

//! The ranks of a run on the CUDA devices of this machine: a process for each, started and watched by this one.

use std::num::NonZeroU32;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use arena_collective::CollectiveError;
use arena_plan::files::tell;
use rustix::process::{Pid, Signal, kill_process};

use crate::launch::check_engine;
use crate::signals::StopSignal;

/// How often the processes are looked at.
const PAUSE: Duration = Duration::from_millis(10);
/// What they may take to end, beyond the time that they wait for each other.
const TO_END: Duration = Duration::from_secs(10);

/// Starts `ranks` processes of this program, each with a CUDA device of its own, from the number `first_device` on, and
/// waits until all have ended. Signals that ask this process to stop are passed on. Where one fails, the others have as long
/// as they wait for each other, and are killed then. Returns the status of the first that failed, or 0.
///
/// # Errors
///
/// When the program has no engine, or a process cannot be started.
pub fn start(
    ranks: NonZeroU32,
    first_device: usize,
    timeout: Duration,
) -> Result<u8, CollectiveError> {
    check_engine(true)?;
    let not_started = |error: io::Error| CollectiveError::NotStarted {
        engine: "a rank",
        reason: error.to_string(),
    };
    let stop = StopSignal::listen().map_err(not_started)?;
    let folder = tempfile::tempdir().map_err(not_started)?;
    let program = env::current_exe().map_err(not_started)?;
    let all = env::var("CUDA_VISIBLE_DEVICES").ok();
    let mut running = Running(Vec::new());
    for rank in 0..ranks.get() {
        let mut command = Command::new(&program);
        command.args(env::args_os().skip(1));
        command.env("ARENA_RANK", rank.to_string()).env("ARENA_RANKS", ranks.to_string());
        command.env("ARENA_RANK_ID", folder.path().join("id"));
        command.env("CUDA_VISIBLE_DEVICES", visible(all.as_deref(), first_device + rank as usize));
        running.0.push((rank, command.spawn().map_err(not_started)?));
    }
    running.watch(&stop, timeout).map_err(not_started)
}

/// The device of this number among those that this process may see; none, which the rank then says, where there are fewer.
fn visible(all: Option<&str>, device: usize) -> String {
    match all {
        Some(all) => all.split(',').nth(device).unwrap_or("").to_owned(),
        None => device.to_string(),
    }
}

/// Processes that are killed when this is dropped.
#[derive(Debug)]
struct Running(Vec<(u32, Child)>);

impl Running {
    fn watch(&mut self, stop: &StopSignal, timeout: Duration) -> io::Result<u8> {
        let (mut failed, mut has_passed_on) = (None, false);
        while !self.0.is_empty() {
            let mut left = Vec::new();
            for (rank, mut child) in self.0.drain(..) {
                match child.try_wait()? {
                    None => left.push((rank, child)),
                    Some(status) if status.success() => {}
                    Some(status) => {
                        failed.get_or_insert_with(|| (Instant::now(), code(rank, status)));
                    }
                }
            }
            self.0 = left;
            if failed.is_some_and(|(since, _)| since.elapsed() > timeout + TO_END) {
                tell(format_args!("arena-train: the other ranks did not end"));
                break;
            }
            if stop.requested().load(std::sync::atomic::Ordering::Relaxed) && !has_passed_on {
                has_passed_on = true;
                for (_, child) in &self.0 {
                    // One that has just ended needs none.
                    let _ = kill_process(Pid::from_child(child), Signal::TERM);
                }
            }
            thread::sleep(PAUSE);
        }
        Ok(failed.map_or(0, |(_, code)| code))
    }
}

/// The exit status that stands for how a rank ended; a signal is told.
fn code(rank: u32, status: ExitStatus) -> u8 {
    if let Some(signal) = status.signal() {
        tell(format_args!("arena-train: rank {rank} was ended by signal {signal}"));
        return u8::try_from(128 + signal).unwrap_or(u8::MAX);
    }
    status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

impl Drop for Running {
    fn drop(&mut self) {
        for (_, child) in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn a_rank_sees_the_device_of_its_number_among_those_that_the_program_sees() {
        assert_eq!([2, 3].map(|device| visible(None, device)), ["2", "3"]);
        assert_eq!([0, 1, 2].map(|device| visible(Some("5,7"), device)), ["5", "7", ""]);
    }
}

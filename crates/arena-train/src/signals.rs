//! Signals that ask the program to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{fs, io};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Whether a signal asked the program to stop, and which one.
#[derive(Debug, Default)]
pub struct StopSignal {
    requested: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl StopSignal {
    /// Listens for SIGINT (Ctrl-C), SIGTERM and SIGHUP from now on. The first one is a request; a second one ends the
    /// program at once. A signal that the program was started to ignore, as `nohup` does, stays ignored.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn listen() -> io::Result<Self> {
        let stop = Self::default();
        let ignored = ignored_signals();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            if ignored >> (signal - 1) & 1 == 1 {
                continue;
            }
            // The handlers of a signal run in this order.
            flag::register_conditional_shutdown(signal, 128 + signal, stop.requested.clone())?;
            flag::register_usize(signal, stop.signal.clone(), signal.unsigned_abs() as usize)?;
            flag::register(signal, stop.requested.clone())?;
        }
        Ok(stop)
    }

    /// Whether a signal came.
    #[must_use]
    pub fn requested(&self) -> &AtomicBool {
        &self.requested
    }

    /// The exit status of a run that stopped for a signal: 128 and the signal's number. Where another rank was asked, it
    /// is as if that had been by SIGTERM.
    #[must_use]
    pub fn status(&self) -> u8 {
        let signal = match self.signal.load(Ordering::Relaxed) {
            0 => SIGTERM.unsigned_abs() as usize,
            signal => signal,
        };
        u8::try_from(128 + signal).unwrap_or(u8::MAX)
    }
}

/// One bit for each signal that is ignored, the lowest for signal 1; none where the system does not tell.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}

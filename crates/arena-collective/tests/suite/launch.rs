//! Ranks as processes: this test program again, once for each.

use std::fs;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// What a rank's process finds in its environment.
pub(crate) const RANK: &str = "ARENA_TEST_RANK";

/// No test of ranks takes longer, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(60);

/// Processes, one a rank. They are killed when it is dropped.
pub(crate) struct Ranks {
    children: Vec<Child>,
    told: TempDir,
    begin: Instant,
}

/// How a rank's process ended, and what it printed.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) told: String,
}

impl Ranks {
    /// Starts the ignored test `test` of this program `count` times.
    pub(crate) fn start(test: &str, count: u32, environment: &[(&str, String)]) -> Self {
        let mut this =
            Self { children: Vec::new(), told: TempDir::new().unwrap(), begin: Instant::now() };
        for rank in 0..count {
            let [out, err] = ["out", "err"].map(|kind| {
                Stdio::from(
                    fs::File::create(this.told.path().join(format!("{kind}-{rank}"))).unwrap(),
                )
            });
            let child = Command::new(std::env::current_exe().unwrap())
                .args([test, "--exact", "--ignored", "--nocapture"])
                .env(RANK, rank.to_string())
                .envs(environment.iter().map(|(name, value)| (name, value)))
                .stdin(Stdio::null())
                .stdout(out)
                .stderr(err)
                .spawn();
            this.children.push(child.unwrap());
        }
        this
    }

    /// What a rank has printed so far.
    fn told(&self, rank: usize) -> String {
        let read =
            |kind| fs::read_to_string(self.told.path().join(format!("{kind}-{rank}"))).unwrap();
        read("out") + &read("err")
    }

    /// Waits until a rank ends by itself.
    ///
    /// # Panics
    ///
    /// When it takes too long, with what all ranks printed.
    #[track_caller]
    pub(crate) fn wait(&mut self, rank: usize) -> Ended {
        loop {
            if let Some(status) = self.children[rank].try_wait().unwrap() {
                return Ended { status, told: self.told(rank) };
            }
            if self.begin.elapsed() > LIMIT {
                let told = (0..self.children.len()).map(|rank| self.told(rank));
                panic!("rank {rank} does not end: {:#?}", told.collect::<Vec<_>>());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until all ranks have ended, and gives what they printed.
    ///
    /// # Panics
    ///
    /// When one fails, or takes too long.
    #[track_caller]
    pub(crate) fn all_pass(mut self) -> Vec<String> {
        (0..self.children.len()).map(|rank| self.passes(rank)).collect()
    }

    /// Waits until a rank has ended without a failure, and gives what it printed.
    #[track_caller]
    pub(crate) fn passes(&mut self, rank: usize) -> String {
        let ended = self.wait(rank);
        let is_fine = ended.status.success() && ended.told.contains("test result: ok. 1 passed");
        assert!(is_fine, "rank {rank}: {ended:#?}");
        ended.told
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            // One that has ended is only collected.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

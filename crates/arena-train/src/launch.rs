//! How the processes of a run find each other.

use std::cell::Cell;
use std::env;
use std::num::NonZeroU32;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use arena_collective::{Collective, CollectiveError, RankError, gather};
use arena_plan::files::tell;
#[cfg(all(feature = "nccl", feature = "_cuda"))]
use arena_scope::Cuda;
use arena_scope::{Device, Host};

use crate::error::TrainError;
use crate::training::Share;

/// The variables with which launchers tell a process its number, and how many there are: this program, and those of MPI.
const LAUNCHERS: [[&str; 2]; 5] = [
    ["ARENA_RANK", "ARENA_RANKS"],
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
    ["PMI_RANK", "PMI_SIZE"],
    ["MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"],
    // `srun --mpi=pmix`
    ["PMIX_RANK", "SLURM_STEP_NUM_TASKS"],
];

/// Where rank 0 leaves the name of a run on NCCL for the others.
#[cfg(all(feature = "nccl", feature = "_cuda"))]
const ID_FILE: &str = "ARENA_RANK_ID";

/// What this process takes of each batch, as a launcher says; `None` where none has started it, or it is alone.
#[must_use]
pub fn launched() -> Option<Share> {
    let number = |name: &str| env::var(name).ok()?.parse().ok();
    let shares = LAUNCHERS
        .iter()
        .filter_map(|[rank, of]| Some(Share { rank: number(rank)?, of: number(of)? }));
    shares.into_iter().next().filter(|share| share.is_part())
}

/// Starts `ranks` processes of this program on this machine, in the place of this one. They share its processors.
///
/// # Errors
///
/// Always: where it could do so, it does not return.
pub fn start(ranks: NonZeroU32, threads: Option<usize>) -> Result<(), CollectiveError> {
    check_engine(false)?;
    let not_started = |reason: String| CollectiveError::NotStarted { engine: "mpirun", reason };
    let version = Command::new("mpirun").arg("--version").output();
    let version = version.map_err(|error| not_started(error.to_string()))?;
    let mut command = Command::new("mpirun");
    command.args(["-n", &ranks.to_string()]);
    if String::from_utf8_lossy(&version.stdout).contains("Open MPI") {
        command.args(["--oversubscribe", "--bind-to", "none"]);
    }
    let program = env::current_exe().map_err(|error| not_started(error.to_string()))?;
    command.arg(program).args(env::args_os().skip(1));
    if threads.is_none() {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        let each = (all / ranks.get() as usize).max(1);
        command.args(["--threads", &each.to_string()]);
    }
    Err(not_started(command.exec().to_string()))
}

/// Whether the program has an engine for ranks on the host, or on CUDA.
///
/// # Errors
///
/// [`CollectiveError::NoEngine`], which names the feature.
pub const fn check_engine(on_cuda: bool) -> Result<(), CollectiveError> {
    match on_cuda {
        true if cfg!(all(feature = "nccl", feature = "_cuda")) => Ok(()),
        true => Err(CollectiveError::NoEngine { device: "CUDA", feature: "nccl" }),
        false if cfg!(feature = "mpi") => Ok(()),
        false => Err(CollectiveError::NoEngine { device: "the host", feature: "mpi" }),
    }
}

/// The processes of a run, from their start on.
#[derive(Debug)]
pub struct Ranks<D: Device> {
    engine: Rc<dyn Collective<D>>,
    has_agreed: Cell<bool>,
}

impl Ranks<Host> {
    /// Joins the other processes, which compute on hosts.
    ///
    /// # Errors
    ///
    /// When the program has no engine, or it does not start.
    pub fn join(timeout: Duration) -> Result<Self, CollectiveError> {
        check_engine(false)?;
        #[cfg(feature = "mpi")]
        return Ok(Self {
            engine: Rc::new(arena_collective::Mpi::join(timeout)?),
            has_agreed: Cell::new(false),
        });
        #[cfg(not(feature = "mpi"))]
        Err(CollectiveError::NotStarted { engine: "MPI", reason: format!("{timeout:?}") })
    }
}

#[cfg(all(feature = "nccl", feature = "_cuda"))]
impl Ranks<Cuda> {
    /// Joins the other processes of this machine that [`processes::start`](crate::processes::start) has started, on the
    /// stream of this device.
    ///
    /// # Errors
    ///
    /// When NCCL is not there, or not all came within the timeout.
    pub fn join_on(
        device: &Cuda,
        share: Share,
        timeout: Duration,
    ) -> Result<Self, CollectiveError> {
        let id = shared_id(share.rank, timeout)?;
        let engine =
            arena_collective::Nccl::join(device.stream(), share.rank, share.of, id, timeout)?;
        Ok(Self { engine: Rc::new(engine), has_agreed: Cell::new(false) })
    }
}

/// The name of the run: rank 0 makes it, the others read it.
#[cfg(all(feature = "nccl", feature = "_cuda"))]
fn shared_id(rank: u32, timeout: Duration) -> Result<[u8; 128], CollectiveError> {
    let not_started = |reason: String| CollectiveError::NotStarted { engine: "NCCL", reason };
    let path = env::var_os(ID_FILE).ok_or_else(|| {
        not_started(
            "only `--ranks N` starts ranks on CUDA devices, not a launcher of MPI".to_owned(),
        )
    })?;
    let path = std::path::PathBuf::from(path);
    if rank == 0 {
        let id = arena_collective::Nccl::unique_id()?;
        arena_plan::files::write(&path, |to| std::io::Write::write_all(to, &id))
            .map_err(|error| not_started(error.to_string()))?;
        return Ok(id);
    }
    let begin = std::time::Instant::now();
    loop {
        if let Ok(Ok(id)) = std::fs::read(&path).map(TryFrom::try_from) {
            return Ok(id);
        }
        if begin.elapsed() > timeout {
            return Err(not_started(format!("rank 0 did not come within {} s", timeout.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl<D: Device> Ranks<D> {
    /// What they do together.
    #[must_use]
    pub fn engine(&self) -> Rc<dyn Collective<D>> {
        Rc::clone(&self.engine)
    }

    /// Makes sure that every process is ready, with the same settings and the same data. `mine` is this one's settings and
    /// data, or why it is not ready.
    ///
    /// # Errors
    ///
    /// The first rank that is not ready, or has others than rank 0; on every process the same.
    pub fn agree(&self, mine: Result<[&str; 2], String>) -> Result<(), TrainError> {
        self.has_agreed.set(true);
        let sums = mine.map(|texts| texts.map(|text| u64::from(crc32fast::hash(text.as_bytes()))));
        let found = gather(&*self.engine, sums)??;
        for (rank, its) in (0..).zip(&found) {
            let pairs = ["settings", "data"].into_iter().zip(its.iter().zip(&found[0]));
            for (what, (its, expected)) in pairs {
                if its != expected {
                    let cause = format!("it has other {what} than rank 0");
                    return Err(RankError { rank, cause }.into());
                }
            }
        }
        Ok(())
    }

    /// The most of each figure that any rank has.
    ///
    /// # Errors
    ///
    /// When the ranks cannot talk any more.
    pub fn most<const N: usize>(&self, mine: [u64; N]) -> Result<[u64; N], TrainError> {
        let mut most = mine;
        for its in gather(&*self.engine, Ok(mine))?? {
            most.iter_mut().zip(its).for_each(|(most, its)| *most = its.max(*most));
        }
        Ok(most)
    }

    /// Waits until every process has come to its end. A launcher ends the others when one ends with a failure.
    pub fn finish(&self) {
        // Who does not come has an error of its own.
        let _ = self.engine.barrier();
    }

    /// What to say of an error of this process that ends it, in words for people. The others are told, if they wait for this
    /// one to be ready. Where they are past that, and have not met the same error, they are ended with it.
    #[must_use]
    pub fn end(&self, error: &anyhow::Error) -> String {
        let text = format!("{error:#}");
        if !self.has_agreed.get() {
            let told =
                self.agree(Err(text)).map_or_else(|told| told.to_string(), |()| String::new());
            self.finish();
            return told;
        }
        let is_shared = |error: &TrainError| {
            matches!(error, TrainError::Rank(_) | TrainError::NotFinite { .. })
        };
        if !error.downcast_ref().is_some_and(is_shared) {
            tell(format_args!("arena-train: rank {}: {text}", self.engine.rank()));
            self.engine.abort();
        }
        self.finish();
        text
    }
}

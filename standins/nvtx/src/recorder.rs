//! Outside the shared library: a test's side.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};

use crate::library::RawCall;

/// A call of NVTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// A range began.
    Begin {
        /// What NVTX gave back for it.
        id: u64,
        /// Its name, up to 64 bytes.
        name: String,
    },
    /// A range ended.
    End {
        /// What was passed.
        id: u64,
    },
}

/// Why the stand-in cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LoadError {
    /// The shared library is not where cargo puts it.
    #[error("libnvtx_standin.so is in none of {searched:?}; is the crate a dev-dependency?")]
    NotFound {
        /// The folders that were looked at.
        searched: Vec<PathBuf>,
    },
    /// The dynamic loader refused it, or a function is missing.
    #[error("libnvtx_standin.so: {reason}")]
    Refused {
        /// What the loader says.
        reason: String,
    },
}

type CallOf = unsafe extern "C" fn(usize, *mut RawCall) -> bool;

struct Doors {
    call: Symbol<CallOf>,
    clear: Symbol<extern "C" fn()>,
}

/// The one stand-in of the process, held by one test at a time.
pub struct Recorder {
    doors: &'static Doors,
    _turn: MutexGuard<'static, ()>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("calls", &self.calls()).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Opens the stand-in beside the running program and forgets what it remembers. It waits until no other test of the
    /// process holds it.
    ///
    /// # Errors
    ///
    /// [`LoadError`] when the shared library was not built or cannot be opened.
    pub fn load() -> Result<Self, LoadError> {
        static TURN: Mutex<()> = Mutex::new(());
        static DOORS: OnceLock<Result<Doors, LoadError>> = OnceLock::new();
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let doors = DOORS.get_or_init(open).as_ref().map_err(Clone::clone)?;
        (doors.clear)();
        Ok(Self { doors, _turn: turn })
    }

    /// The calls since [`load`](Self::load) or [`clear`](Self::clear), in order.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        (0..).map_while(|n| self.call(n)).collect()
    }

    fn call(&self, n: usize) -> Option<Call> {
        let mut raw = RawCall::NONE;
        // SAFETY: the call goes into a live variable.
        if !unsafe { (self.doors.call)(n, &raw mut raw) } {
            return None;
        }
        let id = raw.id;
        Some(match raw.ends {
            true => Call::End { id },
            false => {
                let text = raw.name.split(|byte| *byte == 0).next().unwrap_or_default();
                Call::Begin { id, name: String::from_utf8_lossy(text).into_owned() }
            }
        })
    }

    /// Forgets the calls so far.
    pub fn clear(&self) {
        (self.doors.clear)();
    }
}

fn open() -> Result<Doors, LoadError> {
    let program = std::env::current_exe().unwrap_or_default();
    let folders = program.ancestors().skip(1).take(2);
    let searched: Vec<_> =
        folders.flat_map(|folder| [folder.into(), folder.join("deps")]).collect();
    let path = searched.iter().map(|folder| folder.join("libnvtx_standin.so"));
    let Some(path) = path.into_iter().find(|path| path.is_file()) else {
        return Err(LoadError::NotFound { searched });
    };
    let refused = |error: libloading::Error| LoadError::Refused { reason: error.to_string() };
    // SAFETY: the library runs no code when it is loaded.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(refused)?;
    // Leaked on purpose: whoever opens it by its other name keeps pointers into it.
    let library = Box::leak(Box::new(library));
    // SAFETY: this crate exports the symbol with this signature.
    let call = unsafe { library.get(b"nvtx_standin_call") }.map_err(refused)?;
    // SAFETY: as above.
    let clear = unsafe { library.get(b"nvtx_standin_clear") }.map_err(refused)?;
    Ok(Doors { call, clear })
}

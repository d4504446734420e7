//! The safe side of the stand-in's controls.

use crate::leaks::Leaks;
use crate::real_driver::{self, NEEDS_STANDIN};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};
use std::ffi::{CString, c_char};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Why the stand-in cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LoadError {
    /// The shared library is not where cargo puts it.
    #[error("lib{name}.so is in none of {searched:?}; is the crate a dev-dependency?")]
    NotFound {
        /// The library's name, without prefix and suffix.
        name: &'static str,
        /// The folders that were looked at.
        searched: Vec<PathBuf>,
    },
    /// The program's own path is not known.
    #[error("the path of the running program is not known: {0}")]
    NoProgram(String),
    /// The dynamic loader refused it, or a function is missing.
    #[error("{path}: {reason}")]
    Refused {
        /// The library.
        path: PathBuf,
        /// What the loader says.
        reason: String,
    },
}

/// When the operations of streams run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// At the call that queues them: what a program sees on an infinitely fast device.
    Eager,
    /// Only when something waits or asks, in an order drawn from the seed. The default.
    Deferred,
    /// Only when something waits: what a program sees on an infinitely slow device. Asking in a loop goes on for ever.
    Endless,
    /// Also between any two calls: how much gets done is drawn from the seed.
    Drawn,
}

/// In which order the threads of a kernel run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// Blocks, warps and lanes in an order that each launch draws from the seed, several blocks side by side. The
    /// default.
    Drawn,
    /// One after another, which hides missing barriers and sums without an order.
    ByNumber,
}

/// Which addresses new memory gets. All begin on a multiple of 256 bytes and of no more, as drivers promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Such as nothing had before, so that every use of released memory is found out. The default.
    Fresh,
    /// Those that were released last, as soon as they are, as drivers do. Finds programs that tell memory by its
    /// address; a use of released memory passes for one of the new memory.
    Reused,
}

macro_rules! functions {
    ($($field:ident: $symbol:literal, $kind:ty;)*) => {
        /// The control functions, looked up once.
        struct Functions { $($field: Symbol<$kind>,)* }

        impl Functions {
            fn look_up(library: &Library, path: &Path) -> Result<Self, LoadError> {
                Ok(Self { $(
                    // SAFETY: this crate exports the symbol with exactly this signature (`control_ffi`), and the
                    // library that is asked was built from the same source.
                    $field: unsafe { library.get::<$kind>($symbol) }.map_err(|e| refused(path, &e))?,
                )* })
            }
        }
    };
}

functions! {
    reset: "standin_reset", extern "C" fn(u64);
    set_seed: "standin_set_seed", extern "C" fn(u64) -> u32;
    set_mode: "standin_set_mode", extern "C" fn(u32);
    set_draws_threads: "standin_set_draws_threads", extern "C" fn(u32);
    set_reuses_addresses: "standin_set_reuses_addresses", extern "C" fn(u32);
    set_rounding: "standin_set_rounding", extern "C" fn(u64);
    set_driver_version: "standin_set_driver_version", extern "C" fn(i32) -> u32;
    set_devices: "standin_set_devices", extern "C" fn(u32) -> u32;
    set_memory: "standin_set_memory", extern "C" fn(u64, u64);
    set_capability: "standin_set_capability", extern "C" fn(i32, i32);
    set_granularity: "standin_set_granularity", extern "C" fn(u64);
    set_pools: "standin_set_pools", extern "C" fn(u32);
    set_free_waits: "standin_set_free_waits", extern "C" fn(u32);
    set_stages_pageable: "standin_set_stages_pageable", extern "C" fn(u32);
    calls: "standin_calls", extern "C" fn(*const c_char) -> u64;
    call_name: "standin_call_name", extern "C" fn(u64, *mut c_char, i32) -> u32;
    clear_calls: "standin_clear_calls", extern "C" fn();
    fail_nth: "standin_fail_nth", extern "C" fn(*const c_char, u64, u32);
    failures_to_come: "standin_failures_to_come", extern "C" fn() -> u64;
    clear_failures: "standin_clear_failures", extern "C" fn();
    leaks: "standin_leaks", extern "C" fn(*mut Leaks);
    last_fault: "standin_last_fault", extern "C" fn(*mut c_char, i32) -> u32;
    queued: "standin_queued", extern "C" fn() -> u64;
    progress: "standin_progress", extern "C" fn(u64) -> u64;
    poison: "standin_poison", extern "C" fn(u32);
}

/// The one stand-in of the process, held by one test at a time.
///
/// [`Standin::load`] waits until no other test of the process holds it, and resets it.
pub struct Standin {
    /// `None` on a real driver.
    functions: Option<&'static Functions>,
    _turn: MutexGuard<'static, ()>,
}

impl std::fmt::Debug for Standin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let queued = self.functions.map(|functions| (functions.queued)());
        f.debug_struct("Standin").field("queued", &queued).finish_non_exhaustive()
    }
}

impl Standin {
    /// Opens the stand-in beside the running program, so that a later `dlopen("libcuda.so")` finds it, and resets it
    /// with seed 0. Those for cuBLAS, cuBLASLt and NCCL are opened as well when they are there.
    ///
    /// Keep the value for the whole test and drop it after everything of cudarc (declare it first, or as the last field
    /// of a structure): the driver is shared by the process, and a context that is dropped later would be released from
    /// under the next test. Loading twice in one thread without dropping the first waits for ever.
    ///
    /// With [`REAL_DRIVER`](crate::REAL_DRIVER) set to 1, nothing is opened, and cudarc finds the machine's driver. Seeds and modes then change
    /// nothing, and nothing counts as leaked; at what only the stand-in can do the test ends, by a panic that begins
    /// with [`NEEDS_STANDIN`].
    ///
    /// # Errors
    ///
    /// [`LoadError`] when the shared library was not built or cannot be opened.
    pub fn load() -> Result<Self, LoadError> {
        static TURN: Mutex<()> = Mutex::new(());
        static FUNCTIONS: OnceLock<Result<Functions, LoadError>> = OnceLock::new();
        // A test that failed while it held the stand-in has left nothing behind that the reset does not undo.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        if real_driver::is_asked_for() {
            return Ok(Self { functions: None, _turn: turn });
        }
        let functions = FUNCTIONS.get_or_init(open).as_ref().map_err(Clone::clone)?;
        let standin = Self { functions: Some(functions), _turn: turn };
        standin.reset(0);
        Ok(standin)
    }

    /// Whether the tests run on the machine's own driver. It counts no calls, draws no orders and fails no call on
    /// request: there a test leaves out what needs that.
    pub fn is_real_driver(&self) -> bool {
        self.functions.is_none()
    }

    /// The seeds `0..count`, for a loop over orders that a device may choose. On a real driver, which draws none, one.
    pub fn seeds(&self, count: u64) -> Range<u64> {
        0..if self.is_real_driver() { count.min(1) } else { count }
    }

    /// Ends the test on a real driver, because it is about something that only the stand-in does.
    ///
    /// # Panics
    ///
    /// On a real driver, with `what`.
    #[track_caller]
    pub fn needed_for(&self, what: &str) {
        self.must(what);
    }

    #[track_caller]
    fn must(&self, what: &str) -> &'static Functions {
        self.functions.unwrap_or_else(|| panic!("{NEEDS_STANDIN} {what}"))
    }

    /// Forgets everything: contexts, memory, counts, planned failures and settings. One device with 8 GiB of compute
    /// capability 9.0 remains, with a driver for CUDA 12.9 and deferred streams whose order is drawn from `seed`; the
    /// environment variable `CUDA_STANDIN` may ask for others. Old handles stay invalid.
    pub fn reset(&self, seed: u64) {
        if let Some(functions) = self.functions {
            (functions.reset)(seed);
        }
    }

    /// Draws the order from another seed from here on. False while operations are queued.
    #[track_caller]
    pub fn set_seed(&self, seed: u64) -> bool {
        (self.must("orders from seeds").set_seed)(seed) == 0
    }

    /// Chooses when operations run. Going eager runs what is queued.
    pub fn set_mode(&self, mode: Mode) {
        if let Some(functions) = self.functions {
            (functions.set_mode)(match mode {
                Mode::Deferred => 0,
                Mode::Eager => 1,
                Mode::Endless => 2,
                Mode::Drawn => 3,
            });
        }
    }

    /// Chooses in which order the threads of a kernel run.
    #[track_caller]
    pub fn set_threads(&self, threads: Threads) {
        (self.must("an order of threads").set_draws_threads)(u32::from(threads == Threads::Drawn));
    }

    /// Chooses which addresses new memory gets.
    #[track_caller]
    pub fn set_addresses(&self, addresses: Addresses) {
        let reused = u32::from(addresses == Addresses::Reused);
        (self.must("a choice of addresses").set_reuses_addresses)(reused);
    }

    /// Makes the devices compute as some other device would: matrix products are added up from other partial sums, and
    /// approximate functions of `f32` are off by up to two units of the last place. One seed rounds the same each time.
    /// With 0, the default, both are as exact as they can be.
    #[track_caller]
    pub fn set_rounding(&self, seed: u64) {
        (self.must("another device's arithmetic").set_rounding)(seed);
    }

    /// Makes the driver one for this version of CUDA, which refuses PTX of a newer one. False for a version that the
    /// stand-in does not know; it knows 12.0 to 13.1. The default is 12.9.
    #[track_caller]
    pub fn set_driver(&self, major: i32, minor: i32) -> bool {
        let set = &self.must("a driver's version").set_driver_version;
        set(1000 * major + 10 * minor) == 0
    }

    /// Sets the number of devices, 0 to 8. False when a context exists already, or for more. A machine with as many or
    /// more will do for any number but 0.
    #[track_caller]
    pub fn set_devices(&self, count: u32) -> bool {
        if self.is_real_driver() && (1..=real_driver::devices()).contains(&count) {
            return true;
        }
        (self.must("a number of devices").set_devices)(count) == 0
    }

    /// Sets the memory of every device, in bytes: all of it, and what is free now.
    #[track_caller]
    pub fn set_memory(&self, total_bytes: u64, free_bytes: u64) {
        (self.must("an amount of memory").set_memory)(total_bytes, free_bytes);
    }

    /// Sets the compute capability of the devices.
    #[track_caller]
    pub fn set_capability(&self, major: i32, minor: i32) {
        (self.must("a compute capability").set_capability)(major, minor);
    }

    /// In multiples of how many bytes physical memory is mapped to addresses (2 MiB by default); 0 for devices that map
    /// none.
    #[track_caller]
    pub fn set_granularity(&self, bytes: u64) {
        (self.must("another unit of virtual memory").set_granularity)(bytes);
    }

    /// Whether the devices support stream-ordered allocation (they do by default).
    #[track_caller]
    pub fn set_pools(&self, supported: bool) {
        (self.must("a device without pools").set_pools)(u32::from(supported));
    }

    /// Whether `cuMemFree` waits for queued work first, as drivers do by default. Without it, freeing memory that is
    /// still in use is found out.
    pub fn set_free_waits(&self, waits: bool) {
        if let Some(functions) = self.functions {
            (functions.set_free_waits)(u32::from(waits));
        }
    }

    /// Whether an asynchronous copy from pageable memory has read it when the call returns. Drivers do so as a rule;
    /// NVIDIA's documentation does not promise it. Without it the memory is read when the copy runs, and must live
    /// until then.
    pub fn set_stages_pageable(&self, stages: bool) {
        if let Some(functions) = self.functions {
            (functions.set_stages_pageable)(u32::from(stages));
        }
    }

    /// How often the function was called, by its exported name (`"cuMemAlloc_v2"`, `"cublasSgemm_v2"`).
    #[track_caller]
    pub fn calls(&self, name: &str) -> u64 {
        (self.must("counts of calls").calls)(text(name).as_ptr())
    }

    /// How many functions were called, all names together. Error names and texts are not counted.
    #[track_caller]
    pub fn all_calls(&self) -> u64 {
        (self.must("counts of calls").calls)(std::ptr::null())
    }

    /// The names of all calls, in order.
    #[track_caller]
    pub fn call_names(&self) -> Vec<String> {
        let mut buffer = [0; 128];
        let mut names = Vec::new();
        while (self.must("the names of calls").call_name)(
            names.len() as u64,
            buffer.as_mut_ptr(),
            buffer.len() as i32,
        ) != 0
        {
            names.push(from_buffer(&buffer));
        }
        names
    }

    /// Counts from zero again.
    pub fn clear_calls(&self) {
        if let Some(functions) = self.functions {
            (functions.clear_calls)();
        }
    }

    /// Fails the `n`-th call of `name` from now on (1 is the next) with this `CUresult`. A code that breaks a context
    /// (700 for instance) does. A release that fails has released nevertheless, as with a real driver that reports an
    /// earlier error there. For functions of cuBLAS the code is a `cublasStatus_t`.
    #[track_caller]
    pub fn fail_nth(&self, name: &str, n: u64, code: u32) {
        (self.must("failures").fail_nth)(text(name).as_ptr(), n, code);
    }

    /// Fails the `n`-th call of any function from now on.
    #[track_caller]
    pub fn fail_nth_call(&self, n: u64, code: u32) {
        (self.must("failures").fail_nth)(std::ptr::null(), n, code);
    }

    /// Planned failures that have not happened yet.
    #[track_caller]
    pub fn failures_to_come(&self) -> u64 {
        (self.must("failures").failures_to_come)()
    }

    /// Drops the planned failures.
    #[track_caller]
    pub fn clear_failures(&self) {
        (self.must("failures").clear_failures)();
    }

    /// What was made since the reset and not released, also when its context is gone.
    pub fn leaks(&self) -> Leaks {
        let mut leaks = Leaks::default();
        if let Some(functions) = self.functions {
            (functions.leaks)(&raw mut leaks);
        }
        leaks
    }

    /// The last device error, or why a module was refused, in words; empty when there was none.
    pub fn last_fault(&self) -> String {
        let Some(functions) = self.functions else { return String::new() };
        let mut buffer = [0; 4096];
        (functions.last_fault)(buffer.as_mut_ptr(), buffer.len() as i32);
        from_buffer(&buffer)
    }

    /// Operations that are queued and have not run.
    #[track_caller]
    pub fn queued(&self) -> u64 {
        (self.must("what is queued").queued)()
    }

    /// Lets the devices run up to `count` operations while nobody waits; gives how many ran.
    #[track_caller]
    pub fn progress(&self, count: u64) -> u64 {
        (self.must("steps of the device").progress)(count)
    }

    /// Breaks the current context of this thread with a sticky error, or every context when none is current.
    #[track_caller]
    pub fn poison(&self, code: u32) {
        (self.must("a broken context").poison)(code);
    }
}

/// A name for the foreign side. A name with a NUL inside is no function's, so the empty one does as well.
fn text(name: &str) -> CString {
    CString::new(name).unwrap_or_default()
}

fn from_buffer(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn refused(path: &Path, error: &libloading::Error) -> LoadError {
    LoadError::Refused { path: path.to_owned(), reason: error.to_string() }
}

/// Where cargo puts libraries relative to the programs that it builds.
fn folders() -> Result<Vec<PathBuf>, LoadError> {
    let program = std::env::current_exe().map_err(|e| LoadError::NoProgram(e.to_string()))?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let above = beside.parent().unwrap_or(beside);
    Ok(vec![beside.to_owned(), beside.join("deps"), above.join("deps"), above.to_owned()])
}

fn open_library(
    name: &'static str,
    folders: &[PathBuf],
) -> Result<(&'static Library, PathBuf), LoadError> {
    let paths = folders.iter().map(|folder| folder.join(format!("lib{name}.so")));
    let path = paths
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| LoadError::NotFound { name, searched: folders.to_vec() })?;
    // SAFETY: the stand-ins run no code when they are loaded. `RTLD_GLOBAL` lets the cuBLAS one find the driver.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) };
    // Leaked on purpose: callers keep function pointers into it until the process ends.
    Ok((Box::leak(Box::new(library.map_err(|e| refused(&path, &e))?)), path))
}

fn open() -> Result<Functions, LoadError> {
    let folders = folders()?;
    let (library, path) = open_library("cuda_standin", &folders)?;
    for name in ["cublas_standin", "cublaslt_standin", "nccl_standin"] {
        match open_library(name, &folders) {
            Ok(_) | Err(LoadError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Functions::look_up(library, &path)
}

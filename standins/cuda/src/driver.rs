//! The one driver of the process, behind one lock.

use crate::abi::{Code, CuResult};
use crate::capture::Capture;
use crate::context::Context;
use crate::device::Device;
use crate::faults::Calls;
use crate::graph::{Graph, GraphExec};
use crate::leaks::Leaks;
use crate::memory::Memory;
use crate::module::{Function, Module};
use crate::pool::Pool;
use crate::schedule::Schedule;
use crate::settings::Settings;
use crate::stream::{Event, Stream};
use crate::table::Table;
use crate::vmm::{Physical, Reservation};
use crate::work::IN_HOST_FUNCTION;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Everything that the stand-in knows.
#[derive(Debug)]
pub(crate) struct Driver {
    /// Goes up with each reset, so that contexts that threads still hold are known to be stale.
    pub(crate) generation: u64,
    pub(crate) initialised: bool,
    pub(crate) settings: Settings,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: Table<Context>,
    pub(crate) streams: Table<Stream>,
    pub(crate) events: Table<Event>,
    pub(crate) captures: Vec<Capture>,
    pub(crate) graphs: Table<Graph>,
    pub(crate) graph_execs: Table<GraphExec>,
    pub(crate) modules: Table<Module>,
    pub(crate) functions: Table<Function>,
    pub(crate) pools: Table<Pool>,
    pub(crate) physicals: Table<Physical>,
    pub(crate) reservations: Vec<Reservation>,
    pub(crate) memory: Memory,
    pub(crate) schedule: Schedule,
    /// Operations that have run: the only clock there is.
    pub(crate) clock: u64,
    /// Instructions that kernels have run: what their clock registers show.
    pub(crate) kernel_clock: u64,
    pub(crate) calls: Calls,
    /// What contexts took with them when they were destroyed.
    pub(crate) abandoned: Leaks,
    /// Live handles of other stand-in libraries.
    pub(crate) library_handles: u64,
    /// The last device error or load error, for people.
    pub(crate) last_fault: String,
}

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);

impl Driver {
    fn new(settings: Settings, generation: u64, seed: u64, memory: Memory, next_op: u64) -> Self {
        let mut driver = Self {
            generation,
            initialised: false,
            settings,
            devices: Vec::new(),
            contexts: Table::default(),
            streams: Table::default(),
            events: Table::default(),
            captures: Vec::new(),
            graphs: Table::default(),
            graph_execs: Table::default(),
            modules: Table::default(),
            functions: Table::default(),
            pools: Table::default(),
            physicals: Table::default(),
            reservations: Vec::new(),
            memory,
            schedule: Schedule::new(settings.mode, seed, next_op),
            clock: 0,
            kernel_clock: 0,
            calls: Calls::default(),
            abandoned: Leaks::default(),
            library_handles: 0,
            last_fault: String::new(),
        };
        driver.set_devices(settings.devices);
        driver
    }

    /// Forgets everything and starts anew: one device, deferred streams ordered by `seed`, nothing counted. Addresses
    /// and handles go on from where they were, so that old ones stay invalid.
    pub(crate) fn reset(&mut self, seed: u64) {
        let bases: Vec<_> = self.memory.blocks().map(|block| block.base).collect();
        for base in bases {
            // An address that cannot be unmapped stays mapped, which only makes a later stale use less visible.
            let _ = self.memory.remove(base);
        }
        let settings = Settings::of_the_environment();
        let mut memory = std::mem::take(&mut self.memory);
        memory.reuse_addresses(settings.reuses_addresses);
        let next_op = self.schedule.next_id();
        *self = Self::new(settings, self.generation + 1, seed, memory, next_op);
    }
}

/// A held lock on the driver.
pub(crate) struct Locked(MutexGuard<'static, Option<Driver>>);

impl Locked {
    /// The driver; made at the first use.
    pub(crate) fn driver(&mut self) -> &mut Driver {
        self.0.get_or_insert_with(|| {
            let settings = Settings::of_the_environment();
            let mut memory = Memory::default();
            memory.reuse_addresses(settings.reuses_addresses);
            Driver::new(settings, 0, 0, memory, 0)
        })
    }
}

/// Locks the driver.
pub(crate) fn lock() -> Locked {
    Locked(DRIVER.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What a driver function asks for before it does anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Nothing: error texts, `cuInit`.
    Anytime,
    /// An initialised driver: devices and contexts.
    Global,
    /// A sound current context.
    Context,
    /// A current context, sound or not: the object goes, and then an error of the context is reported. A release that
    /// is told to fail still releases, as a driver does that reports an earlier error there.
    Release,
    /// The same for objects that belong to no context: they need no current one.
    ReleaseAnywhere,
}

/// The frame of every driver function: count it, fail it if that was asked for, check its class, run it.
pub(crate) fn call(
    name: &'static str,
    class: Class,
    body: impl FnOnce(&mut Driver) -> CuResult<()>,
) -> u32 {
    if IN_HOST_FUNCTION.get() {
        return Code::NOT_PERMITTED.0;
    }
    let mut locked = lock();
    let driver = locked.driver();
    let injected = driver.calls.note(name);
    let outcome = framed(driver, class, injected, body);
    match outcome {
        Ok(()) => 0,
        Err(code) => code.0,
    }
}

fn framed(
    driver: &mut Driver,
    class: Class,
    injected: Option<Code>,
    body: impl FnOnce(&mut Driver) -> CuResult<()>,
) -> CuResult<()> {
    if let Some(code) = injected {
        if matches!(class, Class::Release | Class::ReleaseAnywhere) && driver.initialised {
            // The injected code is reported in any case.
            let _ = body(driver);
        }
        if code.is_sticky()
            && let Ok(context) = driver.current()
        {
            driver
                .poison(context, crate::work::Fault { code, text: "an injected error".to_owned() });
        }
        return Err(code);
    }
    if class != Class::Anytime && !driver.initialised {
        return Err(Code::NOT_INITIALIZED);
    }
    driver.get_on();
    match class {
        Class::Anytime | Class::Global => body(driver),
        Class::Context => {
            let context = driver.current()?;
            driver.sound(context)?;
            body(driver)
        }
        Class::Release => {
            let context = driver.current()?;
            let before = driver.sound(context);
            body(driver).and(before)
        }
        Class::ReleaseAnywhere => {
            let before = driver.current().map_or(Ok(()), |context| driver.sound(context));
            body(driver).and(before)
        }
    }
}

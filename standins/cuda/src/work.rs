//! The operations that streams queue, and what each does when its turn comes.

use crate::abi::{Address, Code, CuResult, Handle, HostFunction};
use crate::driver::Driver;
use crate::memory::{Kind, Phase, Visitor};
use crate::module::Launch;
use crate::raw;
use crate::schedule::{OpId, Queued};
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How long the device rests after an operation that could not end yet: what it waits for comes from another process.
const REST: Duration = Duration::from_micros(50);

thread_local! {
    /// Set while a host function runs; calls into the driver are not permitted from there.
    pub(crate) static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// One end of a copy.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// Memory that the driver knows: device or pinned. Checked when the copy runs.
    Known(Address),
    /// The caller's pageable memory, which only the caller can vouch for.
    Pageable(Address),
    /// Pageable memory as it was at the call.
    Snapshot(Arc<[u8]>),
}

/// Something to be done in stream order.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Nothing; a point for others to wait for.
    Marker,
    /// The point of an event's record; stamps the event with the stand-in's clock.
    Record {
        event: Handle,
    },
    Fill {
        to: Address,
        len: u64,
        pattern: Arc<[u8]>,
    },
    Copy {
        from: End,
        to: End,
        len: u64,
    },
    /// A stream-ordered allocation becomes usable.
    Appear {
        base: Address,
    },
    /// A stream-ordered allocation ends.
    Disappear {
        base: Address,
    },
    /// Managed memory is given to one stream, or to all.
    Attach {
        base: Address,
        to: Option<Handle>,
    },
    Host {
        function: HostFunction,
        data: usize,
    },
    Kernel(Launch),
    Library(Arc<LibraryCall>),
}

/// Work of another stand-in library, ordered and range-checked like a kernel.
#[derive(Debug)]
pub(crate) struct LibraryCall {
    pub(crate) name: String,
    /// Device ranges that it touches: address and bytes.
    pub(crate) ranges: Vec<(Address, u64)>,
    /// Gives 0 when the work is done, and else is asked again later.
    pub(crate) run: extern "C" fn(*mut c_void) -> u32,
    pub(crate) data: usize,
    pub(crate) drop: extern "C" fn(*mut c_void),
}

impl Drop for LibraryCall {
    fn drop(&mut self) {
        (self.drop)(std::ptr::with_exposed_provenance_mut(self.data));
    }
}

/// An operation that failed on the device: the code and what a person wants to know.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) code: Code,
    pub(crate) text: String,
}

impl Fault {
    fn illegal(what: &str, address: Address, len: u64) -> Self {
        let text = format!(
            "{what} touches {len} bytes at {address:#x}, which are not live memory of its device"
        );
        Self { code: Code::ILLEGAL_ADDRESS, text }
    }
}

impl Driver {
    /// Runs one operation of a context that is still sound. False when it has to be asked again.
    fn perform(&mut self, queued: Queued) -> Result<bool, Fault> {
        let Queued { context, stream, work } = queued;
        let (device, peers) = self.device_and_peers(context);
        let visitor = Visitor { device, peers: &peers, stream: Some(stream) };
        // Copies and fills reach every device of the process; kernels only their own and its peers.
        let everywhere = |d: &Driver, what: &str, address: Address, len: u64, stream| {
            let all = d.all_devices();
            let from = |device| Visitor { device, peers: &all, stream };
            if all.iter().any(|device| d.memory.reaches(address, len, from(*device))) {
                Ok(())
            } else {
                Err(Fault::illegal(what, address, len))
            }
        };
        match work {
            Work::Marker => {}
            Work::Record { event } => {
                let now = self.clock;
                if let Ok(event) = self.events.get_mut(event) {
                    event.stamp = now;
                }
            }
            Work::Fill { to, len, pattern } => {
                everywhere(self, "a fill", to, len, Some(stream))?;
                raw::fill(to, len, &pattern);
            }
            Work::Copy { from, to, len } => {
                for end in [&from, &to] {
                    if let End::Known(address) = end {
                        everywhere(self, "a copy", *address, len, None)?;
                    }
                }
                match (from, to) {
                    (End::Snapshot(bytes), End::Known(to) | End::Pageable(to)) => {
                        raw::write(to, &bytes)
                    }
                    (
                        End::Known(from) | End::Pageable(from),
                        End::Known(to) | End::Pageable(to),
                    ) => raw::copy(from, to, len),
                    (_, End::Snapshot(_)) => {}
                }
            }
            Work::Appear { base } => {
                if let Some(block) = self.memory.at_mut(base)
                    && block.phase == Phase::Ordered
                {
                    block.phase = Phase::Live;
                }
            }
            Work::Disappear { base } => {
                self.end_of_life(base).map_err(|code| Fault {
                    code,
                    text: "a release of no live block".to_owned(),
                })?;
            }
            Work::Attach { base, to } => {
                if let Some(block) = self.memory.at_mut(base) {
                    block.kind = Kind::Managed { stream: to };
                }
            }
            Work::Host { function, data } => {
                if let Some(function) = function {
                    IN_HOST_FUNCTION.set(true);
                    function(std::ptr::with_exposed_provenance_mut(data));
                    IN_HOST_FUNCTION.set(false);
                }
            }
            Work::Kernel(launch) => self.run_kernel(&launch, visitor)?,
            Work::Library(call) => {
                for (address, len) in &call.ranges {
                    if !self.memory.reaches(*address, *len, visitor) {
                        return Err(Fault::illegal(&call.name, *address, *len));
                    }
                }
                let asks_again = (call.run)(std::ptr::with_exposed_provenance_mut(call.data)) != 0;
                return Ok(!asks_again);
            }
        }
        Ok(true)
    }

    /// Draws and runs one operation. False when nothing was queued.
    pub(crate) fn step(&mut self) -> bool {
        let drawn = self.schedule.draw();
        self.run(drawn)
    }

    /// The same while nobody waits for the device.
    pub(crate) fn step_unwaited(&mut self) -> bool {
        let drawn = self.schedule.draw_unwaited();
        self.run(drawn)
    }

    fn run(&mut self, drawn: Option<(OpId, Queued)>) -> bool {
        let Some((id, queued)) = drawn else { return false };
        self.clock += 1;
        // After a sticky error the device does nothing more; the queue only drains.
        let context = queued.context;
        let sound = self.contexts.get(context).is_ok_and(|context| context.sticky.is_none());
        let is_done = match sound.then(|| self.perform(queued)) {
            Some(Ok(is_done)) => is_done,
            Some(Err(fault)) => {
                self.poison(context, fault);
                true
            }
            None => true,
        };
        if is_done {
            self.schedule.finish(id);
        } else {
            self.clock -= 1;
            self.schedule.postpone(id);
            thread::sleep(REST);
        }
        true
    }

    /// What the device gets done before the next call, in the mode in which it does.
    pub(crate) fn get_on(&mut self) {
        while self.schedule.moves_between_calls() && self.step_unwaited() {}
    }

    /// Runs operations until the condition holds or nothing is left.
    pub(crate) fn run_until(&mut self, done: impl Fn(&Driver) -> bool) {
        while !done(self) && self.step() {}
    }

    /// Makes the error the last word of this context.
    pub(crate) fn poison(&mut self, context: Handle, fault: Fault) {
        self.last_fault = fault.text;
        if let Ok(context) = self.contexts.get_mut(context) {
            context.sticky.get_or_insert(fault.code);
        }
    }

    /// The sticky error of a context, if it has one.
    pub(crate) fn sound(&self, context: Handle) -> CuResult<()> {
        match self.contexts.get(context).map_err(|_| Code::CONTEXT_IS_DESTROYED)?.sticky {
            Some(code) => Err(code),
            None => Ok(()),
        }
    }
}

//! A device that breaks its contract on request, or answers what no other device does.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::cell::RefCell;

use arena_core::device::{Captures, Device, HostVisible, Obtained, Pattern};
use arena_core::{Alignment, DeviceError, DeviceErrorKind, DeviceMemory};

type Hook = Box<dyn FnMut(&'static str) -> Result<(), DeviceError>>;

thread_local! {
    // Of the thread, so that a hook can hold what no device could.
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// Runs `hook` before each call of this thread on a [`Hooked`] device, with the call's name. A hook that
/// panics, or calls the device again, is not called a second time.
pub(crate) fn before_each_call(
    hook: impl FnMut(&'static str) -> Result<(), DeviceError> + 'static,
) {
    HOOK.set(Some(Box::new(hook)));
}

/// Lets calls pass again.
pub(crate) fn no_hook() {
    HOOK.set(None);
}

/// Panics in the `n`-th call of that name from now on (1 is the next).
pub(crate) fn panic_in(name: &'static str, n: u64) {
    let mut count = countdown(name, n);
    before_each_call(move |call| {
        assert!(!count(call), "{ON_PURPOSE} {call}");
        Ok(())
    });
}

/// Refuses the `n`-th call of that name from now on (1 is the next).
pub(crate) fn fail_in(name: &'static str, n: u64) {
    let mut count = countdown(name, n);
    before_each_call(move |call| if count(call) { Err(refusal(call)) } else { Ok(()) });
}

fn countdown(name: &'static str, n: u64) -> impl FnMut(&'static str) -> bool {
    let mut calls = 0;
    move |call| {
        calls += u64::from(call == name);
        call == name && calls == n
    }
}

pub(crate) const ON_PURPOSE: &str = "told to panic in";

pub(crate) fn refusal(call: &'static str) -> DeviceError {
    let (device, reason) = ("hooked".to_owned(), "told to fail".to_owned());
    DeviceError { device, call, reason, kind: DeviceErrorKind::Refused }
}

fn before(call: &'static str) -> Result<(), DeviceError> {
    let Some(mut hook) = HOOK.take() else { return Ok(()) };
    let outcome = hook(call);
    // The hook may have set another one.
    HOOK.with_borrow_mut(|slot| {
        slot.get_or_insert(hook);
    });
    outcome
}

/// A device whose calls pass a hook, and whose words and addresses can be changed.
#[derive(Debug)]
pub(crate) struct Hooked<D> {
    pub(crate) inner: D,
    /// In place of the inner device's answers.
    pub(crate) base_alignment: Option<Alignment>,
    pub(crate) guard_pages: Option<Option<Alignment>>,
    pub(crate) commit_granularity: Option<Option<Alignment>>,
    /// As by default: there may be streams that it does not wait for.
    pub(crate) knows_its_stream_alone: bool,
    /// Memory begins so many bytes later than the inner device's.
    pub(crate) shift_bytes: u64,
}

impl<D> Hooked<D> {
    pub(crate) fn new(inner: D) -> Self {
        no_hook();
        let (base_alignment, guard_pages, commit_granularity) = (None, None, None);
        Self {
            inner,
            base_alignment,
            guard_pages,
            commit_granularity,
            knows_its_stream_alone: false,
            shift_bytes: 0,
        }
    }
}

// SAFETY: it is there to break the duties of a device, one at a time, where the tests ask for it.
// Otherwise each call goes to the inner device unchanged; memory is that device's, less its beginning.
unsafe impl<D: Device> Device for Hooked<D> {
    type Memory = D::Memory;
    type Stream = D::Stream;
    type Event = D::Event;
    const MEASURES_ONLY: bool = D::MEASURES_ONLY;
    const HOST_VISIBLE: bool = D::HOST_VISIBLE;
    const CAPTURES: bool = D::CAPTURES;

    fn name(&self) -> String {
        "hooked".to_owned()
    }

    fn memory(&self) -> Result<DeviceMemory, DeviceError> {
        self.inner.memory()
    }

    fn base_alignment(&self) -> Alignment {
        self.base_alignment.unwrap_or_else(|| self.inner.base_alignment())
    }

    fn obtain(&self, bytes: u64) -> Result<Obtained<D::Memory>, DeviceError> {
        before("obtain")?;
        let memory = self.inner.obtain(bytes + self.shift_bytes)?;
        Ok(Obtained { base_address: memory.base_address + self.shift_bytes, ..memory })
    }

    fn guard_pages(&self) -> Option<Alignment> {
        self.guard_pages.unwrap_or_else(|| self.inner.guard_pages())
    }

    fn obtain_guarded(&self, bytes: u64) -> Result<Obtained<D::Memory>, DeviceError> {
        before("obtain_guarded")?;
        let memory = self.inner.obtain_guarded(bytes + self.shift_bytes)?;
        Ok(Obtained { base_address: memory.base_address + self.shift_bytes, ..memory })
    }

    unsafe fn release(&self, memory: Obtained<D::Memory>, bytes: u64) -> Result<(), DeviceError> {
        let inner = Obtained { base_address: memory.base_address - self.shift_bytes, ..memory };
        // SAFETY: what the inner device gave for these bytes. It is released also when the hook fails.
        let released = unsafe { self.inner.release(inner, bytes + self.shift_bytes) };
        before("release").and(released)
    }

    unsafe fn give_back(&self, address: u64, bytes: u64) -> Result<u64, DeviceError> {
        before("give_back")?;
        // SAFETY: the caller's promise is passed on.
        unsafe { self.inner.give_back(address, bytes) }
    }

    fn commit_granularity(&self) -> Option<Alignment> {
        self.commit_granularity.unwrap_or_else(|| self.inner.commit_granularity())
    }

    fn reserve(&self, bytes: u64) -> Result<Obtained<D::Memory>, DeviceError> {
        before("reserve")?;
        let memory = self.inner.reserve(bytes)?;
        Ok(Obtained { base_address: memory.base_address + self.shift_bytes, ..memory })
    }

    unsafe fn unreserve(&self, memory: Obtained<D::Memory>, bytes: u64) -> Result<(), DeviceError> {
        let inner = Obtained { base_address: memory.base_address - self.shift_bytes, ..memory };
        // SAFETY: as in `release`.
        let released = unsafe { self.inner.unreserve(inner, bytes) };
        before("unreserve").and(released)
    }

    unsafe fn commit(&self, memory: &D::Memory, at: u64, bytes: u64) -> Result<(), DeviceError> {
        before("commit")?;
        // SAFETY: the caller's promise is passed on.
        unsafe { self.inner.commit(memory, at, bytes) }
    }

    unsafe fn decommit(&self, memory: &D::Memory, at: u64, bytes: u64) -> Result<(), DeviceError> {
        before("decommit")?;
        // SAFETY: as above.
        unsafe { self.inner.decommit(memory, at, bytes) }
    }

    unsafe fn fill(&self, address: u64, bytes: u64, pattern: Pattern) -> Result<(), DeviceError> {
        before("fill")?;
        // SAFETY: as above.
        unsafe { self.inner.fill(address, bytes, pattern) }
    }

    unsafe fn copy_in(&self, to_address: u64, from: &[u8]) -> Result<(), DeviceError> {
        before("copy_in")?;
        // SAFETY: as above.
        unsafe { self.inner.copy_in(to_address, from) }
    }

    unsafe fn copy_out(&self, to: &mut [u8], from_address: u64) -> Result<(), DeviceError> {
        before("copy_out")?;
        // SAFETY: as above.
        unsafe { self.inner.copy_out(to, from_address) }
    }

    unsafe fn copy_within(&self, to: u64, from: u64, bytes: u64) -> Result<(), DeviceError> {
        before("copy_within")?;
        // SAFETY: as above.
        unsafe { self.inner.copy_within(to, from, bytes) }
    }

    fn synchronise(&self) -> Result<(), DeviceError> {
        before("synchronise")?;
        self.inner.synchronise()
    }

    fn synchronise_all(&self) -> Result<(), DeviceError> {
        before("synchronise_all")?;
        if self.knows_its_stream_alone {
            self.inner.synchronise()
        } else {
            self.inner.synchronise_all()
        }
    }

    fn stream(&self) -> &D::Stream {
        self.inner.stream()
    }

    fn owns_stream(&self, stream: &D::Stream) -> bool {
        self.inner.owns_stream(stream)
    }

    fn health(&self) -> Result<(), DeviceError> {
        before("health")
    }

    fn refuse_in_capture(&self, call: &'static str) -> Result<(), DeviceError> {
        before("refuse_in_capture")?;
        self.inner.refuse_in_capture(call)
    }

    fn begin_range(&self, name: &'static str) -> Option<u64> {
        before("begin_range").ok()?;
        Some(name.len() as u64)
    }

    fn end_range(&self, _id: u64) {
        let _ = before("end_range");
    }

    fn new_event(&self) -> Result<D::Event, DeviceError> {
        before("new_event")?;
        self.inner.new_event()
    }

    fn record(&self, event: &D::Event, stream: &D::Stream) -> Result<(), DeviceError> {
        before("record")?;
        self.inner.record(event, stream)
    }

    fn wait(&self, stream: &D::Stream, event: &D::Event) -> Result<(), DeviceError> {
        before("wait")?;
        self.inner.wait(stream, event)
    }

    fn synchronise_stream(&self, stream: &D::Stream) -> Result<(), DeviceError> {
        before("synchronise_stream")?;
        self.inner.synchronise_stream(stream)
    }
}

// SAFETY: as above.
unsafe impl<D: HostVisible> HostVisible for Hooked<D> {}

// SAFETY: as above.
unsafe impl<D: Captures> Captures for Hooked<D> {
    type Graph = D::Graph;

    fn begin_capture(&self) -> Result<(), DeviceError> {
        before("begin_capture")?;
        self.inner.begin_capture()
    }

    fn end_capture(&self) -> Result<D::Graph, DeviceError> {
        before("end_capture")?;
        self.inner.end_capture()
    }

    fn abandon_capture(&self) {
        let _ = before("abandon_capture");
        self.inner.abandon_capture();
    }

    unsafe fn launch(&self, graph: &D::Graph) -> Result<(), DeviceError> {
        before("launch")?;
        // SAFETY: the caller's promise is passed on.
        unsafe { self.inner.launch(graph) }
    }
}

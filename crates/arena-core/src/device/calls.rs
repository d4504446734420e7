//! The calls of a device, by name.

/// One of the calls of [`Device`](super::Device) that can be counted or made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Call {
    /// [`obtain`](super::Device::obtain) and [`obtain_guarded`](super::Device::obtain_guarded)
    Obtain,
    /// [`release`](super::Device::release)
    Release,
    /// [`give_back`](super::Device::give_back)
    GiveBack,
    /// [`reserve`](super::Device::reserve)
    Reserve,
    /// [`unreserve`](super::Device::unreserve)
    Unreserve,
    /// [`commit`](super::Device::commit)
    Commit,
    /// [`decommit`](super::Device::decommit)
    Decommit,
    /// [`fill`](super::Device::fill)
    Fill,
    /// [`copy_in`](super::Device::copy_in)
    CopyIn,
    /// [`copy_out`](super::Device::copy_out)
    CopyOut,
    /// [`copy_within`](super::Device::copy_within)
    CopyWithin,
    /// [`synchronise`](super::Device::synchronise) and [`synchronise_all`](super::Device::synchronise_all)
    Synchronise,
    /// [`new_event`](super::Device::new_event)
    NewEvent,
    /// [`record`](super::Device::record)
    Record,
    /// [`wait`](super::Device::wait)
    Wait,
    /// [`synchronise_stream`](super::Device::synchronise_stream)
    SynchroniseStream,
}

impl Call {
    /// Every call.
    pub const ALL: [Self; 16] = [
        Self::Obtain,
        Self::Release,
        Self::GiveBack,
        Self::Reserve,
        Self::Unreserve,
        Self::Commit,
        Self::Decommit,
        Self::Fill,
        Self::CopyIn,
        Self::CopyOut,
        Self::CopyWithin,
        Self::Synchronise,
        Self::NewEvent,
        Self::Record,
        Self::Wait,
        Self::SynchroniseStream,
    ];

    /// The name of the method.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Obtain => "obtain",
            Self::Release => "release",
            Self::GiveBack => "give_back",
            Self::Reserve => "reserve",
            Self::Unreserve => "unreserve",
            Self::Commit => "commit",
            Self::Decommit => "decommit",
            Self::Fill => "fill",
            Self::CopyIn => "copy_in",
            Self::CopyOut => "copy_out",
            Self::CopyWithin => "copy_within",
            Self::Synchronise => "synchronise",
            Self::NewEvent => "new_event",
            Self::Record => "record",
            Self::Wait => "wait",
            Self::SynchroniseStream => "synchronise_stream",
        }
    }
}

/// Implements [`Device`](super::Device) for a wrapper: each call first passes
/// `self.before(Call, bytes)`, which may refuse it, and then goes to `self.inner`. When the inner
/// device obtains or commits nothing, `self.not_obtained(bytes)` is told. When it took memory back,
/// `self.decommitted(bytes)` is told. `self.memory_left(memory)` says how much of the
/// inner device's memory the wrapper leaves.
macro_rules! wrap_device {
    ($wrapper:ident) => {
        // SAFETY: each method of `Device` is forwarded, those with a default too (duty 10), with what it was
        // given, so the wrapped device's duties hold for the wrapper. What it does before touches only
        // the wrapper's own fields, calls no arena (4), and when it refuses or panics the call has not begun
        // (5, 6), but that memory is released all the same.
        unsafe impl<D: super::Device> super::Device for $wrapper<D> {
            type Memory = D::Memory;
            type Stream = D::Stream;
            type Event = D::Event;
            const MEASURES_ONLY: bool = D::MEASURES_ONLY;
            const HOST_VISIBLE: bool = D::HOST_VISIBLE;
            const CAPTURES: bool = D::CAPTURES;

            fn name(&self) -> String {
                self.inner.name()
            }

            fn memory(&self) -> Result<super::DeviceMemory, crate::error::DeviceError> {
                self.inner.memory().map(|memory| self.memory_left(memory))
            }

            fn base_alignment(&self) -> crate::bytes::Alignment {
                self.inner.base_alignment()
            }

            fn obtain(
                &self,
                bytes: u64,
            ) -> Result<super::Obtained<D::Memory>, crate::error::DeviceError> {
                self.before(super::Call::Obtain, bytes)?;
                self.inner.obtain(bytes).inspect_err(|_| self.not_obtained(bytes))
            }

            fn guard_pages(&self) -> Option<crate::bytes::Alignment> {
                self.inner.guard_pages()
            }

            fn obtain_guarded(
                &self,
                bytes: u64,
            ) -> Result<super::Obtained<D::Memory>, crate::error::DeviceError> {
                self.before(super::Call::Obtain, bytes)?;
                self.inner.obtain_guarded(bytes).inspect_err(|_| self.not_obtained(bytes))
            }

            unsafe fn release(
                &self,
                memory: super::Obtained<D::Memory>,
                bytes: u64,
            ) -> Result<(), crate::error::DeviceError> {
                let verdict = self.before(super::Call::Release, bytes);
                // SAFETY: the caller's promise is passed on. The memory is let go even when the
                // wrapper refuses, so that a test of failures leaks nothing.
                let released = unsafe { self.inner.release(memory, bytes) };
                verdict.and(released)
            }

            unsafe fn give_back(
                &self,
                address: u64,
                bytes: u64,
            ) -> Result<u64, crate::error::DeviceError> {
                self.before(super::Call::GiveBack, bytes)?;
                // SAFETY: the caller's promise is passed on.
                unsafe { self.inner.give_back(address, bytes) }
            }

            fn commit_granularity(&self) -> Option<crate::bytes::Alignment> {
                self.inner.commit_granularity()
            }

            fn reserve(
                &self,
                bytes: u64,
            ) -> Result<super::Obtained<D::Memory>, crate::error::DeviceError> {
                self.before(super::Call::Reserve, bytes)?;
                self.inner.reserve(bytes)
            }

            unsafe fn unreserve(
                &self,
                memory: super::Obtained<D::Memory>,
                bytes: u64,
            ) -> Result<(), crate::error::DeviceError> {
                let verdict = self.before(super::Call::Unreserve, bytes);
                // SAFETY: as in `release`.
                let released = unsafe { self.inner.unreserve(memory, bytes) };
                verdict.and(released)
            }

            unsafe fn commit(
                &self,
                memory: &D::Memory,
                address: u64,
                bytes: u64,
            ) -> Result<(), crate::error::DeviceError> {
                self.before(super::Call::Commit, bytes)?;
                // SAFETY: the caller's promise is passed on.
                let committed = unsafe { self.inner.commit(memory, address, bytes) };
                committed.inspect_err(|_| self.not_obtained(bytes))
            }

            unsafe fn decommit(
                &self,
                memory: &D::Memory,
                address: u64,
                bytes: u64,
            ) -> Result<(), crate::error::DeviceError> {
                self.before(super::Call::Decommit, bytes)?;
                // SAFETY: the caller's promise is passed on.
                unsafe { self.inner.decommit(memory, address, bytes) }?;
                self.decommitted(bytes);
                Ok(())
            }

            unsafe fn fill(
                &self,
                address: u64,
                bytes: u64,
                pattern: super::Pattern,
            ) -> Result<(), crate::error::DeviceError> {
                self.before(super::Call::Fill, bytes)?;
                // SAFETY: the caller's promise is passed on.
                unsafe { self.inner.fill(address, bytes, pattern) }
            }

            unsafe fn copy_in(
                &self,
                to_address: u64,
                from: &[u8],
            ) -> Result<(), crate::error::DeviceError> {
                self.before(super::Call::CopyIn, from.len() as u64)?;
                // SAFETY: the caller's promise is passed on.
                unsafe { self.inner.copy_in(to_address, from) }
            }

            unsafe fn copy_out(
                &self,
                to: &mut [u8],
                from_address: u64,
            ) -> Result<(), crate::error::DeviceError> {
                self.before(super::Call::CopyOut, to.len() as u64)?;
                // SAFETY: the caller's promise is passed on.
                unsafe { self.inner.copy_out(to, from_address) }
            }

            unsafe fn copy_within(
                &self,
                to_address: u64,
                from_address: u64,
                bytes: u64,
            ) -> Result<(), crate::error::DeviceError> {
                self.before(super::Call::CopyWithin, bytes)?;
                // SAFETY: the caller's promise is passed on.
                unsafe { self.inner.copy_within(to_address, from_address, bytes) }
            }

            fn synchronise(&self) -> Result<(), crate::error::DeviceError> {
                self.before(super::Call::Synchronise, 0)?;
                self.inner.synchronise()
            }

            fn synchronise_all(&self) -> Result<(), crate::error::DeviceError> {
                self.before(super::Call::Synchronise, 0)?;
                self.inner.synchronise_all()
            }

            fn stream(&self) -> &D::Stream {
                self.inner.stream()
            }

            fn owns_stream(&self, stream: &D::Stream) -> bool {
                self.inner.owns_stream(stream)
            }

            fn health(&self) -> Result<(), crate::error::DeviceError> {
                self.inner.health()
            }

            fn refuse_in_capture(
                &self,
                call: &'static str,
            ) -> Result<(), crate::error::DeviceError> {
                self.inner.refuse_in_capture(call)
            }

            fn begin_range(&self, name: &'static str) -> Option<u64> {
                self.inner.begin_range(name)
            }

            fn end_range(&self, id: u64) {
                self.inner.end_range(id);
            }

            fn new_event(&self) -> Result<D::Event, crate::error::DeviceError> {
                self.before(super::Call::NewEvent, 0)?;
                self.inner.new_event()
            }

            fn record(
                &self,
                event: &D::Event,
                stream: &D::Stream,
            ) -> Result<(), crate::error::DeviceError> {
                self.before(super::Call::Record, 0)?;
                self.inner.record(event, stream)
            }

            fn wait(
                &self,
                stream: &D::Stream,
                event: &D::Event,
            ) -> Result<(), crate::error::DeviceError> {
                self.before(super::Call::Wait, 0)?;
                self.inner.wait(stream, event)
            }

            fn synchronise_stream(
                &self,
                stream: &D::Stream,
            ) -> Result<(), crate::error::DeviceError> {
                self.before(super::Call::SynchroniseStream, 0)?;
                self.inner.synchronise_stream(stream)
            }
        }

        // SAFETY: each method is forwarded with what it was given, so the wrapped device's duties hold.
        unsafe impl<D: super::Captures> super::Captures for $wrapper<D> {
            type Graph = D::Graph;

            fn begin_capture(&self) -> Result<(), crate::error::DeviceError> {
                self.inner.begin_capture()
            }

            fn end_capture(&self) -> Result<D::Graph, crate::error::DeviceError> {
                self.inner.end_capture()
            }

            fn abandon_capture(&self) {
                self.inner.abandon_capture();
            }

            unsafe fn launch(&self, graph: &D::Graph) -> Result<(), crate::error::DeviceError> {
                // SAFETY: the caller's promise is passed on.
                unsafe { self.inner.launch(graph) }
            }
        }

        #[diagnostic::do_not_recommend]
        // SAFETY: the memory is the wrapped device's, and the wrapper queues nothing.
        unsafe impl<D: super::HostVisible> super::HostVisible for $wrapper<D> {}
    };
}
pub(super) use wrap_device;

//! The same step from three allocators.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use arena_scope::cudarc::driver::{CudaStream, DriverError, result, sys};
use arena_scope::{Arena, Cuda};

use super::requests::{Request, Requests};

/// An error of the driver by its code: formatting cudarc's own would call the driver again.
pub(super) fn told(call: &'static str) -> impl Fn(DriverError) -> anyhow::Error {
    move |error| anyhow::anyhow!("{call}: {:?}", error.0)
}

/// Times calls into an allocator, or does not: the clock itself takes longer than the arena.
#[derive(Debug)]
pub struct Clock {
    on: bool,
    /// Time inside the allocator, that of reading the clock included.
    pub spent: Duration,
}

impl Clock {
    /// A clock that runs, or one that only passes calls on.
    #[must_use]
    pub const fn new(on: bool) -> Self {
        Self { on, spent: Duration::ZERO }
    }

    #[inline]
    fn time<R>(&mut self, call: impl FnOnce() -> R) -> R {
        if !self.on {
            return call();
        }
        let start = Instant::now();
        let result = call();
        self.spent += start.elapsed();
        result
    }
}

/// What serves a step's requests.
pub trait DeviceAllocator {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Asks, fills and drops as the step did, and waits for the stream.
    ///
    /// # Errors
    ///
    /// The allocator's or the driver's refusal.
    fn step(&mut self, requests: &Requests, clock: &mut Clock) -> Result<()>;
}

/// What stands for the kernels: a buffer is written once, by the same driver call for all.
pub(super) fn fill(stream: &CudaStream, address: u64, size_bytes: u64) -> Result<()> {
    let count = usize::try_from(size_bytes)?;
    // SAFETY: the callers pass a live buffer of that size, which is used on this stream alone.
    unsafe { result::memset_d8_async(address, 1, count, stream.cu_stream()) }
        .map_err(told("cuMemsetD8Async"))
}

fn wait(stream: &CudaStream) -> Result<()> {
    stream.synchronize().map_err(told("cuStreamSynchronize"))
}

/// This project's arena: a scope for each step.
#[derive(Debug)]
pub struct Watermark {
    arena: Arena<Cuda>,
    stream: Arc<CudaStream>,
}

impl Watermark {
    /// An arena with room for the step.
    ///
    /// # Errors
    ///
    /// When there is no device, or it has no room.
    pub fn new(device: Cuda, requests: &Requests) -> Result<Self> {
        let stream = Arc::clone(device.stream());
        Ok(Self { arena: Arena::builder(device).capacity(requests.capacity).build()?, stream })
    }

    /// The arena's stream.
    pub(super) const fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The step, without waiting for it.
    pub(super) fn queue(&mut self, requests: &Requests, clock: &mut Clock) -> Result<()> {
        let mut guard = clock.time(|| self.arena.enter())?;
        let step = guard.scope();
        let mut slots = Vec::with_capacity(requests.buffers);
        for request in &requests.list {
            match *request {
                Request::Alloc { size_bytes, .. } => {
                    let len = usize::try_from(size_bytes)?;
                    let buffer = clock.time(|| step.alloc::<u8>(len))?;
                    fill(&self.stream, buffer.address(), size_bytes)?;
                    slots.push(Some(buffer));
                }
                Request::Drop { slot } => clock.time(|| slots[slot] = None),
            }
        }
        clock.time(|| drop(slots));
        Ok(clock.time(|| guard.close())?)
    }
}

impl DeviceAllocator for Watermark {
    fn name(&self) -> &'static str {
        "this arena"
    }

    fn step(&mut self, requests: &Requests, clock: &mut Clock) -> Result<()> {
        self.queue(requests, clock)?;
        wait(&self.stream)
    }
}

/// A step whose buffers are addresses.
fn step_by(
    stream: &CudaStream,
    requests: &Requests,
    clock: &mut Clock,
    allocate: impl Fn(usize) -> Result<u64>,
    free: impl Fn(u64) -> Result<()>,
) -> Result<()> {
    let mut slots = Vec::with_capacity(requests.buffers);
    for request in &requests.list {
        match *request {
            Request::Alloc { size_bytes, .. } => {
                let count = usize::try_from(size_bytes)?;
                let address = clock.time(|| allocate(count))?;
                slots.push(Some(address));
                fill(stream, address, size_bytes)?;
            }
            Request::Drop { slot } => {
                if let Some(address) = slots[slot].take() {
                    clock.time(|| free(address))?;
                }
            }
        }
    }
    for address in slots.into_iter().flatten() {
        clock.time(|| free(address))?;
    }
    wait(stream)
}

/// `cuMemAllocAsync` from the device's default pool, which keeps what it has: its release threshold is
/// set, as every guide advises.
#[derive(Debug)]
pub struct DriverAsync {
    stream: Arc<CudaStream>,
}

impl DriverAsync {
    /// Sets the release threshold of the device's default pool.
    ///
    /// # Errors
    ///
    /// When the device has no pools, or the driver refuses.
    pub fn new(device: &Cuda) -> Result<Self> {
        let context = device.context();
        context.bind_to_thread().map_err(told("cuCtxSetCurrent"))?;
        // SAFETY: the number is that of a device that exists.
        let pool = unsafe { result::device::get_default_mem_pool(context.cu_device()) };
        let pool = pool.map_err(told("cuDeviceGetDefaultMemPool"))?;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let mut threshold_bytes = u64::MAX;
        let value = (&raw mut threshold_bytes).cast();
        // SAFETY: the pool is the device's own, and the attribute is a live 64-bit number.
        unsafe { sys::cuMemPoolSetAttribute(pool, attribute, value) }
            .result()
            .map_err(told("cuMemPoolSetAttribute"))?;
        Ok(Self { stream: Arc::clone(device.stream()) })
    }
}

impl DeviceAllocator for DriverAsync {
    fn name(&self) -> &'static str {
        "cuMemAllocAsync"
    }

    fn step(&mut self, requests: &Requests, clock: &mut Clock) -> Result<()> {
        let stream = self.stream.cu_stream();
        // SAFETY: the stream is alive; an address is freed once, after its last use on this stream.
        let allocate = |count| unsafe { result::malloc_async(stream, count) };
        // SAFETY: as above.
        let free = |address| unsafe { result::free_async(address, stream) };
        step_by(
            &self.stream,
            requests,
            clock,
            |count| allocate(count).map_err(told("cuMemAllocAsync")),
            |address| free(address).map_err(told("cuMemFreeAsync")),
        )
    }
}

/// `cuMemAlloc` and `cuMemFree` for each buffer. A free waits for the device.
#[derive(Debug)]
pub struct DriverSync {
    stream: Arc<CudaStream>,
}

impl DriverSync {
    /// Buffers of this device, used on its stream.
    ///
    /// # Errors
    ///
    /// When the driver does not make the device current.
    pub fn new(device: &Cuda) -> Result<Self> {
        device.context().bind_to_thread().map_err(told("cuCtxSetCurrent"))?;
        Ok(Self { stream: Arc::clone(device.stream()) })
    }
}

impl DeviceAllocator for DriverSync {
    fn name(&self) -> &'static str {
        "cuMemAlloc"
    }

    fn step(&mut self, requests: &Requests, clock: &mut Clock) -> Result<()> {
        // SAFETY: the context is current since `new`, and the device's other calls keep it so; the
        // count is not zero.
        let allocate = |count| unsafe { result::malloc_sync(count) };
        // SAFETY: an address is freed once, and the driver waits for its uses.
        let free = |address| unsafe { result::free_sync(address) };
        step_by(
            &self.stream,
            requests,
            clock,
            |count| allocate(count).map_err(told("cuMemAlloc")),
            |address| free(address).map_err(told("cuMemFree")),
        )
    }
}

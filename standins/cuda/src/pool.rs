//! Stream-ordered allocation and the pools behind it.
//!
//! Addresses are reused only where a test asks for it, but a pool's books are kept as on a device: memory that was released stays reserved
//! until a synchronisation trims the pool to its release threshold.

use crate::abi::{Address, Code, CuResult, Handle};
use crate::driver::Driver;
use crate::memory::{self, Kind, Owner, Phase};
use crate::stream::Enqueued;
use crate::work::Work;

/// A pool's books, in bytes.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) device: usize,
    /// The device's own default pool.
    pub(crate) built_in: bool,
    /// Destroyed by its owner; goes with its last block.
    pub(crate) destroyed: bool,
    pub(crate) threshold: u64,
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
    /// Reuse policies, attributes 1 to 3.
    pub(crate) reuse: [i32; 3],
}

impl Pool {
    pub(crate) fn new(device: usize, built_in: bool) -> Self {
        Self {
            device,
            built_in,
            destroyed: false,
            threshold: 0,
            used: 0,
            used_high: 0,
            reserved: 0,
            reserved_high: 0,
            reuse: [1; 3],
        }
    }

    fn take(&mut self, bytes: u64) {
        self.used += bytes;
        self.reserved = self.reserved.max(self.used);
        self.used_high = self.used_high.max(self.used);
        self.reserved_high = self.reserved_high.max(self.reserved);
    }

    /// Gives memory back to the device, keeping what is in use and at most `keep` bytes.
    pub(crate) fn trim(&mut self, keep: u64) {
        self.reserved = self.used.max(self.reserved.min(keep));
    }
}

impl Driver {
    /// `cuMemAllocAsync`: the address at once, the memory in stream order.
    pub(crate) fn allocate_ordered(
        &mut self,
        bytes: u64,
        pool: Handle,
        key: Handle,
    ) -> CuResult<Address> {
        if !self.settings.pools {
            return Err(Code::NOT_SUPPORTED);
        }
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let stream = self.streams.get(key)?;
        let context = stream.context;
        if let Some(id) = stream.capture {
            // A real driver would make a memory node; the stand-in has none.
            self.invalidate(id);
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let (device, growth) = {
            let pool = self.pools.get(pool)?;
            (pool.device, (pool.used + bytes).saturating_sub(pool.reserved))
        };
        self.require_free(device, growth)?;
        let owner = Owner {
            device: Some(device),
            context,
            kind: Kind::Pooled(pool),
            phase: Phase::Ordered,
        };
        let base = match self.released_before(bytes, pool, key) {
            Some(base) => base,
            None => self.memory.allocate(bytes, owner)?,
        };
        self.pools.get_mut(pool)?.take(bytes);
        match self.enqueue(key, Work::Appear { base }, &[]) {
            Ok(_) => Ok(base),
            Err(code) => {
                self.release_pooled(base)?;
                Err(code)
            }
        }
    }

    /// The address of a block of this size whose release is queued on the same stream, which a pool gives out again at
    /// once.
    fn released_before(&mut self, bytes: u64, pool: Handle, key: Handle) -> Option<Address> {
        if !self.settings.reuses_addresses {
            return None;
        }
        let fits = |block: &&memory::Block| {
            block.released_on == Some(key) && block.len == bytes && block.kind == Kind::Pooled(pool)
        };
        let base = self.memory.blocks().find(fits)?.base;
        let block = self.memory.at_mut(base)?;
        (block.released, block.released_on) = (false, None);
        block.successors += 1;
        Some(base)
    }

    /// `cuMemFreeAsync`: the memory goes in stream order.
    pub(crate) fn free_ordered(&mut self, base: Address, key: Handle) -> CuResult<()> {
        let block = self.memory.at(base).ok_or(Code::INVALID_VALUE)?;
        if block.released || !matches!(block.kind, Kind::Pooled(_) | Kind::Plain) {
            return Err(Code::INVALID_VALUE);
        }
        let context = self.streams.get(key)?.context;
        if self.sound(context).is_err() {
            // The device does no more work, but the owner has let go.
            self.release_pooled(base)?;
            return self.sound(context);
        }
        if let Some(id) = self.streams.get(key)?.capture {
            self.invalidate(id);
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let op = self.enqueue(key, Work::Disappear { base }, &[])?;
        if let Enqueued::Op(op) = op
            && !self.schedule.is_done(op)
            && let Some(block) = self.memory.at_mut(base)
        {
            (block.released, block.released_on) = (true, Some(key));
        }
        Ok(())
    }

    /// What a queued release does when its turn comes: the block goes, or it is the next owner's.
    pub(crate) fn end_of_life(&mut self, base: Address) -> CuResult<()> {
        let Some(block) = self.memory.at_mut(base).filter(|block| block.successors > 0) else {
            return self.release_pooled(base);
        };
        block.successors -= 1;
        block.phase = Phase::Ordered;
        let (len, kind) = (block.len, block.kind);
        memory::fill_fresh(base, len);
        if let Kind::Pooled(pool) = kind {
            self.pools.get_mut(pool)?.used -= len;
        }
        Ok(())
    }

    /// Takes a block off the map and its bytes off its pool's books.
    pub(crate) fn release_pooled(&mut self, base: Address) -> CuResult<()> {
        let block = self.memory.remove(base)?;
        if let Kind::Pooled(handle) = block.kind
            && let Ok(pool) = self.pools.get_mut(handle)
        {
            pool.used -= block.len;
            if pool.destroyed && pool.used == 0 {
                self.pools.remove(handle)?;
            }
        }
        Ok(())
    }

    /// What every synchronisation does to pools.
    pub(crate) fn trim_pools(&mut self) {
        for pool in self.pools.values_mut() {
            pool.trim(pool.threshold);
        }
    }

    /// `cuMemAlloc`.
    pub(crate) fn allocate_plain(&mut self, bytes: u64) -> CuResult<Address> {
        self.refuse_in_capture()?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let (context, device) = (self.current()?, self.current_device()?);
        self.require_free(device, bytes)?;
        let owner = Owner { device: Some(device), context, kind: Kind::Plain, phase: Phase::Live };
        self.memory.allocate(bytes, owner)
    }

    /// `cuMemFree`.
    pub(crate) fn free_plain(&mut self, base: Address) -> CuResult<()> {
        self.refuse_in_capture()?;
        if base == 0 {
            return Ok(());
        }
        let block = *self.memory.at(base).ok_or(Code::INVALID_VALUE)?;
        if block.released
            || !matches!(block.kind, Kind::Plain | Kind::Pooled(_) | Kind::Managed { .. })
        {
            return Err(Code::INVALID_VALUE);
        }
        if self.settings.free_waits {
            self.run_until(|d| !d.schedule.is_busy(block.context));
        }
        self.release_pooled(base)
    }

    /// `cuMemHostAlloc`.
    pub(crate) fn allocate_pinned(&mut self, bytes: u64, flags: u32) -> CuResult<Address> {
        self.refuse_in_capture()?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let owner = Owner {
            device: None,
            context: self.current()?,
            kind: Kind::Pinned { flags },
            phase: Phase::Live,
        };
        self.memory.allocate(bytes, owner)
    }

    /// `cuMemHostRegister`: memory of the caller's becomes known.
    pub(crate) fn register_host(&mut self, base: Address, len: u64) -> CuResult<()> {
        self.refuse_in_capture()?;
        if base == 0 || len == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let overlaps = self.memory.around(base).is_some()
            || self.memory.blocks().any(|block| block.base >= base && block.base < base + len);
        if overlaps {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        let context = self.current()?;
        let kind = Kind::Registered;
        self.memory.insert(memory::Block {
            base,
            len,
            device: None,
            context,
            kind,
            phase: Phase::Live,
            released: false,
            released_on: None,
            successors: 0,
        });
        Ok(())
    }
}

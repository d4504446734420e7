//! Managed memory: one address for the host and every device, and the stream that may touch it.

use crate::abi::{Address, Code, CuResult, Handle};
use crate::driver::Driver;
use crate::memory::{Kind, Owner, Phase};
use crate::work::Work;

/// `CU_MEM_ATTACH_GLOBAL`: every stream may touch the memory.
const GLOBAL: u32 = 1;
/// `CU_MEM_ATTACH_HOST`: no stream may, on a device that cannot touch managed memory beside the host. This one can.
const HOST: u32 = 2;
/// `CU_MEM_ATTACH_SINGLE`: one stream may.
const SINGLE: u32 = 4;

impl Driver {
    /// `cuMemAllocManaged`.
    pub(crate) fn allocate_managed(&mut self, bytes: u64, flags: u32) -> CuResult<Address> {
        self.refuse_in_capture()?;
        if bytes == 0 || !matches!(flags, GLOBAL | HOST) {
            return Err(Code::INVALID_VALUE);
        }
        let (context, device) = (self.current()?, self.current_device()?);
        self.require_free(device, bytes)?;
        let kind = Kind::Managed { stream: None };
        self.memory
            .allocate(bytes, Owner { device: Some(device), context, kind, phase: Phase::Live })
    }

    fn managed(&self, base: Address, len: u64) -> CuResult<()> {
        let block = self.memory.at(base).ok_or(Code::INVALID_VALUE)?;
        let whole = len == 0 || len == block.len;
        let is_managed = matches!(block.kind, Kind::Managed { .. });
        if is_managed && whole && !block.released { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    /// `cuStreamAttachMemAsync`: from that point of the stream on. Only whole blocks, which is all that a driver takes.
    pub(crate) fn attach_managed(
        &mut self,
        base: Address,
        len: u64,
        flags: u32,
        key: Handle,
    ) -> CuResult<()> {
        self.managed(base, len)?;
        let stream = self.streams.get(key)?;
        if let Some(id) = stream.capture {
            self.invalidate(id);
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let to = match flags {
            GLOBAL | HOST => None,
            SINGLE if !stream.implicit => Some(key),
            _ => return Err(Code::INVALID_VALUE),
        };
        self.enqueue(key, Work::Attach { base, to }, &[]).map(|_| ())
    }

    /// `cuMemPrefetchAsync`: nothing moves, for there is one memory.
    pub(crate) fn prefetch(&mut self, address: Address, len: u64, key: Handle) -> CuResult<()> {
        let end = address.checked_add(len).ok_or(Code::INVALID_VALUE)?;
        let block = self.memory.around(address).ok_or(Code::INVALID_VALUE)?;
        if len == 0 || end > block.end() || !matches!(block.kind, Kind::Managed { .. }) {
            return Err(Code::INVALID_VALUE);
        }
        self.enqueue(key, Work::Marker, &[]).map(|_| ())
    }
}

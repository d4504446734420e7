//! Copies and fills, and which of them the host waits for.
//!
//! From pageable memory the bytes are taken at the call; to pageable memory the copy has ended when the call returns;
//! only between device and pinned memory does a copy take place later. Device-side calls without a stream are queued on
//! the null stream and not waited for, as on a device.

use crate::abi::{Address, Code, CuResult, Handle};
use crate::driver::Driver;
use crate::raw;
use crate::stream::Enqueued;
use crate::work::{End, Work};
use std::sync::Arc;

/// Whether the call returns before the copy has run, where the kinds of memory allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The call without a stream: it waits.
    Sync,
    /// The stream-ordered call.
    Async,
}

impl Driver {
    /// An address that must begin in live device-reachable memory. Its range is checked when the operation runs.
    fn known(&self, address: Address) -> CuResult<Address> {
        match self.memory.around(address) {
            Some(_) => Ok(address),
            None => Err(Code::INVALID_VALUE),
        }
    }

    fn is_pageable(&self, address: Address) -> bool {
        self.memory.around(address).is_none()
    }

    fn is_capturing(&self, key: Handle) -> CuResult<bool> {
        Ok(self.streams.get(key)?.capture.is_some())
    }

    fn submit_copy(
        &mut self,
        key: Handle,
        from: End,
        to: End,
        len: u64,
        wait: bool,
    ) -> CuResult<()> {
        let enqueued = self.enqueue(key, Work::Copy { from, to, len }, &[])?;
        if let (Enqueued::Op(op), true) = (enqueued, wait) {
            let context = self.streams.get(key)?.context;
            self.wait_for(op, context)?;
        }
        Ok(())
    }

    /// Host to device.
    pub(crate) fn copy_in(
        &mut self,
        to: Address,
        from: Address,
        len: u64,
        key: Handle,
        wait: Wait,
    ) -> CuResult<()> {
        if wait == Wait::Sync {
            self.refuse_in_capture()?;
        }
        if len == 0 {
            return Ok(());
        }
        if from == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let to = End::Known(self.known(to)?);
        let is_read_late = self.is_capturing(key)? || !self.settings.stages_pageable;
        let from = match (self.is_pageable(from), is_read_late) {
            (false, _) => End::Known(from),
            // A graph keeps the address and reads it at each launch.
            (true, true) => End::Pageable(from),
            (true, false) => End::Snapshot(Arc::from(raw::read(from, len))),
        };
        self.submit_copy(key, from, to, len, wait == Wait::Sync)
    }

    /// Device to host.
    pub(crate) fn copy_out(
        &mut self,
        to: Address,
        from: Address,
        len: u64,
        key: Handle,
        wait: Wait,
    ) -> CuResult<()> {
        if wait == Wait::Sync {
            self.refuse_in_capture()?;
        }
        if len == 0 {
            return Ok(());
        }
        if to == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let from = End::Known(self.known(from)?);
        let pageable = self.is_pageable(to);
        let to = if pageable { End::Pageable(to) } else { End::Known(to) };
        self.submit_copy(key, from, to, len, pageable || wait == Wait::Sync)
    }

    /// Device to device, of one device or two.
    pub(crate) fn copy_across(
        &mut self,
        to: Address,
        from: Address,
        len: u64,
        key: Handle,
    ) -> CuResult<()> {
        if len == 0 {
            return Ok(());
        }
        let (from, to) = (End::Known(self.known(from)?), End::Known(self.known(to)?));
        self.submit_copy(key, from, to, len, false)
    }

    /// Any to any: the kinds are told by the addresses.
    pub(crate) fn copy_any(
        &mut self,
        to: Address,
        from: Address,
        len: u64,
        key: Handle,
        wait: Wait,
    ) -> CuResult<()> {
        match (self.is_pageable(to), self.is_pageable(from)) {
            (false, false) if wait == Wait::Sync => {
                self.refuse_in_capture()?;
                self.copy_across(to, from, len, key)
            }
            (false, false) => self.copy_across(to, from, len, key),
            (false, true) => self.copy_in(to, from, len, key, wait),
            (true, false) => self.copy_out(to, from, len, key, wait),
            (true, true) => Err(Code::INVALID_VALUE),
        }
    }

    /// `count` times a pattern of 1, 2 or 4 bytes.
    pub(crate) fn fill(
        &mut self,
        to: Address,
        pattern: &[u8],
        count: usize,
        key: Handle,
    ) -> CuResult<()> {
        let len = (count as u64).checked_mul(pattern.len() as u64).ok_or(Code::INVALID_VALUE)?;
        if !to.is_multiple_of(pattern.len() as u64) {
            return Err(Code::INVALID_VALUE);
        }
        if len == 0 {
            return Ok(());
        }
        let to = self.known(to)?;
        self.enqueue(key, Work::Fill { to, len, pattern: Arc::from(pattern) }, &[]).map(|_| ())
    }
}

//! The map of live memory: which addresses may be touched, and from which device.

use crate::abi::{Address, Code, CuResult, Handle};
use crate::address_space::{self, AddressSpace};
use crate::raw;
use std::collections::BTreeMap;

/// Fresh memory holds this word again and again: a NaN as `f32`, a wild index as an integer.
pub const FRESH_WORD: u32 = 0x7FBA_DBAD;
/// Device memory begins on a multiple of this many bytes, and of no more: drivers promise no more.
const DEVICE_ALIGN_BYTES: u64 = 256;
/// Larger blocks are filled only this far from either end, or a fake 80 GB device would need 80 GB.
const FILL_BYTES: u64 = 32 << 20;

/// What a block is, and so who may free it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc`.
    Plain,
    /// Stream-ordered, from the pool with this handle.
    Pooled(Handle),
    /// A variable of a module.
    Module,
    /// One mapping of the physical allocation with this handle; bit n of `access` lets device n in.
    Mapped { physical: Handle, access: u64 },
    /// `cuMemAllocManaged`; with a stream, only that one may touch it.
    Managed { stream: Option<Handle> },
    /// `cuMemHostAlloc`.
    Pinned { flags: u32 },
    /// The caller's own memory, registered.
    Registered,
}

/// Where a stream-ordered block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its allocation is still queued.
    Ordered,
    Live,
}

/// A range of addresses with one owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) base: Address,
    pub(crate) len: u64,
    /// `None` for host memory.
    pub(crate) device: Option<usize>,
    pub(crate) context: Handle,
    pub(crate) kind: Kind,
    pub(crate) phase: Phase,
    /// Its owner has released it, though the release may still be queued.
    pub(crate) released: bool,
    /// Where the queued release of stream-ordered memory stands: the stream, whose next allocation may have the address.
    pub(crate) released_on: Option<Handle>,
    /// Allocations that have been given this address while releases of it were still queued.
    pub(crate) successors: u32,
}

impl Block {
    pub(crate) fn end(&self) -> Address {
        self.base + self.len
    }

    fn admits(&self, visitor: Visitor<'_>) -> bool {
        match (self.kind, self.device) {
            (Kind::Mapped { access, .. }, _) => access >> visitor.device & 1 == 1,
            (Kind::Managed { stream: Some(owner) }, _) => {
                visitor.stream.is_none_or(|stream| stream == owner)
            }
            (Kind::Managed { stream: None }, _) => true,
            (_, None) => true,
            (_, Some(owner)) => owner == visitor.device || visitor.peers.contains(&owner),
        }
    }
}

/// The device that touches memory, and the devices whose memory it may reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visitor<'a> {
    /// The stream in which it does; `None` for a copy, which a driver lets reach any stream's memory.
    pub(crate) stream: Option<Handle>,
    pub(crate) device: usize,
    pub(crate) peers: &'a [usize],
}

/// All live blocks, and the addresses still to be given out.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    blocks: BTreeMap<Address, Block>,
    device_space: AddressSpace,
    host_space: AddressSpace,
    reuses: bool,
}

impl Memory {
    /// Addresses for device memory, without a block or access yet.
    pub(crate) fn carve_device(&mut self, len: u64, align: u64) -> CuResult<Address> {
        self.device_space.carve(len, align)
    }

    /// Whether addresses that are released from here on are given out again.
    pub(crate) fn reuse_addresses(&mut self, reuses: bool) {
        self.reuses = reuses;
        if !reuses {
            self.device_space.forget_released();
            self.host_space.forget_released();
        }
    }

    /// Makes a block of fresh memory.
    pub(crate) fn allocate(&mut self, len: u64, owner: Owner) -> CuResult<Address> {
        let (space, skipped) = match owner.device {
            Some(_) => (&mut self.device_space, DEVICE_ALIGN_BYTES),
            None => (&mut self.host_space, 0),
        };
        let taken = len.checked_add(skipped).ok_or(Code::OUT_OF_MEMORY)?;
        let start = space.carve(taken, address_space::PAGE_BYTES)?;
        address_space::commit(start, taken)?;
        let base = start + skipped;
        fill_fresh(base, len);
        self.insert(Block {
            base,
            len,
            device: owner.device,
            context: owner.context,
            kind: owner.kind,
            phase: owner.phase,
            released: false,
            released_on: None,
            successors: 0,
        });
        Ok(base)
    }

    /// Puts a block whose memory exists already on the map.
    pub(crate) fn insert(&mut self, block: Block) {
        self.blocks.insert(block.base, block);
    }

    /// The block that begins at `base`.
    pub(crate) fn at(&self, base: Address) -> Option<&Block> {
        self.blocks.get(&base)
    }

    /// The block that begins at `base`, to change it.
    pub(crate) fn at_mut(&mut self, base: Address) -> Option<&mut Block> {
        self.blocks.get_mut(&base)
    }

    /// The block that holds `address`.
    pub(crate) fn around(&self, address: Address) -> Option<&Block> {
        self.blocks
            .range(..=address)
            .next_back()
            .map(|(_, block)| block)
            .filter(|block| address < block.end())
    }

    /// Every block, by address.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.blocks.values()
    }

    /// Takes the block off the map, and its pages from the process unless they are the caller's own.
    pub(crate) fn remove(&mut self, base: Address) -> CuResult<Block> {
        let block = self.blocks.remove(&base).ok_or(Code::INVALID_VALUE)?;
        if block.kind != Kind::Registered {
            let skipped = block.base % address_space::PAGE_BYTES;
            let (start, len) = (block.base - skipped, block.len + skipped);
            address_space::retire(start, len)?;
            // Mappings lie in a reservation, which keeps its addresses.
            if self.reuses && !matches!(block.kind, Kind::Mapped { .. }) {
                match block.device {
                    Some(_) => self.device_space.give_back(start, len),
                    None => self.host_space.give_back(start, len),
                }
            }
        }
        Ok(block)
    }

    /// Whether every byte of the range is live and open to the visitor. Neighbouring mappings join up.
    pub(crate) fn reaches(&self, address: Address, len: u64, visitor: Visitor<'_>) -> bool {
        let Some(end) = address.checked_add(len) else { return false };
        let mut at = address;
        while at < end {
            match self.around(at) {
                Some(block) if block.phase != Phase::Ordered && block.admits(visitor) => {
                    at = block.end()
                }
                _ => return false,
            }
        }
        true
    }

    /// The live ranges that a kernel of the visitor may touch, sorted and joined: `(start, end)`.
    pub(crate) fn reachable(&self, visitor: Visitor<'_>) -> Vec<(Address, Address)> {
        let mut ranges: Vec<(Address, Address)> = Vec::new();
        for block in self.blocks.values().filter(|b| b.phase != Phase::Ordered && b.admits(visitor))
        {
            match ranges.last_mut() {
                Some(last) if last.1 == block.base => last.1 = block.end(),
                _ => ranges.push((block.base, block.end())),
            }
        }
        ranges
    }
}

/// Who asks for a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) device: Option<usize>,
    pub(crate) context: Handle,
    pub(crate) kind: Kind,
    pub(crate) phase: Phase,
}

/// Fills live, writable memory with [`FRESH_WORD`].
pub(crate) fn fill_fresh(base: Address, len: u64) {
    let word = FRESH_WORD.to_le_bytes();
    if len <= 2 * FILL_BYTES {
        raw::fill(base, len, &word);
    } else {
        raw::fill(base, FILL_BYTES, &word);
        raw::fill(base + (len - FILL_BYTES) / 4 * 4, FILL_BYTES, &word);
    }
}

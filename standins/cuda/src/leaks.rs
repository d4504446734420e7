//! How much is still held.

use crate::driver::Driver;
use crate::memory::Kind;

/// Objects that were made and not released. A context's own end does not count as a release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Leaks {
    /// Blocks of `cuMemAlloc` and of pools.
    pub device_blocks: u64,
    /// Bytes in those blocks.
    pub device_bytes: u64,
    /// Pinned or registered pieces of host memory.
    pub host_blocks: u64,
    /// Streams that the caller made.
    pub streams: u64,
    /// Events.
    pub events: u64,
    /// Modules.
    pub modules: u64,
    /// Graphs.
    pub graphs: u64,
    /// Instantiated graphs.
    pub graph_execs: u64,
    /// Pools that the caller made.
    pub pools: u64,
    /// Physical allocations of the virtual-memory calls, mapped ones included.
    pub physicals: u64,
    /// Mappings.
    pub mappings: u64,
    /// Reserved address ranges.
    pub reservations: u64,
    /// Contexts: those made, and retains of primary ones.
    pub contexts: u64,
    /// Handles of other libraries (cuBLAS).
    pub library_handles: u64,
}

impl Leaks {
    /// Nothing is held.
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }

    fn zip(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            device_blocks: f(self.device_blocks, other.device_blocks),
            device_bytes: f(self.device_bytes, other.device_bytes),
            host_blocks: f(self.host_blocks, other.host_blocks),
            streams: f(self.streams, other.streams),
            events: f(self.events, other.events),
            modules: f(self.modules, other.modules),
            graphs: f(self.graphs, other.graphs),
            graph_execs: f(self.graph_execs, other.graph_execs),
            pools: f(self.pools, other.pools),
            physicals: f(self.physicals, other.physicals),
            mappings: f(self.mappings, other.mappings),
            reservations: f(self.reservations, other.reservations),
            contexts: f(self.contexts, other.contexts),
            library_handles: f(self.library_handles, other.library_handles),
        }
    }

    /// Both together.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    /// What is here and not there. Contexts are never counted as taken along by their own end.
    pub(crate) fn minus(&self, other: &Self) -> Self {
        Self { contexts: 0, ..self.zip(other, u64::saturating_sub) }
    }
}

impl Driver {
    /// What is held at this moment.
    pub(crate) fn live(&self) -> Leaks {
        let mut live = Leaks {
            streams: self.streams.count(|stream| !stream.implicit),
            events: self.events.count(|_| true),
            modules: self.modules.count(|_| true),
            graphs: self.graphs.count(|_| true),
            graph_execs: self.graph_execs.count(|_| true),
            pools: self.pools.count(|pool| !pool.built_in),
            physicals: self.physicals.count(|_| true),
            reservations: self.reservations.len() as u64,
            contexts: self.contexts.count(|context| !context.primary)
                + self.devices.iter().map(|device| device.retains).sum::<u64>(),
            library_handles: self.library_handles,
            ..Leaks::default()
        };
        for block in self.memory.blocks() {
            match block.kind {
                // A block whose release is queued has been released by its owner.
                Kind::Plain | Kind::Pooled(_) | Kind::Managed { .. } if !block.released => {
                    live.device_blocks += 1;
                    live.device_bytes += block.len;
                }
                Kind::Pinned { .. } | Kind::Registered => live.host_blocks += 1,
                Kind::Mapped { .. } => live.mappings += 1,
                Kind::Plain | Kind::Pooled(_) | Kind::Managed { .. } | Kind::Module => {}
            }
        }
        live
    }

    /// What is held, and what contexts took with them.
    pub(crate) fn leaks(&self) -> Leaks {
        self.live().plus(&self.abandoned)
    }
}

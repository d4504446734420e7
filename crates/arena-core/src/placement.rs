//! Which placement an arena was built with.

#![forbid(unsafe_code)]

/// Where transient buffers lie. Chosen when an arena is built; a right program gives the same results
/// under each, and the figures, signatures and capacity errors are the same too.
///
/// All but the bump are for hunting bugs. Under them a plan that was installed is not followed, and fresh
/// buffers hold zeros, or poison where that is the policy. On a device that only measures they are the
/// bump. Under [`Separate`](Self::Separate) and [`Unguarded`](Self::Unguarded) a request costs a driver
/// allocation, which is counted, so a loop is in no steady state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Placement {
    /// Each buffer above the one before, in the region.
    #[default]
    Bump,
    /// Each buffer is a device allocation of its own, between two guard zones of 256 bytes, released
    /// when its scope closes. A write into a guard zone is found then:
    /// [`ErrorKind::GuardZone`](crate::ErrorKind::GuardZone).
    Separate,
    /// The same without guard zones: the buffer's end is the allocation's, so that a checker that knows
    /// allocations, such as `compute-sanitizer`, sees the first byte beyond it. On
    /// [`Host`](crate::Host) that is a page fault, as near behind the buffer as its alignment allows.
    Unguarded,
    /// Each buffer lies at any free aligned place of a second allocation, of twice the capacity, drawn
    /// from the seed; each step draws others. Where none is left it lies where the bump would have put
    /// it, so what fits under the bump fits here. Its place is free again when its scope closes.
    Shuffled {
        /// Equal seeds draw equal places, counted from the allocation's base.
        seed: u64,
    },
}

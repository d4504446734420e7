//! Which placement an arena was built with.

#![forbid(unsafe_code)]

/// Where transient buffers lie. It is chosen when an arena is built. A correct program gives the same results
/// under each placement, with the same figures, signatures and capacity errors.
///
/// Every placement except the bump is for finding bugs. Under those, installed plans are not followed, and new
/// buffers contain zeros, or poison if that is the policy. On a device that only measures they are the bump.
/// Under [`Separate`](Self::Separate) and [`Unguarded`](Self::Unguarded) each request is a counted driver
/// allocation, so a loop has no steady state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Placement {
    /// Each buffer lies above the buffer before, in the region.
    #[default]
    Bump,
    /// Each buffer is a separate device allocation between two guard zones of 256 bytes. It is released when its
    /// scope closes. The close finds writes into a guard zone:
    /// [`ErrorKind::GuardZone`](crate::ErrorKind::GuardZone).
    Separate,
    /// The same without guard zones. The buffer ends where its allocation ends, so a checker that knows the
    /// allocations, such as `compute-sanitizer`, sees an access to the first byte after it. On
    /// [`Host`](crate::Host) such an access is a page fault, as close to the buffer as its alignment allows.
    Unguarded,
    /// Each buffer lies at a random free aligned place in a second allocation of twice the capacity. Each step
    /// draws other places. If no place is free, the buffer lies where the bump would put it, so whatever fits
    /// under the bump fits here. Its place is free again when its scope closes.
    Shuffled {
        /// Equal seeds draw equal places, counted from the allocation's base.
        seed: u64,
    },
}

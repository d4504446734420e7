//! Too little memory: how much was asked for, how much there was, who limits it, and what to try.

#![forbid(unsafe_code)]

use std::fmt;

/// Who says how much memory can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitedBy {
    /// The device has no more: the machine, for the host.
    Device,
    /// The control group of the process: a container's limit, or a batch system's, for all processes in it.
    Cgroup,
    /// The addresses that one process may have (`RLIMIT_AS`).
    AddressSpace,
    /// The private memory that one process may have (`RLIMIT_DATA`).
    DataSegment,
    /// The kernel, which promises no more than it has (`vm.overcommit_memory` is 2).
    Overcommit,
    /// The number of mappings that one process may have (`vm.max_map_count`).
    Mappings,
    /// A limit that the program set itself.
    Program,
}

impl LimitedBy {
    /// Its name, as the system has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Cgroup => "control group",
            Self::AddressSpace => "RLIMIT_AS",
            Self::DataSegment => "RLIMIT_DATA",
            Self::Overcommit => "vm.overcommit_memory",
            Self::Mappings => "vm.max_map_count",
            Self::Program => "the program's limit",
        }
    }
}

/// How much memory was asked for, how much there was, and who limits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes asked for.
    pub asked_bytes: u64,
    /// Bytes that this process could have had.
    pub free_bytes: u64,
    /// Bytes of the device in all.
    pub total_bytes: u64,
    /// Bytes that who limits allows in all.
    pub limit_bytes: u64,
    /// Who limits.
    pub limited_by: LimitedBy,
}

impl fmt::Display for Shortage {
    /// The figures, who limits, and what to try.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked_bytes, free_bytes, total_bytes, limit_bytes, limited_by } = *self;
        write!(f, "asked {asked_bytes} bytes, free {free_bytes} of {total_bytes}; ")?;
        match limited_by {
            LimitedBy::Device => write!(
                f,
                "the rest is held by this program and by other programs: ask for less, or for a fraction of what is \
                 free"
            ),
            LimitedBy::Cgroup => write!(
                f,
                "the control group allows its processes {limit_bytes} bytes together: ask for less, or raise its limit \
                 (memory.max, or that of the container or the job)"
            ),
            LimitedBy::AddressSpace => write!(
                f,
                "the process may have {limit_bytes} bytes of addresses: ask for less, or raise RLIMIT_AS (ulimit -v)"
            ),
            LimitedBy::DataSegment => write!(
                f,
                "the process may have {limit_bytes} bytes of private memory: ask for less, or raise RLIMIT_DATA \
                 (ulimit -d)"
            ),
            LimitedBy::Overcommit => write!(
                f,
                "the kernel promises {limit_bytes} bytes to all programs together: ask for less, or change \
                 vm.overcommit_memory"
            ),
            LimitedBy::Mappings => write!(
                f,
                "the process has as many mappings as the kernel allows: raise vm.max_map_count, or hold fewer \
                 separate allocations"
            ),
            LimitedBy::Program => write!(
                f,
                "the program itself allows {limit_bytes} bytes: ask for less, or raise that limit"
            ),
        }
    }
}

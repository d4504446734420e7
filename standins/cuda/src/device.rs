//! Fake devices: how many, how large, and what they say of themselves.

use crate::abi::{Code, CuResult, Handle};
use crate::driver::Driver;
use crate::memory::Kind;
use crate::pool::Pool;
use crate::settings::Settings;

/// One fake device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) primary: Option<Handle>,
    pub(crate) retains: u64,
    pub(crate) primary_flags: u32,
    pub(crate) default_pool: Handle,
    pub(crate) pool: Handle,
}

impl Driver {
    /// Sets how many devices there are. Only before a context exists.
    pub(crate) fn set_devices(&mut self, count: usize) {
        self.pools = Default::default();
        self.devices.clear();
        for device in 0..count {
            let pool = self.pools.add(Pool::new(device, true));
            self.devices.push(Device {
                primary: None,
                retains: 0,
                primary_flags: 0,
                default_pool: pool,
                pool,
            });
        }
    }

    /// The index of a device number.
    pub(crate) fn device_index(&self, device: i32) -> CuResult<usize> {
        usize::try_from(device).ok().filter(|d| *d < self.devices.len()).ok_or(Code::INVALID_DEVICE)
    }

    /// All device indices.
    pub(crate) fn all_devices(&self) -> Vec<usize> {
        (0..self.devices.len()).collect()
    }

    /// Free bytes of a device: pools hold what they have reserved, not what is in use.
    pub(crate) fn free_bytes(&self, device: usize) -> u64 {
        let blocks = self.memory.blocks().filter(|block| {
            block.device == Some(device)
                && matches!(block.kind, Kind::Plain | Kind::Managed { .. } | Kind::Module)
        });
        let plain: u64 = blocks.map(|block| block.len).sum();
        let pooled: u64 =
            self.pools.iter().filter(|(_, p)| p.device == device).map(|(_, p)| p.reserved).sum();
        let physical: u64 =
            self.physicals.iter().filter(|(_, p)| p.device == device).map(|(_, p)| p.len).sum();
        let taken = self.settings.taken_bytes + plain + pooled + physical;
        self.settings.total_bytes.saturating_sub(taken)
    }

    /// Refuses a request that the device has no room for.
    pub(crate) fn require_free(&self, device: usize, bytes: u64) -> CuResult<()> {
        if bytes > self.free_bytes(device) { Err(Code::OUT_OF_MEMORY) } else { Ok(()) }
    }
}

/// The value of a `CUdevice_attribute`: those of a data-centre GPU of compute capability 9.0 where it matters, 0 for
/// features that the stand-in lacks.
pub(crate) fn attribute(settings: &Settings, device: usize, attribute: u32) -> CuResult<i32> {
    Ok(match attribute {
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        8 => limits::SHARED_BYTES as i32,
        9 => 65536,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => 65536,
        13 => 1_980_000,
        14 => 512,
        15 | 31 | 41 | 78 | 79 | 80 | 83 | 89 | 95 | 99 | 103 => 1,
        16 => limits::MULTIPROCESSORS,
        18 | 17 | 20 | 88 | 100 | 101 => 0,
        19 | 90 | 91 | 92 | 93 => 1,
        32 | 35 => 0,
        33 => device as i32 + 1,
        34 | 50 => 0,
        36 => 2_619_000,
        37 => 5120,
        38 => 50 << 20,
        39 => limits::THREADS_PER_MULTIPROCESSOR,
        40 => 3,
        75 => settings.capability.0,
        76 => settings.capability.1,
        81 => 233_472,
        97 => limits::OPT_IN_SHARED_BYTES as i32,
        102 => i32::from(settings.granularity_bytes > 0),
        106 => limits::BLOCKS_PER_MULTIPROCESSOR,
        111 => 1024,
        115 => i32::from(settings.pools),
        119 => 1,
        other if (1..=144).contains(&other) => 0,
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// Limits of the fake devices.
pub(crate) mod limits {
    /// Shared memory that a block may use without asking.
    pub(crate) const SHARED_BYTES: u64 = 48 << 10;
    /// Shared memory that a kernel may ask for by attribute.
    pub(crate) const OPT_IN_SHARED_BYTES: u64 = 227 << 10;
    pub(crate) const MULTIPROCESSORS: i32 = 132;
    pub(crate) const THREADS_PER_MULTIPROCESSOR: i32 = 2048;
    pub(crate) const BLOCKS_PER_MULTIPROCESSOR: i32 = 32;
    pub(crate) const THREADS_PER_BLOCK: u32 = 1024;
}

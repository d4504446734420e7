//! How much memory this process can have on this machine, and who says so.
//!
//! Where the system tells: the machine itself, the control groups of the process (version 1 and 2), its resource
//! limits, and what the kernel promises at most. What cannot be read sets no bound.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use crate::device::DeviceMemory;
use crate::shortage::LimitedBy;

/// The name of the host device.
pub(super) const HOST: &str = "host";

/// One bound: how much it allows in all, and how much of that is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bound {
    by: LimitedBy,
    limit_bytes: u64,
    free_bytes: u64,
}

/// Where the system tells about memory, and the limits of the process.
#[derive(Debug)]
struct Source {
    /// What `/proc` and `/sys` lie in.
    root: PathBuf,
    address_space_bytes: Option<u64>,
    data_bytes: Option<u64>,
}

/// What the process can have now; `None` where the system tells nothing about the machine's memory.
pub(super) fn memory() -> Option<DeviceMemory> {
    let limit = |resource| getrlimit(resource).current;
    let source = Source {
        root: PathBuf::from("/"),
        address_space_bytes: limit(Resource::As),
        data_bytes: limit(Resource::Data),
    };
    source.memory()
}

/// Whether the process has as many mappings as the kernel allows one process.
pub(super) fn is_out_of_mappings() -> bool {
    let most = read_number(Path::new("/proc/sys/vm/max_map_count"));
    let now = fs::read_to_string("/proc/self/maps").map(|maps| maps.lines().count() as u64);
    // One call can need two more: it may cut a mapping in three.
    most.zip(now.ok()).is_some_and(|(most, now)| now + 2 > most)
}

impl Source {
    fn memory(&self) -> Option<DeviceMemory> {
        let table = self.read("proc/meminfo")?;
        let total_bytes = entry_bytes(&table, "MemTotal:")?;
        let free_bytes = entry_bytes(&table, "MemAvailable:")?;
        let machine = Bound { by: LimitedBy::Device, limit_bytes: total_bytes, free_bytes };
        let rest = [self.cgroups(), self.address_space(), self.data(), self.promised(&table)];
        // The first of equals: the machine.
        let tightest = rest.into_iter().flatten().fold(machine, |tightest, bound| {
            if bound.free_bytes < tightest.free_bytes { bound } else { tightest }
        });
        let Bound { by: limited_by, limit_bytes, free_bytes } = tightest;
        let device = HOST.to_owned();
        Some(DeviceMemory { device, free_bytes, total_bytes, limit_bytes, limited_by })
    }

    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    /// The tightest of the control groups that the process is in, and of those around it.
    fn cgroups(&self) -> Option<Bound> {
        let groups = self.read("proc/self/cgroup")?;
        let bounds = groups.lines().filter_map(|line| {
            let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
            let group = group.trim_start_matches('/');
            let memory = controllers.split(',').any(|controller| controller == "memory");
            if controllers.is_empty() {
                self.tightest("sys/fs/cgroup", group, &Files::VERSION_2)
            } else if memory {
                self.tightest("sys/fs/cgroup/memory", group, &Files::VERSION_1)
            } else {
                None
            }
        });
        bounds.min_by_key(|bound| bound.free_bytes)
    }

    fn tightest(&self, mount: &str, group: &str, files: &Files) -> Option<Bound> {
        let bounds = Path::new(group).ancestors().filter_map(|group| {
            let folder = self.root.join(mount).join(group);
            let limit_bytes = read_number(&folder.join(files.limit))?;
            let used_bytes = read_number(&folder.join(files.used)).unwrap_or(0);
            // Cached files that nobody has used for a while are given up when memory is needed.
            let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
            let cached_bytes = statistics
                .lines()
                .find_map(|line| line.strip_prefix(files.cached)?.trim().parse::<u64>().ok());
            let held_bytes = used_bytes.saturating_sub(cached_bytes.unwrap_or(0));
            let free_bytes = limit_bytes.saturating_sub(held_bytes);
            Some(Bound { by: LimitedBy::Cgroup, limit_bytes, free_bytes })
        });
        bounds.min_by_key(|bound| bound.free_bytes)
    }

    fn address_space(&self) -> Option<Bound> {
        self.resource(LimitedBy::AddressSpace, self.address_space_bytes?, "VmSize:")
    }

    fn data(&self) -> Option<Bound> {
        self.resource(LimitedBy::DataSegment, self.data_bytes?, "VmData:")
    }

    fn resource(&self, by: LimitedBy, limit_bytes: u64, used: &str) -> Option<Bound> {
        let used_bytes = entry_bytes(&self.read("proc/self/status")?, used)?;
        Some(Bound { by, limit_bytes, free_bytes: limit_bytes.saturating_sub(used_bytes) })
    }

    /// What the kernel still promises, where it promises no more than it has.
    fn promised(&self, table: &str) -> Option<Bound> {
        let mode = self.read("proc/sys/vm/overcommit_memory")?;
        if mode.trim() != "2" {
            return None;
        }
        let limit_bytes = entry_bytes(table, "CommitLimit:")?;
        let promised_bytes = entry_bytes(table, "Committed_AS:")?;
        let free_bytes = limit_bytes.saturating_sub(promised_bytes);
        Some(Bound { by: LimitedBy::Overcommit, limit_bytes, free_bytes })
    }
}

/// The names of a control group's files.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// In `memory.stat`.
    cached: &'static str,
}

impl Files {
    const VERSION_1: Self = Self {
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        cached: "total_inactive_file ",
    };
    const VERSION_2: Self =
        Self { limit: "memory.max", used: "memory.current", cached: "inactive_file " };
}

/// The number that a file consists of; `None` for `max`, which stands for no limit.
fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// An entry of a table of `/proc`, which counts in KiB.
fn entry_bytes(table: &str, name: &str) -> Option<u64> {
    let entry = table.lines().find_map(|line| line.strip_prefix(name)?.strip_suffix(" kB"))?;
    entry.trim_start().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::first("MemTotal:", Some(16_777_216))]
    #[case::later("MemAvailable:", Some(3 << 10))]
    #[case::absent("MemFree:", None)]
    #[case::without_a_unit("Pages:", None)]
    #[case::beyond_64_bits("Huge:", None)]
    fn an_entry_is_in_kib(#[case] name: &str, #[case] bytes: Option<u64>) {
        let table = "MemTotal:       16384 kB\nMemAvailable: 3 kB\nPages: 7\nHuge: 18446744073709551615 kB\n";
        assert_eq!(entry_bytes(table, name), bytes);
    }

    const MEMINFO: &str = "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 800 kB\nCommitLimit: 900 kB\n\
                           Committed_AS: 650 kB\n";

    /// A machine with these files, and a process with these limits in KiB.
    fn on(files: &[(&str, &str)], limits: [Option<u64>; 2]) -> (LimitedBy, u64, u64) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [("proc/meminfo", MEMINFO)].iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let [address_space_bytes, data_bytes] = limits.map(|kib| kib.map(|kib| kib << 10));
        let source = Source { root: root.path().to_owned(), address_space_bytes, data_bytes };
        let memory = source.memory().unwrap();
        assert_eq!(memory.total_bytes, 1000 << 10);
        (memory.limited_by, memory.limit_bytes >> 10, memory.free_bytes >> 10)
    }

    const STATUS: (&str, &str) = ("proc/self/status", "VmSize:\t  300 kB\nVmData:\t  100 kB\n");
    const MAX: &str = "sys/fs/cgroup/a/b/memory.max";
    const CURRENT: &str = "sys/fs/cgroup/a/b/memory.current";
    const IN_B: (&str, &str) = ("proc/self/cgroup", "0::/a/b\n");

    #[rstest]
    #[case::the_machine(&[STATUS], [None, None], (LimitedBy::Device, 1000, 800))]
    #[case::address_space(&[STATUS], [Some(400), None], (LimitedBy::AddressSpace, 400, 100))]
    #[case::data(&[STATUS], [None, Some(150)], (LimitedBy::DataSegment, 150, 50))]
    #[case::a_limit_above_the_rest(&[STATUS], [Some(5000), None], (LimitedBy::Device, 1000, 800))]
    #[case::a_limit_below_what_is_used(&[STATUS], [Some(200), None], (LimitedBy::AddressSpace, 200, 0))]
    #[case::promises(
        &[("proc/sys/vm/overcommit_memory", "2\n")],
        [None, None],
        (LimitedBy::Overcommit, 900, 250)
    )]
    #[case::more_than_promises(&[("proc/sys/vm/overcommit_memory", "0\n")], [None, None], (LimitedBy::Device, 1000, 800))]
    #[case::cgroup_2(
        &[IN_B, (MAX, "512000"), (CURRENT, "307200")],
        [None, None],
        (LimitedBy::Cgroup, 500, 200)
    )]
    #[case::cgroup_2_with_cached_files(
        &[IN_B, (MAX, "512000"), (CURRENT, "307200"), ("sys/fs/cgroup/a/b/memory.stat", "anon 1\ninactive_file 102400\n")],
        [None, None],
        (LimitedBy::Cgroup, 500, 300)
    )]
    #[case::cgroup_2_without_a_limit(&[IN_B, (MAX, "max"), (CURRENT, "307200")], [None, None], (LimitedBy::Device, 1000, 800))]
    #[case::cgroup_2_of_a_parent(
        &[IN_B, (MAX, "max"), ("sys/fs/cgroup/a/memory.max", "204800"), ("sys/fs/cgroup/a/memory.current", "102400")],
        [None, None],
        (LimitedBy::Cgroup, 200, 100)
    )]
    #[case::cgroup_1(
        &[
            ("proc/self/cgroup", "7:cpu,cpuacct:/x\n4:memory:/job\n"),
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "409600"),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "102400"),
        ],
        [None, None],
        (LimitedBy::Cgroup, 400, 300)
    )]
    fn the_tightest_bound_counts(
        #[case] files: &[(&str, &str)],
        #[case] limits: [Option<u64>; 2],
        #[case] expected: (LimitedBy, u64, u64),
    ) {
        assert_eq!(on(files, limits), expected);
    }
}

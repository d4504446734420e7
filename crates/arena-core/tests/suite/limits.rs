//! Limits of the process: who limits what the host gives is told, with the figures.

use arena_core::{
    ByteSize, Capacity, Device, DeviceErrorKind, Error, ErrorKind, Host, LimitedBy, RawArena,
    Shortage,
};
use arena_testing::alone;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const MIB: u64 = 1 << 20;

/// Limits the process to so much more than it has of `resource` now, which `/proc` tells under `name`.
fn limit(resource: Resource, name: &str, more_bytes: u64) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let used_kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    let limit_bytes = (used_kib << 10) + more_bytes;
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(limit_bytes), maximum }).unwrap();
    limit_bytes
}

#[track_caller]
fn shortage(error: &Error) -> Shortage {
    match error.kind() {
        ErrorKind::Device(refused) => match refused.kind {
            DeviceErrorKind::OutOfMemory(Some(shortage)) => shortage,
            _ => panic!("{error}"),
        },
        _ => panic!("{error}"),
    }
}

/// A region of 300 MiB under a limit of 200 MiB more than there is.
fn refused_under(resource: Resource, name: &str, by: LimitedBy, advice: &str) {
    let limit_bytes = limit(resource, name, 200 * MIB);
    let memory = Host::new().memory().unwrap();
    assert_eq!((memory.limited_by, memory.limit_bytes), (by, limit_bytes));
    assert!((190 * MIB..=200 * MIB).contains(&memory.free_bytes), "{memory:?}");
    assert!(memory.total_bytes > limit_bytes, "{memory:?}");

    let refused = RawArena::new(Host::new(), ByteSize::mib(300)).unwrap_err();
    let facts = shortage(&refused);
    assert_eq!((facts.asked_bytes, facts.limited_by), (300 * MIB, by));
    assert_eq!(facts.limit_bytes, limit_bytes);
    assert!((190 * MIB..=200 * MIB).contains(&facts.free_bytes), "{facts:?}");
    assert!(refused.to_string().contains(advice), "{refused}");

    let half = Capacity::fraction_of_free(0.5).on(&Host::new()).unwrap();
    assert!((95 * MIB..=100 * MIB).contains(&half.bytes()), "{half}");
    let arena = RawArena::new(Host::new(), half).unwrap();
    assert_eq!(arena.persistent_from(&[1_u8; 100]).unwrap().view().to_vec().unwrap(), [1; 100]);
}

#[test]
fn a_limit_of_addresses_is_told_with_what_to_raise() {
    alone(|| {
        refused_under(Resource::As, "VmSize:", LimitedBy::AddressSpace, "RLIMIT_AS");
    });
}

#[test]
fn a_limit_of_private_memory_is_told_with_what_to_raise() {
    alone(|| {
        refused_under(Resource::Data, "VmData:", LimitedBy::DataSegment, "RLIMIT_DATA");
    });
}

/// A group of its own for a process, where this machine lets a test make one.
#[test]
fn a_limit_of_the_control_group_is_told_for_all_its_processes() {
    alone(|| {
        let Some(group) = Group::new(512 * MIB) else {
            println!(
                "no control group can be made here: the table of `device/host/limits.rs` stands for it"
            );
            return;
        };
        let memory = Host::new().memory().unwrap();
        assert_eq!((memory.limited_by, memory.limit_bytes), (LimitedBy::Cgroup, 512 * MIB));
        assert!(memory.free_bytes <= 512 * MIB);
        let refused =
            Capacity::exactly(ByteSize::gib(1)).headroom(ByteSize::mib(1)).on(&Host::new());
        let refused = refused.unwrap_err();
        assert_eq!(shortage(&refused).limited_by, LimitedBy::Cgroup);
        assert!(
            refused.to_string().contains("its processes 536870912 bytes together"),
            "{refused}"
        );
        drop(group);
    });
}

/// A control group that this process is in.
struct Group(std::path::PathBuf);

impl Group {
    /// `None` where the file system of control groups, or its memory controller, cannot be written.
    fn new(limit_bytes: u64) -> Option<Self> {
        let id = std::process::id().to_string();
        let (version_2, version_1) = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory");
        [(version_2, "memory.max"), (version_1, "memory.limit_in_bytes")].into_iter().find_map(
            |(mount, limit)| {
                // Not where only the kernel makes files, or where it is no file system of groups.
                std::fs::read(std::path::Path::new(mount).join("cgroup.procs")).ok()?;
                let folder = std::path::Path::new(mount).join(format!("arena-test-{id}"));
                std::fs::create_dir(&folder).ok()?;
                let group = Self(folder);
                std::fs::metadata(group.0.join(limit)).ok()?;
                std::fs::write(group.0.join(limit), limit_bytes.to_string()).ok()?;
                std::fs::write(group.0.join("cgroup.procs"), &id).ok()?;
                Some(group)
            },
        )
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(parent) = self.0.parent() {
            let _ = std::fs::write(parent.join("cgroup.procs"), std::process::id().to_string());
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

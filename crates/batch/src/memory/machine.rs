//! The memory of the machine, or of the container that this process runs in: the total and what is left.

use std::fs::read_to_string;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// Bytes that all processes here may use together: the machine's memory, or less if a cgroup (of either version) limits
/// it. `None` if the system does not report it.
pub fn memory_bytes() -> Option<u64> {
    let limits = groups().into_iter().filter_map(|group| group.limit);
    limits.chain(of_machine("MemTotal:")).min()
}

/// Bytes of address space that this process may still map, if `ulimit -v` limits it. Threads take a good part of it:
/// each has a stack, most of which it never touches.
pub fn address_bytes_left() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    let status = read_to_string("/proc/self/status").unwrap_or_default();
    Some(limit.saturating_sub(field(&status, "VmSize:").unwrap_or(0) << 10))
}

/// Bytes that are left before the kernel kills a process; reclaimable file pages count as left.
pub(super) fn left_bytes() -> Option<u64> {
    let left = groups().into_iter().filter_map(|group| Some(group.limit?.saturating_sub(group.used)));
    left.chain(of_machine("MemAvailable:")).min()
}

#[derive(Debug, PartialEq, Eq)]
struct CgroupMemory {
    limit: Option<u64>,
    used: u64,
}

/// The names that a version of cgroups uses for the relevant values.
struct CgroupVersion {
    folder: &'static str,
    limit: &'static str,
    used: &'static str,
    /// File memory that the kernel could reclaim.
    files: [&'static str; 3],
}

const FIRST: CgroupVersion = CgroupVersion {
    folder: "memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    files: ["total_inactive_file ", "total_active_file ", "slab_reclaimable "],
};
const SECOND: CgroupVersion = CgroupVersion {
    folder: "",
    limit: "memory.max",
    used: "memory.current",
    files: ["inactive_file ", "active_file ", "slab_reclaimable "],
};

/// This process's cgroups and their ancestors.
fn groups() -> Vec<CgroupMemory> {
    groups_of(&read_to_string("/proc/self/cgroup").unwrap_or_default(), Path::new("/sys/fs/cgroup"))
}

/// The cgroups listed in `of_process`. In a container, the paths may be the machine's and not exist: its own group is
/// then the one that is mounted.
fn groups_of(of_process: &str, mounted: &Path) -> Vec<CgroupMemory> {
    let lines = of_process.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        match controllers {
            "" => Some((&SECOND, path)),
            _ if controllers.split(',').any(|controller| controller == "memory") => Some((&FIRST, path)),
            _ => None,
        }
    });
    let ancestors = lines.flat_map(|(version, path)| {
        Path::new(path.trim_start_matches('/')).ancestors().map(move |group| (version, group))
    });
    let group = |(version, folder): (&CgroupVersion, &Path)| {
        let folder = mounted.join(version.folder).join(folder);
        let read = |name: &str| read_to_string(folder.join(name)).unwrap_or_default();
        let number = |text: String| text.trim().parse::<u64>().ok();
        let stat = read("memory.stat");
        let files = version.files.map(|name| field(&stat, name).unwrap_or(0));
        let used = number(read(version.used)).unwrap_or(0).saturating_sub(files.iter().sum());
        CgroupMemory { limit: number(read(version.limit)), used }
    };
    ancestors.map(group).collect()
}

fn of_machine(name: &str) -> Option<u64> {
    field(&read_to_string("/proc/meminfo").unwrap_or_default(), name).map(|kib| kib << 10)
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Budgets come from one and jobs are ended because of the other: both must be available, in the same unit.
    #[test]
    fn some_is_left_of_what_there_is() {
        let (all, left) = (memory_bytes().unwrap(), left_bytes().unwrap());
        assert!(all > 64 << 20 && left > 0 && left < all, "{left} of {all}");
        assert_eq!(field("anon 5\nfile 7\ninactive_file 9\n", "file "), Some(7));
    }

    /// A container has its own group under either version, with or without the machine's path to it. A process that
    /// looked in only one place took the whole machine's memory for its own, and was killed.
    #[test]
    fn limits_of_both_versions_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let least =
            |of_process: &str| groups_of(of_process, folder.path()).iter().filter_map(|group| group.limit).min();
        write("a/b/memory.max", "max\n");
        write("a/memory.max", "1000\n");
        write("a/memory.current", "700\n");
        write("a/memory.stat", "anon 600\ninactive_file 60\nactive_file 30\n");
        assert_eq!(least("0::/a/b\n"), Some(1000));
        assert!(groups_of("0::/a/b\n", folder.path()).contains(&CgroupMemory { limit: Some(1000), used: 610 }));
        write("memory/memory.limit_in_bytes", "3000\n");
        write("memory/memory.usage_in_bytes", "900\n");
        write("memory/memory.stat", "inactive_file 9\ntotal_inactive_file 100\n");
        for of_process in ["5:cpu:/x\n4:memory:/docker/17\n0::/\n", "4:hugetlb,memory:/\n"] {
            assert_eq!(least(of_process), Some(3000));
            assert!(groups_of(of_process, folder.path()).contains(&CgroupMemory { limit: Some(3000), used: 800 }));
        }
        assert_eq!(least("3:cpuset:/a\n"), None);
    }
}

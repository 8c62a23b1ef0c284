//! The memory of the machine, or of the container that this process is in: how much there is, and how much is left.

use std::fs::read_to_string;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// Bytes that the processes here may have together: what the machine has, or less where a cgroup (of either version)
/// says so. `None` where the system does not tell.
pub fn memory_bytes() -> Option<u64> {
    let limits = groups().into_iter().filter_map(|group| group.limit);
    limits.chain(of_machine("MemTotal:")).min()
}

/// Bytes of addresses that this process may still map, where `ulimit -v` says so. Threads take a good part of them:
/// each has a stack, most of which it never touches.
pub fn address_bytes_left() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    let status = read_to_string("/proc/self/status").unwrap_or_default();
    Some(limit.saturating_sub(field(&status, "VmSize:").unwrap_or(0) << 10))
}

/// Bytes that are left of them before the kernel ends a process; files that it could let go of count as left.
pub(super) fn left_bytes() -> Option<u64> {
    let left = groups().into_iter().filter_map(|group| Some(group.limit?.saturating_sub(group.used)));
    left.chain(of_machine("MemAvailable:")).min()
}

#[derive(Debug, PartialEq, Eq)]
struct CgroupMemory {
    limit: Option<u64>,
    used: u64,
}

/// How a version of cgroups calls what counts here.
struct CgroupVersion {
    folder: &'static str,
    limit: &'static str,
    used: &'static str,
    /// What of it the kernel could let go of.
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

/// This process's cgroups and those that they lie in.
fn groups() -> Vec<CgroupMemory> {
    groups_of(&read_to_string("/proc/self/cgroup").unwrap_or_default(), Path::new("/sys/fs/cgroup"))
}

/// Those of a process of which the system tells `of_process`. In a container the paths may be the machine's, which are
/// not there: its own group is what is mounted.
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

    /// Budgets are made of the one, and jobs ended by the other: they must be there, and in one unit.
    #[test]
    fn some_is_left_of_what_there_is() {
        let (all, left) = (memory_bytes().unwrap(), left_bytes().unwrap());
        assert!(all > 64 << 20 && left > 0 && left < all, "{left} of {all}");
        assert_eq!(field("anon 5\nfile 7\ninactive_file 9\n", "file "), Some(7));
    }

    /// A container has a group of its own under either version, with or without the machine's path to it: whoever
    /// looked in one place only took the machine's memory for its own, and was killed.
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

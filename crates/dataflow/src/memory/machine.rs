//! The memory of the machine, or of the container that this process is in: how much there is, and how much is left.

use std::fs::read_to_string;
use std::path::Path;

/// Bytes that the processes here may have together: what the machine has, or less where a cgroup (version 2) says so. `None`
/// where the system does not tell.
pub fn memory_bytes() -> Option<u64> {
    let limits = groups().into_iter().filter_map(|group| group.limit);
    limits.chain(of_machine("MemTotal:")).min()
}

/// Bytes that are left of them before the kernel ends a process; files that it could let go of count as left.
pub(super) fn left_bytes() -> Option<u64> {
    let left = groups().into_iter().filter_map(|group| Some(group.limit?.saturating_sub(group.used)));
    left.chain(of_machine("MemAvailable:")).min()
}

struct Group {
    limit: Option<u64>,
    used: u64,
}

/// This process's cgroup and those that it lies in.
fn groups() -> Vec<Group> {
    let of_process = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(path) = of_process.lines().find_map(|line| line.strip_prefix("0::")) else { return Vec::new() };
    let group = |folder: &Path| {
        let read = |name: &str| read_to_string(Path::new("/sys/fs/cgroup").join(folder).join(name)).unwrap_or_default();
        let number = |text: String| text.trim().parse::<u64>().ok();
        let stat = read("memory.stat");
        let files = ["inactive_file ", "active_file ", "slab_reclaimable "].map(|name| field(&stat, name).unwrap_or(0));
        let used = number(read("memory.current")).unwrap_or(0).saturating_sub(files.iter().sum());
        Group { limit: number(read("memory.max")), used }
    };
    Path::new(path.trim_start_matches('/')).ancestors().map(group).collect()
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
}

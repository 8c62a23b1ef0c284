//! The control groups (cgroups) of this process and its workers: what they limit, and whether the kernel has killed
//! processes because memory ran out.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Without a limit, version 1 writes the largest number of pages; a value from here on means that no limit is set.
const LEAST_OF_NONE: u64 = 1 << 62;

/// The folders of this process's groups, from its own up to the root: those of version 2, then those of version 1's
/// memory controller.
fn folders() -> Vec<PathBuf> {
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounted = groups.lines().filter_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        match controllers {
            "" => Some(("/sys/fs/cgroup", group)),
            _ if controllers.split(',').any(|name| name == "memory") => Some(("/sys/fs/cgroup/memory", group)),
            _ => None,
        }
    });
    let folders = mounted.flat_map(|(mounted, group)| {
        Path::new(group.trim_start_matches('/')).ancestors().map(move |folder| Path::new(mounted).join(folder))
    });
    folders.collect()
}

/// The smallest value of a setting, from this process's group up to the root.
fn smallest(file: &str, parse: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    folders().into_iter().filter_map(|folder| parse(&read_to_string(folder.join(file)).ok()?)).reduce(f64::min)
}

/// The bytes that all processes in this process's groups may use together, and the file that sets this limit.
pub fn memory_limit() -> Option<(&'static str, u64)> {
    let limit = |name| {
        let bytes = smallest(name, |text| text.trim().parse().ok().filter(|&bytes| bytes < LEAST_OF_NONE as f64));
        Some((name, bytes? as u64))
    };
    ["memory.max", "memory.limit_in_bytes"].into_iter().filter_map(limit).min_by_key(|&(_, bytes)| bytes)
}

/// How many processes the kernel has killed because no memory was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomKills {
    /// In this process's own group, or groups within it.
    group: u64,
    /// On the whole machine, other containers included.
    machine: u64,
}

/// Where memory ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomScope {
    /// In this process's group: its limit, and the file that sets it; `None` if only the machine limits it.
    Here(Option<(&'static str, u64)>),
    /// Somewhere on the machine.
    Somewhere,
}

impl OomKills {
    /// The kills so far. What the system does not report counts as none.
    pub fn now() -> Self {
        let of_group = folders().into_iter().find_map(|folder| {
            let read = |name| count(&read_to_string(folder.join(name)).ok()?);
            read("memory.events").or_else(|| read("memory.oom_control"))
        });
        let of_machine = read_to_string("/proc/vmstat").ok().and_then(|text| count(&text));
        OomKills { group: of_group.unwrap_or(0), machine: of_machine.unwrap_or(0) }
    }

    /// Where the kernel has killed because of memory since `self`, up to `now`.
    pub fn until(self, now: Self, limit: Option<(&'static str, u64)>) -> Option<OomScope> {
        if now.group > self.group {
            return Some(OomScope::Here(limit));
        }
        (now.machine > self.machine).then_some(OomScope::Somewhere)
    }
}

/// The number after `oom_kill` in a file.
fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files of both versions and of the machine have other lines that begin similarly.
    #[test]
    fn kills_are_found_in_every_file() {
        assert_eq!(count("low 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 9\n"), Some(2));
        assert_eq!(count("oom_kill_disable 1\nunder_oom 1\noom_kill 5\n"), Some(5));
        assert_eq!(count("pgfault 3\n"), None);
    }

    /// A kill in another container must not be reported as caused by this job's limit.
    #[test]
    fn only_new_kills_count_and_the_own_group_comes_first() {
        let at = |group, machine| OomKills { group, machine };
        let limit = Some(("memory.max", 1000));
        assert_eq!(at(2, 5).until(at(2, 5), limit), None);
        assert_eq!(at(2, 5).until(at(2, 6), limit), Some(OomScope::Somewhere));
        assert_eq!(at(2, 5).until(at(3, 6), limit), Some(OomScope::Here(limit)));
        assert_eq!(at(2, 5).until(at(3, 6), None), Some(OomScope::Here(None)));
    }
}

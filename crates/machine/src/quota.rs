//! The CPU time that the cgroups of this process allow, in CPUs: 1.5 is the time of one and a half CPUs.
//!
//! Groups are nested, and each may have a quota: the smallest on the path from the process's own group up to the root
//! counts. Both versions of cgroups are read, because a machine may use the two side by side.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// The mount point of a cgroup hierarchy.
struct CgroupMount {
    /// Version 2, or else the `cpu` controller of version 1.
    is_second: bool,
    /// The mounted group: `/`, or the container's own group without a cgroup namespace.
    group: PathBuf,
    folder: PathBuf,
}

/// The smallest quota of this process's groups, with `/proc` and `/sys` below `root`; `None` if none of them has one.
pub(crate) fn read(root: &Path) -> Option<f64> {
    let groups = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = mounts(root);
    let quotas = mounts.iter().flat_map(|mount| {
        let path = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let is_it = if mount.is_second {
                controllers.is_empty()
            } else {
                controllers.split(',').any(|controller| controller == "cpu")
            };
            is_it.then(|| Path::new(path))
        });
        // A container may see paths of the machine, or above its own root: then the mounted group is its own.
        let within = path.and_then(|path| path.strip_prefix(&mount.group).ok());
        let within = within.filter(|path| {
            !path.components().any(|part| part == std::path::Component::ParentDir) && mount.folder.join(path).is_dir()
        });
        let within = within.unwrap_or(Path::new(""));
        within.ancestors().filter_map(|group| of_group(mount.is_second, &mount.folder.join(group))).collect::<Vec<_>>()
    });
    quotas.reduce(f64::min)
}

fn of_group(is_second: bool, folder: &Path) -> Option<f64> {
    let number = |text: &str| text.parse::<f64>().ok();
    let read = |name: &str| read_to_string(folder.join(name)).ok();
    let (quota, period) = if is_second {
        let text = read("cpu.max")?;
        let mut words = text.split_whitespace();
        // "max" means no limit.
        (number(words.next()?)?, number(words.next()?)?)
    } else {
        // -1 means no limit.
        (number(read("cpu.cfs_quota_us")?.trim())?, number(read("cpu.cfs_period_us")?.trim())?)
    };
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// The hierarchies that can limit CPU time: the mounted ones or, without a list of mounts, those in the usual places.
fn mounts(root: &Path) -> Vec<CgroupMount> {
    let of = |is_second: bool, group: &str, folder: &str| CgroupMount {
        is_second,
        group: group.into(),
        folder: root.join(folder.trim_start_matches('/')),
    };
    let Ok(list) = read_to_string(root.join("proc/self/mountinfo")) else {
        let first = ["cpu", "cpu,cpuacct"].map(|name| of(false, "/", &format!("sys/fs/cgroup/{name}")));
        let second = ["", "/unified"].map(|name| of(true, "/", &format!("sys/fs/cgroup{name}")));
        return first.into_iter().chain(second).collect();
    };
    let mount = |line: &str| {
        // 36 25 0:31 GROUP FOLDER rw,... shared:9 - cgroup cgroup rw,cpu,cpuacct
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (group, folder) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        match (kind.next()?, kind.nth(1)) {
            ("cgroup2", _) => Some(of(true, group, folder)),
            ("cgroup", Some(options)) if options.split(',').any(|option| option == "cpu") => {
                Some(of(false, group, folder))
            }
            _ => None,
        }
    };
    list.lines().filter_map(mount).collect()
}

//! Recorded machines: the files that Linux would provide, in a folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use crate::{CpuSet, Machine, ProcessTimes, ThreadClock};

/// A folder with the `/proc` and `/sys` of a machine; removed on drop.
struct Tree(PathBuf);

impl Tree {
    fn new() -> Tree {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("tidemill-machine-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Tree(std::env::temp_dir().join(name))
    }

    fn write(self, path: &str, text: &str) -> Tree {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("it is in a folder")).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
        self
    }

    /// A machine with CPUs whose sockets, NUMA nodes and cores are given by number; CPUs of the same core are siblings.
    fn cpus(mut self, place: impl Fn(usize) -> (usize, usize, usize), count: usize) -> Tree {
        let folder = "sys/devices/system";
        for cpu in 0..count {
            let (socket, _, core) = place(cpu);
            let siblings: CpuSet =
                (0..count).filter(|&other| (place(other).0, place(other).2) == (socket, core)).collect();
            let topology = format!("{folder}/cpu/cpu{cpu}/topology");
            self = self
                .write(&format!("{topology}/physical_package_id"), &socket.to_string())
                .write(&format!("{topology}/core_id"), &core.to_string())
                .write(&format!("{topology}/thread_siblings_list"), &siblings.to_string());
        }
        for node in 0..=(0..count).map(|cpu| place(cpu).1).max().unwrap() {
            let cpus: CpuSet = (0..count).filter(|&cpu| place(cpu).1 == node).collect();
            self = self.write(&format!("{folder}/node/node{node}/cpulist"), &cpus.to_string());
        }
        self.write(&format!("{folder}/cpu/online"), &format!("0-{}", count - 1))
    }

    fn read(&self, mask: &str) -> Machine {
        let mask: CpuSet = mask.parse().unwrap();
        Machine::read(&self.0, (!mask.is_empty()).then_some(&mask))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Two sockets with `cores` cores each, of two hardware threads: even CPUs on socket 0, odd ones on socket 1, all
/// second threads after the first ones.
fn interleaved(cores: usize) -> Tree {
    Tree::new().cpus(|cpu| (cpu % 2, cpu % 2, cpu % (2 * cores) / 2), 4 * cores)
}

/// The shares of all workers, in Linux notation.
fn shares(machine: &Machine, workers: usize) -> Vec<String> {
    let set = |share: Vec<usize>| share.into_iter().collect::<CpuSet>().to_string();
    (0..workers).map(|index| machine.share(index, workers).map_or("none".into(), set)).collect()
}

#[test]
fn a_worker_stays_on_one_socket_and_has_whole_cores() {
    let tree = interleaved(4);
    let machine = tree.read("0-15");
    assert_eq!((machine.cpus().len(), machine.online(), machine.sockets(), machine.usable()), (16, 16, 2, 16));
    assert_eq!(shares(&machine, 1), ["0-15"]);
    assert_eq!(shares(&machine, 2), ["0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15"]);
    assert_eq!(shares(&machine, 4), ["0,2,8,10", "4,6,12,14", "1,3,9,11", "5,7,13,15"]);
    // Three workers cannot have five CPUs each on one socket.
    assert_eq!(shares(&machine, 3), ["0,2,4,8,10", "1,6,9,12,14", "3,5,7,11,13,15"]);
    // Three CPUs each out of twelve per socket: half a core is better than part of another socket.
    let eight = shares(&interleaved(6).read("0-23"), 8);
    assert_eq!(eight[..4], ["0,2,12", "4,14,16", "6,8,18", "10,20,22"]);
    assert_eq!(shares(&machine, 16)[..4], ["0", "8", "2", "10"]);
    assert_eq!(shares(&machine, 17)[0], "none");
    // The first hardware threads of all cores come before any second one.
    assert_eq!(machine.share(0, 2).unwrap(), [0, 2, 4, 6, 8, 10, 12, 14]);
    assert_eq!(machine.places(1, 4, 2).unwrap(), [4, 6]);
    assert_eq!(machine.places(1, 4, 5), None);
    assert_eq!(machine.socket_of(3), "1,3,5,7,9,11,13,15".parse().unwrap());
}

/// Adjacent siblings: an order by number would give two single-threaded workers the same core.
#[test]
fn siblings_that_are_numbered_side_by_side() {
    let machine = Tree::new().cpus(|cpu| (cpu / 8, cpu / 8, cpu % 8 / 2), 16).read("0-15");
    assert_eq!(machine.share(0, 2).unwrap(), [0, 2, 4, 6, 1, 3, 5, 7]);
    assert_eq!(machine.places(0, 8, 1).unwrap(), [0]);
    assert_eq!(machine.places(1, 8, 1).unwrap(), [2]);
}

/// Nodes 0 and 2 are in socket 0, 1 and 3 in socket 1: an order by node alone would split a socket.
#[test]
fn sockets_stay_whole_where_they_have_several_nodes() {
    let machine = Tree::new().cpus(|cpu| (cpu / 4 % 2, cpu / 4, cpu), 16).read("0-15");
    assert_eq!(shares(&machine, 2), ["0-3,8-11", "4-7,12-15"]);
    assert_eq!(shares(&machine, 4), ["0-3", "8-11", "4-7", "12-15"]);
    // Out of three workers with two CPUs each on one socket, none must span two nodes.
    assert_eq!(shares(&machine, 8)[..4], ["0-1", "2-3", "8-9", "10-11"]);
}

#[test]
fn the_mask_is_the_universe() {
    // Half a socket, as assigned by Slurm or a cpuset.
    let half = interleaved(4).read("0,2,8,10");
    assert_eq!((half.usable(), half.sockets(), half.online()), (4, 1, 16));
    assert_eq!(shares(&half, 2), ["0,8", "2,10"]);
    let odd = Tree::new().cpus(|cpu| (cpu / 32, cpu / 32, cpu), 64).read("3,7,40-43");
    assert_eq!(shares(&odd, 2), ["3,7,40", "41-43"]);
    // Two CPUs each of six: the two of socket 0 go to one worker.
    assert_eq!(shares(&odd, 3), ["3,7", "40-41", "42-43"]);
    // If there are only second hardware threads, they are as good as first ones.
    assert_eq!(interleaved(4).read("8,10").share(0, 1).unwrap(), [8, 10]);
}

#[test]
fn cpus_that_are_offline_are_not_used() {
    let tree = interleaved(4).write("sys/devices/system/cpu/online", "0-5,8-13");
    assert_eq!(tree.read("0-15").allowed(), "0-5,8-13".parse().unwrap());
    assert_eq!(tree.read("").usable(), 12);
    assert_eq!(shares(&tree.read("0-15"), 2), ["0,2,4,8,10,12", "1,3,5,9,11,13"]);
    assert_eq!(tree.read("6-7").allowed(), "6-7".parse().unwrap(), "the kernel knows better than a file");
}

/// Virtual machines and containers omit files, or contain -1.
#[test]
fn without_topology_every_cpu_is_a_core_of_one_socket() {
    let nothing = Tree::new().read("0-7");
    assert_eq!((nothing.usable(), nothing.online(), nothing.sockets(), nothing.quota()), (8, 8, 1, None));
    assert_eq!(shares(&nothing, 3), ["0-1", "2-4", "5-7"]);
    assert!(Tree::new().read("").usable() >= 1);
    let unknown = (0..4).fold(Tree::new(), |tree, cpu| {
        let topology = format!("sys/devices/system/cpu/cpu{cpu}/topology");
        tree.write(&format!("{topology}/physical_package_id"), "-1").write(&format!("{topology}/core_id"), "-1")
    });
    let machine = unknown.read("0-3");
    assert!(machine.cpus().iter().all(|cpu| (cpu.socket, cpu.core, cpu.thread) == (None, None, 0)));
    assert_eq!(shares(&machine, 2), ["0-1", "2-3"]);
}

const SECOND: &str = "30 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw";

fn second(quotas: &[(&str, &str)]) -> Tree {
    let tree = Tree::new().write("proc/self/cgroup", "0::/pod/app").write("proc/self/mountinfo", SECOND);
    quotas.iter().fold(tree, |tree, (group, quota)| tree.write(&format!("sys/fs/cgroup{group}/cpu.max"), quota))
}

/// A container limited to 2 of 64 CPUs keeps two threads busy, not 64.
#[test]
fn a_quota_limits_the_threads() {
    let limited = |quotas: &[(&str, &str)]| {
        let machine = second(quotas).read("0-63");
        (machine.quota(), machine.usable())
    };
    assert_eq!(limited(&[("/pod/app", "200000 100000")]), (Some(2.0), 2));
    // The root group of a container without a limit, or with one above the mask.
    assert_eq!(limited(&[("/pod/app", "max 100000")]), (None, 64));
    assert_eq!(limited(&[("/pod/app", "10000000 100000")]), (Some(100.0), 64));
    // Rounded down, but never to zero.
    assert_eq!(limited(&[("/pod/app", "150000 100000")]), (Some(1.5), 1));
    assert_eq!(limited(&[("/pod/app", "290000 100000")]), (Some(2.9), 2));
    assert_eq!(limited(&[("/pod/app", "50000 100000")]), (Some(0.5), 1));
    // The smallest quota of nested groups counts, wherever it is.
    assert_eq!(limited(&[("/pod/app", "800000 100000"), ("/pod", "300000 100000")]), (Some(3.0), 3));
    assert_eq!(limited(&[("/pod/app", "100000 50000"), ("/pod", "max 100000"), ("", "4000 1000")]), (Some(2.0), 2));
    // Invalid values do not limit anything.
    assert_eq!(limited(&[("/pod/app", "two"), ("/pod", "100 0"), ("", "")]), (None, 64));
}

/// In a container, the paths in `/proc/self/cgroup` may be the machine's: then the mounted group is the container's
/// own.
#[test]
fn a_container_may_see_paths_that_are_not_there() {
    for group in ["0::/../..", "0::/docker/17", "0::/"] {
        let tree = second(&[("", "200000 100000")]).write("proc/self/cgroup", group);
        assert_eq!(tree.read("0-63").usable(), 2, "{group}");
    }
}

#[test]
fn quotas_of_version_one() {
    let first = |mount: &str, group: &str| {
        let controllers = "5:memory:/x\n4:cpu,cpuacct:/docker/17\n3:cpuset:/";
        let folder = format!("sys/fs/cgroup/cpu,cpuacct{group}");
        Tree::new()
            .write("proc/self/cgroup", controllers)
            .write("proc/self/mountinfo", mount)
            .write(&format!("{folder}/cpu.cfs_quota_us"), "200000")
            .write(&format!("{folder}/cpu.cfs_period_us"), "100000")
    };
    let mount = "36 25 0:31 /docker/17 /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct";
    assert_eq!(first(mount, "").read("0-63").usable(), 2);
    let machine = mount.replace("/docker/17 ", "/ ");
    assert_eq!(first(&machine, "/docker/17").read("0-63").usable(), 2);
    assert_eq!(first(&machine, "").read("0-63").usable(), 2, "a group above limits as well");
    let free = first(mount, "").write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1");
    assert_eq!(free.read("0-63").usable(), 64);
    // Other controllers of version 1 say nothing about CPU time.
    assert_eq!(first("36 25 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset", "").read("0-63").usable(), 64);
    // Without a list of mounts, the usual places; both versions side by side.
    let tree = first("", "/docker/17")
        .write("sys/fs/cgroup/unified/cpu.max", "100000 100000")
        .write("proc/self/cgroup", "4:cpu,cpuacct:/docker/17\n0::/");
    fs::remove_file(tree.0.join("proc/self/mountinfo")).unwrap();
    assert_eq!(tree.read("0-63").quota(), Some(1.0));
}

/// The files of this machine must be parsed, whatever machine it is.
#[test]
fn this_machine_is_read() {
    let machine = Machine::here();
    let mask = CpuSet::of_current_thread();
    assert_eq!(mask.as_ref().unwrap_or(&machine.allowed()), &machine.allowed());
    assert!(machine.usable() <= machine.cpus().len() && machine.cpus().len() <= machine.online());
    assert_eq!(machine, Machine::read(Path::new("/"), mask.as_ref()), "the kept answer is the one that is read");
}

#[test]
fn lists_of_cpus() {
    for list in ["", "0", "0-2,5,7-8", "63-64,127,1023-1025"] {
        assert_eq!(list.parse::<CpuSet>().unwrap().to_string(), list);
    }
    assert_eq!(" 0-1,1-2,\n".parse::<CpuSet>().unwrap().to_string(), "0-2");
    for bad in ["a", "2-1", "1-", "-1", "0-99999999999", "0-70000"] {
        assert!(bad.parse::<CpuSet>().is_err(), "{bad}");
    }
}

proptest! {
    /// On any machine, no CPU goes to two workers, no worker gets less than its part, and none crosses a socket if all
    /// could stay on one.
    #[test]
    fn shares_are_fair_on_every_machine(
        sockets in 1usize..4, cores in 1usize..7, threads in 1usize..3, style in 0usize..3, mask in any::<u64>(), workers in 1usize..20,
    ) {
        let count = sockets * cores * threads;
        let place = |cpu: usize| {
            let (socket, core) = match style {
                0 => (cpu % sockets, cpu / sockets % cores),
                1 => (cpu / threads / cores, cpu / threads % cores),
                _ => (cpu / cores % sockets, cpu % cores),
            };
            (socket, socket, core)
        };
        let mask: CpuSet = (0..count).filter(|cpu| mask >> cpu & 1 == 1).collect();
        prop_assume!(!mask.is_empty());
        let machine = Tree::new().cpus(place, count).read(&mask.to_string());
        let shares: Vec<_> = (0..workers).filter_map(|index| machine.share(index, workers)).collect();
        if mask.len() < workers {
            prop_assert!(shares.is_empty());
            return Ok(());
        }
        let least = mask.len() / workers;
        let all: CpuSet = shares.iter().flatten().copied().collect();
        prop_assert_eq!(shares.iter().map(Vec::len).sum::<usize>(), all.len());
        prop_assert!(all.iter().all(|cpu| mask.contains(cpu)) && all.len() + workers > mask.len());
        prop_assert!(shares.len() == workers && shares.iter().all(|share| share.len() >= least));
        let on = |socket: usize| mask.iter().filter(|&cpu| place(cpu).0 == socket).count();
        if (0..sockets).map(|socket| on(socket) / least).sum::<usize>() >= workers {
            prop_assert!(shares.iter().all(|share| share.iter().all(|&cpu| place(cpu).0 == place(share[0]).0)));
        }
    }
}

/// Threads come and go; the time they have waited must be neither lost nor counted twice.
#[test]
fn waits_of_threads_add_up() {
    let tree =
        Tree::new().write("proc/self/task/7/schedstat", "10 100 1").write("proc/self/task/8/schedstat", "5 30 1");
    let mut times = ProcessTimes::under(&tree.0);
    assert_eq!(times.wait_ns(), 130);
    let tree = tree.write("proc/self/task/7/schedstat", "20 140 2");
    fs::remove_dir_all(tree.0.join("proc/self/task/8")).unwrap();
    assert_eq!(times.wait_ns(), 170);
    let tree = tree.write("proc/self/task/8/schedstat", "1 2 1").write("proc/self/task/7/schedstat", "1 3 1");
    assert_eq!(times.wait_ns(), 175, "both are new");
    fs::remove_dir_all(tree.0.join("proc")).unwrap();
    assert_eq!(times.wait_ns(), 175);
}

#[test]
fn a_process_takes_time() {
    let (mut sum, before) = (0u64, ProcessTimes::cpu_ns());
    while cfg!(target_os = "linux") && ProcessTimes::cpu_ns() <= before {
        sum = std::hint::black_box(sum.wrapping_add(1));
    }
}

#[test]
fn a_thread_has_its_own_time() {
    let Some(own) = ThreadClock::current() else { return };
    let (mut sum, before) = (0u64, own.cpu_ns());
    while own.cpu_ns() <= before + 1_000_000 {
        sum = std::hint::black_box(sum.wrapping_add(1));
    }
    let (of_other, own_ns) = std::thread::scope(|scope| {
        let other = scope.spawn(|| ThreadClock::current().map(ThreadClock::cpu_ns));
        (other.join().unwrap().expect("this thread has one"), own.cpu_ns())
    });
    assert!(of_other < own_ns, "{of_other} ns in a thread that does nothing, {own_ns} ns here");
}

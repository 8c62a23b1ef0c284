//! Clusters of emulated hosts, which `tidemill hosts` creates and keeps: finds one, and starts workers on it.
//!
//! A host is a first process in its own namespaces. A worker joins them between fork and exec, except for the PID
//! namespace, which only its children would enter: there the launcher places its next fork itself.

use std::env;
use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;

/// A running cluster.
pub struct EmulatedCluster {
    name: String,
    keeper: i64,
    rootless: bool,
    /// The hosts that can be reached: neither killed nor cut off.
    pub hosts: Vec<EmulatedHost>,
}

/// A host of a cluster.
pub struct EmulatedHost {
    /// Its name, which is unique on this machine.
    pub name: String,
    /// The address at which others reach it.
    pub address: IpAddr,
    /// Its first process.
    init: i64,
    cpu_groups: Vec<PathBuf>,
}

/// Where a worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerPlace {
    /// The index of the host among those that can be reached.
    pub host: usize,
    /// The worker's number on the host, and how many there are.
    pub local: (usize, usize),
}

/// Spreads `workers` evenly over `hosts`, in blocks: neighbors by rank share a host.
pub fn places(workers: usize, hosts: usize) -> Vec<WorkerPlace> {
    let count = |host: usize| workers / hosts + usize::from(host < workers % hosts);
    (0..hosts).flat_map(|host| (0..count(host)).map(move |n| WorkerPlace { host, local: (n, count(host)) })).collect()
}

impl EmulatedCluster {
    /// Finds a cluster of this user by its name.
    ///
    /// # Errors
    /// A message, if the cluster does not exist or none of its hosts can be reached.
    pub fn find(name: &str) -> Result<Self, String> {
        let none =
            || format!("there is no cluster {name:?} of emulated hosts; `tidemill hosts up --name {name}` makes one");
        let folder = folder();
        let text = fs::read(folder.join(format!("{name}.json"))).map_err(|_| none())?;
        let is_cut = |host| folder.join(format!("{name}.{host}.cut")).exists();
        let cluster = serde_json::from_slice(&text).ok().and_then(|told| Self::told(&told, is_cut)).ok_or_else(none)?;
        match cluster.hosts.is_empty() {
            true => Err(format!(
                "all hosts of cluster {name:?} have been killed or cut off; heal one (`tidemill hosts heal`), or make the cluster again"
            )),
            false => Ok(cluster),
        }
    }

    /// Reads what the cluster's keeper has written; `None` if the keeper is gone. Leaves out hosts that are cut off:
    /// a worker started there would wait in vain for the others.
    fn told(told: &Value, is_cut: impl Fn(usize) -> bool) -> Option<Self> {
        let lives = |of: &Value, pid: &str| Some(start_time(of[pid].as_i64()?)? == of["started"].as_i64()?);
        if !lives(told, "keeper")? {
            return None;
        }
        let host = |of: &Value| {
            Some(EmulatedHost {
                name: of["name"].as_str()?.to_owned(),
                address: of["address"].as_str()?.parse().ok()?,
                init: of["init"].as_i64()?,
                cpu_groups: of["cpu_group"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .map(PathBuf::from)
                    .collect(),
            })
        };
        let hosts = told["hosts"].as_array()?.iter().enumerate();
        let hosts = hosts.filter(|(number, of)| lives(of, "init") == Some(true) && !is_cut(*number));
        Some(EmulatedCluster {
            name: told["name"].as_str()?.to_owned(),
            keeper: told["keeper"].as_i64()?,
            rootless: told["rootless"].as_bool()?,
            hosts: hosts.map(|(_, of)| host(of)).collect::<Option<_>>()?,
        })
    }

    /// Gives the hosts in `names` no workers.
    ///
    /// # Errors
    /// A message, if no other host is left.
    pub fn leave_out(&mut self, names: &[String]) -> Result<(), String> {
        self.hosts.retain(|host| !names.contains(&host.name));
        match self.hosts.is_empty() {
            true => Err(format!(
                "the job has been drained of all hosts that are left in cluster {:?}: {}",
                self.name,
                names.join(", ")
            )),
            false => Ok(()),
        }
    }

    /// Opens its hosts for new processes. Leaves out hosts that have been killed since they were found.
    ///
    /// # Errors
    /// If no host is left, or this process may not inspect one.
    pub fn open_hosts(&mut self) -> io::Result<Vec<Arc<HostEntry>>> {
        let mut entries = Vec::new();
        for host in std::mem::take(&mut self.hosts) {
            match HostEntry::open(&host) {
                Ok(entry) => {
                    entries.push(Arc::new(entry));
                    self.hosts.push(host);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        if entries.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(entries) }
    }

    /// The location of a host in the network, for placements.
    pub fn location(&self, host: usize) -> OsString {
        format!("{}/{}", self.name, self.hosts[host].name).into()
    }

    /// If the cluster was created without root's rights, replaces this process by the same command in the cluster's
    /// user namespace. Returns if that is not needed.
    ///
    /// # Errors
    /// If nsenter(1) cannot be started.
    pub fn become_owner(&self, args: &[OsString], python: &Path) -> io::Result<()> {
        if !self.rootless || nix::unistd::geteuid().is_root() {
            return Ok(());
        }
        let mut command = Command::new("nsenter");
        command.args(["--user", "--preserve-credentials", "--target", &self.keeper.to_string(), "--"]);
        command.arg(python).args(["-m", "tidemill"]).args(args.iter().skip(1)).env(FOLDER, folder());
        Err(command.exec())
    }
}

/// Overrides the folder that describes clusters; within a user namespace, this user has another number.
const FOLDER: &str = "TIDEMILL_HOSTS_FOLDER";

/// The folder that describes the clusters of this user, as `tidemill.hosts` defines it.
fn folder() -> PathBuf {
    if let Some(folder) = env::var_os(FOLDER) {
        return folder.into();
    }
    let base = env::var_os("XDG_RUNTIME_DIR").filter(|base| !base.is_empty());
    base.map_or_else(env::temp_dir, PathBuf::from).join(format!("tidemill-{}", nix::unistd::getuid())).join("hosts")
}

/// When a process began, in ticks since the machine started; `None` if it has ended.
fn start_time(pid: i64) -> Option<i64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Skip the process name, which may contain any characters.
    let mut words = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = words.next()?;
    if state == "Z" || state == "X" { None } else { words.nth(18)?.parse().ok() }
}

/// What a new process needs to enter a host, opened before the fork.
#[derive(Debug)]
pub struct HostEntry {
    address: IpAddr,
    processes: File,
    network: File,
    names: File,
    mounts: File,
    cpu_groups: Vec<CString>,
    folder: CString,
}

impl HostEntry {
    /// Opens a host for processes that start in this process's folder.
    ///
    /// # Errors
    /// If the host is gone, or this process may not inspect it.
    pub fn open(host: &EmulatedHost) -> io::Result<Self> {
        let namespace = |kind: &str| File::open(format!("/proc/{}/ns/{kind}", host.init));
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other);
        Ok(HostEntry {
            address: host.address,
            processes: namespace("pid")?,
            network: namespace("net")?,
            names: namespace("uts")?,
            mounts: namespace("mnt")?,
            cpu_groups: host.cpu_groups.iter().map(|path| text(path)).collect::<io::Result<_>>()?,
            folder: text(&env::current_dir()?)?,
        })
    }

    /// Listens on the host.
    ///
    /// # Errors
    /// If the network of the host cannot be entered.
    pub fn listen(&self) -> io::Result<TcpListener> {
        // In a separate thread, since a thread stays in the namespace that it enters.
        let listening = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    set_namespace(&self.network, libc::CLONE_NEWNET)?;
                    TcpListener::bind((self.address, 0))
                })
                .join()
        });
        listening.unwrap_or_else(|_| Err(io::Error::other("the thread that listens panicked")))
    }

    /// Makes this thread's children start in the host's PID namespace, until the returned value is dropped.
    ///
    /// # Errors
    /// If this user may not do that.
    pub fn adopt_children(&self) -> io::Result<ChildrenElsewhere> {
        let own = File::open("/proc/self/ns/pid")?;
        set_namespace(&self.processes, libc::CLONE_NEWPID)?;
        Ok(ChildrenElsewhere { own })
    }

    /// Moves this process to the host. Runs between fork and exec, so it makes only system calls.
    ///
    /// # Errors
    /// If the host is gone, or this process lacks the rights.
    pub fn enter(&self) -> io::Result<()> {
        for group in &self.cpu_groups {
            // SAFETY: an open of a path and a write of one byte.
            unsafe {
                let fd = libc::open(group.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                if fd < 0 || libc::write(fd, c"0".as_ptr().cast(), 1) != 1 {
                    return Err(io::Error::last_os_error());
                }
                libc::close(fd);
            }
        }
        set_namespace(&self.network, libc::CLONE_NEWNET)?;
        set_namespace(&self.names, libc::CLONE_NEWUTS)?;
        set_namespace(&self.mounts, libc::CLONE_NEWNS)?;
        // The mount namespace starts at its root folder.
        // SAFETY: a path that ends with a zero.
        check(unsafe { libc::chdir(self.folder.as_ptr()) })
    }
}

/// See [`HostEntry::adopt_children`].
#[derive(Debug)]
pub struct ChildrenElsewhere {
    own: File,
}

impl Drop for ChildrenElsewhere {
    fn drop(&mut self) {
        // Back to this process's own namespace, which is always allowed.
        let _ = set_namespace(&self.own, libc::CLONE_NEWPID);
    }
}

fn set_namespace(namespace: &File, kind: libc::c_int) -> io::Result<()> {
    let fd: BorrowedFd<'_> = std::os::fd::AsFd::as_fd(namespace);
    // SAFETY: an open descriptor.
    check(unsafe { libc::setns(fd.as_raw_fd(), kind) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every worker has one place, in blocks whose sizes differ by at most one.
    #[test]
    fn workers_are_spread_evenly() {
        for workers in 1..40 {
            for hosts in 1..9 {
                let all = places(workers, hosts);
                assert_eq!(all.len(), workers);
                assert!(all.is_sorted_by_key(|place| place.host));
                for host in 0..hosts {
                    let here: Vec<_> = all.iter().filter(|place| place.host == host).map(|place| place.local).collect();
                    assert!((workers / hosts..=workers.div_ceil(hosts)).contains(&here.len()));
                    assert_eq!(here, (0..here.len()).map(|n| (n, here.len())).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn this_process_has_begun() {
        let me = i64::from(std::process::id());
        assert!(start_time(me).is_some_and(|time| time > 0 && start_time(me) == Some(time)));
        assert_eq!(start_time(i64::from(i32::MAX)), None);
    }

    #[test]
    fn a_cluster_description_is_read() {
        let started = start_time(i64::from(std::process::id())).unwrap();
        let host = |init: u32| serde_json::json!({"name": "a", "address": "10.77.0.1", "init": init, "started": started, "cpu_group": null});
        let mut told = serde_json::json!({
            "name": "lab", "keeper": std::process::id(), "started": started, "rootless": false,
            "hosts": [host(std::process::id()), host(i32::MAX as u32), host(std::process::id())],
        });
        let cluster = EmulatedCluster::told(&told, |number| number == 2).unwrap();
        assert_eq!(
            (cluster.hosts.len(), cluster.location(0)),
            (1, "lab/a".into()),
            "neither a killed host nor one that is cut off"
        );
        told["started"] = 1.into();
        assert!(EmulatedCluster::told(&told, |_| false).is_none(), "its keeper has ended, and another has its number");
    }
}

//! What the system allows, and the problems of each limit. Where possible, probes try the call itself: containers may
//! refuse calls that the kernel's version promises.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::statvfs::statvfs;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork, getppid};
use serde_json::{Value, json};
use tidemill_machine::Machine;

use super::InfoItem;
use super::machine::bytes;
use crate::cgroup;

const TRANSPORTS: &str = "transports";
const LIMITS: &str = "limits";

/// Every limit that can affect a job.
pub fn items() -> Vec<InfoItem> {
    let mut items = vec![
        InfoItem::new(TRANSPORTS, "in-process", true, "built (workers that are threads)"),
        shared_memory(),
        loopback(),
        single_copy(),
        works(
            "futex",
            futex(),
            "waiting workers sleep",
            "shared memory cannot be used",
            "use a kernel that has futexes",
        ),
        dev_shm(),
        open_files(),
        locked_memory(),
        processes(),
    ];
    items.extend(cgroup_cpu());
    items.extend(cgroup_memory());
    items
}

fn works(name: &'static str, result: Result<(), Errno>, good: &str, bad: &str, remedy: &'static str) -> InfoItem {
    let text = match result {
        Ok(()) => format!("works: {good}"),
        Err(error) => format!("refused: {}", error.desc()),
    };
    InfoItem::new(LIMITS, name, result.is_ok(), text).problem_if(result.is_err(), bad, remedy)
}

/// Workers of one host share unnamed memory: one creates it, and the others open it under `/proc`.
fn shared_memory() -> InfoItem {
    let shared =
        memfd().map(|fd| in_child(|| File::open(format!("/proc/{}/fd/{}", getppid(), fd.as_raw_fd())).is_ok()));
    let text = match shared {
        Ok(true) => "built; memfd works".to_owned(),
        Ok(false) => "built; a memfd cannot be opened by another process".to_owned(),
        Err(error) => format!("built; memfd_create is refused: {}", error.desc()),
    };
    InfoItem::new(TRANSPORTS, "shared memory", shared == Ok(true), text).problem_if(
        shared != Ok(true),
        "workers of one host must use TCP, which is several times slower",
        "use a container runtime whose seccomp profile allows memfd_create, and mount /proc without hidepid",
    )
}

fn dev_shm() -> InfoItem {
    const NAME: &str = "/dev/shm";
    const REMEDY: &str =
        "mount a tmpfs of 1 GiB there (Docker: --shm-size=1g; Kubernetes: an emptyDir with medium: Memory)";
    let Ok(stat) = statvfs("/dev/shm") else {
        return InfoItem::new(LIMITS, NAME, Value::Null, "missing").problem_if(true, "libraries may need it", REMEDY);
    };
    let total = stat.blocks() * stat.fragment_size();
    let free = stat.blocks_available() * stat.fragment_size();
    let text = format!("{}, {} free", bytes(total), bytes(free));
    InfoItem::new(LIMITS, NAME, json!({ "bytes": total, "free_bytes": free }), text).problem_if(
        free < 64 << 20,
        "Tidemill does not use it, but libraries that share arrays between processes fail when it is full",
        REMEDY,
    )
}

fn loopback() -> InfoItem {
    let bound = std::net::TcpListener::bind(("127.0.0.1", 0));
    let text = match &bound {
        Ok(_) => "built".to_owned(),
        Err(error) => format!("built; the loopback address cannot be used: {error}"),
    };
    InfoItem::new(TRANSPORTS, "TCP", bound.is_ok(), text).problem_if(
        bound.is_err(),
        "workers meet at the loopback address, so no job of more than one worker can start",
        "bring the loopback interface up: ip link set lo up",
    )
}

/// Whether one worker may read another's memory, which saves one of two copies of large messages.
fn single_copy() -> InfoItem {
    let scope =
        fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok().and_then(|text| text.trim().parse::<u32>().ok());
    let direct = child_reads_parent();
    // Workers give each other permission with this call if Yama restricts reading to descendants.
    let permitted = direct || {
        // SAFETY: sets an attribute of this process.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
        let works = child_reads_parent();
        // SAFETY: as above.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, 0) };
        works
    };
    let scope_text = scope.map_or_else(|| "no Yama".to_owned(), |scope| format!("ptrace_scope {scope}"));
    let text = match (direct, permitted) {
        (true, _) => format!("process_vm_readv works ({scope_text})"),
        (false, true) => format!("process_vm_readv works between workers that permit it ({scope_text})"),
        (false, false) => format!("process_vm_readv is refused ({scope_text})"),
    };
    let value = json!({ "process_vm_readv": permitted, "ptrace_scope": scope });
    InfoItem::new(TRANSPORTS, "single copy", value, text).problem_if(
        !permitted,
        "large messages on one host are copied twice instead of once",
        "sysctl kernel.yama.ptrace_scope=1 (or 0); in a container: --cap-add SYS_PTRACE, or a seccomp profile that allows process_vm_readv",
    )
}

fn child_reads_parent() -> bool {
    let secret: u64 = 0x7469_6465_6d69_6c6c;
    let address = &raw const secret;
    in_child(move || {
        let mut copy = 0u64;
        let local = libc::iovec { iov_base: (&raw mut copy).cast(), iov_len: 8 };
        let remote = libc::iovec { iov_base: address.cast_mut().cast(), iov_len: 8 };
        // SAFETY: `local` is a live variable; the kernel checks the other process's address.
        let count = unsafe { libc::process_vm_readv(getppid().as_raw(), &raw const local, 1, &raw const remote, 1, 0) };
        count == 8 && copy == secret
    })
}

/// The result of `probe` in a child process, which relates to this process as workers do to each other.
fn in_child(probe: impl Fn() -> bool) -> bool {
    // SAFETY: the child only makes system calls, allocates at most (which the C library allows after a fork), and
    // ends at once.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => {
            let found = probe();
            // SAFETY: ends the process without running the exit handlers of the Python process it was copied from.
            unsafe { libc::_exit(i32::from(!found)) }
        }
        Ok(ForkResult::Parent { child }) => waitpid(child, None) == Ok(WaitStatus::Exited(child, 0)),
        Err(_) => false,
    }
}

fn futex() -> Result<(), Errno> {
    let word = 0u32;
    // SAFETY: the address is a live variable's, on which nobody sleeps.
    Errno::result(unsafe { libc::syscall(libc::SYS_futex, &raw const word, libc::FUTEX_WAKE, 1) }).map(drop)
}

fn memfd() -> Result<OwnedFd, Errno> {
    // SAFETY: the name is a C string; the result is a new descriptor of our own, or an error.
    unsafe {
        let fd = Errno::result(libc::memfd_create(c"tidemill-info".as_ptr(), libc::MFD_CLOEXEC))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

fn limit(resource: Resource) -> (u64, String) {
    let (soft, hard) = getrlimit(resource).unwrap_or((RLIM_INFINITY, RLIM_INFINITY));
    let text = |value: u64| if value == RLIM_INFINITY { "unlimited".to_owned() } else { value.to_string() };
    (soft, format!("{} (hard limit {})", text(soft), text(hard)))
}

fn open_files() -> InfoItem {
    let (soft, text) = limit(Resource::RLIMIT_NOFILE);
    InfoItem::new(LIMITS, "open files", soft, text).problem_if(
        soft < 1024,
        "a worker needs up to two descriptors for each other worker",
        "ulimit -n 4096 before starting the job",
    )
}

fn locked_memory() -> InfoItem {
    let (soft, text) = limit(Resource::RLIMIT_MEMLOCK);
    InfoItem::new(LIMITS, "locked memory", soft, format!("{text}, in bytes; none is needed"))
}

fn processes() -> InfoItem {
    let (soft, text) = limit(Resource::RLIMIT_NPROC);
    InfoItem::new(LIMITS, "processes", soft, text).problem_if(
        soft < 256,
        "each worker has several threads, and each counts as a process",
        "ulimit -u 4096 before starting the job",
    )
}

/// How many cores' worth of time a container's quota allows.
fn cgroup_cpu() -> Option<InfoItem> {
    let quota = Machine::here().quota()?;
    let text = format!("{quota:.2} cores' worth of time (of a cgroup)");
    Some(InfoItem::new(LIMITS, "CPU quota", quota, text).problem_if(
        quota < 1.0,
        "workers are throttled whenever the quota is used up",
        "give the container or slice at least one core for each worker",
    ))
}

fn cgroup_memory() -> Option<InfoItem> {
    let (name, limit) = cgroup::memory_limit()?;
    let text = format!("{} (cgroup {name}); beyond it a worker is killed", bytes(limit));
    Some(InfoItem::new(LIMITS, "memory limit", limit, text).problem_if(
        limit < 512 << 20,
        "that is not much for workers with arrays in memory",
        "give the container or slice more memory",
    ))
}

//! Copies directly between two workers' buffers: `process_vm_readv` and `process_vm_writev` between processes, a
//! plain copy between threads. This halves the copies of a ring, but costs a system call each and is not allowed
//! everywhere; so it is tried once, when a link opens.

use std::io;

use crate::copy::{is_trap, read_around, write_around};
use crate::transport::PARTS_MAX;

/// Whether a peer's memory can be read and written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SingleCopy {
    /// The peer is a thread of this process.
    SameProcess,
    /// The kernel copies to and from this process.
    Process(u32),
    /// The kernel cannot, for this reason.
    Unavailable(String),
    /// The user switched single copies off.
    SwitchedOff,
}

/// Set to `0` to do without single copies: then no worker opens its memory to its user's other processes.
const SWITCH: &str = "TIDEMILL_SINGLE_COPY";

const SWITCHED_OFF: &str = "switched off by TIDEMILL_SINGLE_COPY=0";

/// Whether the user switched single copies off.
pub(super) fn is_disabled() -> bool {
    std::env::var_os(SWITCH).is_some_and(|value| value == "0")
}

/// Lets the other workers access this process's memory where Yama would only let its parents do so.
pub(super) fn allow_peers() {
    if !is_disabled() {
        // Fails without Yama, where it is not needed.
        // SAFETY: changes one attribute of this process.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    }
}

/// Tries to read the peer's nonce.
pub(super) fn probe(pid: u32, nonce_addr: u64, nonce: [u64; 2]) -> SingleCopy {
    if is_disabled() {
        return SingleCopy::SwitchedOff;
    }
    let mut found = [0u8; 16];
    let copy = SingleCopy::Process(pid);
    match copy.read(nonce_addr, &mut found) {
        Ok(()) if found == bytemuck::cast::<_, [u8; 16]>(nonce) => copy,
        Ok(()) => SingleCopy::Unavailable("the peer's memory is not at the address it gave".into()),
        Err(error) => {
            let hint = match error.raw_os_error() {
                Some(libc::EPERM) => " (see /proc/sys/kernel/yama/ptrace_scope; containers need CAP_SYS_PTRACE)",
                Some(libc::ENOSYS) => " (the kernel or a sandbox has no process_vm_readv)",
                _ => "",
            };
            SingleCopy::Unavailable(format!("process_vm_readv: {error}{hint}"))
        }
    }
}

impl SingleCopy {
    /// Why large messages are copied twice; `None` if they are not.
    pub fn lack(&self) -> Option<&str> {
        match self {
            Self::SameProcess | Self::Process(_) => None,
            Self::Unavailable(reason) => Some(reason),
            Self::SwitchedOff => Some(SWITCHED_OFF),
        }
    }

    /// Whether the user switched single copies off.
    pub fn is_switched_off(&self) -> bool {
        matches!(self, Self::SwitchedOff)
    }

    /// Copies from the peer's memory at `addr`.
    pub fn read(&self, addr: u64, into: &mut [u8]) -> io::Result<()> {
        match self {
            // SAFETY: the peer, a thread of this process, keeps what it offered alive and unchanged until notified,
            // and `into` is exclusively ours, so the two do not overlap.
            Self::SameProcess => unsafe {
                crate::copy(std::ptr::with_exposed_provenance(addr as usize), into.as_mut_ptr(), into.len());
                Ok(())
            },
            Self::Process(pid) => read_around(addr as usize, into, |addr, into| {
                all_of(into.len(), |done| {
                    let local = libc::iovec { iov_base: into[done..].as_mut_ptr().cast(), iov_len: into.len() - done };
                    let remote = libc::iovec { iov_base: (addr + done) as *mut _, iov_len: local.iov_len };
                    // SAFETY: `local` is writable; the kernel checks `remote` against the peer's address space.
                    unsafe { libc::process_vm_readv(*pid as i32, &local, 1, &remote, 1, 0) }
                })
            }),
            Self::Unavailable(reason) => Err(io::Error::new(io::ErrorKind::Unsupported, reason.clone())),
            Self::SwitchedOff => Err(io::Error::new(io::ErrorKind::Unsupported, SWITCHED_OFF)),
        }
    }

    /// Copies up to [`PARTS_MAX`] parts of the peer's memory, each from its address, with one system call if
    /// possible.
    pub fn read_parts(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        let plain = |(addr, into): &(u64, &mut [u8])| !is_trap(*addr as usize, into.as_ptr().addr(), into.len());
        if let Self::Process(pid) = self
            && parts.len() > 1
            && parts.iter().all(plain)
        {
            let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
            let (mut local, mut remote) = ([nothing; PARTS_MAX], [nothing; PARTS_MAX]);
            for (i, (addr, into)) in parts.iter_mut().enumerate() {
                local[i] = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
                remote[i] = libc::iovec { iov_base: *addr as usize as *mut _, iov_len: into.len() };
            }
            let (count, total) =
                (parts.len() as libc::c_ulong, parts.iter().map(|(_, into)| into.len()).sum::<usize>());
            // SAFETY: `local` is writable; the kernel checks `remote` against the peer's address space.
            let moved =
                unsafe { libc::process_vm_readv(*pid as i32, local.as_ptr(), count, remote.as_ptr(), count, 0) };
            if moved == total as isize {
                return Ok(());
            }
            // The call was cut short or failed: copy one by one, which also finds the failing part.
        }
        parts.iter_mut().try_for_each(|(addr, into)| self.read(*addr, into))
    }

    /// Copies to the peer's memory at `addr`.
    pub fn write(&self, addr: u64, from: &[u8]) -> io::Result<()> {
        match self {
            // SAFETY: the peer, a thread of this process, accepted `from.len()` bytes at `addr` and keeps them alive
            // and untouched until notified.
            Self::SameProcess => unsafe {
                crate::copy(from.as_ptr(), std::ptr::with_exposed_provenance_mut(addr as usize), from.len());
                Ok(())
            },
            Self::Process(pid) => write_around(from, addr as usize, |from, addr| {
                all_of(from.len(), |done| {
                    let local = libc::iovec { iov_base: from[done..].as_ptr() as *mut _, iov_len: from.len() - done };
                    let remote = libc::iovec { iov_base: (addr + done) as *mut _, iov_len: local.iov_len };
                    // SAFETY: `local` is readable; the kernel checks `remote` against the peer's address space.
                    unsafe { libc::process_vm_writev(*pid as i32, &local, 1, &remote, 1, 0) }
                })
            }),
            Self::Unavailable(reason) => Err(io::Error::new(io::ErrorKind::Unsupported, reason.clone())),
            Self::SwitchedOff => Err(io::Error::new(io::ErrorKind::Unsupported, SWITCHED_OFF)),
        }
    }
}

/// Repeats a partial copy until `len` bytes are done. The kernel moves at most 2 GiB less a page in one call, and
/// less if it meets a page that is not present.
fn all_of(len: usize, mut copy: impl FnMut(usize) -> isize) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        match copy(done) {
            0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the kernel copied nothing")),
            moved if moved > 0 => done += moved as usize,
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Callers must not notice the kernel's limit on one call.
    #[test]
    fn partial_copies_are_continued() {
        let mut calls = Vec::new();
        all_of(10, |done| {
            calls.push(done);
            4.min(10 - done as isize)
        })
        .unwrap();
        assert_eq!(calls, [0, 4, 8]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "no process_vm_readv")]
    fn own_process_can_be_read_and_written() {
        let pid = std::process::id();
        let nonce = [3u64, 4];
        let copy = probe(pid, nonce.as_ptr().expose_provenance() as u64, nonce);
        assert_eq!(copy, SingleCopy::Process(pid));
        let mut target = [0u8; 3];
        copy.write(target.as_mut_ptr().expose_provenance() as u64, &[1, 2, 3]).unwrap();
        assert_eq!(target, [1, 2, 3]);
        let (one, two) = (vec![5u8; 5000], vec![6u8; 70_000]);
        let (mut first, mut second) = (vec![0u8; 5000], vec![0u8; 70_000]);
        let addr = |source: &[u8]| source.as_ptr().expose_provenance() as u64;
        copy.read_parts(&mut [(addr(&one), &mut first[..]), (addr(&two), &mut second[..])]).unwrap();
        assert!(first == one && second == two);
        assert!(copy.read_parts(&mut [(addr(&one), &mut first[..]), (8, &mut second[..])]).is_err());
        let wrong = probe(pid, nonce.as_ptr().expose_provenance() as u64, [4, 4]);
        assert!(matches!(wrong, SingleCopy::Unavailable(_)));
        assert!(copy.read(8, &mut target).is_err(), "a bad address is an error, not a crash");
    }
}

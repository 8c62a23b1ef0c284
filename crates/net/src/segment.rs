//! Memory that several workers map: a sealed memfd, or anonymous memory for workers that are threads of one process.
//!
//! A memfd has no name, so it leaves nothing behind however the job ends, and it does not count against /dev/shm. A
//! peer opens it through `/proc/<pid>/fd/<fd>`, which needs the same user and PID namespace but no right to trace.
//! Size seals keep a worker from shrinking it while others use it. Untouched pages cost nothing.

use std::ffi::c_void;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Why shared memory is not available. Callers fall back to TCP and say so in a warning.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The kernel refused to make or map the memory.
    #[error("cannot {action} {len} bytes of shared memory: {source}{}", hint(.source))]
    Memory {
        /// What was tried.
        action: &'static str,
        /// Size asked for.
        len: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A descriptor of the peer could not be opened.
    #[error("cannot open descriptor {fd} of process {pid}: {source}{}", hint(.source))]
    Open {
        /// The peer's process.
        pid: u32,
        /// Its descriptor.
        fd: RawFd,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The descriptor is not what the peer announced: its process ended and the number was reused, or there is a bug.
    #[error("process {pid} shares something other than what it announced: {reason}")]
    Mismatch {
        /// The peer's process.
        pid: u32,
        /// What differs.
        reason: String,
    },
}

/// What the user can do about an error of the kernel.
fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => " (raise the limit on open files: ulimit -n)",
        Some(libc::ENFILE) => " (the host is out of file descriptors)",
        Some(libc::ENOMEM) => " (out of memory, address space or memory mappings: ulimit -v, vm.max_map_count)",
        Some(libc::EACCES | libc::EPERM) => " (do all workers of this host run as the same user?)",
        Some(libc::ENOENT) => " (has the process ended, or does it run in another PID namespace?)",
        Some(libc::ENOSYS) => " (a sandbox or an old kernel?)",
        _ => "",
    }
}

/// One mapping of shared memory, unmapped when the last reference is dropped.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    len: usize,
    /// The memfd, which its creator keeps open so that peers can find it under /proc; `None` for private memory and
    /// in the workers that open it.
    fd: Option<OwnedFd>,
    /// Forked children do not inherit the mapping, so a child must not unmap whatever its own address space has
    /// there.
    mapped_by_pid: u32,
}

// SAFETY: a segment is plain memory. `SegmentRef` and `RingMemory` control access to it from all threads: they hand
// out only atomics or require exclusive use.
unsafe impl Send for Segment {}
// SAFETY: as above; `Segment` itself has no interior mutability.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes `len` zero bytes that other processes can open.
    ///
    /// # Errors
    /// [`SegmentError::Memory`] at a limit of the process or the host.
    pub fn create(len: usize) -> Result<Self, SegmentError> {
        let error = |action| move |source| SegmentError::Memory { action, len, source };
        // SAFETY: the name is a C string.
        let memfd = |flags| check(unsafe { libc::memfd_create(c"tidemill".as_ptr(), flags) });
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // Hosts with vm.memfd_noexec=2 require the last flag; kernels before 6.3 do not know it.
        let fd = memfd(flags | libc::MFD_NOEXEC_SEAL).or_else(|_| memfd(flags)).map_err(error("create"))?;
        // SAFETY: the kernel has just given us this descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: a plain call on a descriptor we own.
        check(unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) }).map_err(error("size"))?;
        // SAFETY: as above.
        check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SIZE_SEALS) }).map_err(error("seal"))?;
        Self::map(len, libc::MAP_SHARED, Some(fd)).map_err(error("map"))
    }

    /// Opens the segment that is descriptor `fd` of process `pid`. Does not check the content.
    ///
    /// # Errors
    /// [`SegmentError::Open`] if the peer is gone, belongs to another user, or is in another PID namespace;
    /// [`SegmentError::Mismatch`] if that descriptor is not sealed memory of `len` bytes.
    pub fn open(pid: u32, fd: RawFd, len: usize) -> Result<Self, SegmentError> {
        let fd = open_descriptor(pid, fd, libc::O_RDWR)?;
        // SAFETY: a plain call on a descriptor we own.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        // SAFETY: `stat` is plain data, filled by the kernel.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is valid for writes.
        let found = check(unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) }).map(|_| stat.st_size as usize);
        let mismatch = |reason| SegmentError::Mismatch { pid, reason };
        if seals < 0 || seals & SIZE_SEALS != SIZE_SEALS {
            return Err(mismatch("its descriptor is not sealed memory".into()));
        }
        match found {
            Ok(found) if found == len => {}
            Ok(found) => return Err(mismatch(format!("{found} bytes instead of {len}"))),
            Err(source) => return Err(mismatch(format!("its size cannot be read: {source}"))),
        }
        let mut segment = Self::map(len, libc::MAP_SHARED, Some(fd)).map_err(|source| SegmentError::Memory {
            action: "map",
            len,
            source,
        })?;
        segment.fd = None; // The mapping outlives it, and 63 peers would cost 63 open files.
        Ok(segment)
    }

    /// Makes `len` zero bytes for the threads of this process.
    ///
    /// # Errors
    /// [`SegmentError::Memory`] when out of address space.
    pub fn private(len: usize) -> Result<Self, SegmentError> {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None).map_err(|source| SegmentError::Memory {
            action: "map",
            len,
            source,
        })
    }

    fn map(len: usize, flags: i32, fd: Option<OwnedFd>) -> io::Result<Self> {
        let raw_fd = fd.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // MAP_NORESERVE: rings are sized for the worst case and mostly stay untouched.
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags | libc::MAP_NORESERVE, raw_fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if !cfg!(miri) {
            // A forked child that touched our rings would corrupt the job; without the mapping it cannot.
            // SAFETY: the range is the mapping just made.
            check(unsafe { libc::madvise(base, len, libc::MADV_DONTFORK) })?;
        }
        let base = NonNull::new(base.cast()).expect("mmap returned null");
        Ok(Self { base, len, fd, mapped_by_pid: std::process::id() })
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true; here by convention.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte. Other processes may change the content at any time: access it through atomics, or by a
    /// protocol that orders plain accesses.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Closes the descriptor, once every worker that shares the memory has opened it.
    pub fn closed(mut self) -> Self {
        self.fd = None;
        self
    }

    /// The descriptor that peers open; `None` for private memory and for segments of other workers.
    pub fn fd(&self) -> Option<RawFd> {
        self.fd.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// The address of the byte at `offset`, checked to have `len` bytes behind it.
    ///
    /// # Panics
    /// If the range is not within the segment.
    pub(crate) fn range(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset <= self.len && len <= self.len - offset, "{len} bytes at {offset} of {}", self.len);
        // SAFETY: within the mapping, as just checked.
        unsafe { self.base.add(offset) }
    }

    /// Faults in the pages of a range now, so that the first messages do not pay for it. Only a hint.
    pub(crate) fn populate(&self, offset: usize, len: usize) {
        let start = offset & !(PAGE_BYTES - 1);
        let base = self.range(start, len + offset - start);
        // SAFETY: the range lies in our mapping, starts on a page, and populating changes no content.
        unsafe { libc::madvise(base.as_ptr().cast::<c_void>(), len + offset - start, libc::MADV_POPULATE_WRITE) };
    }

    /// The `T` at `offset`, which keeps the segment mapped.
    pub(crate) fn shared<T: Shareable>(self: &Arc<Self>, offset: usize) -> SegmentRef<T> {
        let at = self.range(offset, size_of::<T>()).cast::<T>();
        assert!(at.is_aligned(), "misaligned offset {offset}");
        SegmentRef { at, _segment: self.clone() }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if std::process::id() == self.mapped_by_pid {
            // SAFETY: our own mapping, and nothing borrows from it: `SegmentRef` and ring memories hold an `Arc`.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

/// Granularity of layouts within a segment.
pub(crate) const PAGE_BYTES: usize = 4096;

const SIZE_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Types that are safe to share with a process that may write anything.
///
/// # Safety
/// Every bit pattern is valid, and all access through `&T` is atomic.
pub unsafe trait Shareable {}
// SAFETY: atomics are integers.
unsafe impl Shareable for AtomicU32 {}
// SAFETY: atomics are integers.
unsafe impl Shareable for AtomicU64 {}
// SAFETY: an array is only its elements.
unsafe impl<T: Shareable, const N: usize> Shareable for [T; N] {}

/// A reference into a segment that keeps it mapped.
#[derive(Debug)]
pub struct SegmentRef<T> {
    at: NonNull<T>,
    _segment: Arc<Segment>,
}

// SAFETY: like `Arc<T>` for a `T` with atomic access only.
unsafe impl<T: Shareable> Send for SegmentRef<T> {}
// SAFETY: as above.
unsafe impl<T: Shareable> Sync for SegmentRef<T> {}

impl<T> Clone for SegmentRef<T> {
    fn clone(&self) -> Self {
        Self { at: self.at, _segment: self._segment.clone() }
    }
}

impl<T: Shareable> Deref for SegmentRef<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `Segment::shared` checked range and alignment, `_segment` keeps it mapped, and `T` is `Shareable`.
        unsafe { self.at.as_ref() }
    }
}

/// Opens descriptor `fd` of process `pid` in this process.
pub(crate) fn open_descriptor(pid: u32, fd: RawFd, flags: i32) -> Result<OwnedFd, SegmentError> {
    let path = format!("/proc/{pid}/fd/{fd}\0");
    // SAFETY: `path` ends with a zero byte.
    let opened = check(unsafe { libc::open(path.as_ptr().cast(), flags | libc::O_CLOEXEC) });
    // SAFETY: the kernel has just given us this descriptor.
    opened.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).map_err(|source| SegmentError::Open { pid, fd, source })
}

/// The result of a call that returns -1 for an error.
pub(crate) fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    /// Two mappings of one segment must see each other's writes, and a wrong size must be refused.
    #[test]
    #[cfg_attr(miri, ignore = "no memfd")]
    fn open_sees_what_create_wrote() {
        let own = Arc::new(Segment::create(8192).unwrap());
        let pid = std::process::id();
        let opened = Arc::new(Segment::open(pid, own.fd().unwrap(), 8192).unwrap());
        own.shared::<AtomicU64>(4096).store(7, Ordering::Relaxed);
        assert_eq!(opened.shared::<AtomicU64>(4096).load(Ordering::Relaxed), 7);
        let wrong = Segment::open(pid, own.fd().unwrap(), 4096).unwrap_err();
        assert!(wrong.to_string().contains("8192 bytes instead of 4096"), "{wrong}");
    }

    /// A peer that could shrink a segment could kill us with SIGBUS.
    #[test]
    #[cfg_attr(miri, ignore = "no memfd")]
    fn size_is_sealed() {
        let own = Segment::create(4096).unwrap();
        // SAFETY: a plain call.
        assert_eq!(unsafe { libc::ftruncate(own.fd().unwrap(), 0) }, -1);
    }

    /// Errors about an unsuitable descriptor or a missing process must name the remedy.
    #[test]
    #[cfg_attr(miri, ignore = "no memfd")]
    fn strangers_are_refused() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let error = Segment::open(std::process::id(), file.as_raw_fd(), 4096).unwrap_err();
        assert!(matches!(error, SegmentError::Mismatch { .. } | SegmentError::Open { .. }), "{error}");
        let error = Segment::open(u32::MAX >> 1, 3, 4096).unwrap_err();
        assert!(error.to_string().contains("has the process ended"), "{error}");
    }

    #[test]
    #[should_panic(expected = "8 bytes at 4096 of 4096")]
    fn range_is_checked() {
        let segment = Arc::new(Segment::private(4096).unwrap());
        let _ = segment.shared::<AtomicU64>(4096);
    }
}

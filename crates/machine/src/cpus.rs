//! Sets of CPUs, and the affinity mask of a thread.

use std::fmt;
use std::io;

const BITS: usize = usize::BITS as usize;

/// More CPUs than any machine has: a list in a file must not size an allocation.
const CPUS_MAX: usize = 1 << 16;

/// A set of CPUs, as Linux numbers them.
///
/// ```
/// use tidemill_machine::CpuSet;
/// let set: CpuSet = "0-2,5".parse().unwrap();
/// assert_eq!((set.len(), set.contains(5), set.contains(3)), (4, true, false));
/// assert_eq!(set.to_string(), "0-2,5");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet {
    /// One bit per CPU, from CPU 0 on; the last word is not 0.
    words: Vec<usize>,
}

impl CpuSet {
    /// The CPUs that the calling thread may use now; `None` if the system does not report them.
    #[must_use]
    pub fn of_current_thread() -> Option<CpuSet> {
        imp::affinity().map(CpuSet::of_words).filter(|set| !set.is_empty())
    }

    /// Binds the calling thread to these CPUs. Does not allocate, so it may run between `fork` and `exec`.
    ///
    /// # Errors
    /// System errors: a container may forbid it, or none of these CPUs may be usable.
    pub fn bind_current_thread(&self) -> io::Result<()> {
        imp::bind(&self.words)
    }

    /// The number of CPUs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether `cpu` is in the set.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.words.get(cpu / BITS).is_some_and(|word| word >> (cpu % BITS) & 1 == 1)
    }

    /// The CPU numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.words.len() * BITS).filter(|&cpu| self.contains(cpu))
    }

    fn of_words(mut words: Vec<usize>) -> CpuSet {
        while words.last() == Some(&0) {
            words.pop();
        }
        CpuSet { words }
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut words = Vec::new();
        for cpu in cpus {
            if words.len() <= cpu / BITS {
                words.resize(cpu / BITS + 1, 0);
            }
            words[cpu / BITS] |= 1 << (cpu % BITS);
        }
        CpuSet { words }
    }
}

impl std::str::FromStr for CpuSet {
    type Err = String;

    /// Parses a list as written by Linux, such as `0-2,5`.
    fn from_str(list: &str) -> Result<Self, String> {
        let part = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last && last < CPUS_MAX).then_some(first..=last)
        };
        let parts = list.trim().split(',').filter(|text| !text.is_empty());
        let ranges: Option<Vec<_>> = parts.map(part).collect();
        let ranges = ranges.ok_or_else(|| format!("expected a list of CPUs such as 0-2,5, not {list:?}"))?;
        Ok(ranges.into_iter().flatten().collect())
    }
}

impl fmt::Display for CpuSet {
    /// Writes the list like Linux: `0-2,5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus: Vec<usize> = self.iter().collect();
        for (i, run) in cpus.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => unreachable!("chunks are not empty"),
            }
        }
        Ok(())
    }
}

#[cfg(target_os = "linux")]
mod imp {
    use std::io;

    use super::{BITS, CPUS_MAX};

    pub(super) fn affinity() -> Option<Vec<usize>> {
        let mut words = vec![0usize; 1024 / BITS];
        loop {
            let bytes = size_of_val(words.as_slice());
            // SAFETY: the call writes at most `bytes` bytes into the vector; the kernel's mask is an array of words
            // like it.
            if unsafe { libc::sched_getaffinity(0, bytes, words.as_mut_ptr().cast()) } == 0 {
                return Some(words);
            }
            // The kernel rejects a mask that is shorter than its own, which depends on the number of CPUs it is built
            // for.
            let is_short = io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
            if !is_short || words.len() * BITS >= CPUS_MAX {
                return None;
            }
            words.resize(words.len() * 2, 0);
        }
    }

    pub(super) fn bind(words: &[usize]) -> io::Result<()> {
        // SAFETY: reads at most as many bytes as the slice has; missing words count as 0.
        match unsafe { libc::sched_setaffinity(0, size_of_val(words), words.as_ptr().cast()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use std::io;

    pub(super) fn affinity() -> Option<Vec<usize>> {
        None
    }

    pub(super) fn bind(_words: &[usize]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

//! Descriptors for connections: at the start rank 0 needs one for each worker that it is connected to, in a star all,
//! and any worker may later communicate with all.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{Rank, notice};

/// Descriptors for the program itself, besides its connections.
const OF_PROGRAM: u64 = 512;

/// Raises the soft limit so that this process can have a descriptor for each of `size` workers, as far as its hard
/// limit allows. The soft limit, often 1024, exists for programs that call `select`. Rank 0 needs `links` of them at
/// the start.
pub(super) fn allow(me: Rank, size: u32, links: u32) {
    let limit = getrlimit(Resource::Nofile);
    let wanted = u64::from(size) + OF_PROGRAM;
    if let Some(current) = raised(limit.current, limit.maximum, wanted) {
        // If the system refuses, the resulting error says what to do.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
    }
    let needed = u64::from(links) + OF_PROGRAM;
    if me == Rank(0)
        && let Some(hard) = limit.maximum
        && hard < needed
    {
        notice!(
            me,
            "at the start of a job of {size} workers, rank 0 needs about {needed} descriptors, but may have {hard}: if \
             workers cannot join, raise the hard limit on its host (ulimit -Hn; LimitNOFILE= of a service, --ulimit \
             nofile of a container)"
        );
    }
}

/// How many connections rank 0 may have while workers join, before it has leaves call again later.
pub(super) fn links_max() -> usize {
    let available = |limit: u64| limit.saturating_sub(OF_PROGRAM).max(limit / 2);
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| available(limit) as usize)
}

/// The soft limit needed for this many descriptors, if it has to change. `None` means unlimited.
fn raised(soft: Option<u64>, hard: Option<u64>, needed: u64) -> Option<u64> {
    let wanted = hard.map_or(needed, |hard| needed.min(hard));
    soft.filter(|&soft| soft < wanted).map(|_| wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lowering a limit would take descriptors away from the program.
    #[test]
    fn the_limit_is_raised_as_far_as_it_may_be() {
        assert_eq!(raised(Some(1024), Some(4096), 2000), Some(2000));
        assert_eq!(raised(Some(1024), Some(4096), 16_896), Some(4096), "as far as the hard limit");
        assert_eq!(raised(Some(1024), None, 16_896), Some(16_896));
        assert_eq!(raised(Some(1024), Some(4096), 1000), None, "enough");
        assert_eq!(raised(Some(4096), Some(4096), 5000), None, "no more");
        assert_eq!(raised(None, None, 5000), None, "no limit");
    }
}

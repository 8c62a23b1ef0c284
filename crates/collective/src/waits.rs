//! How long a rank waited in its recent collectives. Clocks of hosts differ, but the last rank to arrive waits least:
//! by comparing their waits, ranks find out which one keeps the others waiting.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

use crate::Collective;

/// Number of waits that are kept.
const WAITS_MAX: usize = 128;
/// Shorter waits are not kept: a rank without an entry did not wait.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// The last waits of a rank, by the number of the collective.
#[derive(Debug, Default)]
pub(crate) struct RecentWaits(Mutex<VecDeque<(u32, Duration)>>);

/// Whether no rank leaves such a collective before all have arrived.
pub(crate) fn waits_for_all(collective: Collective) -> bool {
    use Collective::{
        Allgather, Allgatherv, Allreduce, Alltoall, Alltoallv, Barrier, ReduceScatter, ReduceScatterBlock,
    };
    matches!(
        collective,
        Allgather | Allgatherv | Allreduce | Alltoall | Alltoallv | Barrier | ReduceScatter | ReduceScatterBlock
    )
}

impl RecentWaits {
    pub(crate) fn note(&self, seq: u32, waited: Duration) {
        if waited < WAIT_MIN {
            return;
        }
        let mut waits = self.0.lock();
        if waits.len() == WAITS_MAX {
            waits.pop_front();
        }
        waits.push_back((seq, waited));
    }

    pub(crate) fn all(&self) -> Vec<(u32, Duration)> {
        self.0.lock().iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_long_waits_are_kept() {
        let waits = RecentWaits::default();
        for seq in 0..300 {
            waits.note(seq, Duration::from_micros(if seq % 2 == 0 { 1500 } else { 900 }));
        }
        let kept = waits.all();
        assert_eq!((kept.len(), kept[0].0, kept[127].0), (128, 44, 298));
    }
}

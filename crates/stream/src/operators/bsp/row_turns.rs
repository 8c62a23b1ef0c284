//! Agreement between the copies of a task on calls of their function for a number of rows, counted over all copies.
//!
//! Each copy says how many of its rows were in no call yet. Once all copies together have enough, each contributes its
//! share to the call, its oldest rows. Shares are proportional to what the copies have, so that all of them wait
//! equally long, and add up to the number exactly. Copies also say from which time on their rows are, those that may
//! come included, so all know from which time on the results of later calls are. A copy leaves a barrier only when all
//! have reached it and fewer rows are left than a call takes.

use std::ops::Range;

use tidemill_collective::{Communicator, ReduceOp};
use tidemill_dataflow::TaskError;

use super::turns::{CommConsensus, Consensus, Moment};
use crate::time::window::Micros;

/// A copy without new rows checks after this many ticks whether the other copies have enough.
const QUIET_TICKS_MAX: u32 = 5;

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RowTurn {
    /// Call the function.
    Call {
        /// The numbers of its rows, counted over all calls.
        of: Range<i64>,
        /// How many of them are this copy's oldest rows.
        share: usize,
    },
    /// Nothing more at this moment, which all copies know.
    Over,
    /// Other copies are behind.
    NotYet,
}

/// One copy's part in the agreement.
pub(super) struct RowTurns<C = CommConsensus> {
    copies: C,
    /// This copy's index.
    place: usize,
    /// The number of rows of a call.
    size: i64,
    /// The number of rows in all calls so far, over all copies.
    called: i64,
    /// What each copy had at the last agreement, minus the rows called since.
    left: Vec<i64>,
    /// The earliest time of rows that were in no call at the last agreement, or come later.
    now: Micros,
    /// Ticks since the last agreement.
    quiet_ticks: u32,
}

impl RowTurns {
    /// For copies with a communicator. `called` is the number of rows already called when the copy starts.
    pub(super) fn new(comm: Communicator, size: i64, called: i64) -> Self {
        let (place, copies) = (comm.rank() as usize, comm.size() as usize);
        RowTurns::among(CommConsensus::new(comm), (place, copies), size, called)
    }
}

impl<C: Consensus> RowTurns<C> {
    /// Like [`RowTurns::new`], with any consensus, for copy `place` of `of`.
    pub(super) fn among(copies: C, (place, of): (usize, usize), size: i64, called: i64) -> Self {
        RowTurns { copies, place, size, called: called.max(0), left: vec![0; of], now: Micros::MIN, quiet_ticks: 0 }
    }

    pub(super) fn called(&self) -> i64 {
        self.called
    }

    /// No row of a later call has an earlier time.
    pub(super) fn now(&self) -> Micros {
        self.now
    }

    /// Whether other copies have not answered yet.
    pub(super) fn is_pending(&self) -> bool {
        self.copies.is_pending()
    }

    /// Whether this copy's rows alone are enough for a call.
    pub(super) fn is_enough(&self, rows: usize) -> bool {
        rows as i64 >= self.size
    }

    /// Notes that some time has passed.
    pub(super) fn tick(&mut self) {
        self.quiet_ticks += 1;
    }

    /// The next thing to do at a moment. `rows` is the number of this copy's rows that were in no call, `since` gives
    /// the earliest time of these and of those that may come. If it `waits`, a copy that is ahead briefly waits for the
    /// others.
    ///
    /// # Errors
    /// A failure of the job; different calls on different copies; those of `since`.
    pub(super) fn next(
        &mut self,
        moment: Moment,
        rows: usize,
        since: impl Fn() -> Result<Micros, TaskError>,
        waits: bool,
    ) -> Result<RowTurn, TaskError> {
        loop {
            if let Some(share) = self.share() {
                let of = self.called..self.called + self.size;
                self.called = of.end;
                return Ok(RowTurn::Call { of, share });
            }
            let copies = self.left.len();
            if !self.copies.is_pending() {
                let is_due = rows as i64 > self.left[self.place] || self.quiet_ticks >= QUIET_TICKS_MAX;
                if moment == Moment::Time && !is_due {
                    return Ok(RowTurn::Over);
                }
                // A place for each copy's rows and one for its time, which the sum leaves as they are.
                let mut said = vec![0; 2 * copies + 2];
                said[self.place] = rows as i64;
                said[copies + self.place] = since()?;
                said[2 * copies] = i64::from(moment == Moment::Barrier);
                said[2 * copies + 1] = i64::from(moment == Moment::End);
                self.copies.propose(said, &ReduceOp::Sum)?;
                self.quiet_ticks = 0;
            }
            let Some(mut agreed) = self.copies.outcome(moment, waits)? else { return Ok(RowTurn::NotYet) };
            let [at_barrier, at_end] = [agreed[2 * copies], agreed[2 * copies + 1]];
            self.now = agreed[copies..2 * copies].iter().copied().min().unwrap_or(Micros::MIN);
            agreed.truncate(copies);
            self.left = agreed;
            if self.left.iter().sum::<i64>() >= self.size {
                continue;
            }
            let all = copies as i64;
            match moment {
                Moment::Time if at_barrier > 0 => return Ok(RowTurn::NotYet),
                Moment::Barrier if at_barrier == all => return Ok(RowTurn::Over),
                Moment::End if at_end == all => return Ok(RowTurn::Over),
                _ => {}
            }
        }
    }

    /// This copy's share of the next call, subtracted from what is left; `None` if there are not enough rows.
    fn share(&mut self) -> Option<usize> {
        let all: i64 = self.left.iter().sum();
        if all < self.size {
            return None;
        }
        let (mut before, mut taken, mut own) = (0, 0, 0);
        for (copy, left) in self.left.iter_mut().enumerate() {
            before += *left;
            let until = (i128::from(before) * i128::from(self.size) / i128::from(all)) as i64;
            let share = until - taken;
            (taken, *left) = (until, *left - share);
            if copy == self.place {
                own = share as usize;
            }
        }
        Some(own)
    }
}

#[cfg(test)]
mod tests {
    use tidemill_collective::run_ranks;

    use super::*;

    /// The calls that a copy makes at a moment: the number of their first row, and this copy's share.
    fn calls(turns: &mut RowTurns, moment: Moment, rows: &mut usize) -> Vec<(i64, usize)> {
        let mut made = Vec::new();
        while let RowTurn::Call { of, share } = turns.next(moment, *rows, || Ok(0), true).unwrap() {
            *rows -= share;
            made.push((of.start, share));
        }
        made
    }

    /// A call has exactly its number of rows, however they are distributed; fewer are left than for one call, and wait.
    #[test]
    fn shares_add_up() {
        let all = run_ranks(3, |comm| {
            let mut rows = [70, 0, 37][comm.rank() as usize];
            let mut turns = RowTurns::new(comm, 10, 0);
            let made = calls(&mut turns, Moment::Barrier, &mut rows);
            rows += 1;
            (made, calls(&mut turns, Moment::End, &mut rows), rows)
        });
        let all = all.unwrap();
        for call in 0..10 {
            assert!(all.iter().all(|(made, ..)| made[call].0 == 10 * call as i64));
            assert_eq!(all.iter().map(|(made, ..)| made[call].1).sum::<usize>(), 10);
            assert!((6..8).contains(&all[0].0[call].1), "{all:?}");
        }
        let last: usize = all.iter().map(|(_, last, _)| last[0].1).sum();
        let left: usize = all.iter().map(|(.., rows)| rows).sum();
        assert_eq!((last, left), (10, 0));
    }

    /// A generator of small numbers; the same on all copies for a seed.
    fn below(state: &mut u64, limit: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % limit
    }

    /// However rows arrive at each copy, all copies make the same calls in each epoch, and lose no row.
    #[test]
    fn epochs_have_the_same_calls_whatever_comes() {
        for seed in 0..60 {
            let (copies, size) = (1 + seed as u32 % 4, 1 + seed as i64 % 17);
            let all = run_ranks(copies, |comm| {
                let mut dice = seed * 977 + u64::from(comm.rank()) + 1;
                let mut turns = RowTurns::new(comm, size, 0);
                let (mut rows, mut came, mut epochs) = (0, 0, Vec::new());
                for _ in 0..6 {
                    let mut made = Vec::new();
                    for _ in 0..below(&mut dice, 5) {
                        let more = below(&mut dice, 20) as usize;
                        (rows, came) = (rows + more, came + more);
                        turns.tick();
                        made.extend(calls(&mut turns, Moment::Time, &mut rows));
                    }
                    made.extend(calls(&mut turns, Moment::Barrier, &mut rows));
                    epochs.push(made);
                }
                epochs.push(calls(&mut turns, Moment::End, &mut rows));
                (epochs, rows, came)
            });
            let all = all.unwrap();
            let starts = |epochs: &[Vec<(i64, usize)>]| -> Vec<Vec<i64>> {
                epochs.iter().map(|made| made.iter().map(|(start, _)| *start).collect()).collect()
            };
            let first = starts(&all[0].0);
            assert!(all.iter().all(|(epochs, ..)| starts(epochs) == first), "seed {seed}: {all:?}");
            let calls = first.iter().flatten().count() as i64;
            let (left, came) = all.iter().fold((0_usize, 0_usize), |sum, (_, rows, came)| (sum.0 + rows, sum.1 + came));
            assert_eq!(calls * size + left as i64, came as i64, "seed {seed}");
            assert!((left as i64) < size, "seed {seed}");
        }
    }
}

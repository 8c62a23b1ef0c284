//! How the copies of a task agree on calls of their function for a number of rows that have come to all of them
//! together.
//!
//! Each copy says how many rows it has that were in no call. When all of them have enough, each gives its share to the
//! call, of the rows that came to it first. Shares are in proportion to what copies have, so that all of them wait
//! equally long, and add up to the number exactly. A copy leaves a barrier only when all have come to it, and fewer
//! rows are left than a call takes.

use std::ops::Range;

use tidemill_collective::{Communicator, PendingAllreduce, ReduceOp};
use tidemill_dataflow::TaskError;

use super::turns::{Moment, answered};

/// A copy to which nothing comes looks with every so many ticks whether enough has come to the others.
const QUIET_TICKS_MAX: u32 = 5;

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RowTurn {
    /// Call the function.
    Call {
        /// The numbers of its rows, among those of all calls.
        of: Range<i64>,
        /// How many of them are this copy's first ones.
        share: usize,
    },
    /// Nothing more at this moment: it is the same at all copies.
    Over,
    /// Others are behind.
    NotYet,
}

/// One copy's part.
pub(super) struct RowTurns {
    comm: Communicator,
    /// Rows of a call.
    size: i64,
    /// Rows of all calls so far, of all copies.
    called: i64,
    /// What copies had when they agreed last, without what has been called since.
    left: Vec<i64>,
    pending: Option<PendingAllreduce<i64>>,
    /// Since the last agreement.
    quiet_ticks: u32,
}

impl RowTurns {
    /// Of a copy that goes on where so many rows have been called.
    pub(super) fn new(comm: Communicator, size: i64, called: i64) -> Self {
        let left = vec![0; comm.size() as usize];
        RowTurns { comm, size, called: called.max(0), left, pending: None, quiet_ticks: 0 }
    }

    pub(super) fn called(&self) -> i64 {
        self.called
    }

    /// Whether so many rows of this copy alone are enough for a call.
    pub(super) fn is_enough(&self, rows: usize) -> bool {
        rows as i64 >= self.size
    }

    /// Some time has passed.
    pub(super) fn tick(&mut self) {
        self.quiet_ticks += 1;
    }

    /// What is to be done next at a moment, of a copy that has so many rows that were in no call. A copy that is ahead
    /// waits for the others for a moment if it `waits`.
    ///
    /// # Errors
    /// The job's fault; when copies make different calls.
    pub(super) fn next(&mut self, moment: Moment, rows: usize, waits: bool) -> Result<RowTurn, TaskError> {
        loop {
            if let Some(share) = self.share() {
                let of = self.called..self.called + self.size;
                self.called = of.end;
                return Ok(RowTurn::Call { of, share });
            }
            let place = self.comm.rank() as usize;
            let copies = self.left.len();
            if self.pending.is_none() {
                let is_due = rows as i64 > self.left[place] || self.quiet_ticks >= QUIET_TICKS_MAX;
                if moment == Moment::Time && !is_due {
                    return Ok(RowTurn::Over);
                }
                let mut said = vec![0; copies + 2];
                said[place] = rows as i64;
                said[copies] = i64::from(moment == Moment::Barrier);
                said[copies + 1] = i64::from(moment == Moment::End);
                self.pending = Some(self.comm.start_allreduce(said, &ReduceOp::Sum)?);
                self.quiet_ticks = 0;
            }
            let Some(mut agreed) = answered(&mut self.pending, moment, waits)? else { return Ok(RowTurn::NotYet) };
            let [at_barrier, at_end] = [agreed[copies], agreed[copies + 1]];
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

    /// This copy's share of the next call, taken from what is left; `None`: there is not enough for one.
    fn share(&mut self) -> Option<usize> {
        let all: i64 = self.left.iter().sum();
        if all < self.size {
            return None;
        }
        let place = self.comm.rank() as usize;
        let (mut before, mut taken, mut own) = (0, 0, 0);
        for (copy, left) in self.left.iter_mut().enumerate() {
            before += *left;
            let until = (i128::from(before) * i128::from(self.size) / i128::from(all)) as i64;
            let share = until - taken;
            (taken, *left) = (until, *left - share);
            if copy == place {
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
        while let RowTurn::Call { of, share } = turns.next(moment, *rows, true).unwrap() {
            *rows -= share;
            made.push((of.start, share));
        }
        made
    }

    /// A call has its number of rows exactly, whoever has them; what is left is less than one, and waits.
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

    /// A generator of small numbers, the same for a seed at all copies.
    fn below(state: &mut u64, limit: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % limit
    }

    /// However rows come to each copy, all make the same calls in each epoch, and lose none.
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

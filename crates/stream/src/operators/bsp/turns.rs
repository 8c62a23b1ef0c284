//! Agreement between the copies of a task on the window they call their function for.
//!
//! A copy knows the time its input has reached, the first window that it has rows for, and the one that its timer is
//! for. The minimum of each over all copies determines the next window to call: one that has ended on all copies. When
//! all input has ended, time does not go on, so windows for timers behind the last rows are not called. Copies enter an
//! agreement when a window may have ended, at every barrier, and at the end of their input. A copy leaves a barrier
//! only when all have reached it, so all make the same calls in each epoch, whatever the order of input on each.
//!
//! A copy whose time is ahead does not block its input while the others catch up, since what they wait for may come
//! after rows for this copy. It checks again when its next input arrives.

use tidemill_collective::{Communicator, PendingAllreduce, ReduceOp};
use tidemill_dataflow::TaskError;

use super::OnBusy;
use crate::time::window::Micros;
use crate::time::window_assigner::WindowAssigner;

/// Where a copy stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Moment {
    /// Event time has advanced.
    #[default]
    Time,
    /// A barrier is about to pass.
    Barrier,
    /// The copy's input has ended.
    End,
}

/// The next thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Call the function for the window with this end.
    Call(Micros),
    /// Nothing more at this moment, which all copies know.
    Over,
    /// Other copies are behind.
    NotYet,
}

/// The result of an agreement.
struct Agreement {
    /// The minimum time.
    now: Micros,
    /// The end of the first window to call that was not called.
    next: Micros,
    all_at_barrier: bool,
    any_at_barrier: bool,
    /// No copy has just been busy.
    all_rested: bool,
}

/// The windows that a copy has rows for, or a timer.
pub(super) trait WindowEnds {
    /// The end of the first window with rows that ends after a time; `Micros::MAX` if there is none.
    fn first_after(&self, time: Micros) -> Micros;

    /// The same for a timer.
    fn timer_after(&self, _time: Micros) -> Micros {
        Micros::MAX
    }

    /// The end of the last window with rows that ends by a time; `Micros::MIN` if there is none.
    fn last_by(&self, time: Micros) -> Micros;
}

/// How the copies of a task combine their numbers. All copies propose in the same order.
pub(super) trait Consensus {
    /// Proposes this copy's numbers, which are combined with those of all other copies. Then call
    /// [`outcome`](Consensus::outcome) until there is one.
    ///
    /// # Errors
    /// A failure of the job.
    fn propose(&mut self, numbers: Vec<i64>, op: &ReduceOp) -> Result<(), TaskError>;

    /// Whether this copy's proposal has no outcome yet.
    fn is_pending(&self) -> bool;

    /// The combined numbers, once all copies have proposed. At a barrier and at the end, a copy waits for them;
    /// otherwise it waits briefly if it `waits`.
    ///
    /// # Errors
    /// A failure of the job; different calls on different copies.
    fn outcome(&mut self, moment: Moment, waits: bool) -> Result<Option<Vec<i64>>, TaskError>;
}

/// Consensus over the communicator of the copies.
pub(super) struct CommConsensus {
    comm: Communicator,
    pending: Option<PendingAllreduce<i64>>,
}

impl CommConsensus {
    pub(super) fn new(comm: Communicator) -> Self {
        CommConsensus { comm, pending: None }
    }
}

impl Consensus for CommConsensus {
    fn propose(&mut self, numbers: Vec<i64>, op: &ReduceOp) -> Result<(), TaskError> {
        self.pending = Some(self.comm.start_allreduce(numbers, op)?);
        Ok(())
    }

    fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    fn outcome(&mut self, moment: Moment, waits: bool) -> Result<Option<Vec<i64>>, TaskError> {
        let Some(mut pending) = self.pending.take() else { return Ok(None) };
        let values = match moment {
            Moment::Barrier | Moment::End => Some(pending.wait()?),
            Moment::Time => {
                let values = if waits { pending.wait_briefly()? } else { pending.test()? };
                if values.is_none() {
                    self.pending = Some(pending);
                }
                values
            }
        };
        Ok(values)
    }
}

/// One copy's part in the agreement.
pub(super) struct Turns<C = CommConsensus> {
    copies: C,
    /// `None`: epochs instead of windows.
    windows: Option<WindowAssigner>,
    /// The time that this copy's input has reached.
    now: Micros,
    /// All windows that end by then were called, or had no rows on any copy.
    called: Micros,
    on_busy: OnBusy,
    /// The copy has not just been busy.
    rested: bool,
}

impl Turns {
    /// For copies with a communicator. All windows that end by `called` were already called when the copy starts.
    pub(super) fn new(comm: Communicator, windows: Option<WindowAssigner>, called: Micros, on_busy: OnBusy) -> Self {
        Turns::among(CommConsensus::new(comm), windows, called, on_busy)
    }

    pub(super) fn comm(&self) -> &Communicator {
        &self.copies.comm
    }
}

impl<C: Consensus> Turns<C> {
    /// Like [`Turns::new`], with any consensus.
    pub(super) fn among(copies: C, windows: Option<WindowAssigner>, called: Micros, on_busy: OnBusy) -> Self {
        Turns { copies, windows, now: Micros::MIN, called, on_busy, rested: true }
    }

    pub(super) fn windows(&self) -> Option<&WindowAssigner> {
        self.windows.as_ref()
    }

    pub(super) fn called(&self) -> Micros {
        self.called
    }

    /// Rows of windows that end by then are late.
    pub(super) fn too_late(&self) -> Micros {
        self.called.max(self.now)
    }

    /// Whether other copies have yet to answer.
    pub(super) fn is_pending(&self) -> bool {
        self.copies.is_pending()
    }

    /// The copy's input has reached a time.
    pub(super) fn pass(&mut self, now: Micros) {
        self.now = self.now.max(now);
    }

    /// The input that arrived while the function was busy has been accepted.
    pub(super) fn rest(&mut self) {
        self.rested = true;
    }

    /// Whether a window that was not called may have ended.
    pub(super) fn is_due(&self) -> bool {
        let ended = |windows: &WindowAssigner| self.now > Micros::MIN && windows.ended_by(self.now) > self.called;
        self.windows.as_ref().is_some_and(ended)
    }

    /// The next thing to do at a moment. `ends` are the windows that this copy has rows for. If it `waits`, a copy that
    /// is ahead briefly waits for the others.
    ///
    /// # Errors
    /// A failure of the job; different calls on different copies.
    pub(super) fn next(&mut self, moment: Moment, ends: &impl WindowEnds, waits: bool) -> Result<Turn, TaskError> {
        loop {
            if !self.copies.is_pending() {
                if moment == Moment::Time && !self.is_due() {
                    return Ok(Turn::Over);
                }
                let at_barrier = i64::from(moment == Moment::Barrier);
                let (first, timer) = (ends.first_after(self.called), ends.timer_after(self.called));
                let said = vec![self.now, first, timer, at_barrier, -at_barrier, i64::from(self.rested)];
                self.copies.propose(said, &ReduceOp::Min)?;
            }
            let Some(agreed) = self.agreed(moment, waits)? else { return Ok(Turn::NotYet) };
            if agreed.next <= agreed.now && agreed.next < Micros::MAX {
                match self.choose(&agreed, ends)? {
                    Some(end) => return Ok(Turn::Call(end)),
                    None => continue,
                }
            }
            self.skip_to(agreed.now);
            match moment {
                Moment::Time if agreed.any_at_barrier => return Ok(Turn::NotYet),
                Moment::Barrier if agreed.all_at_barrier => return Ok(Turn::Over),
                Moment::End if agreed.now == Micros::MAX => return Ok(Turn::Over),
                _ => {}
            }
        }
    }

    /// Chooses the window to call among those that have ended, if any.
    fn choose(&mut self, agreed: &Agreement, ends: &impl WindowEnds) -> Result<Option<Micros>, TaskError> {
        let (is_left_out, end) = match self.on_busy {
            OnBusy::Wait => (false, agreed.next),
            OnBusy::Drop if agreed.all_rested => (false, agreed.next),
            OnBusy::Drop | OnBusy::Latest => {
                self.copies.propose(vec![ends.last_by(agreed.now)], &ReduceOp::Max)?;
                // All are here: nobody waits long.
                let last = self.copies.outcome(Moment::Barrier, true)?.ok_or("copies have not answered")?;
                // Without rows, it is called for a timer.
                (self.on_busy == OnBusy::Drop, last[0].max(agreed.next))
            }
        };
        self.called = end;
        self.rested = is_left_out || self.on_busy == OnBusy::Wait;
        Ok((!is_left_out).then_some(end))
    }

    /// No window that ends by `time` has rows or a timer.
    fn skip_to(&mut self, time: Micros) {
        if let Some(windows) = self.windows.as_ref().filter(|_| time > Micros::MIN) {
            self.called = self.called.max(windows.ended_by(time));
        }
    }

    /// The agreement, once all copies have answered.
    fn agreed(&mut self, moment: Moment, waits: bool) -> Result<Option<Agreement>, TaskError> {
        let Some(values) = self.copies.outcome(moment, waits)? else { return Ok(None) };
        let [now, first, timer, all_at_barrier, any_at_barrier, all_rested] = values[..] else {
            return Err("copies have agreed on something else".into());
        };
        let is_over = now == Micros::MAX && first == Micros::MAX;
        let next = if is_over { first } else { first.min(timer) };
        let (all_at_barrier, any_at_barrier) = (all_at_barrier == 1, any_at_barrier == -1);
        Ok(Some(Agreement { now, next, all_at_barrier, any_at_barrier, all_rested: all_rested == 1 }))
    }
}

#[cfg(test)]
mod tests {
    use tidemill_collective::run_ranks;

    use super::*;

    impl WindowEnds for &[Micros] {
        fn first_after(&self, time: Micros) -> Micros {
            self.iter().copied().filter(|&end| end > time).min().unwrap_or(Micros::MAX)
        }

        fn last_by(&self, time: Micros) -> Micros {
            self.iter().copied().filter(|&end| end <= time).max().unwrap_or(Micros::MIN)
        }
    }

    /// The calls that a copy makes at a moment.
    fn calls(turns: &mut Turns, moment: Moment, rows: &[Micros]) -> Vec<Micros> {
        let mut made = Vec::new();
        loop {
            match turns.next(moment, &rows, true).unwrap() {
                Turn::Call(end) => made.push(end),
                Turn::Over | Turn::NotYet => return made,
            }
        }
    }

    /// Watermarks advance in steps of any length on each copy, and one copy is behind at the barrier. Still, every copy
    /// has made the same calls when it passes the barrier, and at the end.
    #[test]
    fn epochs_have_the_same_calls() {
        let all = run_ranks(3, |comm| {
            let rank = comm.rank();
            let mut turns = Turns::new(comm, Some(WindowAssigner::sliding(10, 10)), Micros::MIN, OnBusy::Wait);
            let rows: [&[Micros]; 3] = [&[10, 30, 70], &[30, 40], &[50]];
            let rows = rows[rank as usize];
            let steps: [&[Micros]; 3] = [&[5, 12, 47], &[45], &[9, 10, 11, 35]];
            let mut epochs = vec![Vec::new()];
            for &time in steps[rank as usize] {
                turns.pass(time);
                epochs[0].extend(calls(&mut turns, Moment::Time, rows));
            }
            epochs[0].extend(calls(&mut turns, Moment::Barrier, rows));
            turns.pass(51);
            epochs.push(calls(&mut turns, Moment::Time, rows));
            turns.pass(Micros::MAX);
            let more = calls(&mut turns, Moment::End, rows);
            epochs[1].extend(more);
            epochs
        });
        // The third copy had reached 35 at the barrier.
        for epochs in all.unwrap() {
            assert_eq!(epochs, [vec![10, 30], vec![40, 50, 70]]);
        }
    }

    /// A copy that is ahead does not wait forever: the others may depend on it accepting its input.
    #[test]
    fn a_copy_that_is_ahead_continues() {
        let all = run_ranks(2, |comm| {
            let rank = comm.rank();
            let mut turns = Turns::new(comm, Some(WindowAssigner::sliding(10, 10)), Micros::MIN, OnBusy::Wait);
            let mut made = Vec::new();
            if rank == 0 {
                turns.pass(20);
                assert_eq!(turns.next(Moment::Time, &[10].as_slice(), true).unwrap(), Turn::NotYet);
                // What the other copy waits for.
                turns.comm().send_slice(&[1u8], 1, 0).unwrap();
            } else {
                turns.comm().recv_slice(&mut [0u8], Some(0), Some(0)).unwrap();
                turns.pass(20);
            }
            let rows: &[Micros] = if rank == 0 { &[10] } else { &[] };
            made.extend(calls(&mut turns, Moment::Barrier, rows));
            (made, turns.called())
        });
        assert_eq!(all.unwrap(), [(vec![10], 20), (vec![10], 20)]);
    }

    /// An empty span of any length is skipped at once.
    #[test]
    fn windows_without_rows_are_not_called() {
        let all = run_ranks(2, |comm| {
            let mut turns = Turns::new(comm, Some(WindowAssigner::sliding(1, 1)), Micros::MIN, OnBusy::Wait);
            turns.pass(1 << 60);
            let made = calls(&mut turns, Moment::Time, &[]);
            let called = turns.called();
            // All rows have arrived, but the input has not ended yet.
            turns.pass(Micros::MAX);
            (made, called, calls(&mut turns, Moment::Time, &[]))
        });
        assert_eq!(all.unwrap(), vec![(vec![], 1 << 60, vec![]); 2]);
    }

    /// Windows that end while the function is busy are all dropped, or all but the last, in the same way on all copies;
    /// a window that ends later is called.
    #[test]
    fn windows_that_end_meanwhile() {
        for (on_busy, expected) in [(OnBusy::Drop, vec![10, 60]), (OnBusy::Latest, vec![10, 40, 60])] {
            let all = run_ranks(2, |comm| {
                let rank = comm.rank() as usize;
                let mut turns = Turns::new(comm, Some(WindowAssigner::sliding(10, 10)), Micros::MIN, on_busy);
                let rows: [&[Micros]; 2] = [&[10, 20, 60], &[30, 40]];
                turns.pass(11);
                let mut made = calls(&mut turns, Moment::Time, rows[rank]);
                turns.pass(45);
                made.extend(calls(&mut turns, Moment::Time, rows[rank]));
                turns.rest();
                turns.pass(Micros::MAX);
                made.extend(calls(&mut turns, Moment::End, rows[rank]));
                made
            });
            assert_eq!(all.unwrap(), vec![expected; 2], "{on_busy:?}");
        }
    }

    /// A window without rows is called for a timer once it has ended, in its place among the others; but not behind the
    /// last rows when the input has ended.
    #[test]
    fn windows_with_timers_are_called() {
        struct Timed(Vec<Micros>, Micros);

        impl WindowEnds for Timed {
            fn first_after(&self, time: Micros) -> Micros {
                self.0.as_slice().first_after(time)
            }

            fn timer_after(&self, time: Micros) -> Micros {
                if self.1 > time { self.1 } else { Micros::MAX }
            }

            fn last_by(&self, time: Micros) -> Micros {
                self.0.as_slice().last_by(time)
            }
        }

        for on_busy in [OnBusy::Wait, OnBusy::Latest] {
            let all = run_ranks(2, |comm| {
                // One copy has rows, the other one timers.
                let rank = comm.rank();
                let ends = |timer| if rank == 0 { Timed(vec![10, 70], Micros::MAX) } else { Timed(Vec::new(), timer) };
                let mut turns = Turns::new(comm, Some(WindowAssigner::sliding(10, 10)), Micros::MIN, on_busy);
                let mut made = Vec::new();
                for (now, timer, moment) in [
                    (15, 40, Moment::Barrier),
                    (39, 40, Moment::Barrier),
                    (41, 40, Moment::Barrier),
                    (41, 60, Moment::Barrier),
                    (Micros::MAX, 60, Moment::End),
                    (Micros::MAX, 90, Moment::End),
                ] {
                    turns.pass(now);
                    while let Turn::Call(end) = turns.next(moment, &ends(timer), true).unwrap() {
                        made.push(end);
                        turns.rest();
                    }
                }
                made
            });
            let expected = if on_busy == OnBusy::Wait { vec![10, 40, 60, 70] } else { vec![10, 40, 70] };
            assert_eq!(all.unwrap(), vec![expected; 2], "{on_busy:?}");
        }
    }

    /// A generator of small numbers; the same on all copies for a seed.
    fn below(state: &mut u64, limit: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % limit
    }

    /// Simulates one copy: rows of random windows that have not ended, steps of time, and barriers in between. Returns
    /// the calls of each epoch.
    fn life(comm: Communicator, seed: u64, barriers: u64) -> Vec<Vec<Micros>> {
        let mut dice = seed.wrapping_mul(977).wrapping_add(u64::from(comm.rank()) + 1);
        let mut turns = Turns::new(comm, Some(WindowAssigner::sliding(10, 10)), Micros::MIN, OnBusy::Wait);
        let (mut time, mut rows, mut epochs) = (0, Vec::new(), Vec::new());
        for _ in 0..barriers {
            let mut made = Vec::new();
            for _ in 0..below(&mut dice, 6) {
                // Windows end after this copy's time, so no row is late.
                let end = (time / 10 + 1 + below(&mut dice, 12) as i64) * 10;
                if below(&mut dice, 3) > 0 {
                    rows.push(end);
                }
                time += below(&mut dice, 35) as i64;
                turns.pass(time);
                made.extend(calls(&mut turns, Moment::Time, &rows));
            }
            made.extend(calls(&mut turns, Moment::Barrier, &rows));
            epochs.push(made);
        }
        turns.pass(Micros::MAX);
        epochs.push(calls(&mut turns, Moment::End, &rows));
        assert!(
            rows.iter().all(|end| epochs.iter().flatten().any(|called| called == end)),
            "seed {seed}: a row is lost"
        );
        epochs
    }

    /// However input arrives at each copy, all copies make the same calls in each epoch, one for each window, in order.
    #[test]
    fn epochs_have_the_same_calls_whatever_comes() {
        for seed in 0..60 {
            let copies = 1 + seed as u32 % 4;
            let all = run_ranks(copies, |comm| life(comm, seed, 8)).unwrap();
            assert!(all.iter().all(|epochs| *epochs == all[0]), "seed {seed}: {all:?}");
            let calls: Vec<Micros> = all[0].iter().flatten().copied().collect();
            assert!(calls.is_sorted_by(|one, next| one < next), "seed {seed}: {calls:?}");
        }
    }
}

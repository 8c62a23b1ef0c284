//! Rebalancing: buckets of tasks' keys and their state move to other copies while the stream continues.
//!
//! A new [`RouteMap`] travels with a barrier, which is also a checkpoint; the maps of several tasks travel with the
//! same one, all or none of them. Senders to the task route what follows the barrier by the new map. When a copy of
//! the task has the barrier on all its streams, it saves its state as at any checkpoint, sends the barrier on, and
//! hands the state of the buckets it loses directly to their new owners; it receives no rows from behind the barrier
//! until it has the state it gains. By then the old owner has received all rows of a key before the barrier, and the
//! new owner receives all rows after it: their order is preserved, also after the task, where the barrier is aligned
//! again. The coordinator starts no further barrier until all copies of all these tasks report that they have the
//! state they gain.
//!
//! Splits of sources move in the same way, at the same barriers (`stream::handover`).
//!
//! The hand-over uses a separate edge from each copy of the task to each, with credit, checks and ends like any
//! other. In the checkpoint, a bucket's parts follow each other, regardless of which copy saved them. The new owner
//! saves its whole state the next time, since the old owner's last part may have been lost.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tidemill_batch::route_map::RouteMap;
use tidemill_checkpoint::{BucketStates, SnapshotPart};
pub use tidemill_checkpoint::{MoveReport, Rebalance, SplitMoves};
use tokio::sync::oneshot;

/// A requested rebalance.
pub struct PendingRebalance {
    answer: oneshot::Receiver<Result<MoveReport, String>>,
    outcome: Option<Result<MoveReport, String>>,
}

/// The sender of its answer.
pub(crate) type RebalanceAnswer = oneshot::Sender<Result<MoveReport, String>>;

impl PendingRebalance {
    /// A request that waits for an answer. If the sender is dropped without an answer, the run has ended.
    pub(crate) fn new() -> (RebalanceAnswer, Self) {
        let (sender, answer) = oneshot::channel();
        (sender, PendingRebalance { answer, outcome: None })
    }

    /// The outcome: `None` while it is in progress; the error says why it was refused.
    pub fn outcome(&mut self) -> Option<Result<MoveReport, String>> {
        if self.outcome.is_none() {
            self.outcome = match self.answer.try_recv() {
                Ok(outcome) => Some(outcome),
                Err(oneshot::error::TryRecvError::Empty) => None,
                Err(oneshot::error::TryRecvError::Closed) => {
                    Some(Err("the run ended before anything had moved".into()))
                }
            };
        }
        self.outcome.clone()
    }
}

/// What a task's copies keep, as far as it matters for moving buckets and splits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StateKind {
    /// Unknown, so its buckets stay.
    #[default]
    Unknown,
    /// Nothing by bucket: it is a sink, and keeps what it has prepared.
    Nothing,
    /// State by bucket, which [`Operator::release`](crate::Operator::release) and
    /// [`Operator::acquire`](crate::Operator::acquire) hand over.
    ByBucket,
    /// Splits, which [`Source::release`](crate::stream::source::Source::release) and
    /// [`Source::acquire`](crate::stream::source::Source::acquire) hand over.
    Splits,
}

/// What one copy loses and gains through a new map.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Moves {
    /// By new owner.
    pub lost: BTreeMap<u32, Vec<u32>>,
    /// By old owner.
    pub gained: BTreeMap<u32, Vec<u32>>,
}

impl Moves {
    pub(crate) fn of(copy: u32, old: &RouteMap, new: &RouteMap) -> Self {
        let mut moves = Moves::default();
        for (bucket, (from, to)) in (0..).zip(old.copies().zip(new.copies())) {
            if from != to && from == copy {
                moves.lost.entry(to).or_default().push(bucket);
            } else if from != to && to == copy {
                moves.gained.entry(from).or_default().push(bucket);
            }
        }
        moves
    }
}

/// What moved buckets mean for a copy's snapshots.
#[derive(Clone, Debug, Default)]
pub(crate) struct BucketOwnership {
    /// Buckets it has gained and not lost again.
    gained: BTreeSet<u32>,
    /// Buckets it has lost and not gained again.
    lost: BTreeSet<u32>,
    /// Whether it has gained something since it last saved.
    fresh: bool,
}

impl BucketOwnership {
    pub(crate) fn moved(&mut self, moves: &Moves) {
        for &bucket in moves.lost.values().flatten() {
            self.gained.remove(&bucket);
            self.lost.insert(bucket);
        }
        for &bucket in moves.gained.values().flatten() {
            self.lost.remove(&bucket);
            self.gained.insert(bucket);
            self.fresh = true;
        }
    }

    /// Whether the next snapshot must be whole, because what it gained may not be saved yet in that form.
    pub(crate) fn wants_whole(&self) -> bool {
        self.fresh
    }

    /// Called when a snapshot is about to be saved. Returns the current state, for that snapshot.
    pub(crate) fn at_snapshot(&mut self) -> Self {
        let now = self.clone();
        self.fresh = false;
        now
    }

    /// Corrects a snapshot's parts: removes buckets that belong to others and, if the snapshot is whole, adds all
    /// that were gained.
    pub(crate) fn settle(&self, whole: bool, buckets: &mut BucketStates) {
        buckets.retain(|(bucket, _)| !self.lost.contains(bucket));
        if whole {
            let named: BTreeSet<u32> = buckets.iter().map(|(bucket, _)| *bucket).collect();
            // A checkpoint may hold state of a bucket for which the operator keeps nothing any more.
            buckets.extend(self.gained.difference(&named).map(|&bucket| (bucket, SnapshotPart::Whole(Bytes::new()))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bucket that only one side knows about would be awaited forever, or kept twice.
    #[test]
    fn buckets_lost_by_one_copy_are_gained_by_another() {
        let old = RouteMap::even(64, 4);
        let new = old.moved(&(0..64).map(|bucket| (bucket, bucket * 7 % 4)).collect::<Vec<_>>());
        let all: Vec<Moves> = (0..4).map(|copy| Moves::of(copy, &old, &new)).collect();
        for (from, moves) in all.iter().enumerate() {
            for (&to, buckets) in &moves.lost {
                assert_eq!(all[to as usize].gained.get(&(from as u32)), Some(buckets));
            }
        }
        let moved: usize = all.iter().flat_map(|moves| moves.lost.values()).map(Vec::len).sum();
        assert_eq!(moved, (0..64).filter(|&bucket| old.copy(bucket) != new.copy(bucket)).count());
        assert_eq!(Moves::of(1, &new, &new), Moves::default());
    }

    /// A copy that saves another's bucket would replace what that one has saved.
    #[test]
    fn snapshots_hold_what_is_owned() {
        let moves =
            |from: &[u32], to: &[u32]| Moves::of(0, &RouteMap::new(1, from.to_vec()), &RouteMap::new(2, to.to_vec()));
        let whole = |bucket, bytes: &'static [u8]| (bucket, SnapshotPart::Whole(Bytes::from_static(bytes)));
        let mut tenure = BucketOwnership::default();
        tenure.moved(&moves(&[0, 0, 1, 1], &[0, 1, 0, 0]));
        assert!(tenure.wants_whole());
        let then = tenure.at_snapshot();
        assert!(!tenure.wants_whole());
        let mut buckets = vec![whole(0, b"a"), whole(1, b"b"), whole(2, b"c")];
        then.settle(true, &mut buckets);
        assert_eq!(buckets, [whole(0, b"a"), whole(2, b"c"), whole(3, b"")]);
        let mut buckets = vec![(1, SnapshotPart::Change(Bytes::new()))];
        tenure.settle(false, &mut buckets);
        assert!(buckets.is_empty());
        tenure.moved(&moves(&[0, 1, 0, 0], &[0, 0, 1, 1]));
        let mut buckets = vec![whole(2, b"c")];
        tenure.settle(true, &mut buckets);
        assert_eq!(buckets, [whole(1, b"")]);
    }

    /// A caller that asks again after buckets have moved must not be told that the run has ended.
    #[test]
    fn an_outcome_stays() {
        let (answer, mut rebalancing) = PendingRebalance::new();
        assert_eq!(rebalancing.outcome(), None);
        answer.send(Ok(MoveReport::default())).unwrap();
        (0..2).for_each(|_| assert_eq!(rebalancing.outcome(), Some(Ok(MoveReport::default()))));
        let (answer, mut rebalancing) = PendingRebalance::new();
        drop(answer);
        assert!(rebalancing.outcome().unwrap().unwrap_err().contains("the run ended"));
    }
}

//! Rebalancing: buckets of tasks' keys and what is kept of them move to other copies, while the stream goes on.
//!
//! A new [`RouteMap`] rides on a barrier, which is also a checkpoint; those of several tasks ride on the same one, all
//! of them or none. Who sends to the task sends what is behind the barrier by the new map. A copy of the task, when it
//! has the barrier on all its streams, saves its state as at any checkpoint, sends the barrier on, and hands over what
//! it keeps of the buckets it loses, straight to the new owners; it takes no rows from behind the barrier before it has
//! what it gains. All rows of a key that are before the barrier have then been taken by the old owner, all behind it
//! are taken by the new one: their order stays, behind the task too, where the barrier is aligned again. The
//! coordinator lets no barrier follow until all copies of all these tasks say that they have what they gain.
//!
//! What is handed over goes on an edge of its own, from each copy of the task to each: with credit, checks and ends
//! like any other. In the checkpoint a bucket's parts follow each other, whoever saved them. The new owner saves all it
//! has whole the next time: the old owner's last part may have been lost.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tidemill_batch::route_map::RouteMap;
use tidemill_checkpoint::{BucketStates, SnapshotPart};
pub use tidemill_checkpoint::{MoveReport, Rebalance};
use tokio::sync::oneshot;

/// A rebalance that was asked for.
pub struct PendingRebalance {
    answer: oneshot::Receiver<Result<MoveReport, String>>,
    outcome: Option<Result<MoveReport, String>>,
}

/// Who answers it.
pub(crate) type RebalanceAnswer = oneshot::Sender<Result<MoveReport, String>>;

impl PendingRebalance {
    /// Something to be answered. Who lets go of its end without answering has ended with the run.
    pub(crate) fn new() -> (RebalanceAnswer, Self) {
        let (sender, answer) = oneshot::channel();
        (sender, PendingRebalance { answer, outcome: None })
    }

    /// What has come of it: `None` while it is under way; in words, why it was refused.
    pub fn outcome(&mut self) -> Option<Result<MoveReport, String>> {
        if self.outcome.is_none() {
            self.outcome = match self.answer.try_recv() {
                Ok(outcome) => Some(outcome),
                Err(oneshot::error::TryRecvError::Empty) => None,
                Err(oneshot::error::TryRecvError::Closed) => {
                    Some(Err("the run ended before the buckets had moved".into()))
                }
            };
        }
        self.outcome.clone()
    }
}

/// What a task's copies keep, as far as it matters to who moves buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StateKind {
    /// Nobody says: its buckets stay.
    #[default]
    Unknown,
    /// Nothing by bucket: it is a sink, and keeps what it has prepared.
    Nothing,
    /// By bucket: what [`Operator::release`](crate::Operator::release) and
    /// [`Operator::acquire`](crate::Operator::acquire) hand over.
    ByBucket,
}

/// What one copy loses and gains by a new map.
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

/// What moving buckets means for what a copy saves.
#[derive(Clone, Debug, Default)]
pub(crate) struct BucketOwnership {
    /// What it has gained, and not lost again.
    gained: BTreeSet<u32>,
    /// What it has lost, and not gained again.
    lost: BTreeSet<u32>,
    /// It has gained something since it saved anything.
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

    /// Whether the next snapshot must be whole: what it gained may not be saved as it came.
    pub(crate) fn wants_whole(&self) -> bool {
        self.fresh
    }

    /// A snapshot is about to be saved. Returns how matters stand with it.
    pub(crate) fn at_snapshot(&mut self) -> Self {
        let now = self.clone();
        self.fresh = false;
        now
    }

    /// Makes a snapshot's parts right: none of a bucket that is another's, and of all that was gained, if it is whole.
    pub(crate) fn settle(&self, whole: bool, buckets: &mut BucketStates) {
        buckets.retain(|(bucket, _)| !self.lost.contains(bucket));
        if whole {
            let named: BTreeSet<u32> = buckets.iter().map(|(bucket, _)| *bucket).collect();
            // The operator need not know that something is saved of a bucket of which it keeps nothing any more.
            buckets.extend(self.gained.difference(&named).map(|&bucket| (bucket, SnapshotPart::Whole(Bytes::new()))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bucket that only one side knows of would be waited for without an end, or kept twice.
    #[test]
    fn what_one_loses_another_gains() {
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

    /// Who saves a bucket that is another's replaces what that one has saved.
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

    /// Who asks again must not hear that the run has ended, when buckets have moved.
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

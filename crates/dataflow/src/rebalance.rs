//! Rebalancing: buckets of a task's keys and what is kept of them move to other copies, while the stream goes on.
//!
//! The new [`RouteMap`] rides on a barrier, which is also a checkpoint. Who sends to the task sends what is behind the
//! barrier by the new map. A copy of the task, when it has the barrier on all its streams, saves its state as at any
//! checkpoint, sends the barrier on, and hands over what it keeps of the buckets it loses, straight to the new owners;
//! it takes no rows from behind the barrier before it has what it gains. All rows of a key that are before the barrier
//! have then been taken by the old owner, all behind it are taken by the new one: their order stays, behind the task
//! too, where the barrier is aligned again. The coordinator lets no barrier follow until all copies say that they have
//! what they gain.
//!
//! What is handed over goes on an edge of its own, from each copy of the task to each: with credit, checks and ends
//! like any other. In the checkpoint a bucket's parts follow each other, whoever saved them. The new owner saves all it
//! has whole the next time: the old owner's last part may have been lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{AsArray, LargeBinaryArray, RecordBatch, UInt32Array};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt32Type};
use bytes::Bytes;
use parking_lot::Mutex;
use tidemill_batch::route_map::RouteMap;
use tidemill_checkpoint::{Barrier, Buckets, Mark, Part};
pub use tidemill_checkpoint::{Moved, Rebalance};
use tokio::sync::oneshot;

use crate::error::TaskError;
use crate::flow::{Assign, Assignment, Input, Item, Output, Partitioner, Seat};
use crate::operator::{Operator, Released};

/// Parts are put together to blocks of this size: small enough for their memory to be used again and again.
const BLOCK_BYTES: usize = 64 << 10;

/// A rebalance that was asked for.
pub struct Rebalancing {
    answer: oneshot::Receiver<Result<Moved, String>>,
    outcome: Option<Result<Moved, String>>,
}

/// Who answers it.
pub(crate) type Answer = oneshot::Sender<Result<Moved, String>>;

impl Rebalancing {
    /// Something to be answered. Who lets go of its end without answering has ended with the run.
    pub(crate) fn new() -> (Answer, Self) {
        let (sender, answer) = oneshot::channel();
        (sender, Rebalancing { answer, outcome: None })
    }

    /// What has come of it: `None` while it is under way; in words, why it was refused.
    pub fn outcome(&mut self) -> Option<Result<Moved, String>> {
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
pub(crate) enum Keeps {
    /// Nobody says: its buckets stay.
    #[default]
    Unknown,
    /// Nothing by bucket: it is a sink, and keeps what it has prepared.
    Nothing,
    /// What [`Operator::release`] and [`Operator::acquire`] hand over.
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
pub(crate) struct Tenure {
    /// What it has gained, and not lost again.
    gained: BTreeSet<u32>,
    /// What it has lost, and not gained again.
    lost: BTreeSet<u32>,
    /// It has gained something since it saved anything.
    fresh: bool,
}

impl Tenure {
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
    pub(crate) fn settle(&self, whole: bool, buckets: &mut Buckets) {
        buckets.retain(|(bucket, _)| !self.lost.contains(bucket));
        if whole {
            let named: BTreeSet<u32> = buckets.iter().map(|(bucket, _)| *bucket).collect();
            // The operator need not know that something is saved of a bucket of which it keeps nothing any more.
            buckets.extend(self.gained.difference(&named).map(|&bucket| (bucket, Part::Whole(Bytes::new()))));
        }
    }
}

/// One copy's ends of the edge on which its task hands buckets over.
pub(crate) struct Handover {
    pub copy: u32,
    /// Who owns what.
    pub route: Arc<RouteMap>,
    pub output: Output,
    pub input: Input,
}

impl Handover {
    /// What the edge carries: buckets, and parts of what is kept of them.
    pub(crate) fn schema() -> SchemaRef {
        let bucket = Field::new("bucket", DataType::UInt32, false);
        Arc::new(Schema::new(vec![bucket, Field::new("part", DataType::LargeBinary, false)]))
    }

    /// What this copy's part in a rebalance is.
    pub(crate) fn moves(&self, map: &RouteMap) -> Moves {
        Moves::of(self.copy, &self.route, map)
    }

    /// Hands over what the copy loses at `barrier`, and takes what it gains. Other copies may do so later, or have
    /// ended: then they keep nothing, and want nothing.
    pub(crate) async fn run(
        &mut self,
        operator: &mut impl Operator,
        barrier: &Barrier,
        map: &RouteMap,
    ) -> Result<Moved, TaskError> {
        let begun = Instant::now();
        let moves = self.moves(map);
        let mut moved = Moved { epoch: barrier.epoch, ..Moved::default() };
        let mut awaited: BTreeSet<u32> =
            moves.gained.keys().copied().filter(|&from| !self.input.has_ended(from)).collect();
        let (output, input) = (&mut self.output, &mut self.input);
        // For one moment at a time, of one task: nobody waits for it.
        let operator = Mutex::new(operator);
        let send = async {
            for (&target, buckets) in &moves.lost {
                let parts = operator.lock().release(buckets)?;
                for block in blocks(parts) {
                    let block = block?;
                    moved.bytes += block.iter().map(|(_, part)| part.len() as u64).sum::<u64>();
                    output.send_to(target, rows(&block)?).await?;
                }
                output.mark_to(target, &Mark::Barrier(barrier.clone()))?;
            }
            Ok::<(), TaskError>(())
        };
        let receive = async {
            while !awaited.is_empty() {
                let Some((from, item)) = input.recv_each().await? else { break };
                match item {
                    Some(Item::Batch(rows)) => operator.lock().acquire(parts(&rows))?,
                    Some(Item::Mark(Mark::Barrier(last))) if last.epoch == barrier.epoch => drop(awaited.remove(&from)),
                    Some(Item::Mark(mark)) => {
                        return Err(
                            format!("copy {from} hands over at {mark:?}, not at epoch {}", barrier.epoch).into()
                        );
                    }
                    None => drop(awaited.remove(&from)),
                }
            }
            Ok(())
        };
        tokio::try_join!(send, receive)?;
        self.route = Arc::new(map.clone());
        moved.waited = begun.elapsed();
        Ok(moved)
    }
}

/// Parts in order, so many together that they are worth a block.
fn blocks(mut parts: Released) -> impl Iterator<Item = Result<Vec<(u32, Bytes)>, TaskError>> {
    std::iter::from_fn(move || {
        let (mut block, mut bytes) = (Vec::new(), 0);
        while bytes < BLOCK_BYTES {
            match parts.next() {
                Some(Ok(part)) => {
                    bytes += part.1.len();
                    block.push(part);
                }
                Some(Err(error)) => return Some(Err(error)),
                None => break,
            }
        }
        (!block.is_empty()).then_some(Ok(block))
    })
}

fn rows(parts: &[(u32, Bytes)]) -> Result<RecordBatch, TaskError> {
    let buckets = UInt32Array::from_iter_values(parts.iter().map(|(bucket, _)| *bucket));
    let offsets = OffsetBuffer::<i64>::from_lengths(parts.iter().map(|(_, part)| part.len()));
    let bytes = match parts {
        // Not copied: it may be all there is.
        [(_, part)] => Buffer::from(part.clone()),
        _ => {
            let mut bytes = Vec::with_capacity(parts.iter().map(|(_, part)| part.len()).sum());
            parts.iter().for_each(|(_, part)| bytes.extend_from_slice(part));
            Buffer::from(bytes)
        }
    };
    let parts = LargeBinaryArray::try_new(offsets, bytes, None)?;
    Ok(RecordBatch::try_new(Handover::schema(), vec![Arc::new(buckets), Arc::new(parts)])?)
}

/// The bytes stay where they are.
fn parts(rows: &RecordBatch) -> Vec<(u32, Bytes)> {
    struct Owner(Buffer);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            self.0.as_slice()
        }
    }
    let (buckets, parts) = (rows.column(0).as_primitive::<UInt32Type>(), rows.column(1).as_binary::<i64>());
    let all = Bytes::from_owner(Owner(parts.values().clone()));
    let offsets: &ScalarBuffer<i64> = parts.offsets().inner();
    let part = |at: usize| all.slice(offsets[at] as usize..offsets[at + 1] as usize);
    buckets.values().iter().enumerate().map(|(at, &bucket)| (bucket, part(at))).collect()
}

/// Who hands over names the copy: nothing is left to be decided.
pub(crate) struct Named;

impl Partitioner for Named {
    fn start(&self, _: &Seat) -> Box<dyn Assign> {
        Box::new(Named)
    }
}

impl Assign for Named {
    fn assign(&mut self, _: &RecordBatch, _: &mut Vec<u32>) -> Result<Assignment, TaskError> {
        Err("what is handed over goes to who is named".into())
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
        let whole = |bucket, bytes: &'static [u8]| (bucket, Part::Whole(Bytes::from_static(bytes)));
        let mut tenure = Tenure::default();
        tenure.moved(&moves(&[0, 0, 1, 1], &[0, 1, 0, 0]));
        assert!(tenure.wants_whole());
        let then = tenure.at_snapshot();
        assert!(!tenure.wants_whole());
        let mut buckets = vec![whole(0, b"a"), whole(1, b"b"), whole(2, b"c")];
        then.settle(true, &mut buckets);
        assert_eq!(buckets, [whole(0, b"a"), whole(2, b"c"), whole(3, b"")]);
        let mut buckets = vec![(1, Part::Change(Bytes::new()))];
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
        let (answer, mut rebalancing) = Rebalancing::new();
        assert_eq!(rebalancing.outcome(), None);
        answer.send(Ok(Moved::default())).unwrap();
        (0..2).for_each(|_| assert_eq!(rebalancing.outcome(), Some(Ok(Moved::default()))));
        let (answer, mut rebalancing) = Rebalancing::new();
        drop(answer);
        assert!(rebalancing.outcome().unwrap().unwrap_err().contains("the run ended"));
    }

    #[test]
    fn parts_arrive_as_they_were() {
        let sizes = [0, 10, BLOCK_BYTES, 3, BLOCK_BYTES / 2, BLOCK_BYTES / 2, 1];
        let sent: Vec<(u32, Bytes)> = (0..).zip(sizes.map(|size| Bytes::from(vec![size as u8; size]))).collect();
        let blocks: Vec<RecordBatch> =
            blocks(sent.clone().into()).map(|block| rows(&block.unwrap()).unwrap()).collect();
        assert_eq!(blocks.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [3, 3, 1]);
        assert_eq!(blocks.iter().flat_map(parts).collect::<Vec<_>>(), sent);
        assert_eq!(parts(&blocks[0].slice(1, 2)), sent[1..3]);
    }
}

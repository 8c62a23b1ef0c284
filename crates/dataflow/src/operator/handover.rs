//! How an operator hands over its state of the buckets that move (see [`crate::rebalance`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{AsArray, LargeBinaryArray, RecordBatch, UInt32Array};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::UInt32Type;
use bytes::Bytes;
use parking_lot::Mutex;
use tidemill_batch::route_map::RouteMap;
use tidemill_checkpoint::{Barrier, Mark};

use super::{Operator, ReleasedParts};
use crate::error::TaskError;
use crate::flow::{BucketHandover, StreamElement};
use crate::rebalance::MoveReport;

/// Parts are combined into blocks of this size: small enough for their memory to be reused over and over.
const BLOCK_BYTES: usize = 64 << 10;

impl BucketHandover {
    /// Hands over what the copy loses at `barrier`, and takes what it gains. Other copies may do so later, or may
    /// have ended: then they keep nothing, and want nothing.
    pub(crate) async fn run(
        &mut self,
        operator: &mut impl Operator,
        barrier: &Barrier,
        map: &RouteMap,
    ) -> Result<MoveReport, TaskError> {
        let begun = Instant::now();
        let moves = self.moves(map);
        let mut moved = MoveReport { epoch: barrier.epoch, ..MoveReport::default() };
        let mut awaited: BTreeSet<u32> =
            moves.gained.keys().copied().filter(|&from| !self.input.has_ended(from)).collect();
        let (output, input) = (&mut self.output, &mut self.input);
        // Locked only for moments, by one task: nobody waits for it.
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
                    Some(StreamElement::Batch(rows)) => operator.lock().acquire(parts(&rows))?,
                    Some(StreamElement::Mark(Mark::Barrier(last))) if last.epoch == barrier.epoch => {
                        awaited.remove(&from);
                    }
                    Some(StreamElement::Mark(mark)) => {
                        return Err(
                            format!("copy {from} hands over at {mark:?}, not at epoch {}", barrier.epoch).into()
                        );
                    }
                    None => {
                        awaited.remove(&from);
                    }
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

/// The parts in order, combined into worthwhile blocks.
fn blocks(mut parts: ReleasedParts) -> impl Iterator<Item = Result<Vec<(u32, Bytes)>, TaskError>> {
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
        // Not copied: the part may be very large.
        [(_, part)] => Buffer::from(part.clone()),
        _ => {
            let mut bytes = Vec::with_capacity(parts.iter().map(|(_, part)| part.len()).sum());
            parts.iter().for_each(|(_, part)| bytes.extend_from_slice(part));
            Buffer::from(bytes)
        }
    };
    let parts = LargeBinaryArray::try_new(offsets, bytes, None)?;
    Ok(RecordBatch::try_new(BucketHandover::schema(), vec![Arc::new(buckets), Arc::new(parts)])?)
}

/// Reads the parts without copying their bytes.
fn parts(rows: &RecordBatch) -> Vec<(u32, Bytes)> {
    struct BytesOwner(Buffer);
    impl AsRef<[u8]> for BytesOwner {
        fn as_ref(&self) -> &[u8] {
            self.0.as_slice()
        }
    }
    let (buckets, parts) = (rows.column(0).as_primitive::<UInt32Type>(), rows.column(1).as_binary::<i64>());
    let all = Bytes::from_owner(BytesOwner(parts.values().clone()));
    let offsets: &ScalarBuffer<i64> = parts.offsets().inner();
    let part = |at: usize| all.slice(offsets[at] as usize..offsets[at + 1] as usize);
    buckets.values().iter().enumerate().map(|(at, &bucket)| (bucket, part(at))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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

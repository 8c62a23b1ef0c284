//! Partitions of a topic, each a split. They are assigned, not balanced by a group. Their offsets are in checkpoints
//! and nowhere else.
//!
//! Copy c of n starts with the partitions p for which p % n is c, or those that a checkpoint assigns to it. All copies
//! know which partitions any of them had at the checkpoint. A new partition goes to copy p % n, and is read from its
//! beginning, or from `start` if it existed when the job began.
//!
//! An offset that no longer exists, because the job was down for longer than the topic keeps records, is an error:
//! nothing is skipped silently. So is a topic that was deleted and recreated, whose offsets refer to other records: a
//! checkpoint also contains a fingerprint of the record before the offset, which is checked first, see `position`.
//!
//! | module   | contents                                          |
//! |----------|---------------------------------------------------|
//! | `rows`   | converts records of a partition to rows           |
//! | `reader` | the thread that reads                             |
//! | `spec`   | options, and the source that they describe        |

mod reader;
mod rows;
mod spec;

use std::collections::{BTreeMap, BTreeSet};
use std::task::{Context as Wakes, Poll, ready};
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidemill_dataflow::stream::source::{Source, SourceEvent};
use tidemill_dataflow::{TaskContext, TaskError};

use self::reader::{KafkaReader, KafkaReaderPlan};
use super::position::PartitionPosition;
use crate::bad_records::BadRecordHandler;
use crate::read_ahead::FeedReceiver;

pub(crate) use spec::source;

/// Number of batches that are read ahead.
const QUEUE: usize = 4;
/// The name of the state that copies share.
const SHARED: &str = "partitions";

/// What copies tell each other through a checkpoint.
#[derive(Default, Serialize, Deserialize)]
struct SharedPositions {
    /// The partitions that a copy had.
    held: Vec<i32>,
    /// The number of partitions when the job began.
    initial: i32,
}

/// What a copy starts with.
#[derive(Clone, Default)]
struct RestoredPositions {
    /// The positions in its partitions.
    places: BTreeMap<i32, PartitionPosition>,
    /// The partitions of all copies.
    held: BTreeSet<i32>,
    initial: Option<i32>,
}

impl RestoredPositions {
    fn of(context: &TaskContext) -> Result<Self, TaskError> {
        let mut mine = RestoredPositions::default();
        let Some(restored) = context.restored() else { return Ok(mine) };
        for (name, bytes) in &restored.splits {
            let (partition, place) = name
                .parse()
                .ok()
                .zip(PartitionPosition::of(bytes))
                .ok_or_else(|| format!("the checkpoint has a split \"{name}\" that no kafka source made"))?;
            mine.places.insert(partition, place);
        }
        for bytes in restored.shared.get(SHARED).into_iter().flatten() {
            let shared: SharedPositions = serde_json::from_slice(bytes)?;
            mine.held.extend(shared.held);
            mine.initial = mine.initial.max(Some(shared.initial));
        }
        Ok(mine)
    }
}

enum KafkaEvent {
    /// The partitions that the copy has from now on, their positions, and the number of partitions when the job began.
    Assigned {
        places: Vec<(i32, PartitionPosition)>,
        initial: i32,
    },
    /// `place` is the position after them.
    Rows {
        partition: i32,
        rows: RecordBatch,
        bad: Option<RecordBatch>,
        place: PartitionPosition,
    },
    CaughtUp {
        partition: i32,
        /// When the end was reached.
        at: Instant,
    },
    Over {
        partition: i32,
    },
    /// The copy has no partitions.
    Nothing,
}

/// The source of one copy.
struct KafkaSource {
    topic: String,
    feed: FeedReceiver<KafkaEvent>,
    schema: SchemaRef,
    /// Split numbers by partition.
    numbers: BTreeMap<i32, u32>,
    /// The positions after the last emitted row.
    places: BTreeMap<i32, PartitionPosition>,
    initial: Option<i32>,
}

impl KafkaSource {
    /// Starts the reading thread of the copy of `context`, which is called `copy`.
    fn start(
        plan: KafkaReaderPlan,
        bad: BadRecordHandler,
        copy: String,
        restored: RestoredPositions,
        context: &TaskContext,
    ) -> Result<Self, TaskError> {
        let RestoredPositions { places, held, initial } = restored;
        let (topic, schema) = (plan.topic.clone(), SchemaRef::clone(&plan.schema));
        let reader = KafkaReader::new(plan, bad, &copy, context, (held, initial));
        let begun = places.clone();
        let feed = FeedReceiver::start(copy, QUEUE, move |feeder| reader.run(begun, feeder))?;
        Ok(KafkaSource { topic, feed, schema, numbers: BTreeMap::new(), places, initial })
    }
}

impl Source for KafkaSource {
    fn poll_next(&mut self, context: &mut Wakes<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        loop {
            return Poll::Ready(Ok(match ready!(self.feed.poll(context))? {
                None => SourceEvent::End,
                Some(KafkaEvent::Assigned { places, initial }) => {
                    let mut last = None;
                    for (partition, place) in places {
                        let number = self.numbers.len() as u32;
                        self.numbers.insert(partition, number);
                        self.places.insert(partition, place);
                        last = Some(number);
                    }
                    self.initial = Some(initial);
                    // A receiver that sees the last one knows that the others exist, and does not let time advance past
                    // them.
                    match last {
                        Some(split) => {
                            let rows = RecordBatch::new_empty(SchemaRef::clone(&self.schema));
                            SourceEvent::rows(split, rows)
                        }
                        None => continue,
                    }
                }
                Some(KafkaEvent::Rows { partition, rows, bad, place }) => {
                    self.places.insert(partition, place);
                    if rows.num_rows() == 0 && bad.is_none() {
                        continue;
                    }
                    SourceEvent::Rows { split: self.numbers[&partition], rows, bad }
                }
                Some(KafkaEvent::CaughtUp { partition, at }) => {
                    SourceEvent::Idle { split: self.numbers[&partition], at }
                }
                Some(KafkaEvent::Over { partition }) => SourceEvent::SplitEnded { split: self.numbers[&partition] },
                Some(KafkaEvent::Nothing) => SourceEvent::Idle { split: 0, at: Instant::now() },
            }));
        }
    }

    fn split_name(&self, split: u32) -> String {
        let of = self.numbers.iter().find(|(_, number)| **number == split);
        of.map_or_else(|| self.topic.clone(), |(partition, _)| format!("{}[{partition}]", self.topic))
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        Ok(self.places.iter().map(|(partition, place)| (partition.to_string(), place.to_bytes())).collect())
    }

    fn shared(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        // Until this is known, a resumed job starts like this one.
        let Some(initial) = self.initial else { return Ok(Vec::new()) };
        let shared = SharedPositions { held: self.places.keys().copied().collect(), initial };
        Ok(vec![(SHARED.into(), serde_json::to_vec(&shared)?.into())])
    }
}

//! Partitions of a topic, each a split. They are assigned, not balanced by a group. Their offsets are in checkpoints
//! and nowhere else.
//!
//! Copy c of n starts with the partitions p for which p % n is c (of the copies that take part; those on spare workers
//! get none), or those that a checkpoint assigns to it. All copies
//! know which partitions any of them had at the checkpoint. A new partition goes to copy p % n, and is read from its
//! beginning, or from `start` if it existed when the job began.
//!
//! A partition that moves to another copy while a job runs is unassigned here and assigned there, at the offset after
//! the last emitted row; what was read ahead is dropped.
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
use std::sync::mpsc;
use std::task::{Context as Wakes, Poll, ready};
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidemill_dataflow::stream::source::{ReleasedSplit, Source, SourceEvent};
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

/// A partition and its position, as saved.
fn parse_split((name, bytes): (&String, &Bytes)) -> Result<(i32, PartitionPosition), TaskError> {
    let parsed = name.parse().ok().zip(PartitionPosition::of(bytes));
    parsed.ok_or_else(|| format!("the checkpoint has a split \"{name}\" that no kafka source made").into())
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
            let (partition, place) = parse_split((name, bytes))?;
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
    /// All partitions are over, as of this many commands.
    End {
        commands: u64,
    },
}

/// What the source tells the thread that reads.
enum ReaderCommand {
    /// Another copy reads these from now on.
    Release(Vec<i32>),
    /// Read these, too; announced by [`KafkaEvent::Assigned`].
    Acquire(Vec<(i32, PartitionPosition)>),
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
    /// Partitions that have been read to their end.
    over: BTreeSet<i32>,
    initial: Option<i32>,
    commands: mpsc::Sender<ReaderCommand>,
    /// How many were sent.
    sent: u64,
    /// How often partitions were acquired that the reader has not announced yet. What comes of them until then was read
    /// before they were released.
    acquired: BTreeMap<i32, u32>,
    /// The number of the next partition.
    next_number: u32,
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
        let (commands, heard) = mpsc::channel();
        let feed = FeedReceiver::start(copy, QUEUE, move |feeder| reader.run(begun, &heard, feeder))?;
        Ok(KafkaSource {
            topic,
            feed,
            schema,
            numbers: BTreeMap::new(),
            places,
            over: BTreeSet::new(),
            initial,
            commands,
            sent: 0,
            acquired: BTreeMap::new(),
            next_number: 0,
        })
    }

    /// The number of a new partition.
    fn number(&mut self, partition: i32) -> u32 {
        let number = self.next_number;
        self.next_number += 1;
        self.numbers.insert(partition, number);
        number
    }

    /// The number of a partition, if an event of it counts.
    fn number_of(&self, partition: i32) -> Option<u32> {
        self.numbers.get(&partition).copied().filter(|_| !self.acquired.contains_key(&partition))
    }

    /// If the thread has ended, the next event is its failure.
    fn command(&mut self, command: ReaderCommand) {
        self.sent += 1;
        drop(self.commands.send(command));
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
                        match self.acquired.get_mut(&partition) {
                            Some(1) => drop(self.acquired.remove(&partition)),
                            Some(times) => *times -= 1,
                            None => {
                                self.places.insert(partition, place);
                                last = Some(self.number(partition));
                            }
                        }
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
                    let Some(split) = self.number_of(partition) else { continue };
                    self.places.insert(partition, place);
                    if rows.num_rows() == 0 && bad.is_none() {
                        continue;
                    }
                    SourceEvent::Rows { split, rows, bad }
                }
                Some(KafkaEvent::CaughtUp { partition, at }) => {
                    let Some(split) = self.number_of(partition) else { continue };
                    SourceEvent::Idle { split, at }
                }
                Some(KafkaEvent::Over { partition }) => {
                    let Some(split) = self.number_of(partition) else { continue };
                    self.over.insert(partition);
                    SourceEvent::SplitEnded { split }
                }
                Some(KafkaEvent::End { commands }) if commands < self.sent => continue,
                Some(KafkaEvent::End { .. }) => SourceEvent::End,
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

    fn release(&mut self, splits: &BTreeSet<String>) -> Result<Vec<ReleasedSplit>, TaskError> {
        let is_named = |partition: &i32| !self.over.contains(partition) && splits.contains(&partition.to_string());
        let partitions: Vec<i32> = self.numbers.keys().copied().filter(is_named).collect();
        let mut released = Vec::new();
        for partition in &partitions {
            let (number, place) = (self.numbers.remove(partition), self.places.remove(partition));
            let (number, place) = number.zip(place).expect("a partition with a number has a place");
            let (name, position) = (partition.to_string(), place.to_bytes());
            released.push(ReleasedSplit { name, position, numbers: vec![number] });
        }
        if !partitions.is_empty() {
            self.command(ReaderCommand::Release(partitions));
        }
        Ok(released)
    }

    fn acquire(&mut self, splits: Vec<(String, Bytes)>) -> Result<Vec<u32>, TaskError> {
        let (mut numbers, mut places) = (Vec::new(), Vec::new());
        for split in &splits {
            let (partition, place) = parse_split((&split.0, &split.1))?;
            numbers.push(self.number(partition));
            self.places.insert(partition, place);
            *self.acquired.entry(partition).or_default() += 1;
            places.push((partition, place));
        }
        self.command(ReaderCommand::Acquire(places));
        Ok(numbers)
    }

    fn shared(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        // Until this is known, a resumed job starts like this one.
        let Some(initial) = self.initial else { return Ok(Vec::new()) };
        let shared = SharedPositions { held: self.places.keys().copied().collect(), initial };
        Ok(vec![(SHARED.into(), serde_json::to_vec(&shared)?.into())])
    }
}

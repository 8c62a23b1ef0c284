//! Marks, which travel in a stream between its batches, in order with them.

use std::fmt;

use serde::{Deserialize, Serialize};
use tidemill_batch::route_map::RouteMap;
use tidemill_batch::wire::{Frame, ReceivedFrame, WireHeader, WireKind};

use crate::rebalance::{Rebalance, SplitMoves};

/// A moment of event time: microseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventTime(pub i64);

impl EventTime {
    /// Before all others: no time is known.
    pub const MIN: EventTime = EventTime(i64::MIN);
    /// After all others: the stream has ended.
    pub const MAX: EventTime = EventTime(i64::MAX);

    /// Event times of rows are within this many microseconds (200,000 years) of 1970. Anything beyond is a broken
    /// record rather than a time; the limit leaves room for the ends of windows and joins.
    pub const FARTHEST_US: i64 = 200_000 * 365 * 86_400 * 1_000_000;

    /// Whether this is a valid time for a row.
    #[inline]
    pub fn is_of_row(self) -> bool {
        (-Self::FARTHEST_US..=Self::FARTHEST_US).contains(&self.0)
    }

    /// The time this many microseconds earlier.
    #[inline]
    #[must_use]
    pub fn minus(self, us: i64) -> Self {
        EventTime(self.0.saturating_sub(us))
    }
}

impl fmt::Display for EventTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            EventTime::MIN => f.write_str("the beginning"),
            EventTime::MAX => f.write_str("the end"),
            EventTime(us) => write!(f, "{}.{:06} s", us.div_euclid(1_000_000), us.rem_euclid(1_000_000)),
        }
    }
}

/// A mark in a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Every row with an earlier event time has arrived. With [`EventTime::MIN`]: no time is known, but rows arrive
    /// again.
    Watermark(EventTime),
    /// No rows for now: until its next watermark, this stream does not hold back the combined time.
    Idle,
    /// Everything before belongs to the epoch that ends here.
    Barrier(Barrier),
}

/// Ends an epoch: it flows with the batches from the sources, and every task aligns its inputs on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Barrier {
    /// The epoch that ends. Increases from barrier to barrier; numbers may be skipped.
    pub epoch: u64,
    /// What happens at it.
    pub control: BarrierControl,
}

/// The control that a barrier carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BarrierControl {
    /// Every copy saves its state.
    Checkpoint,
    /// Like a checkpoint; then sources end, and nothing is sent after the barrier.
    Stop,
    /// Like a checkpoint, and buckets of tasks or splits of sources move to other copies ([`Rebalance`]).
    Rebalance(Rebalance),
}

impl Mark {
    /// The frame of this mark, with the address in `header`.
    pub fn frame(&self, header: WireHeader) -> Frame {
        match self {
            Mark::Watermark(time) => {
                Frame::header_only(&WireHeader { kind: WireKind::Watermark, rows: time.0 as u64, ..header })
            }
            Mark::Idle => Frame::header_only(&WireHeader { kind: WireKind::Idle, ..header }),
            Mark::Barrier(barrier) => {
                Frame::new(&WireHeader { kind: WireKind::Barrier, ..header }, &[barrier.encode().into()])
            }
        }
    }

    /// The mark in a frame.
    ///
    /// # Errors
    /// If the frame is not a mark; a message.
    pub fn of_frame(frame: &ReceivedFrame) -> Result<Self, String> {
        match frame.header.kind {
            WireKind::Watermark => Ok(Mark::Watermark(EventTime(frame.header.rows as i64))),
            WireKind::Idle => Ok(Mark::Idle),
            WireKind::Barrier => Barrier::decode(&frame.body()).map(Mark::Barrier),
            kind => Err(format!("a {kind:?} frame arrived, but a mark was expected")),
        }
    }
}

impl Barrier {
    /// The new map that it carries for a task.
    pub fn route_of(&self, task: &str) -> Option<&RouteMap> {
        match &self.control {
            BarrierControl::Rebalance(rebalance) => rebalance.maps.get(task),
            BarrierControl::Checkpoint | BarrierControl::Stop => None,
        }
    }

    /// The splits of a source task that it moves.
    pub fn split_moves_of(&self, task: &str) -> Option<&SplitMoves> {
        match &self.control {
            BarrierControl::Rebalance(rebalance) => rebalance.splits.get(task),
            BarrierControl::Checkpoint | BarrierControl::Stop => None,
        }
    }

    /// Whether time starts anew behind it, because splits move: their next reader may have announced a later time than
    /// theirs. Whoever reads marks forgets the time of all streams, and whoever announces time announces it again.
    pub fn restarts_time(&self) -> bool {
        matches!(&self.control, BarrierControl::Rebalance(rebalance) if !rebalance.splits.is_empty())
    }

    /// The form for sending.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a barrier is made of numbers and texts")
    }

    /// Decodes the result of [`Barrier::encode`].
    ///
    /// # Errors
    /// If the bytes are anything else; a message.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|error| format!("not a barrier: {error}"))
    }
}

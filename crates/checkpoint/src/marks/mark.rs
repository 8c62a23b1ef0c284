//! Marks: what rides in a stream between its batches, in order with them.

use std::fmt;

use serde::{Deserialize, Serialize};
use tidemill_batch::route_map::RouteMap;
use tidemill_batch::wire::{Frame, ReceivedFrame, WireHeader, WireKind};

use crate::rebalance::Rebalance;

/// A moment of event time: microseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventTime(pub i64);

impl EventTime {
    /// Before all others: nothing is known.
    pub const MIN: EventTime = EventTime(i64::MIN);
    /// Behind all others: the stream is over.
    pub const MAX: EventTime = EventTime(i64::MAX);

    /// Times that rows tell lie within so many microseconds of 1970: 200,000 years. What is further away is no time,
    /// but a broken record; and the ends of windows and joins around a time are times, too.
    pub const FARTHEST_US: i64 = 200_000 * 365 * 86_400 * 1_000_000;

    /// Whether a row may have this time.
    #[inline]
    pub fn is_of_row(self) -> bool {
        (-Self::FARTHEST_US..=Self::FARTHEST_US).contains(&self.0)
    }

    /// So many microseconds earlier.
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

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Every row with an earlier event time has come. With [`EventTime::MIN`]: nothing is known of time, but rows come
    /// again.
    Watermark(EventTime),
    /// Nothing comes for now: until its next watermark this stream holds nobody's time back.
    Idle,
    /// What lies before belongs to the epoch that ends here.
    Barrier(Barrier),
}

/// Ends an epoch: flows with the batches from the sources on, and every task aligns its inputs on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Barrier {
    /// The epoch that ends. Grows from barrier to barrier; numbers may be left out.
    pub epoch: u64,
    /// What is to happen at it.
    pub control: BarrierControl,
}

/// What a barrier carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BarrierControl {
    /// Every copy saves its state.
    Checkpoint,
    /// As a checkpoint; then sources end, and nothing behind the barrier is sent.
    Stop,
    /// As a checkpoint; and buckets of tasks move to other copies ([`Rebalance`]).
    Rebalance(Rebalance),
}

impl Mark {
    /// The frame that carries it, but for its place.
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

    /// The mark that a frame carries.
    ///
    /// # Errors
    /// In words, when it carries none.
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
    /// The new map that it brings for a task.
    pub fn route_of(&self, task: &str) -> Option<&RouteMap> {
        match &self.control {
            BarrierControl::Rebalance(rebalance) => rebalance.maps.get(task),
            BarrierControl::Checkpoint | BarrierControl::Stop => None,
        }
    }

    /// As it travels.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a barrier is made of numbers and texts")
    }

    /// What [`Barrier::encode`] made.
    ///
    /// # Errors
    /// In words, for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|error| format!("not a barrier: {error}"))
    }
}

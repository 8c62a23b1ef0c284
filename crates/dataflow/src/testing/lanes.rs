//! Streams between copies, and the input ports that they lead to: like `flow::receive`, but without credit or
//! barriers that overtake rows.

use std::collections::VecDeque;

use arrow::array::RecordBatch;
use tidemill_checkpoint::Mark;
use tidemill_checkpoint::marks::{MarkMerger, StreamGate};

use super::Dice;

/// What a stream carries.
pub(super) enum LanePacket {
    Batch(RecordBatch),
    Mark(Mark),
    End,
}

/// The streams of a job.
#[derive(Default)]
pub(super) struct SimulatedLanes(Vec<VecDeque<LanePacket>>);

impl SimulatedLanes {
    /// Adds a stream, and returns its number.
    pub(super) fn add(&mut self) -> usize {
        self.0.push(VecDeque::new());
        self.0.len() - 1
    }

    pub(super) fn push(&mut self, lane: usize, packet: LanePacket) {
        self.0[lane].push_back(packet);
    }

    /// How much waits in a stream.
    pub(super) fn len(&self, lane: usize) -> usize {
        self.0[lane].len()
    }
}

/// An input port, like `flow::Input`.
struct InputLanes {
    marks: MarkMerger,
    streams: Vec<usize>,
    held: Vec<bool>,
    open: usize,
    ended: bool,
}

/// All input ports of a copy, like `flow::Inputs`.
pub(super) struct SimulatedInputs {
    ports: Vec<InputLanes>,
    marks: MarkMerger,
}

/// What arrives.
pub(super) enum InputEvent {
    Batch(usize, RecordBatch),
    Mark(Mark),
    PortEnd(usize),
}

impl SimulatedInputs {
    /// Creates them from the lanes that lead to each port.
    pub(super) fn new(ports: Vec<Vec<usize>>) -> Self {
        let mut marks = MarkMerger::default();
        (0..ports.len()).for_each(|port| marks.add(port, false));
        let port = |streams: Vec<usize>| {
            let mut marks = MarkMerger::default();
            (0..streams.len()).for_each(|stream| marks.add(stream, false));
            InputLanes { marks, held: vec![false; streams.len()], open: streams.len(), streams, ended: false }
        };
        SimulatedInputs { ports: ports.into_iter().map(port).collect(), marks }
    }

    pub(super) fn len(&self) -> usize {
        self.ports.len()
    }

    pub(super) fn is_over(&self) -> bool {
        self.ports.iter().all(|port| port.ended)
    }

    /// The next item on any wanted port; `None` if there is none yet.
    pub(super) fn recv(
        &mut self,
        lanes: &mut SimulatedLanes,
        wanted: impl Fn(usize) -> bool,
        dice: &mut dyn Dice,
    ) -> Option<InputEvent> {
        let count = self.ports.len();
        let first = dice.below(count);
        'look: loop {
            if let Some(mark) = self.marks.next_mark() {
                return Some(InputEvent::Mark(mark));
            }
            for at in (0..count).map(|i| (first + i) % count) {
                if self.ports[at].ended || !wanted(at) || self.marks.holds(at) {
                    continue;
                }
                match self.ports[at].recv(lanes, dice) {
                    None => {}
                    Some(LanePacket::Batch(batch)) => return Some(InputEvent::Batch(at, batch)),
                    Some(LanePacket::Mark(mark)) => {
                        self.marks.mark(at, mark);
                        continue 'look;
                    }
                    Some(LanePacket::End) => {
                        self.ports[at].ended = true;
                        self.marks.end_stream(at);
                        return Some(InputEvent::PortEnd(at));
                    }
                }
            }
            return None;
        }
    }
}

impl InputLanes {
    /// The next item; `End` once, when all streams have ended.
    fn recv(&mut self, lanes: &mut SimulatedLanes, dice: &mut dyn Dice) -> Option<LanePacket> {
        loop {
            if let Some(mark) = self.marks.next_mark() {
                return Some(LanePacket::Mark(mark));
            }
            if self.open == 0 {
                return Some(LanePacket::End);
            }
            let (count, first) = (self.streams.len(), dice.below(self.streams.len()));
            let mut streams = (0..count).map(|i| (first + i) % count);
            let stream = streams.find(|&stream| !self.held[stream] && lanes.len(self.streams[stream]) > 0)?;
            let gate = match lanes.0[self.streams[stream]].pop_front().expect("just seen") {
                LanePacket::Batch(batch) => return Some(LanePacket::Batch(batch)),
                LanePacket::Mark(mark) => self.marks.mark(stream, mark),
                LanePacket::End => {
                    self.open -= 1;
                    self.marks.end_stream(stream)
                }
            };
            if matches!(gate, StreamGate::Release | StreamGate::Hold { release: true }) {
                self.held.fill(false);
            }
            if matches!(gate, StreamGate::Hold { .. }) {
                self.held[stream] = true;
            }
        }
    }
}

//! A network in one thread and in virtual time, for everything above [`Transport`].
//!
//! One seed decides delays, which peer is polled first, how frames are cut when there is no room, and what happens to
//! a lost worker's last frames. Time moves only through [`SimNetwork::advance`]: step all workers until nothing
//! moves, then advance to the next arrival. Frames from one peer keep their order; frames of different pairs overtake
//! each other.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_collective::tuner::CostModel;
use tidemill_net::{
    FrameHeader, FrameSink, HEADER_BYTES, PushResult, Rank, Transport, TransportError, TransportLimits,
};

use crate::SplitMix64;

/// How the network behaves.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// The seed; the same seed replays the run.
    pub seed: u64,
    /// What messages cost.
    pub model: CostModel,
    /// The host of each worker; empty: all on one.
    pub hosts: Vec<u32>,
    /// A message may take up to this many times its latency longer, at random.
    pub jitter: f64,
    /// The largest payload of a frame.
    pub frame_bytes_max: usize,
    /// The largest message to send eagerly.
    pub eager_bytes_max: usize,
    /// Bytes in transit, headers included, from one worker to another before it has to wait.
    pub in_flight_bytes_max: usize,
}

impl Default for SimOptions {
    fn default() -> Self {
        SimOptions {
            seed: 0,
            model: CostModel::TYPICAL,
            hosts: Vec::new(),
            jitter: 4.0,
            frame_bytes_max: 64 << 10,
            eager_bytes_max: 16 << 10,
            in_flight_bytes_max: 256 << 10,
        }
    }
}

/// The network, which controls time and faults.
#[derive(Clone)]
pub struct SimNetwork {
    state: Arc<Mutex<NetworkState>>,
}

/// One worker's links.
pub struct SimTransport {
    rank: Rank,
    state: Arc<Mutex<NetworkState>>,
}

struct NetworkState {
    options: SimOptions,
    random: SplitMix64,
    now_s: f64,
    size: usize,
    /// The link from `i` to `j` is at `i * size + j`.
    links: Vec<SimLink>,
    dead: Vec<bool>,
}

#[derive(Default)]
struct SimLink {
    /// Frames in transit, by arrival.
    frames: VecDeque<SimFrame>,
    /// The bytes of a partly pushed frame, and how many of them have reached the receiver.
    partial: Vec<u8>,
    partial_received: usize,
    /// Bytes pushed that have not reached the receiver.
    in_flight_bytes: usize,
    last_arrival_s: f64,
    /// Why the sender is gone, if it is; the receiver learns of it after the remaining frames.
    lost: Option<String>,
    told: bool,
}

struct SimFrame {
    arrival_s: f64,
    header: FrameHeader,
    payload: Vec<u8>,
    /// How much of the link's room it still occupies.
    in_flight_bytes: usize,
}

enum LinkArrival {
    Nothing,
    /// More of an incomplete frame.
    Part,
    Frame(SimFrame, SinkLanding),
    Loss(String),
}

/// The two ways in which a sink receives a frame; chance decides, so that both are tested.
enum SinkLanding {
    Lent,
    InPlace,
}

impl SimNetwork {
    /// Creates a network of `size` workers with the default options, and the transport of each.
    pub fn new(size: u32, seed: u64, model: CostModel) -> (SimNetwork, Vec<SimTransport>) {
        Self::with_options(size, SimOptions { seed, model, ..SimOptions::default() })
    }

    /// Creates a network of `size` workers, and the transport of each.
    ///
    /// # Panics
    /// If the options contradict each other: a frame must fit into what may be in transit.
    pub fn with_options(size: u32, options: SimOptions) -> (SimNetwork, Vec<SimTransport>) {
        let workers = size as usize;
        assert!(
            options.hosts.is_empty() || options.hosts.len() == workers,
            "hosts must name every worker's, or be empty"
        );
        assert!(options.eager_bytes_max <= options.frame_bytes_max, "an eager message is one frame");
        assert!(options.in_flight_bytes_max > HEADER_BYTES, "a link must take more than a header");
        let state = Arc::new(Mutex::new(NetworkState {
            random: SplitMix64::new(options.seed),
            options,
            now_s: 0.0,
            size: workers,
            links: (0..workers * workers).map(|_| SimLink::default()).collect(),
            dead: vec![false; workers],
        }));
        let transport = |rank| SimTransport { rank: Rank(rank), state: Arc::clone(&state) };
        let transports = (0..size).map(transport).collect();
        (SimNetwork { state }, transports)
    }

    /// The virtual time since the start, in seconds.
    pub fn now_s(&self) -> f64 {
        self.state.lock().now_s
    }

    /// Moves time to the next arrival, unless one is due already. Returns whether anything is in transit. If nothing
    /// is, and no worker can move, none ever will.
    pub fn advance(&self) -> bool {
        let mut state = self.state.lock();
        let arrivals = state.links.iter().filter_map(|link| link.frames.front()).map(|flight| flight.arrival_s);
        let Some(next) = arrivals.min_by(f64::total_cmp) else { return false };
        state.now_s = state.now_s.max(next);
        true
    }

    /// Ends worker `rank`. What it has sent arrives, up to a random frame; then its peers learn of the loss. What was
    /// sent to it is gone.
    pub fn kill(&self, rank: Rank) {
        let state = &mut *self.state.lock();
        let (size, dead) = (state.size, rank.index());
        state.dead[dead] = true;
        for peer in (0..size).filter(|&peer| peer != dead) {
            let out = &mut state.links[dead * size + peer];
            let kept = state.random.below(out.frames.len() + 1);
            out.frames.truncate(kept);
            out.partial.clear();
            out.lost.get_or_insert_with(|| "it was killed".into());
            let back = &mut state.links[peer * size + dead];
            back.frames.clear();
            back.partial.clear();
        }
    }
}

impl NetworkState {
    fn seconds_for(&mut self, from: usize, to: usize, bytes: usize) -> f64 {
        let hosts = &self.options.hosts;
        let same = hosts.is_empty() || hosts[from] == hosts[to];
        let link = if same { self.options.model.same_host } else { self.options.model.other_host };
        let late = 1.0 + self.options.jitter * self.random.fraction();
        2.0 * link.overhead_s + link.latency_s * late + bytes as f64 * link.per_byte_s
    }

    /// What has arrived from `from` at `to` by now.
    fn take(&mut self, from: usize, to: usize, now_s: f64) -> LinkArrival {
        let link = &mut self.links[from * self.size + to];
        if link.frames.front().is_some_and(|flight| flight.arrival_s <= now_s) {
            let flight = link.frames.pop_front().expect("just seen");
            link.in_flight_bytes -= flight.in_flight_bytes;
            let in_place = !flight.payload.is_empty() && self.random.below(2) == 0;
            return LinkArrival::Frame(flight, if in_place { SinkLanding::InPlace } else { SinkLanding::Lent });
        }
        if link.frames.is_empty() && link.partial.len() > link.partial_received {
            link.in_flight_bytes -= link.partial.len() - link.partial_received;
            link.partial_received = link.partial.len();
            return LinkArrival::Part;
        }
        match (&link.lost, link.told || !link.frames.is_empty()) {
            (Some(reason), false) => {
                link.told = true;
                LinkArrival::Loss(reason.clone())
            }
            _ => LinkArrival::Nothing,
        }
    }

    /// The reason why `rank` cannot send to `peer`, if there is one.
    fn loss(&self, rank: Rank, peer: Rank) -> Option<TransportError> {
        // The link from a peer records its loss, including one that was only declared.
        let link = &self.links[peer.index() * self.size + rank.index()];
        let reason = link.lost.clone().or_else(|| self.dead[peer.index()].then(|| "it was killed".into()))?;
        Some(TransportError::PeerLost { peer, reason })
    }
}

impl Transport for SimTransport {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn limits(&self, _peer: Rank) -> TransportLimits {
        let options = &self.state.lock().options;
        TransportLimits {
            frame_bytes_max: options.frame_bytes_max,
            eager_bytes_max: options.eager_bytes_max,
            in_flight_bytes_max: options.in_flight_bytes_max,
            single_copy: false,
            network: false,
        }
    }

    fn push(
        &mut self,
        dest: Rank,
        header: &FrameHeader,
        payload: &[u8],
        sent: &mut usize,
    ) -> Result<PushResult, TransportError> {
        let state = &mut *self.state.lock();
        assert!(payload.len() as u64 == header.len, "a frame's payload is as long as its header says");
        assert!(payload.len() <= state.options.frame_bytes_max, "{} bytes are too many for a frame", payload.len());
        assert!(!state.dead[self.rank.index()], "worker {} is dead and sends nothing", self.rank);
        if let Some(error) = state.loss(self.rank, dest) {
            return Err(error);
        }
        let index = self.rank.index() * state.size + dest.index();
        let total = HEADER_BYTES + payload.len();
        let link = &mut state.links[index];
        assert!(link.partial.len() == *sent, "another frame before the one begun is complete");
        let room = state.options.in_flight_bytes_max.saturating_sub(link.in_flight_bytes);
        // Take everything that fits or, if not everything fits, sometimes only a part of that.
        let mut taken = (total - *sent).min(room);
        if taken < total - *sent && taken > 0 {
            taken = 1 + state.random.below(taken);
        }
        let bytes = header.as_bytes().iter().chain(payload).skip(*sent).take(taken);
        link.partial.extend(bytes);
        link.in_flight_bytes += taken;
        *sent += taken;
        if *sent < total {
            return Ok(PushResult::Blocked);
        }
        let duration = state.seconds_for(self.rank.index(), dest.index(), total);
        let link = &mut state.links[index];
        let frame = std::mem::take(&mut link.partial);
        link.last_arrival_s = link.last_arrival_s.max(state.now_s + duration);
        let payload = frame[HEADER_BYTES..].to_vec();
        let in_flight_bytes = total - std::mem::take(&mut link.partial_received);
        link.frames.push_back(SimFrame { arrival_s: link.last_arrival_s, header: *header, payload, in_flight_bytes });
        Ok(PushResult::Sent)
    }

    fn poll(&mut self, sink: &mut dyn FrameSink) -> bool {
        let (size, first, now_s) = {
            let state = &mut *self.state.lock();
            (state.size, state.random.below(state.size), state.now_s)
        };
        let mut moved = false;
        for peer in (0..size).map(|i| (first + i) % size).filter(|&peer| peer != self.rank.index()) {
            // Take a few frames of each peer, so that turns mix. The lock is not held while the sink works.
            let turns = 1 + self.state.lock().random.below(4);
            for _ in 0..turns {
                let arrived = self.state.lock().take(peer, self.rank.index(), now_s);
                moved |= !matches!(arrived, LinkArrival::Nothing);
                match arrived {
                    LinkArrival::Nothing => break,
                    LinkArrival::Part => {}
                    LinkArrival::Frame(flight, SinkLanding::Lent) => {
                        sink.frame(Rank(peer as u32), &flight.header, &flight.payload);
                    }
                    LinkArrival::Frame(flight, SinkLanding::InPlace) => {
                        let place = sink.begin(Rank(peer as u32), &flight.header);
                        // SAFETY: the sink returned room for `header.len` bytes, which is the payload's length.
                        unsafe { place.copy_from_nonoverlapping(flight.payload.as_ptr(), flight.payload.len()) };
                        sink.landed(Rank(peer as u32), &flight.header);
                    }
                    LinkArrival::Loss(reason) => {
                        sink.lost(TransportError::PeerLost { peer: Rank(peer as u32), reason })
                    }
                }
            }
        }
        moved
    }

    fn mark_lost(&mut self, peer: Rank, reason: &str) {
        let state = &mut *self.state.lock();
        let index = peer.index() * state.size + self.rank.index();
        state.links[index].lost.get_or_insert_with(|| reason.to_owned());
    }
}

//! The decisions of the control plane, apart from its sockets: who is present, who left, who is lost, and who is told.
//!
//! A star: every worker has one link, to rank 0, which passes messages on. Same inputs in, same actions out; the thread
//! in [`super::driver`] feeds it and carries the actions out.
//!
//! Silence is counted in this worker's own ticks, not on a clock: a job that was stopped as a whole (Ctrl-Z, a
//! suspended machine) did not tick either and goes on where it was.

use super::wire::{ControlKind, ControlMessage};
use super::{ControlEvent, HEARTBEAT_INTERVAL, MessageTarget};
use crate::Rank;

/// How many times longer than usual a worker may be silent before its first word. Until then it may still be starting.
const PATIENCE_BEFORE_FIRST_WORD: u32 = 6;

/// What happens to a star.
pub(crate) enum StarInput {
    /// `from` is the other end of the link, not who wrote the message.
    Received { from: Rank, message: ControlMessage },
    /// The link to `from` is gone.
    Closed { from: Rank, reason: String },
    /// A heartbeat interval has passed.
    Tick,
    /// This worker wants a message sent.
    Send { to: MessageTarget, bytes: Vec<u8> },
    /// This worker leaves in good order.
    Leave,
}

/// What is to be done about it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StarAction {
    /// Send over the link to `link`.
    Send { link: Rank, message: ControlMessage },
    /// Close the link to `link`.
    Close { link: Rank },
    /// Tell this worker.
    Emit(ControlEvent),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerState {
    Present { silent_ticks: u32, heard: bool },
    Left,
    Lost,
}

/// One worker's view of the job.
pub(crate) struct StarState {
    me: Rank,
    peers: Vec<PeerState>,
    silent_ticks_max: u32,
    left: bool,
}

impl StarState {
    pub(crate) fn new(me: Rank, size: u32, silent_ticks_max: u32) -> Self {
        let peers = vec![PeerState::Present { silent_ticks: 0, heard: false }; size as usize];
        StarState { me, peers, silent_ticks_max: silent_ticks_max.max(2), left: false }
    }

    fn is_hub(&self) -> bool {
        self.me.0 == 0
    }

    fn is_present(&self, rank: Rank) -> bool {
        matches!(self.peers.get(rank.index()), Some(PeerState::Present { .. }))
    }

    /// Ranks at the other end of this worker's links.
    fn linked(&self) -> impl Iterator<Item = Rank> + use<> {
        let ranks = if self.is_hub() { 1..self.peers.len() as u32 } else { 0..1 };
        ranks.map(Rank)
    }

    pub(crate) fn handle(&mut self, input: StarInput, out: &mut Vec<StarAction>) {
        match input {
            StarInput::Received { from, message } => self.received(from, message, out),
            StarInput::Closed { from, reason } => self.gone(from, reason, out),
            StarInput::Tick => self.tick(out),
            StarInput::Send { to, bytes } => self.send(to, bytes, out),
            StarInput::Leave if self.left => {}
            StarInput::Leave => {
                self.left = true;
                if self.is_hub() {
                    self.tell_all(None, ControlKind::Left, self.me, &[], out);
                } else {
                    self.to_hub(ControlMessage::new(ControlKind::Leave, self.me, Vec::new()), out);
                }
            }
        }
    }

    fn received(&mut self, from: Rank, message: ControlMessage, out: &mut Vec<StarAction>) {
        if let Some(PeerState::Present { silent_ticks, heard }) = self.peers.get_mut(from.index()) {
            *silent_ticks = 0;
            *heard = true;
        } else if self.is_hub() {
            // Its last words after it was given up: whoever was told that it is lost must not hear from it again.
            return;
        }
        let hub = self.is_hub();
        match message.kind {
            ControlKind::Ping => {}
            ControlKind::ToOne if !hub => {
                out.push(StarAction::Emit(ControlEvent::Message { from: message.rank, bytes: message.payload }))
            }
            ControlKind::ToOne if message.rank == self.me => {
                out.push(StarAction::Emit(ControlEvent::Message { from, bytes: message.payload }));
            }
            ControlKind::ToOne if self.is_present(message.rank) => {
                out.push(StarAction::Send { link: message.rank, message: ControlMessage { rank: from, ..message } });
            }
            ControlKind::ToOne => {}
            ControlKind::ToAll if hub => {
                self.tell_all(Some(from), ControlKind::ToOne, from, &message.payload, out);
                out.push(StarAction::Emit(ControlEvent::Message { from, bytes: message.payload }));
            }
            ControlKind::Leave if hub => {
                self.peers[from.index()] = PeerState::Left;
                self.tell_all(None, ControlKind::Left, from, &[], out);
                out.push(StarAction::Emit(ControlEvent::Left { rank: from }));
            }
            ControlKind::Left if !hub && self.is_present(message.rank) => {
                self.peers[message.rank.index()] = PeerState::Left;
                out.push(StarAction::Emit(ControlEvent::Left { rank: message.rank }));
            }
            ControlKind::Lost if !hub && self.is_present(message.rank) => {
                self.peers[message.rank.index()] = PeerState::Lost;
                let reason = message.text();
                out.push(StarAction::Emit(ControlEvent::Lost { rank: message.rank, reason }));
            }
            ControlKind::Left | ControlKind::Lost if !hub => {}
            other => self.gone(from, format!("it sent {other:?}, which is not valid at this point"), out),
        }
    }

    fn gone(&mut self, rank: Rank, reason: String, out: &mut Vec<StarAction>) {
        out.push(StarAction::Close { link: rank });
        if !self.is_present(rank) {
            return;
        }
        self.peers[rank.index()] = PeerState::Lost;
        if self.is_hub() {
            self.tell_all(None, ControlKind::Lost, rank, reason.as_bytes(), out);
        }
        // Rank 0 that has left waits for the others, so it has to hear of those that will not leave.
        if self.is_hub() || !self.left {
            out.push(StarAction::Emit(ControlEvent::Lost { rank, reason }));
        }
    }

    fn tick(&mut self, out: &mut Vec<StarAction>) {
        let hub = self.is_hub();
        for rank in self.linked() {
            match &mut self.peers[rank.index()] {
                PeerState::Present { silent_ticks, heard } => {
                    *silent_ticks += 1;
                    let patience = if *heard { 1 } else { PATIENCE_BEFORE_FIRST_WORD };
                    if *silent_ticks > self.silent_ticks_max.saturating_mul(patience) {
                        let reason = format!(
                            "no sign of life for {:.1} s (TIDEMILL_FAILURE_TIMEOUT); its host or network is down, or \
                             its process is stopped (SIGSTOP, Ctrl-Z, a debugger)",
                            (HEARTBEAT_INTERVAL * *silent_ticks).as_secs_f64()
                        );
                        self.gone(rank, reason, out);
                        continue;
                    }
                }
                // Who has left may still pass messages on (rank 0) and counts our heartbeats.
                PeerState::Left if !hub => {}
                PeerState::Left | PeerState::Lost => continue,
            }
            out.push(StarAction::Send {
                link: rank,
                message: ControlMessage::new(ControlKind::Ping, self.me, Vec::new()),
            });
        }
    }

    fn send(&mut self, to: MessageTarget, bytes: Vec<u8>, out: &mut Vec<StarAction>) {
        match to {
            MessageTarget::One(rank) if rank == self.me => {
                out.push(StarAction::Emit(ControlEvent::Message { from: self.me, bytes }));
            }
            MessageTarget::One(rank) if self.is_hub() => {
                if self.is_present(rank) {
                    out.push(StarAction::Send {
                        link: rank,
                        message: ControlMessage::new(ControlKind::ToOne, self.me, bytes),
                    });
                }
            }
            MessageTarget::One(rank) => self.to_hub(ControlMessage::new(ControlKind::ToOne, rank, bytes), out),
            MessageTarget::All if self.is_hub() => self.tell_all(None, ControlKind::ToOne, self.me, &bytes, out),
            MessageTarget::All => self.to_hub(ControlMessage::new(ControlKind::ToAll, self.me, bytes), out),
        }
    }

    fn to_hub(&self, message: ControlMessage, out: &mut Vec<StarAction>) {
        // Rank 0 passes messages on after it has left, as long as its process lives.
        if self.peers[0] != PeerState::Lost {
            out.push(StarAction::Send { link: Rank(0), message });
        }
    }

    /// Sends to the other end of every link that is present, except `but` and the rank it is about.
    fn tell_all(&self, but: Option<Rank>, kind: ControlKind, about: Rank, payload: &[u8], out: &mut Vec<StarAction>) {
        for rank in self.linked() {
            if Some(rank) != but && rank != about && self.is_present(rank) {
                out.push(StarAction::Send { link: rank, message: ControlMessage::new(kind, about, payload.to_vec()) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT_TICKS_MAX: u32 = 4;

    fn step(star: &mut StarState, input: StarInput) -> Vec<StarAction> {
        let mut out = Vec::new();
        star.handle(input, &mut out);
        out
    }

    fn received(star: &mut StarState, from: u32, kind: ControlKind, rank: u32) -> Vec<StarAction> {
        step(
            star,
            StarInput::Received { from: Rank(from), message: ControlMessage::new(kind, Rank(rank), b"x".to_vec()) },
        )
    }

    fn lost(actions: &[StarAction]) -> Vec<Rank> {
        let rank = |action: &StarAction| match action {
            StarAction::Emit(ControlEvent::Lost { rank, .. }) => Some(*rank),
            _ => None,
        };
        actions.iter().filter_map(rank).collect()
    }

    fn told(actions: &[StarAction], kind: ControlKind) -> Vec<(u32, u32)> {
        let told = |action: &StarAction| match action {
            StarAction::Send { link, message } if message.kind == kind => Some((link.0, message.rank.0)),
            _ => None,
        };
        actions.iter().filter_map(told).collect()
    }

    /// Silence is told from life, a worker that starts slowly is not silent, and a loss is told once to each other.
    #[test]
    fn a_silent_worker_is_lost_and_a_talking_one_is_not() {
        let mut hub = StarState::new(Rank(0), 4, SILENT_TICKS_MAX);
        for rank in [1, 2] {
            assert_eq!(received(&mut hub, rank, ControlKind::Ping, rank), []);
        }
        for _ in 0..SILENT_TICKS_MAX {
            assert_eq!(lost(&step(&mut hub, StarInput::Tick)), []);
            received(&mut hub, 1, ControlKind::Ping, 1);
        }
        let actions = step(&mut hub, StarInput::Tick);
        assert_eq!(lost(&actions), [Rank(2)], "2 was silent; 1 talked; 3 has not begun");
        assert_eq!(told(&actions, ControlKind::Lost), [(1, 2), (3, 2)]);
        assert!(actions.contains(&StarAction::Close { link: Rank(2) }));
        assert_eq!(received(&mut hub, 2, ControlKind::ToAll, 2), [], "words of the lost are not passed on");
        let silent: Vec<Rank> = (0..40)
            .flat_map(|_| {
                received(&mut hub, 1, ControlKind::Ping, 1);
                lost(&step(&mut hub, StarInput::Tick))
            })
            .collect();
        assert_eq!(silent, [Rank(3)], "patience with a slow start ends too");
    }

    #[test]
    fn the_end_of_a_link_is_a_loss_unless_the_worker_left() {
        let mut hub = StarState::new(Rank(0), 4, SILENT_TICKS_MAX);
        let actions = received(&mut hub, 3, ControlKind::Leave, 3);
        assert_eq!(told(&actions, ControlKind::Left), [(1, 3), (2, 3)]);
        let closed = |from| StarInput::Closed { from: Rank(from), reason: "gone".into() };
        assert_eq!(step(&mut hub, closed(3)), [StarAction::Close { link: Rank(3) }]);
        let actions = step(&mut hub, closed(1));
        assert_eq!((lost(&actions), told(&actions, ControlKind::Lost)), (vec![Rank(1)], vec![(2, 1)]));
        assert_eq!(lost(&step(&mut hub, closed(1))), [], "a loss is told once");
    }

    /// Rank 0 that ended its program waited for ever for a worker that was killed.
    #[test]
    fn rank_0_hears_of_losses_after_it_has_left() {
        let mut hub = StarState::new(Rank(0), 3, SILENT_TICKS_MAX);
        step(&mut hub, StarInput::Leave);
        let actions = step(&mut hub, StarInput::Closed { from: Rank(1), reason: "gone".into() });
        assert_eq!((lost(&actions), told(&actions, ControlKind::Lost)), (vec![Rank(1)], vec![(2, 1)]));
        let mut leaf = StarState::new(Rank(1), 3, SILENT_TICKS_MAX);
        step(&mut leaf, StarInput::Leave);
        let actions = step(&mut leaf, StarInput::Closed { from: Rank(0), reason: "gone".into() });
        assert_eq!(lost(&actions), [], "who has left may find rank 0 gone");
    }

    #[test]
    fn the_others_believe_rank_0_and_notice_its_end() {
        let mut leaf = StarState::new(Rank(2), 4, SILENT_TICKS_MAX);
        assert_eq!(lost(&received(&mut leaf, 0, ControlKind::Lost, 1)), [Rank(1)]);
        assert_eq!(lost(&received(&mut leaf, 0, ControlKind::Lost, 1)), []);
        assert_eq!(
            received(&mut leaf, 0, ControlKind::Left, 3),
            [StarAction::Emit(ControlEvent::Left { rank: Rank(3) })]
        );
        assert_eq!(lost(&received(&mut leaf, 0, ControlKind::Lost, 3)), [], "who has left is not lost");
        assert_eq!(lost(&step(&mut leaf, StarInput::Closed { from: Rank(0), reason: "gone".into() })), [Rank(0)]);
        let message = StarInput::Send { to: MessageTarget::All, bytes: b"into the void".to_vec() };
        assert_eq!(step(&mut leaf, message), []);
    }

    /// Rank 0 that leaves first goes on to count heartbeats and pass messages on, so those must go on too.
    #[test]
    fn heartbeats_go_on_after_rank_0_has_left() {
        let mut leaf = StarState::new(Rank(1), 2, SILENT_TICKS_MAX);
        received(&mut leaf, 0, ControlKind::Left, 0);
        for _ in 0..100 {
            let actions = step(&mut leaf, StarInput::Tick);
            assert_eq!((lost(&actions), told(&actions, ControlKind::Ping)), (vec![], vec![(0, 1)]));
        }
        assert_eq!(told(&step(&mut leaf, StarInput::Leave), ControlKind::Leave), [(0, 1)]);
        assert_eq!(step(&mut leaf, StarInput::Leave), [], "leaving twice is leaving once");
    }

    #[test]
    fn messages_are_passed_on_to_whom_they_are_for() {
        let mut hub = StarState::new(Rank(0), 4, SILENT_TICKS_MAX);
        assert_eq!(told(&received(&mut hub, 1, ControlKind::ToOne, 3), ControlKind::ToOne), [(3, 1)]);
        let actions = received(&mut hub, 1, ControlKind::ToAll, 1);
        assert_eq!(told(&actions, ControlKind::ToOne), [(2, 1), (3, 1)]);
        assert_eq!(actions.len(), 3, "and rank 0 hears it too");
        assert_eq!(received(&mut hub, 1, ControlKind::ToOne, 77), [], "no such worker");
        for nonsense in [ControlKind::Welcome, ControlKind::Gathered, ControlKind::Lost, ControlKind::Left] {
            let mut hub = StarState::new(Rank(0), 4, SILENT_TICKS_MAX);
            assert_eq!(lost(&received(&mut hub, 2, nonsense, 1)), [Rank(2)], "{nonsense:?} from a worker");
        }
    }
}

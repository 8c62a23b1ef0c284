//! The state machine of the control plane, separate from its sockets: who is present, who left, who is lost, and who
//! needs to know.
//!
//! Holds the state of one worker in a tree ([`super::tree`]). Messages and news travel up to rank 0, which decides
//! and orders them, and then down. So all workers receive news in the same order, and a message never overtakes an
//! earlier one of its sender. A star is a tree in which only rank 0 passes messages on. The same inputs give the same
//! actions; the thread in [`super::driver`] feeds in the inputs and carries out the actions.
//!
//! A worker that loses its parent is an orphan: it connects to rank 0 again, and its messages wait meanwhile.
//! [`super::orphans`] describes what rank 0 does for orphans.
//!
//! A worker that has left and is about to end while others are connected through it *retires*: it asks rank 0, which
//! then sends nothing more through it; it has its children connect to rank 0, and ends when the last of them has
//! gone. By then it has passed on everything in transit through it.
//!
//! Silence is counted in this worker's own ticks, not by a clock: a job that was stopped as a whole (Ctrl-Z, a
//! suspended machine) did not tick either, and continues where it was.

use std::collections::BTreeMap;

use super::orphans::OrphanLedger;
use super::tree::ControlTree;
use super::wire::{ControlKind, ControlMessage};
use super::{ControlEvent, HEARTBEAT_INTERVAL, MessageTarget, QUEUE_BYTES_MAX};
use crate::Rank;

/// How many times longer than usual a worker may be silent before its first message, since it may still be starting.
pub(super) const PATIENCE_BEFORE_FIRST_WORD: u32 = 6;

/// An input to a worker.
pub(crate) enum TreeInput {
    /// `from` is the other end of the link, not the author of the message.
    Received { from: Rank, message: ControlMessage },
    /// The link to `from` is gone.
    Closed { from: Rank, reason: String },
    /// An orphan has connected to rank 0: `from` is the other end. At rank 0, pass this only if the orphan [may come
    /// back](TreeState::may_come_back).
    Attached { from: Rank },
    /// A heartbeat interval has passed.
    Tick,
    /// This worker sends a message.
    Send { to: MessageTarget, bytes: Vec<u8> },
    /// This worker leaves in an orderly way.
    Leave,
    /// This worker has left, and should end as soon as nobody [needs](TreeState::is_needed) it.
    Retire,
}

/// What the caller has to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TreeAction {
    /// Send over the link to `link`.
    Send { link: Rank, message: ControlMessage },
    /// Close the link to `link`.
    Close { link: Rank },
    /// Start receiving from the link to `link`, which an orphan opened.
    Read { link: Rank },
    /// Connect to rank 0.
    Dial,
    /// Stop connecting to rank 0.
    StopDialing,
    /// Report that a message to `to` was dropped because too much is queued.
    Dropped { to: Rank },
    /// Report an event to this worker.
    Emit(ControlEvent),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerState {
    Present,
    Left,
    Lost,
}

/// The other end of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinkState {
    silent_ticks: u32,
    heard: bool,
    /// It has announced that it leaves; it may still pass on what others send.
    left: bool,
}

/// How a worker other than rank 0 is connected to rank 0.
#[derive(Debug)]
enum Uplink {
    Attached(Rank),
    /// Its parent is gone, and it is connecting to rank 0. It will send `queue` after the reports from `reports_sent`
    /// on.
    Orphan {
        ticks: u32,
        reports_sent: usize,
        queue: Vec<ControlMessage>,
        queued_bytes: usize,
    },
    /// It has connected to rank 0, which has not confirmed yet that it reads from it.
    Returning,
    /// Rank 0 is gone, at least for this worker.
    Gone,
}

/// How far a worker has handed over those connected through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retirement {
    None,
    /// It has asked rank 0.
    Asked,
    /// No more messages for others arrive, and its children know.
    Released,
}

/// One worker's view of the job.
pub(crate) struct TreeState {
    pub(super) me: Rank,
    pub(super) tree: ControlTree,
    pub(super) peers: Vec<PeerState>,
    pub(super) links: BTreeMap<Rank, LinkState>,
    pub(super) silent_ticks_max: u32,
    pub(super) left: bool,
    uplink: Uplink,
    retirement: Retirement,
    /// What this worker has reported to rank 0 about itself and those below it. An orphan repeats it, because what
    /// its parent had not passed on when it ended is lost.
    reports: Vec<ControlMessage>,
    /// Used on rank 0 only.
    pub(super) orphans: OrphanLedger,
    /// On rank 0: how each loss was noticed.
    pub(super) reasons: BTreeMap<Rank, String>,
}

impl TreeState {
    /// The state of a worker that is connected to its parent and its children.
    pub(crate) fn new(me: Rank, tree: ControlTree, silent_ticks_max: u32) -> Self {
        let parent = tree.parent(me);
        let linked = parent.into_iter().chain(tree.children(me));
        TreeState {
            me,
            tree,
            peers: vec![PeerState::Present; tree.size() as usize],
            links: linked.map(|rank| (rank, LinkState::default())).collect(),
            silent_ticks_max: silent_ticks_max.max(2),
            left: false,
            uplink: parent.map_or(Uplink::Gone, Uplink::Attached),
            retirement: Retirement::None,
            reports: Vec::new(),
            orphans: OrphanLedger::default(),
            reasons: BTreeMap::new(),
        }
    }

    /// Whether rank 0 is certain to know, once the links are flushed, that this worker has left. What a parent has
    /// not passed on yet may be lost with it.
    pub(crate) fn is_leave_certain(&self) -> bool {
        let up = match &self.uplink {
            Uplink::Attached(up) => *up == Rank(0) || self.peers[self.me.index()] == PeerState::Left,
            // If an orphan ended before rank 0 reads from it, only the workers below it would notice.
            Uplink::Orphan { .. } | Uplink::Returning => false,
            Uplink::Gone => true,
        };
        self.left && up
    }

    /// Whether this worker has handed over those connected through it.
    pub(super) fn has_retired(&self) -> bool {
        self.retirement == Retirement::Released
    }

    /// Whether others are connected through this worker, which has left, and would lose messages if it ended now.
    pub(crate) fn is_needed(&self) -> bool {
        if self.is_root() || !self.left || matches!(self.uplink, Uplink::Gone) {
            return false;
        }
        match self.retirement {
            Retirement::Released => self.children().next().is_some(),
            _ => self.children().any(|child| self.tree.subtree(child).any(|below| self.is_present(Rank(below)))),
        }
    }

    /// The other ends of the links that lead away from rank 0.
    fn children(&self) -> impl Iterator<Item = Rank> {
        let up = self.up();
        self.links.keys().copied().filter(move |&link| Some(link) != up)
    }

    fn is_root(&self) -> bool {
        self.me.0 == 0
    }

    pub(super) fn is_present(&self, rank: Rank) -> bool {
        self.peers.get(rank.index()) == Some(&PeerState::Present)
    }

    /// The other end of the link towards rank 0.
    pub(super) fn up(&self) -> Option<Rank> {
        match self.uplink {
            Uplink::Attached(up) => Some(up),
            Uplink::Returning => Some(Rank(0)),
            Uplink::Orphan { .. } | Uplink::Gone => None,
        }
    }

    pub(crate) fn handle(&mut self, input: TreeInput, out: &mut Vec<TreeAction>) {
        match input {
            TreeInput::Received { from, message } => self.received(from, message, out),
            TreeInput::Closed { from, reason } => self.gone(from, reason, out),
            TreeInput::Attached { from } if self.is_root() => self.came_back(from, out),
            TreeInput::Attached { .. } => self.returned(out),
            TreeInput::Tick => self.tick(out),
            TreeInput::Send { to, bytes } => self.send(to, bytes, out),
            TreeInput::Leave if self.left => {}
            TreeInput::Leave => {
                self.left = true;
                let kind = if self.is_root() { ControlKind::Left } else { ControlKind::Leave };
                let message = ControlMessage::new(kind, self.me, Vec::new());
                if self.is_root() { self.flood(&message, out) } else { self.report(message, out) }
            }
            TreeInput::Retire if self.is_needed() && self.retirement == Retirement::None => {
                self.retirement = Retirement::Asked;
                self.report(ControlMessage::new(ControlKind::Retire, self.me, Vec::new()), out);
            }
            TreeInput::Retire => {}
        }
    }

    fn received(&mut self, from: Rank, message: ControlMessage, out: &mut Vec<TreeAction>) {
        // A late message from a worker that was given up. Workers that know it is lost must not receive anything from
        // it.
        let Some(link) = self.links.get_mut(&from) else { return };
        (link.silent_ticks, link.heard) = (0, true);
        link.left |= message.kind == ControlKind::Leave && message.rank == from;
        let from_above = self.up() == Some(from);
        match message.kind {
            ControlKind::Ping => {}
            ControlKind::ToOne | ControlKind::ToAll | ControlKind::Left | ControlKind::Lost if from_above => {
                self.hear(message, out);
            }
            ControlKind::Welcome if from_above && matches!(self.uplink, Uplink::Returning) => {
                self.uplink = Uplink::Attached(Rank(0));
            }
            ControlKind::Released if from_above && message.to != self.me => self.pass_down(message, out),
            ControlKind::Released if from_above => self.released(out),
            ControlKind::Handover if from_above && from != Rank(0) => {
                out.push(TreeAction::Close { link: from });
                self.links.remove(&from);
                self.up_is_gone(from, "it has handed its children over".into(), out);
            }
            ControlKind::ToOne
            | ControlKind::ToAll
            | ControlKind::Leave
            | ControlKind::Lost
            | ControlKind::Ended
            | ControlKind::Retire
                if !from_above && self.may_say(from, &message) =>
            {
                match (self.is_root(), message.is_droppable()) {
                    (true, _) => self.decide(message, out),
                    (false, true) => self.pass_up(message, out),
                    (false, false) => self.report(message, out),
                }
            }
            other => self.gone(from, format!("it sent {other:?}, which is not valid at this point"), out),
        }
    }

    /// Whether a child is entitled to say that: every worker speaks for itself, and a parent reports its child's end.
    fn may_say(&self, child: Rank, message: &ControlMessage) -> bool {
        let ends = matches!(message.kind, ControlKind::Lost | ControlKind::Ended);
        self.tree.subtree(child).contains(&message.rank.0) && !(ends && message.rank == child)
    }

    /// On rank 0: puts into effect what a worker says.
    fn decide(&mut self, message: ControlMessage, out: &mut Vec<TreeAction>) {
        let rank = message.rank;
        match message.kind {
            // Messages that overtook the news of their sender's end, or that an orphan repeats.
            ControlKind::ToOne | ControlKind::ToAll | ControlKind::Leave if !self.is_present(rank) => {}
            ControlKind::ToOne if message.to == self.me => {
                out.push(TreeAction::Emit(ControlEvent::Message { from: rank, bytes: message.payload }));
            }
            ControlKind::ToOne => self.route(message, out),
            ControlKind::Retire => self.release(rank, out),
            ControlKind::ToAll => {
                self.flood(&message, out);
                out.push(TreeAction::Emit(ControlEvent::Message { from: rank, bytes: message.payload }));
            }
            ControlKind::Leave => {
                self.peers[rank.index()] = PeerState::Left;
                self.flood(&ControlMessage::new(ControlKind::Left, rank, Vec::new()), out);
                out.push(TreeAction::Emit(ControlEvent::Left { rank }));
            }
            ControlKind::Lost => self.lose(rank, message.text(), out),
            _ => self.cut(rank, out),
        }
    }

    /// On the others: handles what rank 0 says.
    fn hear(&mut self, message: ControlMessage, out: &mut Vec<TreeAction>) {
        let rank = message.rank;
        match message.kind {
            ControlKind::ToOne if message.to == self.me => {
                out.push(TreeAction::Emit(ControlEvent::Message { from: rank, bytes: message.payload }));
            }
            ControlKind::ToOne => self.pass_down(message, out),
            ControlKind::ToAll => {
                self.flood(&message, out);
                if rank != self.me {
                    out.push(TreeAction::Emit(ControlEvent::Message { from: rank, bytes: message.payload }));
                }
            }
            // A worker that has come back receives old news again; those below it have received it too.
            _ if !self.is_present(rank) => {}
            ControlKind::Left => {
                self.peers[rank.index()] = PeerState::Left;
                self.flood(&message, out);
                if rank != self.me {
                    out.push(TreeAction::Emit(ControlEvent::Left { rank }));
                }
            }
            _ if rank == self.me => {}
            _ => {
                self.peers[rank.index()] = PeerState::Lost;
                self.flood(&message, out);
                if rank != Rank(0) || !self.left {
                    out.push(TreeAction::Emit(ControlEvent::Lost { rank, reason: message.text() }));
                }
            }
        }
    }

    /// Passes on a message for one worker of this subtree.
    fn pass_down(&mut self, message: ControlMessage, out: &mut Vec<TreeAction>) {
        let next = self.tree.next_hop(self.me, message.to).filter(|next| self.links.contains_key(next));
        out.extend(next.map(|link| TreeAction::Send { link, message }));
    }

    /// This worker retires, and no more messages for others arrive.
    fn released(&mut self, out: &mut Vec<TreeAction>) {
        if self.retirement == Retirement::Asked {
            self.retirement = Retirement::Released;
            let message = ControlMessage::new(ControlKind::Handover, self.me, Vec::new());
            out.extend(self.children().map(|link| TreeAction::Send { link, message: message.clone() }));
        }
    }

    /// Gives up the link to `rank`.
    fn gone(&mut self, rank: Rank, reason: String, out: &mut Vec<TreeAction>) {
        out.push(TreeAction::Close { link: rank });
        let from_above = self.up() == Some(rank);
        let Some(link) = self.links.remove(&rank) else { return };
        let left = link.left || !self.is_present(rank);
        let report = |kind, reason: String| ControlMessage::new(kind, rank, reason.into_bytes());
        match (self.is_root(), left) {
            _ if from_above => self.up_is_gone(rank, reason, out),
            // It was handed over. If it was lost, rank 0 finds out, since rank 0 expects it.
            _ if self.retirement == Retirement::Released => {}
            (true, true) => self.cut(rank, out),
            (true, false) => self.lose(rank, reason, out),
            // A leaf's end concerns nobody else, since nobody is connected through it.
            (false, true) if self.tree.is_leaf(rank) => {}
            (false, true) => self.report(report(ControlKind::Ended, String::new()), out),
            (false, false) => self.report(report(ControlKind::Lost, reason), out),
        }
    }

    fn up_is_gone(&mut self, rank: Rank, reason: String, out: &mut Vec<TreeAction>) {
        match self.uplink {
            // Rank 0 has declared this worker lost in the meantime.
            Uplink::Returning => self.give_up(reason, out),
            _ if rank == Rank(0) => {
                self.uplink = Uplink::Gone;
                self.hear(ControlMessage::new(ControlKind::Lost, rank, reason.into_bytes()), out);
            }
            _ if self.peers[0] == PeerState::Lost => self.uplink = Uplink::Gone,
            // Nobody needs this worker's link any more.
            _ if self.is_leave_certain() && self.links.is_empty() => self.uplink = Uplink::Gone,
            _ => {
                let reports_sent = self.reports.len();
                self.uplink = Uplink::Orphan { ticks: 0, reports_sent, queue: Vec::new(), queued_bytes: 0 };
                out.push(TreeAction::Dial);
            }
        }
    }

    /// Treats rank 0 as lost, since this worker cannot reach it; those below it may.
    fn give_up(&mut self, reason: String, out: &mut Vec<TreeAction>) {
        self.uplink = Uplink::Gone;
        out.push(TreeAction::StopDialing);
        out.extend(std::mem::take(&mut self.links).into_keys().map(|link| TreeAction::Close { link }));
        self.hear(ControlMessage::new(ControlKind::Lost, Rank(0), reason.into_bytes()), out);
    }

    /// This orphan has connected to rank 0.
    fn returned(&mut self, out: &mut Vec<TreeAction>) {
        let Uplink::Orphan { reports_sent, queue, .. } = std::mem::replace(&mut self.uplink, Uplink::Returning) else {
            return out.push(TreeAction::Close { link: Rank(0) });
        };
        self.links.insert(Rank(0), LinkState::default());
        let again = self.reports[..reports_sent].iter().cloned().chain(queue);
        out.extend(again.map(|message| TreeAction::Send { link: Rank(0), message }));
    }

    fn tick(&mut self, out: &mut Vec<TreeAction>) {
        let linked: Vec<Rank> = self.links.keys().copied().collect();
        for rank in linked {
            let is_up = self.up() == Some(rank);
            let has_left = self.peers[rank.index()] == PeerState::Left;
            let Some(link) = self.links.get_mut(&rank) else { continue };
            // A worker that has left is still watched while others are connected through it. Rank 0 may end at any
            // time once it has left, and does not read yet from workers that have just come back.
            let is_watched = match is_up {
                true => rank.0 != 0 || !has_left,
                false => !(self.tree.is_leaf(rank) && (has_left || link.left) || self.orphans.is_held(rank)),
            };
            link.silent_ticks += u32::from(is_watched);
            let patience = if link.heard { 1 } else { PATIENCE_BEFORE_FIRST_WORD };
            if link.silent_ticks > self.silent_ticks_max.saturating_mul(patience) {
                let reason = format!(
                    "no sign of life for {:.1} s (TIDEMILL_FAILURE_TIMEOUT); its host or network is down, or its \
                     process is stopped (SIGSTOP, Ctrl-Z, a debugger)",
                    (HEARTBEAT_INTERVAL * link.silent_ticks).as_secs_f64()
                );
                self.gone(rank, reason, out);
                continue;
            }
            // Nothing follows the last message.
            if is_up || self.retirement != Retirement::Released {
                let message = ControlMessage::new(ControlKind::Ping, self.me, Vec::new());
                out.push(TreeAction::Send { link: rank, message });
            }
        }
        if let Uplink::Orphan { ticks, .. } = &mut self.uplink {
            *ticks += 1;
            if *ticks > self.silent_ticks_max {
                let waited_s = (HEARTBEAT_INTERVAL * *ticks).as_secs_f64();
                self.give_up(format!("it could not be reached within {waited_s:.1} s after the loss of a worker"), out);
            }
        }
        self.tick_orphans(out);
    }

    fn send(&mut self, to: MessageTarget, bytes: Vec<u8>, out: &mut Vec<TreeAction>) {
        let message = match to {
            MessageTarget::One(rank) if rank == self.me => {
                return out.push(TreeAction::Emit(ControlEvent::Message { from: self.me, bytes }));
            }
            MessageTarget::One(rank) => ControlMessage::to_one(self.me, rank, bytes),
            MessageTarget::All => ControlMessage::new(ControlKind::ToAll, self.me, bytes),
        };
        match to {
            _ if !self.is_root() => self.pass_up(message, out),
            MessageTarget::One(_) => self.route(message, out),
            MessageTarget::All => self.flood(&message, out),
        }
    }

    /// Sends rank 0 a report that it must not miss.
    fn report(&mut self, message: ControlMessage, out: &mut Vec<TreeAction>) {
        self.reports.push(message.clone());
        self.pass_up(message, out);
    }

    fn pass_up(&mut self, message: ControlMessage, out: &mut Vec<TreeAction>) {
        match &mut self.uplink {
            Uplink::Attached(link) => out.push(TreeAction::Send { link: *link, message }),
            Uplink::Returning => out.push(TreeAction::Send { link: Rank(0), message }),
            Uplink::Orphan { queue, queued_bytes, .. } => enqueue(queue, queued_bytes, message, Rank(0), out),
            Uplink::Gone => {}
        }
    }

    /// Sends to the others of this worker's subtree, if they are present and the message is not from or about them.
    pub(super) fn flood(&mut self, message: &ControlMessage, out: &mut Vec<TreeAction>) {
        // Workers that were handed over receive it from rank 0.
        if self.retirement == Retirement::Released {
            return;
        }
        let up = self.up();
        for &link in self.links.keys() {
            let alone = (link == message.rank || !self.is_present(link)) && self.tree.is_leaf(link);
            if Some(link) != up && !alone && !self.orphans.is_held(link) {
                out.push(TreeAction::Send { link, message: message.clone() });
            }
        }
        self.orphans.flood(message, out);
    }
}

/// Queues a message, up to a limit, until an orphan is back.
pub(super) fn enqueue(
    queue: &mut Vec<ControlMessage>,
    queued_bytes: &mut usize,
    message: ControlMessage,
    to: Rank,
    out: &mut Vec<TreeAction>,
) {
    if message.is_droppable() {
        if *queued_bytes + message.payload.len() > QUEUE_BYTES_MAX {
            return out.push(TreeAction::Dropped { to });
        }
        *queued_bytes += message.payload.len();
    }
    queue.push(message);
}

/// Feeds any messages from any neighbor: rank 0, an inner worker and a leaf accept them or give up the neighbor.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(messages: &[ControlMessage]) {
    for me in [0, 1, 2] {
        let mut state = TreeState::new(Rank(me), ControlTree::new(7, Some(2)), 4);
        let mut out = Vec::new();
        for (turn, message) in messages.iter().enumerate() {
            let from = Rank((turn as u32 + message.to.0) % 8);
            match message.payload.len() % 16 {
                0 => state.handle(TreeInput::Tick, &mut out),
                1 => state.handle(TreeInput::Closed { from, reason: "gone".into() }, &mut out),
                2 if me != 0 || state.may_come_back(from) => state.handle(TreeInput::Attached { from }, &mut out),
                3 => state.handle(TreeInput::Leave, &mut out),
                4 => state.handle(TreeInput::Retire, &mut out),
                _ => state.handle(TreeInput::Received { from, message: message.clone() }, &mut out),
            }
        }
        let lost = |action: &TreeAction| matches!(action, TreeAction::Emit(ControlEvent::Lost { .. }));
        assert!(out.iter().filter(|action| lost(action)).count() < 7, "a worker is lost once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT_TICKS_MAX: u32 = 4;

    fn state(rank: u32, size: u32) -> TreeState {
        TreeState::new(Rank(rank), ControlTree::new(size, None), SILENT_TICKS_MAX)
    }

    fn step(state: &mut TreeState, input: TreeInput) -> Vec<TreeAction> {
        let mut out = Vec::new();
        state.handle(input, &mut out);
        out
    }

    fn received(state: &mut TreeState, from: u32, kind: ControlKind, rank: u32) -> Vec<TreeAction> {
        step(
            state,
            TreeInput::Received { from: Rank(from), message: ControlMessage::new(kind, Rank(rank), b"x".to_vec()) },
        )
    }

    fn lost(actions: &[TreeAction]) -> Vec<Rank> {
        let rank = |action: &TreeAction| match action {
            TreeAction::Emit(ControlEvent::Lost { rank, .. }) => Some(*rank),
            _ => None,
        };
        actions.iter().filter_map(rank).collect()
    }

    fn told(actions: &[TreeAction], kind: ControlKind) -> Vec<(u32, u32)> {
        let told = |action: &TreeAction| match action {
            TreeAction::Send { link, message } if message.kind == kind => Some((link.0, message.rank.0)),
            _ => None,
        };
        actions.iter().filter_map(told).collect()
    }

    /// A silent worker must be distinguished from a live one, a worker that starts slowly is not silent, and each
    /// worker hears of a loss once.
    #[test]
    fn a_silent_worker_is_lost_and_a_talking_one_is_not() {
        let mut hub = state(0, 4);
        for rank in [1, 2] {
            assert_eq!(received(&mut hub, rank, ControlKind::Ping, rank), []);
        }
        for _ in 0..SILENT_TICKS_MAX {
            assert_eq!(lost(&step(&mut hub, TreeInput::Tick)), []);
            received(&mut hub, 1, ControlKind::Ping, 1);
        }
        let actions = step(&mut hub, TreeInput::Tick);
        assert_eq!(lost(&actions), [Rank(2)], "2 was silent; 1 talked; 3 has not begun");
        assert_eq!(told(&actions, ControlKind::Lost), [(1, 2), (3, 2)]);
        assert!(actions.contains(&TreeAction::Close { link: Rank(2) }));
        assert_eq!(received(&mut hub, 2, ControlKind::ToAll, 2), [], "words of the lost are not passed on");
        let silent: Vec<Rank> = (0..40)
            .flat_map(|_| {
                received(&mut hub, 1, ControlKind::Ping, 1);
                lost(&step(&mut hub, TreeInput::Tick))
            })
            .collect();
        assert_eq!(silent, [Rank(3)], "patience with a slow start ends too");
    }

    #[test]
    fn the_end_of_a_link_is_a_loss_unless_the_worker_left() {
        let mut hub = state(0, 4);
        let actions = received(&mut hub, 3, ControlKind::Leave, 3);
        assert_eq!(told(&actions, ControlKind::Left), [(1, 3), (2, 3)]);
        let closed = |from| TreeInput::Closed { from: Rank(from), reason: "gone".into() };
        assert_eq!(step(&mut hub, closed(3)), [TreeAction::Close { link: Rank(3) }]);
        let actions = step(&mut hub, closed(1));
        assert_eq!((lost(&actions), told(&actions, ControlKind::Lost)), (vec![Rank(1)], vec![(2, 1)]));
        assert_eq!(lost(&step(&mut hub, closed(1))), [], "a loss is told once");
    }

    /// Rank 0, after its program ended, must not wait forever for a worker that was killed.
    #[test]
    fn rank_0_hears_of_losses_after_it_has_left() {
        let mut hub = state(0, 3);
        step(&mut hub, TreeInput::Leave);
        let actions = step(&mut hub, TreeInput::Closed { from: Rank(1), reason: "gone".into() });
        assert_eq!((lost(&actions), told(&actions, ControlKind::Lost)), (vec![Rank(1)], vec![(2, 1)]));
        let mut leaf = state(1, 3);
        step(&mut leaf, TreeInput::Leave);
        let actions = step(&mut leaf, TreeInput::Closed { from: Rank(0), reason: "gone".into() });
        assert_eq!(lost(&actions), [], "who has left may find rank 0 gone");
    }

    #[test]
    fn the_others_believe_rank_0_and_notice_its_end() {
        let mut leaf = state(2, 4);
        assert_eq!(lost(&received(&mut leaf, 0, ControlKind::Lost, 1)), [Rank(1)]);
        assert_eq!(lost(&received(&mut leaf, 0, ControlKind::Lost, 1)), []);
        assert_eq!(
            received(&mut leaf, 0, ControlKind::Left, 3),
            [TreeAction::Emit(ControlEvent::Left { rank: Rank(3) })]
        );
        assert_eq!(lost(&received(&mut leaf, 0, ControlKind::Lost, 3)), [], "who has left is not lost");
        assert_eq!(lost(&step(&mut leaf, TreeInput::Closed { from: Rank(0), reason: "gone".into() })), [Rank(0)]);
        let message = TreeInput::Send { to: MessageTarget::All, bytes: b"into the void".to_vec() };
        assert_eq!(step(&mut leaf, message), []);
    }

    /// Rank 0 still watches heartbeats and passes messages on after it has left, so heartbeats must continue.
    #[test]
    fn heartbeats_go_on_after_rank_0_has_left() {
        let mut leaf = state(1, 2);
        received(&mut leaf, 0, ControlKind::Left, 0);
        for _ in 0..100 {
            let actions = step(&mut leaf, TreeInput::Tick);
            assert_eq!((lost(&actions), told(&actions, ControlKind::Ping)), (vec![], vec![(0, 1)]));
        }
        assert_eq!(told(&step(&mut leaf, TreeInput::Leave), ControlKind::Leave), [(0, 1)]);
        assert_eq!(step(&mut leaf, TreeInput::Leave), [], "leaving twice is leaving once");
    }

    #[test]
    fn messages_are_passed_on_to_whom_they_are_for() {
        let mut hub = state(0, 4);
        let to = |to: u32| TreeInput::Received {
            from: Rank(1),
            message: ControlMessage::to_one(Rank(1), Rank(to), b"x".to_vec()),
        };
        assert_eq!(told(&step(&mut hub, to(3)), ControlKind::ToOne), [(3, 1)]);
        let actions = received(&mut hub, 1, ControlKind::ToAll, 1);
        assert_eq!(told(&actions, ControlKind::ToAll), [(2, 1), (3, 1)]);
        assert_eq!(actions.len(), 3, "and rank 0 hears it too");
        assert_eq!(step(&mut hub, to(77)), [], "no such worker");
        assert_eq!(lost(&received(&mut hub, 2, ControlKind::ToAll, 1)), [Rank(2)], "it speaks for another");
        let nonsense = [ControlKind::Welcome, ControlKind::Gathered, ControlKind::Lost, ControlKind::Left];
        for nonsense in nonsense.into_iter().chain([ControlKind::Released, ControlKind::Handover]) {
            let mut hub = state(0, 4);
            assert_eq!(lost(&received(&mut hub, 2, nonsense, 1)), [Rank(2)], "{nonsense:?} from a worker");
        }
    }
}

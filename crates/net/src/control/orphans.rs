//! How rank 0 handles orphans: workers whose parent in the tree has ended and which connect to rank 0 instead.
//!
//! When a worker ends, its parent sees it and tells rank 0. From then on rank 0 *expects* the children of that
//! worker, with all workers behind them, and queues its messages for them. It *holds* a child that connects until the
//! child's old route is known to have ended, and only then reads from it: by then everything sent along the old route
//! has arrived, so nothing overtakes it. A child that does not connect in time is lost, and its children are expected
//! in turn.
//!
//! When a worker retires, rank 0 expects its children too, but waits for that worker's end before it reads from them.
//!
//! If the parent of an ended worker has ended as well, nobody tells rank 0. It then relies on children of that worker
//! that connect: they would not connect if their link to it had not ended.

use std::collections::{BTreeMap, BTreeSet};

use super::state::{LinkState, PATIENCE_BEFORE_FIRST_WORD, PeerState, TreeAction, TreeState, enqueue};
use super::wire::{ControlKind, ControlMessage};
use super::{ControlEvent, HEARTBEAT_INTERVAL};
use crate::Rank;

/// How many failure timeouts an orphan has: it may have noticed its parent's silence later than others did.
const ORPHAN_PATIENCE: u32 = 2;

/// How many failure timeouts after the start an orphan has at least: its parent may not have sent its first message
/// yet, and may look as if it were still starting.
const ORPHAN_PATIENCE_AT_START: u32 = PATIENCE_BEFORE_FIRST_WORD + ORPHAN_PATIENCE;

/// See the module. Empty on all workers except rank 0.
#[derive(Default)]
pub(super) struct OrphanLedger {
    /// Workers that have ended, so nobody is connected through them.
    cut: BTreeSet<Rank>,
    /// Workers that hand over their children but have not ended yet: messages of the children arrive through them.
    retiring: BTreeSet<Rank>,
    expected: BTreeMap<Rank, ExpectedOrphan>,
    held: BTreeSet<Rank>,
    /// Ticks since the start.
    ticks: u32,
}

#[derive(Default)]
struct ExpectedOrphan {
    ticks: u32,
    queue: Vec<ControlMessage>,
    queued_bytes: usize,
}

impl OrphanLedger {
    pub(super) fn is_held(&self, rank: Rank) -> bool {
        self.held.contains(&rank)
    }

    /// Queues a message for all expected orphans.
    pub(super) fn flood(&mut self, message: &ControlMessage, out: &mut Vec<TreeAction>) {
        for (&rank, orphan) in &mut self.expected {
            enqueue(&mut orphan.queue, &mut orphan.queued_bytes, message.clone(), rank, out);
        }
    }
}

impl TreeState {
    /// Sends a message down the tree to its destination, if that is present.
    pub(super) fn route(&mut self, message: ControlMessage, out: &mut Vec<TreeAction>) {
        if self.is_present(message.to) {
            self.send_down(message, out);
        }
    }

    fn send_down(&mut self, message: ControlMessage, out: &mut Vec<TreeAction>) {
        let mut link = message.to;
        loop {
            if self.links.contains_key(&link) && !self.orphans.is_held(link) {
                return out.push(TreeAction::Send { link, message });
            }
            if let Some(orphan) = self.orphans.expected.get_mut(&link) {
                return enqueue(&mut orphan.queue, &mut orphan.queued_bytes, message, link, out);
            }
            match self.tree.parent(link) {
                Some(parent) if !self.orphans.cut.contains(&link) => link = parent,
                _ => return,
            }
        }
    }

    /// Records that a worker is gone without having left.
    pub(super) fn lose(&mut self, rank: Rank, reason: String, out: &mut Vec<TreeAction>) {
        if self.is_present(rank) {
            self.peers[rank.index()] = PeerState::Lost;
            self.flood(&ControlMessage::new(ControlKind::Lost, rank, reason.clone().into_bytes()), out);
            self.reasons.insert(rank, reason.clone());
            out.push(TreeAction::Emit(ControlEvent::Lost { rank, reason }));
        }
        self.cut(rank, out);
    }

    /// Records that nobody is connected through `rank` any more.
    pub(super) fn cut(&mut self, rank: Rank, out: &mut Vec<TreeAction>) {
        if !self.orphans.cut.insert(rank) {
            return;
        }
        self.orphans.expected.remove(&rank);
        self.orphans.held.remove(&rank);
        self.orphans.retiring.remove(&rank);
        if self.links.remove(&rank).is_some() {
            out.push(TreeAction::Close { link: rank });
        }
        self.expect_children(rank);
        self.settle(out);
    }

    /// A worker that has left is about to end. It gets an answer each time it asks: an answer may be lost with a
    /// worker on its way.
    pub(super) fn release(&mut self, rank: Rank, out: &mut Vec<TreeAction>) {
        if self.peers[rank.index()] != PeerState::Left || self.orphans.cut.contains(&rank) {
            return;
        }
        self.orphans.retiring.insert(rank);
        self.expect_children(rank);
        self.send_down(
            ControlMessage { to: rank, ..ControlMessage::new(ControlKind::Released, self.me, Vec::new()) },
            out,
        );
    }

    /// Expects the children of a worker; from now on nothing is sent to them through it.
    fn expect_children(&mut self, rank: Rank) {
        let attached = |child: &Rank| self.links.contains_key(child) && !self.orphans.is_held(*child);
        let is_needed = |child: &Rank| self.tree.subtree(*child).any(|below| self.is_present(Rank(below)));
        let is_known = |child: &Rank| self.orphans.cut.contains(child) || self.orphans.expected.contains_key(child);
        let children = self.tree.children(rank).filter(|child| !is_known(child));
        let expected: Vec<Rank> = children.filter(|child| !attached(child) && is_needed(child)).collect();
        for child in expected {
            let queue = self.news();
            self.orphans.expected.insert(child, ExpectedOrphan { queue, ..ExpectedOrphan::default() });
        }
    }

    /// Whether a worker that connects as an orphan can be one. A worker already declared lost learns that from the
    /// end of its connection.
    pub(super) fn may_come_back(&self, rank: Rank) -> bool {
        let attached = self.links.contains_key(&rank) && !self.orphans.is_held(rank);
        let parent = if rank.0 < self.tree.size() { self.tree.parent(rank) } else { None };
        parent.is_some_and(|parent| parent != self.me) && !attached && !self.orphans.cut.contains(&rank)
    }

    /// An orphan has connected.
    pub(super) fn came_back(&mut self, rank: Rank, out: &mut Vec<TreeAction>) {
        self.links.insert(rank, LinkState::default());
        self.orphans.held.insert(rank);
        self.settle(out);
    }

    /// Starts reading from the held orphans whose old route has ended.
    fn settle(&mut self, out: &mut Vec<TreeAction>) {
        let held: Vec<Rank> = self.orphans.held.iter().copied().collect();
        for rank in held {
            let parent = self.tree.parent(rank).expect("rank 0 is no orphan");
            if !self.orphans.held.contains(&rank) {
                continue;
            }
            if self.orphans.cut.contains(&parent) {
                self.take_in(rank, out);
            } else if self.orphans.expected.contains_key(&parent) && !self.orphans.retiring.contains(&parent) {
                // This settles the rest, including this one.
                return match self.is_present(parent) {
                    true => self.lose(parent, format!("worker {rank} has lost its connection to it"), out),
                    false => self.cut(parent, out),
                };
            }
        }
    }

    fn take_in(&mut self, rank: Rank, out: &mut Vec<TreeAction>) {
        self.orphans.held.remove(&rank);
        let queue = self.orphans.expected.remove(&rank).map_or_else(|| self.news(), |orphan| orphan.queue);
        let welcome = ControlMessage::new(ControlKind::Welcome, self.me, Vec::new());
        let messages = std::iter::once(welcome).chain(queue);
        out.extend(messages.map(|message| TreeAction::Send { link: rank, message }));
        out.push(TreeAction::Read { link: rank });
    }

    /// Everything reported about workers so far, for an orphan that may have missed some of it.
    fn news(&self) -> Vec<ControlMessage> {
        let news = |(rank, state): (u32, &PeerState)| match state {
            PeerState::Present if rank != 0 || !self.left => None,
            PeerState::Present | PeerState::Left => {
                Some(ControlMessage::new(ControlKind::Left, Rank(rank), Vec::new()))
            }
            PeerState::Lost => {
                let reason = self.reasons.get(&Rank(rank)).cloned().unwrap_or_default();
                Some(ControlMessage::new(ControlKind::Lost, Rank(rank), reason.into_bytes()))
            }
        };
        (0..).zip(&self.peers).filter_map(news).collect()
    }

    /// Gives up orphans that do not connect in time.
    pub(super) fn tick_orphans(&mut self, out: &mut Vec<TreeAction>) {
        self.orphans.ticks = self.orphans.ticks.saturating_add(1);
        if self.orphans.ticks <= self.silent_ticks_max.saturating_mul(ORPHAN_PATIENCE_AT_START) {
            return;
        }
        let ticks_max = self.silent_ticks_max.saturating_mul(ORPHAN_PATIENCE);
        let (tree, retiring) = (self.tree, &self.orphans.retiring);
        let late = |(&rank, orphan): (&Rank, &mut ExpectedOrphan)| {
            // Its ticks may count although nobody has told it to connect: the worker that should tell it is watched
            // by its own parent.
            let parent = tree.parent(rank).expect("rank 0 is no orphan");
            orphan.ticks += u32::from(!retiring.contains(&parent));
            (orphan.ticks > ticks_max).then_some((rank, orphan.ticks))
        };
        let late: Vec<(Rank, u32)> = self.orphans.expected.iter_mut().filter_map(late).collect();
        for (rank, ticks) in late {
            let waited_s = (HEARTBEAT_INTERVAL * ticks).as_secs_f64();
            let parent = self.tree.parent(rank).expect("rank 0 is no orphan");
            let reason =
                format!("it did not connect to rank 0 within {waited_s:.1} s after the end of worker {parent}");
            if self.is_present(rank) { self.lose(rank, reason, out) } else { self.cut(rank, out) }
        }
    }
}

//! Rank 0's decisions while workers join: who is here, who waits for its parent, and who needs no connection to rank 0
//! any more, because its parent speaks for it.
//!
//! A state machine without sockets and clock. Rank 0 keeps its connections to its own children and to all workers that
//! have children. It closes that of any other leaf as soon as the leaf is connected to its parent, which then reports
//! the end of the leaf. So rank 0 of 16,384 workers keeps 702 connections; only leaves that come before their parents
//! wait at rank 0, too.
//!
//! A worker that ends may come again, restarted by its launcher, until all are in their places. Each time it gets
//! another serial number, so that news of the worker that was here before are not mistaken for news of this one. Leaves
//! whose parent has ended come again by themselves. Where a leaf comes again before rank 0 has news of its end, rank 0
//! asks its parent: if the parent is still connected to the leaf, two workers claim one rank.

use std::collections::BTreeMap;

use super::JoinError;
use crate::Rank;
use crate::control::ControlError;
use crate::control::tree::ControlTree;
use crate::control::wire::{ControlKind, ControlMessage};

/// The longest list of a worker's addresses, as text.
const ADDRESSES_BYTES_MAX: usize = 4096;

/// What the caller has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JoinAction {
    /// Send a message about `message.rank` to `to`.
    Send { to: Rank, message: ControlMessage },
    /// Close the connection to `rank`.
    Close { rank: Rank },
    /// Use the second connection of `rank` from now on; there is no first one.
    Admit { rank: Rank },
    /// Report that a worker has ended that was not connected to rank 0 any more.
    Ended { rank: Rank },
}

/// The answer to a worker that has proved that it belongs to the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JoinAnswer {
    Admitted,
    /// Another worker with its rank may still be here. Keep the connection; an [`JoinAction::Admit`] or an error
    /// follows.
    Doubted,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SeatState {
    #[default]
    Absent,
    /// Connected to rank 0, but not yet in its place in the tree.
    Here,
    /// In its place, and connected to rank 0.
    Placed,
    /// A leaf in its place, connected only to its parent.
    Below,
}

#[derive(Clone, Default)]
struct Seat {
    state: SeatState,
    serial: u32,
    /// Where it called from, for messages.
    peer: String,
    /// Where it listens for its children, once it does.
    listens_at: Option<Vec<u8>>,
    /// It is a leaf whose parent has reported its end. What rank 0 has not read yet may have been sent before that.
    has_ended: bool,
}

pub(super) struct JoinLedger {
    tree: ControlTree,
    /// By rank from 1.
    seats: Vec<Seat>,
    absent: usize,
    unplaced: usize,
    serial: u32,
    /// Leaves that have come while their parent may still be connected to another worker with their rank, and where
    /// they called from.
    doubts: BTreeMap<Rank, String>,
}

impl JoinLedger {
    pub(super) fn new(tree: ControlTree) -> Self {
        let others = tree.size() as usize - 1;
        let seats = vec![Seat::default(); others];
        JoinLedger { tree, seats, absent: others, unplaced: others, serial: 0, doubts: BTreeMap::new() }
    }

    /// Whether all workers are in their places.
    pub(super) fn is_complete(&self) -> bool {
        self.unplaced == 0 && self.doubts.is_empty()
    }

    /// Whether all workers have joined.
    pub(super) fn is_full(&self) -> bool {
        self.absent == 0
    }

    /// The workers that have not joined.
    pub(super) fn absent(&self) -> Vec<Rank> {
        self.ranks(|rank| self.seat(rank).state == SeatState::Absent)
    }

    /// The workers whose silence keeps others from their places.
    pub(super) fn awaited(&self) -> Vec<Rank> {
        let is_unplaced = |rank| matches!(self.seat(rank).state, SeatState::Absent | SeatState::Here);
        let is_silent = |rank: Rank| !self.tree.is_leaf(rank) && self.seat(rank).listens_at.is_none();
        let asked: Vec<Rank> = self.doubts.keys().filter_map(|&leaf| self.tree.parent(leaf)).collect();
        let candidates =
            [self.ranks(is_silent), self.ranks(|rank| self.is_remote_leaf(rank) && is_unplaced(rank)), asked];
        let found = candidates.into_iter().find(|ranks| !ranks.is_empty());
        found.unwrap_or_else(|| self.ranks(is_unplaced))
    }

    fn ranks(&self, is_wanted: impl Fn(Rank) -> bool) -> Vec<Rank> {
        (1..self.tree.size()).map(Rank).filter(|&rank| is_wanted(rank)).collect()
    }

    /// A worker has called and has proved that it belongs to the job; its launcher may still have made a mistake.
    ///
    /// # Errors
    /// Why the job cannot start with it.
    pub(super) fn called(
        &mut self,
        rank: Rank,
        size: u32,
        peer: String,
        out: &mut Vec<JoinAction>,
    ) -> Result<JoinAnswer, String> {
        let expected = self.tree.size();
        if size != expected {
            return Err(format!(
                "worker {rank} at {peer} was told that the job has {size} worker(s), but rank 0 that it has \
                 {expected}; start all workers with one launcher call and one size"
            ));
        }
        if rank.0 == 0 || rank.0 >= expected {
            return Err(format!(
                "a worker at {peer} claims rank {rank} in a job of {size} workers that already has a rank 0"
            ));
        }
        match self.seat(rank).state {
            SeatState::Absent => {
                self.admit(rank, peer, out);
                Ok(JoinAnswer::Admitted)
            }
            SeatState::Below if !self.doubts.contains_key(&rank) => {
                let parent = self.tree.parent(rank).expect("only rank 0 has none");
                let serial = self.seat(rank).serial.to_le_bytes().to_vec();
                out.push(JoinAction::Send {
                    to: parent,
                    message: ControlMessage::new(ControlKind::Check, rank, serial),
                });
                self.doubts.insert(rank, peer);
                Ok(JoinAnswer::Doubted)
            }
            SeatState::Below => Err(claimed_twice(rank, &self.doubts[&rank], &peer)),
            SeatState::Here | SeatState::Placed => Err(claimed_twice(rank, &self.seat(rank).peer, &peer)),
        }
    }

    /// Has a leaf that waits for its parent call again later.
    pub(super) fn send_away(&mut self, out: &mut Vec<JoinAction>) {
        let is_waiting = |rank: &Rank| {
            let parent = self.tree.parent(*rank).expect("only rank 0 has none");
            self.is_remote_leaf(*rank)
                && self.seat(*rank).state == SeatState::Here
                && self.seat(parent).listens_at.is_none()
        };
        let Some(leaf) = (1..self.tree.size()).map(Rank).find(is_waiting) else { return };
        let message = ControlMessage::new(ControlKind::Later, Rank(0), Vec::new());
        out.extend([JoinAction::Send { to: leaf, message }, JoinAction::Close { rank: leaf }]);
        self.set(leaf, SeatState::Absent);
    }

    /// A worker whose connection was kept because of a doubt has hung up.
    pub(super) fn hung_up(&mut self, rank: Rank) {
        self.doubts.remove(&rank);
    }

    /// A worker connected to rank 0 has sent a message.
    ///
    /// # Errors
    /// Why the job does not start.
    pub(super) fn heard(
        &mut self,
        from: Rank,
        message: ControlMessage,
        out: &mut Vec<JoinAction>,
    ) -> Result<(), JoinError> {
        let about = message.rank;
        let is_parent = about != from && self.is_remote_leaf(about) && self.tree.parent(about) == Some(from);
        match message.kind {
            ControlKind::Listening
                if about == from
                    && !self.tree.is_leaf(from)
                    && self.seat(from).listens_at.is_none()
                    && message.payload.len() <= ADDRESSES_BYTES_MAX =>
            {
                self.tell_children(from, &message.payload, out);
                self.seat_mut(from).listens_at = Some(message.payload);
                Ok(())
            }
            ControlKind::Attached if about == from && self.is_remote_leaf(from) => {
                let parent = self.tree.parent(from).expect("only rank 0 has none");
                // If its parent has ended meanwhile, it will notice, and come again.
                let is_parent_here = matches!(self.seat(parent).state, SeatState::Here | SeatState::Placed);
                let is_below = is_parent_here && !self.seat(from).has_ended;
                self.set(from, if is_below { SeatState::Below } else { SeatState::Absent });
                out.push(JoinAction::Close { rank: from });
                Ok(())
            }
            ControlKind::Attached if about == from && !self.tree.is_leaf(from) => {
                self.set(from, SeatState::Placed);
                Ok(())
            }
            ControlKind::Attached if is_parent => match self.doubts.remove(&about) {
                Some(peer) => Err(JoinError::Disagreement(claimed_twice(about, &self.seat(about).peer, &peer))),
                None => Ok(()),
            },
            ControlKind::Ended if is_parent => {
                let serial = message.payload.as_slice().try_into().ok().map(u32::from_le_bytes);
                if serial == Some(self.seat(about).serial) {
                    self.leaf_ended(about, out);
                }
                Ok(())
            }
            ControlKind::Failed => Err(JoinError::Disagreement(message.text())),
            other => {
                let reason = format!("it sent {other:?}, which is not valid while workers join");
                Err(ControlError::Lost { rank: from, reason }.into())
            }
        }
    }

    /// The connection of a worker to rank 0 has ended.
    pub(super) fn closed(&mut self, rank: Rank, out: &mut Vec<JoinAction>) {
        self.set(rank, SeatState::Absent);
        self.seat_mut(rank).listens_at = None;
        // Children that are connected to rank 0 wait until their parent comes again.
        self.tell_children(rank, &[], out);
        // The others come again by themselves.
        for child in self.tree.children(rank) {
            if self.seat(child).state == SeatState::Below {
                self.vacate(child, out);
            }
        }
    }

    /// Admits a worker whose rank is not here.
    fn admit(&mut self, rank: Rank, peer: String, out: &mut Vec<JoinAction>) {
        self.serial = self.serial.wrapping_add(1);
        let parent = self.tree.parent(rank).expect("only rank 0 has none");
        let is_placed = parent == Rank(0) && self.tree.is_leaf(rank);
        self.set(rank, if is_placed { SeatState::Placed } else { SeatState::Here });
        let serial = self.serial;
        let seat = self.seat_mut(rank);
        *seat = Seat { state: seat.state, serial, peer, listens_at: None, has_ended: false };
        let welcome = [self.tree.fanout(), serial].iter().flat_map(|number| number.to_le_bytes()).collect();
        out.push(JoinAction::Send { to: rank, message: ControlMessage::new(ControlKind::Welcome, Rank(0), welcome) });
        if parent != Rank(0)
            && let Some(addresses) = self.seat(parent).listens_at.clone()
        {
            out.push(parent_message(rank, parent, addresses));
        }
    }

    /// A parent says that its connection to a leaf has ended.
    fn leaf_ended(&mut self, leaf: Rank, out: &mut Vec<JoinAction>) {
        match self.seat(leaf).state {
            SeatState::Below => {
                out.push(JoinAction::Ended { rank: leaf });
                self.vacate(leaf, out);
            }
            SeatState::Here => self.seat_mut(leaf).has_ended = true,
            SeatState::Absent | SeatState::Placed => {}
        }
    }

    /// A leaf that was connected to its parent only is gone; another with its rank may have come.
    fn vacate(&mut self, leaf: Rank, out: &mut Vec<JoinAction>) {
        self.set(leaf, SeatState::Absent);
        if let Some(peer) = self.doubts.remove(&leaf) {
            out.push(JoinAction::Admit { rank: leaf });
            self.admit(leaf, peer, out);
        }
    }

    /// Tells the children of `parent` that are connected to rank 0 where to call; without addresses, to wait.
    fn tell_children(&self, parent: Rank, addresses: &[u8], out: &mut Vec<JoinAction>) {
        let is_here = |child: &Rank| matches!(self.seat(*child).state, SeatState::Here | SeatState::Placed);
        out.extend(self.tree.children(parent).filter(is_here).map(|c| parent_message(c, parent, addresses.to_vec())));
    }

    /// Whether `rank` is a leaf that will not keep its connection to rank 0.
    fn is_remote_leaf(&self, rank: Rank) -> bool {
        rank.0 > 0
            && rank.0 < self.tree.size()
            && self.tree.is_leaf(rank)
            && self.tree.parent(rank).is_some_and(|parent| parent != Rank(0))
    }

    fn seat(&self, rank: Rank) -> &Seat {
        &self.seats[rank.index() - 1]
    }

    fn seat_mut(&mut self, rank: Rank) -> &mut Seat {
        &mut self.seats[rank.index() - 1]
    }

    fn set(&mut self, rank: Rank, state: SeatState) {
        let before = std::mem::replace(&mut self.seat_mut(rank).state, state);
        let is_absent = |state| usize::from(state == SeatState::Absent);
        let is_unplaced = |state| usize::from(matches!(state, SeatState::Absent | SeatState::Here));
        self.absent = self.absent + is_absent(state) - is_absent(before);
        self.unplaced = self.unplaced + is_unplaced(state) - is_unplaced(before);
    }
}

fn parent_message(to: Rank, parent: Rank, addresses: Vec<u8>) -> JoinAction {
    JoinAction::Send { to, message: ControlMessage::new(ControlKind::Parent, parent, addresses) }
}

fn claimed_twice(rank: Rank, first: &str, second: &str) -> String {
    format!(
        "two workers claim rank {rank}: one at {first}, one at {second}; give every worker its own rank (is an \
         environment from an earlier job exported?)"
    )
}

/// Whatever workers send, rank 0 counts them correctly, and sends only to those that are connected to it.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(messages: &[ControlMessage]) {
    use std::collections::BTreeSet;
    let size = 8;
    let mut ledger = JoinLedger::new(ControlTree::new(size, Some(2)));
    let (mut linked, mut doubted) = (BTreeSet::new(), BTreeSet::new());
    for message in messages {
        let mut out = Vec::new();
        let from = Rank(message.to.0 % (size + 1));
        match message.payload.len() % 8 {
            0 => {
                let was_linked = linked.remove(&from);
                if was_linked {
                    ledger.closed(from, &mut out);
                }
            }
            1 => {
                if doubted.remove(&from) {
                    ledger.hung_up(from);
                } else {
                    ledger.send_away(&mut out);
                }
            }
            2 | 3 => match ledger.called(from, size, "somewhere".into(), &mut out) {
                Ok(JoinAnswer::Admitted) => assert!(linked.insert(from), "it was here"),
                Ok(JoinAnswer::Doubted) => assert!(doubted.insert(from) && !linked.contains(&from)),
                Err(_) => assert!(from.0 == 0 || from.0 >= size || linked.contains(&from) || doubted.contains(&from)),
            },
            // After an error the job does not start.
            _ if linked.contains(&from) && ledger.heard(from, message.clone(), &mut out).is_err() => return,
            _ => {}
        }
        for action in out {
            match action {
                JoinAction::Send { to, .. } => assert!(linked.contains(&to)),
                JoinAction::Close { rank } => assert!(linked.remove(&rank)),
                JoinAction::Admit { rank } => assert!(doubted.remove(&rank) && linked.insert(rank)),
                JoinAction::Ended { rank } => assert!(ledger.tree.is_leaf(rank)),
            }
        }
        let counted = |states: &[SeatState]| ledger.ranks(|rank| states.contains(&ledger.seat(rank).state)).len();
        assert_eq!(ledger.absent, counted(&[SeatState::Absent]));
        assert_eq!(ledger.unplaced, counted(&[SeatState::Absent, SeatState::Here]));
        assert_eq!(linked.len(), counted(&[SeatState::Here, SeatState::Placed]));
        assert!(doubted.iter().all(|rank| ledger.doubts.contains_key(rank)) && doubted.len() == ledger.doubts.len());
        assert!(!ledger.is_complete() || ledger.is_full());
    }
}

//! Shared memory between the workers of a host: who offers it, who could open whose, and which pairs use it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::core_spreading::CoreSpreading;
use super::super::missing_transports::{self, MissingTransports};
use super::{OpenError, PeerAddresses, Routes, TransportChoice};
use crate::control::{ControlError, ControlPlane};
use crate::local::{InboxAddress, LocalInbox, LocalTransport, PeerInbox};
use crate::topology::WorkerPlacement;
use crate::{Doorbell, Rank};

/// What a worker could open of another one: its shared memory, and single copies of its memory.
pub(super) const MEMORY: u8 = 1;
const SINGLE_COPY: u8 = 2;

/// What a pair may lack, in words for the user.
const NO_MEMORY: &str = "no shared memory on this host";
const NO_SINGLE_COPY: &str = "no single copies of large messages";

/// This worker's shared memory, and what it has opened of its host's other workers.
pub(super) struct SharedMemory {
    rank: Rank,
    choice: TransportChoice,
    /// The host's other workers, if shared memory may be used.
    locals: Vec<Rank>,
    /// Contains this worker's doorbell, so it exists even without peers.
    inbox: LocalInbox,
    /// Why this worker could not create shared memory for its peers.
    failure: Option<String>,
    opened: Vec<(Rank, PeerInbox)>,
    /// By rank: why it is not reached by the best transport.
    lacks: Vec<Option<String>>,
    /// Reasons that this worker received from the kernel and that the user did not ask for. Peers report the others.
    missing: MissingTransports,
}

/// Which other workers' memory a worker could open, and how. Lists only workers of its own host: in a large job a
/// full list would be long, and every worker receives everyone's list.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerAccess(BTreeMap<Rank, u8>);

impl PeerAccess {
    /// A combination of [`MEMORY`] and [`SINGLE_COPY`].
    pub(super) fn of(&self, peer: Rank) -> u8 {
        self.0.get(&peer).copied().unwrap_or(0)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = (self.0.len() as u32).to_le_bytes().to_vec();
        for (peer, could) in &self.0 {
            bytes.extend_from_slice(&peer.0.to_le_bytes());
            bytes.push(*could);
        }
        bytes
    }

    /// Takes it from the front of `bytes`; a worker that sends anything else could open nothing.
    fn decode(bytes: &[u8]) -> (Self, &[u8]) {
        let split = bytes.split_first_chunk::<4>().and_then(|(count, rest)| {
            let len = (u32::from_le_bytes(*count) as usize).checked_mul(5)?;
            rest.split_at_checked(len)
        });
        let Some((entries, rest)) = split else { return (PeerAccess::default(), &[]) };
        let (entries, _) = entries.as_chunks::<5>();
        let entry = |&[a, b, c, d, could]: &[u8; 5]| (Rank(u32::from_le_bytes([a, b, c, d])), could);
        (PeerAccess(entries.iter().map(entry).collect()), rest)
    }
}

#[cfg(test)]
impl FromIterator<(Rank, u8)> for PeerAccess {
    fn from_iter<I: IntoIterator<Item = (Rank, u8)>>(entries: I) -> Self {
        PeerAccess(entries.into_iter().collect())
    }
}

#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    let (access, rest) = PeerAccess::decode(bytes);
    assert!(access.0.len() * 5 + rest.len() <= bytes.len());
    let again = PeerAccess::decode(&access.encode()).0;
    assert_eq!(again.0, access.0);
}

impl SharedMemory {
    /// Creates this worker's part.
    pub(super) fn create(
        control: &ControlPlane,
        choice: TransportChoice,
        placements: &[WorkerPlacement],
    ) -> Result<Self, OpenError> {
        let (rank, size) = (control.rank(), control.size());
        let mine = &placements[rank.index()].host;
        let is_local =
            |peer: &Rank| choice != TransportChoice::Tcp && placements[peer.index()].host.shares_memory_with(mine);
        let locals: Vec<Rank> = (0..size).map(Rank).filter(|&peer| peer != rank).filter(is_local).collect();
        let (inbox, failure) = match LocalInbox::create(&locals, rank, control.is_in_process() || locals.is_empty()) {
            Ok(inbox) => (inbox, None),
            // Not an error yet: this worker still has to take part in the following exchanges.
            Err(error) => (LocalInbox::create(&[], rank, true)?, Some(error.to_string())),
        };
        Ok(SharedMemory {
            rank,
            choice,
            locals,
            inbox,
            failure,
            opened: Vec::new(),
            lacks: vec![None; size as usize],
            missing: MissingTransports::default(),
        })
    }

    /// Where peers find this worker's shared memory.
    pub(super) fn address(&self) -> Option<InboxAddress> {
        (!self.locals.is_empty() && self.failure.is_none()).then(|| self.inbox.address())
    }

    pub(super) fn doorbell(&self) -> Arc<Doorbell> {
        self.inbox.doorbell()
    }

    /// Opens what the peers offer.
    pub(super) fn open_peers(&mut self, addresses: &[PeerAddresses]) -> Result<(), OpenError> {
        for &peer in &self.locals {
            let offered = &addresses[peer.index()].inbox;
            let result = match (&self.failure, offered) {
                (Some(reason), _) => Err(reason.clone()),
                (None, Some(address)) => PeerInbox::open(address, self.rank).map_err(|e| e.to_string()),
                (None, None) => Err("it offers none".into()),
            };
            match result {
                Ok(inbox) => self.opened.push((peer, inbox)),
                Err(reason) if self.choice == TransportChoice::SharedMemory => {
                    return Err(OpenError::NotLocal { rank: peer, reason });
                }
                Err(reason) => {
                    let reason = self.lacks[peer.index()].insert(format!("{NO_MEMORY}: {reason}"));
                    if self.failure.is_some() || offered.is_some() {
                        self.missing.add(peer, reason);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns what this worker could open of others, and notes which single copies are missing.
    fn access(&mut self) -> PeerAccess {
        let mut access = PeerAccess::default();
        for (peer, inbox) in &self.opened {
            let could = match inbox.no_single_copy() {
                None => MEMORY | SINGLE_COPY,
                Some((reason, is_wanted)) => {
                    if !is_wanted {
                        self.missing.add(*peer, &format!("{NO_SINGLE_COPY}: {reason}"));
                    }
                    MEMORY
                }
            };
            access.0.insert(*peer, could);
        }
        access
    }

    /// Exchanges what each worker could open of each other one and returns that. Keeps only what both ends of a pair
    /// could open. Rank 0 tells the user what is missing.
    pub(super) fn agree(&mut self, control: &mut ControlPlane) -> Result<Vec<PeerAccess>, ControlError> {
        let mine = self.access();
        let told = control.allgather(&[mine.encode(), self.missing.encode()].concat())?;
        let (all, reports): (Vec<PeerAccess>, Vec<&[u8]>) = told.iter().map(|bytes| PeerAccess::decode(bytes)).unzip();
        if self.rank == Rank(0) {
            missing_transports::tell(&reports);
        }
        let agreed = |peer: Rank, what: u8| mine.of(peer) & all[peer.index()].of(self.rank) & what != 0;
        for (peer, _) in self.opened.extract_if(.., |(peer, _)| !agreed(*peer, MEMORY)) {
            self.lacks[peer.index()] = Some(format!("{NO_MEMORY}: it cannot open this worker's"));
        }
        for (peer, inbox) in &mut self.opened {
            if !agreed(*peer, SINGLE_COPY) {
                inbox.refuse_single_copy();
            }
            if let Some((reason, _)) = inbox.no_single_copy() {
                self.lacks[peer.index()] = Some(format!("{NO_SINGLE_COPY}: {reason}"));
            }
        }
        Ok(all)
    }

    /// What workers that share cores tell each other through shared memory, if this worker has peers.
    pub(super) fn core_spreading(&self) -> Option<CoreSpreading> {
        let others = || self.opened.iter().map(|(_, peer)| peer.place()).collect();
        (!self.opened.is_empty()).then(|| CoreSpreading::new(self.inbox.place(), others()))
    }

    /// Adds the transport to the remaining peers, and returns for each rank why it is not reached by the best
    /// transport.
    pub(super) fn connect(self, routes: &mut Routes) -> Vec<Option<String>> {
        if !self.opened.is_empty() {
            let peers: Vec<Rank> = self.opened.iter().map(|&(peer, _)| peer).collect();
            routes.add(peers, Box::new(LocalTransport::open(self.rank, self.inbox, self.opened)));
        }
        self.lacks
    }
}

//! Shared memory between the workers of a host: who offers it, who could open whose, and which pairs use it.

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
    size: u32,
    choice: TransportChoice,
    /// The host's other workers, if shared memory may be used.
    locals: Vec<Rank>,
    /// Holds this worker's doorbell, so that it exists even without peers.
    inbox: LocalInbox,
    /// Why this worker could not create shared memory for its peers.
    failure: Option<String>,
    opened: Vec<(Rank, PeerInbox)>,
    /// By rank: why it is reached by less than the best transport.
    lacks: Vec<Option<String>>,
    /// Reasons that the kernel has given to this worker, and that the user did not ask for. Peers report the others.
    missing: MissingTransports,
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
            // Not an error yet: this worker still has to take part in the exchanges that follow.
            Err(error) => (LocalInbox::create(&[], rank, true)?, Some(error.to_string())),
        };
        Ok(SharedMemory {
            rank,
            size,
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

    /// Returns for each worker what this one could open of it, and notes which single copies are missing.
    fn access(&mut self) -> Vec<u8> {
        let mut access = vec![0; self.size as usize];
        for (peer, inbox) in &self.opened {
            access[peer.index()] = match inbox.no_single_copy() {
                None => MEMORY | SINGLE_COPY,
                Some((reason, is_wanted)) => {
                    if !is_wanted {
                        self.missing.add(*peer, &format!("{NO_SINGLE_COPY}: {reason}"));
                    }
                    MEMORY
                }
            };
        }
        access
    }

    /// Exchanges what each worker could open of each other one, returns that, and keeps only what both ends of a pair
    /// could open. Rank 0 tells the user what is missing.
    pub(super) fn agree(&mut self, control: &mut ControlPlane) -> Result<Vec<Vec<u8>>, ControlError> {
        let mine = self.access();
        let mut all = control.allgather(&[mine.as_slice(), &self.missing.encode()].concat())?;
        let size = self.size as usize;
        let reports: Vec<Vec<u8>> = all.iter_mut().map(|access| access.split_off(access.len().min(size))).collect();
        if self.rank == Rank(0) {
            missing_transports::tell(&reports.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
        let agreed = |peer: Rank, what: u8| {
            let theirs = all[peer.index()].get(self.rank.index()).copied().unwrap_or(0);
            mine[peer.index()] & theirs & what != 0
        };
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

    /// What workers that share cores tell each other through shared memory, if this one has peers.
    pub(super) fn core_spreading(&self) -> Option<CoreSpreading> {
        let others = || self.opened.iter().map(|(_, peer)| peer.place()).collect();
        (!self.opened.is_empty()).then(|| CoreSpreading::new(self.inbox.place(), others()))
    }

    /// Adds the transport to the peers that are left, and returns for each rank why it is reached by less than the best
    /// transport.
    pub(super) fn connect(self, routes: &mut Routes) -> Vec<Option<String>> {
        if !self.opened.is_empty() {
            let peers: Vec<Rank> = self.opened.iter().map(|&(peer, _)| peer).collect();
            routes.add(peers, Box::new(LocalTransport::open(self.rank, self.inbox, self.opened)));
        }
        self.lacks
    }
}

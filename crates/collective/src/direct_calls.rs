//! A communicator's direct collectives: opens the shared area, drives a call between polls, and wakes peers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidemill_net::{Engine, MatchPattern, MemoryRegion, NetError, Rank, Segment};

use crate::call::CollectiveCall;
use crate::communicator::{CollectiveError, Communicator};
use crate::direct::{
    DirectChannel, DirectChooser, DirectOperation, DirectPoll, DirectProgress, LargeProgress, SharedArea,
};
use crate::{Collective, DType, ReduceOp};

/// The most ranks for direct collectives; the flat exchange reads P lines per rank.
const DIRECT_RANKS_MAX: usize = 32;

impl Communicator {
    /// # Safety
    /// As [`DirectChannel::poll`].
    pub(crate) unsafe fn poll_direct(
        &self,
        job: &DirectOperation,
        op: &ReduceOp,
        progress: &mut DirectProgress,
        engine: &mut Engine,
    ) -> DirectPoll {
        let mut collectives = self.0.collectives.lock();
        let collectives = &mut *collectives;
        let direct = collectives.direct.as_mut().expect("a direct request has an area");
        let before = progress.moved();
        // SAFETY: by this function's contract.
        let poll = unsafe { direct.poll(job, op, progress) };
        collectives.waits_for = direct.waiting_for(progress);
        if (progress.moved() != before || !matches!(poll, DirectPoll::Waiting)) && direct.sleepers() > 0 {
            self.wake_all(engine);
        }
        poll
    }

    /// # Safety
    /// As [`DirectChannel::poll_large`].
    pub(crate) unsafe fn poll_large(
        &self,
        job: &DirectOperation,
        op: &ReduceOp,
        progress: &mut LargeProgress,
        engine: &mut Engine,
    ) -> DirectPoll {
        let mut collectives = self.0.collectives.lock();
        let collectives = &mut *collectives;
        let direct = collectives.direct.as_mut().expect("a direct request has an area");
        // SAFETY: by this function's contract.
        let poll = unsafe { direct.poll_large(job, op, progress, &self.0.ranks, engine) };
        collectives.waits_for = progress.waits_for();
        if !matches!(poll, DirectPoll::Waiting) && direct.sleepers() > 0 {
            self.wake_all(engine);
        }
        poll
    }

    /// This rank starts or stops sleeping in a direct collective. Only sleepers get a wake-up: a counter that every
    /// wait changed would travel between the cores with each call.
    pub(crate) fn count_sleeper(&self, change: i32) {
        if let Some(direct) = &self.0.collectives.lock().direct {
            direct.area().sleepers().fetch_add(change as u32, Ordering::SeqCst);
        }
    }

    /// Whether the rank for which a direct collective waits has left the job, or is done here; in either case it sends
    /// nothing more.
    pub(crate) fn direct_peer_left(&self, engine: &mut Engine) -> Option<NetError> {
        let rank = self.direct_waits_for()?;
        engine.never(self.collective_context(), &MatchPattern { source: Some(rank), tag: None, seq: 0 })
    }

    pub(crate) fn direct_waits_for(&self) -> Option<Rank> {
        let rank = self.0.collectives.lock().waits_for?;
        Some(self.world_rank(rank as u32))
    }

    /// The first recent collective in which `rank` made a different call than this rank, and its call.
    pub(crate) fn direct_divergence(&self, rank: usize, seq: u32) -> (u32, Option<[u64; 2]>) {
        let collectives = self.0.collectives.lock();
        let Some(direct) = &collectives.direct else { return (seq, None) };
        direct.divergence(rank, seq).map_or((seq, None), |(seq, call)| (seq, Some(call)))
    }

    /// A wait has become long: a peer may be in a different collective, which no message would ever reveal.
    pub(crate) fn look_for_contradiction(&self, seq: u32, signature: u32) {
        let found = self.0.collectives.lock().direct.as_ref().and_then(|d| d.find_contradiction(seq, signature));
        if let Some(rank) = found {
            self.contradict(&mut self.0.endpoint.lock(), seq, rank);
        }
    }

    pub(crate) fn wake_all(&self, engine: &mut Engine) {
        for &rank in self.0.ranks.iter() {
            if rank != self.0.endpoint.rank() {
                engine.wake(rank);
            }
        }
    }

    /// A collective failed here. Peers may be anywhere in it, so a later one would not match theirs. If only this rank
    /// knows of the failure, it tells its peers, which would otherwise wait for its part.
    pub(crate) fn fail(&self, error: &NetError) {
        self.abandon();
        if let (NetError::Operation(text), true) = (error, self.0.ranks.len() > 1) {
            self.0.endpoint.report_failure(text);
        }
    }

    /// A collective was abandoned halfway.
    pub(crate) fn abandon(&self) {
        self.0.abandoned.store(true, Ordering::Relaxed);
    }

    /// Gives the communicator its shared memory, if all ranks are on one host and can map it. Collective.
    pub(crate) fn open_direct(&self) -> Result<(), CollectiveError> {
        let size = self.0.ranks.len();
        let local = self.0.hosts.is_empty() && self.0.ranks.iter().all(|&r| self.0.endpoint.shares_memory_with(r));
        // Every pair agreed on its transport separately, so all ranks come to the same answer only if all pairs are
        // local.
        let all_local = self.agree_min(u64::from(local && (2..=DIRECT_RANKS_MAX).contains(&size)))?;
        if all_local == 0 {
            return Ok(());
        }
        let bytes = SharedArea::bytes(size);
        let made = if self.0.rank == 0 { Segment::create(bytes).ok() } else { None };
        let mut address = [0u64; 2];
        if let Some(segment) = &made {
            address = [u64::from(std::process::id()), segment.fd().map_or(0, |fd| fd as u64)];
        }
        self.bcast_words(&mut address)?;
        let mine = match made {
            Some(segment) => Some(segment),
            None if address[0] != 0 => Segment::open(address[0] as u32, address[1] as i32, bytes).ok(),
            None => None,
        };
        let all_have = self.agree_min(u64::from(mine.is_some()))?;
        if let (1, Some(segment)) = (all_have, mine) {
            let area = SharedArea::new(segment.closed(), size);
            let reads_all = self.0.ranks.iter().all(|&r| self.0.endpoint.reads_memory_of(r));
            let single_copy = self.agree_min(u64::from(reads_all))? == 1;
            let mut collectives = self.0.collectives.lock();
            collectives.direct = Some(DirectChannel::new(area, self.0.rank as usize, size));
            let rules = self.0.table.read().blocking(size as u32);
            collectives.chooser =
                DirectChooser { ranks: size, own_cores: self.0.within_host.own_cores, single_copy, rules };
            drop(collectives);
            let (weak, me) = (Arc::downgrade(&self.0.collectives), self.0.rank as usize);
            let lookup = move |seq| {
                let collectives = weak.upgrade()?;
                let collectives = collectives.lock();
                collectives.direct.as_ref()?.area().call(me, seq).map(|(_, call)| call)
            };
            self.0.endpoint.set_call_lookup(self.collective_context(), Arc::new(lookup));
        }
        Ok(())
    }

    pub(crate) fn bcast_words(&self, words: &mut [u64]) -> Result<(), CollectiveError> {
        let recv = region_of(words);
        let call = CollectiveCall {
            dtype: DType::U64,
            count: words.len(),
            recv: Some(recv),
            ..CollectiveCall::new(Collective::Bcast)
        };
        // SAFETY: `words` is borrowed for the whole call.
        unsafe { self.run(&call) }
    }

    pub(crate) fn agree_min(&self, value: u64) -> Result<u64, CollectiveError> {
        let mut word = [value];
        let recv = region_of(&mut word);
        let call = CollectiveCall {
            dtype: DType::U64,
            op: &ReduceOp::Min,
            count: 1,
            recv: Some(recv),
            ..CollectiveCall::new(Collective::Allreduce)
        };
        // SAFETY: `word` is borrowed for the whole call.
        unsafe { self.run(&call)? };
        Ok(word[0])
    }

    pub(crate) fn allgather_words(&self, mine: &mut [u64]) -> Result<Vec<u64>, CollectiveError> {
        let mut all = vec![0u64; mine.len() * self.0.ranks.len()];
        let call = CollectiveCall {
            dtype: DType::U64,
            count: mine.len(),
            send: Some(region_of(mine)),
            recv: Some(region_of(&mut all)),
            ..CollectiveCall::new(Collective::Allgather)
        };
        // SAFETY: both are borrowed for the whole call.
        unsafe { self.run(&call)? };
        Ok(all)
    }
}

pub(crate) fn region_of(words: &mut [u64]) -> MemoryRegion {
    MemoryRegion { ptr: words.as_mut_ptr().cast(), len: size_of_val(words) }
}

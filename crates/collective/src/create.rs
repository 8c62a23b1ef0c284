//! New communicators from existing ones. The first rank gives each a number that no other rank uses; its contexts
//! follow from that number.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidemill_net::{Envelope, MatchPattern, MemoryRegion, Rank};

use crate::communicator::{CollectiveError, Communicator};
use crate::direct_calls::region_of;
use crate::request::{RequestKind, StartResult};

/// Each communicator uses two contexts, which are 32-bit numbers.
const ID_MAX: u32 = u32::MAX / 2;
/// The communicator of all workers, and that of each worker alone.
const IDS_FIXED: u32 = 2;

impl Communicator {
    /// A communicator with the same ranks and separate traffic. Collective.
    ///
    /// # Errors
    /// Any failure of the job.
    pub fn dup(&self) -> Result<Communicator, CollectiveError> {
        let new = self.split(Some(0), i64::from(self.0.rank))?.expect("every rank has a colour");
        new.set_name(&format!("{} (dup)", self.name()));
        Ok(new)
    }

    /// Splits into one communicator per color, ranked by `key`, then by rank here. `None`: in none of them. Collective.
    ///
    /// # Errors
    /// Any failure of the job.
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Communicator>, CollectiveError> {
        let mut mine = self.split_words(color, key);
        let all = self.allgather_words(&mut mine)?;
        self.split_agreed(color, &all)
    }

    /// What this rank contributes to a split. For callers that gather these words themselves because they must watch
    /// for signals while they wait.
    pub fn split_words(&self, color: Option<u32>, key: i64) -> [u64; 3] {
        // Only the first rank's number counts.
        let id = if self.0.rank == 0 { self.new_id() } else { 0 };
        [color.map_or(u64::MAX, u64::from), key as u64, u64::from(id)]
    }

    /// A number for a communicator whose first rank is this worker. Threads of one worker may make communicators at the
    /// same time, and their messages may arrive in any order, so the number is unique rather than agreed on. `ID_MAX`
    /// or more means that there are none left.
    fn new_id(&self) -> u32 {
        self.0.endpoint.unique().map_or(ID_MAX, |n| n.saturating_add(IDS_FIXED))
    }

    /// The rest of a split, given all ranks' words in rank order.
    ///
    /// # Errors
    /// Any failure of the job; `TooMany`.
    pub fn split_agreed(&self, color: Option<u32>, all: &[u64]) -> Result<Option<Communicator>, CollectiveError> {
        let id = all[2] as u32;
        if id >= ID_MAX {
            return Err(CollectiveError::TooMany);
        }
        let Some(color) = color else { return Ok(None) };
        let mut members: Vec<(i64, u32)> = all
            .chunks_exact(3)
            .enumerate()
            .filter(|(_, c)| c[0] == u64::from(color))
            .map(|(rank, c)| (c[1] as i64, rank as u32))
            .collect();
        members.sort_unstable();
        let ranks = members.iter().map(|&(_, rank)| self.world_rank(rank)).collect();
        self.found(ranks, id).map(Some)
    }

    /// A communicator of the given ranks of this one, in that order; `None` on ranks that are not among them.
    /// Collective over this communicator.
    ///
    /// # Errors
    /// `NoSuchRank`; any failure of the job.
    pub fn create(&self, ranks: &[u32]) -> Result<Option<Communicator>, CollectiveError> {
        ranks.iter().try_for_each(|&r| self.check_rank(r).map(|_| ()))?;
        let key = ranks.iter().position(|&r| r == self.0.rank);
        self.split(key.map(|_| 0), key.map_or(0, |k| k as i64))
    }

    /// A communicator of the given ranks of this one, in that order. Called by those ranks only; `tag` distinguishes
    /// overlapping groups that are made at the same time (MPI 4.1 section 7.4.2).
    ///
    /// # Errors
    /// `NoSuchRank`, also if this rank is not among them; any failure of the job.
    pub fn create_group(&self, ranks: &[u32], tag: i32) -> Result<Communicator, CollectiveError> {
        let worlds: Arc<[Rank]> = ranks.iter().map(|&r| self.check_rank(r)).collect::<Result<_, _>>()?;
        let Some(me) = ranks.iter().position(|&r| r == self.0.rank) else {
            return Err(CollectiveError::NoSuchRank { rank: self.0.rank, size: self.size(), comm: self.name() });
        };
        // All ranks arrive before any continues: the first rank hears from all others, then sends the number.
        let mut id = [0u64];
        if me == 0 {
            for &peer in &worlds[1..] {
                self.management(peer, tag, region_of(&mut [0u64]), false)?;
            }
            id[0] = u64::from(self.new_id());
            for &peer in &worlds[1..] {
                self.management(peer, tag, region_of(&mut id), true)?;
            }
        } else {
            self.management(worlds[0], tag, region_of(&mut id), true)?;
            self.management(worlds[0], tag, region_of(&mut id), false)?;
        }
        let id = id[0] as u32;
        if id >= ID_MAX {
            return Err(CollectiveError::TooMany);
        }
        self.found(worlds, id)
    }

    /// A message outside the traffic of the user and of collectives: in the collective context, without a number.
    pub(crate) fn management(
        &self,
        peer: Rank,
        tag: i32,
        region: MemoryRegion,
        send: bool,
    ) -> Result<(), CollectiveError> {
        let context = self.collective_context();
        let mut engine = self.0.endpoint.lock();
        let group = engine.new_group();
        let rank = self.rank_of(peer);
        let what = if send {
            let envelope = Envelope { context, tag, seq: 0, signature: 0 };
            // SAFETY: the caller's words are borrowed until this returns, which is after the group is complete.
            unsafe { engine.post_send(group, peer, &envelope, region) };
            RequestKind::Send { dest: rank }
        } else {
            let pattern = MatchPattern { source: Some(peer), tag: Some(tag), seq: 0 };
            // SAFETY: as above.
            unsafe { engine.post_recv(group, context, pattern, region) };
            RequestKind::Recv { source: Some(rank) }
        };
        match self.started(engine, group, what)? {
            StartResult::Done(_) => Ok(()),
            StartResult::Pending(request) => Ok(request.wait().map(|_| ())?),
        }
    }

    pub(crate) fn found(&self, ranks: Arc<[Rank]>, id: u32) -> Result<Communicator, CollectiveError> {
        let name = format!("{}/{id}", self.name());
        let new = Self::make(self.0.endpoint.clone(), ranks, id, &name, Arc::clone(&self.0.table.read()));
        new.0.is_adaptive.store(self.0.is_adaptive.load(Ordering::Relaxed), Ordering::Relaxed);
        new.open_direct()?;
        new.begin_count();
        Ok(new)
    }
}

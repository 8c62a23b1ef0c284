//! The communicator: a group of workers, each with a rank, whose traffic is separate from all other traffic.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tidemill_net::topology::HostLinks;
use tidemill_net::{Endpoint, MatchPattern, NetError, Rank};

use crate::call::{self};
use crate::direct::{DirectChannel, DirectChooser};
use crate::overlay::{AdaptiveOverlay, Overlay};
use crate::request_state::RequestPool;
use crate::schedule::Schedule;
use crate::tuner::TuneTable;
use crate::waits::{RecentWaits, waits_for_all};
use crate::{Algorithm, Collective, OpError, UnsupportedAlgorithm};

/// What can be wrong with a call before any data moves, and what can go wrong while it runs.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// The job or a message failed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The operation is not defined for the dtype.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The algorithm cannot do this.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedAlgorithm),
    /// A rank that is not in the communicator.
    #[error("rank {rank} is not in comm \"{comm}\", which has ranks 0 to {}", size - 1)]
    NoSuchRank {
        /// The rank asked for.
        rank: u32,
        /// Ranks there are.
        size: u32,
        /// The communicator.
        comm: String,
    },
    /// A buffer is shorter or longer than the call needs.
    #[error("{collective}: the {buffer} buffer has {found} bytes, but {needed} are needed")]
    Length {
        /// The call.
        collective: Collective,
        /// `"send"` or `"receive"`.
        buffer: &'static str,
        /// Bytes it has.
        found: usize,
        /// Bytes it should have.
        needed: usize,
    },
    /// An earlier collective on the communicator was abandoned halfway.
    #[error(
        "comm \"{comm}\" is unusable: a collective on it was interrupted or failed; {}",
        if *from_parent { "make a new communicator from its parent" } else { "start the job again" }
    )]
    Abandoned {
        /// The communicator.
        comm: String,
        /// Whether it was made from another communicator.
        from_parent: bool,
    },
    /// An overlay is for a different number of ranks.
    #[error("an overlay for {found} ranks does not fit comm \"{comm}\", which has {size}: make one for {size}")]
    OverlaySize {
        /// Ranks it is for.
        found: u32,
        /// Ranks there are.
        size: u32,
        /// The communicator.
        comm: String,
    },
    /// The limit on communicators is reached.
    #[error("too many communicators: a job can make at most 2^31 divided by its number of workers")]
    TooMany,
}

/// A group of workers with its own traffic. Clones are the same communicator.
#[derive(Clone)]
pub struct Communicator(pub(crate) Arc<CommunicatorCore>);

pub(crate) struct CommunicatorCore {
    pub(crate) endpoint: Endpoint,
    /// World rank of each rank.
    pub(crate) ranks: Arc<[Rank]>,
    /// Rank of each world rank, `u32::MAX` outside.
    pub(crate) rank_of: Option<Box<[u32]>>,
    pub(crate) rank: u32,
    pub(crate) id: u32,
    /// Host of each rank; empty when they all share one.
    pub(crate) hosts: Box<[u32]>,
    /// The kind of link that all of these hosts support.
    pub(crate) within_host: HostLinks,
    pub(crate) name: Mutex<String>,
    pub(crate) table: RwLock<Arc<TuneTable>>,
    pub(crate) overlay: RwLock<Option<OverlayInUse>>,
    /// Adapts the overlay; created by the first call that may use it.
    pub(crate) adaptive: Mutex<Option<AdaptiveOverlay>>,
    /// Whether all-reduces that name no algorithm adapt.
    pub(crate) is_adaptive: AtomicBool,
    pub(crate) collectives: Arc<Mutex<CollectiveState>>,
    pub(crate) waits: RecentWaits,
    pub(crate) spares: Mutex<RequestPool>,
    pub(crate) abandoned: AtomicBool,
    pub(crate) polls: u32,
}

/// The overlay for calls with [`Algorithm::Overlay`].
#[derive(Clone)]
pub(crate) struct OverlayInUse {
    pub(crate) overlay: Arc<Overlay>,
    pub(crate) fingerprint: u64,
}

#[derive(Default)]
pub(crate) struct CollectiveState {
    pub(crate) seq: u32,
    pub(crate) direct: Option<DirectChannel>,
    /// Decides whether a blocking call is direct.
    pub(crate) chooser: DirectChooser,
    /// The rank for which the current direct collective waits.
    pub(crate) waits_for: Option<usize>,
    pub(crate) schedules: HashMap<ScheduleKey, Arc<Schedule>>,
}

#[derive(PartialEq, Eq, Hash)]
pub(crate) struct ScheduleKey {
    pub(crate) collective: Collective,
    pub(crate) algorithm: Algorithm,
    pub(crate) chunk: usize,
    /// The root, or the fingerprint of the overlay; a call along an overlay has no root.
    pub(crate) root: u64,
    pub(crate) count: usize,
    pub(crate) commutative: bool,
    pub(crate) repeatable: bool,
    pub(crate) in_place: bool,
}

impl Communicator {
    /// The communicator of all workers. Collective over the job; made once. All ranks get rank 0's `table`.
    ///
    /// # Errors
    /// If the workers cannot agree.
    pub fn world(endpoint: Endpoint, table: Arc<TuneTable>) -> Result<Self, CollectiveError> {
        endpoint.set_call_formatter(call::describe);
        let ranks = (0..endpoint.size()).map(Rank).collect();
        // The calls that share the table must not depend on it: until then all ranks use the built-in choices.
        let world = Self::make(endpoint, ranks, 0, "world", Arc::default());
        world.share_table(&table)?;
        world.open_direct()?;
        world.begin_count();
        Ok(world)
    }

    /// From here on, collectives belong to the program, and error messages count them.
    pub(crate) fn begin_count(&self) {
        let made_with = self.0.collectives.lock().seq;
        self.0.endpoint.set_calls_before(self.collective_context(), made_with);
    }

    /// Gives all ranks rank 0's table and overlay setting, because schedules made from different ones would not match.
    pub(crate) fn share_table(&self, table: &TuneTable) -> Result<(), CollectiveError> {
        let mut text = Vec::new();
        if self.0.rank == 0 && table.rules().next().is_some() {
            text = table.to_text().into_bytes();
        }
        let mut words = [text.len() as u64, Self::overlay_setting()];
        self.bcast_words(&mut words)?;
        self.set_overlay_setting(words[1])?;
        text.resize(words[0] as usize, 0);
        if !text.is_empty() {
            self.bcast(&mut text, 0)?;
            let text = String::from_utf8_lossy(&text);
            let table = TuneTable::parse(&text, "rank 0's table").map_err(|e| NetError::Operation(e.to_string()))?;
            *self.0.table.write() = Arc::new(table);
        }
        Ok(())
    }

    /// The communicator of this worker alone. Local.
    pub fn solo(endpoint: Endpoint, table: Arc<TuneTable>) -> Self {
        let me = endpoint.rank();
        Self::make(endpoint, [me].into(), 1, "self", table)
    }

    pub(crate) fn make(endpoint: Endpoint, ranks: Arc<[Rank]>, id: u32, name: &str, table: Arc<TuneTable>) -> Self {
        let me = endpoint.rank();
        let rank = ranks.iter().position(|&r| r == me).expect("a worker makes communicators it is in") as u32;
        let whole = ranks.iter().enumerate().all(|(i, r)| r.index() == i);
        let rank_of = (!whole).then(|| {
            let mut map = vec![u32::MAX; endpoint.size() as usize];
            ranks.iter().enumerate().for_each(|(i, r)| map[r.index()] = i as u32);
            map.into()
        });
        let placements = endpoint.placements();
        let mut seen = Vec::new();
        let mut hosts: Vec<u32> = ranks
            .iter()
            .map(|r| {
                let host = &placements[r.index()].host;
                let at = seen.iter().position(|h| *h == host).unwrap_or_else(|| {
                    seen.push(host);
                    seen.len() - 1
                });
                at as u32
            })
            .collect();
        if seen.len() == 1 {
            hosts.clear();
        }
        let polls = endpoint.polls();
        let within_host = ranks.iter().map(|&r| endpoint.host_links(r)).fold(HostLinks::BEST, HostLinks::and);
        let comm = Communicator(Arc::new(CommunicatorCore {
            endpoint,
            ranks,
            rank_of,
            rank,
            id,
            hosts: hosts.into(),
            within_host,
            name: Mutex::new(String::new()),
            table: RwLock::new(table),
            overlay: RwLock::default(),
            adaptive: Mutex::default(),
            is_adaptive: AtomicBool::new(false),
            collectives: Arc::default(),
            waits: RecentWaits::default(),
            spares: Mutex::default(),
            abandoned: AtomicBool::new(false),
            polls,
        }));
        let mut engine = comm.0.endpoint.lock();
        engine.open_context(comm.p2p_context());
        engine.open_context(comm.collective_context());
        drop(engine);
        comm.set_name(name);
        comm
    }

    /// Records how long the blocking call that has just ended waited.
    pub fn note_wait(&self, collective: Collective, waited: Duration) {
        if waits_for_all(collective) {
            self.0.waits.note(self.0.collectives.lock().seq, waited);
        }
    }

    /// How long this rank has waited in its recent collectives that wait for all ranks, counting waits of at least a
    /// millisecond: by the number of the call, which is the same on all ranks.
    pub fn recent_waits(&self) -> Vec<(u32, Duration)> {
        self.0.waits.all()
    }

    /// This worker's rank here.
    #[inline]
    pub fn rank(&self) -> u32 {
        self.0.rank
    }

    /// The number of ranks.
    #[inline]
    pub fn size(&self) -> u32 {
        self.0.ranks.len() as u32
    }

    /// The worker behind each rank.
    pub fn world_ranks(&self) -> &[Rank] {
        &self.0.ranks
    }

    /// The worker behind one rank.
    #[inline]
    pub fn world_rank(&self, rank: u32) -> Rank {
        self.0.ranks[rank as usize]
    }

    /// A number that distinguishes the communicators of a worker, the same on all its ranks.
    pub fn id(&self) -> u32 {
        self.0.id
    }

    /// The name in messages to users.
    pub fn name(&self) -> String {
        self.0.name.lock().clone()
    }

    /// Changes the name, on this worker.
    pub fn set_name(&self, name: &str) {
        *self.0.name.lock() = name.to_owned();
        self.0.endpoint.set_context_name(self.collective_context(), name);
    }

    /// The number of hosts that its ranks are on.
    pub fn hosts(&self) -> u32 {
        self.0.hosts.iter().max().map_or(1, |m| m + 1)
    }

    /// Whether other clones of this communicator exist.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// The table from which its calls choose their algorithms.
    pub fn table(&self) -> Arc<TuneTable> {
        Arc::clone(&self.0.table.read())
    }

    /// Sets the trees for calls with [`Algorithm::Overlay`], starting with this rank's next call. All ranks must have
    /// equal overlays when they call, or all get [`NetError::Mismatch`]. Local.
    ///
    /// # Errors
    /// If the overlay is for a different number of ranks.
    pub fn set_overlay(&self, overlay: Option<Arc<Overlay>>) -> Result<(), CollectiveError> {
        if let Some(overlay) = overlay.as_ref().filter(|overlay| overlay.size() != self.size()) {
            let (found, size) = (overlay.size(), self.size());
            return Err(CollectiveError::OverlaySize { found, size, comm: self.name() });
        }
        let in_use = overlay.map(|overlay| OverlayInUse { fingerprint: overlay.fingerprint(), overlay });
        *self.0.overlay.write() = in_use;
        Ok(())
    }

    /// The overlay last passed to [`Communicator::set_overlay`].
    pub fn overlay(&self) -> Option<Arc<Overlay>> {
        self.0.overlay.read().as_ref().map(|in_use| Arc::clone(&in_use.overlay))
    }

    /// How messages travel within a host, if all its hosts agree; else the kind that all of them support.
    pub fn within_host(&self) -> HostLinks {
        self.0.within_host
    }

    /// The underlying endpoint.
    #[inline]
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    /// This rank makes no more calls here, and none is under way: other ranks that wait for one, now or later, get
    /// [`NetError::PeerEnded`]. Messages it has sent are still received. Messages to it are dropped, large ones as well
    /// as small ones.
    pub fn end(&self) {
        if self.0.endpoint.check_process().is_err() {
            return;
        }
        let me = self.world_rank(self.0.rank);
        let others: Vec<Rank> = self.0.ranks.iter().copied().filter(|&rank| rank != me).collect();
        let mut engine = self.0.endpoint.lock();
        engine.end_context(self.p2p_context(), &others);
        engine.end_context(self.collective_context(), &others);
        engine.flush();
        drop(engine);
        self.0.endpoint.leave_to_background();
    }

    pub(crate) fn p2p_context(&self) -> u32 {
        self.0.id * 2
    }

    /// The context of its messages, for callers that drive the engine by hand and use the communicator for nothing
    /// else. It ends with the communicator's last clone.
    pub fn message_context(&self) -> u32 {
        self.p2p_context()
    }

    pub(crate) fn collective_context(&self) -> u32 {
        self.0.id * 2 + 1
    }

    /// The rank in this communicator of the sender in a status.
    #[inline]
    pub fn rank_of(&self, world: Rank) -> u32 {
        match &self.0.rank_of {
            None => world.0,
            Some(map) => map.get(world.index()).copied().unwrap_or(u32::MAX),
        }
    }

    #[inline]
    pub(crate) fn check_rank(&self, rank: u32) -> Result<Rank, CollectiveError> {
        self.0.endpoint.check_process()?;
        match self.0.ranks.get(rank as usize) {
            Some(&world) => Ok(world),
            None => Err(CollectiveError::NoSuchRank { rank, size: self.size(), comm: self.name() }),
        }
    }

    pub(crate) fn pattern(&self, source: Option<u32>, tag: Option<i32>) -> Result<MatchPattern, CollectiveError> {
        self.0.endpoint.check_process()?;
        let source = source.map(|s| self.check_rank(s)).transpose()?;
        Ok(MatchPattern { source, tag, seq: 0 })
    }
}

impl Drop for CommunicatorCore {
    fn drop(&mut self) {
        if self.id >= 2 && self.endpoint.check_process().is_ok() {
            self.endpoint.forget_context(self.id * 2);
            self.endpoint.forget_context(self.id * 2 + 1);
        }
    }
}

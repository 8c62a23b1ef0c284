//! Opening an endpoint: which transport reaches which worker, agreed on by both ends of every pair.
//!
//! Steps, each an exchange over the control plane: who is where; how to reach each other's shared memory and listeners;
//! whose shared memory could really be opened. A pair uses shared memory only if both ends could; all others use TCP.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::background::BackgroundDriver;
use super::core_spreading::CoreSpreading;
use super::faults::FaultRegistry;
use super::missing_transports::{self, MissingTransports};
use super::{Endpoint, EndpointState, Engine, JobMembership, POLLS_OWN_CORE, POLLS_SHARED_CORE};
use crate::control::{ControlError, ControlEvent, ControlPlane};
use crate::fork::ForkOrigin;
use crate::local::{InboxAddress, LocalInbox, LocalTransport, PeerInbox};
use crate::tcp::{PeerListener, TcpTransport};
use crate::topology::{self, HostIdentity, HostLinks, WorkerPlacement};
use crate::{OPEN_TIMEOUT, Rank, SegmentError, Transport};

/// Which transports may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Shared memory within a host, TCP between hosts.
    #[default]
    Auto,
    /// Shared memory only; workers on other hosts are an error.
    SharedMemory,
    /// TCP only.
    Tcp,
}

impl std::str::FromStr for TransportChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" | "" => Ok(Self::Auto),
            "shm" => Ok(Self::SharedMemory),
            "tcp" => Ok(Self::Tcp),
            _ => Err(format!("unknown transport {text:?}; choose auto, shm or tcp")),
        }
    }
}

/// How an endpoint behaves.
#[derive(Clone, Debug)]
pub struct EndpointSettings {
    /// Which transports may be used.
    pub transport: TransportChoice,
    /// A wait longer than this is explained once; zero never explains.
    pub stall_warning: Duration,
}

impl Default for EndpointSettings {
    fn default() -> Self {
        EndpointSettings { transport: TransportChoice::Auto, stall_warning: Duration::from_secs(10) }
    }
}

/// Why an endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The exchange between workers failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// This worker's own shared memory could not be made.
    #[error("shared memory: {0}")]
    Segment(#[from] SegmentError),
    /// A TCP connection could not be opened.
    #[error("tcp: {0}")]
    Tcp(String),
    /// Shared memory was demanded but does not reach everybody.
    #[error("TIDEMILL_TRANSPORT=shm, but worker {rank} cannot be reached through shared memory: {reason}")]
    NotLocal {
        /// Who.
        rank: Rank,
        /// Why not.
        reason: String,
    },
    /// A peer sent an address this version does not understand.
    #[error("worker {rank} sent an invalid address; do all workers run the same version of Tidemill?")]
    BadAddress {
        /// Who.
        rank: Rank,
    },
}

/// What workers tell each other about how to reach them.
struct PeerAddresses {
    inbox: Option<InboxAddress>,
    listener: Vec<std::net::SocketAddr>,
}

impl PeerAddresses {
    fn encode(&self) -> Vec<u8> {
        let listener: Vec<String> = self.listener.iter().map(ToString::to_string).collect();
        let mut bytes = listener.join(" ").into_bytes();
        bytes.push(b'\n');
        if let Some(inbox) = &self.inbox {
            bytes.extend_from_slice(&inbox.encode());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<PeerAddresses> {
        let end = bytes.iter().position(|&b| b == b'\n')?;
        let text = std::str::from_utf8(&bytes[..end]).ok()?;
        let listener = text.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let rest = &bytes[end + 1..];
        let inbox = if rest.is_empty() { None } else { Some(InboxAddress::decode(rest)?) };
        Some(PeerAddresses { inbox, listener })
    }
}

#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    if let Some(reach) = PeerAddresses::decode(bytes) {
        assert!(reach.listener.len() <= bytes.len());
        assert!(PeerAddresses::decode(&reach.encode()).is_some_and(|again| again.listener == reach.listener));
    }
}

/// Tells all workers `mine`, and returns what each of them told.
fn exchange<T>(control: &mut ControlPlane, mine: &[u8], decode: fn(&[u8]) -> Option<T>) -> Result<Vec<T>, OpenError> {
    let all = control.allgather(mine)?;
    let told = all.iter().enumerate();
    told.map(|(rank, bytes)| decode(bytes).ok_or(OpenError::BadAddress { rank: Rank(rank as u32) })).collect()
}

/// Whether the workers of this host have a core each. All of them judge alike.
fn has_own_core(placements: &[WorkerPlacement], mine: &WorkerPlacement) -> bool {
    let here = || placements.iter().filter(|p| p.host == mine.host);
    let mut processors: Vec<u32> = here().flat_map(|p| p.processors.iter().copied()).collect();
    processors.sort_unstable();
    processors.dedup();
    // A quota may allow less than the processors, and is one for all workers of the host.
    let quota = here().filter_map(|p| p.quota).min().map_or(usize::MAX, |quota| quota as usize);
    let cores = processors.len().min(quota);
    // No set of cores may hold more workers than it has cores (Hall's condition, for the sets that workers are bound
    // to).
    let within = |set: &[u32]| here().filter(|p| p.processors.iter().all(|core| set.contains(core))).count();
    here().count() <= cores && here().all(|p| within(&p.processors) <= p.processors.len())
}

/// What a pair may lack, as people read it.
const NO_MEMORY: &str = "no shared memory on this host";
const NO_SINGLE_COPY: &str = "no single copies of large messages";

/// What a worker could open of another one: its shared memory, and single copies of its memory.
const MEMORY: u8 = 1;
const SINGLE_COPY: u8 = 2;

/// What the workers of each worker's host have, given what each could open of each other one.
fn host_links(placements: &[WorkerPlacement], all_could: &[Vec<u8>]) -> Vec<HostLinks> {
    let could = |a: usize, b: usize| all_could[a].get(b).is_some_and(|could| could & MEMORY != 0);
    let mut of_host: BTreeMap<HostIdentity, HostLinks> = BTreeMap::new();
    let mut one = |mine: &WorkerPlacement| {
        *of_host.entry(mine.host).or_insert_with(|| {
            let here: Vec<usize> = (0..placements.len()).filter(|&r| placements[r].host == mine.host).collect();
            let pairs = || here.iter().flat_map(|&a| here.iter().map(move |&b| (a, b))).filter(|(a, b)| a != b);
            HostLinks { shared_memory: pairs().all(|(a, b)| could(a, b)), own_cores: has_own_core(placements, mine) }
        })
    };
    placements.iter().map(&mut one).collect()
}

impl Endpoint {
    /// Opens the endpoint of this worker. Collective: every worker of `control`'s job calls it.
    ///
    /// # Errors
    /// [`OpenError`] on every worker that cannot go on.
    pub fn open(mut control: ControlPlane, settings: EndpointSettings) -> Result<Endpoint, OpenError> {
        let (rank, size) = (control.rank(), control.size());
        let in_process = control.is_in_process();
        let mine = WorkerPlacement {
            location: control.location().map(str::to_owned),
            granted: control.granted(),
            ..WorkerPlacement::here()
        };
        let placements = exchange(&mut control, &mine.encode(), WorkerPlacement::decode)?;

        let others = || (0..size).filter(|&r| r != rank.0).map(Rank);
        let try_local = |peer: Rank| {
            settings.transport != TransportChoice::Tcp && placements[peer.index()].host.shares_memory_with(&mine.host)
        };
        let locals: Vec<Rank> = others().filter(|&p| try_local(p)).collect();
        // Nobody else uses one without peers; it has the doorbell.
        let alone = || LocalInbox::create(&[], rank, true);
        let mut no_memory = None;
        let inbox = match LocalInbox::create(&locals, rank, in_process || locals.is_empty()) {
            Ok(inbox) => inbox,
            // The others are told too: what follows are exchanges.
            Err(error) => {
                no_memory = Some(error.to_string());
                alone()?
            }
        };
        // The listener is opened even where shared memory should do: a pair may still fall back.
        let (listener, addresses) = if in_process || size == 1 || settings.transport == TransportChoice::SharedMemory {
            (None, Vec::new())
        } else {
            let (listener, addresses) =
                PeerListener::bind(&control.local_addresses()).map_err(|e| OpenError::Tcp(e.to_string()))?;
            (Some(listener), addresses)
        };
        let offers_memory = !locals.is_empty() && no_memory.is_none();
        let reach = PeerAddresses { inbox: offers_memory.then(|| inbox.address()), listener: addresses };
        let reaches = exchange(&mut control, &reach.encode(), PeerAddresses::decode)?;

        let mut lacks: Vec<Option<String>> = vec![None; size as usize];
        // What the kernel has told this worker, and the user does not want so: the rest follows from what peers say.
        let mut told = MissingTransports::default();
        let mut opened: Vec<(Rank, PeerInbox)> = Vec::new();
        for &peer in &locals {
            let offered = &reaches[peer.index()].inbox;
            let result = match (&no_memory, offered) {
                (Some(reason), _) => Err(reason.clone()),
                (None, Some(address)) => PeerInbox::open(address, rank).map_err(|e| e.to_string()),
                (None, None) => Err("it offers none".into()),
            };
            match result {
                Ok(inbox) => opened.push((peer, inbox)),
                Err(reason) if settings.transport == TransportChoice::SharedMemory => {
                    return Err(OpenError::NotLocal { rank: peer, reason });
                }
                Err(reason) => {
                    let reason = lacks[peer.index()].insert(format!("{NO_MEMORY}: {reason}"));
                    if no_memory.is_some() || offered.is_some() {
                        told.add(peer, reason);
                    }
                }
            }
        }
        let mut could = vec![0u8; size as usize];
        for (peer, inbox) in &opened {
            could[peer.index()] = match inbox.no_single_copy() {
                None => MEMORY | SINGLE_COPY,
                Some((reason, is_wanted)) => {
                    if !is_wanted {
                        told.add(*peer, &format!("{NO_SINGLE_COPY}: {reason}"));
                    }
                    MEMORY
                }
            };
        }
        could.extend(told.encode());
        let mut all_could = control.allgather(&could)?;
        let reports: Vec<Vec<u8>> =
            all_could.iter_mut().map(|could| could.split_off(could.len().min(size as usize))).collect();
        if rank == Rank(0) {
            missing_transports::tell(&reports.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
        let agreed = |peer: Rank, what: u8| {
            let theirs = all_could[peer.index()].get(rank.index()).copied().unwrap_or(0);
            could[peer.index()] & theirs & what != 0
        };
        for (peer, _) in opened.extract_if(.., |(peer, _)| !agreed(*peer, MEMORY)) {
            lacks[peer.index()] = Some(format!("{NO_MEMORY}: it cannot open this worker's"));
        }
        for (peer, inbox) in &mut opened {
            if !agreed(*peer, SINGLE_COPY) {
                inbox.refuse_single_copy();
            }
            if let Some((reason, _)) = inbox.no_single_copy() {
                lacks[peer.index()] = Some(format!("{NO_SINGLE_COPY}: {reason}"));
            }
        }

        let host_links = host_links(&placements, &all_could);
        let own_cores = host_links[rank.index()].own_cores;
        let spread = (!own_cores && !opened.is_empty())
            .then(|| CoreSpreading::new(inbox.place(), opened.iter().map(|(_, peer)| peer.place()).collect()));
        let mut transports: Vec<Box<dyn Transport>> = Vec::new();
        let mut routes = vec![None; size as usize];
        let doorbell = inbox.doorbell();
        if !opened.is_empty() {
            opened.iter().for_each(|(peer, _)| routes[peer.index()] = Some(transports.len()));
            transports.push(Box::new(LocalTransport::open(rank, inbox, opened)));
        }
        let remote: Vec<(Rank, Vec<std::net::SocketAddr>)> = others()
            .filter(|peer| routes[peer.index()].is_none())
            .map(|peer| (peer, reaches[peer.index()].listener.clone()))
            .collect();
        if let Some((peer, _)) = remote.first() {
            let Some(listener) = listener else {
                return Err(OpenError::NotLocal { rank: *peer, reason: "it is on another host".into() });
            };
            remote.iter().for_each(|(peer, _)| routes[peer.index()] = Some(transports.len()));
            let tcp = TcpTransport::open(rank, &remote, listener, control.key(), OPEN_TIMEOUT)
                .map_err(|e| OpenError::Tcp(e.to_string()))?;
            transports.push(Box::new(tcp));
        }
        // Nobody goes on before everybody can be reached, so that a failure to open is everybody's error.
        control.allgather(&[])?;

        let polls = if own_cores { POLLS_OWN_CORE } else { POLLS_SHARED_CORE };
        let faults = Arc::new(FaultRegistry::on(topology::hosts(&placements)));
        let mut engine = Engine::new(rank, transports, &routes, Arc::clone(&faults));
        if !own_cores {
            engine.copy_alone();
        }
        let bell = doorbell.bell();
        faults.set_wake(Box::new(move || bell.ring()));

        // The control thread starts before the endpoint exists: news in between waits in `early`.
        let target: Arc<OnceLock<Weak<EndpointState>>> = Arc::new(OnceLock::new());
        let early: Arc<Mutex<Vec<ControlEvent>>> = Arc::default();
        let handle = {
            let (target, early) = (Arc::clone(&target), Arc::clone(&early));
            control.start(Box::new(move |event| {
                let mut early = early.lock();
                match target.get() {
                    None => early.push(event),
                    Some(shared) => {
                        drop(early);
                        if let Some(shared) = shared.upgrade() {
                            shared.on_control(event);
                        }
                    }
                }
            }))?
        };
        let epoll_fd = engine.epoll_fds().first().copied();
        let shared = Arc::new_cyclic(|this| EndpointState {
            rank,
            size,
            engine: Mutex::new(engine),
            contenders: Default::default(),
            faults,
            doorbell,
            epoll_fd,
            polls,
            spread,
            placements,
            host_links,
            control: handle,
            settings,
            lacks,
            stall: Default::default(),
            background: BackgroundDriver::default(),
            this: this.clone(),
            in_process,
            origin: ForkOrigin::here(),
            closed: Mutex::new(false),
            numbered: Default::default(),
        });
        {
            // Whatever came early is handled before anything later can be: `early` is held while the target is set.
            let mut early = early.lock();
            target.set(Arc::downgrade(&shared)).expect("set once");
            early.drain(..).for_each(|event| shared.on_control(event));
        }
        BackgroundDriver::start(&shared);
        Ok(Endpoint(Arc::clone(&shared), Arc::new(JobMembership(shared))))
    }

    /// Endpoints of a job whose workers are threads of this process. Each must be used by a thread of its own.
    ///
    /// # Errors
    /// When memory or threads run out.
    pub fn in_process(size: u32) -> Result<Vec<Endpoint>, OpenError> {
        std::thread::scope(|scope| {
            let openers: Vec<_> = ControlPlane::in_process(size)
                .into_iter()
                .map(|control| scope.spawn(|| Endpoint::open(control, EndpointSettings::default())))
                .collect();
            openers.into_iter().map(|opener| opener.join().expect("opening does not panic")).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers that poll on a core another one needs take it from who could end their wait, and all must judge alike.
    #[test]
    fn a_core_of_its_own_is_one_that_no_other_worker_has_to_use() {
        let judged = |sets: &[&[u32]], quota: Option<u32>| {
            let one = |set: &&[u32]| WorkerPlacement { processors: set.to_vec(), quota, ..WorkerPlacement::here() };
            let placements: Vec<WorkerPlacement> = sets.iter().map(one).collect();
            let all: Vec<bool> = placements.iter().map(|mine| has_own_core(&placements, mine)).collect();
            assert!(all.iter().all(|own| *own == all[0]), "{sets:?}: {all:?}");
            all[0]
        };
        let four: &[u32] = &[0, 1, 2, 3];
        assert!(judged(&[four; 4], None));
        assert!(!judged(&[four; 5], None));
        assert!(judged(&[four; 2], Some(2)));
        assert!(!judged(&[four; 2], Some(1)), "both share the quota");
        assert!(judged(&[&[0], &[1]], None));
        assert!(!judged(&[&[0], &[1]], Some(1)), "a quota limits bound workers too");
        assert!(!judged(&[&[0], &[0], &[1, 2, 3]], None), "two share core 0");
        assert!(judged(&[&[0, 1], &[0, 1], &[2, 3]], None));
        assert!(!judged(&[&[0, 1], &[0, 1], &[0, 1], &[2, 3]], None));
    }

    /// Ranks that judged a host otherwise than its other ranks would choose other schedules, which do not fit together;
    /// a pair without shared memory would be taken for a hundred times as fast as it is.
    #[test]
    fn a_host_shares_memory_if_every_pair_on_it_does() {
        let here = || WorkerPlacement { processors: vec![0, 1], quota: None, ..WorkerPlacement::here() };
        let links = |could: [[u8; 3]; 3]| host_links(&[here(), here(), here()], &could.map(Vec::from));
        let shared = HostLinks { shared_memory: true, own_cores: false };
        assert_eq!(links([[0, 3, 3], [3, 0, 3], [3, 3, 0]]), [shared; 3]);
        assert_eq!(links([[0, 3, 3], [3, 0, 3], [3, 2, 0]]), [HostLinks { shared_memory: false, ..shared }; 3]);
        assert_eq!(host_links(&[here()], &[vec![0]]), [HostLinks::BEST], "who is alone lacks nothing");
    }
}

//! Opens an endpoint: decides which transport reaches which worker, so that both ends of every pair agree.
//!
//! Workers exchange over the control plane, in this order: where they run; the addresses of their shared memory and
//! their listeners; whose shared memory they could open. A pair uses shared memory only if both ends could open the
//! other's. All other pairs use TCP.
//!
//! | module          | what                                                    |
//! |-----------------|---------------------------------------------------------|
//! | `host_links`    | What is true for all pairs of workers on a host         |
//! | `shared_memory` | Which workers of this host share memory with this one   |
//! | `tcp`           | TCP to all other workers                                |

mod host_links;
mod shared_memory;
mod tcp;

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use host_links::host_links;
use shared_memory::SharedMemory;
use tcp::PeerListeners;

use super::background::BackgroundDriver;
use super::faults::FaultRegistry;
use super::{Endpoint, EndpointState, Engine, JobMembership, POLLS_OWN_CORE, POLLS_SHARED_CORE};
use crate::control::{ControlError, ControlEvent, ControlHandle, ControlPlane};
use crate::fork::ForkOrigin;
use crate::local::InboxAddress;
use crate::tcp::ConnectChoice;
use crate::topology::{self, WorkerPlacement};
use crate::{Rank, SegmentError, Transport};

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
    /// When pairs of workers that share no memory connect.
    pub connect: ConnectChoice,
    /// A wait longer than this is explained once; zero never explains.
    pub stall_warning: Duration,
}

impl Default for EndpointSettings {
    fn default() -> Self {
        EndpointSettings {
            transport: TransportChoice::Auto,
            connect: ConnectChoice::OnDemand,
            stall_warning: Duration::from_secs(10),
        }
    }
}

/// Why an endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The exchange between workers failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// This worker's own shared memory could not be created.
    #[error("shared memory: {0}")]
    Segment(#[from] SegmentError),
    /// A TCP connection could not be opened.
    #[error("tcp: {0}")]
    Tcp(String),
    /// Shared memory was requested but does not reach every worker.
    #[error("TIDEMILL_TRANSPORT=shm, but worker {rank} cannot be reached through shared memory: {reason}")]
    NotLocal {
        /// The worker.
        rank: Rank,
        /// The reason.
        reason: String,
    },
    /// A peer sent an address that this version does not understand.
    #[error("worker {rank} sent an invalid address; do all workers run the same version of Tidemill?")]
    BadAddress {
        /// The worker.
        rank: Rank,
    },
}

/// How workers can be reached, as they tell each other.
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
    shared_memory::fuzz(bytes);
    if let Some(reach) = PeerAddresses::decode(bytes) {
        assert!(reach.listener.len() <= bytes.len());
        assert!(PeerAddresses::decode(&reach.encode()).is_some_and(|again| again.listener == reach.listener));
    }
}

/// Sends `mine` to all workers, and returns what each of them sent.
fn exchange<T>(control: &mut ControlPlane, mine: &[u8], decode: fn(&[u8]) -> Option<T>) -> Result<Vec<T>, OpenError> {
    let all = control.allgather(mine)?;
    let told = all.iter().enumerate();
    told.map(|(rank, bytes)| decode(bytes).ok_or(OpenError::BadAddress { rank: Rank(rank as u32) })).collect()
}

impl Endpoint {
    /// Opens this worker's endpoint. Collective: every worker of `control`'s job calls it.
    ///
    /// # Errors
    /// [`OpenError`] on every worker that cannot continue.
    pub fn open(mut control: ControlPlane, settings: EndpointSettings) -> Result<Endpoint, OpenError> {
        let rank = control.rank();
        let placements = exchange_placements(&mut control)?;
        let mut memory = SharedMemory::create(&control, settings.transport, &placements)?;
        let listener = PeerListeners::bind(&control, settings.transport)?;
        let mine = PeerAddresses { inbox: memory.address(), listener: listener.addresses.clone() };
        let addresses = exchange(&mut control, &mine.encode(), PeerAddresses::decode)?;

        memory.open_peers(&addresses)?;
        let access = memory.agree(&mut control)?;
        let host_links = host_links(&placements, &access);
        let own_cores = host_links[rank.index()].own_cores;
        let spread = if own_cores { None } else { memory.core_spreading() };
        let doorbell = memory.doorbell();

        let mut routes = Routes::new(control.size());
        let lacks = memory.connect(&mut routes);
        listener.connect(&control, &addresses, settings.connect, &mut routes)?;
        // Nobody continues until all are open, so that every worker reports a failure to open.
        control.allgather(&[])?;

        let faults = Arc::new(FaultRegistry::on(topology::hosts(&placements)));
        let mut engine = Engine::new(rank, routes.transports, &routes.of_rank, Arc::clone(&faults));
        if !own_cores {
            engine.copy_alone();
        }
        let bell = doorbell.bell();
        faults.set_wake(Box::new(move || bell.ring()));

        let (size, in_process) = (control.size(), control.is_in_process());
        let events = ControlEvents::default();
        let control = events.start(control)?;
        let epoll_fd = engine.epoll_fds().first().copied();
        let state = Arc::new_cyclic(|this| EndpointState {
            rank,
            size,
            engine: Mutex::new(engine),
            contenders: Default::default(),
            faults,
            doorbell,
            epoll_fd,
            polls: if own_cores { POLLS_OWN_CORE } else { POLLS_SHARED_CORE },
            spread,
            placements,
            host_links,
            control,
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
        events.connect(&state);
        BackgroundDriver::start(&state);
        Ok(Endpoint(Arc::clone(&state), Arc::new(JobMembership(state))))
    }

    /// Opens the endpoints of a job whose workers are threads of this process. Each must be used by its own thread.
    ///
    /// # Errors
    /// If memory or threads run out.
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

/// Exchanges where each worker runs.
fn exchange_placements(control: &mut ControlPlane) -> Result<Vec<WorkerPlacement>, OpenError> {
    let mine = WorkerPlacement {
        location: control.location().map(str::to_owned),
        granted: control.granted(),
        ..WorkerPlacement::here()
    };
    exchange(control, &mine.encode(), WorkerPlacement::decode)
}

/// The transports of an endpoint, and which of them reaches which worker.
struct Routes {
    transports: Vec<Box<dyn Transport>>,
    /// By rank: an index into `transports`.
    of_rank: Vec<Option<usize>>,
}

impl Routes {
    fn new(size: u32) -> Self {
        Routes { transports: Vec::new(), of_rank: vec![None; size as usize] }
    }

    /// Adds the transport that reaches `peers`.
    fn add(&mut self, peers: impl IntoIterator<Item = Rank>, transport: Box<dyn Transport>) {
        peers.into_iter().for_each(|peer| self.of_rank[peer.index()] = Some(self.transports.len()));
        self.transports.push(transport);
    }
}

/// Passes events of the control plane to the endpoint. The control thread starts before the endpoint exists, so
/// events in between are kept.
#[derive(Clone, Default)]
struct ControlEvents {
    endpoint: Arc<OnceLock<Weak<EndpointState>>>,
    early: Arc<Mutex<Vec<ControlEvent>>>,
}

impl ControlEvents {
    /// Starts the control thread.
    fn start(&self, control: ControlPlane) -> Result<ControlHandle, ControlError> {
        let events = self.clone();
        control.start(Box::new(move |event| events.pass(event)))
    }

    fn pass(&self, event: ControlEvent) {
        let mut early = self.early.lock();
        match self.endpoint.get() {
            None => early.push(event),
            Some(endpoint) => {
                drop(early);
                if let Some(endpoint) = endpoint.upgrade() {
                    endpoint.on_control(event);
                }
            }
        }
    }

    /// Lets `endpoint` handle all events from now on, starting with the early ones.
    fn connect(&self, endpoint: &Arc<EndpointState>) {
        // Hold the lock until the early events are handled, so that no later one can be handled before them.
        let mut early = self.early.lock();
        self.endpoint.set(Arc::downgrade(endpoint)).expect("set once");
        early.drain(..).for_each(|event| endpoint.on_control(event));
    }
}

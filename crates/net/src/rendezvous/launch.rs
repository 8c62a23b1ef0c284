//! Joins the job that the launcher describes: finds rank 0's address and the secret where they are not given.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

use super::{JobSecret, JoinConfig, JoinError, join, pmi1, pmix, same_host};
use crate::control::ControlPlane;
use crate::environment::{LaunchContext, MeetingPoint};
use crate::{Rank, notice};

/// Joins the job that the environment of this process describes; a process started by hand is a job of one worker.
///
/// # Errors
/// [`JoinError`], which names the remedy.
pub fn join_from_environment() -> Result<ControlPlane, JoinError> {
    join_launched(LaunchContext::from_process()?)
}

/// Joins the job that `launch` describes.
///
/// # Errors
/// See [`JoinError`].
pub fn join_launched(launch: LaunchContext) -> Result<ControlPlane, JoinError> {
    let start = Instant::now();
    let deadline = start + launch.join_timeout;
    let mut config = JoinConfig::new(launch.rank, launch.size, &launch.job, JobSecret::random(), "");
    config.timeout = launch.join_timeout;
    config.failure_timeout = launch.failure_timeout;
    config.location = launch.location.clone();
    config.granted = launch.granted;
    config.control_fanout = launch.control_fanout;
    let is_root = launch.rank == Rank(0);
    let bootstrap = |reason: String| JoinError::Bootstrap { launcher: launch.launcher.to_string(), reason };
    // Lives until rank 0 has accepted all workers.
    let mut _server = None;
    match &launch.meeting {
        MeetingPoint::Alone => {}
        MeetingPoint::Given { root, secret, listen_fd } => {
            config.root = root.clone();
            config.secret = secret.clone();
            config.listener = listen_fd.map(inherited_listener).transpose().map_err(bootstrap)?;
        }
        MeetingPoint::Unprotected { root } => {
            if is_root {
                notice!(
                    Rank(0),
                    "the job has no secret: anyone who can connect to {root} and guess its parameters can take a \
                     worker's place; give all workers the same TIDEMILL_SECRET (`openssl rand -hex 32`)"
                );
            }
            config.root = root.clone();
            config.secret = JobSecret::from_public(&format!("{} {root}", launch.job));
        }
        MeetingPoint::SameHost { witness } => {
            if let Some(fd) = witness {
                config.job = format!("{} {}", launch.job, witness_pid(*fd).map_err(bootstrap)?);
            }
            if is_root {
                let card = publish_card(&mut config, true)?;
                let server = same_host::CardServer::start(&config.job, card);
                _server = Some(server.map_err(|e| match e.kind() {
                    std::io::ErrorKind::AddrInUse => {
                        bootstrap("another rank 0 of this job is running on this host".into())
                    }
                    _ => bootstrap(e.to_string()),
                })?);
            } else {
                let absent = |last| JoinError::NoRoot {
                    root: "its meeting point on this host".into(),
                    waited_s: launch.join_timeout.as_secs(),
                    last,
                };
                let card = same_host::fetch(&config.job, deadline).map_err(absent)?;
                read_card(&mut config, &card).map_err(bootstrap)?;
            }
        }
        MeetingPoint::Pmix | MeetingPoint::Pmi1 { .. } => {
            let card =
                if is_root { Some(publish_card(&mut config, launch.local_size == Some(launch.size))?) } else { None };
            let card_taken = match launch.meeting {
                MeetingPoint::Pmi1 { fd } => pmi1::exchange(fd, card.as_deref(), deadline),
                _ => pmix::exchange(card.as_deref(), deadline),
            };
            let card_taken = card_taken.map_err(|reason| {
                bootstrap(format!(
                    "{reason}; give every worker rank 0's host:port in TIDEMILL_ROOT and 64 random hexadecimal digits \
                     (`openssl rand -hex 32`) in TIDEMILL_SECRET, so that they meet there"
                ))
            })?;
            if !is_root {
                read_card(&mut config, &card_taken).map_err(bootstrap)?;
            }
        }
    }
    // Meeting took part of the time.
    config.timeout = deadline.saturating_duration_since(Instant::now());
    join(config)
}

/// On rank 0: binds a port, and returns its address and `config`'s secret, as text for the others' [`read_card`].
/// `within_host`: only for workers of this host.
///
/// # Errors
/// If no port can be bound.
pub fn publish_card(config: &mut JoinConfig, within_host: bool) -> Result<String, JoinError> {
    let (listener, addresses) = if within_host {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        (listener, vec![address])
    } else {
        let listener =
            TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
        let local = listener.local_addr()?;
        // A loopback address would only lead workers of other hosts to themselves; workers of this host can use the
        // others.
        let usable = |ip: &IpAddr| !ip.is_loopback() && (ip.is_ipv4() || local.is_ipv6());
        let addresses = crate::interfaces::addresses().into_iter().filter(usable);
        (listener, addresses.map(|ip| SocketAddr::new(ip, local.port())).collect())
    };
    let addresses: Vec<String> = addresses.iter().take(8).map(SocketAddr::to_string).collect();
    config.root = addresses.join(",");
    config.listener = Some(listener.into());
    Ok(format!("{} {}\n", config.root, config.secret.to_hex()))
}

/// On the others: takes rank 0's address and the secret from its card.
///
/// # Errors
/// If the text is not a card.
pub fn read_card(config: &mut JoinConfig, card: &str) -> Result<(), String> {
    let parts = card.trim_end().split_once(' ');
    let parts = parts.and_then(|(root, secret)| Some((root, JobSecret::from_hex(secret)?)));
    let (root, secret) = parts.ok_or("rank 0 did not publish an address and a secret")?;
    (config.root, config.secret) = (root.to_owned(), secret);
    Ok(())
}

fn inherited_listener(fd: RawFd) -> Result<OwnedFd, String> {
    let mut is_listening: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: writes an integer into `is_listening`; a number that is not a socket gives an error, which is checked.
    let rc = unsafe {
        let into = (&raw mut is_listening).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, into, &mut len)
    };
    if rc != 0 || is_listening != 1 {
        return Err(format!("TIDEMILL_LISTEN_FD={fd} is not a listening socket of this process"));
    }
    // SAFETY: an open descriptor that the launcher made for this worker, which nobody else in this process owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // It was inherited through one exec; it must not pass through another.
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC).map_err(|e| e.to_string())?;
    Ok(fd)
}

fn witness_pid(fd: RawFd) -> Result<i32, String> {
    let reason =
        || "PMI_FD is not the launcher's socket; was the program started through a wrapper that closes it?".to_owned();
    // SAFETY: asks the kernel about a number; an unused one gives an error, which is checked.
    if fd < 0 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(reason());
    }
    // SAFETY: the descriptor is open, and stays open: it is the launcher's, for the life of this process.
    same_host::witness(unsafe { BorrowedFd::borrow_raw(fd) }).ok_or_else(reason)
}

//! Meeting on one host without a launcher's help: rank 0 listens on an abstract Unix socket named after the job, and
//! gives its address and a fresh secret to processes of its own user.
//!
//! An abstract socket vanishes with its process, however the process ends, so nothing is left behind or goes stale.
//! The kernel tells each side the other's user, so a process of another user that connects to the name, or has taken
//! it, can neither learn nor send anything.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use sha2::{Digest, Sha256};

use crate::fork::PrivateFd;
use crate::threads::{poll_until, sleep, spawn_native};
use crate::{Rank, notice};

/// The longest card: a few addresses and a secret.
const CARD_BYTES_MAX: u64 = 4096;

/// How long either side waits for the other on a connection between two processes of one host.
const TALK_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the server checks whether it should end.
const ROUND: Duration = Duration::from_millis(20);

fn address(job: &str) -> io::Result<SocketAddr> {
    let user = rustix::process::getuid().as_raw();
    let digest = Sha256::digest(job.as_bytes());
    let digest: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("tidemill/{user}/{digest}"))
}

/// Whether the process at the other end runs as the same user.
fn is_ours(stream: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid == rustix::process::getuid())
}

/// The process at the other end of a Unix socket: the same one for all workers that a launcher started on this host.
pub(super) fn witness(fd: BorrowedFd<'_>) -> Option<i32> {
    let peer = rustix::net::sockopt::socket_peercred(fd).ok()?;
    Some(peer.pid.as_raw_nonzero().get())
}

/// Rank 0's side: hands out a card until dropped.
pub(super) struct CardServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CardServer {
    /// Serves `card` to this user's processes that know the job's name.
    pub(super) fn start(job: &str, card: String) -> io::Result<CardServer> {
        let listener = PrivateFd::new(UnixListener::bind_addr(&address(job)?)?);
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let serve = move || {
            while !stopped.load(Ordering::Relaxed) {
                let mut fds = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
                if !poll_until(&mut fds, Instant::now() + ROUND).unwrap_or(false) {
                    continue;
                }
                let Ok((mut stream, _)) = listener.accept() else { continue };
                if !is_ours(&stream) {
                    notice!(Rank(0), "rejected a process of another user at the meeting point of this job");
                    continue;
                }
                // A card fits into an empty socket's buffer, so nobody can delay the others.
                let _ = stream.set_nonblocking(true).and_then(|()| stream.write_all(card.as_bytes()));
            }
        };
        let thread = spawn_native("tidemill-meet".into(), serve)?;
        Ok(CardServer { stop, thread: Some(thread) })
    }
}

impl Drop for CardServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The others' side: fetches the card as soon as rank 0 serves it.
pub(super) fn fetch(job: &str, deadline: Instant) -> Result<String, String> {
    let mut pause = Duration::from_millis(2);
    loop {
        let error = match try_fetch(job) {
            Ok(card) => return Ok(card),
            Err(e) => e,
        };
        if Instant::now() + pause >= deadline {
            return Err(error.to_string());
        }
        sleep(pause).map_err(|e| e.to_string())?;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

fn try_fetch(job: &str) -> io::Result<String> {
    let stream = UnixStream::connect_addr(&address(job)?)?;
    if !is_ours(&stream) {
        return Err(io::Error::other("a process of another user listens at the meeting point of this job"));
    }
    stream.set_read_timeout(Some(TALK_TIMEOUT))?;
    let mut card = String::new();
    stream.take(CARD_BYTES_MAX).read_to_string(&mut card)?;
    if card.ends_with('\n') { Ok(card) } else { Err(io::Error::other("rank 0 was interrupted")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_fetched_while_served_and_a_second_rank_0_is_refused() {
        let job = format!("test {}", std::process::id());
        let soon = || Instant::now() + Duration::from_millis(50);
        assert!(fetch(&job, soon()).is_err());
        let server = CardServer::start(&job, "127.0.0.1:1 secret\n".into()).unwrap();
        assert_eq!(fetch(&job, Instant::now() + TALK_TIMEOUT).unwrap(), "127.0.0.1:1 secret\n");
        assert!(CardServer::start(&job, String::new()).is_err(), "a second rank 0 of one job");
        drop(server);
        assert!(fetch(&job, soon()).is_err(), "the name outlived the server");
        drop(CardServer::start(&job, String::new()).unwrap());
    }
}

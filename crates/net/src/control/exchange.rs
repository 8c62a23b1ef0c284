//! Exchanges at start-up, before the control plane has its thread: every worker's bytes go up to rank 0, and all of
//! them come down to every worker.
//!
//! A worker joins its own part with those that its children send, so each link carries one message up, with the parts
//! of a subtree, and one down, with all parts. In a job of N workers with parts of `b` bytes, a worker in a tree of
//! fan-out F sends F N b bytes; rank 0 of a star would send N N b.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::wire::{ControlKind, ControlLink, ControlMessage, MESSAGE_BYTES_MAX};
use super::{ControlError, TreeLinks};
use crate::Rank;
use crate::threads::poll_until;

/// How long the others wait for rank 0's verdict after its deadline.
const VERDICT_PATIENCE: Duration = Duration::from_secs(5);

/// How long a worker that ends waits for those that it has told why.
const DISMISSAL_PATIENCE: Duration = Duration::from_secs(1);

/// A worker's part of an exchange may always have this length, however many workers there are.
const PART_BYTES_MIN: usize = 16 << 10;

/// The longest part of a worker in a job of `size`.
pub(super) fn part_bytes_max(size: u32) -> usize {
    (MESSAGE_BYTES_MAX / size.max(1) as usize).max(PART_BYTES_MIN) - 4
}

/// One worker's state in an exchange.
struct Exchange<'a> {
    me: Rank,
    place: &'a mut TreeLinks,
    start: Instant,
    timeout: Duration,
}

/// What a child has sent so far.
#[derive(Default)]
struct ChildParts {
    bytes: Vec<u8>,
    complete: bool,
    /// The workers below it that it says are missing.
    waiting: Option<Vec<Rank>>,
}

/// Gives every worker what every worker passed in, by rank.
pub(super) fn allgather(
    place: &mut TreeLinks,
    me: Rank,
    mine: &[u8],
    timeout: Duration,
) -> Result<Vec<Vec<u8>>, ControlError> {
    let mut exchange = Exchange { me, place, start: Instant::now(), timeout };
    let outcome = exchange.run(mine);
    if let Err(error) = &outcome {
        let (kind, rank, text) = match error {
            ControlError::Lost { rank, reason } => (ControlKind::Lost, *rank, reason.clone()),
            ControlError::Failed { reason } => (ControlKind::Failed, Rank(0), reason.clone()),
            other => (ControlKind::Failed, Rank(0), other.to_string()),
        };
        let TreeLinks { children, others, .. } = &mut *exchange.place;
        dismiss(children.iter_mut().chain(others), kind, rank, text.as_bytes());
    }
    // Everybody has got rank 0's welcome and sends nothing more by these.
    place.others.clear();
    outcome
}

impl Exchange<'_> {
    fn run(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, ControlError> {
        let size = self.place.tree.size();
        let mut bytes = (mine.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(mine);
        bytes.extend(self.collect()?);
        let deadline = self.start + self.timeout + VERDICT_PATIENCE;
        if let (Some(up), Some(rank)) = (&mut self.place.up, self.place.tree.parent(self.me)) {
            queue_long(up, ControlKind::Gather, self.me, &bytes);
            bytes = await_gathered(up, rank, size, deadline, self.timeout)?;
        }
        let parts = split(&bytes, size);
        let from = self.place.tree.parent(self.me).unwrap_or(self.me);
        let malformed = || ControlError::Lost { rank: from, reason: "it sent a malformed exchange".into() };
        let parts = parts.ok_or_else(malformed)?;
        for link in &mut self.place.children {
            queue_long(link, ControlKind::Gathered, Rank(0), &bytes);
        }
        // The next exchange or the control thread will find a worker that ends now.
        flush_all(&mut self.place.children, deadline);
        Ok(parts)
    }

    /// Collects the parts of all workers below this one, concatenated.
    fn collect(&mut self) -> Result<Vec<u8>, ControlError> {
        let children: Vec<Rank> = self.place.tree.children(self.me).collect();
        let mut parts: Vec<ChildParts> = children.iter().map(|_| ChildParts::default()).collect();
        let mut told: Option<Vec<Rank>> = None;
        // Links may hold messages that were read earlier.
        let mut ready: Vec<usize> = (0..children.len()).collect();
        // Rank 0 decides for all workers when the time is up.
        let is_root = self.place.up.is_none();
        let deadline = self.start + self.timeout + if is_root { Duration::ZERO } else { VERDICT_PATIENCE };
        let half = self.start + self.timeout / 2;
        while !parts.iter().all(|child| child.complete) {
            for index in std::mem::take(&mut ready) {
                if let Err(error) = self.receive(index, children[index], &mut parts[index]) {
                    return Err(self.verdict(error));
                }
            }
            self.look_up()?;
            if parts.iter().all(|child| child.complete) {
                break;
            }
            let below = children.iter().zip(&parts).filter(|(_, child)| !child.complete);
            let missing: Vec<Rank> =
                below.flat_map(|(&rank, child)| child.waiting.clone().unwrap_or_else(|| vec![rank])).collect();
            let now = Instant::now();
            if now >= deadline {
                let missing = if is_root { missing } else { vec![Rank(0)] };
                return Err(ControlError::TimedOut { missing, waited_s: self.timeout.as_secs() });
            }
            if now >= half && told.as_ref() != Some(&missing) {
                self.tell_who_is_missing(&missing);
                told = Some(missing);
            }
            let awaited: Vec<usize> = (0..parts.len()).filter(|&index| !parts[index].complete).collect();
            let links = awaited.iter().map(|&index| &self.place.children[index]);
            let mut fds: Vec<_> = links.map(|link| PollFd::new(link, PollFlags::IN)).collect();
            fds.extend(self.place.up.iter().map(|up| PollFd::new(up, PollFlags::IN)));
            poll_until(&mut fds, if now < half { half } else { deadline })?;
            let answers = awaited.into_iter().zip(&fds);
            ready = answers.filter(|(_, fd)| !fd.revents().is_empty()).map(|(index, _)| index).collect();
        }
        Ok(parts.into_iter().flat_map(|child| child.bytes).collect())
    }

    /// Handles what a child has sent. Rank 0 learns of any error returned.
    fn receive(&mut self, index: usize, rank: Rank, child: &mut ChildParts) -> Result<(), ControlError> {
        let lost = |reason: String| ControlError::Lost { rank, reason };
        let subtree = self.place.tree.subtree(rank);
        let below = subtree.len() as u32;
        let bytes_max = below as usize * (part_bytes_max(self.place.tree.size()) + 4);
        while !child.complete {
            let Some(message) = self.place.children[index].receive().map_err(lost)? else { return Ok(()) };
            match message.kind {
                ControlKind::Gather | ControlKind::Piece => {
                    child.bytes.extend_from_slice(&message.payload);
                    child.complete = message.kind == ControlKind::Gather;
                    let is_sound = !child.complete || split(&child.bytes, below).is_some();
                    if child.bytes.len() > bytes_max || !is_sound {
                        return Err(lost("it sent a malformed part of an exchange".into()));
                    }
                }
                ControlKind::Waiting => {
                    let (ranks, _) = message.payload.as_chunks::<4>();
                    let ranks = ranks.iter().map(|rank| Rank(u32::from_le_bytes(*rank)));
                    child.waiting = Some(ranks.filter(|waiting| subtree.contains(&waiting.0)).collect());
                }
                ControlKind::Lost if message.rank != rank && subtree.contains(&message.rank.0) => {
                    return Err(ControlError::Lost { rank: message.rank, reason: message.text() });
                }
                // News of a leaf from before this worker's welcome. If the leaf has ended, its parent reports it lost.
                ControlKind::Ended | ControlKind::Attached
                    if self.me == Rank(0)
                        && child.bytes.is_empty()
                        && message.rank != rank
                        && subtree.contains(&message.rank.0) => {}
                other => return Err(lost(format!("it sent {other:?} where its part of an exchange was expected"))),
            }
        }
        Ok(())
    }

    /// Checks for bad news from the parent.
    fn look_up(&mut self) -> Result<(), ControlError> {
        let (Some(up), Some(rank)) = (&mut self.place.up, self.place.tree.parent(self.me)) else { return Ok(()) };
        let lost = |reason| ControlError::Lost { rank, reason };
        match up.receive().map_err(lost)? {
            None => Ok(()),
            Some(message) => Err(bad_news(message)
                .unwrap_or_else(|other| lost(format!("it sent {:?} before all had sent their parts", other.kind)))),
        }
    }

    /// Tells the parent which workers this one waits for. Rank 0 sees only its own children and would otherwise blame
    /// them.
    fn tell_who_is_missing(&mut self, missing: &[Rank]) {
        let Some(up) = &mut self.place.up else { return };
        let bytes: Vec<u8> = missing.iter().flat_map(|rank| rank.0.to_le_bytes()).collect();
        up.queue(ControlKind::Waiting, self.me, &bytes);
        let _ = up.flush();
    }

    /// The error that all workers report for one that this worker has found.
    fn verdict(&mut self, error: ControlError) -> ControlError {
        let (Some(up), Some(parent)) = (&mut self.place.up, self.place.tree.parent(self.me)) else { return error };
        let ControlError::Lost { rank, reason } = &error else { return error };
        up.queue(ControlKind::Lost, *rank, reason.as_bytes());
        let deadline = self.start + self.timeout + VERDICT_PATIENCE;
        await_word(up, parent, deadline, self.timeout).err().unwrap_or(error)
    }
}

/// The error, if the message announces one; otherwise the message.
fn bad_news(message: ControlMessage) -> Result<ControlError, ControlMessage> {
    match message.kind {
        ControlKind::Failed => Ok(ControlError::Failed { reason: message.text() }),
        ControlKind::Lost => Ok(ControlError::Lost { rank: message.rank, reason: message.text() }),
        _ => Err(message),
    }
}

/// Receives the parts of all workers from the parent.
fn await_gathered(
    up: &mut ControlLink,
    rank: Rank,
    size: u32,
    deadline: Instant,
    timeout: Duration,
) -> Result<Vec<u8>, ControlError> {
    let bytes_max = size as usize * (part_bytes_max(size) + 4);
    let mut bytes = Vec::new();
    loop {
        let message = await_word(up, rank, deadline, timeout)?;
        let lost = |reason| ControlError::Lost { rank, reason };
        match message.kind {
            ControlKind::Piece if bytes.len() + message.payload.len() <= bytes_max => bytes.extend(message.payload),
            ControlKind::Gathered if bytes.is_empty() => return Ok(message.payload),
            ControlKind::Gathered => {
                bytes.extend(message.payload);
                return Ok(bytes);
            }
            other => return Err(lost(format!("it sent {other:?} where the result of an exchange was expected"))),
        }
    }
}

/// Sends what is queued and waits for the next message from `rank`, turning bad news into errors.
pub(crate) fn await_word(
    link: &mut ControlLink,
    rank: Rank,
    deadline: Instant,
    timeout: Duration,
) -> Result<ControlMessage, ControlError> {
    let lost = |reason| ControlError::Lost { rank, reason };
    loop {
        // A failed write is not conclusive yet: what the peer sent before it closed the link is still to be read.
        let sent = link.flush().unwrap_or(true);
        if let Some(message) = link.receive().map_err(lost)? {
            return match bad_news(message) {
                Ok(error) => Err(error),
                Err(message) => Ok(message),
            };
        }
        let flags = if sent { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        if !poll_until(&mut [PollFd::new(link, flags)], deadline)? {
            return Err(ControlError::TimedOut { missing: vec![rank], waited_s: timeout.as_secs() });
        }
    }
}

/// Queues bytes that may exceed one message.
fn queue_long(link: &mut ControlLink, kind: ControlKind, rank: Rank, bytes: &[u8]) {
    let mut rest = bytes;
    while rest.len() > MESSAGE_BYTES_MAX {
        let (piece, behind) = rest.split_at(MESSAGE_BYTES_MAX);
        link.queue(ControlKind::Piece, rank, piece);
        rest = behind;
    }
    link.queue(kind, rank, rest);
}

/// Tells every worker bad news, as well as possible within a second.
pub(crate) fn tell(links: &mut [ControlLink], kind: ControlKind, rank: Rank, payload: &[u8]) {
    for link in links.iter_mut() {
        link.queue(kind, rank, payload);
    }
    flush_all(links, Instant::now() + Duration::from_secs(1));
}

/// Tells every worker bad news before this one closes the links to them: waits until they have hung up, for a second at
/// most. Closing a link with unread messages would discard what it has not sent.
pub(crate) fn dismiss<'a>(
    links: impl IntoIterator<Item = &'a mut ControlLink>,
    kind: ControlKind,
    rank: Rank,
    payload: &[u8],
) {
    let until = Instant::now() + DISMISSAL_PATIENCE;
    let mut told: Vec<&mut ControlLink> = links.into_iter().collect();
    told.iter_mut().for_each(|link| link.queue(kind, rank, payload));
    loop {
        told.retain_mut(|link| link.flush().is_ok() && !has_ended(link));
        let mut fds: Vec<PollFd<'_>> = told.iter().map(|link| PollFd::new(&**link, link.interest())).collect();
        if fds.is_empty() || !poll_until(&mut fds, until).unwrap_or(false) {
            return;
        }
    }
}

/// Discards what has arrived. Returns whether the link has ended.
pub(crate) fn has_ended(link: &mut ControlLink) -> bool {
    loop {
        match link.receive() {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

/// Sends everything queued; links that break or stay full until `deadline` are left as they are.
pub(crate) fn flush_all(links: &mut [ControlLink], deadline: Instant) {
    loop {
        let mut full: Vec<&ControlLink> = Vec::new();
        for link in links.iter_mut() {
            if matches!(link.flush(), Ok(false)) {
                full.push(link);
            }
        }
        if full.is_empty() {
            return;
        }
        let mut fds: Vec<_> = full.into_iter().map(|link| PollFd::new(link, PollFlags::OUT)).collect();
        if !poll_until(&mut fds, deadline).unwrap_or(false) {
            return;
        }
    }
}

/// Splits an exchange into its parts; `None` if it does not have `size` of them.
fn split(mut bytes: &[u8], size: u32) -> Option<Vec<Vec<u8>>> {
    let mut parts = Vec::new();
    for _ in 0..size {
        let (len, rest) = bytes.split_first_chunk::<4>()?;
        let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        parts.push(part.to_vec());
        bytes = rest;
    }
    bytes.is_empty().then_some(parts)
}

#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    for size in [0, 1, 3] {
        let parts = split(bytes, size);
        let len = |parts: Vec<Vec<u8>>| parts.iter().map(|part| part.len() + 4).sum::<usize>();
        assert!(parts.is_none_or(|parts| parts.len() == size as usize && len(parts) == bytes.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::PrivateFd;
    use std::net::{TcpListener, TcpStream};

    /// The table of a large job is longer than a message may be.
    #[test]
    fn a_long_exchange_goes_in_pieces() {
        let size = 1300;
        let part = |rank: usize| vec![rank as u8; 15_000 + rank];
        let encoded = |rank| [&(part(rank).len() as u32).to_le_bytes()[..], &part(rank)].concat();
        let bytes: Vec<u8> = (0..size).flat_map(encoded).collect();
        assert!(bytes.len() > MESSAGE_BYTES_MAX + 100);

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let [mut parent, mut child] = [listener.accept().unwrap().0, theirs].map(|stream| {
            stream.set_nonblocking(true).unwrap();
            ControlLink::new(PrivateFd::new(stream))
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        let sender = std::thread::spawn(move || {
            queue_long(&mut parent, ControlKind::Gathered, Rank(0), &bytes);
            flush_all(std::slice::from_mut(&mut parent), deadline);
        });
        let got = await_gathered(&mut child, Rank(0), size as u32, deadline, Duration::from_secs(60)).unwrap();
        let parts = split(&got, size as u32).unwrap();
        assert!(parts.into_iter().enumerate().all(|(rank, got)| got == part(rank)));
        sender.join().unwrap();
    }

    /// Rank 0 sees only its own children, and would blame one that itself waits.
    #[test]
    fn errors_name_the_missing_worker_and_not_one_that_waits_for_it() {
        use crate::rendezvous::{JobSecret, JoinConfig, join};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (root, secret) = (listener.local_addr().unwrap().to_string(), JobSecret::random());
        let join_one = |rank: u32| {
            let mut config = JoinConfig::new(Rank(rank), 7, "test", secret.clone(), &root);
            config.listener = (rank == 0).then(|| listener.try_clone().unwrap().into());
            config.control_fanout = Some(2);
            std::thread::spawn(move || join(config).unwrap())
        };
        let joining: Vec<_> = (0..7).map(join_one).collect();
        let mut controls: Vec<_> = joining.into_iter().map(|thread| thread.join().unwrap()).collect();
        let _absent = controls.remove(2);
        let timeout = Duration::from_secs(2);
        let exchanging: Vec<_> = controls
            .into_iter()
            .map(|control| {
                std::thread::spawn(move || {
                    let super::super::ControlLinks::Tree(mut place) = control.inner else { panic!("a tree") };
                    allgather(&mut place, control.rank, b"x", timeout).unwrap_err().to_string()
                })
            })
            .collect();
        for thread in exchanging {
            let text = thread.join().unwrap();
            assert!(text.contains("no word from worker(s) 2 within 2 s"), "{text}");
        }
    }
}

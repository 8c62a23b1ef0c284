//! Exchanges at start-up, before the control plane has its thread: every worker's bytes to rank 0, all of them to all.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::ControlError;
use super::wire::{ControlKind, ControlLink, ControlMessage};
use crate::Rank;
use crate::threads::poll_until;

/// How long after rank 0's deadline the others still wait for its verdict.
const VERDICT_PATIENCE: Duration = Duration::from_secs(5);

/// Rank 0's part.
pub(super) fn gather_at_hub(
    links: &mut [ControlLink],
    mine: &[u8],
    timeout: Duration,
) -> Result<Vec<Vec<u8>>, ControlError> {
    let deadline = Instant::now() + timeout;
    let mut parts: Vec<Option<Vec<u8>>> = vec![None; links.len()];
    let outcome = collect(links, &mut parts, deadline, timeout);
    if let Err(error) = outcome {
        let (kind, rank, text) = match &error {
            ControlError::Lost { rank, reason } => (ControlKind::Lost, *rank, reason.clone()),
            other => (ControlKind::Failed, Rank(0), other.to_string()),
        };
        tell(links, kind, rank, text.as_bytes());
        return Err(error);
    }
    let mut all = vec![mine.to_vec()];
    all.extend(parts.into_iter().map(|part| part.expect("collect filled every part")));
    let mut bytes = Vec::new();
    for part in &all {
        bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    for link in links.iter_mut() {
        link.queue(ControlKind::Gathered, Rank(0), &bytes);
    }
    // A worker that ends now is found by the next exchange or by the control thread.
    flush_all(links, deadline);
    Ok(all)
}

fn collect(
    links: &mut [ControlLink],
    parts: &mut [Option<Vec<u8>>],
    deadline: Instant,
    timeout: Duration,
) -> Result<(), ControlError> {
    loop {
        for (index, link) in links.iter_mut().enumerate() {
            if parts[index].is_some() {
                continue;
            }
            let rank = Rank(index as u32 + 1);
            match link.receive() {
                Ok(None) => {}
                Ok(Some(ControlMessage { kind: ControlKind::Gather, payload, .. })) => parts[index] = Some(payload),
                Ok(Some(other)) => {
                    let reason = format!("it sent {:?} where its part of an exchange was expected", other.kind);
                    return Err(ControlError::Lost { rank, reason });
                }
                Err(reason) => return Err(ControlError::Lost { rank, reason }),
            }
        }
        if parts.iter().all(Option::is_some) {
            return Ok(());
        }
        let waiting = links.iter().zip(parts.iter()).filter(|(_, part)| part.is_none());
        let mut fds: Vec<_> = waiting.map(|(link, _)| PollFd::new(link, PollFlags::IN)).collect();
        if !poll_until(&mut fds, deadline)? {
            let missing = (1..).zip(parts.iter()).filter(|(_, part)| part.is_none()).map(|(r, _)| Rank(r)).collect();
            return Err(ControlError::TimedOut { missing, waited_s: timeout.as_secs() });
        }
    }
}

/// Everybody else's part.
pub(super) fn gather_at_leaf(
    link: &mut ControlLink,
    me: Rank,
    size: u32,
    mine: &[u8],
    timeout: Duration,
) -> Result<Vec<Vec<u8>>, ControlError> {
    link.queue(ControlKind::Gather, me, mine);
    let message = await_hub(link, Instant::now() + timeout + VERDICT_PATIENCE, timeout)?;
    if message.kind != ControlKind::Gathered {
        let reason = format!("it sent {:?} where the result of an exchange was expected", message.kind);
        return Err(ControlError::Lost { rank: Rank(0), reason });
    }
    split(&message.payload, size)
        .ok_or_else(|| ControlError::Lost { rank: Rank(0), reason: "it sent a malformed exchange".into() })
}

/// Sends what is queued and waits for the next word of rank 0, turning its bad news into errors.
pub(crate) fn await_hub(
    link: &mut ControlLink,
    deadline: Instant,
    timeout: Duration,
) -> Result<ControlMessage, ControlError> {
    let lost = |reason| ControlError::Lost { rank: Rank(0), reason };
    loop {
        // A failed write is no news yet: what rank 0 said before it closed the link is still to be read.
        let sent = link.flush().unwrap_or(true);
        match link.receive().map_err(lost)? {
            None => {}
            Some(message) if message.kind == ControlKind::Failed => {
                return Err(ControlError::Failed { reason: message.text() });
            }
            Some(message) if message.kind == ControlKind::Lost => {
                return Err(ControlError::Lost { rank: message.rank, reason: message.text() });
            }
            Some(message) => return Ok(message),
        }
        let flags = if sent { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        if !poll_until(&mut [PollFd::new(link, flags)], deadline)? {
            return Err(ControlError::TimedOut { missing: vec![Rank(0)], waited_s: timeout.as_secs() });
        }
    }
}

/// Tells everybody bad news as well as it can within a second.
pub(crate) fn tell(links: &mut [ControlLink], kind: ControlKind, rank: Rank, payload: &[u8]) {
    for link in links.iter_mut() {
        link.queue(kind, rank, payload);
    }
    flush_all(links, Instant::now() + Duration::from_secs(1));
}

/// Sends all that is queued; links that break or stay full until `deadline` are left as they are.
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

/// Takes an exchange apart; `None` if it is not one of `size` workers.
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

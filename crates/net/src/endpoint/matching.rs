//! Matching: which arriving message belongs to which posted receive.
//!
//! A context is one communicator's point-to-point or collective traffic. Within it, a message matches a receive by
//! source, tag and (for collectives) sequence number; among several receives the earliest posted wins, and messages
//! from one source are considered in order of arrival (MPI 4.1 section 3.5).

use std::collections::VecDeque;

use super::ops::OpIndex;
use crate::{FrameHeader, Rank};

/// What a receive matches. `None` means any source or any tag.
#[derive(Clone, Copy, Debug)]
pub struct MatchPattern {
    /// The sender, or any.
    pub source: Option<Rank>,
    /// The tag, or any.
    pub tag: Option<i32>,
    /// The collective's sequence number; 0 for point to point.
    pub seq: u32,
}

impl MatchPattern {
    fn takes(&self, header: &FrameHeader) -> bool {
        self.seq == header.seq && self.tag.is_none_or(|tag| tag == header.tag)
    }
}

struct PostedReceive {
    op: OpIndex,
    pattern: MatchPattern,
    order: u64,
}

/// A message that arrived before its receive.
pub(super) struct UnexpectedMessage {
    pub header: FrameHeader,
    pub body: MessageBody,
    arrival: u64,
}

pub(super) enum MessageBody {
    /// Copied out of the transport.
    Eager(Vec<u8>),
    /// An eager message that a transport is still writing into `Engine`'s landing buffer for its source.
    Landing,
    /// A message that waits in its sender's memory.
    Offer { total_len: u64, addr: u64 },
}

#[derive(Default)]
struct SourceQueues {
    posted: VecDeque<PostedReceive>,
    unexpected: VecDeque<UnexpectedMessage>,
    /// Whether the source has finished with the communicator, so that no new messages of it arrive here.
    ended: bool,
}

/// One communicator's point-to-point or collective traffic.
#[derive(Default)]
pub(super) struct MatchContext {
    sources: Vec<SourceQueues>,
    posted_any: VecDeque<PostedReceive>,
    /// Orders posts and, separately, arrivals.
    counter: u64,
    /// Signatures of the most recent collectives started here, so that a different one is noticed when it arrives,
    /// even if none of our receives would ever match it. Indexed by `seq % RECENT`.
    recent: Vec<RecentCollective>,
    /// How many sources have ended.
    ended: u32,
    /// Whether all others have ended.
    all_ended: bool,
    /// Whether this worker has finished with the communicator.
    is_over: bool,
}

/// A collective that was started here.
#[derive(Clone, Copy, Default)]
struct RecentCollective {
    seq: u32,
    signature: u32,
    call: [u64; 2],
}

const RECENT: usize = 64;

impl MatchContext {
    fn source(&mut self, rank: Rank) -> &mut SourceQueues {
        if rank.index() >= self.sources.len() {
            self.sources.resize_with(rank.index() + 1, SourceQueues::default);
        }
        &mut self.sources[rank.index()]
    }

    pub(super) fn post(&mut self, op: OpIndex, pattern: MatchPattern) {
        self.counter += 1;
        let entry = PostedReceive { op, pattern, order: self.counter };
        match pattern.source {
            Some(rank) => self.source(rank).posted.push_back(entry),
            None => self.posted_any.push_back(entry),
        }
    }

    /// Removes and returns the earliest posted receive that matches `header` from `src`.
    pub(super) fn take_posted(&mut self, src: Rank, header: &FrameHeader) -> Option<OpIndex> {
        let any = self.posted_any.iter().position(|p| p.pattern.takes(header));
        let source = self.source(src);
        let exact = source.posted.iter().position(|p| p.pattern.takes(header));
        let (exact_order, exact_at) = match exact {
            Some(at) => (source.posted[at].order, at),
            None => (u64::MAX, 0),
        };
        match any {
            Some(at) if self.posted_any[at].order < exact_order => self.posted_any.remove(at).map(|p| p.op),
            _ if exact_order != u64::MAX => self.source(src).posted.remove(exact_at).map(|p| p.op),
            _ => None,
        }
    }

    pub(super) fn unpost(&mut self, op: OpIndex) -> bool {
        let lists = self.sources.iter_mut().map(|s| &mut s.posted).chain(std::iter::once(&mut self.posted_any));
        for list in lists {
            if let Some(at) = list.iter().position(|p| p.op == op) {
                list.remove(at);
                return true;
            }
        }
        false
    }

    pub(super) fn posted_source(&self, op: OpIndex) -> Option<Rank> {
        self.sources.iter().enumerate().find_map(|(r, s)| s.posted.iter().any(|p| p.op == op).then_some(Rank(r as u32)))
    }

    /// Withdraws the receives posted for `source` alone or, for `None`, those for any source.
    pub(super) fn drain_posted(&mut self, source: Option<Rank>) -> Vec<OpIndex> {
        let list = match source {
            Some(rank) => &mut self.source(rank).posted,
            None => &mut self.posted_any,
        };
        list.drain(..).map(|p| p.op).collect()
    }

    /// Withdraws all receives.
    pub(super) fn drain_all_posted(&mut self) -> Vec<OpIndex> {
        let of_sources = self.sources.iter_mut().flat_map(|source| source.posted.drain(..));
        of_sources.chain(self.posted_any.drain(..)).map(|posted| posted.op).collect()
    }

    /// Records that `source`, one of `size` ranks, has finished with the communicator. Withdraws the receives that
    /// would wait for it in vain.
    pub(super) fn source_ended(&mut self, source: Rank, size: u32) -> Vec<OpIndex> {
        if std::mem::replace(&mut self.source(source).ended, true) {
            return Vec::new();
        }
        self.ended += 1;
        self.all_ended = self.ended + 1 == size;
        let mut over = self.drain_posted(Some(source));
        if self.all_ended {
            over.extend(self.drain_posted(None));
        }
        over
    }

    /// A source that has ended, if that leaves nobody who could send to a receive from `source`; `None` means any.
    pub(super) fn ended(&self, source: Option<Rank>) -> Option<Rank> {
        let has_ended = |rank: &Rank| self.sources.get(rank.index()).is_some_and(|source| source.ended);
        match source {
            Some(rank) => Some(rank).filter(has_ended),
            None if self.all_ended => (0..self.sources.len() as u32).map(Rank).find(has_ended),
            None => None,
        }
    }

    /// Records that this worker has finished with the communicator. Takes the messages that wait for an answer, which
    /// will not come.
    pub(super) fn end(&mut self) -> Vec<(Rank, FrameHeader)> {
        self.is_over = true;
        let mut offers = Vec::new();
        for (rank, source) in (0..).map(Rank).zip(&mut self.sources) {
            source.unexpected.retain(|message| {
                let is_offer = matches!(message.body, MessageBody::Offer { .. });
                if is_offer {
                    offers.push((rank, message.header));
                }
                !is_offer
            });
        }
        offers
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) fn push_unexpected(&mut self, src: Rank, header: FrameHeader, body: MessageBody) {
        self.counter += 1;
        let arrival = self.counter;
        self.source(src).unexpected.push_back(UnexpectedMessage { header, body, arrival });
    }

    /// Completes the most recent message of `src`, which was landing.
    pub(super) fn landed(&mut self, src: Rank, data: Vec<u8>) {
        let entry = self.source(src).unexpected.back_mut().expect("a landing message is in the list");
        debug_assert!(matches!(entry.body, MessageBody::Landing));
        entry.body = MessageBody::Eager(data);
    }

    /// Removes the message of `src` that has just landed, because it goes to a receive instead.
    pub(super) fn forget_landing(&mut self, src: Rank) {
        let entry = self.source(src).unexpected.pop_back();
        debug_assert!(entry.is_some_and(|e| matches!(e.body, MessageBody::Landing)));
    }

    /// All messages that nobody has received, with their senders.
    pub(super) fn into_unexpected(self) -> impl Iterator<Item = (Rank, UnexpectedMessage)> {
        let sources = (0..).map(Rank).zip(self.sources);
        sources.flat_map(|(rank, source)| source.unexpected.into_iter().map(move |message| (rank, message)))
    }

    fn find_unexpected(&mut self, pattern: &MatchPattern) -> Option<(Rank, usize)> {
        // A message that is still landing is not available yet: matching waits for it, and no later message of the
        // same source may overtake it.
        let ready = |source: &SourceQueues| {
            let at = source.unexpected.iter().position(|u| pattern.takes(&u.header))?;
            (!matches!(source.unexpected[at].body, MessageBody::Landing)).then_some(at)
        };
        match pattern.source {
            Some(rank) => ready(self.source(rank)).map(|at| (rank, at)),
            None => {
                let mut best: Option<(u64, Rank, usize)> = None;
                for (r, source) in self.sources.iter().enumerate() {
                    if let Some(at) = ready(source) {
                        let arrival = source.unexpected[at].arrival;
                        if best.is_none_or(|(b, _, _)| arrival < b) {
                            best = Some((arrival, Rank(r as u32), at));
                        }
                    }
                }
                best.map(|(_, rank, at)| (rank, at))
            }
        }
    }

    pub(super) fn take_unexpected(&mut self, pattern: &MatchPattern) -> Option<(Rank, UnexpectedMessage)> {
        let (rank, at) = self.find_unexpected(pattern)?;
        self.source(rank).unexpected.remove(at).map(|u| (rank, u))
    }

    /// The source, header and length of a message, which stays in the queue.
    pub(super) fn peek_unexpected(&mut self, pattern: &MatchPattern) -> Option<(Rank, FrameHeader, u64)> {
        let (rank, at) = self.find_unexpected(pattern)?;
        let message = &self.source(rank).unexpected[at];
        let len = match &message.body {
            MessageBody::Eager(data) => data.len() as u64,
            MessageBody::Offer { total_len, .. } => *total_len,
            MessageBody::Landing => unreachable!("find_unexpected skips landing messages"),
        };
        Some((rank, message.header, len))
    }

    /// Records that collective `seq` with `signature` begins here, and returns the sender of an early message that
    /// belongs to another call with the same number.
    pub(super) fn begin_collective(&mut self, seq: u32, signature: u32, call: [u64; 2]) -> Option<Rank> {
        if self.recent.is_empty() {
            self.recent.resize(RECENT, RecentCollective::default());
        }
        self.recent[seq as usize % RECENT] = RecentCollective { seq, signature, call };
        self.sources.iter().enumerate().find_map(|(r, source)| {
            let differs = source.unexpected.iter().any(|u| u.header.seq == seq && u.header.signature != signature);
            differs.then_some(Rank(r as u32))
        })
    }

    /// The call that was started here as number `seq`, if it was recent.
    pub(super) fn call(&self, seq: u32) -> Option<[u64; 2]> {
        self.recent.iter().find(|r| r.seq == seq && seq != 0).map(|r| r.call)
    }

    /// Whether a message of collective `header.seq` contradicts what was started here under that number.
    pub(super) fn contradicts(&self, header: &FrameHeader) -> bool {
        header.seq != 0
            && !self.recent.is_empty()
            && matches!(self.recent[header.seq as usize % RECENT],
                        RecentCollective { seq, signature, .. } if seq == header.seq && signature != header.signature)
    }
}

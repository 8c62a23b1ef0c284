//! Parcels: messages of any length with attached arrays, which land directly in memory of their own.
//!
//! Made for languages that send objects: the message is the object without its large arrays, and the arrays follow as
//! they are. The receiver need not know any length or be waiting: a receive progresses by itself until the last array
//! has arrived, so two workers may send to each other at the same time.
//!
//! ```text
//!  without arrays   | body, whose first byte is not 0 |
//!  otherwise        | 0 | key: i32 | arrays: u32 | their lengths: u64 each | body |
//! ```
//!
//! The arrays travel in order as hidden messages under the key, which is negative and chosen by the sender.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tidemill_net::{Engine, EngineTask, GroupId, MatchPattern, MemoryRegion, NetError, ProbedMessage, Rank};

const PREFIX_BYTES: usize = 9;

/// The result of receiving a parcel.
#[derive(Debug, Default)]
pub struct Parcel {
    /// The body.
    pub body: Vec<u8>,
    /// The attached arrays.
    pub arrays: Vec<Vec<u8>>,
    /// The sender; [`crate::Communicator::rank_of`] gives its rank.
    pub source: Option<Rank>,
    /// The tag.
    pub tag: i32,
    /// Bytes of the message itself, as reported by probes.
    pub message_bytes: u64,
}

/// Where a receive leaves its parcel.
#[derive(Clone, Default)]
pub struct ParcelSlot(Arc<SlotState>);

#[derive(Default)]
struct SlotState {
    parcel: Mutex<Option<Parcel>>,
    matched: AtomicBool,
    cancelled: AtomicBool,
}

impl ParcelSlot {
    /// The parcel, once its request is over. Returned only once.
    pub fn take(&self) -> Option<Parcel> {
        self.0.parcel.lock().take()
    }

    /// Withdraws the receive unless a message has already matched it. Returns whether that succeeded.
    pub fn cancel(&self) -> bool {
        self.0.cancelled.store(true, Ordering::SeqCst);
        !self.0.matched.load(Ordering::SeqCst)
    }
}

/// The message of a parcel: `body`, preceded by the lengths of the arrays that follow. Without arrays, the message is
/// the body itself, unless it starts with a zero byte.
pub fn encode(body: &[u8], key: i32, lengths: &[usize]) -> Vec<u8> {
    if lengths.is_empty() && body.first() != Some(&0) {
        return body.to_vec();
    }
    let mut message = Vec::with_capacity(PREFIX_BYTES + 8 * lengths.len() + body.len());
    message.push(0);
    message.extend_from_slice(&key.to_le_bytes());
    message.extend_from_slice(&(lengths.len() as u32).to_le_bytes());
    lengths.iter().for_each(|len| message.extend_from_slice(&(*len as u64).to_le_bytes()));
    message.extend_from_slice(body);
    message
}

/// Key, lengths of the arrays, and the start of the body.
pub(crate) fn decode(message: &[u8]) -> Option<(i32, Vec<u64>, usize)> {
    if message.first() != Some(&0) {
        return Some((0, Vec::new(), 0));
    }
    let key = i32::from_le_bytes(message.get(1..5)?.try_into().ok()?);
    let count = u32::from_le_bytes(message.get(5..PREFIX_BYTES)?.try_into().ok()?) as usize;
    let end = PREFIX_BYTES.checked_add(count.checked_mul(8)?)?;
    let lengths = message.get(PREFIX_BYTES..end)?.chunks_exact(8);
    let lengths = lengths.map(|c| u64::from_le_bytes(c.try_into().expect("eight bytes"))).collect();
    (key < 0).then_some((key, lengths, end))
}

/// Memory for `len` bytes, a length that a peer has supplied.
fn room(len: u64, from: Rank) -> Result<Vec<u8>, NetError> {
    let mut room = Vec::new();
    let refused = || NetError::Operation(format!("not enough memory for the {len} bytes that worker {from} sends"));
    room.try_reserve_exact(usize::try_from(len).map_err(|_| refused())?).map_err(|_| refused())?;
    Ok(room)
}

/// The spare capacity that `room` reserved.
fn region(room: &mut Vec<u8>, len: u64) -> MemoryRegion {
    MemoryRegion { ptr: room.as_mut_ptr(), len: len as usize }
}

enum ParcelStage {
    Matching,
    Message(GroupId, u64),
    Arrays(GroupId),
}

/// The contexts of a communicator's messages, and of the attached arrays.
#[derive(Clone, Copy)]
pub(crate) struct ParcelContexts {
    pub messages: u32,
    pub hidden: u32,
}

/// A receive under way.
pub(crate) struct ParcelReceive {
    /// Contexts of the communicator, which the task must not own: when the engine drops the task, the engine is locked,
    /// and the end of a communicator locks the engine.
    contexts: ParcelContexts,
    pattern: MatchPattern,
    matched: Option<ProbedMessage>,
    stage: ParcelStage,
    source: Rank,
    lengths: Vec<u64>,
    parcel: Parcel,
    slot: ParcelSlot,
}

impl ParcelReceive {
    pub(crate) fn new(
        contexts: ParcelContexts,
        pattern: MatchPattern,
        matched: Option<ProbedMessage>,
        slot: ParcelSlot,
    ) -> Self {
        let source = pattern.source.unwrap_or(Rank(0));
        let (lengths, parcel) = Default::default();
        ParcelReceive { contexts, pattern, matched, stage: ParcelStage::Matching, source, lengths, parcel, slot }
    }

    /// Removes the message from matching, if it has arrived.
    fn match_message(&mut self, engine: &mut Engine) -> Option<Result<(), NetError>> {
        let matched = match self.matched.take() {
            Some(matched) => matched,
            None => {
                // In this order, so that either the cancel or the match wins, never both.
                self.slot.0.matched.store(true, Ordering::SeqCst);
                if self.slot.0.cancelled.load(Ordering::SeqCst) {
                    return Some(Ok(()));
                }
                match engine.take_matched(self.contexts.messages, &self.pattern) {
                    Some(matched) => matched,
                    None => {
                        self.slot.0.matched.store(false, Ordering::SeqCst);
                        return engine.never(self.contexts.messages, &self.pattern).map(Err);
                    }
                }
            }
        };
        let status = matched.status();
        self.source = status.source;
        self.parcel.source = Some(status.source);
        (self.parcel.tag, self.parcel.message_bytes) = (status.tag, status.len);
        match room(status.len, status.source) {
            Ok(body) => self.parcel.body = body,
            Err(error) => return Some(Err(error)),
        }
        let group = engine.new_group();
        // SAFETY: this task owns the memory and lives until the group is complete, and nothing touches `body` before
        // that.
        unsafe { engine.post_matched(group, matched, region(&mut self.parcel.body, status.len)) };
        self.stage = ParcelStage::Message(group, status.len);
        None
    }

    /// The message has arrived: posts receives for its arrays. Returns whether there are any.
    fn post_arrays(&mut self, engine: &mut Engine) -> Result<Option<GroupId>, NetError> {
        let nonsense = || NetError::Operation(format!("worker {} sent no parcel, but one was expected", self.source));
        let (key, lengths, start) = decode(&self.parcel.body).ok_or_else(nonsense)?;
        self.parcel.body.drain(..start);
        if lengths.is_empty() {
            return Ok(None);
        }
        self.parcel.arrays = lengths.iter().map(|&len| room(len, self.source)).collect::<Result<_, _>>()?;
        let group = engine.new_group();
        let pattern = MatchPattern { source: Some(self.source), tag: Some(key), seq: 0 };
        for (array, &len) in self.parcel.arrays.iter_mut().zip(&lengths) {
            // SAFETY: as for the message.
            unsafe { engine.post_recv(group, self.contexts.hidden, pattern, region(array, len)) };
        }
        self.lengths = lengths;
        Ok(Some(group))
    }
}

impl EngineTask for ParcelReceive {
    fn step(&mut self, engine: &mut Engine) -> Option<Result<(), NetError>> {
        if matches!(self.stage, ParcelStage::Matching)
            && let Some(over) = self.match_message(engine)
        {
            return Some(over);
        }
        if let ParcelStage::Message(group, len) = self.stage {
            if !engine.is_complete(group) {
                return None;
            }
            if let Err(error) = engine.take(group) {
                return Some(Err(error));
            }
            // SAFETY: `len` bytes have just been received into the capacity.
            unsafe { self.parcel.body.set_len(len as usize) };
            match self.post_arrays(engine) {
                Ok(Some(group)) => self.stage = ParcelStage::Arrays(group),
                Ok(None) => {
                    *self.slot.0.parcel.lock() = Some(std::mem::take(&mut self.parcel));
                    return Some(Ok(()));
                }
                Err(error) => return Some(Err(error)),
            }
        }
        if let ParcelStage::Arrays(group) = self.stage {
            if !engine.is_complete(group) {
                return None;
            }
            if let Err(error) = engine.take(group) {
                return Some(Err(error));
            }
            for (array, &len) in self.parcel.arrays.iter_mut().zip(&self.lengths) {
                // SAFETY: as above. A sender that announces one length and sends less is not one of ours, and the
                // memory is allocated anyway.
                unsafe { array.set_len(len as usize) };
            }
            *self.slot.0.parcel.lock() = Some(std::mem::take(&mut self.parcel));
            return Some(Ok(()));
        }
        None
    }

    fn waiting_for(&self, engine: &Engine) -> Vec<Option<Rank>> {
        match self.stage {
            ParcelStage::Matching => vec![self.pattern.source],
            ParcelStage::Message(group, _) | ParcelStage::Arrays(group) => engine.waiting_for(group),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A misread length or key would make a receiver wait forever, or allocate memory for data that is never sent.
    #[test]
    fn messages_are_decoded_as_they_were_encoded() {
        let message = encode(b"body", -7, &[3, 1 << 40]);
        let (key, lengths, start) = decode(&message).unwrap();
        assert_eq!((key, lengths.as_slice(), &message[start..]), (-7, &[3, 1 << 40][..], &b"body"[..]));
        assert_eq!(encode(b"body", -7, &[]), b"body");
        assert_eq!(decode(&encode(b"\0body", -7, &[])), Some((-7, vec![], PREFIX_BYTES)));
        assert_eq!(decode(b"body"), Some((0, vec![], 0)));
    }

    /// Every byte comes from the peer: none may lead out of bounds.
    #[test]
    fn nonsense_is_refused() {
        let message = encode(b"", -7, &[1, 2, 3]);
        for len in 1..message.len() {
            assert_eq!(decode(&message[..len]), None, "{len}");
        }
        assert_eq!(decode(&[0, 0, 0, 0, 0x80, 0xff, 0xff, 0xff, 0xff, 1]), None);
        assert_eq!(decode(&encode(b"", 7, &[1])), None, "keys are negative");
    }
}

//! The wire format between workers: frames, each a header and a body, several per message.
//!
//! ```text
//!  0     4     8     12    16      20      24    32     40     48         56       64
//!  | magic | kind | run | edge | source | target | seq | rows | length | checksum | 0 | body ... | 0 to a multiple of 64 |
//! ```
//!
//! Little endian. The checksum (XXH3) covers header and body; a frame that is read on the worker that wrote it may have
//! none. A frame begins at a multiple of 64 bytes of its message, so a body can be used in place. The body of a batch
//! is a piece of an Arrow IPC stream without its schema, which both ends know from the graph; a dictionary is sent when
//! it changes, not with every batch.

mod codec;

use std::hash::Hasher;
use std::mem::MaybeUninit;

use arrow::buffer::Buffer;
use twox_hash::XxHash3_64;

use crate::frame_buffers::FrameBuffer;

pub(crate) use codec::compact_column;
pub use codec::{BatchDecoder, BatchEncoder, BodyPiece};

/// Bytes of a header, and what frames are aligned to.
pub const HEADER_BYTES: usize = 64;
/// Changes when the layout does.
const MAGIC: u32 = u32::from_le_bytes(*b"TMD1");

/// Of a body so much is copied and hashed at a time: the hash finds it in the cache.
const HASHED_BYTES: usize = 16 << 10;

/// Larger bodies are not made: batches are cut long before.
const BODY_BYTES_MAX: u64 = 1 << 40;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireKind {
    /// Rows.
    Batch,
    /// The stream from `source` to `target` is over: `seq` blocks with `rows` rows were sent.
    End,
    /// Behind `seq` blocks: all rows of event times before `rows` have been sent.
    Watermark,
    /// Behind `seq` blocks: nothing comes for now.
    Idle,
    /// Behind `seq` blocks: the body is a barrier.
    Barrier,
    /// `rows` bytes of the stream from `source` to `target` have been taken.
    Credit,
    /// Nothing more of the stream from `source` to `target` is wanted; its end still is.
    Stop,
    /// `rows` says how far the sender is, in units of the run's own.
    Progress,
    /// The body is what the sender says of itself, for worker 0: it means what the program says.
    Status,
    /// Worker 0 asks the sources for the barrier in the body.
    Inject,
    /// Worker 0 has the barrier of epoch `rows` overtake rows.
    Unalign,
    /// What a copy of the sender has saved, for worker 0: the body is a report.
    Saved,
    /// Worker 0 has made the checkpoint of epoch `rows` durable.
    Durable,
    /// A task has failed, here or elsewhere: give up, and pass this on.
    Abort,
    /// Round `rows` of the end of the run: the sender's part is over, and those of all it has heard of in rounds
    /// before. A body is the first fault among them, and whose it is.
    Finish,
    /// A frame of `rows` bytes lies at `seq` of the memory that the sender lends.
    Lent,
    /// What was lent at `seq` of the receiver's memory is not needed any more.
    Returned,
    /// A worker's counters, for worker 0. The body holds what has changed since the last such frame.
    Measured,
}

const KINDS: [WireKind; 18] = [
    WireKind::Batch,
    WireKind::End,
    WireKind::Watermark,
    WireKind::Idle,
    WireKind::Barrier,
    WireKind::Credit,
    WireKind::Stop,
    WireKind::Progress,
    WireKind::Status,
    WireKind::Inject,
    WireKind::Unalign,
    WireKind::Saved,
    WireKind::Durable,
    WireKind::Abort,
    WireKind::Finish,
    WireKind::Lent,
    WireKind::Returned,
    WireKind::Measured,
];

/// A frame's header, but for what belongs to the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireHeader {
    /// What the frame is.
    pub kind: WireKind,
    /// Which run of the graph runner; one of an earlier run is late, one of a later run a bug or a stranger.
    pub run: u32,
    /// The edge, by its number in the flow.
    pub edge: u32,
    /// The sending copy.
    pub source: u32,
    /// The receiving copy; for a broadcast the receiving worker, or `u32::MAX` for all.
    pub target: u32,
    /// The number of the block in its stream.
    pub seq: u64,
    /// How many rows the body has; of other kinds than batches see [`WireKind`].
    pub rows: u64,
}

impl WireHeader {
    /// A header of this kind, all else 0.
    #[inline]
    pub fn new(kind: WireKind, run: u32) -> Self {
        WireHeader { kind, run, edge: 0, source: 0, target: 0, seq: 0, rows: 0 }
    }

    fn encode(&self, len: u64) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let kind = KINDS.iter().position(|&k| k == self.kind).expect("every kind is in the list") as u32;
        for (at, word) in [MAGIC, kind, self.run, self.edge, self.source, self.target].into_iter().enumerate() {
            bytes[at * 4..at * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        for (at, word) in [self.seq, self.rows, len].into_iter().enumerate() {
            bytes[24 + at * 8..32 + at * 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// What the hash of a body begins with, so that it is its header's, too.
fn seed(header: &[u8]) -> u64 {
    XxHash3_64::oneshot(header)
}

/// A frame that is being written, piece by piece.
pub struct FrameWriter {
    room: FrameBuffer,
    /// How much is written.
    at: usize,
    body_len: usize,
    /// Not where others read it from this worker's memory: nothing can happen to it on a way that it does not take.
    hasher: Option<XxHash3_64>,
}

impl FrameWriter {
    /// A frame whose body has so many bytes, in a room for so many.
    pub fn new(room: impl FnOnce(usize) -> FrameBuffer, header: &WireHeader, body_len: usize) -> Self {
        let room = room((HEADER_BYTES + body_len).next_multiple_of(HEADER_BYTES));
        let header_bytes = header.encode(body_len as u64);
        let hasher = (!room.is_read_in_place()).then(|| XxHash3_64::with_seed(seed(&header_bytes[..48])));
        let mut draft = FrameWriter { room, at: 0, body_len, hasher: None };
        draft.put(&header_bytes);
        FrameWriter { hasher, ..draft }
    }

    /// Writes the next bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(HASHED_BYTES) {
            self.room.spare()[self.at..][..piece.len()].write_copy_of_slice(piece);
            self.at += piece.len();
            if let Some(hasher) = &mut self.hasher {
                hasher.write(piece);
            }
        }
    }

    /// The next `len` bytes, all of which `fill` writes.
    pub fn fill(&mut self, len: usize, fill: impl FnOnce(&mut [MaybeUninit<u8>])) {
        let out = &mut self.room.spare()[self.at..][..len];
        fill(out);
        self.at += len;
        if let Some(hasher) = &mut self.hasher {
            // SAFETY: they have just been written.
            hasher.write(unsafe { out.assume_init_ref() });
        }
    }

    /// The whole frame.
    ///
    /// # Panics
    /// If the body is not as long as it was said to be.
    pub fn finish(mut self) -> Frame {
        assert_eq!(self.at, HEADER_BYTES + self.body_len, "the body has a different length");
        let sum = self.hasher.take().map_or(0, |hasher| hasher.finish());
        self.room.spare()[48..56].write_copy_of_slice(&sum.to_le_bytes());
        let len = self.at.next_multiple_of(HEADER_BYTES);
        self.room.spare()[self.at..len].fill(MaybeUninit::new(0));
        // SAFETY: all of them have been written.
        Frame(unsafe { self.room.into_buffer(len) })
    }
}

/// A frame on its way out.
pub struct Frame(Buffer);

impl Frame {
    /// Encodes a frame whose body is `parts`, one after the other.
    pub fn new(header: &WireHeader, parts: &[Buffer]) -> Self {
        Self::new_in(FrameBuffer::new, header, parts)
    }

    /// [`Frame::new`], in a room for so many bytes.
    pub fn new_in(room: impl FnOnce(usize) -> FrameBuffer, header: &WireHeader, parts: &[Buffer]) -> Self {
        let mut draft = FrameWriter::new(room, header, parts.iter().map(Buffer::len).sum());
        parts.iter().for_each(|part| draft.put(part));
        draft.finish()
    }

    /// A frame that is its header.
    #[inline]
    pub fn header_only(header: &WireHeader) -> Self {
        Self::new(header, &[])
    }

    /// Its bytes; their number is what it costs in credit.
    #[inline]
    pub fn into_buffer(self) -> Buffer {
        self.0
    }
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// There are fewer bytes than the frame needs.
    #[error("the message ends in the middle of a frame")]
    Short,
    /// The first bytes are those of no frame.
    #[error("not a frame (do all workers run the same version of Tidemill?)")]
    Magic,
    /// Its kind is unknown.
    #[error("unknown frame kind {0}")]
    Kind(u32),
    /// Its length is beyond all that is sent.
    #[error("a frame claims to have {0} bytes")]
    Long(u64),
    /// Its checksum is that of other bytes.
    #[error("the checksum of a frame is wrong: it was damaged in transit")]
    Checksum,
}

/// A frame as it arrived: its bytes are still in the message's buffer.
#[derive(Clone, Debug)]
pub struct ReceivedFrame {
    /// Its header.
    pub header: WireHeader,
    /// Header, body and padding, to be passed on as they are.
    pub whole: Buffer,
    body_len: usize,
    /// It is where it was written: no checksum is needed.
    in_place: bool,
}

impl ReceivedFrame {
    /// The length of the frame that begins with `header`, padding included.
    ///
    /// # Errors
    /// When it is not the header of a frame.
    #[inline]
    pub fn len(header: &[u8]) -> Result<usize, FrameError> {
        let magic = header.get(0..4).ok_or(FrameError::Short)?;
        if magic != MAGIC.to_le_bytes() {
            return Err(FrameError::Magic);
        }
        let body = header.get(40..48).ok_or(FrameError::Short)?;
        let body = u64::from_le_bytes(body.try_into().expect("eight bytes"));
        // No frame comes near that; what says so is damaged, and must not size an allocation.
        if body > BODY_BYTES_MAX {
            return Err(FrameError::Long(body));
        }
        Ok((HEADER_BYTES + body as usize).next_multiple_of(HEADER_BYTES))
    }

    /// Takes the frame at the front of `message`, which is left with the rest. The checksum is not looked at.
    ///
    /// # Errors
    /// When no whole frame is there.
    pub fn take(message: &mut Buffer) -> Result<ReceivedFrame, FrameError> {
        let bytes = message.as_slice();
        if bytes.len() < HEADER_BYTES {
            return Err(FrameError::Short);
        }
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let kind = *KINDS.get(word(4) as usize).ok_or(FrameError::Kind(word(4)))?;
        let len = Self::len(bytes)?;
        if len > bytes.len() {
            return Err(FrameError::Short);
        }
        let body_len = long(40) as usize;
        let header = WireHeader {
            kind,
            run: word(8),
            edge: word(12),
            source: word(16),
            target: word(20),
            seq: long(24),
            rows: long(32),
        };
        let whole = message.slice_with_length(0, len);
        message.advance(len);
        Ok(ReceivedFrame { header, whole, body_len, in_place: false })
    }

    /// The frame in memory that its sender lends.
    ///
    /// # Errors
    /// As [`ReceivedFrame::take`].
    pub fn from_lent(mut bytes: Buffer) -> Result<ReceivedFrame, FrameError> {
        Ok(ReceivedFrame { in_place: true, ..Self::take(&mut bytes)? })
    }

    /// Whether header and body are as they were sent.
    ///
    /// # Errors
    /// When the checksum differs.
    pub fn verify(&self) -> Result<(), FrameError> {
        if self.in_place {
            return Ok(());
        }
        let bytes = self.whole.as_slice();
        let sum = u64::from_le_bytes(bytes[48..56].try_into().expect("eight bytes"));
        let body = &bytes[HEADER_BYTES..HEADER_BYTES + self.body_len];
        match XxHash3_64::oneshot_with_seed(seed(&bytes[..48]), body) == sum {
            true => Ok(()),
            false => Err(FrameError::Checksum),
        }
    }

    /// The body, still in the message's buffer.
    #[inline]
    pub fn body(&self) -> Buffer {
        self.whole.slice_with_length(HEADER_BYTES, self.body_len)
    }
}

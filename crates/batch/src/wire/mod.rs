//! The wire format between workers: frames, each a header and a body, several per message.
//!
//! ```text
//!  0     4     8     12    16      20      24    32     40     48         56       64
//!  | magic | kind | run | edge | source | target | seq | rows | length | checksum | 0 | body ... | 0 to a multiple of 64 |
//! ```
//!
//! Little endian. The checksum (XXH3) covers header and body; a frame that is read on the worker that wrote it may omit
//! it. A frame begins at a multiple of 64 bytes in its message, so a body can be used in place. The body of a batch is
//! a part of an Arrow IPC stream without its schema, which both ends know from the graph; a dictionary is sent when it
//! changes, not with every batch.

mod codec;

use std::hash::Hasher;
use std::mem::MaybeUninit;

use arrow::buffer::Buffer;
use twox_hash::XxHash3_64;

use crate::frame_buffers::FrameBuffer;

pub(crate) use codec::compact_column;
pub use codec::{BatchDecoder, BatchEncoder, BodyPiece};

/// Size of a header, and alignment of frames.
pub const HEADER_BYTES: usize = 64;
/// Changes with the layout.
const MAGIC: u32 = u32::from_le_bytes(*b"TMD1");

/// Bytes of a body that are copied and hashed at a time, so that the hash finds them in the cache.
const HASHED_BYTES: usize = 16 << 10;

/// No larger bodies are made: batches are split long before.
const BODY_BYTES_MAX: u64 = 1 << 40;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireKind {
    /// Rows.
    Batch,
    /// The stream from `source` to `target` is over: `seq` blocks with `rows` rows were sent.
    End,
    /// After `seq` blocks: all rows with event times before `rows` have been sent.
    Watermark,
    /// After `seq` blocks: nothing more comes for now.
    Idle,
    /// After `seq` blocks: the body is a barrier.
    Barrier,
    /// The receiver has taken `rows` bytes of the stream from `source` to `target`.
    Credit,
    /// The receiver wants nothing more of the stream from `source` to `target`, except its end.
    Stop,
    /// `rows` says how far the sender is, in units that the run defines.
    Progress,
    /// The body is the sender's status, for worker 0; the program defines its meaning.
    Status,
    /// Worker 0 asks the sources for the barrier in the body.
    Inject,
    /// Worker 0 lets the barrier of epoch `rows` overtake rows.
    Unalign,
    /// The state that a copy of the sender has saved, for worker 0: the body is a report.
    Saved,
    /// Worker 0 has made the checkpoint of epoch `rows` durable.
    Durable,
    /// A task has failed, here or elsewhere: give up, and pass this on.
    Abort,
    /// Round `rows` of the end of the run: the sender has finished, and so have all workers it heard from in earlier
    /// rounds. A body contains the first fault among them, and its origin.
    Finish,
    /// A frame of `rows` bytes lies at `seq` in memory that the sender lends.
    Lent,
    /// The memory lent at `seq` of the receiver's segment is no longer needed.
    Returned,
    /// A worker's counters, for worker 0. The body contains the changes since the last such frame.
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

/// A frame's header, except for fields of the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireHeader {
    /// The kind of the frame.
    pub kind: WireKind,
    /// The run of the graph runner. A frame of an earlier run is late; one of a later run is a bug or from a stranger.
    pub run: u32,
    /// The number of the edge in the flow.
    pub edge: u32,
    /// The sending copy.
    pub source: u32,
    /// The receiving copy; for a broadcast the receiving worker, or `u32::MAX` for all.
    pub target: u32,
    /// The number of the block in its stream.
    pub seq: u64,
    /// The number of rows in the body; for kinds other than batches, see [`WireKind`].
    pub rows: u64,
}

impl WireHeader {
    /// A header of this kind, with all other fields 0.
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

/// The seed of a body's hash, which makes the hash cover the header, too.
fn seed(header: &[u8]) -> u64 {
    XxHash3_64::oneshot(header)
}

/// Writes a frame piece by piece.
pub struct FrameWriter {
    room: FrameBuffer,
    /// Bytes written so far.
    at: usize,
    body_len: usize,
    /// `None` if receivers read the frame from this worker's memory: it is not transferred, so nothing can corrupt it.
    hasher: Option<XxHash3_64>,
}

impl FrameWriter {
    /// A frame with a body of `body_len` bytes, in a buffer from `room`.
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

    /// Makes `fill` write the next `len` bytes, all of them.
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
    /// If the body does not have the announced length.
    pub fn finish(mut self) -> Frame {
        assert_eq!(self.at, HEADER_BYTES + self.body_len, "the body has a different length");
        let sum = self.hasher.take().map_or(0, |hasher| hasher.finish());
        self.room.spare()[48..56].write_copy_of_slice(&sum.to_le_bytes());
        let len = self.at.next_multiple_of(HEADER_BYTES);
        self.room.spare()[self.at..len].fill(MaybeUninit::new(0));
        // SAFETY: all bytes have been written.
        Frame(unsafe { self.room.into_buffer(len) })
    }
}

/// An outgoing frame.
pub struct Frame(Buffer);

impl Frame {
    /// Encodes a frame whose body is the concatenation of `parts`.
    pub fn new(header: &WireHeader, parts: &[Buffer]) -> Self {
        Self::new_in(FrameBuffer::new, header, parts)
    }

    /// Like [`Frame::new`], in a buffer from `room`.
    pub fn new_in(room: impl FnOnce(usize) -> FrameBuffer, header: &WireHeader, parts: &[Buffer]) -> Self {
        let mut draft = FrameWriter::new(room, header, parts.iter().map(Buffer::len).sum());
        parts.iter().for_each(|part| draft.put(part));
        draft.finish()
    }

    /// A frame without a body.
    #[inline]
    pub fn header_only(header: &WireHeader) -> Self {
        Self::new(header, &[])
    }

    /// The frame's bytes; their number is its cost in credit.
    #[inline]
    pub fn into_buffer(self) -> Buffer {
        self.0
    }
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// There are fewer bytes than the frame needs.
    #[error("the message ends in the middle of a frame")]
    Short,
    /// The bytes do not start like a frame.
    #[error("not a frame (do all workers run the same version of Tidemill?)")]
    Magic,
    /// Its kind is unknown.
    #[error("unknown frame kind {0}")]
    Kind(u32),
    /// Its length exceeds that of any valid frame.
    #[error("a frame claims to have {0} bytes")]
    Long(u64),
    /// Its checksum does not match.
    #[error("the checksum of a frame is wrong: it was damaged in transit")]
    Checksum,
}

/// A received frame: its bytes are still in the message's buffer.
#[derive(Clone, Debug)]
pub struct ReceivedFrame {
    /// Its header.
    pub header: WireHeader,
    /// Header, body and padding, for forwarding unchanged.
    pub whole: Buffer,
    body_len: usize,
    /// It is read where it was written, so no checksum is needed.
    in_place: bool,
}

impl ReceivedFrame {
    /// The length of the frame that begins with `header`, padding included.
    ///
    /// # Errors
    /// If it is not a frame header.
    #[inline]
    pub fn len(header: &[u8]) -> Result<usize, FrameError> {
        let magic = header.get(0..4).ok_or(FrameError::Short)?;
        if magic != MAGIC.to_le_bytes() {
            return Err(FrameError::Magic);
        }
        let body = header.get(40..48).ok_or(FrameError::Short)?;
        let body = u64::from_le_bytes(body.try_into().expect("eight bytes"));
        // No valid frame comes near this length; a header that claims it is damaged, and must not size an allocation.
        if body > BODY_BYTES_MAX {
            return Err(FrameError::Long(body));
        }
        Ok((HEADER_BYTES + body as usize).next_multiple_of(HEADER_BYTES))
    }

    /// Takes the frame at the front of `message` and leaves the rest. Does not check the checksum.
    ///
    /// # Errors
    /// If there is no complete frame.
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

    /// The frame in memory lent by its sender.
    ///
    /// # Errors
    /// As [`ReceivedFrame::take`].
    pub fn from_lent(mut bytes: Buffer) -> Result<ReceivedFrame, FrameError> {
        Ok(ReceivedFrame { in_place: true, ..Self::take(&mut bytes)? })
    }

    /// Checks that header and body are as they were sent.
    ///
    /// # Errors
    /// If the checksum differs.
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

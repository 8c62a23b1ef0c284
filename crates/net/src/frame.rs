//! The frame: a 32-byte header and a payload. Only frames cross a transport.
//!
//! Byte layout, little-endian, also the wire format of TCP (format 1):
//!
//! ```text
//!  0        8            12     16     20           24      28     29        32
//!  | len    | context    | tag  | seq  | signature  | token | kind | reserved |
//! ```

use bytemuck::{Pod, Zeroable};

/// The length of a header on every transport.
pub const HEADER_BYTES: usize = size_of::<FrameHeader>();

/// The purpose of a frame. Any other value on the wire is a corrupt frame and an error.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A whole message: the payload follows the header.
    Eager = 1,
    /// A request to send: announces a message too large to send eagerly. Payload: [`OfferPayload`].
    Offer = 2,
    /// The receiver of an offer is ready. `token` is the sender's; payload: [`AcceptPayload`].
    Accept = 3,
    /// A piece of an accepted message. `token` is the receiver's. Pieces arrive in order.
    Piece = 4,
    /// The receiver has copied an offered message completely out of the sender's memory; `token` is the sender's.
    Done = 5,
    /// Returns `seq` bytes of eager credit to the sender.
    Credit = 6,
    /// The sender's program has ended: it posts no more sends or receives. What it sent before can still be received.
    Left = 7,
    /// The sender has finished with the communicator of `context`, which has `token` ranks: it posts no more sends or
    /// receives there.
    Ended = 8,
}

/// Describes a frame. Plain old data: every bit pattern can be read, and [`FrameHeader::kind`] says whether it is
/// valid.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct FrameHeader {
    /// Payload bytes that follow in this frame.
    pub len: u64,
    /// The communicator context that the message belongs to.
    pub context: u32,
    /// The user tag for point to point, 0 for collectives.
    pub tag: i32,
    /// The sequence number of the collective on its communicator; 0 for point to point.
    pub seq: u32,
    /// The fingerprint of the collective call (kind, count, dtype, op, root); 0 for point to point.
    pub signature: u32,
    /// Identifies one side's operation in a large transfer.
    pub token: u32,
    /// A [`FrameKind`] as a raw byte.
    pub kind_raw: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

impl FrameHeader {
    /// A header of `kind` with everything else zero.
    #[inline]
    pub fn new(kind: FrameKind, len: u64) -> Self {
        FrameHeader { len, context: 0, tag: 0, seq: 0, signature: 0, token: 0, kind_raw: kind as u8, reserved: [0; 3] }
    }

    /// The frame's kind, or `None` for a byte no version of this format has used.
    #[inline]
    pub fn kind(&self) -> Option<FrameKind> {
        Some(match self.kind_raw {
            1 => FrameKind::Eager,
            2 => FrameKind::Offer,
            3 => FrameKind::Accept,
            4 => FrameKind::Piece,
            5 => FrameKind::Done,
            6 => FrameKind::Credit,
            7 => FrameKind::Left,
            8 => FrameKind::Ended,
            _ => return None,
        })
    }

    /// The header as it crosses the wire. Little-endian machines only; see `lib.rs`.
    #[inline]
    pub fn as_bytes(&self) -> &[u8; HEADER_BYTES] {
        bytemuck::cast_ref(self)
    }

    /// Reads a header. Never fails: the caller checks `kind` and `len`.
    #[inline]
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Self {
        bytemuck::pod_read_unaligned(bytes)
    }
}

/// The payload of [`FrameKind::Offer`]: where the message is in the sender's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct OfferPayload {
    /// The length of the whole message.
    pub total_len: u64,
    /// Its address in the sender's address space, for transports that can read a peer's memory.
    pub addr: u64,
}

/// The payload of [`FrameKind::Accept`]: where the receiver wants the message.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct AcceptPayload {
    /// How many bytes the receiver takes (a shorter receive buffer truncates, which the receiver reports).
    pub len: u64,
    /// The address in the receiver's address space; 0 if the pieces should be sent as frames.
    pub addr: u64,
    /// The receiver's token, for `Piece` frames; the generation of a shared transfer if `addr` is not 0.
    pub token: u64,
    /// The offset of those bytes in the message: the receiver has copied what comes before by itself.
    pub offset: u64,
}

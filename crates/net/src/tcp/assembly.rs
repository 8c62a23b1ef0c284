//! Cuts a stream of bytes into frames: short frames are assembled in a buffer, long ones go straight to their
//! destination.
//!
//! Separate from the socket, so that tests can feed it any bytes in any pieces.

use super::FRAME_BYTES_MAX;
use crate::{FrameHeader, FrameSink, HEADER_BYTES, Rank};

/// Bytes received at once, so that many small frames cost one system call.
const BUFFER_BYTES: usize = 64 << 10;

/// A frame with at most this much payload is assembled in the buffer and delivered whole. Of a longer frame that has
/// arrived in part, the rest is read straight to its destination.
const WHOLE_BYTES_MAX: usize = 8 << 10;

/// Behind the rest of a long payload, only this much is read into the buffer: the next bytes are most likely the
/// header of the next piece, whose payload should go straight to its destination too.
const BEHIND_BYTES: usize = 4 << 10;

/// The receiving half of a connection.
pub(crate) struct FrameAssembly {
    peer: Rank,
    buffer: Box<[u8]>,
    /// The part of `buffer` that has arrived but is not delivered yet.
    start: usize,
    end: usize,
    placing: Option<DirectPayload>,
}

/// A frame whose payload goes straight to its destination. Invariant: `filled < header.len`, and the `header.len`
/// bytes at `at` are writable until `landed`, as [`FrameSink::begin`] promises.
struct DirectPayload {
    header: FrameHeader,
    at: *mut u8,
    filled: usize,
}

// SAFETY: the sink lends `at` to the transport, not to a thread, and only `&mut self` uses it.
unsafe impl Send for DirectPayload {}

/// Where the next bytes go, in this order: `first`, then `second`, which may be empty. The memory is the assembly's own
/// or lent by the sink, writable until the next `arrived`, and the two do not overlap.
pub(crate) struct ReadSpace {
    pub(crate) first: (*mut u8, usize),
    pub(crate) second: (*mut u8, usize),
}

impl FrameAssembly {
    pub(crate) fn new(peer: Rank) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        FrameAssembly { peer, buffer, start: 0, end: 0, placing: None }
    }

    /// Whether part of a frame has arrived.
    pub(crate) fn is_within_frame(&self) -> bool {
        self.placing.is_some() || self.start < self.end
    }

    /// Room for the next bytes, always at least one.
    pub(crate) fn room(&mut self) -> ReadSpace {
        let Some(placing) = &self.placing else {
            // The undelivered part is shorter than one small frame: it is cheap to move, and then there is always
            // room.
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let room = &mut self.buffer[self.end..];
            return ReadSpace { first: (room.as_mut_ptr(), room.len()), second: (std::ptr::null_mut(), 0) };
        };
        debug_assert!(self.start == self.end, "a payload is placed only when all bytes before it are delivered");
        (self.start, self.end) = (0, 0);
        // SAFETY: `filled < len`, so this stays within the `len` bytes at `at`; see `DirectPayload`.
        let at = unsafe { placing.at.add(placing.filled) };
        let rest = placing.header.len as usize - placing.filled;
        ReadSpace { first: (at, rest), second: (self.buffer.as_mut_ptr(), BEHIND_BYTES) }
    }

    /// Accounts for `got` bytes that were written to the room, and delivers every frame that is complete or long
    /// enough to be read straight to its destination.
    ///
    /// # Errors
    /// If the bytes are not frames; the connection is then unusable.
    pub(crate) fn arrived(&mut self, mut got: usize, sink: &mut dyn FrameSink) -> Result<(), String> {
        if let Some(placing) = &mut self.placing {
            let placed = got.min(placing.header.len as usize - placing.filled);
            placing.filled += placed;
            got -= placed;
            if placing.filled < placing.header.len as usize {
                return Ok(());
            }
            let header = placing.header;
            self.placing = None;
            sink.landed(self.peer, &header);
        }
        self.end += got;
        while let Some(bytes) = self.buffer[self.start..self.end].first_chunk::<HEADER_BYTES>() {
            let header = FrameHeader::from_bytes(bytes);
            let len = check(&header)?;
            let payload = &self.buffer[self.start + HEADER_BYTES..self.end];
            if payload.len() >= len {
                sink.frame(self.peer, &header, &payload[..len]);
                self.start += HEADER_BYTES + len;
            } else if len <= WHOLE_BYTES_MAX {
                break;
            } else {
                let at = sink.begin(self.peer, &header);
                // SAFETY: `begin` gives `len` writable bytes, more than `payload` has, and the buffer is our own.
                unsafe { crate::copy(payload.as_ptr(), at, payload.len()) };
                self.placing = Some(DirectPayload { header, at, filled: payload.len() });
                self.start = self.end;
            }
        }
        Ok(())
    }
}

/// The payload's length, if a correct peer could send this frame.
fn check(header: &FrameHeader) -> Result<usize, String> {
    if header.kind().is_none() {
        return Err(format!("unknown kind {}", header.kind_raw));
    }
    if header.len > FRAME_BYTES_MAX as u64 {
        return Err(format!("a frame of {} bytes exceeds the limit of {FRAME_BYTES_MAX}", header.len));
    }
    if header.reserved != [0; 3] {
        return Err("reserved bytes are set".into());
    }
    Ok(header.len as usize)
}

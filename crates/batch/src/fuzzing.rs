//! The decoder of frames, which fuzz targets and property tests feed with arbitrary bytes. It must not panic, read past
//! the end of a message, or accept a damaged message.

use arrow::buffer::Buffer;

use crate::wire::{Frame, HEADER_BYTES, ReceivedFrame, WireHeader, WireKind};

/// Takes the frames out of a message; returns how many were complete. Panics when the decoder misbehaves.
pub fn frames(bytes: &[u8]) -> usize {
    let mut message = Buffer::from(bytes);
    let mut whole = 0;
    while !message.is_empty() {
        let before = message.len();
        let Ok(frame) = ReceivedFrame::take(&mut message) else { break };
        assert!(frame.whole.len() >= HEADER_BYTES && frame.whole.len().is_multiple_of(HEADER_BYTES));
        assert_eq!(before - message.len(), frame.whole.len());
        assert!(frame.body().len() + HEADER_BYTES <= frame.whole.len());
        if frame.verify().is_ok() {
            whole += 1;
        }
    }
    whole
}

/// A frame with this body, as a starting point for mutation.
pub fn frame(seq: u64, body: &[u8]) -> Vec<u8> {
    let header = WireHeader { seq, rows: 3, ..WireHeader::new(WireKind::Batch, 7) };
    Frame::new(&header, &[Buffer::from(body)]).into_buffer().to_vec()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert_eq!(frames(&bytes), 0);
        }

        /// A flipped bit anywhere except in the padding is detected, and only in its own frame.
        #[test]
        fn damage_is_noticed(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..4),
            at in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<prop::sample::Index>(),
        ) {
            let encoded: Vec<Vec<u8>> = bodies.iter().enumerate().map(|(seq, body)| frame(seq as u64, body)).collect();
            let mut message = encoded.concat();
            prop_assert_eq!(frames(&message), bodies.len());
            let short = cut.index(message.len());
            prop_assert!(frames(&message[..short]) < bodies.len());

            let at = at.index(message.len());
            message[at] ^= 1 << bit;
            let mut start = 0;
            let (hit, offset) = encoded.iter().enumerate().find_map(|(which, frame)| {
                let offset = at.checked_sub(start)?;
                start += frame.len();
                (offset < frame.len()).then_some((which, offset))
            }).unwrap();
            let padding = (56..64).contains(&offset) || offset >= HEADER_BYTES + bodies[hit].len();
            let found = frames(&message);
            prop_assert!(if padding { found == bodies.len() } else { found < bodies.len() }, "{found} at {offset}");
        }
    }
}

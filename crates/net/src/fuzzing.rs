//! Functions that fuzz targets and property tests feed with arbitrary bytes. Each one panics when a decoder
//! misbehaves: a decoder must not crash, trust its input, depend on how bytes were cut, or hold more memory than
//! arrived.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::control::wire::MessageDecoder;
use crate::handshake::proof::{
    ConnectionClaim, ConnectionPurpose, HandshakeClient, HandshakeError, HandshakeServer, HandshakeStep,
};
use crate::rendezvous::{JobKey, JobSecret};
use crate::ring::{PopResult, REST_BYTES, RingConsumer, RingMemory, RingProducer, RingShape};
use crate::tcp::assembly::FrameAssembly;
use crate::topology::WorkerPlacement;
use crate::{FrameHeader, FrameKind, FrameSink, Rank, TransportError};

/// A header and its payload.
type Frame = (FrameHeader, Vec<u8>);

/// Records frames, however they were delivered.
#[derive(Default)]
struct FrameRecorder {
    all: Vec<Frame>,
    placing: Option<Vec<u8>>,
}

impl FrameSink for FrameRecorder {
    fn frame(&mut self, _: Rank, header: &FrameHeader, payload: &[u8]) {
        assert!(self.placing.is_none(), "a frame within a frame");
        self.all.push((*header, payload.to_vec()));
    }
    fn begin(&mut self, _: Rank, header: &FrameHeader) -> *mut u8 {
        assert!(self.placing.is_none() && header.len <= 1 << 20);
        self.placing.insert(vec![0; header.len as usize]).as_mut_ptr()
    }
    fn landed(&mut self, _: Rank, header: &FrameHeader) {
        let payload = self.placing.take().expect("begun before");
        self.all.push((*header, payload));
    }
    fn lost(&mut self, _: TransportError) {}
}

/// Feeds the receiving half of a TCP connection, at most `cut` bytes at once (0: as many as it takes).
fn assemble(mut bytes: &[u8], cuts: &[u8]) -> (Vec<Frame>, Result<(), String>) {
    let mut assembly = FrameAssembly::new(Rank(1));
    let mut frames = FrameRecorder::default();
    let mut cuts = cuts.iter().cycle();
    while !bytes.is_empty() {
        let room = assembly.room();
        let cut = match cuts.next() {
            None | Some(0) => usize::MAX,
            Some(&n) => n as usize,
        };
        let got = bytes.len().min(room.first.1 + room.second.1).min(cut);
        let first = got.min(room.first.1);
        // SAFETY: `ReadSpace` promises that both parts are writable, and together they have room for `got` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), room.first.0, first);
            if got > first {
                std::ptr::copy_nonoverlapping(bytes[first..].as_ptr(), room.second.0, got - first);
            }
        }
        bytes = &bytes[got..];
        if let Err(reason) = assembly.arrived(got, &mut frames) {
            return (frames.all, Err(reason));
        }
    }
    (frames.all, Ok(()))
}

/// Frames decode the same however the stream is cut, and match a ten-line decoder.
pub fn frames(stream: &[u8], cuts: &[u8]) {
    let mut expected = Vec::new();
    let mut rest = stream;
    let mut sound = Ok(());
    while let Some((header, behind)) = rest.split_first_chunk::<32>() {
        let header = FrameHeader::from_bytes(header);
        if header.kind().is_none() || header.len > 1 << 20 || header.reserved != [0; 3] {
            sound = Err(());
            break;
        }
        let Some((payload, behind)) = behind.split_at_checked(header.len as usize) else { break };
        expected.push((header, payload.to_vec()));
        rest = behind;
    }
    for cuts in [cuts, &[]] {
        let (frames, outcome) = assemble(stream, cuts);
        assert_eq!(frames, expected);
        assert_eq!(outcome.map_err(drop), sound);
    }
}

/// Control messages decode the same however the stream is cut, and cost no more memory than arrived. No worker,
/// wherever it is in the tree, fails because of what a neighbor sends.
pub fn control(stream: &[u8], cuts: &[u8]) {
    let decode = |cuts: &[u8]| {
        let mut decoder = MessageDecoder::default();
        let mut messages = Vec::new();
        let mut rest = stream;
        let mut cuts = cuts.iter().cycle();
        while !rest.is_empty() {
            let cut = cuts.next().map_or(usize::MAX, |&n| n as usize + 1).min(rest.len());
            decoder.feed(&rest[..cut]);
            rest = &rest[cut..];
            loop {
                match decoder.next() {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(reason) => return (messages, Err(reason)),
                }
            }
        }
        (messages, Ok(()))
    };
    let whole = decode(&[]);
    assert!(whole.0.iter().map(|message| message.payload.len()).sum::<usize>() <= stream.len());
    assert_eq!(whole, decode(cuts));
    crate::control::fuzz(&whole.0);
}

/// Rank 0 counts the workers that join correctly, whatever they send and whenever they end.
pub fn joining(stream: &[u8]) {
    let mut decoder = MessageDecoder::default();
    decoder.feed(stream);
    let messages: Vec<_> = std::iter::from_fn(|| decoder.next().ok().flatten()).collect();
    crate::rendezvous::fuzz(&messages);
}

/// Nobody completes a handshake without the key, as a client or as a server, and the bytes sent before that are
/// bounded.
pub fn handshake(stream: &[u8]) {
    let key = || JobKey::new(&JobSecret::from_hex(&"5a".repeat(32)).expect("64 digits"), "fuzz");
    let mut said = Vec::new();
    let (mut server, step) = HandshakeServer::start(key(), ConnectionPurpose::Join, Rank(0), [3; 32]);
    drive(stream, step, |chunk| server.receive(chunk, &|_| false, &mut said));
    assert!(said.len() <= 80 && !proves(&said));

    let mut said = Vec::new();
    let call = ConnectionClaim { purpose: ConnectionPurpose::Join, from: Rank(1), to: Rank(0), size: 2 };
    let (mut client, step) = HandshakeClient::start(key(), call, [4; 32], &mut said);
    drive(stream, step, |chunk| client.receive(chunk, &mut said));
    assert!(said.len() <= 56 + 32);
}

/// Whether a server's output ends in a welcome.
fn proves(said: &[u8]) -> bool {
    said.len() == 80 && said[44] == 0
}

fn drive(
    stream: &[u8],
    mut step: HandshakeStep,
    mut receive: impl FnMut(&[u8]) -> Result<HandshakeStep, HandshakeError>,
) {
    let mut rest: VecDeque<u8> = stream.iter().copied().collect();
    while let HandshakeStep::Read(wanted) = step {
        assert!(wanted > 0 && wanted <= crate::handshake::proof::CHUNK_BYTES_MAX);
        if rest.len() < wanted {
            return;
        }
        let chunk: Vec<u8> = rest.drain(..wanted).collect();
        match receive(&chunk) {
            Ok(next) => step = next,
            Err(_) => return,
        }
    }
    panic!("a peer without the key completed the handshake");
}

/// What authenticated workers send each other when a job starts and while it runs: where they run, how to reach them,
/// what they lack, what they do.
pub fn told(bytes: &[u8]) {
    if let Some(placement) = WorkerPlacement::decode(bytes) {
        let again = WorkerPlacement::decode(&placement.encode());
        assert_eq!(again, Some(placement));
    }
    crate::endpoint::fuzz(bytes);
    crate::control::exchange::fuzz(bytes);
}

/// A ring in this process's memory that checks every access.
struct CheckedRing {
    stamps: Vec<AtomicU64>,
    returned: [AtomicU64; 2],
    slots: RefCell<Vec<([u8; REST_BYTES], Vec<u8>)>>,
    bulk: RefCell<Vec<u8>>,
}

// SAFETY: both sides hold the same `CheckedRing` through an `Rc`; all words start as zero.
unsafe impl RingMemory for Rc<CheckedRing> {
    fn stamp(&self, slot: usize) -> &AtomicU64 {
        &self.stamps[slot]
    }
    fn returned_slots(&self) -> &AtomicU64 {
        &self.returned[0]
    }
    fn returned_bytes(&self) -> &AtomicU64 {
        &self.returned[1]
    }
    unsafe fn write_slot(&self, slot: usize, rest: &[u8; REST_BYTES], inline: &[u8]) {
        let (kept, payload) = &mut self.slots.borrow_mut()[slot];
        *kept = *rest;
        payload[..inline.len()].copy_from_slice(inline);
    }
    unsafe fn write_bulk(&self, offset: usize, payload: &[u8]) {
        self.bulk.borrow_mut()[offset..offset + payload.len()].copy_from_slice(payload);
    }
    unsafe fn with_slot<R>(
        &self,
        slot: usize,
        inline_len: usize,
        read: impl FnOnce(&[u8; REST_BYTES], &[u8]) -> R,
    ) -> R {
        let (rest, payload) = &self.slots.borrow()[slot];
        read(rest, &payload[..inline_len])
    }
    unsafe fn with_bulk<R>(&self, offset: usize, len: usize, read: impl FnOnce(&[u8]) -> R) -> R {
        read(&self.bulk.borrow()[offset..offset + len])
    }
}

/// Drives both sides of a ring in turn, as the script says. The script may also overwrite the ring's words, as a
/// broken or hostile peer could. Until then frames come out as they went in; after that there are frames or errors,
/// but never more than fits.
pub fn ring(script: &[u8]) {
    let shape = RingShape { slots: 4, bulk_bytes: 1024 };
    let memory = Rc::new(CheckedRing {
        stamps: (0..shape.slots).map(|_| AtomicU64::new(0)).collect(),
        returned: Default::default(),
        slots: RefCell::new(vec![([0; REST_BYTES], vec![0; crate::ring::INLINE_BYTES]); shape.slots as usize]),
        bulk: RefCell::new(vec![0; shape.bulk_bytes as usize]),
    });
    // SAFETY: the ring is fresh, and these are its only two sides.
    let (mut producer, mut consumer) =
        unsafe { (RingProducer::new(Rc::clone(&memory), shape), RingConsumer::new(Rc::clone(&memory), shape)) };
    let mut expected = VecDeque::new();
    let mut sound = true;
    for (seq, step) in (0u32..).zip(script.chunks_exact(3)) {
        let &[what, a, b] = step else { unreachable!("chunks of three") };
        match what % 16 {
            0..6 => {
                let len = a as usize + usize::from(b % 2);
                let (header, payload) =
                    (FrameHeader { seq, ..FrameHeader::new(FrameKind::Eager, len as u64) }, vec![b; len]);
                match producer.push(&header, &payload) {
                    Ok(true) => expected.push_back((header, payload)),
                    Ok(false) => assert!(!sound || !expected.is_empty(), "an empty ring is full"),
                    Err(_) if sound => panic!("the ring reported corruption, but nothing was overwritten"),
                    Err(_) => return,
                }
            }
            6..13 => {
                let mut frame = None;
                match consumer.pop(|header, payload| frame = Some((*header, payload.to_vec()))) {
                    Ok(popped) if sound => {
                        assert_eq!(popped == PopResult::Nothing, expected.is_empty());
                        assert_eq!(frame, expected.pop_front());
                    }
                    Ok(_) => assert!(frame.is_none_or(|(header, payload)| header.len == payload.len() as u64)),
                    Err(_) if sound => panic!("the ring reported corruption, but nothing was overwritten"),
                    Err(_) => return,
                }
            }
            what => {
                sound = false;
                // A plausible turn or count with an impossible length, or the other way round.
                let word = u64::from(b % 8) << 32 | u64::from(a) << (b / 8);
                match what {
                    13 => memory.stamps[a as usize % 4].store(word, Ordering::Relaxed),
                    14 => memory.returned[0].store(u64::from(b), Ordering::Relaxed),
                    _ => memory.returned[1].store(u64::from(a) * 64, Ordering::Relaxed),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Mostly valid frames, so that decoding gets past the first header.
    fn stream_of_frames() -> impl Strategy<Value = Vec<u8>> {
        let len = prop_oneof![4 => 0usize..100, 2 => 8000usize..9000, 1 => 60_000usize..70_000, 1 => Just(1 << 20)];
        let frame = (len, any::<u32>(), prop::sample::select(vec![1u8, 1, 1, 4, 4, 7, 2, 0, 99]));
        (prop::collection::vec(frame, 1..6), 0usize..40).prop_map(|(frames, tail)| {
            let mut bytes = Vec::new();
            for (len, seq, kind_raw) in frames {
                let header = FrameHeader { seq, kind_raw, ..FrameHeader::new(FrameKind::Eager, len as u64) };
                bytes.extend_from_slice(header.as_bytes());
                bytes.extend((0..len).map(|i| (i as u32 ^ seq) as u8));
            }
            bytes.extend(vec![1; tail]);
            bytes
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        #[test]
        fn frames_decode_alike_however_cut(
            stream in stream_of_frames(),
            cuts in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..6),
        ) {
            frames(&stream, &cuts);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_refused(stream in prop::collection::vec(any::<u8>(), 0..300), cuts in any::<[u8; 3]>()) {
            frames(&stream, &cuts);
            control(&stream, &cuts);
            told(&stream);
            joining(&stream);
        }

        #[test]
        fn rings_are_sound_until_overwritten(script in prop::collection::vec(any::<u8>(), 0..600)) {
            ring(&script);
        }

        /// The same without overwrites, so that the script reaches laps and full rings.
        #[test]
        fn rings_hand_over_what_they_were_given(script in prop::collection::vec((0u8..13, any::<u8>(), any::<u8>()), 0..400)) {
            let script: Vec<u8> = script.into_iter().flat_map(|(what, a, b)| [what, a, b]).collect();
            ring(&script);
        }

        #[test]
        fn control_messages_decode_alike_however_cut(
            messages in prop::collection::vec((1u8..22, 0u32..9, 0u32..9, 0usize..200), 0..20),
            cuts in prop::collection::vec(any::<u8>(), 0..4),
        ) {
            let mut stream = Vec::new();
            for (kind, rank, to, len) in messages {
                stream.extend_from_slice(&(len as u32).to_le_bytes());
                stream.extend_from_slice(&[kind, 0, 0, 0]);
                stream.extend_from_slice(&rank.to_le_bytes());
                stream.extend_from_slice(&to.to_le_bytes());
                stream.extend(vec![kind; len]);
            }
            control(&stream, &cuts);
        }

        /// Mostly calls and the messages of honest workers, so that many states are reached.
        #[test]
        fn rank_0_counts_the_workers_that_join(
            steps in prop::collection::vec((0u8..12, 0u32..9, 0u32..9, 0u8..4), 0..120),
        ) {
            let mut stream = Vec::new();
            for (what, about, from, serial) in steps {
                // The length of a payload selects what happens; see `ledger::fuzz`.
                let (kind, rank, payload) = match what {
                    0 => (1u8, from, vec![]),
                    1 => (1, from, vec![0]),
                    2..6 => (1, from, vec![0; 2]),
                    6 => (14, from, vec![b'x'; 7]),
                    7..9 => (16, from, vec![0; 5]),
                    9 => (16, about, vec![0; 5]),
                    _ => (11, about, vec![serial, 0, 0, 0]),
                };
                stream.extend_from_slice(&(payload.len() as u32).to_le_bytes());
                stream.extend_from_slice(&[kind, 0, 0, 0]);
                stream.extend_from_slice(&rank.to_le_bytes());
                stream.extend_from_slice(&from.to_le_bytes());
                stream.extend(payload);
            }
            joining(&stream);
        }

        /// Starts with the messages of an honest client and an honest server, so that every state is reached.
        #[test]
        fn nobody_gets_through_without_the_key(
            sound in 0usize..12, last in 0u8..6, side in 0u8..3, rest in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut stream = b"TIDEMILL".to_vec();
            stream.extend_from_slice(&crate::rendezvous::PROTOCOL.to_le_bytes());
            stream.extend_from_slice(&[last, side]);
            stream.truncate(12 - sound % 3);
            stream.extend(rest);
            handshake(&stream);
        }
    }

    /// Two machines that share the key complete the handshake, and neither does when one bit is flipped.
    #[test]
    fn peers_with_the_key_get_through_unless_a_bit_is_flipped() {
        let talk = |turned: Option<(bool, usize)>| -> bool {
            let key = |name| JobKey::new(&JobSecret::from_hex(&"17".repeat(32)).unwrap(), name);
            let call = ConnectionClaim { purpose: ConnectionPurpose::Frames, from: Rank(2), to: Rank(1), size: 0 };
            let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
            let (mut client, mut client_step) = HandshakeClient::start(key("job"), call, [1; 32], &mut to_server);
            let (mut server, mut server_step) =
                HandshakeServer::start(key("job"), ConnectionPurpose::Frames, Rank(1), [2; 32]);
            let (mut server_read, mut client_read) = (0, 0);
            let turn = |bytes: &mut Vec<u8>, at: usize| {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 0x10
                }
            };
            let mut turned = turned;
            loop {
                if let Some((at_server, at)) = turned {
                    let bytes = if at_server { &mut to_server } else { &mut to_client };
                    if bytes.len() > at {
                        turn(bytes, at);
                        turned = None;
                    }
                }
                if let HandshakeStep::Read(n) = server_step
                    && to_server.len() >= server_read + n
                {
                    let chunk = to_server[server_read..server_read + n].to_vec();
                    server_read += n;
                    match server.receive(&chunk, &|_| false, &mut to_client) {
                        Ok(step) => server_step = step,
                        Err(_) => return false,
                    }
                } else if let HandshakeStep::Read(n) = client_step
                    && to_client.len() >= client_read + n
                {
                    let chunk = to_client[client_read..client_read + n].to_vec();
                    client_read += n;
                    match client.receive(&chunk, &mut to_server) {
                        Ok(step) => client_step = step,
                        Err(_) => return false,
                    }
                } else {
                    return matches!((&server_step, &client_step), (HandshakeStep::Done(a), HandshakeStep::Done(b)) if *a == call && *b == call);
                }
            }
        };
        assert!(talk(None));
        for at in 0..88 {
            assert!(!talk(Some((true, at))), "byte {at} to the server is not covered");
        }
        for at in (0..80).filter(|at| !(45..48).contains(at)) {
            assert!(!talk(Some((false, at))), "byte {at} to the client is not covered");
        }
    }
}

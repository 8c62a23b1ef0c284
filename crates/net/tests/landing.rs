//! Receives posted while their message is still arriving, piece by piece, as over TCP.
//!
//! A receive that missed such a message would wait forever, or match the next one instead.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_net::{
    Engine, FaultRegistry, FrameHeader, FrameKind, FrameSink, MatchPattern, MemoryRegion, PushResult, Rank, Transport,
    TransportError, TransportLimits,
};

/// What the transport does at its next poll.
enum Step {
    Begin(FrameHeader),
    Land(FrameHeader, Vec<u8>),
}

type Steps = Arc<Mutex<Vec<Step>>>;
type Sent = Arc<Mutex<Vec<Option<FrameKind>>>>;

/// Delivers what a test prescribes, and records the kinds of the frames sent.
struct Scripted {
    steps: Steps,
    sent: Sent,
    room: Rc<RefCell<*mut u8>>,
}

// SAFETY: the test uses the engine and the script on one thread only.
unsafe impl Send for Scripted {}

impl Transport for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn limits(&self, _peer: Rank) -> TransportLimits {
        TransportLimits {
            frame_bytes_max: 1 << 20,
            eager_bytes_max: 1 << 16,
            in_flight_bytes_max: 1 << 20,
            single_copy: false,
            network: false,
        }
    }

    fn push(
        &mut self,
        _: Rank,
        header: &FrameHeader,
        _: &[u8],
        sent: &mut usize,
    ) -> Result<PushResult, TransportError> {
        *sent = header.len as usize;
        self.sent.lock().push(header.kind());
        Ok(PushResult::Sent)
    }

    fn poll(&mut self, sink: &mut dyn FrameSink) -> bool {
        let mut steps = self.steps.lock();
        if steps.is_empty() {
            return false;
        }
        match steps.remove(0) {
            Step::Begin(header) => *self.room.borrow_mut() = sink.begin(Rank(1), &header),
            Step::Land(header, data) => {
                // SAFETY: `begin` has returned this room for `header.len` bytes, the length of `data`.
                unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), *self.room.borrow(), data.len()) };
                sink.landed(Rank(1), &header);
            }
        }
        true
    }
}

fn message(tag: i32, data: &[u8]) -> [Step; 2] {
    let header = FrameHeader { context: 0, tag, ..FrameHeader::new(FrameKind::Eager, data.len() as u64) };
    [Step::Begin(header), Step::Land(header, data.to_vec())]
}

fn engine() -> (Engine, Steps) {
    let (engine, steps, _) = engine_that_tells();
    (engine, steps)
}

fn engine_that_tells() -> (Engine, Steps, Sent) {
    let (steps, sent) = (Steps::default(), Sent::default());
    let room = Rc::new(RefCell::new(std::ptr::null_mut()));
    let transport = Scripted { steps: Arc::clone(&steps), sent: Arc::clone(&sent), room };
    let engine = Engine::new(Rank(0), vec![Box::new(transport)], &[None, Some(0)], Arc::new(FaultRegistry::default()));
    (engine, steps, sent)
}

fn receive(engine: &mut Engine, tag: i32, into: &mut [u8]) -> tidemill_net::GroupId {
    let group = engine.new_group();
    let pattern = MatchPattern { source: Some(Rank(1)), tag: Some(tag), seq: 0 };
    // SAFETY: the test keeps `into` until it has taken the group.
    unsafe { engine.post_recv(group, 0, pattern, MemoryRegion::of_mut(into)) };
    group
}

#[test]
fn a_receive_posted_meanwhile_takes_the_message() {
    let (mut engine, steps) = engine();
    let (mut first, mut second) = ([0; 5], [0; 5]);
    steps.lock().extend(message(1, b"first").into_iter().chain(message(1, b"next!")));
    assert!(engine.progress(), "the first message begins");
    let one = receive(&mut engine, 1, &mut first);
    let two = receive(&mut engine, 1, &mut second);
    while engine.progress() {}
    assert!(engine.is_complete(one) && engine.is_complete(two));
    assert_eq!(engine.take(one).unwrap().len, 5);
    engine.take(two).unwrap();
    assert_eq!((&first, &second), (b"first", b"next!"));
}

#[test]
fn another_tag_leaves_it_alone() {
    let (mut engine, steps) = engine();
    let (mut other, mut right) = ([0; 5], [0; 5]);
    steps.lock().extend(message(1, b"first"));
    assert!(engine.progress());
    let waiting = receive(&mut engine, 2, &mut other);
    while engine.progress() {}
    assert!(!engine.is_complete(waiting));
    let late = receive(&mut engine, 1, &mut right);
    engine.take(late).unwrap();
    assert_eq!(&right, b"first");
    engine.cancel_recvs(waiting);
    engine.take(waiting).unwrap();
}

/// If an ended communicator kept the credit of messages that nobody had received, a few such messages would block
/// their sender forever.
#[test]
fn a_communicator_that_ends_gives_credit_back() {
    let (mut engine, steps, sent) = engine_that_tells();
    for _ in 0..64 {
        steps.lock().extend(message(1, &[0; 1 << 16]));
    }
    while engine.progress() {}
    assert_eq!(sent.lock().as_slice(), []);
    engine.close_context(0);
    while engine.progress() {}
    assert!(!sent.lock().is_empty() && sent.lock().iter().all(|kind| *kind == Some(FrameKind::Credit)));
}

#[test]
fn a_communicator_may_end_meanwhile() {
    let (mut engine, steps) = engine();
    steps.lock().extend(message(1, b"first").into_iter().chain(message(1, b"again")));
    assert!(engine.progress());
    engine.close_context(0);
    while engine.progress() {}
    engine.open_context(0);
    let mut room = [0; 5];
    steps.lock().extend(message(1, b"third"));
    let group = receive(&mut engine, 1, &mut room);
    while engine.progress() {}
    engine.take(group).unwrap();
    assert_eq!(&room, b"third");
}

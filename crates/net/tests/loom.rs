//! Model checking: explores every interleaving of two or three threads over the ring, the doorbell's word and the
//! claim that the memory model allows, with capacities small enough to wrap and fill.
//!
//! The three files are compiled here a second time, against `sync` below instead of the crate's own. So this is an
//! ordinary test, without `--cfg loom` and the rebuild that it would cause.

#![allow(dead_code, reason = "the files are included whole")]

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
#[path = "../src/claim.rs"]
mod claim;
#[path = "../src/frame.rs"]
mod frame;
#[path = "../src/ring.rs"]
mod ring;
#[path = "../src/doorbell/word.rs"]
mod word;

use std::ops::Deref;

use claim::{ChunkClaim, ClaimWords};
use frame::{FrameHeader, FrameKind};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use ring::{PopResult, REST_BYTES, RingConsumer, RingCorruption, RingMemory, RingProducer, RingShape};

/// A ring in loom's cells: two unordered accesses to one slot or bulk line fail the test.
struct Cells {
    stamps: Vec<AtomicU64>,
    slots: Vec<UnsafeCell<Vec<u8>>>,
    bulk: Vec<UnsafeCell<[u8; 64]>>,
    returned: [AtomicU64; 2],
}

impl Cells {
    fn new(shape: RingShape) -> Arc<Self> {
        Arc::new(Self {
            stamps: (0..shape.slots).map(|_| AtomicU64::new(0)).collect(),
            slots: (0..shape.slots).map(|_| UnsafeCell::new(vec![0; 120])).collect(),
            bulk: (0..shape.bulk_bytes / 64).map(|_| UnsafeCell::new([0; 64])).collect(),
            returned: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }
}

struct Side(Arc<Cells>);

// SAFETY: both sides hold the same cells; loom checks the rest.
unsafe impl RingMemory for Side {
    fn stamp(&self, slot: usize) -> &AtomicU64 {
        &self.0.stamps[slot]
    }
    fn returned_slots(&self) -> &AtomicU64 {
        &self.0.returned[0]
    }
    fn returned_bytes(&self) -> &AtomicU64 {
        &self.0.returned[1]
    }
    unsafe fn write_slot(&self, slot: usize, rest: &[u8; REST_BYTES], inline: &[u8]) {
        self.0.slots[slot].with_mut(|cell| {
            // SAFETY: loom has checked that nobody else accesses the cell now.
            let cell = unsafe { &mut *cell };
            cell[..REST_BYTES].copy_from_slice(rest);
            cell[REST_BYTES..REST_BYTES + inline.len()].copy_from_slice(inline);
        });
    }
    unsafe fn write_bulk(&self, offset: usize, payload: &[u8]) {
        for (line, bytes) in payload.chunks(64).enumerate() {
            // SAFETY: as above.
            self.0.bulk[offset / 64 + line]
                .with_mut(|cell| unsafe { (&mut *cell)[..bytes.len()].copy_from_slice(bytes) });
        }
    }
    unsafe fn with_slot<R>(&self, slot: usize, len: usize, read: impl FnOnce(&[u8; REST_BYTES], &[u8]) -> R) -> R {
        self.0.slots[slot].with(|cell| {
            // SAFETY: loom has checked that nobody writes the cell now.
            let cell = unsafe { &*cell };
            read(cell[..REST_BYTES].try_into().unwrap(), &cell[REST_BYTES..REST_BYTES + len])
        })
    }
    unsafe fn with_bulk<R>(&self, offset: usize, len: usize, read: impl FnOnce(&[u8]) -> R) -> R {
        let mut bytes = Vec::new();
        for line in 0..len.div_ceil(64) {
            // SAFETY: as above.
            self.0.bulk[offset / 64 + line].with(|cell| bytes.extend_from_slice(unsafe { &*cell }));
        }
        read(&bytes[..len])
    }
}

fn ends(shape: RingShape) -> (RingProducer<Side>, RingConsumer<Side>) {
    let cells = Cells::new(shape);
    // SAFETY: fresh cells, one end each.
    unsafe { (RingProducer::new(Side(cells.clone()), shape), RingConsumer::new(Side(cells), shape)) }
}

/// Interleavings with more forced switches than this are not explored; bugs in such protocols need two or three.
fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

/// Frames of all three kinds (empty, in the slot, in the bulk part) pass through a ring that they fill and wrap, in
/// order and unchanged.
fn frames_pass(shape: RingShape, lens: &'static [usize]) {
    model(2, move || {
        let (mut producer, mut consumer) = ends(shape);
        let sender = thread::spawn(move || {
            for (i, len) in lens.iter().enumerate() {
                let header = FrameHeader { seq: i as u32, ..FrameHeader::new(FrameKind::Eager, *len as u64) };
                while !producer.push(&header, &vec![i as u8 + 1; *len]).unwrap() {
                    thread::yield_now();
                }
            }
        });
        for (i, len) in lens.iter().enumerate() {
            let mut seen = false;
            while consumer
                .pop(|header, payload| {
                    seen = true;
                    assert_eq!((header.seq, header.len as usize), (i as u32, *len));
                    assert!(payload.len() == *len && payload.iter().all(|byte| *byte == i as u8 + 1));
                })
                .unwrap()
                == PopResult::Nothing
            {
                thread::yield_now();
            }
            assert!(seen);
        }
        sender.join().unwrap();
    });
}

/// More frames than slots: the second lap must wait for the first to be read.
#[test]
fn slots_are_reused_only_when_read() {
    frames_pass(RingShape { slots: 4, bulk_bytes: 512 }, &[8, 0, 8, 8, 8, 8]);
}

/// More bulk bytes than the ring has, with plenty of slots: they too must wait to be read.
#[test]
fn bulk_is_reused_only_when_read() {
    frames_pass(RingShape { slots: 16, bulk_bytes: 512 }, &[128, 100, 128, 128, 128, 128]);
}

/// The fifth payload does not fit at the end of the first lap and skips to the next one.
#[test]
fn bulk_skips_the_end_of_a_lap() {
    frames_pass(RingShape { slots: 16, bulk_bytes: 512 }, &[128, 97, 97, 128, 128]);
    frames_pass(RingShape { slots: 16, bulk_bytes: 1024 }, &[256, 256, 256, 129, 256]);
}

/// What the kernel adds to a doorbell's word, and the work that is waited for. A lost wake-up is a deadlock here,
/// which loom reports.
struct Bell {
    word: AtomicU32,
    work: AtomicU32,
    /// The kernel's lock on the queue of sleepers: the word is compared and the caller queued in one step.
    queue: Mutex<()>,
    wake: Condvar,
    /// The same for a stand-in.
    wake_stand_in: Condvar,
}

impl Bell {
    fn new() -> Arc<Self> {
        let (word, work, queue) = (AtomicU32::new(0), AtomicU32::new(0), Mutex::new(()));
        Arc::new(Self { word, work, queue, wake: Condvar::new(), wake_stand_in: Condvar::new() })
    }

    fn hand_over_work(&self) {
        self.work.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.wake(word::ring_fenced(&self.word));
    }

    fn wake(&self, bits: u32) {
        if bits != 0 {
            let _queue = self.queue.lock().unwrap();
            if bits & word::STAND_IN != 0 {
                self.wake_stand_in.notify_all();
            }
            if bits != word::STAND_IN {
                self.wake.notify_all();
            }
        }
    }

    /// A stand-in looks for work, and sleeps in between if it `sleeps`. It tells the sleepers what it finds.
    fn stand_in(&self, sleeps: bool) {
        let look = || {
            if self.work.load(Ordering::Relaxed) > 0 {
                fence(Ordering::SeqCst);
                self.wake(word::ring_all_fenced(&self.word));
            }
        };
        word::relieve(&self.word);
        look();
        while sleeps && self.work.load(Ordering::Relaxed) == 0 {
            let ticket = word::announce_stand_in(&self.word, true);
            if self.work.load(Ordering::Relaxed) == 0 {
                let queue = self.queue.lock().unwrap();
                if self.word.load(Ordering::Relaxed) == ticket {
                    drop(self.wake_stand_in.wait(queue).unwrap());
                }
            }
            word::withdraw_stand_in(&self.word);
        }
        word::resume(&self.word);
        look();
    }

    fn wait_for_work(&self, amount: u32, withdraw: bool) {
        while self.work.load(Ordering::Relaxed) < amount {
            let ticket = word::announce(&self.word, word::ON_WORD);
            if self.work.load(Ordering::Relaxed) < amount {
                let queue = self.queue.lock().unwrap();
                if self.word.load(Ordering::Relaxed) == ticket {
                    drop(self.wake.wait(queue).unwrap());
                }
            }
            if withdraw {
                word::withdraw(&self.word);
            }
        }
    }
}

fn spawn(bell: &Arc<Bell>, body: impl Fn(&Bell) + 'static) -> thread::JoinHandle<()> {
    let bell = bell.clone();
    thread::spawn(move || body(&bell))
}

/// A thread that announces its sleep and then finds no work is woken by work that comes after that.
#[test]
fn no_wake_up_is_lost() {
    model(3, || {
        let bell = Bell::new();
        let ringer = spawn(&bell, Bell::hand_over_work);
        bell.wait_for_work(1, true);
        ringer.join().unwrap();
    });
}

/// Two ringers, each with its own work, and one sleeper that needs both: an announcement cleared by one ringer must
/// not hide the next announcement from the other.
#[test]
fn two_ringers_one_sleeper() {
    model(3, || {
        let bell = Bell::new();
        let ringers = [spawn(&bell, Bell::hand_over_work), spawn(&bell, Bell::hand_over_work)];
        bell.wait_for_work(2, true);
        ringers.into_iter().for_each(|ringer| ringer.join().unwrap());
    });
}

/// One ringer, two sleepers that both need its work: the announcement of the second must not make the first, which
/// has not quite fallen asleep, mistake its own old announcement for a fresh one. (Nobody withdraws: see
/// `SleepGuard::drop`.)
#[test]
fn one_ringer_two_sleepers() {
    model(3, || {
        let bell = Bell::new();
        let sleeper = |bell: &Bell| bell.wait_for_work(1, false);
        let sleepers = [spawn(&bell, sleeper), spawn(&bell, sleeper)];
        bell.hand_over_work();
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
    });
}

/// What a ringer leaves to a stand-in, awake or asleep, reaches the sleeper that it stands in for.
#[test]
fn a_stand_in_loses_no_wake_up() {
    for sleeps in [false, true] {
        model(3, move || {
            let bell = Bell::new();
            let stand_in = spawn(&bell, move |bell: &Bell| bell.stand_in(sleeps));
            let ringer = spawn(&bell, Bell::hand_over_work);
            bell.wait_for_work(1, true);
            stand_in.join().unwrap();
            ringer.join().unwrap();
        });
    }
}

struct Words(Arc<ClaimWords>);

impl Deref for Words {
    type Target = ClaimWords;
    fn deref(&self) -> &ClaimWords {
        &self.0
    }
}

/// Two sides copy one message: each chunk is copied once, all of them are visible to the receiver when it finds the
/// message complete, and a late helper takes nothing of the next message.
#[test]
fn chunks_are_copied_once_and_seen() {
    model(3, || {
        const CHUNKS: usize = 3;
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let target: Arc<Vec<UnsafeCell<u32>>> = Arc::new((0..CHUNKS).map(|_| UnsafeCell::new(0)).collect());
        let (front, back) = (ChunkClaim::over(Words(words.clone())), ChunkClaim::over(Words(words)));
        let transfer = front.start(CHUNKS as u32);
        // SAFETY: loom fails the test if two copies of a chunk meet.
        let copy =
            |target: &[UnsafeCell<u32>], chunk: u32| target[chunk as usize].with_mut(|cell| unsafe { *cell += 1 });
        let helped = target.clone();
        let helper = thread::spawn(move || {
            while let Some(chunk) = back.take_back(transfer) {
                copy(&helped, chunk);
                back.finish(1);
            }
        });
        while let Some(chunk) = front.take_front(transfer) {
            copy(&target, chunk);
            front.finish(1);
        }
        while !front.is_complete(transfer) {
            thread::yield_now();
        }
        // SAFETY: loom fails the test if a copy is not ordered before this.
        assert!(target.iter().all(|cell| cell.with(|cell| unsafe { *cell }) == 1));
        // The helper may still be about to look for more.
        let next = front.start(1);
        assert_eq!(front.take_front(next), Some(0), "a late helper took a chunk of the next transfer");
        helper.join().unwrap();
    });
}

fn claim() -> ChunkClaim<Box<ClaimWords>> {
    ChunkClaim::over(Box::default())
}

#[test]
fn both_ends_meet() {
    model(0, || {
        let claim = claim();
        let transfer = claim.start(3);
        assert_eq!(claim.take_front(transfer), Some(0));
        assert_eq!(claim.take_back(transfer), Some(2));
        assert_eq!(claim.take_back(transfer), Some(1));
        assert_eq!((claim.take_front(transfer), claim.take_back(transfer)), (None, None));
        claim.finish(2);
        assert!(!claim.is_complete(transfer));
        claim.finish(1);
        assert!(claim.is_complete(transfer));
    });
}

#[test]
fn empty_transfer_is_complete_at_once() {
    model(0, || {
        let claim = claim();
        let transfer = claim.start(0);
        assert_eq!(claim.take_front(transfer), None);
        assert!(claim.is_complete(transfer));
    });
}

/// A sender that assumes more chunks than there are, or fewer, must not get one outside its range.
#[test]
fn chunks_are_in_range_for_their_taker() {
    model(0, || {
        let claim = claim();
        let transfer = claim.start(9);
        assert_eq!(claim.take_back(claim::ChunkTransfer { chunks: 8, ..transfer }), None);
    });
}

/// The generation has 24 bits: after the last comes zero.
#[test]
fn generations_wrap() {
    model(0, || {
        let words: ClaimWords = [AtomicU64::new(((1 << 24) - 1) << 40), AtomicU64::new(0)];
        let claim = ChunkClaim::over(Box::new(words));
        let transfer = claim.start(1);
        assert_eq!(transfer.generation, 0);
        assert_eq!(claim.take_back(transfer), Some(0));
    });
}

/// Whatever a broken peer writes into the words of a ring gives an error, never a wrong slice or a crash.
#[test]
fn corruption_is_noticed() {
    let shape = RingShape { slots: 4, bulk_bytes: 512 };
    let header = FrameHeader::new(FrameKind::Eager, 1);
    model(0, move || {
        let cells = Cells::new(shape);
        // SAFETY: fresh cells, one consumer.
        let mut consumer = unsafe { RingConsumer::new(Side(cells.clone()), shape) };
        let mut pop = |stamp: u64| {
            cells.stamps[0].store(stamp, Ordering::Relaxed);
            consumer.pop(|_, _| panic!("a frame out of nowhere"))
        };
        assert_eq!(pop(0), Ok(PopResult::Nothing));
        assert_eq!(pop(7 << 32), Err(RingCorruption::Turn { found: 7, expected: 1 }));
        assert_eq!(pop(1 << 32 | 129), Err(RingCorruption::Length { len: 129, max: 128 }));
        assert_eq!(pop(u64::MAX), Err(RingCorruption::Turn { found: u32::MAX, expected: 1 }));
    });
    for (slots, bytes) in [(5, 0), (u64::MAX, 0), (4, 64), (4, u64::MAX)] {
        model(0, move || {
            let cells = Cells::new(shape);
            // SAFETY: fresh cells, one producer.
            let mut producer = unsafe { RingProducer::new(Side(cells.clone()), shape) };
            for _ in 0..4 {
                assert_eq!(producer.push(&header, &[1]), Ok(true));
            }
            cells.returned[0].store(slots, Ordering::Relaxed);
            cells.returned[1].store(bytes, Ordering::Relaxed);
            assert_eq!(producer.push(&header, &[1]), Err(RingCorruption::Returned));
        });
    }
}

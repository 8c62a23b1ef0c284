//! Frames between workers of one host are not transmitted: they are written into memory that both workers map, and
//! used there until nothing refers to them. Only their location is sent. Neither the kernel nor a copy is involved.
//!
//! Every worker has such memory ([`LentSegment`]), which the others of its host have mapped ([`BorrowedSegment`]).
//! The borrower reports when nothing refers to a frame any more, and its place is reused. A program that keeps rows
//! for long keeps places occupied; when none are left, frames are sent as messages, as they are to other hosts.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arrow::buffer::Buffer;
use parking_lot::Mutex;
use tidemill_batch::frame_buffers::{FrameBuffer, SegmentAllocator};
use tidemill_batch::wire::{Frame, HEADER_BYTES, ReceivedFrame, WireHeader, WireKind};
use tidemill_collective::Communicator;
use tidemill_net::{Segment, SegmentError, notice};

use super::Links;
use crate::error::DataflowError;

/// The most that a worker lends, and the fraction of its memory budget (1 / `BUDGET_SHARE`) that limits it.
const LENT_BYTES_MAX: u64 = 32 << 20;
const BUDGET_SHARE: u64 = 16;
/// With less, lending is not worthwhile.
const LENT_BYTES_MIN: u64 = 1 << 20;
/// Smaller frames cost less to copy than to lend and return.
const FRAME_BYTES_MIN: usize = 16 << 10;
/// A borrower returns frames in lots, so that the lender is not disturbed for each one: once the lots of all borrowers
/// may add up to this fraction (1 / `LOT_SHARE`) of the lent memory.
const LOT_SHARE: usize = 16;

/// What the workers of a runner lend each other. It outlives runs, because lent frames do.
#[derive(Default)]
pub(crate) struct MemoryLoans {
    lender: Option<LentSegment>,
    /// By worker.
    borrowed: Vec<Option<Arc<BorrowedSegment>>>,
}

/// This worker's memory.
struct LentSegment {
    space: Arc<SegmentAllocator>,
    /// The workers that have mapped it.
    borrowers: Vec<bool>,
    /// By worker and place: what has not been returned.
    lent: Mutex<HashMap<(u32, u64), Buffer>>,
}

/// Another worker's memory.
struct BorrowedSegment {
    segment: Segment,
    /// Fewer bytes than this are returned only along with other frames.
    lot_bytes: usize,
    returned: Mutex<PendingReturns>,
}

/// Places to be returned.
#[derive(Default)]
struct PendingReturns {
    places: Vec<u64>,
    bytes: usize,
}

/// What a worker tells the others about its memory: its process, the descriptor (or -1), its length, and its first
/// word.
type SegmentOffer = [u64; 4];

impl MemoryLoans {
    /// Creates this worker's memory, and maps the other workers' memory. Collective.
    ///
    /// # Errors
    /// The job's fault.
    pub(crate) fn agree(comm: &Communicator, budget_bytes: u64) -> Result<Arc<Self>, DataflowError> {
        let (me, size, endpoint) = (comm.rank() as usize, comm.size() as usize, comm.endpoint());
        let near = |worker: usize| worker != me && endpoint.shares_memory_with(comm.world_rank(worker as u32));
        let len = lent_bytes(budget_bytes) as usize;
        let told = |error: SegmentError| notice!(endpoint.rank(), "frames to workers of this host are copied: {error}");
        let mut segment = None;
        if len > 0 && (0..size).any(near) {
            segment = Segment::create(len).map_err(told).ok();
        }
        let mark = RandomState::new().hash_one(std::process::id());
        let mut offer: SegmentOffer = [u64::from(std::process::id()), u64::MAX, len as u64, mark];
        if let Some((segment, fd)) = segment.as_ref().and_then(|segment| Some((segment, segment.fd()?))) {
            marked(segment).store(mark, Ordering::Release);
            offer[1] = fd as u64;
        }
        let mut offers = vec![0; size * offer.len()];
        comm.allgather(&offer, &mut offers)?;
        let (offers, _) = offers.as_chunks::<4>();
        let borrowers = (0..size).filter(|&worker| near(worker)).count().max(1);
        let open = |worker: usize| -> Option<Arc<BorrowedSegment>> {
            let [pid, fd, len, mark] = offers[worker];
            let fd = i32::try_from(fd).ok().filter(|_| near(worker))?;
            let segment = Segment::open(pid as u32, fd, len as usize).map_err(told).ok()?;
            let lot_bytes = len as usize / LOT_SHARE / borrowers;
            // In another PID namespace the number may belong to another process.
            (marked(&segment).load(Ordering::Acquire) == mark)
                .then(|| Arc::new(BorrowedSegment { segment, lot_bytes, returned: Mutex::default() }))
        };
        let borrowed: Vec<Option<Arc<BorrowedSegment>>> = (0..size).map(open).collect();
        // Whose memory each worker has mapped, one word each.
        let mine: Vec<u64> = borrowed.iter().map(|one| u64::from(one.is_some())).collect();
        let mut theirs = vec![0; size * size];
        comm.allgather(&mine, &mut theirs)?;
        let lender = segment.map(|segment| LentSegment {
            space: SegmentAllocator::new(segment.closed()),
            borrowers: theirs.chunks_exact(size).map(|of| of[me] == 1).collect(),
            lent: Mutex::default(),
        });
        Ok(Arc::new(MemoryLoans { lender, borrowed }))
    }

    /// A buffer for a frame of `len` bytes that some of these workers can read in place; they may pass it on.
    pub(super) fn buffer(&self, len: usize, to: impl Iterator<Item = u32>, passed_on: bool) -> Option<FrameBuffer> {
        let lender = self.lender.as_ref().filter(|_| len >= FRAME_BYTES_MIN)?;
        let (mut some, mut all) = (false, !passed_on);
        for worker in to {
            let lends = lender.lends_to(worker);
            (some, all) = (some || lends, all && lends);
        }
        let place = if some { lender.space.take(len) } else { None };
        place.map(|place| FrameBuffer::shared(place, all))
    }

    /// The message that tells a worker about a frame that it can read in place; `None` if it cannot.
    pub(super) fn offer(&self, to: u32, frame: &[u8], run: u32) -> Option<Frame> {
        let lender = self.lender.as_ref().filter(|lender| lender.lends_to(to))?;
        let offset = lender.space.offset_of(frame)?;
        Some(Frame::header_only(&WireHeader {
            seq: offset as u64,
            rows: frame.len() as u64,
            ..WireHeader::new(WireKind::Lent, run)
        }))
    }

    /// Records that a frame is lent to a worker that has been told about it, until it is returned.
    pub(super) fn lend(&self, to: u32, frame: Buffer) {
        if let Some(lender) = &self.lender
            && let Some(offset) = lender.space.offset_of(&frame)
        {
            lender.lent.lock().insert((to, offset as u64), frame);
        }
    }

    /// Handles the return of a frame by a worker.
    ///
    /// # Errors
    /// A description, if the worker had no frame there.
    pub(super) fn take_back(&self, from: u32, told: &ReceivedFrame) -> Result<(), String> {
        told.verify().map_err(|error| error.to_string())?;
        let lent = self.lender.as_ref().and_then(|lender| lender.lent.lock().remove(&(from, told.header.seq)));
        lent.map(drop).ok_or_else(|| format!("it returned a loan that was never made, at {}", told.header.seq))
    }

    /// The frame that another worker lends.
    ///
    /// # Errors
    /// A description, if the message is invalid.
    pub(super) fn borrow(&self, from: u32, told: &ReceivedFrame, links: Weak<Links>) -> Result<ReceivedFrame, String> {
        told.verify().map_err(|error| error.to_string())?;
        let of =
            self.borrowed.get(from as usize).and_then(Option::as_ref).ok_or("it lends memory that is not mapped")?;
        let (offset, len) = (told.header.seq, told.header.rows);
        let fits = offset.checked_add(len).is_some_and(|end| end <= of.segment.len() as u64);
        if !fits || !offset.is_multiple_of(HEADER_BYTES as u64) {
            return Err(format!("it lends {len} bytes at {offset} of {}", of.segment.len()));
        }
        // SAFETY: within the segment, as just checked.
        let ptr = unsafe { of.segment.base().add(offset as usize) };
        let borrow =
            Arc::new(AssertUnwindSafe(BorrowedFrame { of: Arc::clone(of), offset, bytes: len as usize, links }));
        // SAFETY: the buffer owns the borrow, which keeps the memory mapped, and whose lender does not touch those
        // bytes until it is dropped.
        let bytes = unsafe { Buffer::from_custom_allocation(ptr, len as usize, borrow) };
        let frame = ReceivedFrame::from_lent(bytes).map_err(|error| error.to_string())?;
        match frame.header.kind == WireKind::Batch && frame.header.run == told.header.run {
            true => Ok(frame),
            false => Err(format!("it lends a {:?} frame of run {}", frame.header.kind, frame.header.run)),
        }
    }

    /// Whether any borrowed frame must be returned.
    pub(super) fn has_returns(&self) -> bool {
        self.borrowed.iter().flatten().any(|of| !of.returned.lock().places.is_empty())
    }

    /// The returns to send, and their recipients.
    pub(super) fn to_return(&self, run: u32) -> impl Iterator<Item = (u32, Frame)> {
        let by_worker = (0..).zip(&self.borrowed).filter_map(|(worker, of)| Some((worker, of.as_ref()?)));
        by_worker.flat_map(move |(worker, of)| {
            let returned = std::mem::take(&mut *of.returned.lock());
            let frame = move |seq| {
                (worker, Frame::header_only(&WireHeader { seq, ..WireHeader::new(WireKind::Returned, run) }))
            };
            returned.places.into_iter().map(frame)
        })
    }
}

impl LentSegment {
    fn lends_to(&self, worker: u32) -> bool {
        self.borrowers.get(worker as usize).is_some_and(|borrows| *borrows)
    }
}

fn lent_bytes(budget_bytes: u64) -> u64 {
    match budget_bytes {
        0 => LENT_BYTES_MAX,
        budget if budget / BUDGET_SHARE < LENT_BYTES_MIN => 0,
        budget => (budget / BUDGET_SHARE).min(LENT_BYTES_MAX),
    }
}

/// The first word of a segment, which identifies it as the announced one. No place begins there.
fn marked(segment: &Segment) -> &AtomicU64 {
    // SAFETY: segments are mapped, have a page at least, and begin on one.
    unsafe { segment.base().cast().as_ref() }
}

/// One frame's use of another worker's memory.
struct BorrowedFrame {
    of: Arc<BorrowedSegment>,
    offset: u64,
    bytes: usize,
    links: Weak<Links>,
}

impl Drop for BorrowedFrame {
    fn drop(&mut self) {
        let mut returned = self.of.returned.lock();
        returned.places.push(self.offset);
        returned.bytes += self.bytes;
        let lot = returned.bytes >= self.of.lot_bytes;
        drop(returned);
        // After the run, the next run returns it.
        if lot && let Some(links) = self.links.upgrade() {
            links.queue_return();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use arrow::array::{AsArray, Int64Array, RecordBatch};
    use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
    use tidemill_batch::memory::MemorySettings;
    use tidemill_collective::run_ranks;
    use tidemill_net::{Endpoint, Rank};

    use super::*;
    use crate::exchange::Partition;
    use crate::run::{Runner, RunnerSettings};
    use crate::{Graph, StreamElement, TaskSpec};

    const ROWS: i64 = 8192;

    /// Sends `batches` batches from each worker, by key; every target keeps everything until its end. Returns their
    /// sum on this worker, and whether something was lent at the end.
    fn exchange(runner: &Runner, batches: i64) -> (i64, bool) {
        let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
        let (sent, loans, (sender, found)) = (SchemaRef::clone(&schema), Arc::clone(&runner.loans), channel());
        let source = TaskSpec::new("source", move |_, outputs, _| {
            let schema = SchemaRef::clone(&sent);
            async move {
                let mut output = outputs.into_only();
                for batch in 0..batches {
                    let numbers = Int64Array::from_iter_values(batch * ROWS..(batch + 1) * ROWS);
                    output.send(RecordBatch::try_new(SchemaRef::clone(&schema), vec![Arc::new(numbers)])?).await?;
                }
                Ok(())
            }
        });
        let target = TaskSpec::new("target", move |inputs, _, _| {
            let (loans, sender) = (Arc::clone(&loans), sender.clone());
            async move {
                let (mut input, mut kept) = (inputs.into_only(), Vec::new());
                while let Some(StreamElement::Batch(batch)) = input.recv().await? {
                    kept.push(batch);
                }
                let sum =
                    |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().iter().sum::<i64>();
                let lent = loans.lender.as_ref().is_some_and(|lender| !lender.lent.lock().is_empty());
                Ok(sender.send((kept.iter().map(sum).sum(), lent))?)
            }
        });
        let mut graph = Graph::new("kept");
        let (source, target) = (graph.add(source.output("out", schema)), graph.add(target.input("in")));
        graph.connect(source, target, Partition::by_key(["n"]));
        runner.run(&graph).unwrap();
        found.recv().unwrap()
    }

    /// Reusing a place while someone reads it would corrupt data, and a place that never came back would be lost
    /// memory. Here the targets keep more than is lent at all.
    #[test]
    fn kept_frames_stay_and_are_returned_later() {
        let batches = 3 * LENT_BYTES_MAX as i64 / (ROWS * 8);
        let found = run_ranks(2, |comm| {
            let runner = Runner::new(&comm, RunnerSettings::default()).unwrap();
            let many = [(); 2].map(|()| exchange(&runner, batches));
            // What is dropped after a run is returned in the next one.
            exchange(&runner, 0);
            let lender = runner.loans.lender.as_ref().expect("workers of one process share memory");
            assert!(lender.lent.lock().is_empty());
            let whole = LENT_BYTES_MAX as usize - 4096;
            assert!(lender.space.take(whole).is_some(), "all of it is free again");
            many
        });
        let found = found.unwrap();
        let rows = batches * ROWS;
        for run in 0..2 {
            assert_eq!(found.iter().map(|of| of[run].0).sum::<i64>(), rows * (rows - 1));
            assert!(found.iter().any(|of| of[run].1), "whoever ended first saw what the other one keeps");
        }
    }

    /// A small budget leaves nothing for frames, and without shared memory there is nothing to lend.
    #[test]
    fn the_budget_bounds_what_is_lent() {
        assert_eq!(lent_bytes(0), LENT_BYTES_MAX);
        assert_eq!(lent_bytes(8 << 20), 0);
        assert_eq!(lent_bytes(256 << 20), 16 << 20);
        assert_eq!(lent_bytes(64 << 30), LENT_BYTES_MAX);
        let found = run_ranks(2, |comm| {
            let memory = MemorySettings { budget_bytes: 8 << 20, ..MemorySettings::default() };
            let runner = Runner::new(&comm, RunnerSettings { memory, ..RunnerSettings::default() }).unwrap();
            (runner.loans.lender.is_none(), exchange(&runner, 10))
        });
        let found = found.unwrap();
        assert!(found.iter().all(|(none, (_, lent))| *none && !lent));
        assert_eq!(found.iter().map(|(_, (sum, _))| sum).sum::<i64>(), 10 * ROWS * (10 * ROWS - 1));
    }

    /// A peer's claims about its memory are rejected if they are impossible.
    #[test]
    fn invalid_offers_are_refused() {
        let endpoints = Endpoint::in_process(2).unwrap();
        let segment = Segment::private(1 << 20).unwrap();
        let borrowed =
            vec![None, Some(Arc::new(BorrowedSegment { segment, lot_bytes: 100, returned: Mutex::default() }))];
        let loans = Arc::new(MemoryLoans { lender: None, borrowed });
        let links = Links::new(endpoints[0].clone(), 9, 0, 7, &[Rank(0), Rank(1)], None, &loans);
        let told = |kind, seq, rows| {
            let frame = Frame::header_only(&WireHeader { seq, rows, ..WireHeader::new(kind, 7) });
            ReceivedFrame::take(&mut frame.into_buffer()).unwrap()
        };
        let refused = |from, seq, rows| {
            loans.borrow(from, &told(WireKind::Lent, seq, rows), Arc::downgrade(&links)).map(|_| ()).unwrap_err()
        };
        assert!(refused(0, 4096, 64).contains("not mapped"));
        assert!(refused(5, 4096, 64).contains("not mapped"));
        for (seq, rows) in [(1 << 20, 64), (4096, 1 << 20), (u64::MAX - 63, 128), (4097, 64)] {
            assert!(refused(1, seq, rows).contains("it lends"), "{rows} at {seq}");
        }
        assert!(refused(1, 4096, 64).contains("not a frame"), "there are only zeros");
        let returned = || loans.borrowed[1].as_ref().unwrap().returned.lock().places.clone();
        assert_eq!(returned(), [4096], "it is returned all the same");
        assert!(!links.is_dirty(), "but not for itself");
        refused(1, 8192, 64);
        assert!(links.is_dirty() && returned() == [4096, 8192]);
        assert!(loans.take_back(1, &told(WireKind::Returned, 4096, 0)).unwrap_err().contains("never made"));
        endpoints.iter().for_each(Endpoint::leave);
    }
}

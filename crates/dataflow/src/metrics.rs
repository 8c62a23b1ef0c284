//! What a worker counts on every edge while a graph runs, and the report at the end of a run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidemill_checkpoint::EventTime;

use crate::observation::{KeySketch, WaitClock};

/// Rows and bytes that this worker has sent to each bucket of a keyed edge, and how long its copies have worked on
/// the bucket.
#[derive(Debug, Default)]
pub struct BucketCounts {
    rows: Vec<AtomicU64>,
    bytes: Vec<AtomicU64>,
    work_ns: Vec<AtomicU64>,
    /// The most frequent keys of these rows.
    pub(crate) frequent: Mutex<KeySketch>,
}

fn loaded(counters: &[AtomicU64]) -> Vec<u64> {
    counters.iter().map(|n| n.load(Ordering::Relaxed)).collect()
}

impl BucketCounts {
    pub(crate) fn new(buckets: usize) -> Arc<Self> {
        let zeros = || (0..buckets).map(|_| AtomicU64::new(0)).collect();
        Arc::new(BucketCounts { rows: zeros(), bytes: zeros(), work_ns: zeros(), frequent: Mutex::default() })
    }

    pub(crate) fn add(&self, bucket: usize, rows: u64, bytes: u64) {
        self.rows[bucket].fetch_add(rows, Ordering::Relaxed);
        self.bytes[bucket].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn work(&self, bucket: usize, ns: u64) {
        self.work_ns[bucket].fetch_add(ns, Ordering::Relaxed);
    }

    /// The rows by bucket.
    pub fn rows(&self) -> Vec<u64> {
        loaded(&self.rows)
    }

    /// The bytes by bucket. For some batches, estimated from each bucket's share of the rows.
    pub fn bytes(&self) -> Vec<u64> {
        loaded(&self.bytes)
    }

    /// The approximate time, by bucket, that copies of this worker have worked on what they received, extrapolated
    /// from a sample of the batches.
    pub fn work_ns(&self) -> Vec<u64> {
        loaded(&self.work_ns)
    }
}

/// The counters of one edge on one worker; they may be read while the graph runs.
#[derive(Debug, Default)]
pub struct EdgeMetrics {
    pub(crate) rows_sent: AtomicU64,
    pub(crate) rows_received: AtomicU64,
    pub(crate) local_blocks: AtomicU64,
    pub(crate) local_bytes: AtomicU64,
    pub(crate) remote_blocks: AtomicU64,
    pub(crate) remote_bytes: AtomicU64,
    pub(crate) late_rows: AtomicU64,
    pub(crate) blocked: WaitClock,
    pub(crate) buckets: OnceLock<Arc<BucketCounts>>,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl EdgeMetrics {
    /// The counts of `count` buckets.
    pub(crate) fn buckets(&self, count: u32) -> &Arc<BucketCounts> {
        self.buckets.get_or_init(|| BucketCounts::new(count as usize))
    }

    /// How many rows this worker's copies have sent and received.
    pub(crate) fn rows(&self) -> (u64, u64) {
        (self.rows_sent.load(Ordering::Relaxed), self.rows_received.load(Ordering::Relaxed))
    }

    pub(crate) fn report(&self, edge: &str, queue_bytes_max: u64) -> EdgeReport {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EdgeReport {
            edge: edge.to_owned(),
            rows_sent: load(&self.rows_sent),
            rows_received: load(&self.rows_received),
            local_blocks: load(&self.local_blocks),
            local_bytes: load(&self.local_bytes),
            remote_blocks: load(&self.remote_blocks),
            remote_bytes: load(&self.remote_bytes),
            late_rows: load(&self.late_rows),
            blocked_ns: self.blocked.waited_ns(Instant::now()),
            queue_bytes_max,
            queue_bytes: 0,
            time: None,
            held_by: None,
            bucket_rows: self.buckets.get().map(|buckets| buckets.rows()).unwrap_or_default(),
            bucket_bytes: self.buckets.get().map(|buckets| buckets.bytes()).unwrap_or_default(),
            bucket_work_ns: self.buckets.get().map(|buckets| buckets.work_ns()).unwrap_or_default(),
        }
    }
}

/// What one worker counted on one edge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeReport {
    /// The edge, as errors and plans name it.
    pub edge: String,
    /// Rows that this worker's copies sent; a row broadcast to many counts once.
    pub rows_sent: u64,
    /// Rows that this worker's copies received; a row broadcast to two of them counts twice.
    pub rows_received: u64,
    /// Batches handed to copies of the same worker.
    pub local_blocks: u64,
    /// The bytes of these batches.
    pub local_bytes: u64,
    /// Blocks sent to other workers, forwarded ones included.
    pub remote_blocks: u64,
    /// The bytes of these blocks on the wire.
    pub remote_bytes: u64,
    /// By rounds of event time: rows that were left out because their round had gone on without them, or they have no
    /// time.
    #[serde(default)]
    pub late_rows: u64,
    /// Time its copies waited for credit, together; waits count while they last.
    pub blocked_ns: u64,
    /// The largest number of bytes queued at one of its copies.
    pub queue_bytes_max: u64,
    /// The bytes currently queued at its copies.
    pub queue_bytes: u64,
    /// The time of its copies, for the one that is furthest behind: every row with an earlier event time has arrived
    /// there.
    pub time: Option<EventTime>,
    /// The source copy that holds that time back, if it belongs to this edge.
    pub held_by: Option<u32>,
    /// For keyed edges: rows sent by bucket.
    pub bucket_rows: Vec<u64>,
    /// For keyed edges: bytes sent by bucket.
    pub bucket_bytes: Vec<u64>,
    /// For keyed edges: how long its copies worked on what they received, by bucket, including waits for room further
    /// down.
    pub bucket_work_ns: Vec<u64>,
}

/// What one worker counted in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunReport {
    /// Every edge, including those inside exchanges.
    pub edges: Vec<EdgeReport>,
    /// The time from the first copy's start to the last worker's end.
    pub wall_ns: u64,
    /// Bytes written to the spill directory.
    pub spilled_bytes: u64,
}

impl RunReport {
    /// The first edge whose name contains `part`.
    pub fn edge(&self, part: &str) -> Option<&EdgeReport> {
        self.edges.iter().find(|edge| edge.edge.contains(part))
    }
}

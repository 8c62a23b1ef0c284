//! The counters of workers. All counters start with the run and never decrease, unless noted.

use serde::Serialize;

/// What one worker has counted up to a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkerSample {
    /// The worker.
    pub worker: u32,
    /// Nanoseconds since the worker began the run, by its own clock, when the counters were read.
    pub at_ns: u64,
    /// CPU time of its process, in nanoseconds.
    pub cpu_ns: u64,
    /// Time in which its threads were ready to run but waited for a CPU, in nanoseconds, summed over all threads.
    pub cpu_wait_ns: u64,
    /// Its links to other workers, and one to itself for what its copies wait for among each other. Links that are
    /// not used yet are missing.
    pub links: Vec<LinkCounters>,
    /// Tasks with copies on this worker.
    pub tasks: Vec<TaskCounters>,
    /// When `buckets` were read, as `at_ns`: they are reported less often than the rest.
    pub buckets_at_ns: u64,
    /// Buckets that it has sent rows to, or that its copies have worked on.
    pub buckets: Vec<BucketCounters>,
    /// The most frequent keys that it has recently sent, according to a sketch.
    pub heavy_keys: Vec<HeavyKey>,
}

/// A link from a worker to another one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LinkCounters {
    /// The other worker.
    pub peer: u32,
    /// Bytes handed to the link.
    pub sent_bytes: u64,
    /// Bytes that currently wait in front of it or are in transit.
    pub queued_bytes: u64,
    /// Time in which something waited in front of it, in nanoseconds.
    pub busy_ns: u64,
    /// Time in which senders waited for room on it, summed over senders, in nanoseconds.
    pub link_wait_ns: u64,
    /// Time in which senders waited for credit of copies on the other worker, summed over senders, in nanoseconds.
    pub credit_wait_ns: u64,
    /// What the kernel knows about it; `None` for links in shared memory.
    pub tcp: Option<TcpCounters>,
}

/// `TCP_INFO` of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TcpCounters {
    /// The current (most recent) delivery rate, in bytes per second.
    pub delivery_bytes_s: u64,
    /// Whether the sender had too little to send during that measurement, so that the link may carry more. A current
    /// value.
    pub app_limited: bool,
    /// The current smoothed round-trip time, in microseconds.
    pub rtt_us: u64,
    /// The current smallest round-trip time, in microseconds.
    pub min_rtt_us: u64,
    /// Bytes that the other end has acknowledged.
    pub acked_bytes: u64,
    /// Time in which it had something to send, in microseconds.
    pub busy_us: u64,
    /// How much of that time the receiver's window limited it, in microseconds.
    pub receiver_limited_us: u64,
    /// How much of that time its own buffer limited it, in microseconds.
    pub buffer_limited_us: u64,
    /// How many segments were retransmitted.
    pub retransmits: u64,
}

/// A task's copies on one worker, summed up.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TaskCounters {
    /// The task, as an index into the layout's.
    pub task: u32,
    /// The number of copies on this worker.
    pub copies: u32,
    /// Time in which they worked, in nanoseconds; waits are counted while they last.
    pub busy_ns: u64,
    /// Time in which they waited for others to receive their output.
    pub blocked_ns: u64,
    /// Time in which they waited for input.
    pub idle_ns: u64,
    /// How much of `busy_ns` functions ran in the program's interpreter or waited for it.
    pub interpreter_ns: u64,
    /// Rows received.
    pub rows_in: u64,
    /// Rows sent.
    pub rows_out: u64,
}

/// A bucket of a keyed task, as one worker sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BucketCounters {
    /// The task, as an index into the layout's.
    pub task: u32,
    /// The bucket.
    pub bucket: u32,
    /// Rows that this worker has sent to it.
    pub rows: u64,
    /// Bytes that this worker has sent to it.
    pub bytes: u64,
    /// Time that copies of this worker have worked on it, in nanoseconds.
    pub work_ns: u64,
}

/// A frequent key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeavyKey {
    /// The task that is partitioned by it, as an index into the layout's.
    pub task: u32,
    /// Its bucket.
    pub bucket: u32,
    /// The key, as text.
    pub key: String,
    /// Approximately how many rows with it this worker has recently sent; decreases as older rows are forgotten.
    pub rows: u64,
    /// The rows of all keys in the same time.
    pub all_rows: u64,
}

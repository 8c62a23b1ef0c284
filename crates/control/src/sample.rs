//! What workers count. All counters run from the begin of the run and never fall, unless they say so.

use serde::Serialize;

/// What one worker has counted until a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkerSample {
    /// The worker.
    pub worker: u32,
    /// Nanoseconds since the worker began the run, by its own clock, when the counters were read.
    pub at_ns: u64,
    /// CPU time of its process, in nanoseconds.
    pub cpu_ns: u64,
    /// Time that its threads were ready to run and waited for a CPU, in nanoseconds, of all threads together.
    pub cpu_wait_ns: u64,
    /// Its links to other workers, and one to itself for what its copies wait for each other; those not used yet are
    /// missing.
    pub links: Vec<LinkCounters>,
    /// Tasks with copies on this worker.
    pub tasks: Vec<TaskCounters>,
    /// Buckets that it has sent rows to, or that its copies have worked on.
    pub buckets: Vec<BucketCounters>,
    /// The most frequent keys that it has sent lately, by a sketch.
    pub heavy_keys: Vec<HeavyKey>,
}

/// A link from a worker to another one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LinkCounters {
    /// The other worker.
    pub peer: u32,
    /// Bytes handed to the link.
    pub sent_bytes: u64,
    /// Bytes that wait in front of it or are under way: now.
    pub queued_bytes: u64,
    /// Time that something waited in front of it, in nanoseconds.
    pub busy_ns: u64,
    /// Time that senders waited for room on it, all of them together, in nanoseconds.
    pub link_wait_ns: u64,
    /// Time that senders waited for credit of copies on the other worker, all of them together, in nanoseconds.
    pub credit_wait_ns: u64,
    /// What the kernel knows of it; `None` of links in shared memory.
    pub tcp: Option<TcpCounters>,
}

/// `TCP_INFO` of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TcpCounters {
    /// The newest delivery rate, in bytes per second: now.
    pub delivery_bytes_s: u64,
    /// Whether the sender had too little to send when that was measured: the link may carry more. Now.
    pub app_limited: bool,
    /// Smoothed round-trip time in microseconds: now.
    pub rtt_us: u64,
    /// Smallest round-trip time in microseconds: now.
    pub min_rtt_us: u64,
    /// Bytes that the other end has acknowledged.
    pub acked_bytes: u64,
    /// Time that it had something to send, in microseconds.
    pub busy_us: u64,
    /// Time of that in which the receiver's window held it up, in microseconds.
    pub receiver_limited_us: u64,
    /// Time of that in which its own buffer held it up, in microseconds.
    pub buffer_limited_us: u64,
    /// Segments sent again.
    pub retransmits: u64,
}

/// A task's copies on one worker, together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TaskCounters {
    /// The task, as an index into the layout's.
    pub task: u32,
    /// Copies on this worker.
    pub copies: u32,
    /// Time in which they worked, in nanoseconds; waits are counted while they last.
    pub busy_ns: u64,
    /// Time in which they waited for others to take what they had.
    pub blocked_ns: u64,
    /// Time in which they waited for input.
    pub idle_ns: u64,
    /// Time of `busy_ns` in which functions of the program's interpreter ran or waited for it.
    pub interpreter_ns: u64,
    /// Rows taken.
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

/// A key that many rows have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeavyKey {
    /// The task that is dealt by it, as an index into the layout's.
    pub task: u32,
    /// Its bucket.
    pub bucket: u32,
    /// It, as text.
    pub key: String,
    /// Rows that this worker has sent of it lately, about: falls as older rows are forgotten.
    pub rows: u64,
    /// Rows of all keys in the same time.
    pub all_rows: u64,
}

//! The controller's report: rates, causes and decisions, as `tidemill top` shows them.

use serde::Serialize;

/// The state of a job over the last seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClusterReport {
    /// The number of seconds that rates cover.
    pub span_s: f64,
    /// By host, as in the layout.
    pub hosts: Vec<HostReport>,
    /// Between different hosts, where anything is sent.
    pub links: Vec<HostLinkReport>,
    /// By task, as in the layout.
    pub tasks: Vec<TaskReport>,
    /// What slows the job down, the heaviest cause first; empty if nothing waits.
    pub causes: Vec<Cause>,
    /// The controller's mode: "off", "advise" or "on".
    pub controller: String,
    /// Its last 100 decisions, the newest last.
    pub decisions: Vec<Decision>,
}

/// A host with all its workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostReport {
    /// Its name.
    pub name: String,
    /// Its workers.
    pub workers: Vec<u32>,
    /// CPUs that the job may use there.
    pub cores: f64,
    /// CPUs that it currently uses.
    pub cpus_used: f64,
    /// How many threads are ready but wait for a CPU, on average.
    pub cpus_waited: f64,
    /// Bytes per second to other hosts.
    pub out_bytes_s: f64,
    /// Bytes per second from other hosts.
    pub in_bytes_s: f64,
    /// What it could send, in bytes per second, if its link has ever been full.
    pub out_capacity: Option<f64>,
    /// What it could receive, likewise.
    pub in_capacity: Option<f64>,
}

/// The traffic from one host to another, over all links between their workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostLinkReport {
    /// The sending host.
    pub from: u32,
    /// The receiving host.
    pub to: u32,
    /// Bytes per second.
    pub bytes_s: f64,
    /// What it could carry, in bytes per second, if it has ever been full.
    pub capacity: Option<f64>,
    /// The fraction of the time in which something waited in front of it, 0 to 1.
    pub busy: f64,
    /// How many senders waited for room on it, on average.
    pub link_wait: f64,
    /// How many senders waited for credit of copies behind it, on average.
    pub credit_wait: f64,
    /// How many bytes wait.
    pub queued_bytes: u64,
    /// Smoothed round-trip time in microseconds; `None` in shared memory.
    pub rtt_us: Option<u64>,
}

/// A task.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TaskReport {
    /// Its name.
    pub name: String,
    /// By worker that has copies of it.
    pub workers: Vec<TaskWorkerReport>,
    /// Its buckets, if it is partitioned by key.
    pub buckets: Option<BucketReport>,
    /// Its most frequent keys, the heaviest first.
    pub heavy_keys: Vec<HeavyKeyReport>,
}

/// A task's copies on one worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TaskWorkerReport {
    /// The worker.
    pub worker: u32,
    /// The number of its copies there.
    pub copies: u32,
    /// The fraction of their time in which they work, 0 to 1.
    pub busy: f64,
    /// The fraction in which they wait for others to receive their output.
    pub blocked: f64,
    /// The fraction in which they wait for input.
    pub idle: f64,
    /// Rows received per second; for a source, rows sent.
    pub rows_s: f64,
}

/// The buckets of a task; all lists are by bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BucketReport {
    /// The host that owns it.
    pub hosts: Vec<u32>,
    /// Rows per second.
    pub rows_s: Vec<f32>,
    /// Bytes per second.
    pub bytes_s: Vec<f32>,
    /// The fraction of a CPU that works on it.
    pub work: Vec<f32>,
    /// Bytes of state; empty if no checkpoint says.
    pub state_bytes: Vec<u64>,
}

/// A frequent key.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HeavyKeyReport {
    /// The key.
    pub key: String,
    /// Its bucket.
    pub bucket: u32,
    /// Its fraction of the task's rows, 0 to 1.
    pub share: f64,
}

/// Something that slows the job down.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cause {
    /// Its kind.
    pub kind: CauseKind,
    /// One sentence with the cause, the evidence, and the remedy with its gain and cost.
    pub sentence: String,
    /// More evidence, a line each.
    pub evidence: Vec<String>,
    /// The host, if the cause is a host.
    pub host: Option<u32>,
    /// The task, if the cause is a task.
    pub task: Option<u32>,
    /// The fraction of the sources' time spent waiting for it, 0 to 1: an upper bound on what it costs.
    pub weight: f64,
    /// Buckets whose move would help, if any.
    pub remedy: Option<Remedy>,
}

/// Kinds of causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CauseKind {
    /// A host has fewer CPUs left than its work needs, because other programs take them.
    CpuTaken,
    /// A host has too much work for its CPUs, while others have CPUs to spare.
    CpuSkew,
    /// The CPUs of all hosts are full.
    CpuFull,
    /// Functions of the program wait for their worker's interpreter.
    Interpreter,
    /// One key has more rows than a copy can process.
    HeavyKey,
    /// What a host receives fills its link.
    Inbound,
    /// What a host sends fills its link.
    Outbound,
    /// The link between two hosts is full, but not the other links of either.
    Link,
    /// A step's function takes long, on all hosts.
    SlowStep,
    /// A sink, or the system behind it, receives rows slowly.
    SlowSink,
}

/// Buckets to move.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Remedy {
    /// By task, as an index into the layout's: the new owner of each bucket.
    pub owners: Vec<(u32, Vec<u32>)>,
    /// How many buckets change owners.
    pub buckets: u32,
    /// How much more the job should carry: 0.38 is 38 % more.
    pub gain: f64,
    /// Bytes of state that move, as far as is known.
    pub state_bytes: u64,
    /// About how long the moved buckets wait, in milliseconds.
    pub pause_ms: u64,
}

/// A decision of the controller, and its outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// Seconds since the run began.
    pub at_s: f64,
    /// The sentence about the cause.
    pub sentence: String,
    /// How many buckets move.
    pub buckets: u32,
    /// Predicted gain.
    pub predicted: f64,
    /// Measured gain, once it has been judged.
    pub measured: Option<f64>,
    /// Its state.
    pub outcome: Outcome,
}

/// The state of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Only reported: the controller only advises.
    Advised,
    /// Buckets are moving.
    Moving,
    /// They have moved, and the rate is being watched.
    Judging,
    /// It helped.
    Kept,
    /// It made things worse, and the buckets are back.
    RolledBack,
    /// It failed, for this reason.
    Failed(String),
}

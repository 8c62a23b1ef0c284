//! What the controller has to say: rates, causes and decisions, as `tidemill top` shows them.

use serde::Serialize;

/// A job at a moment, over the last seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClusterReport {
    /// Seconds that rates are taken over.
    pub span_s: f64,
    /// By host, as in the layout.
    pub hosts: Vec<HostReport>,
    /// Between hosts that are not the same, where anything is sent.
    pub links: Vec<HostLinkReport>,
    /// By task, as in the layout.
    pub tasks: Vec<TaskReport>,
    /// What holds the job up, the heaviest cause first; empty if nothing waits.
    pub causes: Vec<Cause>,
    /// What the controller does: "off", "advise" or "on".
    pub controller: String,
    /// What it has decided, the newest last; the last 100.
    pub decisions: Vec<Decision>,
}

/// A host, its workers together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostReport {
    /// Its name.
    pub name: String,
    /// Its workers.
    pub workers: Vec<u32>,
    /// CPUs that the job may use there.
    pub cores: f64,
    /// CPUs that it does use.
    pub cpus_used: f64,
    /// Threads that are ready and wait for a CPU, on average.
    pub cpus_waited: f64,
    /// Bytes per second to other hosts.
    pub out_bytes_s: f64,
    /// Bytes per second from other hosts.
    pub in_bytes_s: f64,
    /// What it could send, in bytes per second, if a full link has ever shown.
    pub out_capacity: Option<f64>,
    /// What it could receive.
    pub in_capacity: Option<f64>,
}

/// What one host sends to another, all links between their workers together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostLinkReport {
    /// The sending host.
    pub from: u32,
    /// The receiving host.
    pub to: u32,
    /// Bytes per second.
    pub bytes_s: f64,
    /// What it could carry, in bytes per second, if it has been full.
    pub capacity: Option<f64>,
    /// Share of the time in which something waited in front of it, 0 to 1.
    pub busy: f64,
    /// Senders that waited for room on it, on average.
    pub link_wait: f64,
    /// Senders that waited for credit of copies behind it, on average.
    pub credit_wait: f64,
    /// Bytes that wait.
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
    /// Its buckets, if it is dealt by key.
    pub buckets: Option<BucketReport>,
    /// Its most frequent keys, the heaviest first.
    pub heavy_keys: Vec<HeavyKeyReport>,
}

/// A task's copies on one worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TaskWorkerReport {
    /// The worker.
    pub worker: u32,
    /// Its copies there.
    pub copies: u32,
    /// Share of their time in which they work, 0 to 1.
    pub busy: f64,
    /// Share in which they wait for others to take what they have.
    pub blocked: f64,
    /// Share in which they wait for input.
    pub idle: f64,
    /// Rows taken per second; of a source, rows sent.
    pub rows_s: f64,
}

/// Buckets of a task: all lists by bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BucketReport {
    /// The host that owns it.
    pub hosts: Vec<u32>,
    /// Rows per second.
    pub rows_s: Vec<f32>,
    /// Bytes per second.
    pub bytes_s: Vec<f32>,
    /// Share of a CPU that works on it.
    pub work: Vec<f32>,
    /// Bytes of state; empty if no checkpoint has told.
    pub state_bytes: Vec<u64>,
}

/// A frequent key.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HeavyKeyReport {
    /// It.
    pub key: String,
    /// Its bucket.
    pub bucket: u32,
    /// Its share of the task's rows, 0 to 1.
    pub share: f64,
}

/// Something that holds the job up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cause {
    /// What kind of thing it is.
    pub kind: CauseKind,
    /// One sentence: cause, evidence, and what helps with its gain and cost.
    pub sentence: String,
    /// More of the evidence, a line each.
    pub evidence: Vec<String>,
    /// The host, if it is one.
    pub host: Option<u32>,
    /// The task, if it is one.
    pub task: Option<u32>,
    /// Share of the sources' time that is waited for it, 0 to 1: what it may cost.
    pub weight: f64,
    /// Buckets to move that would help, if there are any.
    pub remedy: Option<Remedy>,
}

/// Kinds of causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CauseKind {
    /// A host has fewer CPUs left than its work needs: other programs take them.
    CpuTaken,
    /// A host has more work than CPUs, and others have less.
    CpuSkew,
    /// All hosts' CPUs are full.
    CpuFull,
    /// Functions of the program wait for their worker's interpreter.
    Interpreter,
    /// One key has more rows than a copy can take.
    HeavyKey,
    /// What a host receives fills its link.
    Inbound,
    /// What a host sends fills its link.
    Outbound,
    /// The link between two hosts is full, and others of both are not.
    Link,
    /// A step's function takes long, on all hosts.
    SlowStep,
    /// A sink, or what is behind it, takes rows slowly.
    SlowSink,
}

/// Buckets that move.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Remedy {
    /// By task, as an index into the layout's: the new owner of each bucket.
    pub owners: Vec<(u32, Vec<u32>)>,
    /// Buckets that get another owner.
    pub buckets: u32,
    /// How much more the job should carry: 0.38 is 38 % more.
    pub gain: f64,
    /// Bytes of state that move, as far as is known.
    pub state_bytes: u64,
    /// About how long the moved buckets wait, in milliseconds.
    pub pause_ms: u64,
}

/// What the controller has decided, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// Seconds since the run began.
    pub at_s: f64,
    /// What was the cause: the sentence.
    pub sentence: String,
    /// Buckets that move.
    pub buckets: u32,
    /// Predicted gain.
    pub predicted: f64,
    /// Measured gain, once it has been judged.
    pub measured: Option<f64>,
    /// Where it stands.
    pub outcome: Outcome,
}

/// Where a decision stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Told, not done: the controller only advises.
    Advised,
    /// Buckets are moving.
    Moving,
    /// They have moved; the rate is watched.
    Judging,
    /// It was good.
    Kept,
    /// It was worse: buckets are back.
    RolledBack,
    /// It could not be done, and why.
    Failed(String),
}

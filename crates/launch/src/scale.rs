//! Changes the workers of a running job: the request of `tidemill scale`, and its outcome.
//!
//! The request and its answers are files in the job's private folder:
//!
//! | file          | written by        | contents                                                                    |
//! |---------------|-------------------|-----------------------------------------------------------------------------|
//! | `scale.json`  | the command       | what to restart the job with, and where to write the answer                 |
//! | `stopped`     | worker 0          | its stream has made a last checkpoint for this, and the workers end         |
//! | `scaled.json` | the next launch   | where worker 0 answers; it removes the file once its stream runs            |
//! | `active`      | worker 0          | how many workers are active since the stream was scaled without a stop      |
//!
//! A job with spare workers (`--max-workers`) is scaled without the launcher, which only learns how many workers are
//! active now, so that the next launch begins with as many.
//!
//! A job that fails after a request continues as requested, from its last checkpoint. If that start fails before its
//! stream runs, the job continues once more with what it had before.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

const ASKED: &str = "scale.json";
const STOPPED: &str = "stopped";
const SCALED: &str = "scaled.json";
const ACTIVE: &str = "active";
/// Longer requests are not valid.
const REQUEST_BYTES_MAX: u64 = 1 << 16;

/// What can change between two starts of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobShape {
    /// The number of workers, without spare ones; `None`: as the options say.
    pub workers: Option<usize>,
    /// The names of emulated hosts that get no workers.
    pub without: Vec<String>,
}

/// A request to change the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaleRequest {
    workers: usize,
    /// A host that no longer gets workers.
    leave: Option<String>,
    /// Whether hosts that were left get workers again.
    all_hosts: bool,
    answer: PathBuf,
    /// The request as it was written, for worker 0.
    text: Value,
}

/// How a launch ended, as far as scaling is concerned.
#[derive(Clone, Debug, Default)]
pub struct LaunchOutcome {
    /// The request made during it.
    pub asked: Option<ScaleRequest>,
    /// Whether its stream has stopped for the request.
    pub stopped: bool,
    /// Whether it failed without having been told to end.
    pub failed: bool,
    /// Whether its stream never ran, so that nobody was answered.
    pub unanswered: bool,
    /// The number of its workers at its end, without spare ones.
    pub workers: usize,
    /// Whether it was scaled to that number without a stop.
    pub scaled: bool,
}

/// The shape that a job is started with, and the request to answer once the job runs.
#[derive(Debug, Default)]
pub struct JobScale {
    /// The shape of the next launch.
    pub shape: JobShape,
    pending: Option<PendingScale>,
}

/// A request that waits for an answer.
#[derive(Debug)]
struct PendingScale {
    request: ScaleRequest,
    before: JobShape,
    workers_before: usize,
    /// Why the job went back to its previous shape.
    reverted: Option<String>,
}

impl ScaleRequest {
    /// The request to the job of this folder, if there is one.
    pub fn read(folder: &Path) -> Option<Self> {
        let mut text = Vec::new();
        File::open(folder.join(ASKED)).ok()?.take(REQUEST_BYTES_MAX).read_to_end(&mut text).ok()?;
        let text: Value = serde_json::from_slice(&text).ok()?;
        let name = |field: &str| text[field].as_str().map(str::to_owned);
        let workers = usize::try_from(text["workers"].as_u64()?).ok().filter(|&workers| workers > 0)?;
        let answer = PathBuf::from(name("answer")?);
        let all_hosts = text["all_hosts"].as_bool().unwrap_or(false);
        Some(Self { workers, leave: name("leave"), all_hosts, answer, text })
    }

    /// Whether the stream of this folder's job has stopped for a request.
    pub fn has_stopped(folder: &Path) -> bool {
        folder.join(STOPPED).exists()
    }

    /// The shape of the job after this request.
    fn applied_to(&self, shape: &JobShape) -> JobShape {
        let kept = shape.without.iter().filter(|_| !self.all_hosts).cloned();
        JobShape { workers: Some(self.workers), without: kept.chain(self.leave.clone()).collect() }
    }

    /// Writes the answer. If that fails, the requester waits until its own timeout.
    fn answer(&self, told: &Value) {
        let new = self.answer.with_extension("new");
        drop(fs::write(&new, told.to_string()).and_then(|()| fs::rename(&new, &self.answer)));
    }
}

impl JobScale {
    /// Tells worker 0 of the next launch, whose folder is `folder`, where to answer.
    ///
    /// # Errors
    /// If the folder cannot be written to.
    pub fn announce(&self, folder: &Path) -> io::Result<()> {
        let Some(pending) = &self.pending else { return Ok(()) };
        let mut told = pending.request.text.clone();
        told["from"] = json!(pending.workers_before);
        told["reverted"] = json!(pending.reverted);
        fs::write(folder.join(SCALED), told.to_string())
    }

    /// How many workers are active since the stream of this folder's job was scaled without a stop, if it was.
    pub fn active(folder: &Path) -> Option<usize> {
        fs::read_to_string(folder.join(ACTIVE)).ok()?.trim().parse().ok().filter(|&active| active > 0)
    }

    /// Whether an announced launch has not answered yet.
    pub fn is_unanswered(folder: &Path) -> bool {
        folder.join(SCALED).exists()
    }

    /// Handles the end of a launch. Returns the reason to restart the job, if there is one, regardless of other
    /// reasons.
    pub fn ended(&mut self, outcome: &LaunchOutcome) -> Option<String> {
        if !outcome.unanswered {
            self.pending = None;
        }
        if outcome.scaled {
            self.shape.workers = Some(outcome.workers);
        }
        if outcome.failed && outcome.unanswered {
            return self.revert(outcome.workers);
        }
        let request = outcome.asked.clone().filter(|_| outcome.failed || outcome.stopped)?;
        let (before, workers_before) = (self.shape.clone(), outcome.workers);
        self.shape = request.applied_to(&before);
        let number = request.workers;
        self.pending = Some(PendingScale { request, before, workers_before, reverted: None });
        let how = if outcome.failed { "; a worker failed meanwhile, so from the checkpoint before" } else { "" };
        Some(format!("scaling the job from {workers_before} to {}{how}", counted(number)))
    }

    /// Handles a launch that could not even begin. Returns the reason to restart the job, if there is one.
    pub fn failed_to_start(&mut self) -> Option<String> {
        let workers = self.shape.workers?;
        self.revert(workers)
    }

    /// Goes back once to what the job had before it was scaled.
    fn revert(&mut self, workers: usize) -> Option<String> {
        let pending = self.pending.as_mut().filter(|pending| pending.reverted.is_none())?;
        let what = format!(
            "the job failed with {} before its stream ran again; it continues with {} as before",
            counted(workers),
            pending.workers_before
        );
        pending.reverted = Some(what.clone());
        self.shape = pending.before.clone();
        Some(what)
    }

    /// Handles the end of the job: answers a request that still waits.
    pub fn over(&self) {
        if let Some(pending) = &self.pending {
            pending.request.answer(&json!({"error": "the job has ended; its own output says why"}));
        }
    }
}

fn counted(workers: usize) -> String {
    format!("{workers} worker{}", if workers == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::CrashDir;

    fn folder(name: &str) -> CrashDir {
        CrashDir::create(&format!("test-scale-{name}-{}", std::process::id())).expect("temporary folder is writable")
    }

    fn asked(folder: &CrashDir, mut text: Value) -> Option<ScaleRequest> {
        text["answer"] = json!(folder.path().join("answer.json"));
        fs::write(folder.path().join(ASKED), text.to_string()).expect("the folder is ours");
        ScaleRequest::read(folder.path())
    }

    fn shape(workers: Option<usize>, without: &[&str]) -> JobShape {
        JobShape { workers, without: without.iter().map(ToString::to_string).collect() }
    }

    fn answer(folder: &CrashDir) -> Option<Value> {
        serde_json::from_slice(&fs::read(folder.path().join("answer.json")).ok()?).ok()
    }

    /// Requests are files, which any process of this user may have written.
    #[test]
    fn only_valid_requests_are_read() {
        let folder = folder("read");
        assert_eq!(ScaleRequest::read(folder.path()), None);
        for strange in [json!({}), json!({"workers": 0}), json!({"workers": -1}), json!({"workers": "3"})] {
            assert_eq!(asked(&folder, strange), None);
        }
        assert_eq!(asked(&folder, json!({"workers": 3})).map(|request| request.workers), Some(3));
        fs::write(folder.path().join(ASKED), "{").expect("the folder is ours");
        assert_eq!(ScaleRequest::read(folder.path()), None);
    }

    #[test]
    fn a_stream_that_stopped_for_it_is_started_with_what_was_asked_for() {
        let folder = folder("stopped");
        let request = asked(&folder, json!({"workers": 6, "leave": "b"}));
        let mut scale = JobScale::default();
        let outcome = LaunchOutcome { asked: request, workers: 2, ..LaunchOutcome::default() };
        assert_eq!(scale.ended(&outcome), None, "the program ended before the request");
        let why = scale.ended(&LaunchOutcome { stopped: true, ..outcome }).expect("it stopped for that");
        assert_eq!((why.as_str(), &scale.shape), ("scaling the job from 2 to 6 workers", &shape(Some(6), &["b"])));
        scale.announce(folder.path()).expect("the folder is ours");
        assert!(JobScale::is_unanswered(folder.path()));

        // Its stream ran: later failures are like any other, and nobody waits for an answer.
        let ran = LaunchOutcome { failed: true, workers: 6, ..LaunchOutcome::default() };
        assert_eq!((scale.ended(&ran), &scale.shape), (None, &shape(Some(6), &["b"])));
        scale.over();
        assert_eq!(answer(&folder), None);

        let back = asked(&folder, json!({"workers": 8, "all_hosts": true}));
        let outcome = LaunchOutcome { asked: back, stopped: true, workers: 6, ..LaunchOutcome::default() };
        assert!(scale.ended(&outcome).is_some());
        assert_eq!(scale.shape, shape(Some(8), &[]));
    }

    /// A job that was scaled without a stop, and fails later, starts again as it was.
    #[test]
    fn a_live_scale_survives_a_failure() {
        let folder = folder("live");
        assert_eq!(JobScale::active(folder.path()), None);
        for strange in ["", "0", "-1", "six"] {
            fs::write(folder.path().join(ACTIVE), strange).expect("the folder is ours");
            assert_eq!(JobScale::active(folder.path()), None, "{strange}");
        }
        fs::write(folder.path().join(ACTIVE), "6").expect("the folder is ours");
        assert_eq!(JobScale::active(folder.path()), Some(6));
        let mut scale = JobScale::default();
        let failed = LaunchOutcome { failed: true, scaled: true, workers: 6, ..LaunchOutcome::default() };
        assert_eq!((scale.ended(&failed), &scale.shape), (None, &shape(Some(6), &[])));
        // Then with a stop, beyond what it has.
        let request = asked(&folder, json!({"workers": 8}));
        let stopped = LaunchOutcome { asked: request, stopped: true, failed: false, ..failed };
        assert_eq!(scale.ended(&stopped).as_deref(), Some("scaling the job from 6 to 8 workers"));
    }

    #[test]
    fn failures_meanwhile_end_no_job() {
        let folder = folder("failed");
        let request = asked(&folder, json!({"workers": 1}));
        let mut scale = JobScale::default();
        let failed = LaunchOutcome { asked: request, failed: true, workers: 2, ..LaunchOutcome::default() };
        let why = scale.ended(&failed).expect("it was asked before");
        assert!(why.starts_with("scaling the job from 2 to 1 worker; a worker failed"), "{why}");
        // The new launch fails too, before its stream runs: continue once more with the previous shape.
        let again = LaunchOutcome { failed: true, unanswered: true, workers: 1, ..LaunchOutcome::default() };
        let why = scale.ended(&again).expect("it goes back");
        assert!(why.contains("failed with 1 worker before") && why.contains("continues with 2 as before"), "{why}");
        assert_eq!(scale.shape, shape(None, &[]));
        scale.announce(folder.path()).expect("the folder is ours");
        let told = fs::read_to_string(folder.path().join(SCALED)).expect("it is announced");
        assert!(told.contains("as before"), "worker 0 tells who asked: {told}");
        // But not forever.
        assert_eq!(scale.ended(&LaunchOutcome { workers: 2, ..again }), None);
        scale.over();
        assert!(answer(&folder).is_some_and(|told| told["error"].is_string()));
    }
}

//! A running job that is to have other workers: what `tidemill scale` asks for, and what becomes of it.
//!
//! It is spoken of in files of the job's private folder:
//!
//! | file          | by                | says                                                                        |
//! |---------------|-------------------|-----------------------------------------------------------------------------|
//! | `scale.json`  | the command       | what the job is to be started again with, and where an answer is waited for |
//! | `stopped`     | worker 0          | its stream has made a last checkpoint for that, and the workers end         |
//! | `scaled.json` | the next launch   | whom worker 0 is to answer; it removes the file when its stream runs        |
//!
//! A job that fails behind a request goes on as requested, from the checkpoint that it has. If that start fails before
//! its stream runs, the job goes on once more with what it had before.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

const ASKED: &str = "scale.json";
const STOPPED: &str = "stopped";
const SCALED: &str = "scaled.json";
/// Longer requests are of nobody.
const REQUEST_BYTES_MAX: u64 = 1 << 16;

/// What can change between two starts of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobShape {
    /// Number of workers; `None`: what the options say.
    pub workers: Option<usize>,
    /// Emulated hosts that get none, by name.
    pub without: Vec<String>,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaleRequest {
    workers: usize,
    /// A host that gets no workers any more.
    leave: Option<String>,
    /// Hosts that were left get workers again.
    all_hosts: bool,
    answer: PathBuf,
    /// As it was written, for worker 0.
    text: Value,
}

/// How a launch ended, as far as it matters here.
#[derive(Clone, Debug, Default)]
pub struct LaunchOutcome {
    /// What it was asked for meanwhile.
    pub asked: Option<ScaleRequest>,
    /// Its stream has stopped for that.
    pub stopped: bool,
    /// It failed, and nobody had told it to end.
    pub failed: bool,
    /// Its stream never ran, so nobody has been answered.
    pub unanswered: bool,
    /// Its workers.
    pub workers: usize,
}

/// What a job is started with, and whom to tell when it runs.
#[derive(Debug, Default)]
pub struct JobScale {
    /// What the next launch has.
    pub shape: JobShape,
    pending: Option<PendingScale>,
}

/// Somebody waits for an answer.
#[derive(Debug)]
struct PendingScale {
    request: ScaleRequest,
    before: JobShape,
    workers_before: usize,
    /// Why the job went back to what it had before.
    reverted: Option<String>,
}

impl ScaleRequest {
    /// What somebody has asked the job of this folder for.
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

    /// Whether the stream of that folder's job has stopped for a request.
    pub fn has_stopped(folder: &Path) -> bool {
        folder.join(STOPPED).exists()
    }

    /// What a job of that shape has afterwards.
    fn applied_to(&self, shape: &JobShape) -> JobShape {
        let kept = shape.without.iter().filter(|_| !self.all_hosts).cloned();
        JobShape { workers: Some(self.workers), without: kept.chain(self.leave.clone()).collect() }
    }

    /// Whoever asked looks for it; if it cannot be written, that ends with its patience.
    fn answer(&self, told: &Value) {
        let new = self.answer.with_extension("new");
        drop(fs::write(&new, told.to_string()).and_then(|()| fs::rename(&new, &self.answer)));
    }
}

impl JobScale {
    /// Tells worker 0 of the next launch, whose folder that is, whom to answer.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub fn announce(&self, folder: &Path) -> io::Result<()> {
        let Some(pending) = &self.pending else { return Ok(()) };
        let mut told = pending.request.text.clone();
        told["from"] = json!(pending.workers_before);
        told["reverted"] = json!(pending.reverted);
        fs::write(folder.join(SCALED), told.to_string())
    }

    /// Whether a launch that was announced has answered nobody yet.
    pub fn is_unanswered(folder: &Path) -> bool {
        folder.join(SCALED).exists()
    }

    /// A launch has ended so. Returns why the job is started again, if it is, whatever else says so.
    pub fn ended(&mut self, outcome: &LaunchOutcome) -> Option<String> {
        if !outcome.unanswered {
            self.pending = None;
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

    /// A launch could not even begin. Returns why the job is started again, if it is.
    pub fn failed_to_start(&mut self) -> Option<String> {
        let workers = self.shape.workers?;
        self.revert(workers)
    }

    /// Goes back to what the job had before it was scaled, once.
    fn revert(&mut self, workers: usize) -> Option<String> {
        let pending = self.pending.as_mut().filter(|pending| pending.reverted.is_none())?;
        let what = format!(
            "the job failed with {} before its stream ran again; it goes on with {} as before",
            counted(workers),
            pending.workers_before
        );
        pending.reverted = Some(what.clone());
        self.shape = pending.before.clone();
        Some(what)
    }

    /// The job is over. Whoever still waits for its stream hears so.
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

    /// Requests are files that anything of this user may have written.
    #[test]
    fn only_sound_requests_are_read() {
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
        assert_eq!(scale.ended(&outcome), None, "the program came to its end before it was asked");
        let why = scale.ended(&LaunchOutcome { stopped: true, ..outcome }).expect("it stopped for that");
        assert_eq!((why.as_str(), &scale.shape), ("scaling the job from 2 to 6 workers", &shape(Some(6), &["b"])));
        scale.announce(folder.path()).expect("the folder is ours");
        assert!(JobScale::is_unanswered(folder.path()));

        // It ran: a failure from then on is as any other, and nobody waits.
        let ran = LaunchOutcome { failed: true, workers: 6, ..LaunchOutcome::default() };
        assert_eq!((scale.ended(&ran), &scale.shape), (None, &shape(Some(6), &["b"])));
        scale.over();
        assert_eq!(answer(&folder), None);

        let back = asked(&folder, json!({"workers": 8, "all_hosts": true}));
        let outcome = LaunchOutcome { asked: back, stopped: true, workers: 6, ..LaunchOutcome::default() };
        assert!(scale.ended(&outcome).is_some());
        assert_eq!(scale.shape, shape(Some(8), &[]));
    }

    #[test]
    fn failures_meanwhile_end_no_job() {
        let folder = folder("failed");
        let request = asked(&folder, json!({"workers": 1}));
        let mut scale = JobScale::default();
        let failed = LaunchOutcome { asked: request, failed: true, workers: 2, ..LaunchOutcome::default() };
        let why = scale.ended(&failed).expect("it was asked before");
        assert!(why.starts_with("scaling the job from 2 to 1 worker; a worker failed"), "{why}");
        // The new launch fails, too, before its stream runs: once more with what there was.
        let again = LaunchOutcome { failed: true, unanswered: true, workers: 1, ..LaunchOutcome::default() };
        let why = scale.ended(&again).expect("it goes back");
        assert!(why.contains("failed with 1 worker before") && why.contains("goes on with 2 as before"), "{why}");
        assert_eq!(scale.shape, shape(None, &[]));
        scale.announce(folder.path()).expect("the folder is ours");
        let told = fs::read_to_string(folder.path().join(SCALED)).expect("it is announced");
        assert!(told.contains("as before"), "worker 0 tells who asked: {told}");
        // And not for ever.
        assert_eq!(scale.ended(&LaunchOutcome { workers: 2, ..again }), None);
        scale.over();
        assert!(answer(&folder).is_some_and(|told| told["error"].is_string()));
    }
}

//! What a worker says of itself while a stream runs, for `tidemill top` and `tidemill stop`.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use pyo3::PyResult;
use serde_json::{Value, json};
use tidemill_dataflow::{LookTimer, RunController, RunProgress, WorkerStatus};
use tidemill_stream::LateRows;

use super::bsp::collective_waits;
use super::stream::described_by;

/// What a worker tells of itself while the job runs: in a file, which `tidemill top` reads, and worker 0, whose file
/// has what all others tell, too. The first line of it is the worker's own, each other one of another worker. A worker
/// that is killed leaves its file behind: readers look whether its process is there, and when it told last. Beside it
/// `tidemill stop` puts an empty file, to ask worker 0 for a last checkpoint; when the job has stopped, that has
/// another name. Others ask for keys to move (`requests`).
pub(super) struct StatusFile {
    /// `None` where there can be none.
    file: Option<PathBuf>,
    /// Who it is.
    about: Value,
    timer: LookTimer,
    /// Between checkpoints, if there are any.
    every_checkpoint: Option<Duration>,
}

impl StatusFile {
    const EVERY: Duration = Duration::from_millis(500);
    /// Of many workers each tells less often, so that worker 0 has no more to do than to hear so often of somebody.
    const EVERY_WORKER: Duration = Duration::from_millis(4);

    pub(super) fn new(
        file: Option<PathBuf>,
        about: &str,
        workers: u32,
        every_checkpoint: Option<Duration>,
    ) -> PyResult<Self> {
        let timer = LookTimer::new(Self::EVERY.max(Self::EVERY_WORKER * workers));
        let status = StatusFile { file, about: described_by(about)?, timer, every_checkpoint };
        // Of a process that had the same number once.
        status.asked().iter().flatten().for_each(|left| drop(std::fs::remove_file(left)));
        Ok(status)
    }

    /// The file that asks for a stop, and the one that says that the job has stopped.
    fn asked(&self) -> Option<[PathBuf; 2]> {
        self.file.as_ref().map(|file| ["stop", "stopped"].map(|name| file.with_extension(name)))
    }

    /// Tells it now and then. It is of no use to the job itself, so failures are passed over.
    pub(super) fn tell(&mut self, run: &RunProgress, late: &LateRows, spilled_bytes: u64, controller: &RunController) {
        if !self.timer.is_due() {
            return;
        }
        let mut edges = run.edges();
        edges.iter_mut().for_each(|edge| {
            edge.bucket_rows.clear();
            edge.bucket_bytes.clear();
            edge.bucket_work_ns.clear();
        });
        let mut status = self.about.clone();
        status["at_s"] = json!(SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |since| since.as_secs_f64()));
        // Whoever reads it on this machine tells by it how long ago that was, though the machine's clock may be set
        // meanwhile.
        let up = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
        status["up_s"] = json!(up.split(' ').next().and_then(|text| text.parse::<f64>().ok()));
        status["durable"] = json!(run.durable());
        status["every_s"] = json!(self.every_checkpoint.map(|every| every.as_secs_f64()));
        let checkpoint = run.checkpoint();
        status["checkpoint"] = json!(checkpoint.map(
            |made| json!({"at_s": made.at_ms as f64 / 1e3, "bytes": made.bytes, "took_s": made.took_ms as f64 / 1e3})
        ));
        status["edges"] = json!(edges);
        status["steps"] = json!(run.works());
        status["sources"] = json!(run.sources());
        let left_out = late.counts();
        let of = |count: fn(&(String, u64, u64, u64)) -> u64| {
            let counts = left_out.iter().map(|step| (&step.0, count(step)));
            counts.filter(|(_, rows)| *rows > 0).collect::<Vec<_>>()
        };
        status["late"] = json!(of(|step| step.1));
        status["untimed"] = json!(of(|step| step.2));
        status["skipped"] = json!(of(|step| step.3));
        status["collectives"] = json!(collective_waits());
        status["spilled_bytes"] = json!(spilled_bytes);
        // Worker 0 alone knows of all.
        if run.worker() == 0 {
            status["cluster"] = json!(controller.report());
        }
        let status = status.to_string();
        if let Some(file) = &self.file {
            let mut lines = status.clone().into_bytes();
            for WorkerStatus { worker, status, age, over } in run.statuses() {
                let age_s = age.as_secs_f64();
                // As it came: nobody need read it here.
                let head = format!("\n{{\"worker\":{worker},\"age_s\":{age_s:.3},\"over\":{over},\"status\":");
                lines.extend([head.as_bytes(), status.as_slice(), b"}".as_slice()].concat());
            }
            let new = file.with_extension("new");
            drop(std::fs::write(&new, lines).and_then(|()| std::fs::rename(&new, file)));
        }
        run.tell_status(status.into_bytes());
    }

    /// Whether somebody asks the job to stop, which it can if it makes checkpoints.
    pub(super) fn is_asked_to_stop(&self, run: &RunProgress) -> bool {
        run.worker() == 0 && run.durable().is_some() && self.asked().is_some_and(|[asked, _]| asked.exists())
    }

    /// The job has come to its end, or to the last checkpoint that somebody asked for, who hears so.
    pub(super) fn has_stopped(&mut self) {
        if let Some([asked, stopped]) = self.asked() {
            drop(std::fs::rename(asked, stopped));
        }
    }
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        let asked = self.asked().map(|[asked, _]| asked);
        asked.iter().chain(&self.file).for_each(|file| drop(std::fs::remove_file(file)));
    }
}

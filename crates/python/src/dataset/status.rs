//! The status that a worker publishes while a stream runs, for `tidemill top` and `tidemill stop`.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use pyo3::PyResult;
use serde_json::{Value, json};
use tidemill_dataflow::{LookTimer, RunController, RunProgress, WorkerStatus};
use tidemill_stream::LateRows;

use super::bsp::collective_waits;
use super::stream::described_by;

/// The status file of a worker, which `tidemill top` reads. It is there before the run begins, without figures: whoever
/// sees a row of the stream finds the stream. Worker 0's file also contains the status of all others: the first line is
/// its own, and each further line is that of another worker. A killed worker leaves its file behind, so readers check
/// whether its process exists, and when it last wrote. `tidemill stop` creates an empty file next to it to ask worker 0
/// for a last checkpoint; the file is renamed when the job has stopped. Other files request moves of keys (`requests`).
pub(super) struct StatusFile {
    /// `None` if there is no place for it.
    file: Option<PathBuf>,
    /// Describes the worker, with the figures of a run that has not begun.
    begin: Value,
    workers: u32,
    timer: LookTimer,
}

impl StatusFile {
    const EVERY: Duration = Duration::from_millis(500);
    /// With many workers, each reports less often, so that worker 0 gets at most one report per this interval.
    const EVERY_WORKER: Duration = Duration::from_millis(4);

    pub(super) fn new(
        file: Option<PathBuf>,
        about: &str,
        workers: u32,
        every_checkpoint: Option<Duration>,
    ) -> PyResult<Self> {
        let timer = LookTimer::new(Self::EVERY.max(Self::EVERY_WORKER * workers));
        let mut begin = described_by(about)?;
        begin["durable"] = json!(every_checkpoint.map(|_| 0));
        begin["every_s"] = json!(every_checkpoint.map(|every| every.as_secs_f64()));
        begin["checkpoint"] = Value::Null;
        for figures in ["edges", "steps", "sources", "late", "untimed", "skipped", "collectives"] {
            begin[figures] = json!([]);
        }
        begin["spilled_bytes"] = json!(0);
        begin["active"] = Value::Null;
        begin["spare"] = json!(false);
        let status = StatusFile { file, begin, workers, timer };
        // Left over from a process with the same process ID.
        status.asked().iter().flatten().for_each(|left| drop(std::fs::remove_file(left)));
        status.write(status.now().to_string().into_bytes());
        Ok(status)
    }

    /// The status at the start, with the time.
    fn now(&self) -> Value {
        let mut status = self.begin.clone();
        status["at_s"] = json!(SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |since| since.as_secs_f64()));
        // Readers on this machine use the uptime to compute the age, because the machine's clock may be set meanwhile.
        let up = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
        status["up_s"] = json!(up.split(' ').next().and_then(|text| text.parse::<f64>().ok()));
        status
    }

    /// The job itself does not need the file, so errors are ignored.
    fn write(&self, lines: Vec<u8>) {
        if let Some(file) = &self.file {
            let new = file.with_extension("new");
            drop(std::fs::write(&new, lines).and_then(|()| std::fs::rename(&new, file)));
        }
    }

    /// The file that requests a stop, and the one that says that the job has stopped.
    fn asked(&self) -> Option<[PathBuf; 2]> {
        self.file.as_ref().map(|file| ["stop", "stopped"].map(|name| file.with_extension(name)))
    }

    /// Writes the status now and then, and tells it to worker 0.
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
        let mut status = self.now();
        status["durable"] = json!(run.durable());
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
        let spares = run.spares();
        status["active"] = json!(self.workers - spares.len() as u32);
        status["spare"] = json!(spares.contains(&run.worker()));
        // Only worker 0 knows the others.
        if run.worker() == 0 {
            status["cluster"] = json!(controller.report());
        }
        let status = status.to_string();
        let mut lines = status.clone().into_bytes();
        for WorkerStatus { worker, status, age, over } in run.statuses() {
            let age_s = age.as_secs_f64();
            // Passed on without parsing.
            let head = format!("\n{{\"worker\":{worker},\"age_s\":{age_s:.3},\"over\":{over},\"status\":");
            lines.extend([head.as_bytes(), status.as_slice(), b"}".as_slice()].concat());
        }
        self.write(lines);
        run.tell_status(status.into_bytes());
    }

    /// Whether a stop of the job was requested, which is possible if it makes checkpoints.
    pub(super) fn is_asked_to_stop(&self, run: &RunProgress) -> bool {
        run.worker() == 0 && run.durable().is_some() && self.asked().is_some_and(|[asked, _]| asked.exists())
    }

    /// Reports that the job has ended, or has made the last checkpoint that was requested.
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

//! `explain("analyze")` of a job: runs the query, and shows every step with the counters of all workers.

use std::fmt::Write;
use std::sync::Arc;

use datafusion::physical_plan::{ExecutionPlan, displayable};
use tidemill_collective::ReduceOp;
use tidemill_dataflow::RunReport;

use super::prepare::ResultDivision;
use super::stages::StagedPlan;
use super::{Result, ResultTarget, Watch, WorkerGroup};
use crate::dataset::DataSet;
use crate::engine::Engine;
use crate::exec::progress::ReadExec;

/// Counters of a step, or of the rows between stages: the sum over all workers, or the value of the worker with the
/// most.
#[derive(Default)]
struct StepCounts {
    sums: Vec<u64>,
    most: Vec<u64>,
    /// Local spills of steps, which the run also counts.
    in_steps: u64,
}

impl WorkerGroup {
    /// Runs a query, drops its rows, and describes what every step did. Collective.
    ///
    /// # Errors
    /// As for [`WorkerGroup::collect`].
    pub fn analyze(&self, engine: &Engine, set: &DataSet, watch: Watch<'_>) -> Result<String> {
        let (plan, mut action) = self.begin(engine, set, ResultDivision::AsMade, watch)?;
        let plan = self.resolve(plan, &mut action)?;
        let stages = StagedPlan::of(&plan)?.counted(&action.reading)?;
        let (_, report) = self.run(&stages, ResultTarget::None, &mut action)?;
        let mut counts = StepCounts::default();
        stages
            .stages
            .iter()
            .for_each(|stage| each_step(&stage.plan, 0, &mut |step, rows, _| counts.see_step(step, rows)));
        counts.see_run(&report);
        let mine = (counts.sums.clone(), counts.most.clone());
        self.comm.allreduce(&mine.0, &mut counts.sums, &ReduceOp::Sum)?;
        self.comm.allreduce(&mine.1, &mut counts.most, &ReduceOp::Max)?;
        Ok(counts.told(&stages, &report))
    }
}

impl StepCounts {
    fn see_step(&mut self, step: &dyn ExecutionPlan, rows: usize) {
        let metrics = step.metrics().unwrap_or_default();
        let spilled = metrics.spilled_bytes().unwrap_or(0) as u64;
        self.in_steps += if ["JoinExec", "WindowExec"].contains(&step.name()) { spilled } else { 0 };
        self.sums.extend([rows as u64, spilled]);
        self.most.push(metrics.elapsed_compute().unwrap_or(0) as u64);
    }

    fn see_run(&mut self, report: &RunReport) {
        for edge in &report.edges {
            self.sums.extend([edge.rows_sent, edge.local_bytes, edge.remote_bytes]);
            self.most.extend([edge.blocked_ns, edge.queue_bytes_max]);
        }
        self.sums.push(report.spilled_bytes.saturating_sub(self.in_steps));
        self.most.push(report.wall_ns);
    }

    /// In the order of discovery, which is the same on all workers.
    fn told(&self, stages: &StagedPlan, report: &RunReport) -> String {
        let (mut sums, mut most) = (self.sums.iter().copied(), self.most.iter().copied());
        let mut sum = || sums.next().unwrap_or(0);
        let mut top = || most.next().unwrap_or(0);
        let mut text = String::new();
        if let Some(reason) = &stages.undivided {
            let _ = writeln!(text, "on one worker: {reason}");
        }
        for (id, stage) in stages.stages.iter().enumerate() {
            let plural = if stage.copies == 1 { "copy" } else { "copies" };
            let _ = writeln!(text, "stage {id}: {} {plural}", stage.copies);
            each_step(&stage.plan, 1, &mut |step, _, depth| {
                let line = displayable(step).one_line().to_string();
                let (rows, spilled, time_ns) = (sum(), sum(), top());
                let _ = write!(text, "{:indent$}{}", "", line.trim_end(), indent = 2 * depth);
                // Input from other stages is described with its edge.
                if step.metrics().is_some() {
                    let _ = write!(text, ", rows={rows}, time={}", seconds(time_ns));
                }
                if spilled > 0 {
                    let _ = write!(text, ", spilled={}", bytes(spilled));
                }
                text.push('\n');
            });
        }
        for edge in &report.edges {
            let (rows, local, remote, blocked_ns, queued) = (sum(), sum(), sum(), top(), top());
            let _ = writeln!(
                text,
                "{}: rows={rows}, to own copies={}, to other workers={}, waited={}, longest queue={}",
                edge.edge,
                bytes(local),
                bytes(remote),
                seconds(blocked_ns),
                bytes(queued),
            );
        }
        let (spilled, wall_ns) = (sum(), top());
        let _ = writeln!(text, "all: {}, spilled between stages={}", seconds(wall_ns), bytes(spilled));
        text += "rows and bytes are those of all workers; times and queues those of the worker with the most, its threads' together\n";
        text
    }
}

/// Calls `see` with every step, the number of rows it produced here, and its depth. Not all scans count their rows; the
/// counter above them does, and is not a step itself.
fn each_step(plan: &Arc<dyn ExecutionPlan>, depth: usize, see: &mut impl FnMut(&dyn ExecutionPlan, usize, usize)) {
    let rows = plan.metrics().and_then(|metrics| metrics.output_rows()).unwrap_or(0);
    match plan.downcast_ref::<ReadExec>() {
        Some(read) => see(read.scan(), rows, depth),
        None => {
            see(plan.as_ref(), rows, depth);
            plan.children().into_iter().for_each(|child| each_step(child, depth + 1, see));
        }
    }
}

fn seconds(ns: u64) -> String {
    match ns {
        0..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

fn bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..0x10_0000 => format!("{:.1} KiB", n as f64 / 1024.0),
        _ => format!("{:.1} MiB", n as f64 / f64::from(1 << 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_in_words() {
        assert_eq!([bytes(0), bytes(1023), bytes(1024), bytes(3 << 19)], ["0 B", "1023 B", "1.0 KiB", "1.5 MiB"]);
    }
}

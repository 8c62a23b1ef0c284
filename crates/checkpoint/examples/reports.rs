//! What reports of a checkpoint take the coordinator: one message for each, and added up as workers on the way do.
//!
//! ```sh
//! cargo run --release -p tidemill-checkpoint --example reports -- 16384 10
//! ```

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tidemill_checkpoint::coordinator::{CheckpointTiming, CoordinatedTask, Coordinator, CoordinatorEvent, StartPoint};
use tidemill_checkpoint::manifest::{CopyReport, PartEntry, PartKey, ReportBody};
use tidemill_checkpoint::reports::{ReportBundle, ReportMerger};

fn report(task: u32, copy: u32, keeps: bool) -> CopyReport {
    let file = format!("state/0123456789abcdef/1-{task}-{copy}");
    let entry = PartEntry { file, offset: 0, len: 4096, sum: u64::MAX / 3, whole: true };
    let parts = if keeps { vec![(PartKey::Bucket(copy), entry)] } else { Vec::new() };
    CopyReport { task, copy, said: ReportBody::Saved { epoch: 1, parts } }
}

/// Takes all messages into a checkpoint.
fn coordinate(copies: u32, tasks: u32, reports: impl Iterator<Item = CopyReport>) -> Duration {
    let member = |task| CoordinatedTask {
        name: format!("task {task}"),
        copies,
        route: None,
        why_not_movable: None,
        why_splits_stay: None,
        spares: BTreeSet::new(),
        schema: None,
    };
    let hour = Duration::from_secs(3600);
    let timing = CheckpointTiming { interval: Duration::from_nanos(1), unaligned_after: None, timeout: hour };
    let members = (0..tasks).map(member).collect();
    let mut coordinator = Coordinator::new("job", members, timing, &StartPoint::default());
    assert_eq!(coordinator.handle(Duration::from_secs(1), 0, CoordinatorEvent::Tick).len(), 1, "a barrier goes out");
    let begun = Instant::now();
    let mut stored = 0;
    for report in reports {
        stored += coordinator.handle(Duration::from_secs(1), 0, CoordinatorEvent::Report(report)).len();
    }
    assert_eq!(stored, 1, "the checkpoint is whole");
    begun.elapsed()
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u32>().expect("a number"));
    let (copies, tasks) = (numbers.next().unwrap_or(16_384), numbers.next().unwrap_or(10));
    let all = f64::from(copies * tasks);
    for keeps in [true, false] {
        let ids = (0..copies).flat_map(|copy| (0..tasks).map(move |task| (task, copy)));
        let alone: Vec<Vec<u8>> = ids.map(|(task, copy)| report(task, copy, keeps).encode()).collect();
        let decoded = alone.iter().map(|bytes| CopyReport::decode(bytes).expect("a report"));
        let alone_s = coordinate(copies, tasks, decoded).as_secs_f64();

        // As one inner worker after the other, each with the reports of 630 below it.
        let begun = Instant::now();
        let mut bundles: Vec<Vec<u8>> = Vec::new();
        for below in alone.chunks(630 * tasks as usize) {
            let mut merger = ReportMerger::new(below.len());
            let reports = below.iter().map(|bytes| CopyReport::decode(bytes).expect("a report"));
            bundles.extend(merger.add(reports).iter().map(ReportBundle::encode));
        }
        let merged_s = begun.elapsed().as_secs_f64();
        let of_tasks = vec![copies; tasks as usize];
        let decoded = |bytes: &Vec<u8>| ReportBundle::decode(bytes, &of_tasks).expect("reports").into_reports();
        let decoded = bundles.iter().flat_map(decoded);
        let together_s = coordinate(copies, tasks, decoded).as_secs_f64();
        let sum = |messages: &[Vec<u8>]| messages.iter().map(Vec::len).sum::<usize>() as f64;
        let what = if keeps { "a part each" } else { "nothing to save" };
        println!(
            "{all} reports, {what}: {} messages of {:.0} B a report, {:.2} us each; added up {} messages of {:.1} B a \
             report, {:.2} us each at the coordinator, {:.2} us on the way",
            alone.len(),
            sum(&alone) / all,
            alone_s / all * 1e6,
            bundles.len(),
            sum(&bundles) / all,
            together_s / all * 1e6,
            merged_s / all * 1e6,
        );
    }
}

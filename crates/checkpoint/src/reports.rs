//! Reports on their way to the coordinator. A worker through which others report adds up what comes, so that worker 0
//! takes a few messages for each checkpoint, however many copies there are.
//!
//! A [`ReportMerger`] holds reports until all copies that report through its worker have spoken of the epoch or have
//! ended; its owner sends on what is held at each look at the clock, so that one slow copy holds nobody up. Reports of
//! copies that had nothing to save become ranges of numbers. What a lost worker held is no loss: without it the
//! checkpoint is not complete, and does not exist.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::manifest::{CopyReport, ReportBody};

/// Reports with parts that are held at most.
const HELD_MAX: usize = 1024;

/// Reports of many copies, as they travel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportBundle {
    /// These come before `others`, whose copies may have ended since.
    empty: Vec<EmptyReports>,
    others: Vec<CopyReport>,
}

/// Copies of a task that have passed a barrier with nothing to save.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct EmptyReports {
    epoch: u64,
    task: u32,
    /// The first copy and the length of each range.
    copies: Vec<(u32, u32)>,
}

impl ReportBundle {
    /// As it travels.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("reports are made of numbers and texts")
    }

    /// Decodes what [`ReportBundle::encode`] made, in a job whose tasks have `copies` copies each. Refuses reports of
    /// copies that do not exist: otherwise a few bytes could become billions of reports.
    ///
    /// # Errors
    /// A description, for anything else.
    pub fn decode(bytes: &[u8], copies: &[u32]) -> Result<Self, String> {
        let bundle: ReportBundle = serde_json::from_slice(bytes).map_err(|error| format!("no reports: {error}"))?;
        match bundle.check(copies) {
            Ok(()) => Ok(bundle),
            Err(reason) => Err(format!("no reports: {reason}")),
        }
    }

    /// Checks that tasks and ranges are in order, as a [`ReportMerger`] makes them, so that no copy occurs twice.
    fn check(&self, copies: &[u32]) -> Result<(), String> {
        let of_task = |task: u32| copies.get(task as usize).copied().unwrap_or(0);
        let mut tasks_from = 0;
        for EmptyReports { task, copies: ranges, .. } in &self.empty {
            if *task < tasks_from {
                return Err(format!("task {task} is there twice, or not in order"));
            }
            tasks_from = task.saturating_add(1);
            let mut copies_from = 0;
            for &(first, count) in ranges {
                let end = first.checked_add(count).filter(|&end| end <= of_task(*task));
                let Some(end) = end.filter(|&end| copies_from <= first && first < end) else {
                    return Err(format!("{count} copies from {first} on, of {} of task {task}", of_task(*task)));
                };
                copies_from = end;
            }
        }
        match self.others.iter().find(|report| report.copy >= of_task(report.task)) {
            Some(CopyReport { task, copy, .. }) => Err(format!("copy {copy}, of {} of task {task}", of_task(*task))),
            None => Ok(()),
        }
    }

    /// One for each copy, in order.
    pub fn into_reports(self) -> impl Iterator<Item = CopyReport> {
        let empty = self.empty.into_iter().flat_map(|EmptyReports { epoch, task, copies }| {
            let said = move || ReportBody::Saved { epoch, parts: Vec::new() };
            let copies = copies.into_iter().flat_map(|(first, count)| first..first + count);
            copies.map(move |copy| CopyReport { task, copy, said: said() })
        });
        empty.chain(self.others)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct ReportMerger {
    /// Copies that report through this worker, and have not ended.
    copies: usize,
    ended: BTreeSet<(u32, u32)>,
    /// What is held is of this epoch.
    epoch: u64,
    /// Who has spoken of it.
    spoken: BTreeSet<(u32, u32)>,
    /// By task, the copies with nothing to save.
    empty: BTreeMap<u32, BTreeSet<u32>>,
    others: Vec<CopyReport>,
}

impl ReportMerger {
    /// For a worker through which `copies` copies report, including its own.
    pub fn new(copies: usize) -> Self {
        ReportMerger { copies, ..ReportMerger::default() }
    }

    /// Accepts reports. Returns the bundles to send on now.
    pub fn add(&mut self, reports: impl IntoIterator<Item = CopyReport>) -> Vec<ReportBundle> {
        let mut whole = Vec::new();
        for report in reports {
            let id = (report.task, report.copy);
            let mut holds = true;
            match &report.said {
                ReportBody::Saved { epoch, .. } | ReportBody::Failed { epoch, .. } => {
                    if *epoch != self.epoch {
                        whole.extend(self.take());
                        self.spoken.clear();
                        self.epoch = *epoch;
                    }
                    self.spoken.insert(id);
                }
                // Said again when what it kept is not needed any more.
                ReportBody::Ended { .. } => {
                    self.spoken.remove(&id);
                    self.copies = self.copies.saturating_sub(usize::from(self.ended.insert(id)));
                }
                ReportBody::Moved(_) | ReportBody::Full { .. } => holds = false,
            }
            match report.said {
                ReportBody::Saved { ref parts, .. } if parts.is_empty() => {
                    self.empty.entry(id.0).or_default().insert(id.1);
                }
                _ => self.others.push(report),
            }
            if !holds || self.spoken.len() >= self.copies || self.others.len() >= HELD_MAX {
                whole.extend(self.take());
            }
        }
        whole
    }

    /// What is held, if there is anything.
    pub fn take(&mut self) -> Option<ReportBundle> {
        if self.empty.is_empty() && self.others.is_empty() {
            return None;
        }
        let epoch = self.epoch;
        let empty = std::mem::take(&mut self.empty).into_iter();
        let empty = empty.map(|(task, copies)| EmptyReports { epoch, task, copies: ranges(copies) }).collect();
        Some(ReportBundle { empty, others: std::mem::take(&mut self.others) })
    }
}

/// The first number and the length of each range of consecutive numbers.
fn ranges(numbers: BTreeSet<u32>) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((first, count)) if *first + *count == number => *count += 1,
            _ => ranges.push((number, 1)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{PartEntry, PartKey};

    fn saved(task: u32, copy: u32, epoch: u64, parts: u32) -> CopyReport {
        let entry = |offset| PartEntry { file: "state/a".into(), offset, len: 1, sum: 7, whole: true };
        let parts = (0..parts).map(|bucket| (PartKey::Bucket(bucket), entry(u64::from(bucket)))).collect();
        CopyReport { task, copy, said: ReportBody::Saved { epoch, parts } }
    }

    fn ended(task: u32, copy: u32) -> CopyReport {
        CopyReport { task, copy, said: ReportBody::Ended { parts: Vec::new() } }
    }

    /// A report that was lost, doubled or overtaken by a later one of its copy would complete a checkpoint that is not
    /// whole, or none ever.
    #[test]
    fn every_report_comes_once_and_in_order() {
        // Three workers of two copies each, of a task that keeps nothing and one that does, report through worker 0's
        // child, whose own copies are the first.
        let mut children: Vec<ReportMerger> = (0..3).map(|_| ReportMerger::new(2)).collect();
        let (mut inner, mut sent, mut got, mut bundles) = (ReportMerger::new(6), Vec::new(), Vec::new(), 0);
        for epoch in 1..=5u64 {
            for copy in [1, 0, 2] {
                let last = epoch == 4 && copy == 2;
                let mut said = vec![saved(0, copy, epoch, 0), saved(1, copy, epoch, copy)];
                said.extend(last.then(|| ended(1, copy)));
                said.retain(|report| epoch < 5 || copy < 2 || report.task == 0);
                for report in said {
                    sent.push(report.clone());
                    for bundle in children[copy as usize].add([report]) {
                        let bundle = ReportBundle::decode(&bundle.encode(), &[3, 3]).unwrap();
                        for bundle in inner.add(bundle.into_reports()) {
                            bundles += 1;
                            got.extend(bundle.into_reports());
                        }
                    }
                }
            }
        }
        let of = |reports: &[CopyReport], id| -> Vec<CopyReport> {
            reports.iter().filter(|report| (report.task, report.copy) == id).cloned().collect()
        };
        for id in (0..2).flat_map(|task| (0..3).map(move |copy| (task, copy))) {
            assert_eq!(of(&got, id), of(&sent, id), "{id:?}");
        }
        assert_eq!((got.len(), bundles), (sent.len(), 6), "one for each epoch, and one for the end");
        assert_eq!(inner.take(), None);
    }

    /// Waiting for a late copy, or for one that has ended, would make the whole job wait.
    #[test]
    fn nobody_is_held_up() {
        let mut merger = ReportMerger::new(3);
        assert_eq!(merger.add([saved(0, 0, 1, 0), saved(0, 1, 1, 0)]), []);
        let held = merger.take().expect("two reports");
        assert_eq!(held.empty, [EmptyReports { epoch: 1, task: 0, copies: vec![(0, 2)] }]);
        assert_eq!(merger.add([saved(0, 2, 1, 0)]).len(), 1, "the last one");
        assert_eq!(merger.add([saved(0, 0, 2, 0), ended(0, 1)]), []);
        assert_eq!(merger.add([saved(0, 2, 2, 0)]).len(), 1, "the one that has ended is not waited for");
        let full = CopyReport { task: 0, copy: 0, said: ReportBody::Full { behind: 2 } };
        assert_eq!(merger.add([full]).len(), 1, "what is urgent goes at once");
        let all: usize = merger.add((0..5000).map(|copy| saved(1, copy, 3, 1))).iter().map(|b| b.others.len()).sum();
        assert_eq!(all + merger.take().map_or(0, |held| held.others.len()), 5000);
    }

    /// A damaged or forged message would have worker 0 list reports until its memory is full.
    #[test]
    fn more_copies_than_there_are_are_refused() {
        let refused = |empty: &str| {
            let text = format!(r#"{{"empty":[{empty}],"others":[]}}"#);
            ReportBundle::decode(text.as_bytes(), &[4, 2]).expect_err(empty)
        };
        let of = |task: u32, copies: &str| format!(r#"{{"epoch":1,"task":{task},"copies":[{copies}]}}"#);
        for copies in ["[0,5]", "[4,1]", "[4294967295,2]", "[1,4294967295]", "[0,0]", "[0,2],[1,1]", "[2,1],[0,1]"] {
            assert!(refused(&of(0, copies)).contains("of 4 of task 0"), "{copies}");
        }
        assert!(refused(&of(2, "[0,1]")).contains("1 copies from 0 on, of 0 of task 2"));
        assert!(refused(&format!("{0},{0}", of(1, "[0,2]"))).contains("task 1 is there twice"));
        let stranger = ReportBundle { empty: Vec::new(), others: vec![saved(1, 2, 1, 1)] };
        assert!(ReportBundle::decode(&stranger.encode(), &[4, 2]).unwrap_err().contains("copy 2, of 2 of task 1"));
        let whole = format!(r#"{{"empty":[{},{}],"others":[]}}"#, of(0, "[0,1],[1,1],[3,1]"), of(1, "[0,2]"));
        assert_eq!(ReportBundle::decode(whole.as_bytes(), &[4, 2]).unwrap().into_reports().count(), 5);
    }
}

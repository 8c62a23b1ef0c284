//! The contents of a checkpoint: for every task, the locations of its buckets and splits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_batch::route_map::RouteMap;
use twox_hash::XxHash3_64;

use crate::rebalance::MoveReport;
use crate::schema::StateSchema;

/// Incremented when the layout changes.
const VERSION: u32 = 2;
const TITLE: &str = "tidemill checkpoint";

/// The owner of a part of a copy's state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PartKey {
    /// A bucket of keys.
    Bucket(u32),
    /// A split of a source, or the prepared output of a sink.
    Split(String),
    /// A value shared with all copies.
    Shared(String),
    /// Rows that were in flight to an input port.
    InFlight(u32),
}

/// The location of one part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartEntry {
    /// The object, relative to the checkpoints' place.
    pub file: String,
    /// The offset within the object.
    pub offset: u64,
    /// The length in bytes.
    pub len: u64,
    /// Its XXH3 checksum.
    pub sum: u64,
    /// Whether it is the full bucket, or changes since the previous entry.
    pub whole: bool,
}

/// One task's part of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskState {
    /// The number of its copies.
    pub copies: u32,
    /// Which copy owned which bucket, if this differs from the job's graph, or if there were spare workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<RouteMap>,
    /// The schema of its state, if it has declared one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<StateSchema>,
    /// The copies that had ended.
    pub ended: BTreeSet<u32>,
    /// For each bucket that is not empty: a full part, and the changes since, in order.
    pub buckets: BTreeMap<u32, Vec<PartEntry>>,
    /// By copy.
    pub splits: BTreeMap<u32, Vec<(String, PartEntry)>>,
    /// By copy.
    pub shared: BTreeMap<u32, Vec<(String, PartEntry)>>,
    /// By copy, with the port: rows that the barrier has overtaken.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub in_flight: BTreeMap<u32, Vec<(u32, PartEntry)>>,
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The job's name.
    pub job: String,
    /// The run of the job that wrote it: manifests with a higher claim are newer, whatever their epochs.
    pub claim: u64,
    /// The epoch that it ends.
    pub epoch: u64,
    /// Its creation time, in milliseconds since 1970 UTC.
    pub at_ms: u64,
    /// Whether the job has reached its end, so that at most commits are missing.
    pub finished: bool,
    /// The workers that had no buckets and splits, and were to get none.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub spares: BTreeSet<u32>,
    /// By task name.
    pub tasks: BTreeMap<String, TaskState>,
}

impl Manifest {
    /// The stored form: a line with version and checksum, followed by JSON.
    pub fn encode(&self) -> Vec<u8> {
        Self::around(&serde_json::to_vec(self).expect("a manifest is made of numbers and texts"))
    }

    pub(crate) fn around(json: &[u8]) -> Vec<u8> {
        let mut bytes = format!("{TITLE} {VERSION} {:016x}\n", XxHash3_64::oneshot(json)).into_bytes();
        bytes.extend_from_slice(json);
        bytes
    }

    /// Decodes the result of [`Manifest::encode`].
    ///
    /// # Errors
    /// If the bytes are anything else; a message.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let end = bytes.iter().take(80).position(|&byte| byte == b'\n').ok_or("it is not a checkpoint")?;
        let line = std::str::from_utf8(&bytes[..end]).map_err(|_| "it is not a checkpoint")?;
        let mut words = line.strip_prefix(TITLE).ok_or("it is not a checkpoint")?.split_whitespace();
        let version = words.next().ok_or("it is not a checkpoint")?;
        if version != VERSION.to_string() {
            return Err(format!("its format has version {version}; this Tidemill reads version {VERSION}"));
        }
        let sum = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
        let json = &bytes[end + 1..];
        if sum != Some(XxHash3_64::oneshot(json)) {
            return Err("its checksum is wrong: it is damaged or incomplete".into());
        }
        serde_json::from_slice(json).map_err(|error| format!("it is invalid: {error}"))
    }

    /// Every object it refers to, except for empty parts, which are not written.
    pub fn files(&self) -> BTreeSet<&str> {
        self.entries().filter(|entry| entry.len > 0).map(|entry| entry.file.as_str()).collect()
    }

    /// The total bytes of state it refers to.
    pub fn state_bytes(&self) -> u64 {
        self.entries().fold(0, |sum, entry| sum.saturating_add(entry.len))
    }

    /// The route map for a task whose graph gives it `own`: the one in the checkpoint, if the task has the same number
    /// of copies and buckets as then.
    pub fn route(&self, task: &str, copies: u32, own: &Arc<RouteMap>) -> Arc<RouteMap> {
        let then = self.tasks.get(task).filter(|state| state.copies == copies).and_then(|state| state.route.as_ref());
        then.filter(|then| then.fits(own.buckets(), copies).is_ok())
            .map_or_else(|| Arc::clone(own), |then| Arc::new(then.clone()))
    }

    /// Every part it refers to.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &PartEntry> {
        self.tasks.values().flat_map(TaskState::entries)
    }
}

impl TaskState {
    fn entries(&self) -> impl Iterator<Item = &PartEntry> {
        let named = self.splits.values().chain(self.shared.values()).flatten().map(|(_, entry)| entry);
        let in_flight = self.in_flight.values().flatten().map(|(_, entry)| entry);
        self.buckets.values().flatten().chain(named).chain(in_flight)
    }

    /// Whether the state consists only of what a sink has prepared.
    pub fn has_only_prepared(&self) -> bool {
        // In the form of `split_name`.
        let is_number = |text: &str| text.parse::<u64>().is_ok();
        let is_prepared = |(name, _): &(String, PartEntry)| {
            name.split_once('.').is_some_and(|(epoch, copy)| is_number(epoch) && is_number(copy))
        };
        self.buckets.is_empty() && self.in_flight.is_empty() && self.splits.values().flatten().all(is_prepared)
    }

    /// Adds the parts that a copy has saved.
    pub(crate) fn apply(&mut self, copy: u32, parts: Vec<(PartKey, PartEntry)>) {
        let (mut splits, mut shared, mut in_flight) = (Vec::new(), Vec::new(), Vec::new());
        for (key, entry) in parts {
            match key {
                PartKey::InFlight(port) => in_flight.push((port, entry)),
                PartKey::Split(name) => splits.push((name, entry)),
                PartKey::Shared(name) => shared.push((name, entry)),
                PartKey::Bucket(bucket) if entry.whole && entry.len == 0 => {
                    self.buckets.remove(&bucket);
                }
                PartKey::Bucket(bucket) => {
                    let entries = self.buckets.entry(bucket).or_default();
                    if entry.whole {
                        entries.clear();
                    }
                    entries.push(entry);
                }
            }
        }
        put(&mut self.splits, copy, splits);
        put(&mut self.shared, copy, shared);
        put(&mut self.in_flight, copy, in_flight);
    }
}

fn put<T>(all: &mut BTreeMap<u32, Vec<T>>, copy: u32, mine: Vec<T>) {
    if mine.is_empty() {
        all.remove(&copy);
    } else {
        all.insert(copy, mine);
    }
}

/// A report of a copy to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyReport {
    /// The task's number in the flow.
    pub task: u32,
    /// The number of the copy.
    pub copy: u32,
    /// The report.
    pub said: ReportBody,
}

/// The contents of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReportBody {
    /// The copy has saved its state of an epoch.
    Saved {
        /// The epoch.
        epoch: u64,
        /// The location of each part.
        parts: Vec<(PartKey, PartEntry)>,
    },
    /// The copy could not save its state.
    Failed {
        /// The epoch.
        epoch: u64,
        /// The reason.
        reason: String,
    },
    /// The copy has ended and saved this. Reported again without parts once it has nothing left of it.
    Ended {
        /// The location of each part.
        parts: Vec<(PartKey, PartEntry)>,
    },
    /// The copy has handed over and received the buckets of a rebalance.
    Moved(MoveReport),
    /// The copy has almost as much data as it may hold until the next checkpoint after this epoch.
    Full {
        /// The epoch.
        behind: u64,
    },
}

impl CopyReport {
    /// The form for sending.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a report is made of numbers and texts")
    }

    /// Decodes the result of [`CopyReport::encode`].
    ///
    /// # Errors
    /// If the bytes are anything else; a message.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|error| format!("not a report: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(file: &str, whole: bool, len: u64) -> PartEntry {
        PartEntry { file: file.into(), offset: 0, len, sum: 7, whole }
    }

    /// A chain that lost a change, or kept what a full part replaces, would restore a state that never existed.
    #[test]
    fn wholes_replace_and_changes_follow() {
        let mut task = TaskState::default();
        task.apply(
            0,
            vec![(PartKey::Bucket(3), entry("a", true, 9)), (PartKey::Split("x".into()), entry("a", true, 1))],
        );
        task.apply(
            0,
            vec![(PartKey::Bucket(3), entry("b", false, 2)), (PartKey::Split("y".into()), entry("b", true, 1))],
        );
        assert_eq!(task.buckets[&3], [entry("a", true, 9), entry("b", false, 2)]);
        assert_eq!(task.splits[&0], [("y".into(), entry("b", true, 1))]);
        task.apply(1, vec![(PartKey::Bucket(3), entry("c", true, 4))]);
        assert_eq!((task.buckets[&3].as_slice(), task.splits.len()), ([entry("c", true, 4)].as_slice(), 1));
        task.apply(0, vec![(PartKey::Bucket(3), entry("d", true, 0))]);
        assert!(task.buckets.is_empty() && task.splits.is_empty());
    }

    /// A map that does not fit the current job would send keys to missing copies, or buckets to nobody.
    #[test]
    fn a_map_requires_the_same_copies_and_buckets() {
        let own = Arc::new(RouteMap::even(8, 2));
        let moved = own.moved(&[(0, 1)]);
        let task = TaskState { copies: 2, route: Some(moved.clone()), ..TaskState::default() };
        let tasks = [("count".to_owned(), task)].into();
        let manifest =
            Manifest { job: "j".into(), claim: 1, epoch: 4, at_ms: 5, finished: false, spares: [3].into(), tasks };
        assert_eq!(*manifest.route("count", 2, &own), moved);
        assert_eq!(Manifest::decode(&manifest.encode()).as_ref(), Ok(&manifest));
        let even = |buckets, copies| Arc::new(RouteMap::even(buckets, copies));
        assert_eq!(manifest.route("count", 3, &even(8, 3)), even(8, 3));
        assert_eq!(manifest.route("count", 2, &even(16, 2)), even(16, 2));
        assert_eq!(manifest.route("another", 2, &own), own);
    }

    /// A truncated or changed manifest must be refused, so that the previous one is used.
    #[test]
    fn damaged_manifests_are_refused() {
        let mut task = TaskState { copies: 2, ended: [1].into(), ..TaskState::default() };
        task.apply(
            0,
            vec![(PartKey::Bucket(1), entry("a", true, 9)), (PartKey::Split("x".into()), entry("b", true, 1))],
        );
        let tasks = [("count".to_owned(), task)].into();
        let manifest =
            Manifest { job: "j".into(), claim: 1, epoch: 4, at_ms: 5, finished: false, spares: BTreeSet::new(), tasks };
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes).as_ref(), Ok(&manifest));
        assert_eq!(manifest.files(), ["a", "b"].into());
        (0..bytes.len()).for_each(|len| assert!(Manifest::decode(&bytes[..len]).is_err(), "{len}"));
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 4;
            assert!(Manifest::decode(&bytes).is_err(), "{at}");
        }
    }
}

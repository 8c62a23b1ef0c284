//! What a checkpoint consists of: for every task, where each bucket's and each split's part lies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_batch::route_map::RouteMap;
use twox_hash::XxHash3_64;

use crate::rebalance::MoveReport;
use crate::schema::StateSchema;

/// Changes when the layout does.
const VERSION: u32 = 2;
const TITLE: &str = "tidemill checkpoint";

/// What a part of a copy's state belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PartKey {
    /// A bucket of keys.
    Bucket(u32),
    /// A split of a source, or what a sink has prepared.
    Split(String),
    /// What all copies are to know.
    Shared(String),
    /// Rows that were in flight to an input port.
    InFlight(u32),
}

/// Where one part lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartEntry {
    /// The object, beneath the checkpoints' own place.
    pub file: String,
    /// Its part of the object.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Its XXH3 checksum.
    pub sum: u64,
    /// Whether it is all of the bucket, or what has changed since the entry before.
    pub whole: bool,
}

/// One task's part of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskState {
    /// How many copies it had.
    pub copies: u32,
    /// Which of them owned which bucket, if that was not as the job's graph says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<RouteMap>,
    /// What its states consist of, if it has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<StateSchema>,
    /// Those that had ended.
    pub ended: BTreeSet<u32>,
    /// Of each bucket that is not empty: a whole, and the changes since, in order.
    pub buckets: BTreeMap<u32, Vec<PartEntry>>,
    /// By copy.
    pub splits: BTreeMap<u32, Vec<(String, PartEntry)>>,
    /// By copy.
    pub shared: BTreeMap<u32, Vec<(String, PartEntry)>>,
    /// By copy, with the port: rows that the barrier has overtaken.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub in_flight: BTreeMap<u32, Vec<(u32, PartEntry)>>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The job's name.
    pub job: String,
    /// Which run of the job has written it: of a later one, it comes later than any epoch of those before.
    pub claim: u64,
    /// The epoch that it ends.
    pub epoch: u64,
    /// When it was made, in milliseconds since 1970 UTC.
    pub at_ms: u64,
    /// Whether the job has come to its end: only commits may be missing.
    pub finished: bool,
    /// By the task's name.
    pub tasks: BTreeMap<String, TaskState>,
}

impl Manifest {
    /// As it lies in the store: a line with version and checksum, and JSON.
    pub fn encode(&self) -> Vec<u8> {
        Self::around(&serde_json::to_vec(self).expect("a manifest is made of numbers and texts"))
    }

    pub(crate) fn around(json: &[u8]) -> Vec<u8> {
        let mut bytes = format!("{TITLE} {VERSION} {:016x}\n", XxHash3_64::oneshot(json)).into_bytes();
        bytes.extend_from_slice(json);
        bytes
    }

    /// What [`Manifest::encode`] made.
    ///
    /// # Errors
    /// In words, for anything else.
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

    /// Every object it needs. One without bytes is not written.
    pub fn files(&self) -> BTreeSet<&str> {
        self.entries().filter(|entry| entry.len > 0).map(|entry| entry.file.as_str()).collect()
    }

    /// Bytes of state that it refers to.
    pub fn state_bytes(&self) -> u64 {
        self.entries().fold(0, |sum, entry| sum.saturating_add(entry.len))
    }

    /// The map by which a task goes on that begins with `own`: as it was when the checkpoint was made, if the task has
    /// as many copies and buckets as then.
    pub fn route(&self, task: &str, copies: u32, own: &Arc<RouteMap>) -> Arc<RouteMap> {
        let then = self.tasks.get(task).filter(|state| state.copies == copies).and_then(|state| state.route.as_ref());
        then.filter(|then| then.fits(own.buckets(), copies).is_ok())
            .map_or_else(|| Arc::clone(own), |then| Arc::new(then.clone()))
    }

    /// Every part that it refers to.
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

    /// Whether it is what a sink has prepared, and nothing else.
    pub fn has_only_prepared(&self) -> bool {
        // As `split_name` names it.
        let is_number = |text: &str| text.parse::<u64>().is_ok();
        let is_prepared = |(name, _): &(String, PartEntry)| {
            name.split_once('.').is_some_and(|(epoch, copy)| is_number(epoch) && is_number(copy))
        };
        self.buckets.is_empty() && self.in_flight.is_empty() && self.splits.values().flatten().all(is_prepared)
    }

    /// A copy has saved these parts.
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

/// What a copy tells the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyReport {
    /// The task's number in the flow.
    pub task: u32,
    /// Which of its copies.
    pub copy: u32,
    /// What it has to say.
    pub said: ReportBody,
}

/// What a copy has to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReportBody {
    /// It has saved its state of an epoch.
    Saved {
        /// The epoch.
        epoch: u64,
        /// Where each part lies.
        parts: Vec<(PartKey, PartEntry)>,
    },
    /// It could not.
    Failed {
        /// The epoch.
        epoch: u64,
        /// Why not.
        reason: String,
    },
    /// It has come to its end, and saved this; said again, that it keeps nothing of it any more.
    Ended {
        /// Where each part lies.
        parts: Vec<(PartKey, PartEntry)>,
    },
    /// It has handed over and taken what a rebalance moves.
    Moved(MoveReport),
    /// It keeps nearly as much as it may until the next checkpoint behind this epoch.
    Full {
        /// The epoch.
        behind: u64,
    },
}

impl CopyReport {
    /// As it travels.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a report is made of numbers and texts")
    }

    /// What [`CopyReport::encode`] made.
    ///
    /// # Errors
    /// In words, for anything else.
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

    /// A chain that lost a change, or kept what a whole replaces, would restore a state that never was.
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

    /// A map that does not fit the job as it is now would send keys to copies there are not, or buckets to nobody.
    #[test]
    fn a_map_holds_for_as_many_copies_and_buckets() {
        let own = Arc::new(RouteMap::even(8, 2));
        let moved = own.moved(&[(0, 1)]);
        let task = TaskState { copies: 2, route: Some(moved.clone()), ..TaskState::default() };
        let tasks = [("count".to_owned(), task)].into();
        let manifest = Manifest { job: "j".into(), claim: 1, epoch: 4, at_ms: 5, finished: false, tasks };
        assert_eq!(*manifest.route("count", 2, &own), moved);
        assert_eq!(Manifest::decode(&manifest.encode()).as_ref(), Ok(&manifest));
        let even = |buckets, copies| Arc::new(RouteMap::even(buckets, copies));
        assert_eq!(manifest.route("count", 3, &even(8, 3)), even(8, 3));
        assert_eq!(manifest.route("count", 2, &even(16, 2)), even(16, 2));
        assert_eq!(manifest.route("another", 2, &own), own);
    }

    /// A manifest cut short or changed must be no manifest: the one before is taken.
    #[test]
    fn damaged_manifests_are_refused() {
        let mut task = TaskState { copies: 2, ended: [1].into(), ..TaskState::default() };
        task.apply(
            0,
            vec![(PartKey::Bucket(1), entry("a", true, 9)), (PartKey::Split("x".into()), entry("b", true, 1))],
        );
        let tasks = [("count".to_owned(), task)].into();
        let manifest = Manifest { job: "j".into(), claim: 1, epoch: 4, at_ms: 5, finished: false, tasks };
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

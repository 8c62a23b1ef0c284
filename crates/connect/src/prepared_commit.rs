//! A sink's data in a checkpoint: records to be written when the checkpoint is durable.
//!
//! The format is a header (four bytes of length, then JSON), followed by the records. A record is a key, a value and,
//! optionally, headers. Each of these is stored as its length plus one in four bytes, or zero for none, followed by the
//! bytes. Headers are a sequence of names and values in the same encoding. Numbers are little-endian.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidemill_dataflow::TaskError;

use crate::hash;

/// The description of prepared records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PreparedHeader {
    /// The sink's name at the target.
    pub(crate) id: String,
    /// Where the records go.
    pub(crate) target: String,
    /// The copy that prepared them.
    pub(crate) origin: u32,
    /// Identifies one run of that copy.
    pub(crate) run: String,
    pub(crate) epoch: u64,
    pub(crate) records: u64,
    /// Whether each record has headers.
    #[serde(default)]
    pub(crate) headed: bool,
}

/// The records of one copy of a sink since the last checkpoint, which go into the next one.
pub(crate) struct EpochBuffer {
    header: PreparedHeader,
    /// The records, appended by `put`.
    pub(crate) bytes: Vec<u8>,
    /// At half of this size the sink requests a checkpoint; at this size rows wait for it.
    bytes_max: usize,
}

impl EpochBuffer {
    /// A buffer for copy `origin` of a sink that is called `id` at its `target`. `headed`: whether each record has
    /// headers.
    pub(crate) fn new(id: String, target: String, origin: u32, headed: bool, bytes_max: usize) -> Self {
        let header = PreparedHeader { id, target, origin, run: hash::unique(), epoch: 0, records: 0, headed };
        EpochBuffer { header, bytes: Vec::new(), bytes_max }
    }

    /// Where the records go.
    pub(crate) fn target(&self) -> &str {
        &self.header.target
    }

    /// The copy that the records belong to.
    pub(crate) fn origin(&self) -> u32 {
        self.header.origin
    }

    /// Notes that `records` records have been appended to `bytes`.
    pub(crate) fn count(&mut self, records: usize) {
        self.header.records += records as u64;
    }

    /// The data for the checkpoint of `epoch`, empty if there are no records. Empties the buffer.
    pub(crate) fn seal(&mut self, epoch: u64) -> Bytes {
        self.header.epoch = epoch;
        let bytes = std::mem::take(&mut self.bytes);
        let sealed = if self.header.records == 0 { Bytes::new() } else { seal(&self.header, &bytes) };
        self.header.records = 0;
        sealed
    }

    /// The fill level; 1 is full.
    pub(crate) fn fullness(&self) -> f64 {
        self.bytes.len() as f64 / self.bytes_max as f64
    }
}

/// The guarantee and the name of a sink that supports commits.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CommitOptions {
    guarantee: CommitGuarantee,
    /// With exactly once: the job's name, which must be unique at the target.
    id: Option<String>,
    /// Limit per copy between two checkpoints, see [`EpochBuffer`].
    pub(crate) epoch_bytes_max: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CommitGuarantee {
    #[default]
    ExactlyOnce,
    AtLeastOnce,
}

impl CommitOptions {
    /// The job's name with exactly once, `None` with at least once. `at` is the target.
    ///
    /// # Errors
    /// A description, if exactly once lacks the name.
    pub(crate) fn id(&self, at: &str) -> Result<Option<String>, String> {
        match (self.guarantee, self.id.clone().filter(|id| !id.is_empty())) {
            (CommitGuarantee::AtLeastOnce, _) => Ok(None),
            (CommitGuarantee::ExactlyOnce, Some(id)) => Ok(Some(id)),
            (CommitGuarantee::ExactlyOnce, None) => {
                Err(format!("exactly once needs `id`, a name that only this job uses at {at} and keeps"))
            }
        }
    }
}

/// Maximum number of runs in a marker.
const RUNS_MAX: usize = 16;

/// Stored at the target with the last records: the runs that have committed, newest first, each with its last epoch. A
/// run that was cut off and comes back late finds itself there, even if the next run has already continued.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommitMarker(Vec<(String, u64)>);

impl CommitMarker {
    /// Parses its text.
    pub(crate) fn parse(text: &str) -> Self {
        let words: Vec<&str> = text.split(' ').collect();
        let run = |pair: &[&str]| Some((pair[0].to_owned(), pair[1].parse().ok()?));
        CommitMarker(words.chunks_exact(2).filter_map(run).collect())
    }

    /// Whether it contains this commit.
    pub(crate) fn has(&self, header: &PreparedHeader) -> bool {
        self.0.iter().any(|(run, epoch)| *run == header.run && *epoch >= header.epoch)
    }

    /// The marker that also contains this commit.
    pub(crate) fn with(&self, header: &PreparedHeader) -> Self {
        let others = self.0.iter().filter(|(run, _)| *run != header.run).cloned();
        CommitMarker(std::iter::once((header.run.clone(), header.epoch)).chain(others).take(RUNS_MAX).collect())
    }
}

impl fmt::Display for CommitMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs: Vec<String> = self.0.iter().map(|(run, epoch)| format!("{run} {epoch}")).collect();
        f.write_str(&runs.join(" "))
    }
}

/// A key and a value, or the name and value of a header.
pub(crate) type Record<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// Appends a key, a value, or headers.
pub(crate) fn put(bytes: Option<&[u8]>, out: &mut Vec<u8>) {
    out.extend_from_slice(&bytes.map_or(0, |bytes| bytes.len() as u32 + 1).to_le_bytes());
    out.extend_from_slice(bytes.unwrap_or_default());
}

/// Encodes the data for a checkpoint.
fn seal(header: &PreparedHeader, records: &[u8]) -> Bytes {
    let header = serde_json::to_vec(header).expect("it is made of numbers and texts");
    let mut bytes = (header.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&header);
    bytes.extend_from_slice(records);
    bytes.into()
}

/// Decodes what `seal` produced.
///
/// # Errors
/// For bytes that it did not produce.
pub(crate) fn open(bytes: &[u8]) -> Result<(PreparedHeader, &[u8]), TaskError> {
    let parts =
        bytes.split_first_chunk().and_then(|(len, rest)| rest.split_at_checked(u32::from_le_bytes(*len) as usize));
    let (header, records) = parts.ok_or("the checkpoint has data that no such sink prepared")?;
    Ok((serde_json::from_slice(header)?, records))
}

/// The records in bytes that `put` produced.
pub(crate) fn records(bytes: &[u8]) -> impl Iterator<Item = Result<Record<'_>, TaskError>> {
    with_headers(bytes, false).map(|record| record.map(|(record, _)| record))
}

/// The records, with their headers if they are `headed`.
pub(crate) fn with_headers(
    mut bytes: &[u8],
    headed: bool,
) -> impl Iterator<Item = Result<(Record<'_>, Option<&[u8]>), TaskError>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let mut parts = || {
            let record = (take(&mut bytes)?, take(&mut bytes)?);
            Some((record, if headed { take(&mut bytes)? } else { None }))
        };
        let record = parts();
        if record.is_none() {
            bytes = &[];
        }
        Some(record.ok_or_else(|| "the data that a sink prepared is truncated".into()))
    })
}

fn take<'a>(bytes: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let (len, rest) = bytes.split_first_chunk()?;
    let (value, rest) = match u32::from_le_bytes(*len) as usize {
        0 => (None, rest),
        len => {
            let (value, rest) = rest.split_at_checked(len - 1)?;
            (Some(value), rest)
        }
    };
    *bytes = rest;
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A commit must be remembered as long as some run may try it again.
    #[test]
    fn markers_know_earlier_runs() {
        let of = |run: &str, epoch| PreparedHeader {
            id: "i".into(),
            target: "t".into(),
            origin: 0,
            run: run.into(),
            epoch,
            records: 1,
            headed: false,
        };
        let mut marker = CommitMarker::parse("");
        assert!(!marker.has(&of("a", 1)));
        for (run, epoch) in [("a", 5), ("b", 6), ("b", 7)] {
            marker = CommitMarker::parse(&marker.with(&of(run, epoch)).to_string());
        }
        assert_eq!(marker.to_string(), "b 7 a 5");
        assert!(marker.has(&of("a", 5)) && marker.has(&of("b", 6)));
        assert!(!marker.has(&of("a", 6)) && !marker.has(&of("c", 1)));
        for epoch in 0..100 {
            marker = marker.with(&of(&format!("r{epoch}"), epoch));
        }
        assert_eq!(CommitMarker::parse(&marker.to_string()), marker);
        assert!(marker.to_string().len() < 1000);
    }

    /// A damaged checkpoint must not pass as one with fewer records.
    #[test]
    fn what_is_cut_is_refused() {
        let mut header = PreparedHeader {
            id: "i".into(),
            target: "t".into(),
            origin: 1,
            run: "r".into(),
            epoch: 7,
            records: 3,
            headed: false,
        };
        let mut bytes = Vec::new();
        let texts: [Option<&[u8]>; 6] = [Some(b"k"), Some(b"v"), None, Some(b""), None, None];
        texts.into_iter().for_each(|text| put(text, &mut bytes));
        let sealed = seal(&header, &bytes);
        let (opened, inside) = open(&sealed).unwrap();
        assert_eq!((&opened, inside), (&header, bytes.as_slice()));
        let found: Vec<Record<'_>> = records(inside).map(Result::unwrap).collect();
        assert_eq!(found, [(texts[0], texts[1]), (texts[2], texts[3]), (texts[4], texts[5])]);
        for len in 0..sealed.len() {
            let is_whole = open(&sealed[..len])
                .is_ok_and(|(header, inside)| records(inside).filter(Result::is_ok).count() as u64 == header.records);
            assert!(!is_whole, "{len}");
        }

        (header.records, header.headed) = (2, true);
        let sealed = seal(&header, &bytes);
        let (opened, inside) = open(&sealed).unwrap();
        let headed: Vec<_> = with_headers(inside, opened.headed).map(Result::unwrap).collect();
        assert_eq!(headed, [((texts[0], texts[1]), texts[2]), ((texts[3], texts[4]), texts[5])]);
        assert!(with_headers(&inside[..inside.len() - 4], true).last().unwrap().is_err());
        // Data prepared by earlier releases lack this field.
        let before = r#"{"id":"i","target":"t","origin":1,"run":"r","epoch":7,"records":3}"#;
        assert!(!serde_json::from_str::<PreparedHeader>(before).unwrap().headed);
    }
}

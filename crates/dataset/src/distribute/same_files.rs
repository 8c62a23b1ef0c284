//! Checks that all hosts see the same local files: each worker reads a share of them, and shares of different files
//! would not fit together.
//!
//! Files count as the same if their sizes and times are equal, as in rsync. Copies with different times count as the
//! same if their contents are. Only jobs on several hosts are checked.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::sync::Arc;

use chrono::DateTime;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;
use twox_hash::XxHash3_64;

use crate::error::{DataSetError, Result};
use crate::files::file_table::{CheckedTable, PiecesTable};
use crate::files::paths::{InputFile, LocalFile};
use crate::plan::tables::each_table;

/// The remedy for files that differ, for every worker.
const REMEDY: &str = "put the same files where all hosts see them (large ones with their timestamps: `cp -p`, `rsync \
                      -t`), or give the read function each_host=True, so that every host reads its own files";

/// Maximum number of bytes to read when comparing copies, about a second of work.
const COMPARED_BYTES_MAX: u64 = 1 << 30;
const BLOCK_BYTES: usize = 1 << 20;

/// A checksum of a file's contents.
pub(super) fn contents(path: &str) -> Result<u64, DataSetError> {
    let failed = |error| DataSetError::Io(format!("{path}: {error}"));
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let (mut hasher, mut block) = (XxHash3_64::with_seed(0), vec![0; BLOCK_BYTES]);
    loop {
        match file.read(&mut block).map_err(failed)? {
            0 => return Ok(hasher.finish()),
            bytes => hasher.write(&block[..bytes]),
        }
    }
}

/// The local files of a query as one worker sees them: size and modification time by path.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ObservedFiles(BTreeMap<String, (u64, i64)>);

impl ObservedFiles {
    /// The files that a plan reads in shares, without those that each host has separately.
    pub(super) fn of(frame: &DataFrame, plan: &Arc<dyn ExecutionPlan>) -> Result<Self> {
        let mut in_pieces: Vec<InputFile> = Vec::new();
        each_table(frame.logical_plan(), &mut |table| {
            if let Some(table) = table.downcast_ref::<PiecesTable>() {
                in_pieces.extend_from_slice(&table.files);
            }
            if let Some(table) = table.downcast_ref::<CheckedTable>() {
                in_pieces.extend(table.pieces.iter().map(|piece| piece.file.clone()));
            }
        });
        let mut seen = ObservedFiles::default();
        for file in &in_pieces {
            if let Some(LocalFile { path, bytes, changed_ns }) = LocalFile::of(file)? {
                seen.0.insert(path, (bytes, changed_ns));
            }
        }
        // DataFusion has listed the files that it reads itself for the plan.
        plan.apply(|node| {
            let source = node.downcast_ref::<DataSourceExec>().map(|scan| scan.data_source());
            if let Some(scan) = source.and_then(|source| source.downcast_ref::<FileScanConfig>())
                && scan.object_store_url.as_str() == "file:///"
            {
                for file in scan.file_groups.iter().flat_map(|group| group.iter()) {
                    let meta = &file.object_meta;
                    let changed_ns = meta.last_modified.timestamp_nanos_opt().unwrap_or_default();
                    seen.0.insert(format!("/{}", meta.location), (meta.size, changed_ns));
                }
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(seen)
    }

    /// Equal if all files are equal.
    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// Encodes the files for [`ObservedFiles::from_text`] on another worker.
    pub(super) fn to_text(&self) -> String {
        self.0.iter().map(|(path, (bytes, changed_ns))| format!("{bytes} {changed_ns} {path}\0")).collect()
    }

    pub(super) fn from_text(text: &str) -> Self {
        let file = |line: &str| {
            let mut parts = line.splitn(3, ' ');
            let (bytes, changed_ns) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            Some((parts.next()?.to_owned(), (bytes, changed_ns)))
        };
        ObservedFiles(text.split_terminator('\0').filter_map(file).collect())
    }

    /// For each file, whether another worker has it with the same size but another time.
    pub(super) fn retimed(&self, other: &Self) -> Vec<u8> {
        self.0.keys().map(|path| u8::from(self.is_retimed(path, other))).collect()
    }

    pub(super) fn is_retimed(&self, path: &str, other: &Self) -> bool {
        let both = self.0.get(path).zip(other.0.get(path));
        both.is_some_and(|(mine, theirs)| mine.0 == theirs.0 && mine.1 != theirs.1)
    }

    /// The files to compare, among those that are `retimed` for some worker.
    pub(super) fn compared(&self, retimed: &[u8]) -> Vec<String> {
        let mut left_bytes = COMPARED_BYTES_MAX;
        let files = self.0.iter().zip(retimed).filter(|(_, retimed)| **retimed != 0);
        files
            .map_while(|((path, (bytes, _)), _)| {
                left_bytes = left_bytes.checked_sub(*bytes)?;
                Some(path.clone())
            })
            .collect()
    }

    /// Adopts the time that another worker sees for a file with the same contents.
    pub(super) fn take_time(&mut self, path: &str, other: &Self) {
        if let (Some(mine), Some(theirs)) = (self.0.get_mut(path), other.0.get(path)) {
            mine.1 = theirs.1;
        }
    }

    /// Describes the first file that another worker sees differently; `here` and `there` are host names.
    pub(super) fn difference(&self, here: &str, other: &Self, there: &str) -> Option<String> {
        let first = self.0.keys().chain(other.0.keys()).filter(|path| self.0.get(*path) != other.0.get(*path)).min()?;
        let told = match (self.0.get(first), other.0.get(first)) {
            (Some((mine, _)), Some((theirs, _))) if mine != theirs => {
                format!("is not the same file on all hosts: it has {mine} bytes on {here}, but {theirs} on {there}")
            }
            (Some((_, mine)), Some((_, theirs))) => format!(
                "is not the same file on all hosts, or too large to compare: it was last changed at {} on {here}, but \
                 at {} on {there}",
                DateTime::from_timestamp_nanos(*mine).naive_utc(),
                DateTime::from_timestamp_nanos(*theirs).naive_utc()
            ),
            (Some(_), None) => format!("is on host {here}, but not on {there}"),
            (None, _) => format!("is on host {there}, but not on {here}"),
        };
        Some(format!("{first} {told}; {REMEDY}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(files: &[(&str, u64, i64)]) -> ObservedFiles {
        ObservedFiles(files.iter().map(|&(path, bytes, changed_ns)| (path.to_owned(), (bytes, changed_ns))).collect())
    }

    /// If one of many files differs, the error must name it, the difference, and the host.
    #[test]
    fn the_first_difference_is_told() {
        let mine = seen(&[("/a b\n.csv", 1, 5), ("/b.csv", 2, 6), ("/d.csv", 3, 7)]);
        assert_eq!(ObservedFiles::from_text(&mine.to_text()), mine);
        assert_eq!(ObservedFiles::from_text(""), ObservedFiles::default());
        assert_eq!(mine.difference("h1", &mine, "h2"), None);
        for (other, told) in [
            (
                seen(&[("/a b\n.csv", 1, 5), ("/b.csv", 9, 6)]),
                "/b.csv is not the same file on all hosts: it has 2 bytes on h1, but 9 on h2",
            ),
            (
                seen(&[("/a b\n.csv", 1, 5), ("/b.csv", 2, 8)]),
                "/b.csv is not the same file on all hosts, or too large to compare: it was last changed",
            ),
            (seen(&[("/a b\n.csv", 1, 5), ("/b.csv", 2, 6)]), "/d.csv is on host h1, but not on h2; "),
            (seen(&[("/a a.csv", 1, 5)]), "/a a.csv is on host h2, but not on h1; "),
        ] {
            let text = mine.difference("h1", &other, "h2").unwrap();
            assert!(text.starts_with(told) && text.ends_with(REMEDY), "{text}");
            assert_ne!(mine.digest(), other.digest());
        }
    }

    /// Only files of equal size are compared, up to a limit; one found to be the same is no longer a difference.
    #[test]
    fn copies_are_those_of_another_time() {
        let mine = seen(&[("/a", 1, 5), ("/b", 2, 6), ("/c", 3, 7), ("/d", 4, 8), ("/e", COMPARED_BYTES_MAX, 9)]);
        let mut other = seen(&[("/a", 1, 9), ("/b", 9, 9), ("/d", 4, 8), ("/e", COMPARED_BYTES_MAX, 1)]);
        let retimed = mine.retimed(&other);
        assert_eq!(retimed, [1, 0, 0, 0, 1]);
        assert_eq!(mine.compared(&retimed), ["/a"]);
        other.take_time("/a", &mine);
        assert_eq!(mine.retimed(&other), [0, 0, 0, 0, 1]);
        assert!(mine.difference("h1", &other, "h2").unwrap().starts_with("/b is not the same"));
    }
}

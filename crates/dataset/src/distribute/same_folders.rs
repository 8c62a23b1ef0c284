//! Checks that all hosts see the files that streams read. Each copy reads a share of the files by name, so a file that
//! its host does not see would never be read. Only jobs on several hosts are checked, when they start.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tidemill_collective::ReduceOp;
use tidemill_dataflow::stream::source::ListFiles;

use super::{Result, WorkerGroup};
use crate::error::DataSetError;

/// How much later a shared file system may show a new file to other hosts: NFS checks a folder again after a minute at
/// most.
const SEEN_AFTER: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of checks before the user is told what the job waits for.
const LOOKS_SILENT: u32 = 3;

/// Whether a host sees the files of another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FolderVisibility {
    All,
    /// All except one that may still appear or disappear.
    NotYet,
}

impl WorkerGroup {
    /// Fails on all workers if the files of some source are not the same on all hosts. Collective.
    pub fn same_folders<'a>(&self, sources: impl Iterator<Item = (&'a str, &'a ListFiles)>) -> Result<()> {
        if self.hosts.is_empty() {
            return Ok(());
        }
        for (name, list) in sources {
            for look in 0.. {
                let mine = list().map_err(|error| DataSetError::Io(error.to_string()));
                let mine = self.agree(mine)?;
                let told = mine.iter().map(|file| format!("{}{file}", if is_new(file) { NEW } else { OLD }));
                let told = told.collect::<Vec<_>>().join("\0");
                let all =
                    (0..self.comm.size()).map(|root| self.tell(root, told.clone())).collect::<Result<Vec<_>>>()?;
                let sees = self.agree(self.sees(name, &mine, &all, look))?;
                let mut least = [0u64];
                self.comm.allreduce(&[sees as u64], &mut least, &ReduceOp::Max)?;
                if least[0] == FolderVisibility::All as u64 {
                    break;
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
        }
        Ok(())
    }

    /// Whether this host has the files reported by the workers of `all`.
    fn sees(&self, source: &str, mine: &[String], all: &[String], look: u32) -> Result<FolderVisibility, DataSetError> {
        let mine: HashSet<&str> = mine.iter().map(String::as_str).collect();
        let here = &self.hosts[self.comm.rank() as usize];
        let mut sees = FolderVisibility::All;
        for (told, there) in all.iter().zip(&self.hosts) {
            for file in told.split('\0').filter(|file| !file.is_empty()) {
                let (age, file) = file.split_at(1);
                if mine.contains(file) || Path::new(file).exists() {
                    continue;
                }
                let what = format!("{source}: {here} does not see {file}, which {there} has");
                // A file that is gone by now is not reported again.
                if age == OLD && look > 0 {
                    return Err(DataSetError::Query(format!(
                        "{what}; all hosts must see a stream's files: use a shared folder, or the URL of a store"
                    )));
                }
                if look == LOOKS_SILENT && sees == FolderVisibility::All {
                    eprintln!("tidemill: {what}; the job waits for it");
                }
                sees = FolderVisibility::NotYet;
            }
        }
        Ok(sees)
    }
}

const NEW: &str = "n";
const OLD: &str = "o";

/// Whether a file has changed recently, or is gone. A time in the future comes from a clock that was set back, or from
/// another machine.
fn is_new(file: &str) -> bool {
    let changed = Path::new(file).metadata().and_then(|of| of.modified());
    changed.map_or(true, |changed| SystemTime::now().duration_since(changed).map_or(true, |age| age < SEEN_AFTER))
}

//! Tables as files.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use super::{CombineOrder, LinkCost, TuneRule, TuneTable};
use crate::{Algorithm, Collective};

/// The format this code reads and writes.
const VERSION: u32 = 2;

/// Largest file that is accepted.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Errors in reading, writing or building a table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The file cannot be read or written.
    #[error("tuning table {path}: {source}")]
    File {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The text is not a table.
    #[error("tuning table {path}, line {line}: {reason}")]
    Bad {
        /// The file, or the origin of the text.
        path: String,
        /// Line number, counted from 1.
        line: usize,
        /// What is wrong in that line.
        reason: String,
    },
    /// The rule's algorithm cannot do what the rule says.
    #[error("algorithm {algorithm} cannot run {collective} with order {order:?} here")]
    Unable {
        /// The collective.
        collective: Collective,
        /// The algorithm.
        algorithm: Algorithm,
        /// The order class.
        order: &'static str,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TuneFile {
    version: Spanned<u32>,
    #[serde(default)]
    rules: Vec<Spanned<RuleLine>>,
    links: Option<Spanned<LinksPart>>,
}

/// The costs of each kind of link: latency in seconds, overhead in seconds, seconds per byte.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinksPart {
    same_host: Option<[f64; 3]>,
    other_host: Option<[f64; 3]>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleLine {
    collective: String,
    algorithm: String,
    ranks: u32,
    hosts: u32,
    bytes_max: Option<u64>,
    chunk_bytes: Option<u64>,
    order: Option<String>,
    blocking: Option<String>,
}

impl TuneTable {
    /// The path of this user's table: `$TIDEMILL_TUNE`, else `tidemill/tune.toml` in `$XDG_CONFIG_HOME` or `~/.config`.
    pub fn default_path() -> Option<PathBuf> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        set("TIDEMILL_TUNE").or_else(|| {
            let config = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
            Some(config.join("tidemill").join("tune.toml"))
        })
    }

    /// This user's table. If none is named and none is in the usual place, a table without rules.
    ///
    /// # Errors
    /// As [`TuneTable::load`]; also when `$TIDEMILL_TUNE` names a file that does not exist.
    pub fn load_default() -> Result<TuneTable, TableError> {
        let named = std::env::var_os("TIDEMILL_TUNE").is_some_and(|value| !value.is_empty());
        match TuneTable::default_path() {
            Some(path) if named || path.exists() => TuneTable::load(&path),
            _ => Ok(TuneTable::default()),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`TableError::File`]; [`TableError::Bad`], naming file and line.
    pub fn load(path: &Path) -> Result<TuneTable, TableError> {
        let name = path.display().to_string();
        let failed = |source| TableError::File { path: name.clone(), source };
        let bytes = std::fs::metadata(path).map_err(failed)?.len();
        if bytes > FILE_BYTES_MAX {
            let reason = format!("file of {bytes} bytes exceeds the limit of {FILE_BYTES_MAX} for a tuning table");
            return Err(TableError::Bad { path: name, line: 1, reason });
        }
        TuneTable::parse(&std::fs::read_to_string(path).map_err(failed)?, &name)
    }

    /// Reads a table from the text of a file; `origin` stands for the file in errors.
    ///
    /// # Errors
    /// [`TableError::Bad`], naming `origin` and the line.
    pub fn parse(text: &str, origin: &str) -> Result<TuneTable, TableError> {
        let bad = |at: usize, reason: String| {
            let line = text.as_bytes()[..at.min(text.len())].iter().filter(|&&b| b == b'\n').count() + 1;
            TableError::Bad { path: origin.to_owned(), line, reason }
        };
        let file: TuneFile = toml::from_str(text)
            .map_err(|error| bad(error.span().map_or(0, |span| span.start), error.message().to_owned()))?;
        if *file.version.get_ref() != VERSION {
            let reason = format!("version {} is not {VERSION}; run `tidemill tune` again", file.version.get_ref());
            return Err(bad(file.version.span().start, reason));
        }
        let mut table = TuneTable::default();
        for line in file.rules {
            let at = line.span().start;
            let rule = line.into_inner().rule().map_err(|reason| bad(at, reason))?;
            table.insert(rule).map_err(|error| bad(at, error.to_string()))?;
        }
        if let Some(links) = file.links {
            let at = links.span().start;
            let LinksPart { same_host, other_host } = links.into_inner();
            let link = |numbers: Option<[f64; 3]>| numbers.map(link_cost).transpose().map_err(|reason| bad(at, reason));
            table.set_links(link(same_host)?, link(other_host)?);
        }
        Ok(table)
    }

    /// The table as the text of a file.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "# Written by `tidemill tune`. The format is described in the crate tidemill-collective, module tuner.\nversion = {VERSION}\nrules = [\n"
        );
        for TuneRule { collective, order, hosts, ranks, bytes_max, algorithm, chunk_bytes, blocking } in self.rules() {
            let _ = write!(text, "  {{ collective = \"{collective}\", ranks = {ranks}, hosts = {hosts}");
            if bytes_max < usize::MAX {
                let _ = write!(text, ", bytes_max = {bytes_max}");
            }
            let _ = write!(text, ", algorithm = \"{algorithm}\"");
            if chunk_bytes > 0 {
                let _ = write!(text, ", chunk_bytes = {chunk_bytes}");
            }
            if let Some(direct) = blocking {
                let _ = write!(text, ", blocking = \"{direct}\"");
            }
            if order != CombineOrder::Any {
                let _ = write!(text, ", order = \"{}\"", order.name());
            }
            text.push_str(" },\n");
        }
        text.push_str("]\n");
        let links = [("same_host", self.links.same_host), ("other_host", self.links.other_host)];
        if links.iter().any(|(_, link)| link.is_some()) {
            text.push_str("\n# latency_s, overhead_s, per_byte_s\n[links]\n");
        }
        for (name, link) in links {
            if let Some(LinkCost { latency_s, overhead_s, per_byte_s }) = link {
                let _ = writeln!(text, "{name} = [{latency_s:e}, {overhead_s:e}, {per_byte_s:e}]");
            }
        }
        text
    }

    /// Writes the table to a file atomically, and creates its folder if needed.
    ///
    /// # Errors
    /// [`TableError::File`].
    pub fn save(&self, path: &Path) -> Result<(), TableError> {
        let write = || {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            // A reader that starts meanwhile sees the old file or the new one, never half of one.
            let mut new = path.as_os_str().to_owned();
            new.push(format!(".{}.new", std::process::id()));
            std::fs::write(&new, self.to_text())?;
            std::fs::rename(&new, path).inspect_err(|_| {
                let _ = std::fs::remove_file(&new);
            })
        };
        write().map_err(|source| TableError::File { path: path.display().to_string(), source })
    }
}

fn link_cost([latency_s, overhead_s, per_byte_s]: [f64; 3]) -> Result<LinkCost, String> {
    let cost = LinkCost { latency_s, overhead_s, per_byte_s };
    match [latency_s, overhead_s, per_byte_s].iter().all(|number| (0.0..1e3).contains(number)) {
        true => Ok(cost),
        false => Err("a link has a latency, an overhead and seconds per byte, each from 0 to 1000".into()),
    }
}

impl RuleLine {
    fn rule(self) -> Result<TuneRule, String> {
        let order = match self.order.as_deref() {
            None => CombineOrder::Any,
            Some(name) => *CombineOrder::ALL
                .iter()
                .find(|order| order.name() == name)
                .ok_or_else(|| format!("unknown order {name:?}; choose any, in_order or repeatable"))?,
        };
        if self.ranks == 0 || self.hosts == 0 {
            return Err("ranks and hosts must be at least 1".into());
        }
        let algorithm = |name: String| name.parse::<Algorithm>().map_err(|e| e.to_string());
        Ok(TuneRule {
            collective: self.collective.parse().map_err(|e: crate::algorithms::UnknownName| e.to_string())?,
            algorithm: algorithm(self.algorithm)?,
            blocking: self.blocking.map(algorithm).transpose()?,
            order,
            hosts: self.hosts,
            ranks: self.ranks,
            bytes_max: self.bytes_max.map_or(usize::MAX, |bytes| bytes as usize),
            chunk_bytes: self.chunk_bytes.unwrap_or(0) as usize,
        })
    }
}

#[cfg(test)]
mod tests {
    use tidemill_net::topology::HostLinks;

    use super::super::{CostModel, TuneQuery};
    use super::*;
    use crate::{CallOptions, CollectiveCall};

    fn query(collective: Collective, bytes: usize, ranks: u32) -> TuneQuery {
        TuneQuery {
            collective,
            bytes,
            item_bytes: 8,
            ranks,
            hosts: 1,
            within_host: HostLinks::BEST,
            commutative: true,
            repeatable: false,
        }
    }

    fn rule(bytes_max: usize, ranks: u32, algorithm: Algorithm, order: CombineOrder) -> TuneRule {
        TuneRule {
            collective: Collective::Allreduce,
            order,
            hosts: 1,
            ranks,
            bytes_max,
            algorithm,
            chunk_bytes: 4096,
            blocking: None,
        }
    }

    /// A rule that is lost or changed on the way to disk and back would silently mistune every later job.
    #[test]
    fn tables_survive_the_way_through_a_file() {
        let mut table = TuneTable::default();
        for rule in [
            rule(8, 2, Algorithm::Linear, CombineOrder::Any),
            rule(usize::MAX, 2, Algorithm::Ring, CombineOrder::Any),
            rule(usize::MAX, 8, Algorithm::Chain, CombineOrder::InOrder),
            rule(100, 8, Algorithm::HalvingDoubling, CombineOrder::Repeatable),
            TuneRule { blocking: Some(Algorithm::SingleCopy), ..rule(200, 8, Algorithm::Ring, CombineOrder::Any) },
        ] {
            table.insert(rule).unwrap();
        }
        let far = LinkCost { latency_s: 1.25e-5, overhead_s: 0.0, per_byte_s: 8.7e-10 };
        table.set_links(None, Some(far));
        let folder = std::env::temp_dir().join(format!("tidemill-tuner-{}", std::process::id()));
        let path = folder.join("deep").join("tune.toml");
        table.save(&path).unwrap();
        let back = TuneTable::load(&path).unwrap();
        assert_eq!(table.rules().collect::<Vec<_>>(), back.rules().collect::<Vec<_>>());
        assert_eq!((back.model().other_host, back.model().same_host), (far, CostModel::TYPICAL.same_host));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no half-written file stays");
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// Catches a lookup of the wrong neighbor in any of the three keys.
    #[test]
    fn lookup_takes_the_nearest_rule() {
        let mut table = TuneTable::default();
        table.insert(rule(64, 4, Algorithm::Linear, CombineOrder::Any)).unwrap();
        table.insert(rule(4096, 4, Algorithm::RecursiveDoubling, CombineOrder::Any)).unwrap();
        table.insert(rule(64, 16, Algorithm::Ring, CombineOrder::Any)).unwrap();
        let found = |bytes, ranks| table.lookup(&query(Collective::Allreduce, bytes, ranks)).unwrap().algorithm;
        assert_eq!(found(0, 4), Algorithm::Linear);
        assert_eq!(found(64, 7), Algorithm::Linear);
        assert_eq!(found(65, 15), Algorithm::RecursiveDoubling);
        assert_eq!(found(1 << 40, 4), Algorithm::RecursiveDoubling);
        assert_eq!(found(1, 2), Algorithm::Linear);
        assert_eq!(found(1, 100), Algorithm::Ring);
        assert_eq!(table.lookup(&query(Collective::Allreduce, 1, 4)).unwrap().chunk, 512);
        let in_order = TuneQuery { commutative: false, ..query(Collective::Allreduce, 1, 16) };
        assert_eq!(table.lookup(&in_order), None, "a rule for commutative operations says nothing about others");
        assert!(table.insert(rule(1, 1, Algorithm::Ring, CombineOrder::InOrder)).is_err());
        assert!(table.insert(rule(1, 1, Algorithm::Bruck, CombineOrder::Any)).is_err());
    }

    /// Blocking calls of workers that share memory are looked up separately, and a rule for several hosts does not
    /// apply to them.
    #[test]
    fn blocking_calls_have_rules_of_their_own() {
        let by = |blocking, rule| TuneRule { blocking, ..rule };
        let mut table = TuneTable::default();
        table.insert(TuneRule { hosts: 2, ..rule(usize::MAX, 4, Algorithm::Ring, CombineOrder::Any) }).unwrap();
        assert!(table.blocking(4).is_empty());
        table.insert(by(Some(Algorithm::SharedMemory), rule(64, 4, Algorithm::Linear, CombineOrder::Any))).unwrap();
        table.insert(rule(4096, 4, Algorithm::Ring, CombineOrder::Any)).unwrap();
        table.insert(by(Some(Algorithm::SingleCopy), rule(8192, 4, Algorithm::Ring, CombineOrder::Any))).unwrap();
        let blocking = table.blocking(6);
        let call = CollectiveCall { op: &crate::ReduceOp::Sum, ..CollectiveCall::new(Collective::Allreduce) };
        let found = [0, 64, 65, 4096, 4097, 1 << 40].map(|bytes| blocking.find(&call, bytes).unwrap());
        use Algorithm::{Ring, SharedMemory, SingleCopy};
        assert_eq!(found, [SharedMemory, SharedMemory, Ring, Ring, SingleCopy, SingleCopy]);
        let repeatable = CollectiveCall { options: CallOptions { repeatable: true, ..CallOptions::default() }, ..call };
        assert_eq!(blocking.find(&repeatable, 8), None);
        assert_eq!(blocking.find(&CollectiveCall::new(Collective::Bcast), 8), None);
        assert_eq!(table.lookup(&query(Collective::Allreduce, 8, 4)).unwrap().algorithm, Algorithm::Linear);
        for wrong in [
            by(Some(Ring), rule(1, 4, Ring, CombineOrder::Any)),
            by(Some(SharedMemory), TuneRule { hosts: 2, ..rule(1, 4, Ring, CombineOrder::Any) }),
            by(
                Some(SingleCopy),
                TuneRule { collective: Collective::Barrier, ..rule(1, 4, Algorithm::Flat, CombineOrder::Any) },
            ),
            rule(1, 4, SharedMemory, CombineOrder::Any),
        ] {
            assert!(table.insert(wrong).is_err(), "{wrong:?}");
        }
    }

    /// Without the line number, a user would have to search a thousand rules.
    #[test]
    fn bad_files_name_the_line() {
        let good =
            "version = 2\nrules = [\n  { collective = \"bcast\", ranks = 2, hosts = 1, algorithm = \"flat\" },\n";
        for (text, line, word) in [
            ("version = 1\n".to_owned(), 1, "version 1"),
            ("\n\nversion = \n".to_owned(), 3, ""),
            ("rules = []".to_owned(), 1, "version"),
            (format!("{good}  {{ collective = \"bcasd\", ranks = 2, hosts = 1, algorithm = \"flat\" }}]"), 4, "bcasd"),
            (format!("{good}  {{ collective = \"bcast\", ranks = 2, hosts = 1, algorithm = \"ring\" }}]"), 4, "ring"),
            (
                format!("{good}  {{ collective = \"bcast\", ranks = 0, hosts = 1, algorithm = \"flat\" }}]"),
                4,
                "at least",
            ),
            (format!("{good}\n  {{ collective = \"bcast\", ranks = -2, hosts = 1, algorithm = \"flat\" }}]"), 5, ""),
            (
                format!("{good}  {{ colective = \"bcast\", ranks = 2, hosts = 1, algorithm = \"flat\" }}]"),
                4,
                "colective",
            ),
            (
                format!(
                    "{good}  {{ collective = \"bcast\", ranks = 2, hosts = 1, algorithm = \"flat\", order = \"x\" }}]"
                ),
                4,
                "order",
            ),
        ] {
            match TuneTable::parse(&text, "tune.toml") {
                Err(TableError::Bad { path, line: found, reason }) => {
                    assert_eq!((path.as_str(), found), ("tune.toml", line), "{text}: {reason}");
                    assert!(reason.contains(word), "{reason:?} does not say {word:?}");
                }
                other => panic!("{text:?} gave {:?}", other.map(|t| t.rules().collect::<Vec<_>>())),
            }
        }
    }

    /// A choice that cannot run the call would fail every call of that shape.
    #[test]
    fn every_choice_can_run_its_call() {
        let table = TuneTable::default();
        for &collective in Collective::ALL {
            for ranks in [1, 2, 3, 4, 7, 8, 64, 1000] {
                for hosts in [1, 2, 4, 64].into_iter().filter(|&hosts| hosts <= ranks) {
                    for bytes in [0, 1, 8, 1000, 65536, 1 << 20, 1 << 26, 1 << 40] {
                        for (commutative, repeatable) in [(true, false), (false, false), (true, true)] {
                            let q = TuneQuery { hosts, commutative, repeatable, ..query(collective, bytes, ranks) };
                            let choice = table.choose(&q);
                            assert!(
                                CombineOrder::new(q.commutative, q.repeatable).allows(collective, choice.algorithm),
                                "{q:?}: {choice:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}

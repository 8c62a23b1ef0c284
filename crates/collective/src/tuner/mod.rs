//! The tuner: selects the algorithm, and the chunk size, that runs a collective.
//!
//! Uses the measured rules of a [`TuneTable`]; without a rule, the algorithm with the lowest estimated cost under a
//! [`CostModel`]. All ranks of a communicator must use equal tables, or their schedules will not match: read the file
//! on one rank and pass its text to the others ([`TuneTable::to_text`], [`TuneTable::parse`]).
//!
//! # File format, version 2
//!
//! TOML; `tidemill tune` writes it, and you may edit it. Without `bytes_max` a rule has no upper limit, without
//! `chunk_bytes` there are no chunks, and `order` defaults to `"any"`. On one host, `blocking` may name an algorithm
//! without messages (`"shared_memory"`, `"single_copy"`) for blocking calls; nonblocking calls, and workers that do not
//! share memory, use `algorithm`.
//!
//! ```toml
//! version = 2
//! rules = [
//!   { collective = "scan", ranks = 4, hosts = 1, bytes_max = 8192, algorithm = "linear", blocking = "shared_memory" },
//!   { collective = "scan", ranks = 4, hosts = 1, algorithm = "chain", chunk_bytes = 65536, order = "in_order" },
//! ]
//! ```
//!
//! A rule applies to calls of its collective and its order class with up to `bytes_max` bytes. Among the rank counts
//! with rules, the largest that does not exceed the call's is used, else the smallest. The number of hosts is matched
//! first, in the same way.

mod estimate;
mod file;
mod model;

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use tidemill_net::topology::HostLinks;

pub use file::TableError;
pub use model::{CostModel, LinkCost};

use crate::algorithms::supported;
pub use crate::call::CombineOrder;
use crate::direct::BlockingRules;
use crate::{Algorithm, Collective, direct_algorithms};

/// The inputs of a choice; the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TuneQuery {
    /// The collective.
    pub collective: Collective,
    /// Bytes of the vector, or of one rank's blocks together; 0 if not all ranks know it.
    pub bytes: usize,
    /// Bytes of an element.
    pub item_bytes: usize,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// The number of hosts they are on.
    pub hosts: u32,
    /// How messages travel within a host.
    pub within_host: HostLinks,
    /// Whether operands may be exchanged.
    pub commutative: bool,
    /// Whether the canonical order is required.
    pub repeatable: bool,
}

/// How to run a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlgorithmChoice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Elements of a chunk; 0: no chunks. See [`crate::ScheduleParams::chunk`].
    pub chunk: usize,
}

/// The measured best algorithm for a range of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TuneRule {
    /// The collective.
    pub collective: Collective,
    /// The order class.
    pub order: CombineOrder,
    /// Hosts it was measured on.
    pub hosts: u32,
    /// Ranks it was measured with.
    pub ranks: u32,
    /// The rule applies up to this many bytes (from the limit of the next smaller rule up); `usize::MAX`: no limit.
    pub bytes_max: usize,
    /// The best algorithm.
    pub algorithm: Algorithm,
    /// Its chunk; 0: none.
    pub chunk_bytes: usize,
    /// A faster algorithm for blocking calls: one of [`direct_algorithms`].
    pub blocking: Option<Algorithm>,
}

/// The best for a range of sizes: algorithm, chunk in bytes, and the algorithm of blocking calls.
type Best = (Algorithm, usize, Option<Algorithm>);

/// Rules of one collective and order class: by hosts, then ranks, then the end of the range of bytes.
type Rules = BTreeMap<u32, BTreeMap<u32, BTreeMap<usize, Best>>>;

/// Links for which a table has measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct TableLinks {
    same_host: Option<LinkCost>,
    other_host: Option<LinkCost>,
}

/// Measured rules on top of a cost model. The default has no rules.
#[derive(Default)]
pub struct TuneTable {
    rules: BTreeMap<(Collective, CombineOrder), Rules>,
    /// The measured links, which are also in the model.
    links: TableLinks,
    model: CostModel,
    /// Cached answers, so that a call repeated a million times is looked up once.
    answers: Mutex<HashMap<TuneQuery, AlgorithmChoice>>,
}

/// Maximum number of cached answers.
const ANSWERS_MAX: usize = 1024;

/// Candidate chunk sizes.
const CHUNK_BYTES: [usize; 6] = [0, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20];

impl TuneTable {
    /// The algorithm and chunk for a call: the table's, or the one with the lowest estimated cost. Never one that
    /// cannot run the call.
    pub fn choose(&self, query: &TuneQuery) -> AlgorithmChoice {
        let mut answers = self.answers.lock();
        if let Some(&choice) = answers.get(query) {
            return choice;
        }
        let choice = self.lookup(query).unwrap_or_else(|| self.estimate(query));
        if answers.len() >= ANSWERS_MAX {
            answers.clear();
        }
        answers.insert(*query, choice);
        choice
    }

    /// The rule for a call, if the table has one.
    pub fn lookup(&self, query: &TuneQuery) -> Option<AlgorithmChoice> {
        let by_hosts = self.rules.get(&(query.collective, CombineOrder::new(query.commutative, query.repeatable)))?;
        let by_ranks = nearest(by_hosts, query.hosts)?;
        let by_bytes = nearest(by_ranks, query.ranks)?;
        // Above the largest measured size, the best at that size.
        let rule = by_bytes.range(query.bytes..).next().or_else(|| by_bytes.last_key_value());
        rule.map(|(_, &(algorithm, chunk_bytes, _))| choice(query, algorithm, chunk_bytes))
    }

    /// The algorithms of blocking calls of `ranks` on one host. Empty if there are no rules for one host.
    pub(crate) fn blocking(&self, ranks: u32) -> BlockingRules {
        let flat = |collective, order| -> Vec<(usize, Algorithm)> {
            let by_ranks = self.rules.get(&(collective, order)).and_then(|by_hosts| by_hosts.get(&1));
            let Some(by_bytes) = by_ranks.and_then(|by_ranks| nearest(by_ranks, ranks)) else { return Vec::new() };
            by_bytes.iter().map(|(&max, &(algorithm, _, blocking))| (max, blocking.unwrap_or(algorithm))).collect()
        };
        let all = Collective::ALL.iter().flat_map(|&c| CombineOrder::ALL.map(|order| flat(c, order)));
        let all: Vec<_> = all.collect();
        BlockingRules(if all.iter().all(Vec::is_empty) { Vec::new() } else { all })
    }

    /// The choice of the cost model, regardless of the table.
    pub fn estimate(&self, query: &TuneQuery) -> AlgorithmChoice {
        let cost = |way: &(Algorithm, usize)| estimate::seconds(&self.model, query, way.0, way.1);
        let best = candidates(query).min_by(|a, b| cost(a).total_cmp(&cost(b)));
        let (algorithm, chunk_bytes) = best.expect("every collective has an algorithm for every order");
        choice(query, algorithm, chunk_bytes)
    }

    /// The chunk that the cost model would choose for `algorithm`.
    pub fn estimate_chunk(&self, query: &TuneQuery, algorithm: Algorithm) -> usize {
        let chunked = supported(query.collective).iter().any(|e| e.algorithm == algorithm && e.chunked);
        let chunks = CHUNK_BYTES.into_iter().filter(|&c| c == 0 || (chunked && c < query.bytes));
        let cost = |&c: &usize| estimate::seconds(&self.model, query, algorithm, c);
        let best = chunks.min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or(0);
        choice(query, algorithm, best).chunk
    }

    /// The cost of messages, including the measured links.
    pub fn model(&self) -> &CostModel {
        &self.model
    }

    /// Records the measured cost of messages between ranks of one host, and of different hosts; `None` leaves the
    /// previous value.
    pub fn set_links(&mut self, same_host: Option<LinkCost>, other_host: Option<LinkCost>) {
        let links = &mut self.links;
        *links = TableLinks { same_host: same_host.or(links.same_host), other_host: other_host.or(links.other_host) };
        self.model.same_host = links.same_host.unwrap_or(self.model.same_host);
        self.model.other_host = links.other_host.unwrap_or(self.model.other_host);
        if *links != TableLinks::default() {
            // The measured overheads include the cost of a wake-up.
            self.model.switch_s = 0.0;
        }
        self.answers.lock().clear();
    }

    /// Adds a rule, replacing one for the same range.
    ///
    /// # Errors
    /// [`TableError::Unable`] when one of its algorithms cannot run the collective in that order.
    pub fn insert(&mut self, rule: TuneRule) -> Result<(), TableError> {
        let TuneRule { collective, order, hosts, ranks, bytes_max, algorithm, chunk_bytes, blocking } = rule;
        let unable = |algorithm| Err(TableError::Unable { collective, algorithm, order: order.name() });
        if !order.allows(collective, algorithm) {
            return unable(algorithm);
        }
        if let Some(direct) = blocking
            && !(hosts == 1 && direct_algorithms(collective).contains(&direct))
        {
            return unable(direct);
        }
        let by_hosts = self.rules.entry((collective, order)).or_default();
        let by_bytes = by_hosts.entry(hosts).or_default().entry(ranks).or_default();
        by_bytes.insert(bytes_max, (algorithm, chunk_bytes, blocking));
        self.answers.lock().clear();
        Ok(())
    }

    /// All rules, in order.
    pub fn rules(&self) -> impl Iterator<Item = TuneRule> {
        self.rules.iter().flat_map(|(&(collective, order), by_hosts)| {
            by_hosts.iter().flat_map(move |(&hosts, by_ranks)| {
                by_ranks.iter().flat_map(move |(&ranks, by_bytes)| {
                    by_bytes.iter().map(move |(&bytes_max, &(algorithm, chunk_bytes, blocking))| TuneRule {
                        collective,
                        order,
                        hosts,
                        ranks,
                        bytes_max,
                        algorithm,
                        chunk_bytes,
                        blocking,
                    })
                })
            })
        })
    }
}

/// Every algorithm and chunk, in bytes, that can run a call: the candidates that `tidemill tune` measures.
pub fn candidates(query: &TuneQuery) -> impl Iterator<Item = (Algorithm, usize)> + use<> {
    let (q, order) = (*query, CombineOrder::new(query.commutative, query.repeatable));
    let able = supported(q.collective).iter().filter(move |entry| {
        // On one host there is only one level: two_level is then the same as binomial.
        order.allows(q.collective, entry.algorithm) && (q.hosts > 1 || entry.algorithm != Algorithm::TwoLevel)
    });
    able.flat_map(move |entry| {
        let chunks = CHUNK_BYTES.iter().filter(move |&&c| c == 0 || (entry.chunked && c < q.bytes));
        chunks.map(|&chunk_bytes| (entry.algorithm, chunk_bytes))
    })
}

/// The entry of the largest key up to `key`, else that of the smallest key.
fn nearest<T>(map: &BTreeMap<u32, T>, key: u32) -> Option<&T> {
    map.range(..=key).next_back().or_else(|| map.first_key_value()).map(|(_, value)| value)
}

fn choice(query: &TuneQuery, algorithm: Algorithm, chunk_bytes: usize) -> AlgorithmChoice {
    let chunk = if chunk_bytes == 0 { 0 } else { (chunk_bytes / query.item_bytes.max(1)).max(1) };
    AlgorithmChoice { algorithm, chunk }
}

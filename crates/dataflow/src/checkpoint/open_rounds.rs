//! Rounds that are open when a barrier passes: some streams have brought their messages, and others have not. What has
//! come of them is part of the checkpoint, as bytes that every copy is given when the job goes on
//! ([`RestoredState::shared`]), for it may be needed elsewhere then.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidemill_batch::local::{MessageReducer, OpenRounds, Reduction, RoundEnd, RoundMerger, RoundUnit};
use tidemill_checkpoint::{RestoredState, Snapshot};

use super::in_flight;
use crate::error::TaskError;

/// By this name a reduction's nodes share what they keep; ports add their number.
const ROUNDS: &str = "rounds";

/// Whether something shared is of open rounds.
pub(crate) fn is_of_rounds(name: &str) -> bool {
    name.starts_with(ROUNDS)
}

/// The name by which an input port shares what it keeps.
pub(crate) fn port_name(port: u32) -> String {
    format!("{ROUNDS} {port}")
}

/// What copies had shared by a name, by their numbers then.
pub(crate) fn shared(restored: &RestoredState, name: &str) -> BTreeMap<u32, Bytes> {
    let by_copy = restored.shared_by.iter();
    by_copy.filter_map(|(copy, shared)| Some((*copy, shared.get(name)?.clone()))).collect()
}

/// Rows, behind what says what they are.
///
/// # Errors
/// When a column cannot be encoded.
pub(crate) fn pack(header: &impl Serialize, batches: &[RecordBatch]) -> Result<Bytes, TaskError> {
    let header = serde_json::to_vec(header)?;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(&header);
    if !batches.is_empty() {
        bytes.extend_from_slice(&in_flight::encode(batches)?);
    }
    Ok(bytes.into())
}

/// What [`pack`] made of rows with this schema.
///
/// # Errors
/// When the bytes make no sense, or the rows are of another schema.
pub(crate) fn unpack<H: DeserializeOwned>(
    schema: &SchemaRef,
    mut bytes: Bytes,
) -> Result<(H, Vec<RecordBatch>), TaskError> {
    let header = serde_json::from_slice(&in_flight::next(&mut bytes)?)?;
    let rows = if bytes.is_empty() { Vec::new() } else { in_flight::decode(schema, bytes)? };
    Ok((header, rows))
}

/// Who sends to a node of a reduction: a copy on the same worker, or a worker below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum RoundSource {
    /// A copy of the task that sends.
    Copy(u32),
    /// A worker, for the copies behind it.
    Worker(u32),
}

/// The tree of a reduction by rounds.
pub(crate) struct RoundTree {
    /// By worker, who sends to it.
    pub sources: Vec<Vec<RoundSource>>,
    /// The worker that has the results.
    pub root: u32,
    /// How many copies send.
    pub copies: u32,
}

impl RoundTree {
    /// The first round that `worker` has anything of, where copies begin with the given ones.
    fn first_of(&self, worker: u32, starts: &impl Fn(u32) -> u64) -> Option<u64> {
        let first = |source: &RoundSource| match *source {
            RoundSource::Copy(copy) => Some(starts(copy)),
            RoundSource::Worker(worker) => self.first_of(worker, starts),
        };
        self.sources[worker as usize].iter().filter_map(first).min()
    }
}

/// What is saved of a node, beside rows.
#[derive(serde::Serialize, serde::Deserialize)]
struct NodeHeader {
    sources: Vec<RoundSource>,
    copies: u32,
    merged: u64,
    /// The round that each stream's next message is of.
    next: Vec<u64>,
    /// The round that each stream's first open row is of, and that of what was restored.
    first: Vec<u64>,
}

/// What one worker does of a reduction by rounds.
pub(crate) struct RoundNode<'a> {
    tree: &'a RoundTree,
    worker: u32,
    end: RoundEnd,
    schema: SchemaRef,
    merger: RoundMerger,
    /// Where a round is all that comes between two barriers: what has come.
    epoch: Option<MessageReducer>,
}

impl<'a> RoundNode<'a> {
    pub(crate) fn new(
        tree: &'a RoundTree,
        worker: u32,
        (reduction, schema): (&Reduction, &SchemaRef),
        (end, unit): (RoundEnd, RoundUnit),
    ) -> Self {
        let merger = RoundMerger::new(reduction, schema, tree.sources[worker as usize].len(), end);
        let epoch = (unit == RoundUnit::Epoch).then(|| MessageReducer::new(reduction, schema));
        RoundNode { tree, worker, end, schema: SchemaRef::clone(schema), merger, epoch }
    }

    fn sources(&self) -> &[RoundSource] {
        &self.tree.sources[self.worker as usize]
    }

    /// Whether to read more of a port. While a barrier is awaited all are read: it may lie behind messages of rounds
    /// that others come to only behind theirs. Ports without a sender are read to their end.
    pub(crate) fn takes(&self, port: usize, aligning: bool) -> bool {
        aligning || port >= self.sources().len() || self.merger.takes(port)
    }

    /// Messages have come, a row for each.
    ///
    /// # Errors
    /// When values cannot be reduced.
    pub(crate) fn push(&mut self, port: usize, rows: RecordBatch) -> Result<(), TaskError> {
        match &mut self.epoch {
            Some(epoch) => epoch.push(&rows),
            None => {
                self.merger.push(port, rows);
                Ok(())
            }
        }
    }

    /// A barrier is about to pass, or all has come: the round of what came since the last one, if that is a round and
    /// anything did.
    ///
    /// # Errors
    /// When values cannot be reduced.
    pub(crate) fn end_epoch(&mut self) -> Result<Option<RecordBatch>, TaskError> {
        self.epoch.as_mut().map_or(Ok(None), MessageReducer::finish)
    }

    /// Nothing more comes by a port.
    pub(crate) fn end(&mut self, port: usize) {
        if port < self.sources().len() {
            self.merger.end(port);
        }
    }

    /// The next complete rounds.
    ///
    /// # Errors
    /// When values cannot be reduced.
    pub(crate) fn merge(&mut self) -> Result<Option<RecordBatch>, TaskError> {
        self.merger.merge()
    }

    /// Who has ended too early, and after how many messages.
    pub(crate) fn unequal(&self) -> Option<(String, u64)> {
        let short = self.merger.unequal()?;
        let who = match self.sources()[short.stream] {
            RoundSource::Copy(copy) => format!("copy {copy} of its source"),
            RoundSource::Worker(worker) => format!("worker {worker}, for the copies behind it,"),
        };
        Some((who, short.rounds))
    }

    /// What it keeps, when all rounds that are complete have gone.
    ///
    /// # Errors
    /// When a column cannot be encoded.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, TaskError> {
        let open = self.merger.open()?;
        let header = NodeHeader {
            sources: self.sources().to_vec(),
            copies: self.tree.copies,
            merged: self.merger.merged(),
            next: (0..self.sources().len()).map(|port| self.merger.next_of(port)).collect(),
            first: open.iter().map(|open| open.first).collect(),
        };
        let rows: Vec<RecordBatch> = open.into_iter().map(|open| open.rows).collect();
        Ok(Snapshot { shared: vec![(ROUNDS.into(), pack(&header, &rows)?)], ..Snapshot::default() })
    }

    /// Goes on from what all nodes kept. In the same tree each has its own again. In another one the root has all open
    /// rows: of rounds that are `Strict` each copy goes on with the one that it had come to; of others, or where there
    /// are other copies, all begin with the first that is open.
    ///
    /// # Errors
    /// When something is damaged, or of another schema.
    pub(crate) fn restore(&mut self, restored: &RestoredState) -> Result<(), TaskError> {
        let mut nodes = BTreeMap::new();
        for (worker, bytes) in shared(restored, ROUNDS) {
            let (header, rows) = unpack::<NodeHeader>(&self.schema, bytes)?;
            if header.first.len() != rows.len() || header.next.len() != header.sources.len() {
                return Err("open rounds of the checkpoint are damaged".into());
            }
            let open = header.first.iter().zip(rows).map(|(&first, rows)| OpenRounds { first, rows }).collect();
            nodes.insert(worker, (header, open));
        }
        if nodes.is_empty() {
            return Ok(());
        }
        let same = |(worker, sources): (usize, &Vec<RoundSource>)| {
            let then = nodes.get(&(worker as u32));
            then.map_or(sources.is_empty(), |(then, _)| then.sources == *sources)
        };
        let workers = self.tree.sources.len();
        match nodes.keys().all(|&worker| (worker as usize) < workers) && self.tree.sources.iter().enumerate().all(same)
        {
            true => nodes.remove(&self.worker).map_or(Ok(()), |(header, open)| self.restore_own(&header, open)),
            false => self.restore_all(nodes),
        }
    }

    fn restore_own(&mut self, header: &NodeHeader, mut open: Vec<OpenRounds>) -> Result<(), TaskError> {
        let before = open.split_off(header.sources.len());
        self.merger.begin_at(header.merged, open.iter().map(|open| open.first));
        for (port, open) in open.into_iter().enumerate() {
            self.merger.push(port, open.rows);
        }
        self.merger.restore(&before)
    }

    fn restore_all(&mut self, nodes: BTreeMap<u32, (NodeHeader, Vec<OpenRounds>)>) -> Result<(), TaskError> {
        let sends = |worker: &u32| {
            let child = RoundSource::Worker(*worker);
            nodes.values().any(|(header, _)| header.sources.contains(&child))
        };
        // Of others copies may have ended before.
        let root = nodes.iter().find(|(worker, (header, _))| !header.sources.is_empty() && !sends(worker));
        let first = root.map_or(0, |(_, (header, _))| header.merged);
        let mut next = BTreeMap::new();
        for (header, _) in nodes.values() {
            let is_exact = self.end == RoundEnd::Strict && header.copies == self.tree.copies;
            for (source, &round) in header.sources.iter().zip(&header.next).filter(|_| is_exact) {
                if let RoundSource::Copy(copy) = source {
                    next.insert(*copy, round.max(first));
                }
            }
        }
        let start = |copy: u32| next.get(&copy).copied().unwrap_or(first);
        let is_root = self.worker == self.tree.root;
        let own = if is_root { Some(first) } else { self.tree.first_of(self.worker, &start) };
        let starts = self.sources().iter().map(|source| match *source {
            RoundSource::Copy(copy) => start(copy),
            RoundSource::Worker(worker) => self.tree.first_of(worker, &start).unwrap_or(first),
        });
        let starts: Vec<u64> = starts.collect();
        self.merger.begin_at(own.unwrap_or(first), starts);
        match is_root {
            true => self.merger.restore(&nodes.into_values().flat_map(|(_, open)| open).collect::<Vec<_>>()),
            false => Ok(()),
        }
    }
}

//! Joins two sets of rows by equal keys: one side goes into a hash table, and the other side is looked up in it. If a
//! side does not fit, both sides are partitioned to disk by the hash of the key and joined partition by partition.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{Array, RecordBatch, RecordBatchOptions, UInt32Array, new_null_array};
use arrow::compute::{concat_batches, take};
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::row::Rows;
use hashbrown::HashTable;

use super::groups::KeyRows;
use crate::batch_bytes;
use crate::error::{BatchError, TaskError};
use crate::keys::KeyHasher;
use crate::memory::{Governor, Reservation, SpillFile, SpillPartitions, SpillReader};

/// Approximate number of rows in a result batch.
const ROWS_MAX: usize = 8192;
/// The end of a chain.
const NONE: u32 = u32::MAX;

/// Which rows a join keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinKind {
    /// Pairs with equal keys.
    Inner,
    /// Also the unmatched left rows, with nulls on the right.
    Left,
    /// Also the unmatched right rows, with nulls on the left.
    Right,
    /// Both of these.
    Full,
    /// Left rows that have a match, once each, without the match.
    Semi,
    /// Left rows without a match.
    Anti,
}

impl JoinKind {
    fn keeps_left(self) -> bool {
        matches!(self, JoinKind::Left | JoinKind::Full)
    }

    fn keeps_right(self) -> bool {
        matches!(self, JoinKind::Right | JoinKind::Full)
    }

    fn is_pairs(self) -> bool {
        !matches!(self, JoinKind::Semi | JoinKind::Anti)
    }

    /// The schema of results: the left columns, then the right ones. Columns that may come from an unmatched row are
    /// nullable.
    ///
    /// # Errors
    /// A description, if both sides have a column with the same name.
    pub fn schema(self, left: &SchemaRef, right: &SchemaRef) -> Result<SchemaRef, String> {
        if !self.is_pairs() {
            return Ok(SchemaRef::clone(left));
        }
        let side = |schema: &SchemaRef, nullable: bool| -> Vec<Field> {
            let field = |field: &Arc<Field>| {
                let nullable = nullable || field.is_nullable();
                field.as_ref().clone().with_nullable(nullable)
            };
            schema.fields().iter().map(field).collect()
        };
        let mut fields = side(left, self.keeps_right());
        for field in side(right, self.keeps_left()) {
            if fields.iter().any(|other| other.name() == field.name()) {
                return Err(format!("both sides have a column \"{}\"; rename one", field.name()));
            }
            fields.push(field);
        }
        Ok(Arc::new(Schema::new(fields)))
    }
}

/// One side of a join: its schema and its key columns.
#[derive(Clone)]
pub struct JoinInput {
    /// The columns.
    pub schema: SchemaRef,
    /// The positions of the key columns.
    pub keys: Vec<usize>,
}

/// A join. First the whole right side is pushed, then the left side, batch by batch.
pub struct HashJoiner {
    kind: JoinKind,
    left: JoinInput,
    right: JoinInput,
    schema: SchemaRef,
    governor: Governor,
    name: String,
    level: u32,
    build: Vec<RecordBatch>,
    reservation: Reservation,
    table: Option<BuildTable>,
    probing: Option<ProbeBatch>,
    spilled: Option<(SpillPartitions, SpillPartitions)>,
    parts: VecDeque<(SpillFile, SpillFile)>,
    /// The partition that is currently joined, and the rest of its left side.
    inner: Option<(Box<HashJoiner>, Option<SpillReader>)>,
    /// The next right row to check for the output of unmatched rows.
    unmatched: usize,
    ended: bool,
}

/// The right side, indexed for lookup.
struct BuildTable {
    rows: RecordBatch,
    keys: Rows,
    /// The last row of each key; `next` links to the previous one.
    heads: HashTable<(u64, u32)>,
    next: Vec<u32>,
    matched: Vec<bool>,
}

/// A left batch that is being joined.
struct ProbeBatch {
    batch: RecordBatch,
    keys: Rows,
    hashes: Vec<u64>,
    nulls: Vec<bool>,
    row: usize,
    /// The position in the row's chain; `None` at the start of a row.
    chain: Option<u32>,
}

impl HashJoiner {
    /// A join without any rows yet.
    ///
    /// # Errors
    /// If both sides have a column with the same name.
    pub fn new(
        kind: JoinKind,
        left: JoinInput,
        right: JoinInput,
        governor: &Governor,
        name: &str,
    ) -> Result<Self, TaskError> {
        let schema = kind.schema(&left.schema, &right.schema)?;
        Ok(Self::at_level(kind, left, right, schema, governor, name, 0))
    }

    fn at_level(
        kind: JoinKind,
        left: JoinInput,
        right: JoinInput,
        schema: SchemaRef,
        governor: &Governor,
        name: &str,
        level: u32,
    ) -> Self {
        HashJoiner {
            kind,
            left,
            right,
            schema,
            governor: governor.clone(),
            name: name.to_owned(),
            level,
            build: Vec::new(),
            reservation: governor.reservation(name),
            table: None,
            probing: None,
            spilled: None,
            parts: VecDeque::new(),
            inner: None,
            unmatched: 0,
            ended: false,
        }
    }

    /// Takes a batch of the right side.
    ///
    /// # Errors
    /// If memory runs out, or on a disk error.
    pub fn push_right(&mut self, batch: RecordBatch) -> Result<(), TaskError> {
        if let Some((_, right)) = &mut self.spilled {
            return right.write(&batch);
        }
        // The rows (twice for a moment, when they are concatenated), their keys, and the table.
        let bytes = 2 * batch_bytes(&batch) + 64 * batch.num_rows() as u64;
        if !self.reservation.try_grow(bytes) {
            if self.level < SpillPartitions::LEVELS {
                self.begin_spill()?;
                return self.push_right(batch);
            }
            // Probably a single key: splitting does not help.
            self.reservation.grow(bytes)?;
        }
        self.build.push(batch);
        Ok(())
    }

    fn begin_spill(&mut self) -> Result<(), TaskError> {
        let parts = |side: &JoinInput| {
            let hasher = KeyHasher::new(side.keys.clone());
            let hash = Box::new(move |rows: &RecordBatch, hashes: &mut Vec<u64>| Ok(hasher.hash(rows, hashes)?));
            SpillPartitions::new(&self.governor, &side.schema, hash, self.level)
        };
        let (left, mut right) = (parts(&self.left)?, parts(&self.right)?);
        for batch in self.build.drain(..) {
            right.write(&batch)?;
        }
        self.reservation.free();
        self.spilled = Some((left, right));
        Ok(())
    }

    /// Marks the end of the right side.
    ///
    /// # Errors
    /// If its keys cannot be hashed.
    pub fn end_right(&mut self) -> Result<(), TaskError> {
        if self.spilled.is_some() {
            return Ok(());
        }
        let rows = concat_batches(&self.right.schema, &self.build)?;
        self.build.clear();
        let key_rows = KeyRows::new(&self.right.schema, self.right.keys.clone())?;
        let mut hashes = Vec::new();
        let keys = key_rows.rows(&rows, &mut hashes)?;
        let nulls = key_rows.nulls(&rows);
        let mut heads: HashTable<(u64, u32)> = HashTable::with_capacity(rows.num_rows());
        let mut next = vec![NONE; rows.num_rows()];
        for (row, &hash) in hashes.iter().enumerate() {
            // A null key does not equal any key.
            if nulls[row] {
                continue;
            }
            let equal = |&(h, head): &(u64, u32)| h == hash && keys.row(head as usize) == keys.row(row);
            match heads.find_mut(hash, equal) {
                Some((_, head)) => next[row] = std::mem::replace(head, row as u32),
                None => drop(heads.insert_unique(hash, (hash, row as u32), |&(hash, _)| hash)),
            }
        }
        let matched = vec![false; if self.kind.keeps_right() { rows.num_rows() } else { 0 }];
        self.table = Some(BuildTable { rows, keys, heads, next, matched });
        Ok(())
    }

    /// Takes a batch of the left side; [`HashJoiner::next_batch`] returns its results.
    ///
    /// # Errors
    /// As [`HashJoiner::push_right`].
    ///
    /// # Panics
    /// If there are still results of the previous batch.
    pub fn push_left(&mut self, batch: RecordBatch) -> Result<(), TaskError> {
        if let Some((left, _)) = &mut self.spilled {
            return left.write(&batch);
        }
        assert!(self.probing.is_none(), "results must be taken before the next batch is pushed");
        let key_rows = KeyRows::new(&self.left.schema, self.left.keys.clone())?;
        let mut hashes = Vec::new();
        let keys = key_rows.rows(&batch, &mut hashes)?;
        let nulls = key_rows.nulls(&batch);
        self.probing = Some(ProbeBatch { batch, keys, hashes, nulls, row: 0, chain: None });
        Ok(())
    }

    /// Marks the end of the left side.
    ///
    /// # Errors
    /// On a disk error.
    pub fn end_left(&mut self) -> Result<(), TaskError> {
        self.ended = true;
        if let Some((left, right)) = self.spilled.take() {
            self.parts = left.finish()?.into_iter().zip(right.finish()?).collect();
        }
        Ok(())
    }

    /// The next results for the rows pushed so far.
    ///
    /// # Errors
    /// On a disk error, or if memory runs out.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>, TaskError> {
        if self.probing.is_some() {
            if let Some(batch) = self.probe()? {
                return Ok(Some(batch));
            }
            self.probing = None;
        }
        if !self.ended {
            return Ok(None);
        }
        if let Some(batch) = self.left_over()? {
            return Ok(Some(batch));
        }
        self.next_of_parts()
    }

    /// Processes the left batch until a result batch is full or the left batch ends.
    fn probe(&mut self) -> Result<Option<RecordBatch>, TaskError> {
        let (Some(table), Some(probe)) = (&mut self.table, &mut self.probing) else {
            return Err("the left side of a join arrived before the end of its right side".into());
        };
        let (mut lefts, mut rights): (Vec<u32>, Vec<Option<u32>>) = (Vec::new(), Vec::new());
        while probe.row < probe.batch.num_rows() && lefts.len() < ROWS_MAX {
            let row = probe.row;
            let start = match probe.chain {
                Some(at) => at,
                None => {
                    let hash = probe.hashes[row];
                    let key = probe.keys.row(row).data();
                    let equal = |&(h, head): &(u64, u32)| h == hash && table.keys.row(head as usize).data() == key;
                    let found = if probe.nulls[row] { None } else { table.heads.find(hash, equal) };
                    let first = found.map_or(NONE, |&(_, head)| head);
                    let keep_alone = match self.kind {
                        JoinKind::Semi => first != NONE,
                        JoinKind::Anti => first == NONE,
                        kind => first == NONE && kind.keeps_left(),
                    };
                    if keep_alone {
                        lefts.push(row as u32);
                        rights.push(None);
                    }
                    if self.kind.is_pairs() { first } else { NONE }
                }
            };
            let mut at = start;
            while at != NONE && lefts.len() < ROWS_MAX {
                lefts.push(row as u32);
                rights.push(Some(at));
                if self.kind.keeps_right() {
                    table.matched[at as usize] = true;
                }
                at = table.next[at as usize];
            }
            if at == NONE {
                probe.row += 1;
                probe.chain = None;
            } else {
                probe.chain = Some(at);
            }
        }
        if lefts.is_empty() {
            return Ok(None);
        }
        let (lefts, rights) = (UInt32Array::from(lefts), UInt32Array::from(rights));
        let rights = self.kind.is_pairs().then_some((&table.rows, &rights));
        pairs(&self.schema, Some((&probe.batch, &lefts)), rights).map(Some)
    }

    /// Unmatched right rows, in batches.
    fn left_over(&mut self) -> Result<Option<RecordBatch>, TaskError> {
        let Some(table) = &self.table else { return Ok(None) };
        let alone: Vec<u32> = (self.unmatched..table.matched.len())
            .filter(|&row| !table.matched[row])
            .take(ROWS_MAX)
            .map(|row| row as u32)
            .collect();
        match alone.last() {
            Some(&last) => {
                self.unmatched = last as usize + 1;
                let rights = UInt32Array::from(alone);
                let nothing = RecordBatch::new_empty(SchemaRef::clone(&self.left.schema));
                let lefts = UInt32Array::new_null(rights.len());
                pairs(&self.schema, Some((&nothing, &lefts)), Some((&table.rows, &rights))).map(Some)
            }
            None => {
                self.table = None;
                self.reservation.free();
                Ok(None)
            }
        }
    }

    fn next_of_parts(&mut self) -> Result<Option<RecordBatch>, TaskError> {
        loop {
            if let Some((inner, left)) = &mut self.inner {
                if let Some(batch) = inner.next_batch()? {
                    return Ok(Some(batch));
                }
                match left {
                    Some(reader) => match reader.next_batch()? {
                        Some(batch) => inner.push_left(batch)?,
                        None => {
                            *left = None;
                            inner.end_left()?;
                        }
                    },
                    None => self.inner = None,
                }
                continue;
            }
            let Some((left, right)) = self.parts.pop_front() else { return Ok(None) };
            let (schema, level) = (SchemaRef::clone(&self.schema), self.level + 1);
            let (l, r) = (self.left.clone(), self.right.clone());
            let mut inner = Self::at_level(self.kind, l, r, schema, &self.governor, &self.name, level);
            let mut reader = right.read()?;
            while let Some(batch) = reader.next_batch()? {
                inner.push_right(batch)?;
            }
            inner.end_right()?;
            self.inner = Some((Box::new(inner), Some(left.read()?)));
        }
    }
}

/// One side, and the rows to take from it; a null index gives a row of nulls.
type TakeRows<'a> = Option<(&'a RecordBatch, &'a UInt32Array)>;

fn pairs(schema: &SchemaRef, left: TakeRows<'_>, right: TakeRows<'_>) -> Result<RecordBatch, TaskError> {
    let mut columns = Vec::with_capacity(schema.fields().len());
    let mut count = 0;
    for (rows, at) in [left, right].into_iter().flatten() {
        count = at.len();
        for column in rows.columns() {
            columns.push(match column.is_empty() {
                true => new_null_array(column.data_type(), count),
                false => take(column, at, None)?,
            });
        }
    }
    let options = RecordBatchOptions::new().with_row_count(Some(count));
    Ok(RecordBatch::try_new_with_options(SchemaRef::clone(schema), columns, &options).map_err(BatchError::from)?)
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;
    use proptest::prelude::*;

    use super::*;
    use crate::memory::MemorySettings;

    type Row = (Option<i64>, i64);
    type Pair = (Option<Row>, Option<Row>);

    fn batch(names: [&str; 2], rows: &[Row]) -> RecordBatch {
        let k: ArrayRef = Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.0)));
        let v: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1)));
        RecordBatch::try_from_iter_with_nullable([(names[0], k, true), (names[1], v, true)]).unwrap()
    }

    fn reference(kind: JoinKind, left: &[Row], right: &[Row]) -> Vec<Pair> {
        let equal = |l: &Row, r: &Row| l.0.is_some() && l.0 == r.0;
        let mut pairs: Vec<Pair> = Vec::new();
        for &l in left {
            let partners: Vec<Row> = right.iter().copied().filter(|r| equal(&l, r)).collect();
            match kind {
                JoinKind::Semi => pairs.extend((!partners.is_empty()).then_some((Some(l), None))),
                JoinKind::Anti => pairs.extend(partners.is_empty().then_some((Some(l), None))),
                _ => {
                    pairs.extend(partners.iter().map(|&r| (Some(l), Some(r))));
                    pairs.extend((partners.is_empty() && kind.keeps_left()).then_some((Some(l), None)));
                }
            }
        }
        if kind.keeps_right() {
            let alone = right.iter().filter(|r| !left.iter().any(|l| equal(l, r)));
            pairs.extend(alone.map(|&r| (None, Some(r))));
        }
        pairs.sort_unstable();
        pairs
    }

    fn join(kind: JoinKind, left: &[Vec<Row>], right: &[Vec<Row>], budget_bytes: u64) -> (Vec<Pair>, u64) {
        let settings = MemorySettings { budget_bytes, watch_process: false, ..MemorySettings::default() };
        let governor = Governor::new(settings);
        let side = |names| JoinInput { schema: batch(names, &[]).schema(), keys: vec![0] };
        let mut joiner = HashJoiner::new(kind, side(["a", "b"]), side(["c", "d"]), &governor, "test").unwrap();
        right.iter().for_each(|rows| joiner.push_right(batch(["c", "d"], rows)).unwrap());
        joiner.end_right().unwrap();
        let mut pairs = Vec::new();
        let mut take = |joiner: &mut HashJoiner| {
            while let Some(batch) = joiner.next_batch().unwrap() {
                assert!(batch.num_rows() <= ROWS_MAX && batch.num_rows() > 0);
                let row = |at: usize, row: usize| {
                    let (k, v) = (
                        batch.column(at).as_primitive::<Int64Type>(),
                        batch.column(at + 1).as_primitive::<Int64Type>(),
                    );
                    v.is_valid(row).then(|| (k.is_valid(row).then(|| k.value(row)), v.value(row)))
                };
                let width = batch.num_columns();
                pairs.extend((0..batch.num_rows()).map(|r| (row(0, r), if width > 2 { row(2, r) } else { None })));
            }
        };
        for rows in left {
            joiner.push_left(batch(["a", "b"], rows)).unwrap();
            take(&mut joiner);
        }
        joiner.end_left().unwrap();
        take(&mut joiner);
        drop(joiner);
        assert_eq!(governor.reserved_bytes(), 0);
        pairs.sort_unstable();
        (pairs, governor.spilled_bytes())
    }

    const KINDS: [JoinKind; 6] =
        [JoinKind::Inner, JoinKind::Left, JoinKind::Right, JoinKind::Full, JoinKind::Semi, JoinKind::Anti];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

        /// A comparison with nested loops catches lost, duplicate and wrong pairs, in memory and on disk.
        #[test]
        fn equals_two_loops(
            left in prop::collection::vec(prop::collection::vec((prop::option::of(0i64..40), 0i64..1000), 0..60), 0..8),
            right in prop::collection::vec(prop::collection::vec((prop::option::of(0i64..40), 0i64..1000), 0..60), 0..8),
            kind in 0usize..6, spill: bool,
        ) {
            let budget = if spill { 40 << 10 } else { 0 };
            let (found, _) = join(KINDS[kind], &left, &right, budget);
            prop_assert_eq!(found, reference(KINDS[kind], &left.concat(), &right.concat()));
        }
    }

    /// Many matches of one key come out in bounded batches, and partitions that do not fit are split again.
    #[test]
    fn skew_and_size() {
        let left = vec![vec![(Some(1), 1), (Some(2), 2), (None, 3)]];
        let right: Vec<Vec<Row>> = (0..30).map(|b| (0..1000).map(|i| (Some(1), b * 1000 + i)).collect()).collect();
        let (pairs, _) = join(JoinKind::Full, &left, &right, 0);
        assert_eq!(pairs.len(), 30_002);
        let many = |side: i64| -> Vec<Vec<Row>> {
            (0..100).map(|b| (0..1000).map(|i| (Some(b * 1000 + i), side)).collect()).collect()
        };
        let (pairs, spilled) = join(JoinKind::Inner, &many(1), &many(2), 1 << 20);
        assert_eq!(pairs.len(), 100_000);
        assert!(spilled > 0);
        assert!(pairs.iter().all(|(l, r)| l.unwrap().0 == r.unwrap().0));
    }
}

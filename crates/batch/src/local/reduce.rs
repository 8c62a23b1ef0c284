//! Reduces the rows of a group to one row with the same columns. Results can be reduced again, so reducing happens
//! wherever rows meet: at the sender, at every inner worker of a tree, and at the receiver.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray, RecordBatch, RecordBatchOptions, UInt32Array,
    downcast_primitive_array, make_comparator,
};
use arrow::compute::{SortOptions, concat_batches, take};
use arrow::datatypes::{
    ArrowNativeTypeOp, DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Field, Schema, SchemaRef,
};

use super::column_sums::{ColumnSums, whole};
use super::groups::GroupTable;
use crate::batch_bytes;
use crate::error::{BatchError, TaskError};
use crate::keys::KeyHasher;
use crate::memory::{Governor, Reservation, SpillFile, SpillPartitions};

/// Minimum number of rows to collect before folding them into the result.
const FOLD_ROWS_MIN: usize = 64 << 10;
/// Without keys, a batch of at least `ALONE_ROWS_MIN` rows is folded in place by itself, and up to `ALONE_MAX` of the
/// results are folded together.
const ALONE_ROWS_MIN: usize = 512;
const ALONE_MAX: usize = 64;
/// Maximum number of rows in a result batch.
const ROWS_MAX: usize = 8192;

/// How one column is reduced. Nulls are ignored; a group with only nulls gives null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ColumnOp {
    /// The sum; overflow is an error.
    Sum,
    /// The product; overflow is an error. Not available for decimals.
    Product,
    /// The smallest, in Arrow's order: NaN is largest.
    Min,
    /// The largest.
    Max,
    /// An arbitrary one of them.
    Any,
}

/// A reduction of a whole batch: `(rows, group of each row, number of groups) -> one row per group`, with the same
/// columns as its input. Associative and commutative.
pub type FoldFunction = Arc<dyn Fn(&RecordBatch, &[u32], usize) -> Result<RecordBatch, TaskError> + Send + Sync>;

/// How a reduction treats the columns that are not keys.
#[derive(Clone)]
pub struct Reduction {
    pub(crate) fold: ReduceBy,
}

#[derive(Clone)]
pub(crate) enum ReduceBy {
    Columns(Vec<(String, ColumnOp)>),
    Function { name: String, columns: Vec<String>, function: FoldFunction },
}

impl Default for Reduction {
    fn default() -> Self {
        Self::new()
    }
}

impl Reduction {
    /// A reduction without columns, which just makes the keys distinct.
    pub fn new() -> Self {
        Reduction { fold: ReduceBy::Columns(Vec::new()) }
    }

    /// Also reduces `column` with `op`.
    ///
    /// # Panics
    /// On a reduction that uses a function.
    #[must_use]
    pub fn column(mut self, column: impl Into<String>, op: ColumnOp) -> Self {
        let ReduceBy::Columns(columns) = &mut self.fold else {
            panic!("a reduction by a function has its columns already")
        };
        columns.push((column.into(), op));
        self
    }

    /// Also sums `column`.
    #[must_use]
    pub fn sum(self, column: impl Into<String>) -> Self {
        self.column(column, ColumnOp::Sum)
    }

    /// Also takes the minimum of `column`.
    #[must_use]
    pub fn min(self, column: impl Into<String>) -> Self {
        self.column(column, ColumnOp::Min)
    }

    /// Also takes the maximum of `column`.
    #[must_use]
    pub fn max(self, column: impl Into<String>) -> Self {
        self.column(column, ColumnOp::Max)
    }

    /// A reduction of `columns` by a function. `name` identifies the function in plans, and must change whenever it
    /// does.
    pub fn with<S: Into<String>>(
        name: impl Into<String>,
        columns: impl IntoIterator<Item = S>,
        function: impl Fn(&RecordBatch, &[u32], usize) -> Result<RecordBatch, TaskError> + Send + Sync + 'static,
    ) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
        Reduction { fold: ReduceBy::Function { name: name.into(), columns, function: Arc::new(function) } }
    }

    /// Whether it calls a function, which may block.
    #[inline]
    pub fn is_function(&self) -> bool {
        matches!(self.fold, ReduceBy::Function { .. })
    }

    /// A description that includes everything relevant.
    pub fn describe(&self) -> String {
        match &self.fold {
            ReduceBy::Columns(columns) => {
                let columns = columns.iter().map(|(name, op)| format!("{op:?}({name})").to_lowercase());
                columns.collect::<Vec<_>>().join(", ")
            }
            ReduceBy::Function { name, columns, .. } => format!("{name}({})", columns.join(", ")),
        }
    }

    /// The names of the reduced columns.
    fn columns(&self) -> Vec<String> {
        match &self.fold {
            ReduceBy::Columns(columns) => columns.iter().map(|(name, _)| name.clone()).collect(),
            ReduceBy::Function { columns, .. } => columns.clone(),
        }
    }

    /// The schema of results: the keys, then the reduced columns.
    pub fn schema(&self, schema: &SchemaRef, keys: &[String]) -> Result<SchemaRef, String> {
        let reduced = self.columns();
        if let Some(column) = reduced.iter().find(|column| keys.contains(column)) {
            return Err(format!("column \"{column}\" is a key and cannot also be reduced"));
        }
        let mut fields: Vec<Field> = Vec::new();
        for at in crate::schema::columns(schema, keys)? {
            fields.push(schema.field(at).clone());
        }
        for at in crate::schema::columns(schema, &reduced)? {
            // An empty sum is null.
            fields.push(schema.field(at).clone());
        }
        if let ReduceBy::Columns(columns) = &self.fold {
            for ((name, op), at) in columns.iter().zip(crate::schema::columns(schema, &reduced)?) {
                let data_type = schema.field(at).data_type();
                let arithmetic = match op {
                    // Each product would have more decimal places.
                    ColumnOp::Product => data_type.is_integer() || data_type.is_floating(),
                    _ => data_type.is_numeric() || matches!(data_type, DataType::Duration(_)),
                };
                if matches!(op, ColumnOp::Sum | ColumnOp::Product) && !arithmetic {
                    return Err(format!("column \"{name}\" ({data_type}) does not support {op:?}").to_lowercase());
                }
                if matches!(op, ColumnOp::Min | ColumnOp::Max) {
                    let empty = arrow::array::new_empty_array(data_type);
                    let compare = make_comparator(&empty, &empty, SortOptions::default());
                    drop(compare.map_err(|_| format!("column \"{name}\" ({data_type}) cannot be ordered"))?);
                }
            }
        }
        Ok(Arc::new(Schema::new(fields)))
    }

    /// One row for each of `count` groups, given the group of each row.
    pub(super) fn fold(&self, values: &RecordBatch, groups: &[u32], count: usize) -> Result<RecordBatch, TaskError> {
        match &self.fold {
            ReduceBy::Columns(columns) => {
                let columns = columns
                    .iter()
                    .zip(values.columns())
                    .map(|((_, op), column)| fits(fold_column(*op, column, groups, count)?))
                    .collect::<Result<_, _>>()?;
                let options = RecordBatchOptions::new().with_row_count(Some(count));
                Ok(RecordBatch::try_new_with_options(values.schema(), columns, &options)?)
            }
            ReduceBy::Function { name, function, .. } => {
                let folded = function(values, groups, count)?;
                if folded.num_rows() != count {
                    return Err(format!("{name} returned {} rows for {count} groups", folded.num_rows()).into());
                }
                crate::schema::fits(&folded.schema(), &values.schema()).map_err(|e| format!("{name}: {e}"))?;
                Ok(folded)
            }
        }
    }
}

/// Arrow adds decimals up beyond the precision of their type.
fn fits(folded: ArrayRef) -> Result<ArrayRef, TaskError> {
    match folded.data_type() {
        DataType::Decimal32(digits, _) => folded.as_primitive::<Decimal32Type>().validate_decimal_precision(*digits),
        DataType::Decimal64(digits, _) => folded.as_primitive::<Decimal64Type>().validate_decimal_precision(*digits),
        DataType::Decimal128(digits, _) => folded.as_primitive::<Decimal128Type>().validate_decimal_precision(*digits),
        DataType::Decimal256(digits, _) => folded.as_primitive::<Decimal256Type>().validate_decimal_precision(*digits),
        _ => Ok(()),
    }
    .map_err(|_| format!("Overflow: a sum is beyond the range of {}", folded.data_type()))?;
    Ok(folded)
}

fn fold_column(op: ColumnOp, column: &ArrayRef, groups: &[u32], count: usize) -> Result<ArrayRef, TaskError> {
    fn arithmetic<T: ArrowPrimitiveType>(
        array: &PrimitiveArray<T>,
        groups: &[u32],
        count: usize,
        combine: impl Fn(T::Native, T::Native) -> Result<T::Native, arrow::error::ArrowError>,
    ) -> Result<ArrayRef, TaskError>
    where
        T::Native: ArrowNativeTypeOp,
    {
        let mut folded = vec![T::Native::default(); count];
        let mut seen = vec![false; count];
        for (row, &group) in groups.iter().enumerate() {
            if array.is_valid(row) {
                let (folded, seen) = (&mut folded[group as usize], &mut seen[group as usize]);
                *folded = if *seen { combine(*folded, array.value(row))? } else { array.value(row) };
                *seen = true;
            }
        }
        let nulls = arrow::buffer::NullBuffer::from(seen);
        let nulls = (nulls.null_count() > 0).then_some(nulls);
        Ok(Arc::new(PrimitiveArray::<T>::new(folded.into(), nulls).with_data_type(array.data_type().clone())))
    }
    fn pick(
        column: &ArrayRef,
        groups: &[u32],
        count: usize,
        better: impl Fn(usize, usize) -> bool,
    ) -> Result<ArrayRef, TaskError> {
        let mut picked: Vec<Option<u32>> = vec![None; count];
        let nulls = column.logical_nulls();
        for (row, &group) in groups.iter().enumerate() {
            if nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row)) {
                let picked = &mut picked[group as usize];
                if picked.is_none_or(|best| better(row, best as usize)) {
                    *picked = Some(row as u32);
                }
            }
        }
        Ok(take(column, &UInt32Array::from(picked), None)?)
    }
    let array: &dyn Array = column.as_ref();
    if count == 1
        && let Some(folded) = whole(op, array)
    {
        return Ok(folded?);
    }
    match op {
        ColumnOp::Sum => downcast_primitive_array!(
            array => arithmetic(array, groups, count, |a, b| a.add_checked(b)),
            other => Err(format!("{other} cannot be summed").into())
        ),
        ColumnOp::Product => downcast_primitive_array!(
            array => arithmetic(array, groups, count, |a, b| a.mul_checked(b)),
            other => Err(format!("{other} cannot be multiplied").into())
        ),
        ColumnOp::Min | ColumnOp::Max => {
            let compare = make_comparator(array, array, SortOptions::default())?;
            let wanted = if op == ColumnOp::Min { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater };
            pick(column, groups, count, |row, best| compare(row, best) == wanted)
        }
        ColumnOp::Any => pick(column, groups, count, |_, _| false),
    }
}

/// Reduces rows by key within a memory limit. When memory runs out, groups go to disk, partitioned by hash, and at the
/// end each partition is reduced separately.
pub struct Reducer {
    plan: ReducePlan,
    level: u32,
    groups: GroupTable,
    /// The running sums, if there are no keys and all columns can be summed directly.
    sums: Option<ColumnSums>,
    /// Without keys, the group of each row of a batch that is folded by itself.
    zeros: Vec<u32>,
    /// One row for each group that has been folded so far.
    folded: RecordBatch,
    pending: Vec<RecordBatch>,
    pending_groups: Vec<u32>,
    pending_bytes: u64,
    reservation: Reservation,
    spilled: Option<SpillPartitions>,
    /// The schema of the last batch, and the positions of the required columns in it.
    last: Option<(SchemaRef, Vec<usize>)>,
}

/// The parameters, which are the same for all partitions.
#[derive(Clone)]
struct ReducePlan {
    reduce: Reduction,
    /// The schema of results.
    schema: SchemaRef,
    keys: usize,
    governor: Governor,
    name: String,
}

impl Reducer {
    /// Reduces rows of `schema`, which is that of results: keys first.
    ///
    /// # Errors
    /// If a type cannot be a key, or if memory is used up.
    pub fn new(
        schema: &SchemaRef,
        keys: usize,
        reduce: &Reduction,
        governor: &Governor,
        name: &str,
    ) -> Result<Self, BatchError> {
        let (reduce, governor, name) = (reduce.clone(), governor.clone(), name.to_owned());
        Self::at_level(ReducePlan { reduce, schema: SchemaRef::clone(schema), keys, governor, name }, 0)
    }

    fn at_level(plan: ReducePlan, level: u32) -> Result<Self, BatchError> {
        let groups = GroupTable::new(&plan.schema, (0..plan.keys).collect())?;
        let values: Vec<usize> = (plan.keys..plan.schema.fields().len()).collect();
        let folded = RecordBatch::new_empty(Arc::new(plan.schema.project(&values)?));
        let reservation = plan.governor.reservation(&plan.name);
        let only_sums = matches!(&plan.reduce.fold, ReduceBy::Columns(columns) if columns.iter().all(|(_, op)| *op == ColumnOp::Sum));
        let sums = if plan.keys == 0 && only_sums { ColumnSums::new(&plan.schema) } else { None };
        Ok(Reducer {
            plan,
            level,
            groups,
            sums,
            zeros: Vec::new(),
            folded,
            pending: Vec::new(),
            pending_groups: Vec::new(),
            pending_bytes: 0,
            reservation,
            spilled: None,
            last: None,
        })
    }

    /// Selects the required columns, in order. Usually all batches have the same schema.
    fn project(&mut self, batch: RecordBatch) -> Result<RecordBatch, TaskError> {
        if Arc::ptr_eq(batch.schema_ref(), &self.plan.schema) {
            return Ok(batch);
        }
        let (_, at) = match &mut self.last {
            Some(last) if Arc::ptr_eq(&last.0, batch.schema_ref()) => last,
            last => {
                let names: Vec<String> = self.plan.schema.fields().iter().map(|field| field.name().clone()).collect();
                last.insert((batch.schema(), crate::schema::columns(batch.schema_ref(), &names)?))
            }
        };
        let all = at.iter().copied().eq(0..batch.num_columns());
        Ok(if all { batch } else { batch.project(at)? })
    }

    /// Adds numbers, given as bytes, of the only column. `false`: they must be pushed as a batch.
    #[inline]
    pub fn push_values(&mut self, values: &[u8]) -> bool {
        self.sums.as_mut().is_some_and(|sums| sums.add_values(values))
    }

    /// Adds rows, which may have additional columns.
    ///
    /// # Errors
    /// If values cannot be reduced, or if memory runs out.
    pub fn push(&mut self, batch: RecordBatch) -> Result<(), TaskError> {
        let mut batch = self.project(batch)?;
        if let Some(sums) = &mut self.sums
            && sums.add(&batch)
        {
            return Ok(());
        }
        if self.plan.keys == 0 && batch.num_rows() >= ALONE_ROWS_MIN && !self.plan.reduce.is_function() {
            self.zeros.resize(self.zeros.len().max(batch.num_rows()), 0);
            batch = self.plan.reduce.fold(&batch, &self.zeros[..batch.num_rows()], 1)?;
        }
        let mut groups = Vec::new();
        self.groups.assign(&batch, &mut groups)?;
        let values = match self.plan.keys {
            0 => batch,
            keys => batch.project(&(keys..batch.num_columns()).collect::<Vec<_>>())?,
        };
        self.pending_bytes += batch_bytes(&values) + 4 * groups.len() as u64;
        self.pending.push(values);
        self.pending_groups.append(&mut groups);
        // As many new rows as there are groups: on average, each row is folded a bounded number of times.
        let enough = FOLD_ROWS_MIN.max(self.groups.count());
        if self.pending_groups.len() >= enough || self.plan.keys == 0 && self.pending.len() >= ALONE_MAX {
            self.fold()?;
        }
        self.account()
    }

    /// Reports the memory held to the governor, and spills when it is too much.
    fn account(&mut self) -> Result<(), TaskError> {
        let bytes = self.groups.bytes() + batch_bytes(&self.folded) + self.pending_bytes;
        let held = self.reservation.bytes();
        // In steps, so that the governor is not called for every batch.
        let step = (held / 8).max(64 << 10);
        if bytes > held + step && !self.reservation.try_grow(bytes - held) {
            self.fold()?;
            self.spill()?;
        }
        Ok(())
    }

    fn fold(&mut self) -> Result<(), TaskError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut groups: Vec<u32> = (0..self.folded.num_rows() as u32).collect();
        groups.append(&mut self.pending_groups);
        let nothing = RecordBatch::new_empty(self.folded.schema());
        let mut rows = vec![std::mem::replace(&mut self.folded, nothing)];
        rows.append(&mut self.pending);
        self.pending_bytes = 0;
        let rows = concat_batches(&rows[0].schema(), &rows)?;
        self.folded = self.plan.reduce.fold(&rows, &groups, self.groups.count())?;
        Ok(())
    }

    /// All groups, one row each.
    fn results(&self) -> Result<RecordBatch, BatchError> {
        let mut columns = if self.groups.count() == 0 { Vec::new() } else { self.groups.key_columns()? };
        if self.groups.count() == 0 {
            return Ok(RecordBatch::new_empty(SchemaRef::clone(&self.plan.schema)));
        }
        columns.extend(self.folded.columns().iter().cloned());
        let options = RecordBatchOptions::new().with_row_count(Some(self.groups.count()));
        Ok(RecordBatch::try_new_with_options(SchemaRef::clone(&self.plan.schema), columns, &options)?)
    }

    fn spill(&mut self) -> Result<(), TaskError> {
        if self.level >= SpillPartitions::LEVELS || self.plan.keys == 0 {
            // Splitting does not help: it is a single group, or many groups with the same hash.
            let bytes = self.groups.bytes() + batch_bytes(&self.folded);
            return Ok(self.reservation.grow(bytes.saturating_sub(self.reservation.bytes()))?);
        }
        let results = self.results()?;
        let plan = &self.plan;
        if self.spilled.is_none() {
            let hasher = KeyHasher::new((0..plan.keys).collect());
            let hash = Box::new(move |rows: &RecordBatch, hashes: &mut Vec<u64>| Ok(hasher.hash(rows, hashes)?));
            self.spilled = Some(SpillPartitions::new(&plan.governor, &plan.schema, hash, self.level)?);
        }
        self.spilled.as_mut().expect("just made").write(&results)?;
        let values = self.folded.schema();
        self.groups = GroupTable::new(&plan.schema, (0..plan.keys).collect())?;
        self.folded = RecordBatch::new_empty(values);
        self.reservation.free();
        Ok(())
    }

    /// The results, in batches.
    ///
    /// # Errors
    /// As [`Reducer::push`].
    pub fn finish(mut self) -> Result<ReducedBatches, TaskError> {
        if let Some(row) = self.sums.take().and_then(|sums| sums.row(&self.plan.schema)) {
            self.push(row?)?;
        }
        self.fold()?;
        let mut parts = Vec::new();
        if self.spilled.is_some() {
            self.spill()?;
            parts = self.spilled.take().expect("looked at above").finish()?;
        }
        let results = self.results()?;
        let Reducer { plan, level, reservation, .. } = self;
        Ok(ReducedBatches { plan, level, results, next: 0, parts, inner: None, reservation })
    }
}

/// The results of a [`Reducer`].
pub struct ReducedBatches {
    plan: ReducePlan,
    level: u32,
    results: RecordBatch,
    next: usize,
    parts: Vec<SpillFile>,
    inner: Option<Box<ReducedBatches>>,
    reservation: Reservation,
}

impl ReducedBatches {
    /// The next results.
    ///
    /// # Errors
    /// As [`Reducer::push`].
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>, TaskError> {
        loop {
            let rows = (self.results.num_rows() - self.next).min(ROWS_MAX);
            if rows > 0 {
                self.next += rows;
                return Ok(Some(self.results.slice(self.next - rows, rows)));
            }
            self.results = RecordBatch::new_empty(SchemaRef::clone(&self.plan.schema));
            self.next = 0;
            self.reservation.free();
            if let Some(inner) = &mut self.inner {
                if let Some(batch) = inner.next_batch()? {
                    return Ok(Some(batch));
                }
                self.inner = None;
            }
            let Some(part) = self.parts.pop() else { return Ok(None) };
            let mut reducer = Reducer::at_level(self.plan.clone(), self.level + 1)?;
            let mut reader = part.read()?;
            while let Some(batch) = reader.next_batch()? {
                reducer.push(batch)?;
            }
            self.inner = Some(Box::new(reducer.finish()?));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arrow::array::{Decimal128Array, Float64Array, Int64Array, StringArray};
    use arrow::datatypes::{Float64Type, Int64Type};
    use proptest::prelude::*;

    use super::*;
    use crate::memory::MemorySettings;

    fn batch(rows: &[(i64, Option<i64>, f64)]) -> RecordBatch {
        let k: ArrayRef = Arc::new(StringArray::from_iter_values(rows.iter().map(|row| format!("key {}", row.0))));
        let n: ArrayRef = Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.1)));
        let x: ArrayRef = Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.2)));
        RecordBatch::try_from_iter_with_nullable([("k", k, true), ("n", n, true), ("x", x, true)]).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

        /// A comparison with a map catches groups that were counted twice or torn apart by spilling.
        #[test]
        fn equals_a_map(
            rows in prop::collection::vec(
                prop::collection::vec((0i64..300, prop::option::of(-50i64..50), -3.0f64..3.0), 0..200), 0..20),
            spill: bool,
        ) {
            let budget_bytes = if spill { 200 << 10 } else { 0 };
            let settings = MemorySettings { budget_bytes, watch_process: false, ..MemorySettings::default() };
            let governor = Governor::new(settings);
            let schema = batch(&[]).schema();
            let reduce = Reduction::new().sum("n").max("x");
            let mut reducer = Reducer::new(&schema, 1, &reduce, &governor, "test").unwrap();
            let mut expected: BTreeMap<String, (Option<i64>, f64)> = BTreeMap::new();
            for rows in &rows {
                reducer.push(batch(rows)).unwrap();
                for &(k, n, x) in rows {
                    let entry = expected.entry(format!("key {k}")).or_insert((None, f64::MIN));
                    entry.0 = match (entry.0, n) { (Some(a), Some(b)) => Some(a + b), (a, b) => a.or(b) };
                    entry.1 = entry.1.max(x);
                }
            }
            let mut reduced = reducer.finish().unwrap();
            let mut found = BTreeMap::new();
            while let Some(batch) = reduced.next_batch().unwrap() {
                let (k, n, x) = (batch.column(0).as_string::<i32>(), batch.column(1).as_primitive::<Int64Type>(),
                    batch.column(2).as_primitive::<Float64Type>());
                for row in 0..batch.num_rows() {
                    let value = (n.is_valid(row).then(|| n.value(row)), x.value(row));
                    prop_assert!(found.insert(k.value(row).to_owned(), value).is_none());
                }
            }
            prop_assert_eq!(found, expected);
            drop(reduced);
            prop_assert_eq!(governor.reserved_bytes(), 0);
        }
    }

    proptest! {
        /// Without keys, large batches are folded alone and small ones together, and the results of both with the rest.
        /// A comparison with sums catches rows that were counted twice or not at all.
        #[test]
        fn without_keys_all_is_one_row(
            rows in prop::collection::vec((prop::option::weighted(0.9, -50i64..50), 1usize..3000), 1..150)
        ) {
            let governor = Governor::new(MemorySettings { watch_process: false, ..MemorySettings::default() });
            let schema = batch(&[]).project(&[1, 2]).unwrap().schema();
            let reduce = Reduction::new().sum("n").max("x");
            let mut reducer = Reducer::new(&schema, 0, &reduce, &governor, "test").unwrap();
            for &(n, count) in &rows {
                let rows: Vec<_> = (0..count).map(|row| (0, n, row as f64)).collect();
                reducer.push(batch(&rows).project(&[1, 2]).unwrap()).unwrap();
            }
            let mut reduced = reducer.finish().unwrap();
            let found = reduced.next_batch().unwrap().unwrap();
            prop_assert!(found.num_rows() == 1 && reduced.next_batch().unwrap().is_none());
            let n = found.column(0).as_primitive::<Int64Type>().iter().next().unwrap();
            let some: Vec<i64> = rows.iter().filter_map(|&(n, count)| n.map(|n| n * count as i64)).collect();
            prop_assert_eq!(n, (!some.is_empty()).then(|| some.iter().sum()));
            let longest = rows.iter().map(|(_, count)| *count).max().unwrap();
            prop_assert_eq!(found.column(1).as_primitive::<Float64Type>().value(0), (longest - 1) as f64);
        }
    }

    /// Many groups in little memory: partitions are split again, and every group comes out once.
    #[test]
    fn more_groups_than_fit() {
        let settings = MemorySettings { budget_bytes: 4 << 20, watch_process: false, ..MemorySettings::default() };
        let governor = Governor::new(settings);
        let schema = batch(&[]).schema();
        let mut reducer = Reducer::new(&schema, 1, &Reduction::new().sum("n").max("x"), &governor, "test").unwrap();
        for at in 0..600i64 {
            let rows: Vec<_> = (0..1000).map(|row| ((at * 1000 + row) % 300_000, Some(1), 0.5)).collect();
            reducer.push(batch(&rows)).unwrap();
        }
        assert!(governor.spilled_bytes() > 0);
        let mut reduced = reducer.finish().unwrap();
        let mut count = 0;
        while let Some(batch) = reduced.next_batch().unwrap() {
            assert!(batch.column(1).as_primitive::<Int64Type>().iter().all(|n| n == Some(2)));
            count += batch.num_rows();
        }
        assert_eq!(count, 300_000);
    }

    /// Columns without nulls use faster code if there is only one group: with the same sum, null for no rows, and
    /// overflow errors.
    #[test]
    fn a_single_group() {
        let sum = |values: Vec<Option<i64>>| {
            let groups = vec![0; values.len()];
            let column: ArrayRef = Arc::new(Int64Array::from(values));
            fold_column(ColumnOp::Sum, &column, &groups, 1)
                .map(|sum| sum.as_primitive::<Int64Type>().iter().next().unwrap())
        };
        assert_eq!(sum(vec![Some(1), Some(2), Some(-7)]).unwrap(), Some(-4));
        assert_eq!(sum(vec![None, Some(2), Some(5)]).unwrap(), Some(7));
        assert_eq!(sum(vec![None]).unwrap(), None);
        assert_eq!(sum(vec![]).unwrap(), None);
        assert!(sum(vec![Some(i64::MAX), Some(1)]).is_err());
    }

    /// Sums that do not fit their type are errors, not other numbers.
    #[test]
    fn overflow_is_an_error() {
        let governor = Governor::new(MemorySettings::default());
        let rows = batch(&[(1, Some(i64::MAX), 0.0), (1, Some(1), 0.0)]);
        let mut reducer =
            Reducer::new(&rows.schema(), 1, &Reduction::new().sum("n").max("x"), &governor, "test").unwrap();
        reducer.push(rows).unwrap();
        assert!(reducer.finish().err().unwrap().to_string().to_lowercase().contains("overflow"));
    }

    /// A decimal with more digits than its type allows could not be read back, and a product has a different number of
    /// decimal places.
    #[test]
    fn decimals_have_their_digits() {
        let governor = Governor::new(MemorySettings::default());
        let sum = |values: Vec<i128>, keys: usize| {
            let decimals = Decimal128Array::from(values.clone()).with_precision_and_scale(5, 2).unwrap();
            let numbers = Int64Array::from(vec![1; values.len()]);
            let all = [("k", Arc::new(numbers) as ArrayRef), ("d", Arc::new(decimals) as ArrayRef)];
            let rows = RecordBatch::try_from_iter(all.into_iter().skip(1 - keys)).unwrap();
            let mut reducer =
                Reducer::new(&rows.schema(), keys, &Reduction::new().sum("d"), &governor, "test").unwrap();
            reducer.push(rows).unwrap();
            let row = reducer.finish()?.next_batch()?.unwrap();
            Ok::<i128, TaskError>(row.column(keys).as_primitive::<Decimal128Type>().value(0))
        };
        for keys in [0, 1] {
            assert_eq!(sum(vec![99_998, 1], keys).unwrap(), 99_999);
            let error = sum(vec![99_999, 1], keys).unwrap_err().to_string();
            assert!(error.contains("beyond the range of Decimal128(5, 2)"), "{error}");
        }
        let schema = Arc::new(Schema::new(vec![Field::new("d", DataType::Decimal128(5, 2), false)]));
        let product = Reduction::new().column("d", ColumnOp::Product);
        assert_eq!(
            product.schema(&schema, &[]).unwrap_err(),
            "column \"d\" (decimal128(5, 2)) does not support product"
        );
    }
}

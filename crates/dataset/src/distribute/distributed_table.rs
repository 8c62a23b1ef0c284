//! Tables whose parts are in the memory of a job's workers: each worker holds one part, and before planning a query all
//! workers exchange the sizes that plans depend on.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{DataFusionError, Result, Statistics};
use datafusion::datasource::TableType;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, SendableRecordBatchStream,
};
use tidemill_dataflow::flow::batch_bytes;
use tidemill_dataflow::memory::verify_rows;

use crate::dataset::DataSet;
use crate::engine::Engine;
use crate::error::DataSetError;
use crate::exec::step::SLICE_ROWS;
use crate::exec::step::no_input;

/// The size of a table of which each worker knows a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableSize {
    pub rows: u64,
    /// Bytes of the columns with values of varying length.
    pub loose_bytes: u64,
}

/// A table of parts, for DataFusion.
pub(crate) struct PartsTable {
    schema: SchemaRef,
    /// The local batches, by partition.
    partitions: Arc<Vec<Vec<RecordBatch>>>,
    mine: TableSize,
    whole: OnceLock<TableSize>,
}

impl DataSet {
    /// A table whose parts are on the workers of a job: this one, `worker` of `workers`, holds `batches`.
    ///
    /// # Errors
    /// `Data` if a batch does not have the schema.
    pub fn from_parts(
        engine: &Engine,
        schema: SchemaRef,
        batches: &[RecordBatch],
        worker: usize,
        workers: usize,
    ) -> crate::error::Result<Self> {
        let table = PartsTable::new(engine, &schema, batches, worker, workers)?;
        DataSet::new(engine.context().read_table(Arc::new(table))?)
    }
}

impl PartsTable {
    fn new(
        engine: &Engine,
        schema: &SchemaRef,
        batches: &[RecordBatch],
        worker: usize,
        workers: usize,
    ) -> crate::error::Result<Self> {
        // Whether a column has nulls may differ between parts; its name and type may not.
        let fields = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        let schema: SchemaRef = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let batches = batches
            .iter()
            .map(|batch| RecordBatch::try_new(SchemaRef::clone(&schema), batch.columns().to_vec()))
            .collect::<std::result::Result<Vec<_>, _>>()?;
        let loose: Vec<usize> = (0..schema.fields().len()).filter(|&i| width(schema.field(i)).is_none()).collect();
        let mut mine = TableSize::default();
        for batch in &batches {
            mine.rows += batch.num_rows() as u64;
            mine.loose_bytes += batch_bytes(&batch.project(&loose)?);
        }
        let threads = engine.context().copied_config().target_partitions();
        // One slice per thread, of equal numbers of rows.
        let each = (mine.rows as usize).div_ceil(threads).max(1);
        let (mut shares, mut filled) = (vec![Vec::new()], 0);
        for batch in &batches {
            let mut from = 0;
            while from < batch.num_rows() {
                if filled == each {
                    shares.push(Vec::new());
                    filled = 0;
                }
                let rows = SLICE_ROWS.min(batch.num_rows() - from).min(each - filled);
                shares.last_mut().expect("never empty").push(batch.slice(from, rows));
                (from, filled) = (from + rows, filled + rows);
            }
        }
        // Partition `i` of a query runs on worker `i % workers`.
        let part = |place: usize| {
            let here = place % workers == worker;
            shares.get(place / workers).filter(|_| here).cloned().unwrap_or_default()
        };
        let partitions = Arc::new((0..threads * workers).map(part).collect());
        // A single worker has no others to exchange sizes with.
        let whole = if workers == 1 { OnceLock::from(mine) } else { OnceLock::new() };
        Ok(PartsTable { schema, partitions, mine, whole })
    }

    /// The size of the local part.
    pub(crate) fn mine(&self) -> TableSize {
        self.mine
    }

    /// A non-zero checksum of the columns: if it differs, columns do.
    pub(crate) fn columns_sum(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.columns().hash(&mut hasher);
        // Only half of it, because the checksums of all workers are added up.
        (hasher.finish() >> 32) | 1
    }

    /// Names and types of the columns, for a comparison with other workers'.
    pub(crate) fn columns(&self) -> String {
        let column = |field: &Arc<Field>| format!("{:?}\t{}", field.name(), field.data_type());
        self.schema.fields().iter().map(column).collect::<Vec<_>>().join("\t")
    }

    /// Sets the size on all workers; only the first call counts, because plans must not change.
    pub(crate) fn tell(&self, whole: TableSize) {
        let _ = self.whole.set(whole);
    }

    fn statistics(&self, projection: &[usize]) -> Statistics {
        let schema = projected(&self.schema, projection);
        let mut statistics = Statistics::new_unknown(&schema);
        let Some(&TableSize { rows, loose_bytes }) = self.whole.get() else { return statistics };
        statistics.num_rows = Precision::Exact(rows as usize);
        let loose = |schema: &Schema| schema.fields().iter().filter(|field| width(field).is_none()).count() as u64;
        let fixed: usize = schema.fields().iter().filter_map(|field| width(field)).sum();
        let bytes = rows * fixed as u64 + loose_bytes * loose(&schema) / loose(&self.schema).max(1);
        statistics.total_byte_size = match loose(&schema) {
            0 => Precision::Exact(bytes as usize),
            _ => Precision::Inexact(bytes as usize),
        };
        statistics
    }
}

/// How the [columns](PartsTable::columns) of a table differ between workers.
pub(crate) fn differences(columns: &[&str]) -> Option<String> {
    let first = columns.first()?;
    let (worker, other) = columns.iter().enumerate().find(|(_, other)| *other != first)?;
    let (here, there) = (names_and_types(first), names_and_types(other));
    let type_in = |columns: &[(String, String)], name: &str| {
        columns.iter().find(|(other, _)| other == name).map_or("not there".to_owned(), |(_, of)| of.clone())
    };
    let names = here.iter().chain(&there).map(|(name, _)| name.as_str());
    let mut told: Vec<String> = Vec::new();
    for name in names {
        let (mine, theirs) = (type_in(&here, name), type_in(&there, name));
        let words = format!("{name} is {mine} on worker 0, but {theirs} on worker {worker}");
        if mine != theirs && !told.contains(&words) {
            told.push(words);
        }
    }
    if told.is_empty() {
        let listed =
            |columns: &[(String, String)]| columns.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        return Some(format!("{} on worker 0, but {} on worker {worker}", listed(&here), listed(&there)));
    }
    Some(told.join("; "))
}

fn names_and_types(columns: &str) -> Vec<(String, String)> {
    let words: Vec<&str> = columns.split('\t').collect();
    words.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect()
}

/// Bytes per value, if all values have the same size.
fn width(field: &Field) -> Option<usize> {
    match field.data_type() {
        DataType::Boolean => Some(1),
        other => other.primitive_width(),
    }
}

fn projected(schema: &Schema, projection: &[usize]) -> SchemaRef {
    Arc::new(Schema::new(projection.iter().map(|&column| schema.field(column).clone()).collect::<Vec<_>>()))
}

impl fmt::Debug for PartsTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartsTable").field("mine", &self.mine).finish_non_exhaustive()
    }
}

#[async_trait]
impl TableProvider for PartsTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let projection = projection.cloned().unwrap_or_else(|| (0..self.schema.fields().len()).collect());
        let schema = projected(&self.schema, &projection);
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(self.partitions.len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        Ok(Arc::new(PartsExec {
            partitions: Arc::clone(&self.partitions),
            statistics: Arc::new(self.statistics(&projection)),
            projection,
            properties: Arc::new(properties),
        }))
    }
}

/// Reads the local parts; other workers read theirs.
pub(crate) struct PartsExec {
    partitions: Arc<Vec<Vec<RecordBatch>>>,
    projection: Vec<usize>,
    statistics: Arc<Statistics>,
    properties: Arc<PlanProperties>,
}

impl fmt::Debug for PartsExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartsExec").field("projection", &self.projection).finish_non_exhaustive()
    }
}

impl DisplayAs for PartsExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schema = self.properties.eq_properties.schema();
        let names = schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ");
        write!(f, "PartsExec: columns=[{names}]")?;
        match self.statistics.num_rows {
            Precision::Absent => Ok(()),
            rows => write!(f, ", rows={}", rows.get_value().copied().unwrap_or_default()),
        }
    }
}

impl ExecutionPlan for PartsExec {
    fn name(&self) -> &'static str {
        "PartsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    no_input!();

    fn statistics_from_inputs(&self, _: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        match args.partition() {
            // A worker knows only its own parts, and plans must be the same on all workers.
            Some(_) => Ok(Arc::new(Statistics::new_unknown(self.properties.eq_properties.schema()))),
            None => Ok(Arc::clone(&self.statistics)),
        }
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let batches = self.partitions.get(partition);
        let batches = batches.ok_or_else(|| DataFusionError::Internal(format!("no partition {partition}")))?;
        let projection = self.projection.clone();
        let batches = batches.clone().into_iter().map(move |batch| {
            let batch = batch.project(&projection)?;
            // A cached part may be on disk.
            verify_rows(&batch).map_err(|error| DataSetError::Io(error.to_string()))?;
            Ok(batch)
        });
        let schema = Arc::clone(self.properties.eq_properties.schema());
        Ok(make_cooperative(Box::pin(RecordBatchStreamAdapter::new(schema, futures::stream::iter(batches)))))
    }
}

#[cfg(test)]
mod tests {
    use super::differences;

    /// If one of many columns differs, the error must name it and the worker.
    #[test]
    fn columns_that_differ_are_told() {
        let told = |columns: &[&str]| differences(columns).unwrap_or_default();
        let all = "\"a\"\tInt64\t\"b\"\tUtf8";
        assert_eq!(told(&[all, all]), "");
        assert_eq!(told(&[all, all, "\"a\"\tInt64\t\"b\"\tNull"]), "\"b\" is Utf8 on worker 0, but Null on worker 2");
        assert_eq!(
            told(&[all, "\"b\"\tUtf8\t\"c\"\tInt8"]),
            "\"a\" is Int64 on worker 0, but not there on worker 1; \"c\" is not there on worker 0, but Int8 on worker 1"
        );
        assert_eq!(told(&[all, "\"b\"\tUtf8\t\"a\"\tInt64"]), "\"a\", \"b\" on worker 0, but \"b\", \"a\" on worker 1");
    }
}

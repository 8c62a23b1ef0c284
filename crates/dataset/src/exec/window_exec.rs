//! Window functions over whole partitions, several partitions at a time.
//!
//! DataFusion's step holds all of its rows before it looks for partitions. Since rows come sorted by partition, a
//! partition is complete here when the next one begins, and memory is needed only for the largest one. A partition that
//! does not fit goes to disk if its functions have one value for all of its rows, like aggregates without an order;
//! otherwise the error names the step.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::{concat, concat_batches, partition};
use arrow::datatypes::SchemaRef;
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::Accumulator;
use datafusion::physical_expr::window::{PlainAggregateWindowExpr, WindowExpr};
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::windows::WindowAggExec;
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream};
use futures::stream::{BoxStream, Fuse};
use futures::{StreamExt, TryStreamExt, stream};
use tidemill_dataflow::flow::batch_bytes;
use tidemill_dataflow::memory::{AllocationSet, Governor, Reservation, SpillWriter};

use crate::exec::replaced_exec::StepReplacement;
use crate::exec::spill::{failed, rows_of};
use crate::exec::stream_step::has_stream;

/// Rows to collect before looking for the end of a partition, if there is room for them: calling a function for few
/// rows costs more per row.
const ROWS: usize = 1 << 15;
/// The owner of the memory in messages.
const NAME: &str = "window functions";
/// Approximate size of a window function's value.
const VALUE_BYTES: u64 = 16;

/// Replaces a [`WindowAggExec`]; its name in plans is `WindowExec`.
#[derive(Clone)]
pub(crate) struct PartitionedWindows {
    pub(crate) governor: Governor,
}

impl StepReplacement for PartitionedWindows {
    type Step = WindowAggExec;
    const NAME: &'static str = "WindowExec";

    fn fits(&self, window: &WindowAggExec) -> bool {
        !has_stream(window.input())
    }

    fn execute(
        &self,
        window: &WindowAggExec,
        partition: usize,
        context: Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream> {
        let windows = WindowStream {
            input: window.input().execute(partition, context)?.fuse(),
            last: None,
            held: BufferedRows::default(),
            reservation: self.governor.reservation(NAME),
            functions: window.window_expr().to_vec(),
            schema: window.schema(),
            governor: self.governor.clone(),
            spilled_bytes: MetricBuilder::new(metrics).spilled_bytes(partition),
        };
        let metrics = BaselineMetrics::new(metrics, partition);
        let rows = stream::try_unfold(windows, |mut windows| async move {
            Ok::<_, DataFusionError>(windows.next().await?.map(|rows| (rows, windows)))
        });
        let rows = rows.try_flatten().inspect_ok(move |batch| metrics.record_output(batch.num_rows()));
        Ok(Box::pin(RecordBatchStreamAdapter::new(window.schema(), rows)))
    }
}

/// Rows that have been read, with the starts of partitions.
#[derive(Default)]
struct BufferedRows {
    batches: Vec<RecordBatch>,
    count: usize,
    /// The first row of each partition, among all of these rows.
    starts: Vec<usize>,
    allocations: AllocationSet,
}

impl BufferedRows {
    /// Additional memory for a batch. Its rows exist twice for a moment, when they are concatenated, together with the
    /// values of the functions.
    fn wanted_bytes(&mut self, batch: &RecordBatch, functions: usize) -> u64 {
        let values_bytes = VALUE_BYTES * (functions * batch.num_rows()) as u64;
        self.allocations.add(batch) + batch_bytes(batch) + values_bytes
    }

    /// Adds a batch with partitions starting at these rows.
    fn add(&mut self, batch: RecordBatch, starts: &[usize]) {
        self.starts.extend(starts.iter().map(|start| self.count + start));
        self.count += batch.num_rows();
        self.batches.push(batch);
    }

    /// Takes the rows before the last partition, if there are any.
    fn take_whole(&mut self) -> Option<BufferedRows> {
        let cut = self.starts.pop_if(|start| *start > 0)?;
        let all = std::mem::take(self);
        let mut whole = BufferedRows { starts: all.starts, ..BufferedRows::default() };
        self.starts.push(0);
        for batch in all.batches {
            let own = (cut - whole.count).min(batch.num_rows());
            whole.add(batch.slice(0, own), &[]);
            if own < batch.num_rows() {
                self.add(batch.slice(own, batch.num_rows() - own), &[]);
            }
        }
        Some(whole)
    }
}

/// The progress of one partition of the step's input.
struct WindowStream {
    input: Fuse<SendableRecordBatchStream>,
    /// The last row that was read.
    last: Option<RecordBatch>,
    /// Rows that have not been output.
    held: BufferedRows,
    /// Memory of the buffered rows and of the last output.
    reservation: Reservation,
    functions: Vec<Arc<dyn WindowExpr>>,
    schema: SchemaRef,
    governor: Governor,
    spilled_bytes: Count,
}

impl WindowStream {
    /// The rows of some partitions, with the values of the functions.
    async fn next(&mut self) -> Result<Option<BoxStream<'static, Result<RecordBatch>>>> {
        // The previous output no longer counts; the buffered rows have just been read.
        self.reservation.free();
        self.reservation.force_grow(2 * self.held.batches.iter().map(batch_bytes).sum::<u64>());
        while let Some((batch, starts)) = self.read().await? {
            let bytes = self.held.wanted_bytes(&batch, self.functions.len());
            let fits = self.reservation.try_grow(bytes);
            self.held.add(batch, &starts);
            if fits && self.held.count < ROWS {
                continue;
            }
            if let Some(whole) = self.held.take_whole() {
                return self.evaluated(&whole).map(Some);
            }
            if !fits && self.functions.iter().all(|function| constant(function).is_some()) {
                return self.on_disk().await.map(Some);
            }
            if !fits && !self.reservation.grow_to_floor(bytes) {
                self.reservation.grow(bytes).map_err(failed)?;
            }
        }
        let rest = std::mem::take(&mut self.held);
        if rest.count == 0 { Ok(None) } else { self.evaluated(&rest).map(Some) }
    }

    /// The next rows, and the starts of partitions among them.
    async fn read(&mut self) -> Result<Option<(RecordBatch, Vec<usize>)>> {
        while let Some(batch) = self.input.next().await.transpose()? {
            if batch.num_rows() > 0 {
                let starts = self.starts(&batch)?;
                return Ok(Some((batch, starts)));
            }
        }
        Ok(None)
    }

    fn starts(&mut self, batch: &RecordBatch) -> Result<Vec<usize>> {
        let last = self.last.replace(batch.slice(batch.num_rows() - 1, 1));
        let keys = self.keys(batch)?;
        let mut starts: Vec<usize> = match keys.is_empty() {
            true => vec![0],
            false => partition(&keys)?.ranges().iter().map(|range| range.start).collect(),
        };
        if let Some(last) = last {
            let pairs = self.keys(&last)?.into_iter().zip(keys);
            let pairs = pairs.map(|(before, keys)| concat(&[&before, &keys.slice(0, 1)]));
            let pairs = pairs.collect::<Result<Vec<ArrayRef>, _>>()?;
            if pairs.is_empty() || partition(&pairs)?.len() == 1 {
                starts.remove(0);
            }
        }
        Ok(starts)
    }

    fn keys(&self, rows: &RecordBatch) -> Result<Vec<ArrayRef>> {
        let keys = self.functions[0].partition_by().iter();
        keys.map(|key| key.evaluate(rows)?.into_array(rows.num_rows())).collect()
    }

    /// Complete partitions, with the values of the functions.
    fn evaluated(&self, whole: &BufferedRows) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let rows = concat_batches(&self.input.get_ref().schema(), &whole.batches)?;
        let ends = whole.starts[1..].iter().chain([&whole.count]);
        let parts: Vec<_> = whole.starts.iter().zip(ends).map(|(&start, end)| rows.slice(start, end - start)).collect();
        let values = self.functions.iter().map(|function| {
            let values = parts.iter().map(|part| function.evaluate(part)).collect::<Result<Vec<_>>>()?;
            Ok(concat(&values.iter().map(AsRef::as_ref).collect::<Vec<_>>())?)
        });
        let rows = beside(&self.schema, &rows, values)?;
        Ok(stream::iter([Ok(rows)]).boxed())
    }

    /// A partition that does not fit in memory: its rows pass through the functions to disk, and come back with the
    /// values.
    async fn on_disk(&mut self) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let mut writer = SpillWriter::new(&self.governor, &self.input.get_ref().schema()).map_err(failed)?;
        let mut figures = PartitionFigures::of(&self.functions, self.governor.reservation(NAME))?;
        for batch in std::mem::take(&mut self.held).batches {
            figures.take(&batch)?;
            writer.write(&batch).map_err(failed)?;
        }
        self.reservation.free();
        while let Some((batch, starts)) = self.read().await? {
            let end = starts.first().copied().unwrap_or(batch.num_rows());
            let own = batch.slice(0, end);
            figures.take(&own)?;
            writer.write(&own).map_err(failed)?;
            if end < batch.num_rows() {
                let others: Vec<usize> = starts.iter().map(|start| start - end).collect();
                self.held.add(batch.slice(end, batch.num_rows() - end), &others);
                break;
            }
        }
        let (values, file) = (figures.values()?, writer.finish().map_err(failed)?);
        self.spilled_bytes.add(file.bytes() as usize);
        let schema = Arc::clone(&self.schema);
        let rows = rows_of(&file)?.map(move |batch| {
            let batch = batch?;
            beside(&schema, &batch, values.iter().map(|value| value.to_array_of_size(batch.num_rows())))
        });
        Ok(rows.boxed())
    }
}

/// Rows, with the values of the functions.
fn beside(
    schema: &SchemaRef,
    rows: &RecordBatch,
    values: impl Iterator<Item = Result<ArrayRef>>,
) -> Result<RecordBatch> {
    let columns = rows.columns().iter().cloned().map(Ok).chain(values).collect::<Result<_>>()?;
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

/// Computes functions over a partition's rows as they arrive.
struct PartitionFigures {
    functions: Vec<(Arc<dyn WindowExpr>, Box<dyn Accumulator>)>,
    reservation: Reservation,
}

impl PartitionFigures {
    fn of(functions: &[Arc<dyn WindowExpr>], reservation: Reservation) -> Result<Self> {
        let functions = functions.iter().map(|function| {
            let constant = constant(function).expect("looked at before");
            Ok((Arc::clone(function), constant.get_aggregate_expr().create_accumulator()?))
        });
        Ok(PartitionFigures { functions: functions.collect::<Result<_>>()?, reservation })
    }

    fn take(&mut self, rows: &RecordBatch) -> Result<()> {
        for (function, figures) in &mut self.functions {
            figures.update_batch(&function.evaluate_args(rows)?)?;
        }
        // Some keep all values, such as medians.
        let bytes = self.functions.iter().map(|(_, figures)| figures.size() as u64).sum::<u64>();
        let more = bytes.saturating_sub(self.reservation.bytes());
        if self.reservation.try_grow(more) || self.reservation.grow_to_floor(more) {
            return Ok(());
        }
        self.reservation.grow(more).map_err(failed)
    }

    fn values(mut self) -> Result<Vec<ScalarValue>> {
        self.functions.iter_mut().map(|(_, figures)| figures.evaluate()).collect()
    }
}

/// A function with a single value for all rows of a partition, computed from all of its rows.
fn constant(function: &Arc<dyn WindowExpr>) -> Option<&PlainAggregateWindowExpr> {
    let aggregate = function.as_any().downcast_ref::<PlainAggregateWindowExpr>()?;
    // DataFusion exposes neither property in another way: a filter would have to be applied here.
    let is_constant = format!("{aggregate:?}").ends_with("is_constant_in_partition: true, filter: None }");
    is_constant.then_some(aggregate)
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float64Array, Int64Array, StringArray};
    use arrow::util::display::{ArrayFormatter, FormatOptions};

    use super::*;
    use crate::dataset::DataSet;
    use crate::engine::{Engine, EngineConfig};
    use crate::exec::progress::ReadProgress;

    fn engine(memory_bytes: Option<usize>) -> Arc<Engine> {
        Arc::new(Engine::new(&EngineConfig { threads: 1, workers: 1, memory_bytes, spill_dir: None }).unwrap())
    }

    /// Rows with keys computed by `key` from their numbers, in separate batches.
    fn table(engine: &Engine, key: fn(i64) -> Option<i64>) -> DataSet {
        let batch = |begin: i64| {
            let numbers = begin..begin + 5000;
            let key: Int64Array = numbers.clone().map(key).collect();
            let value: Float64Array =
                numbers.clone().map(|row| (row % 7 != 3).then_some((row % 1000) as f64)).collect();
            let text = StringArray::from_iter_values(numbers.clone().map(|row| format!("text {row:020}")));
            let columns: [(&str, ArrayRef, bool); 4] = [
                ("k", Arc::new(key), true),
                ("n", Arc::new(Int64Array::from_iter_values(numbers)), false),
                ("x", Arc::new(value), true),
                ("s", Arc::new(text), false),
            ];
            RecordBatch::try_from_iter_with_nullable(columns).unwrap()
        };
        let batches: Vec<_> = (0..30).map(|number| batch(number * 5000)).collect();
        DataSet::from_batches(engine, batches[0].schema(), &batches).unwrap()
    }

    fn rows(engine: &Arc<Engine>, query: &str, table: &DataSet) -> crate::error::Result<Vec<String>> {
        let (asked, query) = (Arc::clone(engine), query.to_owned());
        let tables = vec![("t".to_owned(), table.clone())];
        let set = engine.run(async move { DataSet::from_sql(&asked, &query, tables).await })?;
        let mut rows = Vec::new();
        for batch in engine.run(set.collect(ReadProgress::default()))? {
            let options = FormatOptions::default().with_null("null");
            let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap());
            let columns: Vec<_> = columns.collect();
            let row = |row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join(",");
            rows.extend((0..batch.num_rows()).map(row));
        }
        rows.sort_unstable();
        Ok(rows)
    }

    /// The same result without a window, for any partitions and any batch boundaries.
    fn expected(query: &str, engine: &Arc<Engine>, table: &DataSet) -> Vec<String> {
        let seen = rows(engine, query, table).unwrap();
        assert_eq!(seen.len(), 150_000, "{query}");
        seen
    }

    const KEYS: [fn(i64) -> Option<i64>; 5] = [
        |row| Some(row / 7),
        |row| (row % 11 != 0).then_some(row % 30_001),
        |row| Some(row / 5000),
        // A key that nearly all rows have.
        |row| if row % 100 == 0 { Some(row) } else { None },
        |_| Some(1),
    ];

    /// Partitions that do not fit go to disk: the values are those of a group-by and a join.
    #[test]
    fn values_of_whole_partitions_are_those_of_groups() {
        let over = "select n, sum(x) over w, count(x) over w, max(s) over w from t window w as (partition by k)";
        let grouped = "select n, a, b, c from t join \
             (select k, sum(x) a, count(x) b, max(s) c from t group by k) g on t.k is not distinct from g.k";
        let roomy = engine(None);
        for (number, key) in KEYS.into_iter().enumerate() {
            let wanted = expected(grouped, &roomy, &table(&roomy, key));
            for memory in [None, Some(1 << 20), Some(8 << 20)] {
                let engine = engine(memory);
                let seen = expected(over, &engine, &table(&engine, key));
                assert!(seen == wanted, "keys {number}, memory {memory:?}: {} and {}", seen[0], wanted[0]);
                assert_eq!(engine.governor().reserved_bytes(), 0, "keys {number}, memory {memory:?}");
            }
        }
        let tight = engine(Some(1 << 20));
        let table = table(&tight, KEYS[0]);
        let seen = expected("select n, min(n) over (), sum(n) over () from t", &tight, &table);
        assert!(seen.contains(&format!("149999,0,{}", 149_999_u64 * 75_000)));
    }

    /// Functions that need a whole partition: small ones are processed one after the other, and a large one fails with
    /// an error that names it.
    #[test]
    fn partitions_that_are_needed_in_memory_must_fit() {
        let query = "select n, ntile(3) over (partition by k order by n), last_value(n) over (partition by k order by n \
             rows between 1 preceding and unbounded following) from t";
        for (number, key) in KEYS.into_iter().enumerate() {
            let (roomy, tight) = (engine(None), engine(Some(4 << 20)));
            let wanted = expected(query, &roomy, &table(&roomy, key));
            match rows(&tight, query, &table(&tight, key)) {
                Ok(seen) => assert!(seen == wanted && number < 3, "keys {number}"),
                Err(error) => {
                    let error = error.to_string();
                    assert!(number >= 3 && error.contains("\"window functions\""), "keys {number}: {error}");
                }
            }
            assert_eq!(tight.governor().reserved_bytes(), 0, "keys {number}");
        }
    }

    /// Rows excluded by a filter must stay excluded, even in a partition that would go to disk.
    #[test]
    fn filtered_aggregates_stay_filtered() {
        let query = "select n, count(*) filter (where n % 2 = 0) over () from t";
        let engine = engine(None);
        let seen = expected(query, &engine, &table(&engine, KEYS[4]));
        assert!(seen.contains(&"7,75000".to_owned()));
        let tight = self::engine(Some(1 << 20));
        let error = rows(&tight, query, &table(&tight, KEYS[4])).unwrap_err().to_string();
        assert!(error.contains("\"window functions\""), "{error}");
    }
}

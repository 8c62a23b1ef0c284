//! Exchanges by name, and functions of the program in them.

use std::num::NonZeroU64;
use std::sync::Arc;

use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tidemill_dataflow::exchange::{
    AllReduce, Broadcast, ColumnOp, Direct, EdgeSignature, EdgeWorkers, Exchange, Gather, Join, JoinKind, KeyedGather,
    KeyedReduce, Partition, Reduce, Reduction, RoundEnd, RoundUnit, Rounds, Sort, SortKey, TimeSlices, Union,
};
use tidemill_dataflow::flow::Lowering;
use tidemill_dataflow::overlay::{MESSAGE_BYTES, UnknownOverlay};
use tidemill_dataflow::{Overlay, RouteMap};
use tidemill_dataset::datafusion::arrow::array::RecordBatch;
use tidemill_dataset::datafusion::arrow::compute::concat_batches;
use tidemill_dataset::datafusion::arrow::datatypes::SchemaRef;

use crate::dataset::NativeTable;

use super::array_reduction;
use super::failure_text;
use super::function::GraphFunction;
use super::message::fitted;

/// Any exchange.
#[derive(Clone)]
pub struct AnyExchange(Arc<dyn Exchange>);

impl Exchange for AnyExchange {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn check(&self, ends: &EdgeSignature<'_>) -> Result<SchemaRef, String> {
        self.0.check(ends)
    }

    fn rounds(&self) -> Option<RoundEnd> {
        self.0.rounds()
    }

    fn round_unit(&self) -> RoundUnit {
        self.0.round_unit()
    }

    fn allows_rounds(&self) -> bool {
        self.0.allows_rounds()
    }

    fn explain(&self, ends: &EdgeWorkers<'_>) -> Option<String> {
        self.0.explain(ends)
    }

    fn lower(&self, lowering: &mut Lowering<'_>) {
        self.0.lower(lowering);
    }
}

fn table(batch: &RecordBatch) -> NativeTable {
    NativeTable { schema: batch.schema(), batches: vec![batch.clone()] }
}

/// How rows are combined.
#[pyclass(frozen, module = "tidemill._tidemill")]
pub struct NativeReduction(Reduction, Option<GraphFunction>);

#[pymethods]
impl NativeReduction {
    /// A reduction with an operation for each column.
    #[staticmethod]
    fn of_columns(columns: Vec<(String, String)>) -> PyResult<Self> {
        let mut reduction = Reduction::new();
        for (column, op) in columns {
            let op = match op.as_str() {
                "sum" => ColumnOp::Sum,
                "product" => ColumnOp::Product,
                "min" => ColumnOp::Min,
                "max" => ColumnOp::Max,
                "any" => ColumnOp::Any,
                other => {
                    return Err(PyValueError::new_err(format!(
                        "column {column:?}: unknown reduction {other:?}; use \"sum\", \"product\", \"min\", \"max\" \
                         or \"any\", or a function of two rows for all columns"
                    )));
                }
            };
            reduction = reduction.column(column, op);
        }
        Ok(NativeReduction(reduction, None))
    }

    /// A reduction of these columns with a function
    /// `(table, group of each row, groups) -> table with a row for each group`. For a port of arrays, `elementwise`
    /// names the operation that the function applies element by element: the function is then called only if the
    /// operation requires NumPy.
    #[staticmethod]
    #[pyo3(signature = (name, columns, function, elementwise = None))]
    fn of_function(name: String, columns: Vec<String>, function: Py<PyAny>, elementwise: Option<&str>) -> Self {
        let function = GraphFunction::new(function);
        let owned = function.clone();
        let op = elementwise.and_then(array_reduction::op);
        let fold = move |batch: &RecordBatch, groups: &[u32], count: usize| {
            if let Some(op) = &op
                && let Some(folded) = array_reduction::fold(op, batch, groups, count)?
            {
                return Ok(folded);
            }
            let folded = Python::attach(|py| {
                let call = |function: Bound<'_, PyAny>| {
                    let folded = function.call1((table(batch), groups.to_vec(), count))?;
                    let folded = folded.extract::<PyRef<'_, NativeTable>>()?;
                    Ok((SchemaRef::clone(&folded.schema), folded.batches.clone()))
                };
                function.get(py).and_then(call).map_err(|error| failure_text(py, &error))
            });
            let (schema, batches) = folded?;
            fitted(&concat_batches(&schema, &batches)?, &batch.schema())
        };
        NativeReduction(Reduction::with(name, columns, fold), Some(owned))
    }
}

/// How rows get from one task to another.
#[pyclass(frozen, module = "tidemill._tidemill")]
pub struct NativeExchange {
    pub exchange: AnyExchange,
    /// The function that it calls.
    pub function: Option<GraphFunction>,
}

fn of(exchange: impl Exchange + 'static) -> NativeExchange {
    NativeExchange { exchange: AnyExchange(Arc::new(exchange)), function: None }
}

impl NativeExchange {
    fn calling(self, function: Option<&GraphFunction>) -> Self {
        NativeExchange { function: function.cloned(), ..self }
    }
}

fn overlay(name: &str) -> PyResult<Overlay> {
    name.parse().map_err(|error: UnknownOverlay| PyValueError::new_err(format!("unknown along={name:?}: {error}")))
}

/// A column, whether descending, whether nulls come first.
type Key = (String, bool, Option<bool>);

fn sort_keys(keys: Vec<Key>) -> Vec<SortKey> {
    let key = |(column, descending, nulls_first): Key| {
        let key = if descending { SortKey::descending(column) } else { SortKey::ascending(column) };
        match nulls_first {
            Some(first) => key.nulls_first(first),
            None => key,
        }
    };
    keys.into_iter().map(key).collect()
}

#[pymethods]
impl NativeExchange {
    #[staticmethod]
    fn direct() -> Self {
        of(Direct)
    }

    /// Broadcast `along` an overlay, to each of the `"copies"`, or along an overlay chosen for messages of about this
    /// size, at about this rate.
    #[staticmethod]
    #[pyo3(signature = (along = None, message_bytes = None, message_rate = None))]
    fn broadcast(along: Option<&str>, message_bytes: Option<u64>, message_rate: Option<u64>) -> PyResult<Self> {
        let bytes = message_bytes.unwrap_or(MESSAGE_BYTES);
        Ok(of(match (along, message_rate) {
            (Some("copies"), _) => Broadcast::to_copies(),
            (Some(along), _) => Broadcast::along(overlay(along)?),
            (None, Some(per_s)) => Broadcast::for_rate(bytes, per_s),
            (None, None) => Broadcast::for_messages(bytes),
        }))
    }

    #[staticmethod]
    #[pyo3(signature = (to, along = None))]
    fn gather(to: u32, along: Option<&str>) -> PyResult<Self> {
        let gather = Gather::to(to);
        Ok(of(match along {
            Some(along) => gather.along(overlay(along)?),
            None => gather,
        }))
    }

    /// Partition by key; `owners` is the copy of each bucket.
    #[staticmethod]
    #[pyo3(signature = (columns, buckets, owners = None))]
    fn partition(columns: Vec<String>, buckets: u32, owners: Option<Vec<u32>>) -> Self {
        let partition = Partition::by_key(columns);
        of(match owners {
            Some(owners) => partition.route(RouteMap::new(1, owners)),
            None => partition.buckets(buckets),
        })
    }

    #[staticmethod]
    fn round_robin() -> Self {
        of(Partition::round_robin())
    }

    /// Partition by a function `(table, copies) -> int64 array with the copy of each row`.
    #[staticmethod]
    fn partition_with(name: String, function: Py<PyAny>) -> Self {
        let function = GraphFunction::new(function);
        let owned = function.clone();
        let assign = move |batch: &RecordBatch, copies: u32| {
            let targets = Python::attach(|py| {
                let call = |function: Bound<'_, PyAny>| {
                    let targets = function.call1((table(batch), copies))?;
                    let targets = targets.extract::<PyReadonlyArray1<'_, i64>>()?;
                    // Invalid numbers become too large ones, which the exchange reports.
                    Ok(targets.as_slice()?.iter().map(|&target| u32::try_from(target).unwrap_or(u32::MAX)).collect())
                };
                function.get(py).and_then(call).map_err(|error| failure_text(py, &error))
            });
            Ok(targets?)
        };
        of(Partition::with(name, assign)).calling(Some(&owned))
    }

    #[staticmethod]
    fn ranges(keys: Vec<Key>) -> Self {
        of(Sort::ranges(sort_keys(keys)))
    }

    #[staticmethod]
    fn sort(keys: Vec<Key>, sample_all: bool) -> Self {
        let sort = Sort::by(sort_keys(keys));
        of(if sample_all { sort.sample_all() } else { sort })
    }

    #[staticmethod]
    #[pyo3(signature = (reduction, to, along = None, message_bytes = None, message_rate = None))]
    fn reduce(
        reduction: &NativeReduction,
        to: u32,
        along: Option<&str>,
        message_bytes: Option<u64>,
        message_rate: Option<u64>,
    ) -> PyResult<Self> {
        let reduce = Reduce::new(reduction.0.clone()).to(to);
        let bytes = message_bytes.unwrap_or(MESSAGE_BYTES);
        let reduce = match (along, message_rate) {
            (Some(along), _) => reduce.along(overlay(along)?),
            (None, Some(per_s)) => reduce.for_rate(bytes, per_s),
            (None, None) => reduce.for_messages(bytes),
        };
        Ok(of(reduce).calling(reduction.1.as_ref()))
    }

    #[staticmethod]
    #[pyo3(signature = (reduction, along = None, message_bytes = None, message_rate = None))]
    fn all_reduce(
        reduction: &NativeReduction,
        along: Option<&str>,
        message_bytes: Option<u64>,
        message_rate: Option<u64>,
    ) -> PyResult<Self> {
        let reduce = AllReduce::new(reduction.0.clone());
        let bytes = message_bytes.unwrap_or(MESSAGE_BYTES);
        let reduce = match (along, message_rate) {
            (Some(along), _) => reduce.along(overlay(along)?),
            (None, Some(per_s)) => reduce.for_rate(bytes, per_s),
            (None, None) => reduce.for_messages(bytes),
        };
        Ok(of(reduce).calling(reduction.1.as_ref()))
    }

    #[staticmethod]
    #[pyo3(signature = (columns, reduction, buckets, along = None, message_bytes = None, message_rate = None))]
    fn keyed_reduce(
        columns: Vec<String>,
        reduction: &NativeReduction,
        buckets: u32,
        along: Option<&str>,
        message_bytes: Option<u64>,
        message_rate: Option<u64>,
    ) -> PyResult<Self> {
        let reduce = KeyedReduce::new(columns, reduction.0.clone()).buckets(buckets);
        let reduce = match (along, message_bytes, message_rate) {
            (Some(along), ..) => reduce.along(overlay(along)?),
            (None, bytes, Some(per_s)) => reduce.for_rate(bytes.unwrap_or(MESSAGE_BYTES), per_s),
            (None, Some(bytes), None) => reduce.for_messages(bytes),
            (None, None, None) => reduce,
        };
        Ok(of(reduce).calling(reduction.1.as_ref()))
    }

    #[staticmethod]
    fn keyed_gather(columns: Vec<String>, buckets: u32) -> Self {
        of(KeyedGather::new(columns).buckets(buckets))
    }

    #[staticmethod]
    fn join(kind: &str, on: Vec<(String, String)>, broadcast_right: bool, buckets: u32) -> PyResult<Self> {
        let kind = match kind {
            "inner" => JoinKind::Inner,
            "left" => JoinKind::Left,
            "right" => JoinKind::Right,
            "full" => JoinKind::Full,
            "semi" => JoinKind::Semi,
            "anti" => JoinKind::Anti,
            other => {
                return Err(PyValueError::new_err(format!(
                    "unknown how={other:?}: use \"inner\", \"left\", \"right\", \"full\", \"semi\" or \"anti\""
                )));
            }
        };
        let join = Join::new(kind, on).buckets(buckets);
        Ok(of(if broadcast_right { join.broadcast_right() } else { join }))
    }

    /// Several sources, each with its own exchange.
    #[staticmethod]
    fn union(by: &NativeExchange) -> Self {
        of(Union::by(by.exchange.clone())).calling(by.function.as_ref())
    }

    /// The same in rounds; `partial`: without copies that have ended; `rows`: a round is this many rows of each copy
    /// instead of a message; `slices`: a round is a slice of event time, given as the column's number, the start, the
    /// length, and by how much rows may be out of order, in microseconds.
    #[pyo3(signature = (partial, rows=None, slices=None))]
    fn by_rounds(
        &self,
        partial: bool,
        rows: Option<NonZeroU64>,
        slices: Option<(usize, i64, NonZeroU64, u64)>,
    ) -> Self {
        let end = if partial { RoundEnd::Partial } else { RoundEnd::Strict };
        let slices = slices.map(|(column, start_us, length_us, out_of_order_us)| {
            RoundUnit::Time(TimeSlices { column, start_us, length_us, out_of_order_us: Some(out_of_order_us) })
        });
        let unit = slices.or(rows.map(RoundUnit::Rows)).unwrap_or_default();
        of(Rounds::new(self.exchange.clone(), end).of(unit)).calling(self.function.as_ref())
    }

    fn describe(&self) -> String {
        self.exchange.describe()
    }
}

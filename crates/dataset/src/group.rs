//! The first half of a group-by with one key of whole numbers, dates or times: what a partition's rows of each key amount to.
//!
//! With many keys each row's group is somewhere else in memory. A table that holds the keys itself costs one cache miss for a row,
//! and as the hashes of a whole batch are known before the first is looked up, places are asked for some rows before their turn
//! (software prefetching). Everything else is DataFusion's: the accumulators, the second half, groups by other keys.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray, RecordBatch, downcast_primitive,
};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowNativeType, DataType, SchemaRef};

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, aggregate_expressions};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, InputOrderMode, PlanProperties, SendableRecordBatchStream,
    replace_children_if_necessary,
};
use futures::{StreamExt, stream};
use tidemill_dataflow::prefetch;

/// Does what an [`AggregateExec`] would do.
pub(crate) struct GroupExec {
    aggregate: Arc<dyn ExecutionPlan>,
    metrics: ExecutionPlanMetricsSet,
}

impl GroupExec {
    pub(crate) fn instead_of(node: &Arc<dyn ExecutionPlan>) -> Option<Self> {
        let aggregate = node.downcast_ref::<AggregateExec>()?;
        let [(key, _)] = aggregate.group_expr().expr() else { return None };
        let is_plain = *aggregate.mode() == AggregateMode::Partial
            && *aggregate.input_order_mode() == InputOrderMode::Linear
            && aggregate.group_expr().is_single()
            && aggregate.limit_options().is_none()
            && aggregate.aggr_expr().iter().all(|each| each.groups_accumulator_supported());
        let is_number = is_number(&key.data_type(&aggregate.input().schema()).ok()?);
        (is_plain && is_number).then(|| GroupExec { aggregate: Arc::clone(node), metrics: Default::default() })
    }

    fn aggregate(&self) -> &AggregateExec {
        self.aggregate.downcast_ref().expect("made of one")
    }
}

/// Whether values of a type are the same when their bits are, of which there are at most 64.
fn is_number(data_type: &DataType) -> bool {
    let is_date = data_type.is_temporal() && !matches!(data_type, DataType::Interval(_));
    data_type.is_integer() || is_date
}

impl fmt::Debug for GroupExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupExec").field("aggregate", &self.aggregate).finish_non_exhaustive()
    }
}

impl DisplayAs for GroupExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GroupExec, as ")?;
        self.aggregate().fmt_as(t, f)
    }
}

impl ExecutionPlan for GroupExec {
    fn name(&self) -> &'static str {
        "GroupExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.aggregate.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.aggregate.children()
    }

    fn apply_expressions(
        &self,
        see: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.aggregate.apply_expressions(see)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let aggregate = replace_children_if_necessary(Arc::clone(&self.aggregate), children)?;
        // Over an input in the order of its keys, DataFusion does better.
        Ok(match GroupExec::instead_of(&aggregate) {
            Some(group) => Arc::new(group),
            None => aggregate,
        })
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let aggregate = self.aggregate();
        let input = aggregate.input().execute(partition, Arc::clone(&context))?;
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let memory = MemoryConsumer::new(format!("group-by[{partition}]")).with_can_spill(true);
        let grouping = Grouping::new(aggregate, &context, memory.register(context.memory_pool()), metrics)?;
        let batches = stream::try_unfold((grouping, input), |(mut grouping, mut input)| async move {
            loop {
                if let Some(batch) = grouping.ready.pop_front() {
                    return Ok(Some((batch, (grouping, input))));
                }
                if grouping.is_over {
                    return Ok(None);
                }
                match input.next().await {
                    Some(batch) => grouping.take(&batch?)?,
                    None => {
                        grouping.emit()?;
                        grouping.is_over = true;
                    }
                }
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// A million keys at random look as if every row had its own for some hundred thousand rows, and to look one up costs little.
const PROBE_ROWS_MIN: usize = 1 << 20;

/// One partition under way.
struct Grouping {
    schema: SchemaRef,
    key: Arc<dyn PhysicalExpr>,
    functions: Vec<Function>,
    groups: Groups,
    /// The group of each row of a batch; kept for its memory.
    indices: Vec<usize>,
    rows: usize,
    /// When nearly every row has a key of its own, rows are handed on as they are: after so many rows, with so many groups to a row.
    probe: (usize, f64),
    skips: bool,
    batch_rows: usize,
    memory: MemoryReservation,
    metrics: BaselineMetrics,
    ready: VecDeque<RecordBatch>,
    is_over: bool,
}

/// An aggregate function.
struct Function {
    arguments: Vec<Arc<dyn PhysicalExpr>>,
    filter: Option<Arc<dyn PhysicalExpr>>,
    accumulator: Box<dyn GroupsAccumulator>,
}

impl Function {
    fn values(&self, batch: &RecordBatch) -> Result<(Vec<ArrayRef>, Option<BooleanArray>)> {
        let evaluate = |expr: &Arc<dyn PhysicalExpr>| expr.evaluate(batch)?.into_array(batch.num_rows());
        let arguments = self.arguments.iter().map(evaluate).collect::<Result<_>>()?;
        let filter =
            self.filter.as_ref().map(|filter| Ok::<_, DataFusionError>(evaluate(filter)?.as_boolean().clone()));
        Ok((arguments, filter.transpose()?))
    }
}

impl Grouping {
    fn new(
        aggregate: &AggregateExec,
        context: &TaskContext,
        memory: MemoryReservation,
        metrics: BaselineMetrics,
    ) -> Result<Self> {
        let arguments = aggregate_expressions(aggregate.aggr_expr(), aggregate.mode(), 1)?;
        let functions = aggregate.aggr_expr().iter().zip(arguments).zip(aggregate.filter_expr());
        let function = |((function, arguments), filter): ((&Arc<_>, _), &Option<_>)| {
            let function: &Arc<datafusion::physical_expr::aggregate::AggregateFunctionExpr> = function;
            Ok(Function { arguments, filter: filter.clone(), accumulator: function.create_groups_accumulator()? })
        };
        let options = &context.session_config().options().execution;
        Ok(Grouping {
            schema: aggregate.schema(),
            key: Arc::clone(&aggregate.group_expr().expr()[0].0),
            functions: functions.map(function).collect::<Result<_>>()?,
            groups: Groups::default(),
            indices: Vec::new(),
            rows: 0,
            probe: (
                options.skip_partial_aggregation_probe_rows_threshold.max(PROBE_ROWS_MIN),
                options.skip_partial_aggregation_probe_ratio_threshold,
            ),
            skips: false,
            batch_rows: context.session_config().batch_size(),
            memory,
            metrics,
            ready: VecDeque::new(),
            is_over: false,
        })
    }

    fn take(&mut self, batch: &RecordBatch) -> Result<()> {
        let busy = self.metrics.elapsed_compute().clone();
        let _timed = busy.timer();
        let keys = self.key.evaluate(batch)?.into_array(batch.num_rows())?;
        let values = self.functions.iter().map(|each| each.values(batch)).collect::<Result<Vec<_>>>()?;
        if self.skips {
            let mut columns = vec![keys];
            for (function, (arguments, filter)) in self.functions.iter().zip(&values) {
                columns.extend(function.accumulator.convert_to_state(arguments, filter.as_ref())?);
            }
            return self.give(columns);
        }
        self.groups.assign(&keys, &mut self.indices);
        for (function, (arguments, filter)) in self.functions.iter_mut().zip(&values) {
            let count = self.groups.count();
            function.accumulator.update_batch(arguments, &self.indices, filter.as_ref(), count)?;
        }
        let before = self.rows;
        self.rows += batch.num_rows();
        let (probe_rows, ratio) = self.probe;
        if before < probe_rows && self.rows >= probe_rows && self.groups.count() as f64 > ratio * self.rows as f64 {
            self.skips = true;
            return self.emit();
        }
        let bytes = self.groups.bytes() + self.functions.iter().map(|each| each.accumulator.size()).sum::<usize>();
        match self.memory.try_resize(bytes) {
            // What there is goes on to the second half, which spills.
            Err(DataFusionError::ResourcesExhausted(_)) if self.groups.count() > 0 => self.emit(),
            resized => resized,
        }
    }

    /// Gives the states of all groups there are, and begins anew.
    fn emit(&mut self) -> Result<()> {
        if self.groups.count() > 0 {
            let mut columns = vec![self.groups.take(self.schema.field(0).data_type())];
            for function in &mut self.functions {
                columns.extend(function.accumulator.state(EmitTo::All)?);
            }
            self.give(columns)?;
        }
        self.memory.free();
        Ok(())
    }

    fn give(&mut self, columns: Vec<ArrayRef>) -> Result<()> {
        let rows = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        self.metrics.record_output(rows.num_rows());
        let starts = (0..rows.num_rows()).step_by(self.batch_rows);
        self.ready.extend(starts.map(|at| rows.slice(at, self.batch_rows.min(rows.num_rows() - at))));
        Ok(())
    }
}

/// Groups by their keys, numbered in the order in which they were first seen.
#[derive(Default)]
struct Groups {
    /// As many as a power of two, at least twice as many as there are groups; none before the first row.
    slots: Vec<Slot>,
    /// The bits of each group's key.
    keys: Vec<u64>,
    /// The group whose key is null.
    null: Option<usize>,
    /// Of a batch; kept for their memory.
    bits: Vec<u64>,
}

#[derive(Clone, Copy)]
struct Slot {
    key: u64,
    /// `EMPTY`, or the number of the key's group.
    group: u64,
}

const EMPTY: u64 = u64::MAX;
const SLOTS_MIN: usize = 1024;
/// Between looks at whether there are slots enough: each row may have a key of its own.
const STRETCH_ROWS: usize = 512;
/// A slot is asked for so many rows before it is looked at.
const AHEAD: usize = 24;

impl Groups {
    fn count(&self) -> usize {
        self.keys.len()
    }

    fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>() + (self.keys.capacity() + self.bits.capacity()) * size_of::<u64>()
    }

    /// Leaves the group of each key in `indices`.
    fn assign(&mut self, keys: &ArrayRef, indices: &mut Vec<usize>) {
        indices.clear();
        let mut bits = std::mem::take(&mut self.bits);
        bits_of(keys, &mut bits);
        let nulls = keys.nulls().filter(|nulls| nulls.null_count() > 0);
        for from in (0..bits.len()).step_by(STRETCH_ROWS) {
            let to = bits.len().min(from + STRETCH_ROWS);
            self.make_room(to - from);
            for at in from..to {
                if let Some(&ahead) = bits.get(at + AHEAD) {
                    prefetch(&self.slots[place(ahead, self.slots.len())]);
                }
                let is_null = nulls.is_some_and(|nulls| nulls.is_null(at));
                indices.push(if is_null { self.null_group() } else { self.group(bits[at]) });
            }
        }
        self.bits = bits;
    }

    fn null_group(&mut self) -> usize {
        *self.null.get_or_insert_with(|| {
            self.keys.push(0);
            self.keys.len() - 1
        })
    }

    #[inline]
    fn group(&mut self, key: u64) -> usize {
        let last = self.slots.len() - 1;
        let mut at = place(key, self.slots.len());
        loop {
            let slot = &mut self.slots[at];
            if slot.group == EMPTY {
                *slot = Slot { key, group: self.keys.len() as u64 };
                self.keys.push(key);
                return self.keys.len() - 1;
            }
            if slot.key == key {
                return slot.group as usize;
            }
            at = (at + 1) & last;
        }
    }

    /// Makes slots for so many groups more, of which half may be in use.
    fn make_room(&mut self, more: usize) {
        let slots = (2 * (self.keys.len() + more)).next_power_of_two().max(SLOTS_MIN);
        if slots <= self.slots.len() {
            return;
        }
        self.slots = vec![Slot { key: 0, group: EMPTY }; slots];
        for (group, &key) in self.keys.iter().enumerate().filter(|(group, _)| Some(*group) != self.null) {
            if let Some(&ahead) = self.keys.get(group + AHEAD) {
                prefetch(&self.slots[place(ahead, slots)]);
            }
            let mut at = place(key, slots);
            while self.slots[at].group != EMPTY {
                at = (at + 1) & (slots - 1);
            }
            self.slots[at] = Slot { key, group: group as u64 };
        }
    }

    /// The keys of all groups, as a column; there are no groups then.
    fn take(&mut self, data_type: &DataType) -> ArrayRef {
        let Groups { keys, null, .. } = std::mem::take(self);
        let nulls = null.map(|null| NullBuffer::from_iter((0..keys.len()).map(|group| group != null)));
        fn array<T: ArrowPrimitiveType>(keys: &[u64], nulls: Option<NullBuffer>, data_type: &DataType) -> ArrayRef {
            let values: ScalarBuffer<T::Native> = keys.iter().map(|&key| T::Native::usize_as(key as usize)).collect();
            Arc::new(PrimitiveArray::<T>::new(values, nulls).with_data_type(data_type.clone()))
        }
        macro_rules! array_of {
            ($t:ty) => {
                array::<$t>(&keys, nulls, data_type)
            };
        }
        downcast_primitive! {
            data_type => (array_of),
            other => unreachable!("{other} is no number")
        }
    }
}

/// The slot where a key belongs.
#[inline]
fn place(key: u64, slots: usize) -> usize {
    // Both halves of a product with an odd number of no pattern: each bit of the key moves all of them.
    let product = u128::from(key ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
    (product as u64 ^ (product >> 64) as u64) as usize & (slots - 1)
}

/// The bits of each value, those of a null being any.
fn bits_of(keys: &ArrayRef, bits: &mut Vec<u64>) {
    bits.clear();
    macro_rules! bits_of {
        ($t:ty) => {
            bits.extend(keys.as_primitive::<$t>().values().iter().map(|value| value.as_usize() as u64))
        };
    }
    downcast_primitive! {
        keys.data_type() => (bits_of),
        other => unreachable!("{other} is no number")
    }
}

// Conversions of whole numbers by way of `usize` keep their bits.
const _: () = assert!(usize::BITS == 64);

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow::array::{Int16Array, Int64Array, TimestampMicrosecondArray, UInt64Array};
    use arrow::datatypes::Int64Type;

    use super::*;

    fn numbered(batches: &[ArrayRef]) -> (Vec<usize>, ArrayRef) {
        let (mut groups, mut indices, mut all) = (Groups::default(), Vec::new(), Vec::new());
        for keys in batches {
            groups.assign(keys, &mut indices);
            all.extend_from_slice(&indices);
        }
        let count = groups.count();
        let keys = groups.take(batches[0].data_type());
        assert_eq!((keys.len(), groups.count()), (count, 0));
        (all, keys)
    }

    /// Keys that share a slot, grow the table or are null must not meet in a group, nor be in two: against a map, over many sizes,
    /// numbers of keys and places of the bits that differ.
    #[test]
    fn equals_a_map() {
        let mut state = 1_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..120 {
            let (batches, keys, shift, nulls) = (1 + next(4), 1 + next(6000), next(64) as u32, round % 2 == 0);
            let batch = |next: &mut dyn FnMut(u64) -> u64| -> Vec<Option<i64>> {
                let rows = 1 + next(3000);
                let key = |_| (!nulls || next(10) > 0).then(|| (next(keys) as i64).rotate_left(shift));
                (0..rows).map(key).collect()
            };
            let batches: Vec<Vec<Option<i64>>> = (0..batches).map(|_| batch(&mut next)).collect();
            let arrays: Vec<ArrayRef> =
                batches.iter().map(|keys| Arc::new(Int64Array::from(keys.clone())) as ArrayRef).collect();
            let (found, keys) = numbered(&arrays);
            let mut seen: HashMap<Option<i64>, usize> = HashMap::new();
            for (row, group) in batches.concat().iter().zip(found) {
                let count = seen.len();
                assert_eq!(*seen.entry(*row).or_insert(count), group, "round {round}");
            }
            let keys = keys.as_primitive::<Int64Type>();
            assert_eq!(keys.len(), seen.len());
            keys.iter().enumerate().for_each(|(group, key)| assert_eq!(seen[&key], group, "round {round}"));
        }
    }

    /// A type whose values lose bits, or its unit, on the way through the table would come out with other keys.
    #[test]
    fn keys_of_all_types_come_back() {
        let times = TimestampMicrosecondArray::from(vec![-1, i64::MIN, i64::MAX, 0]).with_timezone("Europe/Berlin");
        let arrays: [ArrayRef; 3] = [
            Arc::new(Int16Array::from(vec![Some(-1), Some(i16::MIN), None, Some(i16::MAX)])),
            Arc::new(UInt64Array::from(vec![0, u64::MAX, 1 << 63, 1])),
            Arc::new(times),
        ];
        for array in arrays {
            let (indices, keys) = numbered(&[Arc::clone(&array), Arc::clone(&array)]);
            assert_eq!(indices, [0, 1, 2, 3, 0, 1, 2, 3]);
            assert_eq!(keys.as_ref(), array.as_ref());
        }
    }
}

//! A table of groups and their partial aggregates: DataFusion's group values and accumulators, with rows of partial
//! results (*states*) as input and output. The contents of windows, the data between workers and checkpoints all
//! consist of such rows.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::{GroupsAccumulatorAdapter, PhysicalExpr};
use datafusion::physical_plan::aggregates::group_values::GroupValues;
use tidemill_dataset::extend::group_values;

/// The aggregates of each group; the same for a query on all workers.
pub(crate) struct GroupAggregation {
    pub keys: Vec<Arc<dyn PhysicalExpr>>,
    pub key_schema: SchemaRef,
    pub functions: Vec<Arc<AggregateFunctionExpr>>,
    pub filters: Vec<Option<Arc<dyn PhysicalExpr>>>,
    /// Keys, followed by the states of each function.
    pub state_schema: SchemaRef,
    /// The number of state columns of each function.
    pub widths: Vec<usize>,
}

/// The values of a batch that go into a table.
pub(crate) struct AggregateArguments {
    pub keys: Vec<ArrayRef>,
    /// By function.
    pub values: Vec<Vec<ArrayRef>>,
    pub filters: Vec<Option<BooleanArray>>,
}

impl AggregateArguments {
    /// The values of some rows.
    pub(crate) fn take(&self, rows: &UInt32Array) -> Result<Self> {
        let of = |column: &ArrayRef| Ok(take(column, rows, None)?);
        Ok(AggregateArguments {
            keys: self.keys.iter().map(of).collect::<Result<_>>()?,
            values: self
                .values
                .iter()
                .map(|values| values.iter().map(of).collect::<Result<_>>())
                .collect::<Result<_>>()?,
            filters: self
                .filters
                .iter()
                .map(|filter| {
                    filter.as_ref().map(|filter| Ok(take(filter, rows, None)?.as_boolean().clone())).transpose()
                })
                .collect::<Result<_>>()?,
        })
    }
}

impl GroupAggregation {
    pub(crate) fn new(
        keys: Vec<(Arc<dyn PhysicalExpr>, String)>,
        functions: Vec<Arc<AggregateFunctionExpr>>,
        filters: Vec<Option<Arc<dyn PhysicalExpr>>>,
        input: &SchemaRef,
    ) -> Result<Self> {
        let field = |(expr, name): &(Arc<dyn PhysicalExpr>, String)| -> Result<Field> {
            Ok(Field::new(name, expr.data_type(input)?, true))
        };
        let key_fields = keys.iter().map(field).collect::<Result<Vec<_>>>()?;
        let mut fields = key_fields.clone();
        let mut widths = Vec::new();
        for (at, function) in functions.iter().enumerate() {
            let states = function.state_fields()?;
            widths.push(states.len());
            // Each name is prefixed: two functions of one column may have states with the same name.
            fields.extend(
                states.iter().map(|field| {
                    field.as_ref().clone().with_name(format!("{at} {}", field.name())).with_nullable(true)
                }),
            );
        }
        Ok(GroupAggregation {
            keys: keys.into_iter().map(|(expr, _)| expr).collect(),
            key_schema: Arc::new(Schema::new(key_fields)),
            functions,
            filters,
            state_schema: Arc::new(Schema::new(fields)),
            widths,
        })
    }

    /// The names of the key columns.
    pub(crate) fn key_names(&self) -> Vec<String> {
        self.key_schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    /// The number of each row's key.
    pub(crate) fn number(&self, keys: &[ArrayRef], rows: usize) -> Result<Vec<usize>> {
        let mut of_key = Vec::new();
        if keys.is_empty() {
            of_key.resize(rows, 0);
        } else {
            group_values(&self.key_schema)?.intern(keys, &mut of_key)?;
        }
        Ok(of_key)
    }

    /// Evaluates the arguments for a batch.
    pub(crate) fn arguments(&self, batch: &RecordBatch) -> Result<AggregateArguments> {
        let array = |expr: &Arc<dyn PhysicalExpr>| expr.evaluate(batch)?.into_array(batch.num_rows());
        let values = |function: &Arc<AggregateFunctionExpr>| {
            let ordered = function.order_bys().iter().map(|by| Arc::clone(&by.expr));
            function.expressions().into_iter().chain(ordered).map(|expr| array(&expr)).collect::<Result<Vec<_>>>()
        };
        let filter = |filter: &Option<Arc<dyn PhysicalExpr>>| {
            filter.as_ref().map(|expr| Ok(array(expr)?.as_boolean().clone())).transpose()
        };
        Ok(AggregateArguments {
            keys: self.keys.iter().map(array).collect::<Result<_>>()?,
            values: self.functions.iter().map(values).collect::<Result<_>>()?,
            filters: self.filters.iter().map(filter).collect::<Result<_>>()?,
        })
    }

    /// The functions after aggregating rows. `of` is the group of each row, and `count` the number of groups.
    pub(crate) fn updated(&self, rows: &AggregateArguments, of: &[usize], count: usize) -> Result<Functions> {
        let mut functions = accumulators(self)?;
        for ((function, values), filter) in functions.iter_mut().zip(&rows.values).zip(&rows.filters) {
            function.update_batch(values, of, filter.as_ref(), count)?;
        }
        Ok(functions)
    }

    /// The functions after merging columns of states. `of` is the group of each row, and `count` the number of groups.
    pub(crate) fn merged(&self, states: &[ArrayRef], of: &[usize], count: usize) -> Result<Functions> {
        let mut functions = accumulators(self)?;
        let mut at = 0;
        for (function, width) in functions.iter_mut().zip(&self.widths) {
            function.merge_batch(&states[at..at + width], of, count)?;
            at += width;
        }
        Ok(functions)
    }
}

/// The functions of an aggregation, with their states by group.
pub(crate) type Functions = Vec<Box<dyn GroupsAccumulator>>;

/// The functions without any rows.
pub(crate) fn accumulators(of: &GroupAggregation) -> Result<Functions> {
    let function = |function: &Arc<AggregateFunctionExpr>| -> Result<Box<dyn GroupsAccumulator>> {
        if function.groups_accumulator_supported() {
            return function.create_groups_accumulator();
        }
        let function = Arc::clone(function);
        Ok(Box::new(GroupsAccumulatorAdapter::new(move || function.create_accumulator())))
    };
    of.functions.iter().map(function).collect()
}

/// A table of groups and their partial aggregates.
pub(crate) struct GroupStates {
    of: Arc<GroupAggregation>,
    /// `None` without keys: all rows are in one group.
    keys: Option<Box<dyn GroupValues>>,
    functions: Vec<Box<dyn GroupsAccumulator>>,
    count: usize,
    /// The group of each row of the last batch; a field so that its memory is reused.
    groups: Vec<usize>,
}

impl GroupStates {
    pub(crate) fn new(of: &Arc<GroupAggregation>) -> Result<Self> {
        let keyed = !of.keys.is_empty();
        let keys = keyed.then(|| group_values(&of.key_schema)).transpose()?;
        let functions = accumulators(of)?;
        Ok(GroupStates { of: Arc::clone(of), keys, functions, count: 0, groups: Vec::new() })
    }

    /// The number of groups.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// The group of each row that was added last.
    pub(crate) fn last(&self) -> &[usize] {
        &self.groups
    }

    /// Approximate bytes of the table.
    pub(crate) fn bytes(&self) -> usize {
        let keys = self.keys.as_ref().map_or(0, |keys| keys.size());
        keys + self.functions.iter().map(|function| function.size()).sum::<usize>()
    }

    fn intern(&mut self, keys: &[ArrayRef], rows: usize) -> Result<()> {
        match &mut self.keys {
            Some(values) => {
                values.intern(keys, &mut self.groups)?;
                self.count = values.len();
            }
            None => {
                self.groups.clear();
                self.groups.resize(rows, 0);
                self.count = 1;
            }
        }
        Ok(())
    }

    /// Adds rows.
    pub(crate) fn update(&mut self, rows: &AggregateArguments, count: usize) -> Result<()> {
        self.intern(&rows.keys, count)?;
        for ((function, values), filter) in self.functions.iter_mut().zip(&rows.values).zip(&rows.filters) {
            function.update_batch(values, &self.groups, filter.as_ref(), self.count)?;
        }
        Ok(())
    }

    /// Adds partial results.
    pub(crate) fn merge(&mut self, states: &RecordBatch) -> Result<()> {
        let keys = self.of.keys.len();
        self.intern(&states.columns()[..keys], states.num_rows())?;
        let mut at = keys;
        let of = Arc::clone(&self.of);
        for (function, width) in self.functions.iter_mut().zip(&of.widths) {
            function.merge_batch(&states.columns()[at..at + width], &self.groups, self.count)?;
            at += width;
        }
        Ok(())
    }

    /// All partial results. The table is empty afterwards, and keeps its capacity.
    pub(crate) fn take_states(&mut self) -> Result<RecordBatch> {
        let rows = std::mem::take(&mut self.count);
        let mut columns = self.take_keys(rows)?;
        if let Some(keys) = &mut self.keys {
            keys.clear_shrink(rows);
        }
        for function in &mut self.functions {
            columns.extend(function.state(EmitTo::All)?);
        }
        batch(&self.of.state_schema, columns, rows)
    }

    /// The keys and the results of each function. The table is empty afterwards.
    pub(crate) fn take_results(&mut self) -> Result<(Vec<ArrayRef>, Vec<ArrayRef>, usize)> {
        let rows = std::mem::take(&mut self.count);
        let keys = self.take_keys(rows)?;
        let results =
            self.functions.iter_mut().map(|function| function.evaluate(EmitTo::All)).collect::<Result<_>>()?;
        Ok((keys, results, rows))
    }

    fn take_keys(&mut self, rows: usize) -> Result<Vec<ArrayRef>> {
        let keys = match &mut self.keys {
            Some(keys) => keys.emit(EmitTo::All)?,
            None => Vec::new(),
        };
        match keys.iter().find(|column| column.len() != rows) {
            Some(column) => Err(DataFusionError::Internal(format!("{} keys of {rows} groups", column.len()))),
            None => Ok(keys),
        }
    }
}

/// A batch with this schema, including the number of rows in case there are no columns.
pub(crate) fn batch(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(SchemaRef::clone(schema), columns, &options)?)
}

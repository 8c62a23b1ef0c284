//! Joins of two streams on equal keys. Each side's rows are kept, and meet those of the other as they come (a
//! *symmetric hash join*). A condition that bounds the time between partners, such as `b.at <= a.at + '1 hour'`,
//! determines how long a row can still match. After that, the row is discarded; if it has not matched and the join
//! keeps such rows, it is emitted then. A [time to live](ttl) is such a condition, too.
//!
//! Source: Wilschut and Apers, "Dataflow query execution in a parallel main-memory environment" (1991); of bounds from
//! conditions: Golab and Özsu, "Processing sliding window multi-joins in continuous queries over data streams" (2003).

mod bounds;
mod task;
mod ttl;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{JoinSide, JoinType, NullEquality};
use datafusion::physical_expr::{PhysicalExpr, conjunction_opt, split_conjunction};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;

use tidemill_dataflow::checkpoint::StateSchema;
use tidemill_dataset::DataSetError;

pub(crate) use task::JoinTask;

use self::bounds::{bounds, told};
use crate::rows::keyed::KeyedRows;
use crate::rows::late_rows::LateColumns;
use crate::state::state_layout::StateLayout;
use crate::time::times::{ExpiryTime, StreamTimes, TimeOf};

/// Left or right.
type Side = usize;

/// The rows that a join emits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JoinOutput {
    /// Pairs, and rows without a partner from these sides.
    Pairs { alone: [bool; 2] },
    /// Rows of a side that have a partner.
    With(Side),
    /// Rows of a side that have no partner.
    Without(Side),
}

/// A further condition on pairs with equal keys.
struct JoinCondition {
    expr: Arc<dyn PhysicalExpr>,
    columns: Vec<(Side, usize)>,
    schema: SchemaRef,
}

/// A join; the same for a query on all workers.
pub(crate) struct StreamJoin {
    gives: JoinOutput,
    pub sides: [Arc<KeyedRows>; 2],
    until: [ExpiryTime; 2],
    null_equal: bool,
    condition: Option<JoinCondition>,
    output: SchemaRef,
    columns: Vec<(Side, usize)>,
    /// The schemas of the sides, before keys were added.
    rows: [SchemaRef; 2],
    kind: String,
    described: String,
}

impl StreamJoin {
    /// The join of a plan, and the time columns of its rows.
    ///
    /// # Errors
    /// `Unsupported` if rows without a partner are wanted and nothing tells when a row has none.
    pub(crate) fn new(join: &HashJoinExec, times: [&StreamTimes; 2]) -> Result<(Self, StreamTimes), DataSetError> {
        let gives = match join.join_type() {
            JoinType::Inner => JoinOutput::Pairs { alone: [false, false] },
            JoinType::Left => JoinOutput::Pairs { alone: [true, false] },
            JoinType::Right => JoinOutput::Pairs { alone: [false, true] },
            JoinType::Full => JoinOutput::Pairs { alone: [true, true] },
            JoinType::LeftSemi => JoinOutput::With(0),
            JoinType::RightSemi => JoinOutput::With(1),
            JoinType::LeftAnti if !join.null_aware => JoinOutput::Without(0),
            JoinType::RightAnti if !join.null_aware => JoinOutput::Without(1),
            other => {
                return Err(DataSetError::Unsupported(format!("on streams: a {other} join, or NOT IN with nulls")));
            }
        };
        let schemas = [join.left().schema(), join.right().schema()];
        let mut condition = join.filter().map(|filter| JoinCondition {
            expr: Arc::clone(filter.expression()),
            columns: filter.column_indices().iter().map(|of| (side(of.side), of.index)).collect(),
            schema: Arc::clone(filter.schema()),
        });
        if let Some(some) =
            condition.take_if(|condition| split_conjunction(&condition.expr).iter().any(|part| LateColumns::is(part)))
        {
            // This term is no longer needed: its columns are in the input now.
            let left = split_conjunction(&some.expr).into_iter().filter(|part| !LateColumns::is(part)).cloned();
            condition = conjunction_opt(left.collect::<Vec<_>>()).map(|expr| JoinCondition { expr, ..some });
        }
        let of_ttl = condition.as_mut().map_or(Ok(Vec::new()), |condition| ttl::bind(condition, &schemas, times))?;
        let mut bounds = bounds(join, condition.as_ref());
        bounds.extend(of_ttl);
        let mut until = [ExpiryTime::default(), ExpiryTime::default()];
        for bound in &bounds {
            let (here, there) = (bound.side, 1 - bound.side);
            if let Some(behind) = times[here].behind(&bound.lesser, &schemas[here]) {
                until[there].0.push((Arc::clone(&bound.greater), behind.saturating_add(bound.more)));
            }
        }
        let unbounded = |side: Side| until[side].0.is_empty() && !(times[0].untimed && times[1].untimed);
        if let Some(side) = (0..2).find(|&side| gives.waits(side) && unbounded(side)) {
            return Err(DataSetError::Unsupported(format!(
                "on streams, which do not end: a {} join gives rows of the {} side that have no match, but nothing \
                 says when that is known; set how long to wait with ttl=, or bound the time between matches, for \
                 example where=col(\"right_time\") <= col(\"left_time\") + timedelta(hours=1), on columns that carry \
                 the streams' event time",
                join.join_type(),
                ["left", "right"][side],
            )));
        }
        let told = told(&bounds, &schemas, times, gives);
        let null_equal = join.null_equality() == NullEquality::NullEqualsNull;
        let keyed = |side: Side| {
            let keys = join.on().iter().map(|on| Arc::clone([&on.0, &on.1][side])).collect();
            let bounded = until.iter().any(|until| !until.0.is_empty());
            let time = times[side].places.first().filter(|_| bounded).cloned();
            KeyedRows::new(&schemas[side], keys, !null_equal && !gives.waits(side), time).map(Arc::new)
        };
        let all = |side: Side| (0..schemas[side].fields().len()).map(move |column| (side, column));
        let columns: Vec<(Side, usize)> = match gives {
            JoinOutput::Pairs { .. } => all(0).chain(all(1)).collect(),
            JoinOutput::With(side) | JoinOutput::Without(side) => all(side).collect(),
        };
        let columns: Vec<_> = match &join.projection {
            Some(chosen) => chosen.iter().map(|&column| columns[column]).collect(),
            None => columns,
        };
        let places = columns.iter().enumerate().flat_map(|(at, &(side, column))| {
            let of = told[side].iter().filter(move |of| of.place.column == column);
            of.map(move |of| {
                let mut of = of.clone();
                of.place.column = at;
                of
            })
        });
        let places: Vec<TimeOf> = places.collect();
        let untimed = times[0].untimed && times[1].untimed;
        let lost = !untimed && told.iter().all(Vec::is_empty);
        let sides = [keyed(0)?, keyed(1)?];
        let fields = |side: &Arc<KeyedRows>| {
            side.schema.fields().iter().map(|field| field.data_type().to_string()).collect::<Vec<_>>().join(", ")
        };
        let described =
            format!("a {} join of rows ({}) with ({})", join.join_type(), fields(&sides[0]), fields(&sides[1]));
        let join = StreamJoin {
            gives,
            sides,
            until,
            null_equal,
            condition,
            output: join.schema(),
            columns,
            rows: schemas,
            kind: join.join_type().to_string(),
            described,
        };
        Ok((join, StreamTimes { places, untimed, lost }))
    }

    /// Describes how long rows are stored.
    pub(crate) fn detail(&self) -> String {
        let side = |side: Side| match self.until[side].0.as_slice() {
            [] => "for ever".to_owned(),
            until => until
                .iter()
                .map(|(expr, more)| format!("until {expr} + {} s", *more as f64 / 1e6))
                .collect::<Vec<_>>()
                .join(" or "),
        };
        format!("{}; left kept {}, right {}", self.described, side(0), side(1))
    }

    /// Whether rows expire.
    fn forgets(&self) -> bool {
        !matches!(self.gives, JoinOutput::Pairs { .. }) || self.until.iter().any(|until| !until.0.is_empty())
    }

    /// Whether the join tracks which rows of a side have found a partner.
    fn flagged(&self, side: Side) -> bool {
        self.gives.waits(side) || self.gives == JoinOutput::With(side)
    }

    /// The task's state.
    pub(crate) fn state(&self) -> StateSchema {
        let fields = (0..2).flat_map(|side| self.layout(side).fields().collect::<Vec<_>>());
        StateSchema::new(format!("rows of a {} join", self.kind), fields.collect())
    }

    /// The layout of a side's rows in saved tables.
    fn layout(&self, side: Side) -> StateLayout {
        self.sides[side].layout(&self.rows[side], ["left ", "right "][side])
    }

    /// The saved schema of a side's rows; for flagged sides, with whether each row has found a partner, and its number.
    fn saved_schema(&self, side: Side) -> SchemaRef {
        let schema = &self.sides[side].schema;
        if !self.flagged(side) {
            return Arc::clone(schema);
        }
        let more = [Field::new("met", DataType::Boolean, false), Field::new("number", DataType::UInt32, false)];
        Arc::new(Schema::new(schema.fields().iter().cloned().chain(more.map(Arc::new)).collect::<Vec<_>>()))
    }
}

impl JoinOutput {
    /// Whether rows of a side without a partner are emitted once this is certain.
    fn waits(self, side: Side) -> bool {
        match self {
            JoinOutput::Pairs { alone } => alone[side],
            JoinOutput::With(_) => false,
            JoinOutput::Without(of) => of == side,
        }
    }
}

fn side(of: JoinSide) -> Side {
    match of {
        JoinSide::Right => 1,
        _ => 0,
    }
}

//! Functions over a window's frame that DataFusion supports only for other frames, or without a filter.
//!
//! | function                                 | in DataFusion                                           | here                          |
//! |------------------------------------------|---------------------------------------------------------|-------------------------------|
//! | `first_value`, `last_value`, `nth_value` | windows: no filter; aggregates: no sliding frames       | a queue of the frame's values |
//! | `bool_or`, `bool_and`                    | no sliding frames                                       | counts of true and false      |
//!
//! A frame *slides* if its first row moves: rows leave it in the order in which they came. Any other function that
//! cannot remove rows is an error of the plan ([`CheckFrames`]).

use std::collections::VecDeque;
use std::mem::{size_of, size_of_val};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{filter, is_not_null};
use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{ScalarValue, internal_err, plan_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawWindowExpr};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, ReversedUDAF, Signature, Volatility, WindowFrame,
    WindowFunctionDefinition,
};
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::window::{SlidingAggregateWindowExpr, WindowExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};

use crate::error::DataSetError;

const FIRST: &str = "first_value";
const LAST: &str = "last_value";
const NTH: &str = "nth_value";
const ANY: &str = "bool_or";
const ALL: &str = "bool_and";

/// The function that computes values over a frame, of the rows that pass the filter if there is one.
///
/// # Errors
/// `Plan` for a filter on a function that does not support it.
pub(crate) fn of_frame(
    fun: WindowFunctionDefinition,
    has_filter: bool,
    frame: &WindowFrame,
) -> Result<WindowFunctionDefinition> {
    let is_aggregate = matches!(fun, WindowFunctionDefinition::AggregateUDF(_));
    let slides = !frame.is_ever_expanding();
    let ours = match fun.name() {
        FIRST if has_filter || (is_aggregate && slides) => FIRST,
        LAST if has_filter || (is_aggregate && slides) => LAST,
        NTH if has_filter || (is_aggregate && slides) => NTH,
        ANY if slides => ANY,
        ALL if slides => ALL,
        name if has_filter && !is_aggregate => {
            return plan_err!(
                "{name} does not support FILTER (where=): only aggregates, first_value, last_value and nth_value do; \
                 count(*) with one counts the rows of a window for which it holds, or filter the rows first"
            );
        }
        _ => return Ok(fun),
    };
    Ok(WindowFunctionDefinition::AggregateUDF(Arc::new(AggregateUDF::from(OfFrame::new(ours)))))
}

/// The same for SQL, whose functions are chosen while it is read.
#[derive(Debug)]
pub(crate) struct SqlFrames;

impl ExprPlanner for SqlFrames {
    fn plan_window(&self, mut expr: RawWindowExpr) -> Result<PlannerResult<RawWindowExpr>> {
        expr.func_def = of_frame(expr.func_def, expr.filter.is_some(), &expr.window_frame)?;
        Ok(PlannerResult::Original(expr))
    }
}

/// One of these functions, by its name.
#[derive(Debug, PartialEq, Eq, Hash)]
struct OfFrame {
    name: &'static str,
    signature: Signature,
}

impl OfFrame {
    fn new(name: &'static str) -> Self {
        let signature = match name {
            NTH => Signature::any(2, Volatility::Immutable),
            ANY | ALL => Signature::exact(vec![DataType::Boolean], Volatility::Immutable),
            _ => Signature::any(1, Volatility::Immutable),
        };
        OfFrame { name, signature }
    }

    fn made(&self, args: &AccumulatorArgs, slides: bool) -> Result<Box<dyn Accumulator>> {
        let place = match self.name {
            ANY | ALL => return Ok(Box::new(BooleanFrame { is_any: self.name == ANY, counts: [0; 2] })),
            FIRST => 1,
            LAST => -1,
            _ => place(args)?,
        };
        Ok(Box::new(FrameValues {
            place: if args.is_reversed { place.saturating_neg() } else { place },
            slides,
            ignore_nulls: args.ignore_nulls,
            queue: VecDeque::new(),
            none: ScalarValue::try_from(args.return_field.data_type())?,
        }))
    }
}

/// The position for `nth_value`.
fn place(args: &AccumulatorArgs) -> Result<i64> {
    let given = args.exprs.get(1).and_then(|expr| expr.downcast_ref::<Literal>()).map(Literal::value);
    match given.filter(|value| value.data_type().is_integer()).map(|value| value.cast_to(&DataType::Int64)) {
        Some(Ok(ScalarValue::Int64(Some(place)))) => Ok(place),
        _ => plan_err!("nth_value takes a constant row number: from 1, or -1 from the end"),
    }
}

impl AggregateUDFImpl for OfFrame {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, of: &[DataType]) -> Result<DataType> {
        Ok(of[0].clone())
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.made(&args, false)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.made(&args, true)
    }

    /// Rows in reverse order: the accumulator is told, and counts from the other end.
    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Reversed(Arc::new(AggregateUDF::from(OfFrame::new(self.name))))
    }
}

/// The values of the rows in a frame, in order.
#[derive(Debug)]
struct FrameValues {
    /// The requested position: from 1 on, or from -1 back.
    place: i64,
    /// Whether values leave; if not, only values that may still be needed are kept.
    slides: bool,
    ignore_nulls: bool,
    queue: VecDeque<ScalarValue>,
    /// The result if there are not enough rows.
    none: ScalarValue,
}

impl FrameValues {
    fn counted(&self, values: &ArrayRef) -> Result<ArrayRef> {
        match self.ignore_nulls {
            true => Ok(filter(values, &is_not_null(values)?)?),
            false => Ok(Arc::clone(values)),
        }
    }
}

impl Accumulator for FrameValues {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = self.counted(&values[0])?;
        let wanted = self.place.unsigned_abs() as usize;
        let taken = match (self.slides, self.place > 0) {
            (true, _) => 0..values.len(),
            (false, true) => 0..values.len().min(wanted.saturating_sub(self.queue.len())),
            (false, false) => values.len().saturating_sub(wanted)..values.len(),
        };
        for at in taken {
            self.queue.push_back(ScalarValue::try_from_array(&values, at)?);
        }
        if !self.slides {
            self.queue.drain(..self.queue.len().saturating_sub(wanted));
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let left = self.counted(&values[0])?.len();
        self.queue.drain(..left);
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let far = self.place.unsigned_abs() as usize;
        let at = if self.place > 0 { Some(far - 1) } else { self.queue.len().checked_sub(far) };
        Ok(at.and_then(|at| self.queue.get(at)).unwrap_or(&self.none).clone())
    }

    fn size(&self) -> usize {
        size_of_val(self) - size_of::<VecDeque<ScalarValue>>() + ScalarValue::size_of_vec_deque(&self.queue)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        internal_err!("a frame has no partial result")
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        internal_err!("a frame has no partial result")
    }
}

/// Whether any or all rows in a frame are true; nulls are neither true nor false.
#[derive(Debug)]
struct BooleanFrame {
    is_any: bool,
    /// Number of rows that are false, and of rows that are true.
    counts: [usize; 2],
}

impl BooleanFrame {
    fn counts(values: &[ArrayRef]) -> [usize; 2] {
        let values = values[0].as_boolean();
        [values.false_count(), values.true_count()]
    }
}

impl Accumulator for BooleanFrame {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.counts.iter_mut().zip(Self::counts(values)).for_each(|(count, more)| *count += more);
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.counts.iter_mut().zip(Self::counts(values)).for_each(|(count, less)| *count -= less);
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let holds = match self.counts {
            [0, 0] => None,
            [falses, trues] => Some(if self.is_any { trues > 0 } else { falses == 0 }),
        };
        Ok(ScalarValue::Boolean(holds))
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        internal_err!("a frame has no partial result")
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        internal_err!("a frame has no partial result")
    }
}

/// The rule that rejects aggregates over sliding frames if they cannot remove rows. Their own error, in the middle of a
/// query, is about DataFusion's internals.
#[derive(Debug)]
pub(crate) struct CheckFrames;

impl PhysicalOptimizerRule for CheckFrames {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.apply(|node| {
            let whole = node.downcast_ref::<WindowAggExec>().map(WindowAggExec::window_expr);
            let functions =
                whole.or_else(|| node.downcast_ref::<BoundedWindowAggExec>().map(|step| step.window_expr()));
            functions.unwrap_or_default().iter().try_for_each(check)?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(plan)
    }

    fn name(&self) -> &str {
        "check_frames"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn check(function: &Arc<dyn WindowExpr>) -> Result<()> {
    let Some(sliding) = function.as_any().downcast_ref::<SlidingAggregateWindowExpr>() else { return Ok(()) };
    let aggregate = sliding.get_aggregate_expr();
    match aggregate.create_sliding_accumulator() {
        Ok(_) => Ok(()),
        Err(DataFusionError::NotImplemented(_)) => Err(DataSetError::Unsupported(format!(
            "{} of a frame whose start moves from row to row, such as rows=(-2, 0): it cannot drop the rows that \
             leave. Start the frame at the first row, rows=(None, 0), or compute it from a list of the frame's \
             values: to_list in Python, array_agg in SQL",
            aggregate.fun().name()
        ))
        .into()),
        Err(other) => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{BooleanArray, Int64Array};

    use super::*;

    /// Rows that come and go in runs of all lengths, and frames that become empty: the value must be that of the rows
    /// in the frame, with nulls counted or not.
    #[test]
    fn values_are_those_of_the_frame() {
        let mut state = 5_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for (place, slides, ignore_nulls) in [1, -1, 3, -2, 0, i64::MIN]
            .into_iter()
            .flat_map(|place| [true, false].map(|slides| (place, slides)))
            .flat_map(|(place, slides)| [true, false].map(|nulls| (place, slides, nulls)))
        {
            let none = ScalarValue::Int64(None);
            let mut values = FrameValues { place, slides, ignore_nulls, queue: VecDeque::new(), none };
            let mut frame: Vec<Option<i64>> = Vec::new();
            for _ in 0..300 {
                let come: Vec<_> = (0..next(5)).map(|_| (next(4) > 0).then(|| next(1000) as i64)).collect();
                let go = if slides { next(7).min(frame.len() as u64) as usize } else { 0 };
                let gone: Vec<_> = frame.drain(..go).collect();
                frame.extend(&come);
                let column = |rows: Vec<Option<i64>>| -> [ArrayRef; 1] { [Arc::new(Int64Array::from(rows))] };
                values.update_batch(&column(come)).unwrap();
                values.retract_batch(&column(gone)).unwrap();
                let rows: Vec<_> = frame.iter().filter(|row| row.is_some() || !ignore_nulls).collect();
                let at = match place > 0 {
                    true => Some(place as usize - 1),
                    false => rows.len().checked_sub(place.unsigned_abs() as usize),
                };
                let wanted = at.and_then(|at| rows.get(at)).copied().copied().flatten();
                assert_eq!(values.evaluate().unwrap(), ScalarValue::Int64(wanted), "{place} {slides} {ignore_nulls}");
                assert!(slides || values.queue.len() as u64 <= place.unsigned_abs());
            }
        }
    }

    #[test]
    fn truths_are_those_of_the_frame() {
        let rows = [Some(true), None, Some(false), Some(true), Some(true), None, None, Some(false), None];
        for (is_any, length) in [(true, 1), (false, 1), (true, 2), (false, 3)] {
            let mut truths = BooleanFrame { is_any, counts: [0; 2] };
            for at in 0..rows.len() {
                let column = |at: usize| -> [ArrayRef; 1] { [Arc::new(BooleanArray::from(vec![rows[at]]))] };
                truths.update_batch(&column(at)).unwrap();
                if at >= length {
                    truths.retract_batch(&column(at - length)).unwrap();
                }
                let frame: Vec<bool> = rows[(at + 1).saturating_sub(length)..=at].iter().flatten().copied().collect();
                let holds = if is_any { frame.contains(&true) } else { !frame.contains(&false) };
                let wanted = ScalarValue::Boolean((!frame.is_empty()).then_some(holds));
                assert_eq!(truths.evaluate().unwrap(), wanted, "{is_any} {length} {at}");
            }
        }
    }
}

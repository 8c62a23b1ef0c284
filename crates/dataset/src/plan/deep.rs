//! Limits on the depth of plans and expressions. Many functions of DataFusion recurse for each level, and a stack
//! overflow ends the process without an error. So anything deeper than our threads' stacks allow is rejected when it is
//! built.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan};

use crate::error::{DataSetError, Result};

/// Maximum depth of an expression.
const EXPR_DEPTH_MAX: usize = 2_000;
/// Maximum depth of a plan, in steps.
const PLAN_DEPTH_MAX: usize = 2_000;
/// Maximum number of steps in a plan. Steps that occur several times count each time, because they are planned each
/// time.
const PLAN_STEPS_MAX: usize = 200_000;

/// Checks that an expression is not too deep. Its parts were checked when they were made, so it can be walked.
///
/// # Errors
/// `Query`, with the remedy.
pub fn check_expr(expr: &Expr) -> Result<()> {
    let mut left = vec![(expr, 1)];
    while let Some((expr, depth)) = left.pop() {
        if depth > EXPR_DEPTH_MAX {
            return Err(DataSetError::Query(format!(
                "the expression nests more than {EXPR_DEPTH_MAX} operations; use is_in instead of many |, or compute \
                 it in parts, with with_columns"
            )));
        }
        // Without recursion, because this determines whether recursion is safe.
        let walked = expr.apply_children(|child| {
            left.push((child, depth + 1));
            Ok(TreeNodeRecursion::Continue)
        });
        debug_assert!(walked.is_ok(), "looking at an expression cannot fail");
    }
    Ok(())
}

/// Checks that a plan is neither too deep nor too large, and the same for the expressions of its last step or, with
/// `whole`, of all steps.
///
/// # Errors
/// `Query`, with the remedy.
pub(crate) fn check_plan(plan: &LogicalPlan, whole: bool) -> Result<()> {
    let (mut left, mut steps) = (vec![(plan, 1)], 0);
    while let Some((plan, depth)) = left.pop() {
        steps += 1;
        if whole || depth == 1 {
            check_step(plan)?;
        }
        let what = match () {
            () if depth > PLAN_DEPTH_MAX => format!("{PLAN_DEPTH_MAX} nested steps"),
            () if steps > PLAN_STEPS_MAX => format!("{PLAN_STEPS_MAX} steps"),
            () => {
                left.extend(plan.inputs().into_iter().map(|input| (input, depth + 1)));
                continue;
            }
        };
        return Err(DataSetError::Query(format!(
            "the query has more than {what}; save its result so far with collect or in a file, and continue from there"
        )));
    }
    Ok(())
}

fn check_step(step: &LogicalPlan) -> Result<()> {
    let mut checked = Ok(());
    let walked = step.apply_expressions(|expr| {
        if checked.is_ok() {
            checked = check_expr(expr);
        }
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walked.is_ok(), "looking at a step cannot fail");
    checked
}

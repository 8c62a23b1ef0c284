//! Expressions. The arguments of methods were already converted to expressions by `tidemill.dataset`.

use pyo3::prelude::*;
use tidemill_dataset::datafusion::logical_expr::expr::{InList, Sort};
use tidemill_dataset::datafusion::logical_expr::{Expr, lit};
use tidemill_dataset::{check_expr, expr, types};

use super::{raised, value};

/// An expression of columns, literals and functions.
#[pyclass(frozen, module = "tidemill._tidemill")]
pub struct NativeExpr(pub Expr);

/// A sort key: expression, whether descending, whether nulls come last.
pub type SortKey<'py> = (Bound<'py, NativeExpr>, bool, bool);

pub fn exprs(from: &[Bound<'_, NativeExpr>]) -> Vec<Expr> {
    from.iter().map(|expr| expr.get().0.clone()).collect()
}

pub fn sorts(from: &[SortKey<'_>]) -> Vec<Sort> {
    from.iter()
        .map(|(expr, descending, nulls_last)| Sort::new(expr.get().0.clone(), !descending, !nulls_last))
        .collect()
}

#[pymethods]
impl NativeExpr {
    /// Raises if it is nested too deeply for the stack.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        check_expr(&self.0).map_err(|error| raised(py, &error))
    }

    #[staticmethod]
    fn column(name: &str) -> Self {
        NativeExpr(expr::column(name))
    }

    #[staticmethod]
    fn literal(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(NativeExpr(lit(value::scalar(value)?)))
    }

    #[staticmethod]
    fn case(
        branches: Vec<(Bound<'_, NativeExpr>, Bound<'_, NativeExpr>)>,
        otherwise: Option<Bound<'_, NativeExpr>>,
    ) -> Self {
        let branches = branches.iter().map(|(when, then)| (when.get().0.clone(), then.get().0.clone())).collect();
        NativeExpr(expr::case(branches, otherwise.map(|expr| expr.get().0.clone())))
    }

    fn binary(&self, py: Python<'_>, op: &str, right: &Bound<'_, NativeExpr>) -> PyResult<Self> {
        let made = expr::binary(op, self.0.clone(), right.get().0.clone());
        made.map(NativeExpr).map_err(|error| raised(py, &error))
    }

    fn negative(&self) -> Self {
        NativeExpr(Expr::Negative(Box::new(self.0.clone())))
    }

    fn invert(&self) -> Self {
        NativeExpr(Expr::Not(Box::new(self.0.clone())))
    }

    fn is_null(&self) -> Self {
        NativeExpr(self.0.clone().is_null())
    }

    fn is_in(&self, values: Vec<Bound<'_, NativeExpr>>) -> Self {
        NativeExpr(Expr::InList(InList::new(Box::new(self.0.clone()), exprs(&values), false)))
    }

    fn like(&self, pattern: &Bound<'_, NativeExpr>, ignore_case: bool) -> Self {
        let (own, pattern) = (self.0.clone(), pattern.get().0.clone());
        NativeExpr(if ignore_case { own.ilike(pattern) } else { own.like(pattern) })
    }

    #[pyo3(signature = (name, strict = true))]
    fn cast(&self, py: Python<'_>, name: &str, strict: bool) -> PyResult<Self> {
        use tidemill_dataset::datafusion::logical_expr::{cast, try_cast};
        let to = types::parse(name).map_err(|error| raised(py, &error))?;
        let own = self.0.clone();
        Ok(NativeExpr(if strict { cast(own, to) } else { try_cast(own, to) }))
    }

    fn alias(&self, name: &str) -> Self {
        NativeExpr(self.0.clone().unalias().alias(name))
    }

    #[getter]
    fn output_name(&self) -> String {
        expr::output_name(&self.0)
    }

    #[pyo3(signature = (partition_by, order_by, rows = None))]
    fn over(
        &self,
        py: Python<'_>,
        partition_by: Vec<Bound<'_, NativeExpr>>,
        order_by: Vec<SortKey<'_>>,
        rows: Option<expr::RowRange>,
    ) -> PyResult<Self> {
        let made = expr::over(self.0.clone(), &exprs(&partition_by), &sorts(&order_by), rows);
        made.map(NativeExpr).map_err(|error| raised(py, &error))
    }

    fn __str__(&self) -> String {
        self.0.human_display().to_string()
    }
}

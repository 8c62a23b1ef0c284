//! Joins of two DataSets on equal columns.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, JoinType};
use datafusion::dataframe::DataFrame;
use datafusion::functions::expr_fn::coalesce;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder};

use crate::dataset::{DataSet, refuse_aggregates};
use crate::error::{DataSetError, Result};
use crate::plan::expr::column;
use crate::plan::markers::JoinTtl;
use crate::plan::operators::with_operators;

/// Which rows and columns a join outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinHow {
    /// Pairs of rows with equal keys.
    Inner,
    /// The same, and unmatched left rows.
    Left,
    /// The same, and unmatched right rows.
    Right,
    /// All rows of both sides.
    Full,
    /// Left rows that have a match, once each.
    Semi,
    /// Left rows without a match.
    Anti,
    /// Every pair of rows, without keys.
    Cross,
}

impl JoinHow {
    /// Parses the name that users write.
    ///
    /// # Errors
    /// `Query`, listing the valid names.
    pub fn parse(word: &str) -> Result<Self> {
        Ok(match word {
            "inner" => JoinHow::Inner,
            "left" => JoinHow::Left,
            "right" => JoinHow::Right,
            "full" | "outer" => JoinHow::Full,
            "semi" => JoinHow::Semi,
            "anti" => JoinHow::Anti,
            "cross" => JoinHow::Cross,
            other => {
                return Err(DataSetError::Query(format!(
                    "unknown join {other:?}; use inner, left, right, full, semi, anti or cross"
                )));
            }
        })
    }

    fn join_type(self) -> JoinType {
        match self {
            JoinHow::Inner | JoinHow::Cross => JoinType::Inner,
            JoinHow::Left => JoinType::Left,
            JoinHow::Right => JoinType::Right,
            JoinHow::Full => JoinType::Full,
            JoinHow::Semi => JoinType::LeftSemi,
            JoinHow::Anti => JoinType::LeftAnti,
        }
    }
}

impl DataSet {
    /// Joins on equal keys, given as pairs (left, right). A null does not equal anything.
    ///
    /// The result has the left columns, then the right ones without the keys; a right column whose name also exists on
    /// the left gets `suffix`. In rows without a left match, the keys are the right ones. `Semi` and `Anti` have only
    /// the left columns. Rows match only if `condition` is also true; in it, columns have their names in the result.
    /// Rows of two streams are remembered for `ttl` microseconds of their time, so matching rows are less than that
    /// apart; without it, forever.
    ///
    /// # Errors
    /// `UnknownColumn`; `Query` for keys of different kinds, for a name that is a duplicate even with `suffix`, and for
    /// a `ttl` that is not positive or does not apply because the inputs are not streams.
    pub fn join(
        &self,
        right: &DataSet,
        on: &[(String, String)],
        how: JoinHow,
        suffix: &str,
        condition: Option<Expr>,
        ttl: Option<i64>,
    ) -> Result<DataSet> {
        if ttl.is_some_and(|ttl| ttl <= 0 || !self.is_stream() || !right.is_stream()) {
            return Err(DataSetError::Query("join takes a positive ttl, for rows of two streams".into()));
        }
        if on.is_empty() != (how == JoinHow::Cross) {
            return Err(DataSetError::Query("every join except a cross join needs columns to join on".into()));
        }
        let (left_schema, right_schema) = (self.schema()?, right.schema()?);
        for (left_key, right_key) in on {
            let find = |schema: &arrow::datatypes::Schema, name: &str| match schema.field_with_name(name) {
                Ok(field) => Ok(field.data_type().clone()),
                Err(_) => {
                    let names = schema.fields().iter().map(|field| field.name().clone()).collect();
                    Err(DataSetError::unknown_column(name, names))
                }
            };
            check_kinds(left_key, &find(&left_schema, left_key)?, right_key, &find(&right_schema, right_key)?)?;
        }
        let renamed: Vec<Expr> =
            right_schema.fields().iter().map(|field| column(field.name()).alias(inner_name(field.name()))).collect();
        let (_, right_plan) = right.frame().clone().select(renamed)?.into_parts();
        let (state, left_plan) = self.frame().clone().into_parts();
        let left_keys: Vec<Column> = on.iter().map(|(left, _)| Column::from_name(left)).collect();
        let right_keys: Vec<Column> = on.iter().map(|(_, right)| Column::from_name(inner_name(right))).collect();
        let shown = |name: &str| match left_schema.field_with_name(name) {
            Ok(_) => format!("{name}{suffix}"),
            Err(_) => name.to_owned(),
        };
        let of_pairs = |expr: Expr| {
            refuse_aggregates([&expr])?;
            let renamed = expr.transform(|node| {
                let Expr::Column(of) = &node else { return Ok(Transformed::no(node)) };
                let of_right = right_schema.fields().iter().find(|field| shown(field.name()) == of.name);
                Ok(match of_right.filter(|_| left_schema.field_with_name(&of.name).is_err()) {
                    Some(field) => Transformed::yes(column(&inner_name(field.name()))),
                    None => Transformed::no(node),
                })
            })?;
            let renamed = renamed.data;
            let wrong = renamed
                .column_refs()
                .into_iter()
                .find(|of| left_schema.field_with_name(&of.name).is_err() && !of.name.ends_with(END));
            match wrong {
                Some(of) => {
                    let own = left_schema.fields().iter().map(|field| field.name().clone());
                    let names = own.chain(right_schema.fields().iter().map(|field| shown(field.name())));
                    Err(DataSetError::unknown_column(&of.name, names.collect()))
                }
                None => Ok(with_operators(renamed, &left_plan.schema().join(right_plan.schema())?)?.unalias()),
            }
        };
        let condition = condition.map(of_pairs).transpose()?;
        let within = ttl.map(|ttl| {
            let right = right_schema.fields().iter().map(|field| (field, inner_name(field.name())));
            let all = left_schema.fields().iter().map(|field| (field, field.name().clone())).chain(right);
            let times = all.filter(|(field, _)| field.data_type().is_temporal() || field.data_type().is_nested());
            JoinTtl::condition(ttl, times.map(|(_, name)| column(&name)))
        });
        let condition = condition.into_iter().chain(within).reduce(Expr::and);
        let builder = LogicalPlanBuilder::from(left_plan);
        let plan = match how {
            JoinHow::Cross => {
                let pairs = builder.cross_join(right_plan)?;
                condition.into_iter().try_fold(pairs, LogicalPlanBuilder::filter)?
            }
            _ => builder.join(right_plan, how.join_type(), (left_keys, right_keys), condition)?,
        };
        let joined = DataFrame::new(state, plan.build()?);
        if matches!(how, JoinHow::Semi | JoinHow::Anti) {
            return DataSet::new(joined);
        }
        let mut outputs = Vec::new();
        for field in left_schema.fields() {
            let own = column(field.name());
            outputs.push(match on.iter().find(|(left, _)| left == field.name()) {
                Some((_, key)) if how == JoinHow::Right => column(&inner_name(key)).alias(field.name().clone()),
                Some((_, key)) if how == JoinHow::Full => {
                    coalesce(vec![own, column(&inner_name(key))]).alias(field.name().clone())
                }
                _ => own,
            });
        }
        for field in right_schema.fields() {
            let name = field.name();
            if on.iter().any(|(_, key)| key == name) {
                continue;
            }
            outputs.push(column(&inner_name(name)).alias(shown(name)));
        }
        DataSet::new(joined.select(outputs)?)
    }
}

/// The internal name of a right column, which cannot clash with the left columns or those of the result.
fn inner_name(name: &str) -> String {
    format!("{RIGHT}{name}{END}")
}

const RIGHT: &str = "right ";
const END: char = '\u{1f}';

/// The columns of a side under their names before the join.
pub fn with_given_names(side: &SchemaRef) -> SchemaRef {
    let given = |name: &str| name.strip_prefix(RIGHT).and_then(|name| name.strip_suffix(END)).map(str::to_owned);
    let fields = side.fields().iter().map(|field| match given(field.name()) {
        Some(name) => Arc::new(field.as_ref().clone().with_name(name)),
        None => Arc::clone(field),
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// Rejects keys that could only be compared as text: a number and a string are never meant to be equal.
fn check_kinds(left: &str, left_type: &DataType, right: &str, right_type: &DataType) -> Result<()> {
    let kind = |data_type: &DataType| match data_type {
        DataType::Dictionary(_, value) => is_text(value),
        other => is_text(other),
    };
    for (name, data_type) in [(left, left_type), (right, right_type)] {
        if has_union(data_type) {
            return Err(DataSetError::Query(format!(
                "cannot join by {name:?} of type {data_type}: values of unions cannot be compared; cast it first"
            )));
        }
    }
    if kind(left_type) != kind(right_type) && !left_type.is_null() && !right_type.is_null() {
        return Err(DataSetError::Query(format!(
            "cannot join {left:?} of type {left_type} with {right:?} of type {right_type}; cast one of them"
        )));
    }
    Ok(())
}

fn has_union(data_type: &DataType) -> bool {
    match data_type {
        DataType::Union(..) => true,
        DataType::Struct(fields) => fields.iter().any(|field| has_union(field.data_type())),
        DataType::List(of) | DataType::LargeList(of) | DataType::FixedSizeList(of, _) => has_union(of.data_type()),
        _ => false,
    }
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

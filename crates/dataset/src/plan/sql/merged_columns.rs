//! Joins with USING, and NATURAL joins. By the standard, they output one column for each key, with the key of whichever
//! side has the row. DataFusion outputs the left key, which is null for rows that only the right side has. So RIGHT and
//! FULL joins are expanded: USING becomes ON, and the unqualified key becomes `coalesce` of both. In inner and LEFT
//! joins the left key is right, but DataFusion considers its unqualified name ambiguous in WHERE and ON, so it is
//! qualified with the left table there.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, ExcludeSelectItem, Expr, Ident, JoinConstraint, JoinOperator, ObjectName, OrderByKind, Query,
    Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, TableAlias, TableFactor, TableWithJoins, Value,
    VisitMut, VisitorMut, WildcardAdditionalOptions,
};

use super::call;

/// Columns of tables, by the tables' names in a query.
pub(super) type Columns = HashMap<String, Vec<String>>;

/// A table's name in a query, and its columns if they are known.
type Named = (Ident, Option<Vec<String>>);

/// Expands such joins everywhere in a statement.
pub(super) struct WriteOut<'a> {
    columns: &'a Columns,
    /// The names that the WITH clauses of enclosing queries define, with their columns if they are known.
    parts: Vec<Vec<(String, Option<Vec<String>>)>>,
}

impl VisitorMut for WriteOut<'_> {
    type Break = String;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<String> {
        self.parts.push(Vec::new());
        for part in query.with.iter().flat_map(|with| &with.cte_tables) {
            let columns = self.renamed(&part.alias, &part.query);
            self.parts.last_mut().expect("pushed").push((part.alias.name.value.clone(), columns));
        }
        let SetExpr::Select(select) = query.body.as_mut() else { return ControlFlow::Continue(()) };
        let merged = self.joins(select)?;
        if merged.is_empty() {
            return ControlFlow::Continue(());
        }
        // In ORDER BY, a column of the query's result takes precedence.
        let gives = |name: &str| {
            select.projection.iter().any(|item| match item {
                SelectItem::ExprWithAlias { alias, .. } => alias.value == name,
                SelectItem::UnnamedExpr(Expr::Identifier(column)) => column.value == name,
                _ => false,
            })
        };
        let hidden: Vec<_> = merged.iter().filter(|(name, _)| !gives(name)).cloned().collect();
        if let Some(order) = &mut query.order_by
            && let OrderByKind::Expressions(keys) = &mut order.kind
        {
            for key in keys {
                let _ = key.expr.visit(&mut ReplaceNames { merged: &hidden, tables: self, shadowed: Vec::new() });
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<String> {
        self.parts.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<String> {
        // Set operations have no SELECT of their own. For others nothing is left to do.
        self.joins(select).map_continue(|_| ())
    }
}

impl<'a> WriteOut<'a> {
    pub(super) fn new(columns: &'a Columns) -> Self {
        WriteOut { columns, parts: Vec::new() }
    }

    /// The columns of a named subquery.
    fn renamed(&self, alias: &TableAlias, query: &Query) -> Option<Vec<String>> {
        match alias.columns.as_slice() {
            [] => self.gives(query),
            columns => Some(columns.iter().map(|column| column.name.value.clone()).collect()),
        }
    }

    /// The columns that a query outputs, if its text shows them.
    fn gives(&self, query: &Query) -> Option<Vec<String>> {
        fn of_body(of: &WriteOut<'_>, body: &SetExpr) -> Option<Vec<String>> {
            match body {
                SetExpr::Select(select) => {
                    let mut columns = Vec::new();
                    for item in &select.projection {
                        match item {
                            SelectItem::ExprWithAlias { alias, .. } => columns.push(alias.value.clone()),
                            SelectItem::UnnamedExpr(Expr::CompoundIdentifier(name)) => {
                                columns.push(name.last()?.value.clone());
                            }
                            SelectItem::UnnamedExpr(Expr::Identifier(name)) => columns.push(name.value.clone()),
                            SelectItem::UnnamedExpr(other) => columns.push(other.to_string()),
                            SelectItem::Wildcard(options) if *options == WildcardAdditionalOptions::default() => {
                                for table in &select.from {
                                    for factor in factors(table) {
                                        columns.extend(of.named_table(factor)?.1?);
                                    }
                                }
                            }
                            _ => return None,
                        }
                    }
                    Some(columns)
                }
                SetExpr::Query(query) => of.gives(query),
                SetExpr::SetOperation { left, .. } => of_body(of, left),
                _ => None,
            }
        }
        // Its own names may hide others.
        if query.with.is_some() { None } else { of_body(self, &query.body) }
    }

    /// Qualifies keys of inner and LEFT joins with their table in later clauses: in ON, and in the SELECT, except where
    /// a key names an output column, which keeps that name. Returns what the keys refer to. For DataFusion, a key of
    /// two joins is one of two columns, which it considers ambiguous there, too.
    fn name_keys(&self, select: &mut Select) -> Vec<(String, Expr)> {
        let mut names: Vec<(String, Expr)> = Vec::new();
        for table in &mut select.from {
            if !table.joins.iter().any(|join| is_written_out(&join.join_operator)) {
                self.keys_of(table, &mut names);
            }
        }
        // If it occurs in two lists of joins, it belongs to neither.
        let mut times = HashMap::<String, usize>::new();
        names.iter().for_each(|(name, _)| *times.entry(name.clone()).or_default() += 1);
        names.retain(|(name, _)| times[name] == 1);
        if names.is_empty() {
            return names;
        }
        let merges = select.from.iter_mut().flat_map(|table| &mut table.joins);
        let merges = merges.filter_map(|join| constraint(&mut join.join_operator));
        if merges.filter(|by| matches!(by, JoinConstraint::Using(_) | JoinConstraint::Natural)).count() > 1 {
            for item in &mut select.projection {
                if let SelectItem::UnnamedExpr(Expr::Identifier(key)) = item
                    && let Some((name, column)) = names.iter().find(|(name, _)| *name == key.value)
                {
                    *item = SelectItem::ExprWithAlias { expr: column.clone(), alias: quoted(name) };
                }
            }
        }
        let from = std::mem::take(&mut select.from);
        let (bare, mut rest): (Vec<_>, Vec<_>) = std::mem::take(&mut select.projection)
            .into_iter()
            .enumerate()
            .partition(|(_, item)| matches!(item, SelectItem::UnnamedExpr(Expr::Identifier(_))));
        let mut replace = ReplaceNames { merged: &names, tables: self, shadowed: Vec::new() };
        for (_, item) in &mut rest {
            let _ = item.visit(&mut replace);
        }
        let _ = select.visit(&mut replace);
        rest.extend(bare);
        rest.sort_by_key(|(at, _)| *at);
        select.projection = rest.into_iter().map(|(_, item)| item).collect();
        select.from = from;
        names
    }

    /// The keys of such joins and what they refer to, if it is known which table has them.
    fn keys_of(&self, table: &mut TableWithJoins, names: &mut Vec<(String, Expr)>) {
        let mut own: Vec<(String, Expr)> = Vec::new();
        let Some(first) = self.named_table(&table.relation) else { return };
        let mut left = vec![first];
        for join in &mut table.joins {
            if let Some(JoinConstraint::On(on)) = constraint(&mut join.join_operator) {
                let _ = on.visit(&mut ReplaceNames { merged: &own, tables: self, shadowed: Vec::new() });
            }
            let Some(right) = self.named_table(&join.relation) else { break };
            // If this is unknown, DataFusion reports an error if the name is used.
            if let ControlFlow::Continue(Some(keys)) = self.keys(&join.join_operator, &left, &right) {
                for key in keys {
                    if own.iter().all(|(name, _)| *name != key)
                        && let ControlFlow::Continue(at) = owner(&left, &key)
                    {
                        let column = qualified(&left[at].0, &key);
                        own.push((key, column));
                    }
                }
            }
            left.push(right);
        }
        names.extend(own);
    }

    /// Whether the tables of a query may have a column with this name.
    fn may_have(&self, query: &Query, name: &str) -> bool {
        fn any(of: &WriteOut<'_>, body: &SetExpr, name: &str, parts: &[&str]) -> bool {
            let factor = |factor: &TableFactor| match of.named_table(factor) {
                Some((_, Some(columns))) => {
                    let is_part =
                        matches!(factor, TableFactor::Table { name, .. } if parts.contains(&name.to_string().as_str()));
                    is_part || columns.iter().any(|column| column == name)
                }
                _ => true,
            };
            match body {
                SetExpr::Select(select) => select.from.iter().flat_map(factors).any(factor),
                SetExpr::Query(query) => of.may_have(query, name),
                SetExpr::SetOperation { left, right, .. } => any(of, left, name, parts) || any(of, right, name, parts),
                SetExpr::Values(_) => false,
                _ => true,
            }
        }
        let parts = query.with.iter().flat_map(|with| &with.cte_tables);
        let parts: Vec<&str> = parts.map(|part| part.alias.name.value.as_str()).collect();
        any(self, &query.body, name, &parts)
    }

    /// Expands the joins of a SELECT, and returns what the names of all keys refer to.
    fn joins(&self, select: &mut Select) -> ControlFlow<String, Vec<(String, Expr)>> {
        let mut merged: Vec<(String, Expr)> = Vec::new();
        // The expansion of `*`: each table, and which of its columns are keys.
        let mut all: Vec<WildcardTable> = Vec::new();
        let mut names = self.name_keys(select);
        for table in &mut select.from {
            if !table.joins.iter().any(|join| is_written_out(&join.join_operator)) {
                all.extend(
                    factors(table).map(|factor| WildcardTable { table: named(factor).cloned(), keys: Vec::new() }),
                );
                continue;
            }
            let first = all.len();
            let mut left = vec![self.factor(&table.relation)?];
            all.push(WildcardTable { table: Some(left[0].0.clone()), keys: Vec::new() });
            for join in &mut table.joins {
                let right = self.factor(&join.relation)?;
                all.push(WildcardTable { table: Some(right.0.clone()), keys: Vec::new() });
                if let Some(names) = self.keys(&join.join_operator, &left, &right)? {
                    let mut conditions = Vec::new();
                    for name in names {
                        let theirs = qualified(&right.0, &name);
                        let known = merged.iter().position(|(merged, _)| *merged == name);
                        let ours = match known {
                            Some(at) => merged[at].1.clone(),
                            None => {
                                let at = owner(&left, &name)?;
                                all[first + at].keys.push(name.clone());
                                qualified(&left[at].0, &name)
                            }
                        };
                        all.last_mut().expect("it has the table").keys.push(name.clone());
                        conditions.push(equal(ours.clone(), theirs.clone()));
                        let column = match &join.join_operator {
                            JoinOperator::Right(_) | JoinOperator::RightOuter(_) => theirs,
                            JoinOperator::FullOuter(_) => call("coalesce", vec![ours, theirs]),
                            _ => ours,
                        };
                        match known {
                            Some(at) => merged[at].1 = column,
                            None => merged.push((name, column)),
                        }
                    }
                    let on = conditions.into_iter().reduce(|left, right| Expr::BinaryOp {
                        left: Box::new(left),
                        op: BinaryOperator::And,
                        right: Box::new(right),
                    });
                    let on = on.unwrap_or_else(|| Expr::value(Value::Boolean(true)));
                    if let Some(by) = constraint(&mut join.join_operator) {
                        *by = JoinConstraint::On(on);
                    }
                }
                left.push(right);
            }
        }
        if !merged.is_empty() {
            self.rename(select, &merged, &all)?;
        }
        names.extend(merged);
        ControlFlow::Continue(names)
    }

    fn factor(&self, factor: &TableFactor) -> ControlFlow<String, Named> {
        match self.named_table(factor) {
            Some(table) => ControlFlow::Continue(table),
            None => ControlFlow::Break(
                "a table beside a RIGHT or FULL JOIN with USING, or a NATURAL one, needs a name; add AS name".into(),
            ),
        }
    }

    /// The same, or `None` for a table without a name.
    fn named_table(&self, factor: &TableFactor) -> Option<Named> {
        let columns = match factor {
            TableFactor::Table { alias: Some(alias), .. } if !alias.columns.is_empty() => {
                Some(alias.columns.iter().map(|column| column.name.value.clone()).collect())
            }
            TableFactor::Table { name, .. } => name.0.last().and_then(|part| part.as_ident()).and_then(|name| {
                let mut parts = self.parts.iter().rev().flat_map(|parts| parts.iter().rev());
                match parts.find(|(part, _)| *part == name.value) {
                    Some((_, columns)) => columns.clone(),
                    None => self.columns.get(&name.value).cloned(),
                }
            }),
            TableFactor::Derived { alias: Some(alias), subquery, .. } => self.renamed(alias, subquery),
            _ => None,
        };
        named(factor).map(|name| (name.clone(), columns))
    }

    /// The names of the columns that a join compares, unless it uses ON.
    fn keys(&self, join: &JoinOperator, left: &[Named], right: &Named) -> ControlFlow<String, Option<Vec<String>>> {
        match constraint(&mut join.clone()) {
            Some(JoinConstraint::Using(names)) => {
                let names = names.iter().filter_map(|name| name.0.last().and_then(|part| part.as_ident()));
                ControlFlow::Continue(Some(names.map(|name| name.value.clone()).collect()))
            }
            Some(JoinConstraint::Natural) => {
                let all: Option<Vec<&Vec<String>>> = left.iter().map(|(_, columns)| columns.as_ref()).collect();
                let (Some(all), Some(theirs)) = (all, &right.1) else {
                    return ControlFlow::Break(
                        "the columns of a NATURAL RIGHT or FULL JOIN are not known here; list them with USING (...)"
                            .into(),
                    );
                };
                let common = theirs.iter().filter(|name| all.iter().any(|columns| columns.contains(name)));
                ControlFlow::Continue(Some(common.cloned().collect()))
            }
            _ => ControlFlow::Continue(None),
        }
    }

    /// Replaces the unqualified names of keys with what they refer to.
    fn rename(&self, select: &mut Select, merged: &[(String, Expr)], all: &[WildcardTable]) -> ControlFlow<String> {
        let mut items = Vec::new();
        for item in std::mem::take(&mut select.projection) {
            match item {
                SelectItem::UnnamedExpr(expr) => {
                    let mut made = expr.clone();
                    let _ = made.visit(&mut ReplaceNames { merged, tables: self, shadowed: Vec::new() });
                    items.push(match (&expr, made == expr) {
                        (_, true) => SelectItem::UnnamedExpr(expr),
                        (Expr::Identifier(name), _) => {
                            SelectItem::ExprWithAlias { expr: made, alias: quoted(&name.value) }
                        }
                        (other, _) => SelectItem::ExprWithAlias { expr: made, alias: quoted(&other.to_string()) },
                    });
                }
                SelectItem::Wildcard(mut options) => {
                    let hidden = match options.opt_exclude.take() {
                        Some(ExcludeSelectItem::Single(name)) => vec![name],
                        Some(ExcludeSelectItem::Multiple(names)) => names,
                        None => Vec::new(),
                    };
                    if !hidden.is_empty() || options.opt_except.is_some() {
                        return ControlFlow::Break(
                            "* with EXCLUDE or EXCEPT cannot stand beside a RIGHT or FULL JOIN with USING; name the columns".into(),
                        );
                    }
                    // Keys come first, once each.
                    items.extend(
                        merged
                            .iter()
                            .map(|(name, expr)| SelectItem::ExprWithAlias { expr: expr.clone(), alias: quoted(name) }),
                    );
                    for shown in all {
                        let Some(table) = &shown.table else {
                            return ControlFlow::Break(
                                "* can only show a table here that has a name; add AS name".into(),
                            );
                        };
                        let keys = shown.keys.iter().map(|key| ObjectName::from(vec![quoted(key)])).collect::<Vec<_>>();
                        let mut options = options.clone();
                        options.opt_exclude = (!keys.is_empty()).then_some(ExcludeSelectItem::Multiple(keys));
                        let kind = SelectItemQualifiedWildcardKind::ObjectName(ObjectName::from(vec![table.clone()]));
                        items.push(SelectItem::QualifiedWildcard(kind, options));
                    }
                }
                other => items.push(other),
            }
        }
        let from = std::mem::take(&mut select.from);
        let _ = select.visit(&mut ReplaceNames { merged, tables: self, shadowed: Vec::new() });
        for item in &mut items {
            if let SelectItem::ExprWithAlias { expr, .. } = item {
                let _ = expr.visit(&mut ReplaceNames { merged, tables: self, shadowed: Vec::new() });
            }
        }
        select.projection = items;
        select.from = from;
        ControlFlow::Continue(())
    }
}

/// A table of a query, for `*`.
struct WildcardTable {
    /// `None` if the query does not name it.
    table: Option<Ident>,
    /// Columns that are join keys, and are output as such.
    keys: Vec<String>,
}

/// The tables of one item in FROM.
fn factors(table: &TableWithJoins) -> impl Iterator<Item = &TableFactor> {
    std::iter::once(&table.relation).chain(table.joins.iter().map(|join| &join.relation))
}

/// The name of a table in a query.
fn named(factor: &TableFactor) -> Option<&Ident> {
    match factor {
        TableFactor::Table { alias: Some(alias), .. } | TableFactor::Derived { alias: Some(alias), .. } => {
            Some(&alias.name)
        }
        TableFactor::Table { name, .. } => name.0.last().and_then(|part| part.as_ident()),
        _ => None,
    }
}

/// Whether a join's merged columns differ from those of its left side.
fn is_written_out(join: &JoinOperator) -> bool {
    match join {
        JoinOperator::Right(by) | JoinOperator::RightOuter(by) | JoinOperator::FullOuter(by) => {
            matches!(by, JoinConstraint::Using(_) | JoinConstraint::Natural)
        }
        _ => false,
    }
}

fn constraint(join: &mut JoinOperator) -> Option<&mut JoinConstraint> {
    match join {
        JoinOperator::Join(by)
        | JoinOperator::Inner(by)
        | JoinOperator::Left(by)
        | JoinOperator::LeftOuter(by)
        | JoinOperator::Right(by)
        | JoinOperator::RightOuter(by)
        | JoinOperator::FullOuter(by) => Some(by),
        _ => None,
    }
}

fn qualified(table: &Ident, column: &str) -> Expr {
    Expr::CompoundIdentifier(vec![table.clone(), Ident::with_quote('"', column)])
}

fn equal(left: Expr, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op: BinaryOperator::Eq, right: Box::new(right) }
}

/// The position of the single table to the left that has a column.
fn owner(left: &[Named], name: &str) -> ControlFlow<String, usize> {
    let may_have = |columns: &Option<Vec<String>>| {
        columns.as_ref().is_none_or(|columns| columns.iter().any(|other| other == name))
    };
    let owners: Vec<usize> = (0..left.len()).filter(|at| may_have(&left[*at].1)).collect();
    match owners.as_slice() {
        [at] => ControlFlow::Continue(*at),
        [] => ControlFlow::Break(format!("USING ({name}): no table to the left of the join has a column {name:?}")),
        _ => ControlFlow::Break(format!(
            "USING ({name}): more than one table to the left may have {name:?}; write ON with the table's name"
        )),
    }
}

fn quoted(name: &str) -> Ident {
    Ident::with_quote('"', name)
}

/// Replaces unqualified names, also in subqueries whose own tables do not have a column with that name.
struct ReplaceNames<'a> {
    merged: &'a [(String, Expr)],
    tables: &'a WriteOut<'a>,
    /// For each enclosing subquery, the names that are or may be its own.
    shadowed: Vec<Vec<String>>,
}

impl VisitorMut for ReplaceNames<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let names = self.merged.iter().map(|(name, _)| name);
        self.shadowed.push(names.filter(|name| self.tables.may_have(query, name)).cloned().collect());
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.shadowed.pop();
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Identifier(name) = expr
            && let Some((_, merged)) = self.merged.iter().find(|(merged, _)| *merged == name.value)
            && !self.shadowed.iter().flatten().any(|shadowed| *shadowed == name.value)
        {
            *expr = merged.clone();
        }
        ControlFlow::Continue(())
    }
}

//! DataSets from SQL, over tables and files.

use std::path::Path;

use datafusion::common::TableReference;
use datafusion::prelude::{SQLOptions, SessionContext};
use tidemill_storage::is_url;

use crate::dataset::DataSet;
use crate::engine::Engine;
use crate::error::Result;
use crate::files::paths::{GLOBS, is_there};
use crate::files::read::read_url;
use crate::plan::deep::check_plan;
use crate::plan::sql;

impl DataSet {
    /// The result of a SQL query over `tables`, with their given names, and over files written as `'path/of.csv'` or
    /// `'s3://bucket/folder/'`.
    ///
    /// # Errors
    /// `Query` if the SQL does not parse or is not a query; `UnknownColumn`.
    pub async fn from_sql(engine: &Engine, query: &str, tables: Vec<(String, DataSet)>) -> Result<Self> {
        // A separate session, because the tables of one query do not concern another.
        let context = engine.session().enable_url_table();
        let columns = tables.iter().map(|(name, table)| (name.clone(), table.names())).collect();
        let statement = sql::parsed(&context.state(), query, &columns)?;
        let known: Vec<String> = tables.iter().map(|(name, _)| name.clone()).collect();
        for (name, table) in tables {
            context.register_table(TableReference::bare(name), table.frame().clone().into_view())?;
        }
        for name in files_in(&context, query, &known) {
            // DataFusion would find a store only if it had been used before, would not skip hidden files, and has its
            // own way of reading JSON numbers and files with different schemas.
            let table = read_url(engine, &name).await?;
            context.register_table(TableReference::bare(name), table.frame().clone().into_view())?;
        }
        let options = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        let plan = context.state().statement_to_plan(statement).await?;
        options.verify_plan(&plan)?;
        check_plan(&plan, true)?;
        DataSet::new(context.execute_logical_plan(sql::corrected(plan)?).await?)
    }
}

/// The URLs, paths and globs that a query uses as tables, except `known` names. Empty if the query does not parse,
/// which is reported later.
fn files_in(context: &SessionContext, query: &str, known: &[String]) -> Vec<String> {
    if !query.contains(['\'', '"']) {
        return Vec::new();
    }
    let state = context.state();
    let dialect = state.config().options().sql_parser.dialect;
    let tables = state
        .sql_to_statement(query, &dialect)
        .and_then(|statement| state.resolve_table_references(&statement))
        .unwrap_or_default();
    let unknown = tables.iter().map(TableReference::table).filter(|&name| known.iter().all(|known| known != name));
    // If access is denied, reading reports that.
    let is_file = |name: &&str| is_url(name) || name.contains(GLOBS) || is_there(Path::new(name)).unwrap_or(true);
    unknown.filter(is_file).map(str::to_owned).collect()
}

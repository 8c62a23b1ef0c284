//! DataSets of SQL, over tables and files.

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
    /// The result of a SQL query over `tables`, by the names given here, and over files named as `'path/of.csv'`
    /// or `'s3://bucket/folder/'`.
    ///
    /// # Errors
    /// `Query` if the SQL does not parse or is not a query; `UnknownColumn`.
    pub async fn from_sql(engine: &Engine, query: &str, tables: Vec<(String, DataSet)>) -> Result<Self> {
        // A session of its own: the tables of one query are no concern of another.
        let context = engine.session().enable_url_table();
        let columns = tables.iter().map(|(name, table)| (name.clone(), table.names())).collect();
        let statement = sql::parsed(&context.state(), query, &columns)?;
        let known: Vec<String> = tables.iter().map(|(name, _)| name.clone()).collect();
        for (name, table) in tables {
            context.register_table(TableReference::bare(name), table.frame().clone().into_view())?;
        }
        for name in files_in(&context, query, &known) {
            // DataFusion would know a store only if it had been read from before, would not heed hidden files, and
            // reads files whose schemas differ, and numbers of JSON, in its own way.
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

/// The URLs, paths and globs that a query names as tables, but what is `known`; none if it does not parse, which is
/// told later.
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
    // Of what may not be looked at, who reads it says so.
    let is_file = |name: &&str| is_url(name) || name.contains(GLOBS) || is_there(Path::new(name)).unwrap_or(true);
    unknown.filter(is_file).map(str::to_owned).collect()
}

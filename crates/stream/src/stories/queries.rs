//! The queries of stories, written as users do, over streams or over the same rows as tables.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use datafusion::logical_expr::{col, lit};
use tidemill_dataflow::stream::source::WatermarkStrategy;
use tidemill_dataset::{DataSet, Engine, JoinHow};

use super::functions::{Says, counts_by_hand};
use crate::{from_stream, table_stream};

const ROWS: i64 = 400;
const KEYS: i64 = 13;
/// The time between two rows, and the maximum by which a row is earlier than one before it.
const STEP_US: i64 = 10_000;
const DISORDER_US: i64 = 50_000;
const HOUR_US: i64 = 3_600_000_000;
const ROWS_PER_BATCH: usize = 7;
/// Enough for what must be in memory, and too little for the rest.
const BUDGET_BYTES: u64 = 64 << 10;
/// A windowed aggregation takes 16 KB even for a few states, in every pane of each copy of its two halves.
const WINDOWS_BUDGET_BYTES: u64 = 2 << 20;

/// The origin of rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    Stream,
    Table,
}

/// The expected rows of a query, besides those of an undisturbed run.
pub(super) enum Expected {
    /// The result of the query over tables.
    OfTable,
    /// The result of another query over tables.
    Sql(&'static str),
    /// There is no query over tables.
    OfCalmRun,
}

/// A query over tables or streams with given names.
type QueryFunction = fn(&dyn Fn(&str) -> DataSet) -> DataSet;

enum Asked {
    Sql(&'static str),
    Function(QueryFunction),
}

/// A query over `rows` (whose times are slightly out of order), `hasty` (the same, without an allowance for that),
/// `hours` (the same, an hour apart instead of ten milliseconds) and `names` (a table). The columns are `ts`, `key`,
/// `n`, which is distinct, and `text`, which has forty bytes and depends on the key.
pub(super) struct Query {
    pub name: &'static str,
    asked: Asked,
    pub expected: Expected,
    /// A row replaces the previous one with the same values in this many leading columns; 0: all rows count.
    pub replaced_by: usize,
    pub budget_bytes: u64,
}

impl Query {
    fn sql(name: &'static str, text: &'static str) -> Self {
        let (expected, budget_bytes) = (Expected::OfTable, BUDGET_BYTES);
        Query { name, asked: Asked::Sql(text), expected, replaced_by: 0, budget_bytes }
    }

    fn function(name: &'static str, function: QueryFunction) -> Self {
        Query { asked: Asked::Function(function), expected: Expected::OfCalmRun, ..Query::sql(name, "") }
    }

    fn expecting(self, sql: &'static str) -> Self {
        Query { expected: Expected::Sql(sql), ..self }
    }

    fn of_calm_run(self) -> Self {
        Query { expected: Expected::OfCalmRun, ..self }
    }

    fn replaced_by(self, columns: usize) -> Self {
        Query { replaced_by: columns, ..self }
    }

    fn budget(self, budget_bytes: u64) -> Self {
        Query { budget_bytes, ..self }
    }

    pub(super) fn of(&self, engine: &Arc<Engine>, rows: Rows) -> DataSet {
        match self.asked {
            Asked::Sql(text) => asked(engine, text, rows),
            Asked::Function(function) => function(&|name| table(engine, name, rows)),
        }
    }

    /// The query over tables that gives the expected rows.
    pub(super) fn of_table(&self, engine: &Arc<Engine>) -> Option<DataSet> {
        match self.expected {
            Expected::OfTable => Some(self.of(engine, Rows::Table)),
            Expected::Sql(text) => Some(asked(engine, text, Rows::Table)),
            Expected::OfCalmRun => None,
        }
    }
}

fn asked(engine: &Arc<Engine>, text: &'static str, rows: Rows) -> DataSet {
    let tables = ["rows", "hasty", "hours", "names"];
    let tables: Vec<(String, DataSet)> =
        tables.into_iter().map(|name| (name.to_owned(), table(engine, name, rows))).collect();
    let of = Arc::clone(engine);
    let made = engine.run(async move { DataSet::from_sql(&of, text, tables).await });
    made.unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn table(engine: &Engine, name: &str, rows: Rows) -> DataSet {
    if name == "names" {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..KEYS + 20));
        let names: ArrayRef =
            Arc::new(StringArray::from_iter_values((0..KEYS + 20).map(|key| format!("name {}", key % 5))));
        let rows = RecordBatch::try_from_iter([("key", keys), ("name", names)]).unwrap();
        return DataSet::from_batches(engine, rows.schema(), &[rows]).unwrap();
    }
    let scale = if name == "hours" { HOUR_US / STEP_US } else { 1 };
    let time = |row: i64| scale * (row * STEP_US + row * 7919 % (DISORDER_US / 1000) * 1000);
    let key = |row: i64| row * row % 997 % KEYS;
    let columns: [(&str, ArrayRef); 4] = [
        ("ts", Arc::new(TimestampMicrosecondArray::from_iter_values((0..ROWS).map(time)))),
        ("key", Arc::new(Int64Array::from_iter_values((0..ROWS).map(key)))),
        ("n", Arc::new(Int64Array::from_iter_values(0..ROWS))),
        ("text", Arc::new(StringArray::from_iter_values((0..ROWS).map(|row| format!("{:40}", key(row)))))),
    ];
    let all = RecordBatch::try_from_iter(columns).unwrap();
    if rows == Rows::Table {
        return DataSet::from_batches(engine, all.schema(), &[all]).unwrap();
    }
    let allowed = if name == "hasty" { 0 } else { (scale * DISORDER_US) as u64 };
    let times = WatermarkStrategy::of("ts").out_of_order(Duration::from_micros(allowed));
    from_stream(engine, table_stream(name, all.schema(), &[all], Some(times), ROWS_PER_BATCH, 0.0)).unwrap()
}

/// Every third row, as the other side of a join.
fn others(rows: &DataSet) -> DataSet {
    let some = rows.filter((col("n") % lit(3_i64)).eq(lit(0_i64))).unwrap();
    some.select(vec![col("key"), col("n").alias("other"), col("ts").alias("then")]).unwrap()
}

fn joined_for_a_time(rows: &DataSet, how: JoinHow) -> DataSet {
    let on = [("key".to_owned(), "key".to_owned())];
    let joined = rows.join(&others(rows), &on, how, "_right", None, Some(100_000)).unwrap();
    let names = joined.names().into_iter().filter(|name| ["n", "other"].contains(&name.as_str()));
    joined.select(names.map(col).collect()).unwrap()
}

/// The expected result of a keyed function, too.
const TUMBLING: &str = "select key, w['end'] as window_end, rows from (select key, tumble(ts, '200 milliseconds') as w, \
                        count(*) as rows from rows group by key, w)";

/// All queries.
pub(super) fn queries() -> Vec<Query> {
    [windows(), other_windows(), early_and_late(), without_windows(), of_windows()].into_iter().flatten().collect()
}

/// Time windows.
fn windows() -> Vec<Query> {
    vec![
        Query::sql("tumbling", TUMBLING).budget(WINDOWS_BUDGET_BYTES),
        Query::sql(
            "tumbling_texts",
            "select text, w['start'] as s, rows, most from (select text, tumble(ts, '300 milliseconds') as w, \
             count(*) as rows, max(text) as most from rows group by text, w)",
        ).budget(WINDOWS_BUDGET_BYTES),
        Query::sql(
            "tumbling_all",
            "select w['start'] as s, rows, total from (select tumble(ts, '100 milliseconds') as w, count(*) as rows, \
             sum(n) as total from rows group by w)",
        ),
        Query::sql(
            "tumbling_lists",
            "select key, w['start'] as s, different, middle from (select key, tumble(ts, '1 second') as w, \
             count(distinct n) as different, median(n) as middle from rows group by key, w)",
        ).budget(WINDOWS_BUDGET_BYTES),
        Query::sql(
            "sliding",
            "select key, w['start'] as s, rows, total from (select key, hop(ts, '100 milliseconds', '400 milliseconds') \
             as w, count(*) as rows, sum(n) as total from rows group by key, w)",
        ).budget(WINDOWS_BUDGET_BYTES)
        .of_calm_run(),
        Query::sql(
            "calendar_days",
            "select key, w['start'] as s, rows from (select key, calendar(ts, '1 day', 'Europe/Berlin') as w, \
             count(*) as rows from hours group by key, w)",
        ).budget(WINDOWS_BUDGET_BYTES),
        Query::sql(
            "calendar_weeks",
            "select key, w['start'] as s, total from (select key, calendar(ts, '1 week', 'UTC') as w, \
             sum(n) as total from hours group by key, w)",
        ).budget(WINDOWS_BUDGET_BYTES),
    ]
}

/// Sessions and count windows.
fn other_windows() -> Vec<Query> {
    vec![
        Query::sql(
            "sessions",
            "select key, w['start'] as s, w['end'] as e, rows, total from (select key, session(ts, '150 milliseconds') \
             as w, count(*) as rows, sum(n) as total from rows group by key, w)",
        )
        .of_calm_run(),
        Query::sql(
            "sessions_of_texts",
            "select text, w['start'] as s, w['end'] as e, most from (select text, session(ts, '90 milliseconds') as w, \
             max(n) as most from rows group by text, w)",
        )
        .of_calm_run(),
        Query::sql(
            "sessions_by_rows",
            "select key, s, e, rows from (select key, w['start'] as s, w['end'] as e, w['final'] as last, rows from \
             (select key, early(late(session(ts, '150 milliseconds'), '1 second'), 2) as w, count(*) as rows from rows \
             group by key, w)) where last",
        )
        .of_calm_run(),
        Query::sql(
            "count_windows",
            "select key, w['start'] as s, rows from (select key, counting(7, 3) as w, count(*) as rows from rows \
             group by key, w)",
        )
        .of_calm_run(),
        Query::sql(
            "count_windows_for_a_time",
            "select key, w['start'] as s, rows from (select key, counting(ts, 6, '1 hour') as w, count(*) as rows from \
             rows group by key, w)",
        )
        .of_calm_run(),
    ]
}

/// Results before and after the end of a window.
fn early_and_late() -> Vec<Query> {
    vec![
        Query::sql(
            "early_by_clock",
            "select key, w['start'] as s, rows, w['final'] as last from (select key, \
             early(tumble(ts, '300 milliseconds'), '20 milliseconds') as w, count(*) as rows from rows group by key, w)",
        ).budget(WINDOWS_BUDGET_BYTES)
        .replaced_by(2),
        Query::sql(
            "early_by_rows",
            "select key, w['start'] as s, rows, w['final'] as last from (select key, \
             early(hop(ts, '200 milliseconds', '800 milliseconds'), 3) as w, count(*) as rows from rows group by key, w)",
        )
        .of_calm_run(),
        Query::sql(
            "early_by_time",
            "select key, w['start'] as s, rows, w['final'] as last from (select key, \
             early_time(tumble(ts, '400 milliseconds'), '100 milliseconds') as w, count(*) as rows from rows \
             group by key, w)",
        ).budget(WINDOWS_BUDGET_BYTES)
        .of_calm_run(),
        Query::sql(
            "late",
            "select key, w['start'] as s, rows, total from (select key, \
             late(tumble(ts, '60 milliseconds'), '10 seconds') as w, count(*) as rows, sum(n) as total from hasty \
             group by key, w)",
        ).budget(WINDOWS_BUDGET_BYTES)
        .replaced_by(2),
    ]
}

/// Distinct rows and pairs.
fn without_windows() -> Vec<Query> {
    vec![
        Query::sql("distinct_seconds", "select distinct key, date_trunc('second', ts) as s from rows"),
        Query::sql("distinct_numbers", "select distinct text, n % 17 as m from rows"),
        Query::sql(
            "distinct_with_table",
            "select distinct key from (select key from rows union all select key + 3 as key from names)",
        ),
        Query::function("distinct_for_a_time", |table| {
            let rows = table("rows").select(vec![col("ts"), col("key"), (col("n") / lit(50_i64)).alias("m")]).unwrap();
            let some = rows.distinct_for(&["key".into(), "m".into()], HOUR_US).unwrap();
            some.select(vec![col("key"), col("m")]).unwrap()
        })
        .expecting("select distinct key, n / 50 as m from rows"),
        Query::sql(
            "pairs",
            "select a.n, b.later from rows a left join (select key, n as later, ts as then from rows where n % 3 = 0) b \
             on a.key = b.key and b.then > a.ts and b.then <= a.ts + interval '100 milliseconds'",
        ),
        Query::sql(
            "pairs_of_texts",
            "select a.n, a.text, b.text as other from rows a join (select key, text, ts as then from rows) b \
             on a.key = b.key and b.then > a.ts and b.then <= a.ts + interval '200 milliseconds'",
        ),
        Query::function("near", |table| joined_for_a_time(&table("rows"), JoinHow::Full)).expecting(
            "select a.n, b.other from rows a full join (select key, n as other, ts as then from rows where n % 3 = 0) b \
             on a.key = b.key and b.then < a.ts + interval '100 milliseconds' and b.then > a.ts - interval '100 milliseconds'",
        ),
        Query::function("near_both", |table| joined_for_a_time(&table("rows"), JoinHow::Inner)).expecting(
            "select a.n, b.other from rows a join (select key, n as other, ts as then from rows where n % 3 = 0) b \
             on a.key = b.key and b.then < a.ts + interval '100 milliseconds' and b.then > a.ts - interval '100 milliseconds'",
        ),
        Query::function("far", |table| joined_for_a_time(&table("rows"), JoinHow::Anti)).of_calm_run(),
    ]
}

/// Queries over windows, and functions of the program.
fn of_windows() -> Vec<Query> {
    vec![
        Query::sql(
            "best",
            "select s, key, rows from (select s, key, rows, row_number() over (partition by s order by rows, key) as \
             place from (select key, w['start'] as s, rows from (select key, tumble(ts, '200 milliseconds') as w, \
             count(*) as rows from rows group by key, w))) where place <= 2",
        ).budget(WINDOWS_BUDGET_BYTES),
        Query::sql(
            "most_of_windows",
            "select s, max(rows) as most, count(*) as keys from (select key, w['start'] as s, rows from (select key, \
             tumble(ts, '200 milliseconds') as w, count(*) as rows from rows group by key, w)) group by s",
        ).budget(WINDOWS_BUDGET_BYTES),
        Query::sql(
            "windows_of_windows",
            "select w['start'] as s, name, total from (select name, tumble(ts, '500 milliseconds') as w, sum(rows) as \
             total from (select key, v['end'] - interval '1 microsecond' as ts, rows from (select key, \
             tumble(ts, '100 milliseconds') as v, count(*) as rows from rows group by key, v)) r join names on \
             r.key = names.key group by name, w)",
        ).budget(2 * WINDOWS_BUDGET_BYTES),
        Query::function("by_hand", |table| counts_by_hand(&table("rows"), 200_000, Says::AtItsEnd, None))
            .expecting(TUMBLING),
        Query::function("by_hand_for_a_time", |table| {
            counts_by_hand(&table("rows"), 200_000, Says::AtItsEnd, Some(HOUR_US))
        })
        .expecting(TUMBLING),
        Query::function("by_clock", |table| counts_by_hand(&table("rows"), 200_000, Says::OfEachRow, None))
            .expecting("select key, date_bin(interval '200 milliseconds', ts, timestamp '1970-01-01') + interval '200 milliseconds' as e, n from rows"),
    ]
}

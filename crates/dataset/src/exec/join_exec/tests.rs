use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, StringViewArray};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::metrics::Count;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::TryStreamExt;

use super::order::in_order;
use crate::actions::ExplainLevel;
use crate::dataset::DataSet;
use crate::engine::{Engine, EngineConfig};
use crate::exec::progress::ReadProgress;
use crate::join::JoinHow;
use crate::plan::expr::{binary, column};

fn engine(memory_bytes: Option<usize>, threads: usize) -> Engine {
    Engine::new(&EngineConfig { threads, workers: 1, memory_bytes, spill_dir: None }).unwrap()
}

/// Rows with keys computed by `key` from their numbers.
fn table(engine: &Engine, rows: i64, key: impl Fn(i64) -> Option<i64>) -> DataSet {
    let columns: Vec<(&str, ArrayRef, bool)> = vec![
        ("k", Arc::new((0..rows).map(key).collect::<Int64Array>()), true),
        ("v", Arc::new(Int64Array::from_iter_values(0..rows)), false),
        ("s", Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("text {row:040}")))), false),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    DataSet::from_batches(engine, batch.schema(), &[batch]).unwrap()
}

/// The rows as text, sorted.
fn rows(engine: &Engine, set: DataSet) -> Vec<String> {
    let mut rows = rows_as_they_come(engine, set);
    rows.sort_unstable();
    rows
}

fn rows_as_they_come(engine: &Engine, set: DataSet) -> Vec<String> {
    let mut rows = Vec::new();
    for batch in engine.run(set.collect(ReadProgress::default())).unwrap() {
        let options = FormatOptions::default().with_null("null");
        let columns: Vec<_> =
            batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
        rows.extend(
            (0..batch.num_rows())
                .map(|row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join(",")),
        );
    }
    rows
}

fn sql(engine: &Arc<Engine>, query: &str, tables: &[(&str, &DataSet)]) -> DataSet {
    let (asked, query) = (Arc::clone(engine), query.to_owned());
    let tables = tables.iter().map(|&(name, table)| (name.to_owned(), table.clone())).collect();
    engine.run(async move { DataSet::from_sql(&asked, &query, tables).await }).unwrap()
}

const KINDS: [JoinHow; 6] =
    [JoinHow::Inner, JoinHow::Left, JoinHow::Right, JoinHow::Full, JoinHow::Semi, JoinHow::Anti];

/// Two tables, of which the first is smaller and contains a heavy key: `heavy` of a hundred rows have it.
fn sides(engine: &Engine, heavy: i64) -> [DataSet; 2] {
    let key = move |row: i64| match row {
        row if row % 100 < heavy => Some(7),
        row if row % 11 == 0 => None,
        row => Some(row),
    };
    let few = move |row: i64| match row {
        0..3 => Some(7),
        row if row % 13 == 0 => None,
        row => Some(row / 2 + 100),
    };
    [table(engine, 20_000, key), table(engine, 30_000, few)]
}

fn joined(sides: &[DataSet; 2], swapped: bool, how: JoinHow, condition: Option<Expr>) -> DataSet {
    let on = [("k".to_owned(), "k".to_owned())];
    let (left, right) = if swapped { (&sides[1], &sides[0]) } else { (&sides[0], &sides[1]) };
    left.join(right, &on, how, "_right", condition, None).unwrap()
}

/// For every kind of join and either build side, with null keys or a key too frequent to partition: the rows are those
/// of a join in memory, although they were on disk.
#[test]
fn joins_on_disk_are_those_in_memory() {
    for heavy in [0, 60] {
        let (roomy, tight) = (engine(None, 2), engine(Some(1 << 20), 2));
        let (in_memory, on_disk) = (sides(&roomy, heavy), sides(&tight, heavy));
        let condition = || binary("<", column("v"), column("v_right")).unwrap();
        for how in KINDS {
            for (swapped, condition) in [(false, None), (true, None), (false, Some(condition()))] {
                let what = format!("{how:?} of {heavy} % of one key, swapped: {swapped}, {condition:?}");
                let before = tight.governor().spilled_bytes();
                let seen = rows(&tight, joined(&on_disk, swapped, how, condition.clone()));
                assert!(tight.governor().spilled_bytes() > before, "{what}");
                assert_eq!(tight.governor().reserved_bytes(), 0, "{what}");
                let expected = rows(&roomy, joined(&in_memory, swapped, how, condition));
                assert!(!expected.is_empty() && seen == expected, "{what}: {} of {}", seen.len(), expected.len());
            }
        }
        assert_eq!(roomy.governor().spilled_bytes(), 0);
    }
}

/// A build side small enough to be shared by all partitions that does not fit: for every kind of join, its rows are
/// output once, and not once per partition.
#[test]
fn a_build_side_of_all_partitions_goes_to_disk() {
    // Batches with separate memory: DataFusion counts the memory of slices of one batch for each of them.
    let batch = |rows: Range<i64>, key: fn(i64) -> i64| {
        let numbers = || Arc::new(Int64Array::from_iter_values(rows.clone()));
        let keys = Arc::new(Int64Array::from_iter_values(rows.clone().map(key)));
        RecordBatch::try_from_iter([("k", keys as ArrayRef), ("v", numbers() as _), ("w", numbers() as _)]).unwrap()
    };
    let narrow = |engine: &Engine, count: i64, key: fn(i64) -> i64| {
        let batches: Vec<_> = (0..count).map(|at| batch(at * 8000..(at + 1) * 8000, key)).collect();
        DataSet::from_batches(engine, batches[0].schema(), &batches).unwrap()
    };
    let sides = |engine: &Engine| [narrow(engine, 3, |row| row), narrow(engine, 8, |row| row / 3 + 12_000)];
    let (roomy, tight) = (engine(None, 2), engine(Some(1 << 20), 2));
    let (in_memory, on_disk) = (sides(&roomy), sides(&tight));
    let condition = || binary("<", column("v"), column("v_right")).unwrap();
    for how in KINDS {
        for (swapped, condition) in [(false, None), (true, None), (false, Some(condition())), (true, Some(condition()))]
        {
            let what = format!("{how:?}, swapped: {swapped}, {condition:?}");
            let set = joined(&on_disk, swapped, how, condition.clone());
            let plan = tight.run(set.clone().explain(ExplainLevel::Physical)).unwrap();
            assert!(plan.contains("JoinExec, as HashJoinExec: mode=CollectLeft"), "{what}: {plan}");
            let before = tight.governor().spilled_bytes();
            let seen = rows(&tight, set);
            assert!(tight.governor().spilled_bytes() > before, "{what}");
            assert_eq!(tight.governor().reserved_bytes(), 0, "{what}");
            let expected = rows(&roomy, joined(&in_memory, swapped, how, condition));
            assert!(!expected.is_empty() && seen == expected, "{what}: {} of {}", seen.len(), expected.len());
        }
    }
}

/// A query that relies on the existing order of the other side must get it from the disk, too; a limit takes rows in
/// that order.
#[test]
fn rows_that_have_an_order_keep_it() {
    let joined = |kind: &str| {
        let numbered = "(select k, v, s, row_number() over () as n from b)";
        format!("select a.v, w.v as u, w.n, a.s, w.s as t from a {kind} {numbered} w on a.k = w.k order by w.n")
    };
    for query in [joined("join"), joined("join") + " limit 10", joined("right join")] {
        let seen = [None, Some(1 << 20)].map(|memory_bytes| {
            // A single thread: several exchange rows, which then have no order.
            let engine = Arc::new(engine(memory_bytes, 1));
            let a = table(&engine, 20_000, |row| Some(row * 7 % 20_000));
            let b = table(&engine, 130_000, |row| (row % 13 > 0).then_some(row * 11 % 40_000));
            let set = sql(&engine, &query, &[("a", &a), ("b", &b)]);
            let plan = engine.run(set.clone().explain(ExplainLevel::Physical)).unwrap();
            let (above, _) = plan.split_once("JoinExec, as HashJoinExec").expect(&plan);
            assert!(!above.contains("SortExec"), "{plan}");
            let rows = rows_as_they_come(&engine, set);
            assert_eq!(engine.governor().spilled_bytes() > 0, memory_bytes.is_some(), "{query}");
            assert_eq!(engine.governor().reserved_bytes(), 0, "{query}");
            rows
        });
        assert!(!seen[0].is_empty() && seen[0] == seen[1], "{query}: {} and {} rows", seen[0].len(), seen[1].len());
    }
}

/// Each round of a recursive query has a new build side: with that of the first round, rows would repeat endlessly.
#[test]
fn recursive_queries_join_what_is_new() {
    for threads in [1, 2] {
        let engine = Arc::new(engine(None, threads));
        let numbers = |query: &str, name: &str, table: &DataSet| {
            let found = rows(&engine, sql(&engine, query, &[(name, table)]));
            let mut found: Vec<i64> = found.iter().map(|row| row.parse().unwrap()).collect();
            found.sort_unstable();
            found
        };
        let banned = table(&engine, 3, |row| Some(row + 20));
        let query = "with recursive t as (select 1 as i union all select i + 1 from t where i < 50 and i not in (select k from banned)) \
                     select i from t limit 100";
        assert_eq!(numbers(query, "banned", &banned), (1..=20).collect::<Vec<_>>(), "{threads} threads");
        // A tree: `v` is the number of a node, `k` that of its parent.
        let nodes = table(&engine, 1000, |row| (row > 0).then_some((row - 1) / 2));
        let query = "with recursive r as (select v from nodes where k is null union all select n.v from r join nodes n on n.k = r.v) \
                     select v from r limit 2000";
        assert_eq!(numbers(query, "nodes", &nodes), (0..1000).collect::<Vec<_>>(), "{threads} threads");
    }
}

/// A limit that the join has absorbed, and empty sides.
#[test]
fn limits_and_empty_sides() {
    let tight = engine(Some(1 << 20), 2);
    let [few, many] = sides(&tight, 0);
    let limited = joined(&[few.clone(), many.clone()], false, JoinHow::Left, None).limit(0, Some(123)).unwrap();
    assert_eq!(rows(&tight, limited).len(), 123);
    let none = table(&tight, 0, Some);
    for how in KINDS {
        let both = joined(&[none.clone(), many.clone()], false, how, None);
        let expected = if matches!(how, JoinHow::Right | JoinHow::Full) { 30_000 } else { 0 };
        assert_eq!(rows(&tight, both).len(), expected, "{how:?}");
    }
}

/// `explain` must report spills.
#[test]
fn spilling_is_told() {
    for (memory_bytes, spills) in [(None, false), (Some(1 << 20), true)] {
        let engine = engine(memory_bytes, 2);
        let [few, many] = sides(&engine, 0);
        let set = joined(&[few, many], false, JoinHow::Inner, None);
        let text = engine.run(set.explain(ExplainLevel::Analyze)).unwrap();
        let join = text.lines().find(|line| line.contains("JoinExec, as HashJoinExec")).unwrap();
        assert_eq!(join.contains("spilled_bytes=") && !join.contains("spilled_bytes=0"), spills, "{join}");
    }
}

/// Rows with long strings, in batches that go to several partitions.
fn long_rows(engine: &Engine, rows: i64) -> DataSet {
    let batch = |from: i64| {
        let rows = from..from + 500;
        let texts = rows.clone().map(|row| format!("{row} {row:0300}"));
        let columns: [(&str, ArrayRef); 2] = [
            ("v", Arc::new(Int64Array::from_iter_values(rows))),
            ("s", Arc::new(StringViewArray::from_iter_values(texts))),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    };
    let batches: Vec<_> = (0..rows).step_by(500).map(batch).collect();
    DataSet::from_batches(engine, batches[0].schema(), &batches).unwrap()
}

/// Without keys, rows cannot be partitioned. For every kind of join, and any number of partitions of the other side,
/// rows must come out as in memory, and unmatched rows exactly once.
#[test]
fn joins_without_keys_go_to_disk() {
    // It uses strings of both sides, so that both carry theirs.
    let near = "abs(a.v - 2 * b.v) < 2 and a.v % 3 <> 0 and a.s <> b.s";
    let joined = |kind: &str| format!("select a.v, b.v as u, a.s, b.s as t from a {kind} join b on {near}");
    let queries = [
        joined("inner"),
        joined("left"),
        joined("right"),
        joined("full"),
        format!("select v, s from a where exists (select 1 from b where {near})"),
        format!("select v, s from a where not exists (select 1 from b where {near})"),
        format!("select v, s from b where exists (select 1 from a where {near})"),
        format!("select v, s from b where not exists (select 1 from a where {near})"),
        format!("select v, s from a where v < 9 or exists (select 1 from b where {near})"),
        "select count(*), sum(a.v * b.v), sum(length(a.s) + length(b.s)) from a cross join b".to_owned(),
    ];
    for threads in [1, 2] {
        let engines = [None, Some(1 << 20)].map(|memory_bytes| Arc::new(engine(memory_bytes, threads)));
        for query in &queries {
            let [in_memory, on_disk] = engines.each_ref().map(|engine| {
                let (a, b) = (long_rows(engine, 4000), long_rows(engine, 5000));
                let set = sql(engine, query, &[("a", &a), ("b", &b)]);
                let plan = engine.run(set.clone().explain(ExplainLevel::Physical)).unwrap();
                assert!(
                    plan.contains("JoinExec, as NestedLoopJoinExec") || plan.contains("JoinExec, as CrossJoinExec"),
                    "{query}: {plan}"
                );
                let before = engine.governor().spilled_bytes();
                let rows = rows(engine, set);
                assert_eq!(engine.governor().reserved_bytes(), 0, "{query}");
                (rows, engine.governor().spilled_bytes() - before)
            });
            assert!(in_memory.1 == 0 && on_disk.1 > 0, "{query} by {threads}: {} and {} bytes", in_memory.1, on_disk.1);
            let counts = (in_memory.0.len(), on_disk.0.len());
            assert!(!in_memory.0.is_empty() && in_memory.0 == on_disk.0, "{query} by {threads}: rows {counts:?}");
        }
    }
}

/// The bytes written by the last sort of a join were not reported, although they may exceed those of the partitions.
#[test]
fn runs_of_the_last_sort_are_told() {
    let engine = engine(Some(1 << 20), 1);
    let (governor, context) = (engine.governor().clone(), engine.context().task_ctx());
    let sorted = |batches: i64| {
        let batch = |at: i64| {
            let numbers = Int64Array::from_iter_values((0..8192).map(|row| (at * 8192 + row) * 7919 % 1_000_003));
            let texts = StringArray::from_iter_values((0..8192).map(|row| format!("{row:0100}")));
            RecordBatch::try_from_iter([("n", Arc::new(numbers) as ArrayRef), ("s", Arc::new(texts) as _)]).unwrap()
        };
        let batches: Vec<_> = (0..batches).map(|at| Ok(batch(at))).collect();
        let schema = batch(0).schema();
        let rows = Box::pin(RecordBatchStreamAdapter::new(schema, futures::stream::iter(batches)));
        let order = LexOrdering::new([PhysicalSortExpr::new_default(Arc::new(Column::new("n", 0)))]).unwrap();
        let (told, before) = (Count::new(), governor.spilled_bytes());
        let rows = in_order(rows, &order, &context, &governor, told.clone()).unwrap();
        let rows: usize = engine
            .run(async move { Ok(rows.try_collect::<Vec<_>>().await?.iter().map(RecordBatch::num_rows).sum()) })
            .unwrap();
        assert_eq!(governor.spilled_bytes() - before, told.value() as u64, "what a job tells of all steps has it too");
        (rows, told.value())
    };
    assert_eq!(sorted(2), (2 * 8192, 0));
    let (rows, told) = sorted(40);
    assert!(rows == 40 * 8192 && told > 1 << 20, "{rows} rows, {told} bytes");
}

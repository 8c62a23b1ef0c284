//! Exchanges that work on rows as they move them: reductions, gathers by key, sorts, joins, unions. Each is compared
//! with a few lines of the standard library, on any number of workers and copies, in memory and on disk.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::*;
use arrow::datatypes::{ArrowPrimitiveType, DataType, Float64Type, Int64Type, SchemaRef};
use common::{Data, OVERLAYS, run_graph, schema, sink, source, tight};
use proptest::prelude::*;
use tidemill_dataflow::exchange::*;
use tidemill_dataflow::memory::MemorySettings;
use tidemill_dataflow::{RunReport, RunnerSettings, StreamElement, TaskSpec};
use tokio::sync::Notify;

type Row = (Option<i64>, i64, f64);

fn rows_schema() -> SchemaRef {
    schema(&[("k", DataType::Int64), ("n", DataType::Int64), ("x", DataType::Float64)])
}

fn batch(schema: &SchemaRef, rows: &[Row]) -> RecordBatch {
    let k: Int64Array = rows.iter().map(|row| row.0).collect();
    let n = Int64Array::from_iter_values(rows.iter().map(|row| row.1));
    let x = Float64Array::from_iter_values(rows.iter().map(|row| row.2));
    RecordBatch::try_new(schema.clone(), vec![Arc::new(k), Arc::new(n), Arc::new(x)]).unwrap()
}

/// The rows of copy `copy`: `batches` batches of up to `size` rows, with keys below `keys` and nulls among them.
fn rows_of(seed: u64, copy: u32, batches: usize, size: usize, keys: u64) -> Vec<Vec<Row>> {
    let mut state = seed * 1_000_003 + u64::from(copy) * 7919 + 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..batches)
        .map(|at| {
            let row = |_| {
                let k = next() % (keys + 1);
                ((k < keys).then_some(k as i64), (next() % 1000) as i64 - 500, (next() % 64) as f64 / 4.0)
            };
            (0..(size * (at + 1)) % (size + 1)).map(row).collect()
        })
        .collect()
}

fn data(schema: SchemaRef, seed: u64, batches: usize, size: usize, keys: u64) -> (Data, impl Fn(u32) -> Vec<Row>) {
    let of = move |copy: u32| rows_of(seed, copy, batches, size, keys);
    let data: Data = Arc::new(move |copy| of(copy).iter().map(|rows| batch(&schema, rows)).collect());
    (data, move |copies: u32| (0..copies).flat_map(of).flatten().collect())
}

fn read(batch: &RecordBatch) -> Vec<Row> {
    let k = batch.column(0).as_primitive::<Int64Type>();
    let n = batch.column(1).as_primitive::<Int64Type>();
    let x = batch.column(2).as_primitive::<Float64Type>();
    (0..batch.num_rows()).map(|row| (k.is_valid(row).then(|| k.value(row)), n.value(row), x.value(row))).collect()
}

fn settings(spill: bool) -> RunnerSettings {
    let budget_bytes = if spill { 200 << 10 } else { 0 };
    let memory = MemorySettings { budget_bytes, watch_process: false, ..MemorySettings::default() };
    RunnerSettings { memory, ..tight() }
}

/// Sends one source through `exchange`, and returns the rows of each copy of the target, in order.
fn run(
    workers: u32,
    copies: (u32, u32),
    data: &Data,
    settings: &RunnerSettings,
    exchange: impl Exchange + Clone + 'static,
) -> (BTreeMap<u32, Vec<RecordBatch>>, Vec<RunReport>) {
    run_graph(workers, settings, |graph, kept| {
        let from = graph.add(source("from", &rows_schema(), copies.0, data));
        let to = graph.add(sink("to", copies.1, kept));
        graph.connect(from, to, exchange.clone());
    })
    .unwrap()
}

fn order(a: &Row, b: &Row) -> std::cmp::Ordering {
    a.0.cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.total_cmp(&b.2))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

    /// Catches a key reduced at two copies, twice, or not at all.
    #[test]
    fn keyed_reduce_equals_a_map(
        workers in 1u32..=8, from in 1u32..5, to in 1u32..5, batches in 0usize..5, size in 1usize..600,
        keys in 1u64..2000, seed in 0u64..1000, spill: bool,
    ) {
        let (data, all) = data(rows_schema(), seed, batches, size, keys);
        let mut expected: BTreeMap<Option<i64>, (i64, f64)> = BTreeMap::new();
        for (k, n, x) in all(from) {
            let entry = expected.entry(k).or_insert((0, f64::MIN));
            *entry = (entry.0 + n, entry.1.max(x));
        }
        let exchange = KeyedReduce::new(["k"], Reduction::new().sum("n").max("x"));
        let (kept, _) = run(workers, (from, to), &data, &settings(spill), exchange);
        let mut found = BTreeMap::new();
        for (k, n, x) in kept.values().flatten().flat_map(read) {
            prop_assert!(found.insert(k, (n, x)).is_none());
        }
        prop_assert_eq!(found, expected);
    }

    /// A key that returned after another key would look like two groups.
    #[test]
    fn keyed_gather_brings_each_key_once(
        workers in 1u32..=8, from in 1u32..5, to in 1u32..5, batches in 0usize..5, size in 1usize..600,
        keys in 1u64..300, seed in 0u64..1000, spill: bool,
    ) {
        let (data, all) = data(rows_schema(), seed, batches, size, keys);
        let (kept, _) = run(workers, (from, to), &data, &settings(spill), KeyedGather::new(["k"]));
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        for batches in kept.values() {
            let mut last = None;
            for row in batches.iter().flat_map(read) {
                if last != Some(row.0) {
                    prop_assert!(seen.insert(row.0), "key {:?} comes again", row.0);
                    last = Some(row.0);
                }
                found.push(row);
            }
        }
        let mut expected = all(from);
        expected.sort_by(order);
        found.sort_by(order);
        prop_assert_eq!(found, expected);
    }

    /// Along every tree, the result is one row at the root, or everywhere; without input there is no row.
    #[test]
    fn reduce_and_all_reduce(
        workers in 1u32..=8, from in 1u32..6, to in 1u32..5, batches in 0usize..4, size in 1usize..300, seed in 0u64..1000,
        kind in 0..OVERLAYS.len(),
    ) {
        let overlay = OVERLAYS[kind];
        let (data, all) = data(rows_schema(), seed, batches, size, 50);
        let all = all(from);
        let reduction = || Reduction::new().max("k").sum("n").min("x");
        let expected: Vec<Row> = match all.is_empty() {
            true => Vec::new(),
            false => vec![(
                all.iter().filter_map(|row| row.0).max(),
                all.iter().map(|row| row.1).sum(),
                all.iter().map(|row| row.2).fold(f64::MAX, f64::min),
            )],
        };
        let rows = |kept: &BTreeMap<u32, Vec<RecordBatch>>, copy: u32| -> Vec<Row> {
            kept.get(&copy).into_iter().flatten().flat_map(read).collect()
        };
        let exchange = tidemill_dataflow::exchange::Reduce::new(reduction()).to(to - 1).along(overlay);
        let (kept, _) = run(workers, (from, to), &data, &tight(), exchange);
        for copy in 0..to {
            prop_assert_eq!(rows(&kept, copy), if copy == to - 1 { expected.clone() } else { Vec::new() });
        }
        let (kept, _) = run(workers, (from, to), &data, &tight(), AllReduce::new(reduction()).along(overlay));
        for copy in 0..to {
            prop_assert_eq!(rows(&kept, copy), expected.clone());
        }
    }

    /// Along every tree, the n-th messages of all copies become the n-th row, in order. A partial round combines only
    /// the copies that have an n-th message.
    #[test]
    fn reduce_and_all_reduce_by_rounds(
        workers in 1u32..=6, from in 1u32..7, to in 1u32..4, rounds in 0usize..40, size in 1usize..4, seed in 0u64..1000,
        kind in 0..OVERLAYS.len(), partial: bool,
    ) {
        let overlay = OVERLAYS[kind];
        let of = move |copy: u32| -> Vec<Vec<Row>> {
            let rounds = if partial { rounds + copy as usize % 3 } else { rounds };
            rows_of(seed, copy, rounds, size, 50).into_iter().filter(|message| !message.is_empty()).collect()
        };
        let data: Data = Arc::new(move |copy| of(copy).iter().map(|rows| batch(&rows_schema(), rows)).collect());
        let all: Vec<_> = (0..from).map(of).collect();
        let expected: Vec<Row> = (0..all.iter().map(Vec::len).max().unwrap())
            .map(|round| {
                let rows: Vec<&Row> = all.iter().filter_map(|messages| messages.get(round)).flatten().collect();
                (
                    rows.iter().filter_map(|row| row.0).max(),
                    rows.iter().map(|row| row.1).sum(),
                    rows.iter().map(|row| row.2).fold(f64::MAX, f64::min),
                )
            })
            .collect();
        let rows = |kept: &BTreeMap<u32, Vec<RecordBatch>>, copy: u32| -> Vec<Row> {
            kept.get(&copy).into_iter().flatten().flat_map(read).collect()
        };
        let end = if partial { RoundEnd::Partial } else { RoundEnd::Strict };
        let reduction = || Reduction::new().max("k").sum("n").min("x");
        let reduce = tidemill_dataflow::exchange::Reduce::new(reduction()).to(to - 1).along(overlay);
        let exchange = Rounds::new(reduce, end);
        let (kept, _) = run(workers, (from, to), &data, &tight(), exchange);
        for copy in 0..to {
            prop_assert_eq!(rows(&kept, copy), if copy == to - 1 { expected.clone() } else { Vec::new() });
        }
        let exchange = Rounds::new(AllReduce::new(reduction()).along(overlay), end);
        let (kept, _) = run(workers, (from, to), &data, &tight(), exchange);
        for copy in 0..to {
            prop_assert_eq!(rows(&kept, copy), expected.clone());
        }
    }

    /// The copies' rows, concatenated, are the sorted rows.
    #[test]
    fn sort_equals_a_sort(
        workers in 1u32..=8, from in 1u32..5, to in 1u32..5, batches in 0usize..5, size in 1usize..600,
        keys in 1u64..2000, seed in 0u64..1000, spill: bool, descending: bool,
    ) {
        let (data, all) = data(rows_schema(), seed, batches, size, keys);
        let first = if descending { SortKey::descending("k") } else { SortKey::ascending("k") };
        let exchange = Sort::by([first, SortKey::ascending("n"), SortKey::ascending("x")]);
        let (kept, _) = run(workers, (from, to), &data, &settings(spill), exchange);
        let found: Vec<Row> = kept.values().flatten().flat_map(read).collect();
        let mut expected = all(from);
        expected.sort_by(|a, b| {
            let k = if descending { b.0.cmp(&a.0) } else { a.0.cmp(&b.0) };
            k.then(a.1.cmp(&b.1)).then(a.2.total_cmp(&b.2))
        });
        prop_assert_eq!(found, expected);
    }

    /// Partitioned by ranges without sorting: every row is present once, and no copy has a key below one of the
    /// previous copy.
    #[test]
    fn ranges_do_not_overlap(
        workers in 1u32..=8, from in 1u32..4, to in 1u32..5, size in 1usize..300, batches in 0usize..4,
        keys in 1u64..2000, seed in 0u64..1000,
    ) {
        let (data, all) = data(rows_schema(), seed, batches, size, keys);
        let exchange = Sort::ranges([SortKey::ascending("k")]);
        let (kept, _) = run(workers, (from, to), &data, &settings(false), exchange);
        let parts: Vec<Vec<Row>> = kept.values().map(|batches| batches.iter().flat_map(read).collect()).collect();
        let sorted = |mut rows: Vec<Row>| {
            rows.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.total_cmp(&b.2)));
            rows
        };
        let ends = parts.iter().filter(|part| !part.is_empty()).map(|part| {
            (part.iter().map(|row| row.0).min(), part.iter().map(|row| row.0).max())
        });
        let ends: Vec<_> = ends.collect();
        prop_assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "{:?}", ends);
        prop_assert_eq!(sorted(parts.concat()), sorted(all(from)));
    }

    /// Every kind of join equals two nested loops, when partitioned, and with the right side broadcast where that is
    /// allowed.
    #[test]
    fn joins_equal_two_loops(
        workers in 1u32..=8, left_copies in 1u32..4, right_copies in 1u32..4, to in 1u32..4,
        size in 1usize..120, keys in 1u64..60, seed in 0u64..1000, kind in 0usize..6, spill: bool, broadcast: bool,
    ) {
        let kinds = [JoinKind::Inner, JoinKind::Left, JoinKind::Right, JoinKind::Full, JoinKind::Semi, JoinKind::Anti];
        let kind = kinds[kind];
        let broadcast = broadcast && !matches!(kind, JoinKind::Right | JoinKind::Full);
        let left_copies = if broadcast { to } else { left_copies };
        let right_schema = schema(&[("rk", DataType::Int64), ("rn", DataType::Int64), ("rx", DataType::Float64)]);
        let (left, all_left) = data(rows_schema(), seed, 3, size, keys);
        let (right, all_right) = data(right_schema.clone(), seed + 5000, 2, size, keys);
        let (all_left, all_right) = (all_left(left_copies), all_right(right_copies));
        let equal = |l: &Row, r: &Row| l.0.is_some() && l.0 == r.0;
        let mut expected: Vec<(Option<Row>, Option<Row>)> = Vec::new();
        for l in &all_left {
            let partners: Vec<&Row> = all_right.iter().filter(|r| equal(l, r)).collect();
            match kind {
                JoinKind::Semi if !partners.is_empty() => expected.push((Some(*l), None)),
                JoinKind::Anti if partners.is_empty() => expected.push((Some(*l), None)),
                JoinKind::Semi | JoinKind::Anti => {}
                _ => {
                    expected.extend(partners.iter().map(|r| (Some(*l), Some(**r))));
                    if partners.is_empty() && matches!(kind, JoinKind::Left | JoinKind::Full) {
                        expected.push((Some(*l), None));
                    }
                }
            }
        }
        if matches!(kind, JoinKind::Right | JoinKind::Full) {
            let alone = all_right.iter().filter(|r| !all_left.iter().any(|l| equal(l, r)));
            expected.extend(alone.map(|r| (None, Some(*r))));
        }
        let (kept, _) = run_graph(workers, &settings(spill), |graph, kept| {
            let l = graph.add(source("left", &rows_schema(), left_copies, &left));
            let r = graph.add(source("right", &right_schema, right_copies, &right));
            let to = graph.add(sink("to", to, kept));
            let join = Join::new(kind, [("k", "rk")]);
            let join = if broadcast { join.broadcast_right() } else { join };
            graph.connect_all(vec![l.into(), r.into()], to, join);
        })
        .unwrap();
        let mut found = Vec::new();
        for batch in kept.values().flatten() {
            let side = |from: usize| -> Vec<Option<Row>> {
                if from >= batch.num_columns() {
                    return vec![None; batch.num_rows()];
                }
                let at: Vec<usize> = (from..from + 3).collect();
                let part = batch.project(&at).unwrap();
                let there = part.column(1).clone();
                read(&part).into_iter().enumerate().map(|(row, r)| there.is_valid(row).then_some(r)).collect()
            };
            found.extend(side(0).into_iter().zip(side(3)));
        }
        let key = |pair: &(Option<Row>, Option<Row>)| format!("{pair:?}");
        found.sort_by_key(key);
        expected.sort_by_key(key);
        prop_assert_eq!(found, expected);
    }
}

/// A source feeds both sides of a join, directly and through another task: the side that is received second must not
/// stop the source, or the first side would never end.
#[test]
fn a_join_with_itself_ends() {
    let (data, all) = data(rows_schema(), 3, 40, 1000, 500);
    for spill in [false, true] {
        let (kept, _) = run_graph(2, &settings(spill), |graph, kept| {
            let from = graph.add(source("from", &rows_schema(), 2, &data));
            let sums = schema(&[("rk", DataType::Int64), ("rn", DataType::Int64)]);
            let of_task = sums.clone();
            let rename = TaskSpec::new("rename", move |inputs, outputs, _| {
                let schema = of_task.clone();
                async move {
                    let (mut input, mut output) = (inputs.into_only(), outputs.into_only());
                    while let Some(StreamElement::Batch(batch)) = input.recv().await? {
                        output.send(RecordBatch::try_new(schema.clone(), batch.columns()[..2].to_vec())?).await?;
                    }
                    Ok(())
                }
            });
            let rename = graph.add(rename.input("in").output("out", sums).copies(2));
            let to = graph.add(sink("to", 2, kept));
            graph.connect(from, rename, Direct);
            graph.connect_all(vec![from.into(), rename.into()], to, Join::new(JoinKind::Semi, [("k", "rk")]));
        })
        .unwrap();
        let with_key = all(2).iter().filter(|row| row.0.is_some()).count();
        assert_eq!(kept.values().flatten().map(RecordBatch::num_rows).sum::<usize>(), with_key);
    }
}

/// Two joins of the same two sources, each receiving first what the other keeps waiting: neither source may be
/// stopped, or neither join would ever have its first side.
#[test]
fn joins_in_opposite_roles_end() {
    let right_schema = schema(&[("rk", DataType::Int64), ("rn", DataType::Int64), ("rx", DataType::Float64)]);
    let (one, all) = data(rows_schema(), 3, 40, 1000, 500);
    let (other, all_others) = data(right_schema.clone(), 4, 40, 1000, 700);
    let keys = |rows: &[Row]| rows.iter().filter_map(|row| row.0).collect::<BTreeSet<i64>>();
    let (ones, others) = (all(2), all_others(2));
    let partners = |rows: &[Row], keys: &BTreeSet<i64>| {
        rows.iter().filter(|row| row.0.is_some_and(|key| keys.contains(&key))).count()
    };
    let expected = [partners(&ones, &keys(&others)), partners(&others, &keys(&ones))];
    for spill in [false, true] {
        let (kept, _) = run_graph(2, &settings(spill), |graph, kept| {
            let a = graph.add(source("a", &rows_schema(), 2, &one));
            let b = graph.add(source("b", &right_schema, 2, &other));
            let [first, second] = ["first", "second"].map(|name| {
                let kept = Arc::clone(kept);
                let at = if name == "first" { 0 } else { 2 };
                graph.add(
                    TaskSpec::new(name, move |inputs, _, context| {
                        let (kept, copy) = (Arc::clone(&kept), at + context.copy());
                        async move {
                            let mut input = inputs.into_only();
                            while let Some(StreamElement::Batch(batch)) = input.recv().await? {
                                kept.lock().unwrap().entry(copy).or_default().push(batch);
                            }
                            Ok(())
                        }
                    })
                    .input("in")
                    .copies(2),
                )
            });
            graph.connect_all(vec![a.into(), b.into()], first, Join::new(JoinKind::Semi, [("k", "rk")]));
            graph.connect_all(vec![b.into(), a.into()], second, Join::new(JoinKind::Semi, [("rk", "k")]));
        })
        .unwrap();
        let rows = |copies: std::ops::Range<u32>| -> usize {
            kept.range(copies).flat_map(|(_, batches)| batches).map(RecordBatch::num_rows).sum()
        };
        assert_eq!([rows(0..2), rows(2..4)], expected);
    }
}

/// Three sources into one port, through one edge and through three.
#[test]
fn unions_bring_everything() {
    let (data, all) = data(rows_schema(), 7, 3, 100, 50);
    let mut expected: Vec<Row> = (0..3).flat_map(|_| all(2)).collect();
    expected.sort_by(order);
    for one_edge in [true, false] {
        let (kept, _) = run_graph(3, &tight(), |graph, kept| {
            let sources = ["a", "b", "c"].map(|name| graph.add(source(name, &rows_schema(), 2, &data)));
            let to = graph.add(sink("to", 2, kept));
            if one_edge {
                graph.connect_all(sources.map(Into::into).into(), to, Union::by(Partition::by_key(["k"])));
            } else {
                sources.into_iter().for_each(|from| {
                    graph.connect(from, to, Direct);
                });
            }
        })
        .unwrap();
        let mut found: Vec<Row> = kept.values().flatten().flat_map(read).collect();
        found.sort_by(order);
        assert_eq!(found, expected);
    }
}

/// Ranges are even although a sample of the input's beginning would be misleading, and spilling is reported.
#[test]
fn sorted_input_is_spread_evenly() {
    let of_batch = rows_schema();
    let data: Data = Arc::new(move |copy| {
        let batch = |at: i64| {
            let row = |i: i64| (Some((at * 1000 + i) * 2 + i64::from(copy)), i, 0.0);
            batch(&of_batch, &(0..1000).map(row).collect::<Vec<Row>>())
        };
        (0..100).map(batch).collect()
    });
    let memory = MemorySettings { budget_bytes: 2 << 20, watch_process: false, ..MemorySettings::default() };
    let settings = RunnerSettings { memory, ..tight() };
    let (kept, reports) = run(2, (2, 4), &data, &settings, Sort::by([SortKey::ascending("k")]));
    let counts: Vec<usize> = kept.values().map(|b| b.iter().map(RecordBatch::num_rows).sum()).collect();
    assert_eq!(counts.iter().sum::<usize>(), 200_000);
    assert!(counts.iter().all(|rows| (45_000..55_000).contains(rows)), "{counts:?}");
    assert!(reports.iter().map(|report| report.spilled_bytes).sum::<u64>() > 0);
    let keys: Vec<i64> = kept.values().flatten().flat_map(read).map(|row| row.0.unwrap()).collect();
    assert!(keys.is_sorted());
}

/// A custom function reduces like the built-in ones; NaN keys are one key, and so are both zeros.
#[test]
fn custom_reductions_and_odd_keys() {
    let schema = schema(&[("f", DataType::Float64), ("n", DataType::Int64)]);
    let of_batch = schema.clone();
    let data: Data = Arc::new(move |copy| {
        let nan = if copy == 0 { f64::NAN } else { -f64::NAN };
        let zero = if copy == 0 { 0.0 } else { -0.0 };
        let f = Float64Array::from(vec![nan, zero, 1.5, nan]);
        let n = Int64Array::from(vec![1, 10, 100, 1000]);
        vec![RecordBatch::try_new(of_batch.clone(), vec![Arc::new(f), Arc::new(n)]).unwrap(); 2]
    });
    let exchange = KeyedReduce::new(
        ["f"],
        Reduction::with("bitwise or of n", ["n"], |rows, groups, count| {
            let n = rows.column(0).as_primitive::<Int64Type>();
            let mut folded = vec![0; count];
            groups.iter().zip(n.values()).for_each(|(&group, n)| folded[group as usize] |= n);
            Ok(RecordBatch::try_new(rows.schema(), vec![Arc::new(Int64Array::from(folded))])?)
        }),
    );
    let (kept, _) = run_graph(3, &tight(), |graph, kept| {
        let from = graph.add(source("from", &schema, 2, &data));
        let to = graph.add(sink("to", 3, kept));
        graph.connect(from, to, exchange.clone());
    })
    .unwrap();
    let mut found: Vec<(String, i64)> = Vec::new();
    for batch in kept.values().flatten() {
        let (f, n) = (batch.column(0).as_primitive::<Float64Type>(), batch.column(1).as_primitive::<Int64Type>());
        found.extend((0..batch.num_rows()).map(|row| (format!("{}", f.value(row).abs()), n.value(row))));
    }
    found.sort();
    assert_eq!(found, [("0".into(), 10), ("1.5".into(), 100), ("NaN".into(), 1 | 1000)]);
}

/// A key must leave a worker with several copies only once: each further time is an unnecessary row on the wire.
#[test]
fn a_key_leaves_a_worker_once() {
    let of_batch = rows_schema();
    let data: Data = Arc::new(move |copy| {
        let rows: Vec<Row> = (0..1000).map(|row| (Some(row % 100), 1, f64::from(copy))).collect();
        vec![batch(&of_batch, &rows)]
    });
    for (workers, copies, leaving) in [(2, 6, 200), (3, 3, 300), (1, 4, 400)] {
        let exchange = KeyedReduce::new(["k"], Reduction::new().sum("n"));
        let (kept, reports) = run(workers, (copies, 4), &data, &tight(), exchange);
        let mut sums: Vec<(i64, i64)> = Vec::new();
        for batch in kept.values().flatten() {
            let column = |at: usize| batch.column(at).as_primitive::<Int64Type>().values();
            sums.extend(column(0).iter().copied().zip(column(1).iter().copied()));
        }
        sums.sort_unstable();
        assert_eq!(sums, (0..100).map(|key| (key, 10 * i64::from(copies))).collect::<Vec<_>>());
        let edges = || reports.iter().flat_map(|report| &report.edges);
        let sent: u64 = edges().filter(|edge| edge.edge.contains("-> reduce after")).map(|edge| edge.rows_sent).sum();
        assert_eq!(sent, leaving, "{:?}", edges().map(|edge| (&edge.edge, edge.rows_sent)).collect::<Vec<_>>());
    }
}

/// Numbers sent without a batch are reduced as if they were in one, whatever their type, and batches between them are
/// included.
#[test]
fn numbers_without_a_batch_are_reduced() {
    fn reduced<T: ArrowPrimitiveType>(of: fn(i64) -> T::Native) -> (T::Native, u64) {
        let numbers = schema(&[("n", T::DATA_TYPE)]);
        let from = numbers.clone();
        let source = TaskSpec::new("source", move |_, outputs, _| {
            let (from, mut output) = (from.clone(), outputs.into_only());
            async move {
                for n in 0..20_000 {
                    output.send_values::<T>(&[of(n), of(1)]).await?;
                    if n % 1000 == 0 {
                        let column = PrimitiveArray::<T>::from_iter([Some(of(3)), None]);
                        output.send(RecordBatch::try_new(from.clone(), vec![Arc::new(column)])?).await?;
                    }
                }
                Ok(())
            }
        });
        let source = source.output("out", numbers).copies(3);
        let (kept, reports) = run_graph(2, &RunnerSettings::default(), |graph, kept| {
            let (from, to) = (graph.add(source.clone()), graph.add(sink("sink", 1, kept)));
            graph.connect(from, to, Reduce::new(Reduction::new().sum("n")));
        })
        .unwrap();
        let found: Vec<_> = kept.values().flatten().collect();
        assert_eq!(found.iter().map(|batch| batch.num_rows()).sum::<usize>(), 1);
        let edges = reports.iter().flat_map(|report| &report.edges);
        let sent = edges.filter(|edge| edge.edge.starts_with("source")).map(|edge| edge.rows_sent).sum();
        (found[0].column(0).as_primitive::<T>().value(0), sent)
    }
    // Only one row leaves a copy.
    let sum = 3 * (199_990_000 + 20_000 + 60);
    assert_eq!(reduced::<Int64Type>(|n| n), (sum, 3));
    assert_eq!(reduced::<Float64Type>(|n| n as f64), (sum as f64, 3));
}

/// Each message waits for the result of the previous one: a round that waited for the end, or for more messages,
/// would never arrive.
#[test]
fn a_round_arrives_before_the_next_is_sent() {
    for (workers, copies) in [(1, 2), (3, 4)] {
        let (come, changed) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        run_graph(workers, &tight(), |graph, _| {
            let (seen, news) = (Arc::clone(&come), Arc::clone(&changed));
            let from = TaskSpec::new("from", move |_, outputs, context| {
                let (seen, news) = (Arc::clone(&seen), Arc::clone(&news));
                async move {
                    let mut output = outputs.into_only();
                    for round in 0..20 {
                        output.send(batch(&rows_schema(), &[(None, i64::from(context.copy()) + round, 0.0)])).await?;
                        loop {
                            let changed = news.notified();
                            if seen.load(Ordering::SeqCst) as i64 > round {
                                break;
                            }
                            changed.await;
                        }
                    }
                    Ok(())
                }
            });
            let (seen, news) = (Arc::clone(&come), Arc::clone(&changed));
            let to = TaskSpec::new("to", move |inputs, _, context| {
                let (seen, news) = (Arc::clone(&seen), Arc::clone(&news));
                async move {
                    let (mut input, mut round) = (inputs.into_only(), 0);
                    while let Some(StreamElement::Batch(rows)) = input.recv().await? {
                        for row in read(&rows) {
                            assert_eq!(row.1, (0..copies).map(|copy| i64::from(copy) + round).sum::<i64>());
                            round += 1;
                        }
                        if context.copy() == 0 {
                            seen.store(round as usize, Ordering::SeqCst);
                            news.notify_waiters();
                        }
                    }
                    assert_eq!(round, 20);
                    Ok(())
                }
            });
            let from = graph.add(from.output("out", rows_schema()).copies(copies));
            let to = graph.add(to.input("in").copies(2));
            graph.connect(
                from,
                to,
                Rounds::new(AllReduce::new(Reduction::new().max("k").sum("n").min("x")), RoundEnd::Strict),
            );
        })
        .unwrap();
    }
}

/// Results from fewer messages than the program intends would be silently wrong.
#[test]
fn strict_rounds_of_unequal_length_are_an_error() {
    for (workers, copies) in [(1, 2), (2, 5)] {
        let data: Data = Arc::new(|copy| vec![batch(&rows_schema(), &[(None, 1, 0.0)]); if copy == 1 { 3 } else { 9 }]);
        let error = run_graph(workers, &tight(), |graph, kept| {
            let from = graph.add(source("from", &rows_schema(), copies, &data));
            let to = graph.add(sink("to", 1, kept));
            graph.connect(
                from,
                to,
                Rounds::new(tidemill_dataflow::exchange::Reduce::new(Reduction::new().sum("n")), RoundEnd::Strict),
            );
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("copy 1 of its source ended after 3 messages"), "{error}");
    }
}

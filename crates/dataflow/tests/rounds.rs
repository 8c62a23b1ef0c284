//! Exchanges by rounds against a few lines of the standard library, and loops, whose edges lead back.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{AsArray, Float64Array, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Float64Type, Int64Type, SchemaRef, TimeUnit, TimestampMicrosecondType};
use common::{Data, run_graph, run_graph_on, schema, sink, source, tight};
use proptest::prelude::*;
use tidemill_dataflow::exchange::*;
use tidemill_dataflow::{Graph, Overlay, Shape, StreamElement, TaskId, TaskSpec};

/// A key, and a number.
type Row = (i64, i64);
/// The rounds that each copy gets.
type CopyRounds = BTreeMap<u32, Vec<Vec<Row>>>;

fn rows_schema() -> SchemaRef {
    schema(&[("k", DataType::Int64), ("n", DataType::Int64)])
}

fn batch(rows: &[Row]) -> RecordBatch {
    let column = |of: fn(&Row) -> i64| Arc::new(Int64Array::from_iter_values(rows.iter().map(of)));
    RecordBatch::try_new(rows_schema(), vec![column(|row| row.0), column(|row| row.1)]).unwrap()
}

fn read(batch: &RecordBatch) -> Vec<Row> {
    let column = |at: usize| batch.column(at).as_primitive::<Int64Type>().values().iter().copied();
    column(0).zip(column(1)).collect()
}

/// Messages of a copy, some without rows.
fn messages(seed: u64, copy: u32, rounds: usize, size: usize) -> Vec<Vec<Row>> {
    let mut state = seed * 1_000_003 + u64::from(copy) * 7919 + 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..rounds)
        .map(|_| (0..next() as usize % (size + 1)).map(|_| ((next() % 9) as i64, next() as i64 % 100)).collect())
        .collect()
}

/// What each copy gets of one source through `exchange`.
fn run(workers: u32, copies: (u32, u32), data: &Data, exchange: impl Exchange + Clone + 'static) -> CopyRounds {
    let (kept, _) = run_graph(workers, &tight(), |graph, kept| {
        let from = graph.add(source("from", &rows_schema(), copies.0, data));
        let to = graph.add(sink("to", copies.1, kept));
        graph.connect(from, to, exchange.clone());
    })
    .unwrap();
    kept.into_iter().map(|(copy, rounds)| (copy, rounds.iter().map(read).collect())).collect()
}

fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_unstable();
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

    /// A round that has rows of another one, lacks some, or comes in another order.
    #[test]
    fn rounds_are_what_the_nth_messages_make(
        workers in 1u32..=6, from in 1u32..5, to in 1u32..5, rounds in 0usize..80, size in 0usize..40, seed in 0u64..1000,
        partial: bool,
    ) {
        let of = move |copy: u32| messages(seed, copy, rounds + if partial { copy as usize % 3 } else { 0 }, size);
        let data: Data = Arc::new(move |copy| of(copy).iter().map(|rows| batch(rows)).collect());
        let all: Vec<_> = (0..from).map(of).collect();
        let count = all.iter().map(Vec::len).max().unwrap();
        let round = |at: usize| all.iter().filter_map(|messages| messages.get(at)).flatten().copied().collect();
        let expected: Vec<Vec<Row>> = (0..count).map(round).collect();
        let end = if partial { RoundEnd::Partial } else { RoundEnd::Strict };
        let whole = |kept: &CopyRounds, copy: u32| kept.get(&copy).cloned().unwrap_or_default();

        let kept = run(workers, (from, to), &data, Rounds::new(Gather::to(to - 1), end));
        for copy in 0..to {
            prop_assert_eq!(whole(&kept, copy), if copy == to - 1 { expected.clone() } else { Vec::new() });
        }
        let kept = run(workers, (from, to), &data, Rounds::new(Broadcast::default(), end));
        for copy in 0..to {
            prop_assert_eq!(whole(&kept, copy), expected.clone());
        }
        let kept = run(workers, (from, from), &data, Rounds::new(Direct, end));
        for copy in 0..from {
            prop_assert_eq!(whole(&kept, copy), all[copy as usize].clone());
        }
        let part = |kept: &CopyRounds, at: usize| -> Vec<Vec<Row>> {
            (0..to).map(|copy| kept[&copy][at].clone()).collect()
        };
        let reduce = KeyedReduce::new(["k"], Reduction::new().sum("n"));
        let keyed: [(bool, CopyRounds); 3] = [
            (false, run(workers, (from, to), &data, Rounds::new(Partition::by_key(["k"]), end))),
            (false, run(workers, (from, to), &data, Rounds::new(KeyedGather::new(["k"]), end))),
            (true, run(workers, (from, to), &data, Rounds::new(reduce, end))),
        ];
        for (reduced, kept) in keyed {
            prop_assert!(count == 0 || kept.values().all(|rounds| rounds.len() == count), "an empty round is one");
            let mut owner = BTreeMap::new();
            for (at, rows) in expected.iter().enumerate() {
                let parts = part(&kept, at);
                for (copy, rows) in parts.iter().enumerate() {
                    prop_assert!(rows.iter().all(|row| *owner.entry(row.0).or_insert(copy) == copy), "one copy owns a key");
                }
                let mut sums = BTreeMap::new();
                rows.iter().for_each(|row| *sums.entry(row.0).or_insert(0) += row.1);
                let wanted = if reduced { sums.into_iter().collect() } else { rows.clone() };
                prop_assert_eq!(sorted(parts.concat()), sorted(wanted));
            }
        }
    }
}

/// A key that is null, a zero or a NaN of either sign, or a number.
fn odd_key(number: i64) -> Option<f64> {
    match number {
        0 => None,
        1 | 2 => Some(f64::copysign(0.0, number as f64 - 1.5)),
        3 | 4 => Some(f64::copysign(f64::NAN, number as f64 - 3.5)),
        other => Some(other as f64),
    }
}

/// Rows by key, of which those that are equal have the same bits.
fn by_key(batches: &[RecordBatch]) -> Vec<(Option<u64>, i64)> {
    let rows = |batch: &RecordBatch| {
        let keys = batch.column(0).as_primitive::<Float64Type>().iter();
        let keys = keys.map(|key| key.map(|key| if key.is_nan() { f64::NAN } else { key + 0.0 }.to_bits()));
        keys.zip(batch.column(1).as_primitive::<Int64Type>().values().to_vec()).collect::<Vec<_>>()
    };
    let mut rows: Vec<_> = batches.iter().flat_map(rows).collect();
    rows.sort_unstable();
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, ..ProptestConfig::default() })]

    /// A key that is lost on the way, counted twice, or comes to another copy than without a tree.
    #[test]
    fn keyed_reductions_along_trees_are_those_without(
        hosts in prop::collection::vec(0u32..4, 1..=7), from in 1u32..8, to in 1u32..5, rounds in 0usize..12,
        size in 0usize..40, seed in 0u64..1000, partial: bool, kind in 0usize..4,
    ) {
        let (flat, binomial) = (Shape::Flat, Shape::Binomial);
        let overlay = [
            Overlay::Flat,
            Overlay::Binomial,
            Overlay::Levels { hosts: binomial, workers: flat },
            Overlay::Levels { hosts: flat, workers: binomial },
        ][kind];
        let schema = schema(&[("k", DataType::Float64), ("n", DataType::Int64)]);
        let of_batch = SchemaRef::clone(&schema);
        let odd = move |rows: &Vec<Row>| {
            let keys = Float64Array::from_iter(rows.iter().map(|row| odd_key(row.0)));
            let numbers = Int64Array::from_iter_values(rows.iter().map(|row| row.1));
            RecordBatch::try_new(SchemaRef::clone(&of_batch), vec![Arc::new(keys), Arc::new(numbers)]).unwrap()
        };
        let data: Data = Arc::new(move |copy| {
            let rounds = rounds + if partial { copy as usize % 3 } else { 0 };
            messages(seed, copy, rounds, size).iter().map(&odd).collect()
        });
        let run = |exchange: &(dyn Fn(&mut Graph, TaskId, TaskId) + Sync)| {
            let kept = run_graph_on(&hosts, &tight(), |graph, kept| {
                let from = graph.add(source("from", &schema, from, &data));
                let to = graph.add(sink("to", to, kept));
                exchange(graph, from, to);
            });
            kept.unwrap().0
        };
        let reduce = KeyedReduce::new(["k"], Reduction::new().sum("n"));
        let end = if partial { RoundEnd::Partial } else { RoundEnd::Strict };
        let connect = |along: Overlay, by_rounds: bool| {
            let reduce = reduce.clone().along(along);
            let kept = run(&|graph, from, to| _ = match by_rounds {
                true => graph.connect(from, to, Rounds::new(reduce.clone(), end)),
                false => graph.connect(from, to, reduce.clone()),
            });
            let rows = |batches: Vec<RecordBatch>| match by_rounds {
                true => batches.chunks(1).map(by_key).collect(),
                false => vec![by_key(&batches)],
            };
            kept.into_iter().map(|(copy, batches)| (copy, rows(batches))).collect::<BTreeMap<_, _>>()
        };
        for by_rounds in [true, false] {
            prop_assert_eq!(connect(overlay, by_rounds), connect(Overlay::Serial, by_rounds), "{} on {:?}", overlay, &hosts);
        }
    }
}

/// A round that has a row too many, or one that is cut where a message ends.
#[test]
fn rounds_of_rows_are_cut_from_messages() {
    for (seed, of_round) in [(1, 1), (2, 7), (3, 40), (4, 1000)] {
        let of = move |copy: u32| messages(seed, copy, 20 + copy as usize, 30);
        let data: Data = Arc::new(move |copy| of(copy).iter().map(|rows| batch(rows)).collect());
        let cut = |copy: u32| of(copy).concat().chunks(of_round).map(<[Row]>::to_vec).collect::<Vec<_>>();
        let all: Vec<_> = (0..3).map(cut).collect();
        let round = |at: usize| all.iter().filter_map(|rounds| rounds.get(at)).flatten().copied().collect();
        let expected: Vec<Vec<Row>> = (0..all.iter().map(Vec::len).max().unwrap()).map(round).collect();
        let unit = RoundUnit::Rows((of_round as u64).try_into().unwrap());
        let found = run(2, (3, 2), &data, Rounds::new(Gather::to(1), RoundEnd::Partial).of(unit));
        assert_eq!(found[&1], expected);
        let found = run(3, (3, 2), &data, Rounds::new(Partition::by_key(["k"]), RoundEnd::Partial).of(unit));
        for (at, rows) in expected.iter().enumerate() {
            let parts: Vec<Row> = found.values().flat_map(|rounds| rounds[at].clone()).collect();
            assert_eq!(sorted(parts), sorted(rows.clone()));
        }
        let reduce = Reduce::new(Reduction::new().sum("k").sum("n"));
        let found = run(3, (3, 1), &data, Rounds::new(reduce, RoundEnd::Partial).of(unit));
        let sum = |rows: &Vec<Row>| rows.iter().fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
        assert_eq!(found[&0].concat(), expected.iter().map(sum).collect::<Vec<_>>());
    }
}

/// Times of a copy, in order, and numbers of its own.
fn timed(seed: u64, copy: u32, rows: usize) -> Vec<Row> {
    let steps = messages(seed, copy, rows, 1);
    let mut now = 1_000 + i64::from(copy);
    let next = |step: &Vec<Row>| {
        now += if step.is_empty() { 1 } else { 11 * step[0].0 };
        (now, 1 + now % 7)
    };
    steps.iter().map(next).collect()
}

/// A slice that has rows of another one, lacks some, or goes out before all copies have come to the next one.
#[test]
fn rounds_of_time_are_slices() {
    let schema = schema(&[("t", DataType::Timestamp(TimeUnit::Microsecond, None)), ("n", DataType::Int64)]);
    for (seed, workers, hosts) in [(1, 1, 1), (2, 3, 2), (3, 5, 2), (4, 4, 4)] {
        let hosts: Vec<u32> = (0..workers).map(|worker| worker % hosts).collect();
        let of_batch = SchemaRef::clone(&schema);
        let data: Data = Arc::new(move |copy| {
            let rows = timed(seed, copy, 40 + 9 * copy as usize);
            let batch = |rows: &[Row]| {
                let times = TimestampMicrosecondArray::from_iter_values(rows.iter().map(|row| row.0));
                let numbers = Int64Array::from_iter_values(rows.iter().map(|row| row.1));
                RecordBatch::try_new(SchemaRef::clone(&of_batch), vec![Arc::new(times), Arc::new(numbers)]).unwrap()
            };
            rows.chunks(1 + copy as usize * 4).map(batch).collect()
        });
        let length_us = 50.try_into().unwrap();
        let slices = TimeSlices { column: 0, start_us: 900, length_us, out_of_order_us: Some(0) };
        let all: Vec<Vec<Row>> = (0..4).map(|copy| timed(seed, copy, 40 + 9 * copy as usize)).collect();
        let slice_of = |row: &Row| (row.0 - 900) / 50;
        let count = all.iter().flatten().map(slice_of).max().unwrap() + 1;
        let slice = |at: i64| all.iter().flatten().filter(|row| slice_of(row) == at).copied().collect::<Vec<_>>();
        let expected: Vec<Vec<Row>> = (0..count).map(slice).collect();
        assert!(expected[0].is_empty() && expected.iter().any(|rows| rows.len() > 3), "it shows nothing");
        let read = |batch: &RecordBatch| -> Vec<Row> {
            let times = batch.column(0).as_primitive::<TimestampMicrosecondType>().values().to_vec();
            times.into_iter().zip(batch.column(1).as_primitive::<Int64Type>().values().to_vec()).collect()
        };
        let numbers = |batch: &RecordBatch| {
            let at = batch.num_columns() - 1;
            batch.column(at).as_primitive::<Int64Type>().values().to_vec()
        };
        let connected = |connect: &(dyn Fn(&mut Graph, TaskId, TaskId) + Sync)| {
            let kept = run_graph_on(&hosts, &tight(), |graph, kept| {
                let from = graph.add(source("from", &schema, 4, &data));
                let to = graph.add(sink("to", 3, kept));
                connect(graph, from, to);
            });
            kept.unwrap().0
        };
        fn by_time<E: Exchange>(exchange: E, slices: TimeSlices) -> Rounds<E> {
            Rounds::new(exchange, RoundEnd::Strict).of(RoundUnit::Time(slices))
        }

        let kept = connected(&|graph, from, to| _ = graph.connect(from, to, by_time(Gather::to(1), slices)));
        assert_eq!(kept[&1].iter().map(read).collect::<Vec<_>>(), expected, "seed {seed}");
        let sums: Vec<Vec<i64>> = expected
            .iter()
            .map(|rows| if rows.is_empty() { Vec::new() } else { vec![rows.iter().map(|row| row.1).sum()] })
            .collect();
        let sum = || Reduction::new().sum("n");
        let kept = connected(&|graph, from, to| _ = graph.connect(from, to, by_time(Reduce::new(sum()).to(2), slices)));
        assert_eq!(kept[&2].iter().map(numbers).collect::<Vec<_>>(), sums, "seed {seed}");
        let kept = connected(&|graph, from, to| _ = graph.connect(from, to, by_time(AllReduce::new(sum()), slices)));
        for copy in 0..3 {
            assert_eq!(kept[&copy].iter().map(numbers).collect::<Vec<_>>(), sums, "seed {seed}");
        }
        let keyed = || KeyedReduce::new(["n"], Reduction::new().max("t")).along(Overlay::Flat);
        let kept = connected(&|graph, from, to| _ = graph.connect(from, to, by_time(keyed(), slices)));
        for (at, rows) in expected.iter().enumerate() {
            let latest: BTreeMap<i64, i64> = rows.iter().fold(BTreeMap::new(), |mut latest, row| {
                let known = latest.entry(row.1).or_insert(row.0);
                *known = row.0.max(*known);
                latest
            });
            let keys = |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().to_vec();
            let times =
                |batch: &RecordBatch| batch.column(1).as_primitive::<TimestampMicrosecondType>().values().to_vec();
            let found: Vec<Row> =
                kept.values().flat_map(|rounds| keys(&rounds[at]).into_iter().zip(times(&rounds[at]))).collect();
            assert_eq!(sorted(found), latest.into_iter().collect::<Vec<_>>(), "seed {seed}, slice {at}");
        }
    }
}

/// Results of fewer messages than the program means would be wrong in silence.
#[test]
fn strict_rounds_of_unequal_length_name_the_copy() {
    for (workers, copies) in [(1, 2), (3, 5)] {
        let data: Data = Arc::new(|copy| vec![batch(&[(1, 1)]); if copy == 1 { 3 } else { 9 }]);
        let error = run_graph(workers, &tight(), |graph, kept| {
            let from = graph.add(source("from", &rows_schema(), copies, &data));
            let to = graph.add(sink("to", 2, kept));
            graph.connect(from, to, Rounds::new(Partition::by_key(["k"]), RoundEnd::Strict));
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("copy 1 of task \"from\" ended after 3 messages"), "{error}");
    }
}

/// Sends numbers into a loop, `rows` of each at a time, until what comes back is large: alone, where all come back to
/// all copies; or through a task that doubles them.
fn looping(graph: &mut Graph, kept: &common::Kept, copies: u32, rows: usize, through: bool) {
    let kept = Arc::clone(kept);
    let head = TaskSpec::new("head", move |inputs, outputs, context| {
        let kept = Arc::clone(&kept);
        async move {
            let (mut input, mut output, mut number) = (inputs.into_only(), outputs.into_only(), 1);
            while number < 1000 {
                output.send(batch(&vec![(i64::from(context.copy()), number); rows])).await?;
                let Some(StreamElement::Batch(round)) = input.recv().await? else { return Err("it ended".into()) };
                number = round.column(1).as_primitive::<Int64Type>().values().iter().sum::<i64>() / rows as i64;
            }
            kept.lock().unwrap().insert(context.copy(), vec![batch(&[(0, number)])]);
            Ok(())
        }
    });
    let head = graph.add(head.input("in").output("out", rows_schema()).copies(copies));
    if !through {
        graph.feedback(head, head, Rounds::new(Broadcast::default(), RoundEnd::Strict));
        return;
    }
    let double = TaskSpec::new("double", |inputs, outputs, _| async move {
        let (mut input, mut output) = (inputs.into_only(), outputs.into_only());
        while let Some(StreamElement::Batch(round)) = input.recv().await? {
            let rows: Vec<Row> = read(&round).iter().map(|row| (row.0, 2 * row.1)).collect();
            output.send(batch(&rows)).await?;
        }
        Ok(())
    });
    let double = graph.add(double.input("in").output("out", rows_schema()).copies(copies));
    graph.connect(head, double, Rounds::new(Direct, RoundEnd::Strict));
    graph.feedback(double, head, Rounds::new(Direct, RoundEnd::Strict));
}

/// Copies that all wait until others take what they send would wait forever: messages are many times what an edge
/// holds.
#[test]
fn loops_of_any_message_end() {
    for (workers, copies, rows) in [(1, 2, 1), (1, 3, 60_000), (2, 3, 60_000), (3, 3, 1)] {
        for through in [false, true] {
            let (kept, _) =
                run_graph(workers, &tight(), |graph, kept| looping(graph, kept, copies, rows, through)).unwrap();
            let factor = if through { 2 } else { i64::from(copies) };
            let expected = (0..).map(|n| factor.pow(n)).find(|&n| n >= 1000).unwrap();
            assert_eq!(kept.len(), copies as usize);
            assert!(kept.values().all(|batches| read(&batches[0]) == [(0, expected)]), "{workers} {copies} {rows}");
        }
    }
}

/// What cannot run is refused before anything does.
#[test]
fn edges_of_loops_are_checked() {
    let task = |name: &str| {
        let body = |_: tidemill_dataflow::Inputs, _: tidemill_dataflow::Outputs, _| async { Ok(()) };
        TaskSpec::new(name, body).input("in").output("out", rows_schema()).copies(2)
    };
    fn strict() -> Rounds<Direct> {
        Rounds::new(Direct, RoundEnd::Strict)
    }
    type Build = fn(&mut Graph, [tidemill_dataflow::TaskId; 2]);
    let cases: [(Build, &str); 7] = [
        (|graph, [a, b]| _ = graph.connect(a, b, Direct).connect(b, a, Direct), "tasks form a cycle"),
        (
            |graph, [a, b]| _ = graph.connect(a, b, Direct).feedback(b, a, strict()),
            "every edge needs an exchange by rounds",
        ),
        (|graph, [a, b]| _ = graph.feedback(a, b, strict()), "it does not lead back"),
        (|graph, [a, _]| _ = graph.feedback(a, a, strict().of(RoundUnit::Epoch)), "where a round is a message"),
        (
            |graph, [a, _]| {
                let sort = Sort::by([SortKey::ascending("n")]);
                graph.feedback(a, a, Rounds::new(sort, RoundEnd::Strict));
            },
            "cannot go by rounds",
        ),
        (
            |graph, [a, b]| _ = graph.connect(a, b, strict()).feedback(b, a, strict()).connect(a, b, Direct),
            "every edge needs an exchange by rounds",
        ),
        (
            |graph, [a, b]| _ = graph.connect(a, b, strict()).feedback(b, a, strict()).connect(b, a, strict()),
            "another edge leads to the same port",
        ),
    ];
    for (build, expected) in cases {
        let mut graph = Graph::new("checked");
        let tasks = [graph.add(task("a")), graph.add(task("b"))];
        build(&mut graph, tasks);
        let error = graph.check(2).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mut graph = Graph::new("sound");
    let (a, b) = (graph.add(task("a")), graph.add(task("b")));
    graph.connect(a, b, strict()).feedback(b, a, strict());
    graph.check(2).unwrap();
    let text = graph.explain(2, None).unwrap();
    assert!(text.contains("feedback b.out -> a.in (direct by rounds)"), "{text}");
    assert!(graph.to_svg(2, None).unwrap().contains("↩ a:"));
}

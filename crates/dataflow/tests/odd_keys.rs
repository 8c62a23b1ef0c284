//! Exchanges that bring rows together by key, with keys of every kind: texts, dictionaries, lists, structs, several
//! columns, and floats with zeros and NaNs of both signs; in memory and on disk.

mod common;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::*;
use arrow::compute::{SortOptions, concat_batches};
use arrow::datatypes::{DataType, Field, Float64Type, Int32Type, Int64Type, Schema, SchemaRef};
use common::{Data, run_graph, sink, source, tight};
use tidemill_dataflow::RunnerSettings;
use tidemill_dataflow::exchange::*;
use tidemill_dataflow::floats::canonical;
use tidemill_dataflow::memory::MemorySettings;

const KINDS: [&str; 8] =
    ["text", "view", "dictionary", "float", "list", "struct", "float and text", "coded and nested"];
const ROWS: u32 = 300;
const BATCHES: u32 = 4;

/// The number of the key of row `row` of copy `copy`; keys are equal if their numbers are.
fn number(copy: u32, row: u32) -> u32 {
    (row * 7919 + copy * 31) % 60
}

fn text(number: u32) -> Option<String> {
    (number != 7).then(|| format!("key {number} that is longer than any prefix"))
}

/// Numbers below 3 are a null, a zero and a NaN, the last two with the requested sign.
fn float(number: u32, negative: bool) -> Option<f64> {
    let sign = if negative { -1.0 } else { 1.0 };
    match number {
        0 => None,
        1 => Some(f64::copysign(0.0, sign)),
        2 => Some(f64::copysign(f64::NAN, sign)),
        other => Some(f64::from(other) - 30.5),
    }
}

/// The key columns of rows with these key numbers.
fn keys(kind: &str, numbers: &[u32]) -> Vec<ArrayRef> {
    let texts = || Arc::new(StringArray::from_iter(numbers.iter().map(|n| text(*n)))) as ArrayRef;
    let signed = |number: &dyn Fn(u32) -> u32| -> ArrayRef {
        Arc::new(Float64Array::from_iter(numbers.iter().enumerate().map(|(row, n)| float(number(*n), row % 2 == 0))))
    };
    let floats = || signed(&|n| n);
    let dictionary = || {
        let texts: Vec<Option<String>> = numbers.iter().map(|n| text(*n)).collect();
        Arc::new(DictionaryArray::<Int32Type>::from_iter(texts.iter().map(Option::as_deref))) as ArrayRef
    };
    let structs = || {
        let fields = vec![Field::new("f", DataType::Float64, true), Field::new("t", DataType::Utf8, true)];
        Arc::new(StructArray::new(fields.into(), vec![floats(), texts()], None)) as ArrayRef
    };
    match kind {
        "text" => vec![texts()],
        "view" => vec![Arc::new(StringViewArray::from_iter(numbers.iter().map(|n| text(*n))))],
        "dictionary" => vec![dictionary()],
        "float" => vec![floats()],
        "list" => {
            let lists = numbers
                .iter()
                .enumerate()
                .map(|(row, n)| (*n != 5).then(|| vec![float(*n, row % 2 == 0), None, float(1, row % 3 == 0)]));
            vec![Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(lists))]
        }
        "struct" => vec![structs()],
        // The first column alone does not distinguish keys: most are zeros and NaNs.
        "float and text" => vec![signed(&|n| 1 + n % 2), texts()],
        _ => vec![dictionary(), structs()],
    }
}

/// Key columns `k0`, ..., then the row's number and its key's number.
fn rows(kind: &str, prefix: &str, copy: u32, batch: u32) -> RecordBatch {
    let all: Vec<u32> = (batch * ROWS..(batch + 1) * ROWS).collect();
    let numbers: Vec<u32> = all.iter().map(|row| number(copy, *row)).collect();
    let mut columns = keys(kind, &numbers);
    let mut fields: Vec<Field> = columns
        .iter()
        .enumerate()
        .map(|(at, column)| Field::new(format!("{prefix}k{at}"), column.data_type().clone(), true))
        .collect();
    for (name, values) in [("row", all.iter().map(|row| copy * 10_000 + row).collect::<Vec<_>>()), ("number", numbers)]
    {
        fields.push(Field::new(format!("{prefix}{name}"), DataType::Int64, true));
        columns.push(Arc::new(Int64Array::from_iter_values(values.into_iter().map(i64::from))));
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

fn data(kind: &'static str, prefix: &'static str) -> (SchemaRef, Vec<String>, Data) {
    let schema = rows(kind, prefix, 0, 0).schema();
    let names = schema.fields().iter().map(|field| field.name().clone()).filter(|name| name.contains('k'));
    (
        schema.clone(),
        names.collect(),
        Arc::new(move |copy| (0..BATCHES).map(|at| rows(kind, prefix, copy, at)).collect()),
    )
}

fn settings(spill: bool) -> RunnerSettings {
    let budget_bytes = if spill { 300 << 10 } else { 0 };
    let memory = MemorySettings { budget_bytes, watch_process: false, ..MemorySettings::default() };
    RunnerSettings { memory, ..tight() }
}

fn numbers(batch: &RecordBatch, name: &str) -> Vec<Option<i64>> {
    batch.column_by_name(name).unwrap().as_primitive::<Int64Type>().iter().collect()
}

fn cases() -> impl Iterator<Item = (&'static str, bool)> {
    KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)])
}

/// A key in two layouts, or with the other zero between its rows, must not come as two groups.
#[test]
fn keyed_gather_brings_each_key_once() {
    for (kind, spill) in cases() {
        let (schema, names, data) = data(kind, "");
        let (kept, _) = run_graph(2, &settings(spill), |graph, kept| {
            let from = graph.add(source("from", &schema, 3, &data));
            let to = graph.add(sink("to", 2, kept));
            graph.connect(from, to, KeyedGather::new(names.clone()));
        })
        .unwrap();
        let (mut seen, mut found) = (BTreeSet::new(), BTreeSet::new());
        for batches in kept.values() {
            let mut last = None;
            for batch in batches {
                for (key, row) in numbers(batch, "number").into_iter().zip(numbers(batch, "row")) {
                    assert!(found.insert(row), "{kind}: row {row:?} comes twice");
                    assert!(last == Some(key) || seen.insert(key), "{kind}, spilling {spill}: key {key:?} comes again");
                    last = Some(key);
                }
            }
        }
        assert_eq!(found.len() as u32, 3 * BATCHES * ROWS, "{kind}");
    }
}

/// Each key is one row, from all rows that have it, however its zeros and NaNs are encoded.
#[test]
fn keyed_reduce_makes_one_row_of_each_key() {
    for (kind, spill) in cases() {
        let (schema, names, data) = data(kind, "");
        let (kept, _) = run_graph(2, &settings(spill), |graph, kept| {
            let from = graph.add(source("from", &schema, 3, &data));
            let to = graph.add(sink("to", 2, kept));
            graph.connect(from, to, KeyedReduce::new(names.clone(), Reduction::new().max("number").sum("row")));
        })
        .unwrap();
        let mut expected: BTreeMap<i64, i64> = BTreeMap::new();
        for (copy, row) in (0..3).flat_map(|copy| (0..BATCHES * ROWS).map(move |row| (copy, row))) {
            *expected.entry(number(copy, row).into()).or_default() += i64::from(copy * 10_000 + row);
        }
        let mut found = BTreeMap::new();
        for batch in kept.values().flatten() {
            for (key, sum) in numbers(batch, "number").into_iter().zip(numbers(batch, "row")) {
                assert!(
                    found.insert(key.unwrap(), sum.unwrap()).is_none(),
                    "{kind}, spilling {spill}: {key:?} comes twice"
                );
            }
        }
        assert_eq!(found, expected, "{kind}, spilling {spill}");
    }
}

/// A join returns exactly the pairs of equal keys, whatever the keys are; a key with a null matches nothing.
#[test]
fn join_pairs_equal_keys() {
    for (kind, spill) in cases() {
        let ((left, left_keys, left_data), (right, right_keys, right_data)) = (data(kind, ""), data(kind, "r"));
        let on: Vec<(String, String)> = left_keys.into_iter().zip(right_keys).collect();
        let (kept, _) = run_graph(2, &settings(spill), |graph, kept| {
            let l = graph.add(source("left", &left, 2, &left_data));
            let r = graph.add(source("right", &right, 1, &right_data));
            let to = graph.add(sink("to", 3, kept));
            graph.connect_all(vec![l.into(), r.into()], to, Join::new(JoinKind::Inner, on.clone()));
        })
        .unwrap();
        let mut found: BTreeMap<(i64, i64), usize> = BTreeMap::new();
        for batch in kept.values().flatten() {
            for (one, other) in numbers(batch, "number").into_iter().zip(numbers(batch, "rnumber")) {
                *found.entry((one.unwrap(), other.unwrap())).or_default() += 1;
            }
        }
        // The rows of each key: as many on both copies of the left side.
        let has_null = |number: i64| match kind {
            "text" | "view" | "dictionary" | "float and text" | "coded and nested" => number == 7,
            "float" => number == 0,
            "list" => number == 5,
            _ => false,
        };
        let mut expected: BTreeMap<(i64, i64), usize> = BTreeMap::new();
        let count =
            |copy: u32, key: i64| (0..BATCHES * ROWS).filter(|row| i64::from(number(copy, *row)) == key).count();
        for key in (0..60).filter(|key| !has_null(*key)) {
            expected.insert((key, key), (count(0, key) + count(1, key)) * count(0, key));
        }
        assert_eq!(found, expected, "{kind}, spilling {spill}");
    }
}

/// Whatever the keys are, a sort returns each row once, and never before a smaller one. NaNs of either sign are the
/// largest.
#[test]
fn sorts_are_in_order() {
    for (kind, spill) in cases() {
        let (schema, names, data) = data(kind, "");
        let (kept, _) = run_graph(2, &settings(spill), |graph, kept| {
            let from = graph.add(source("from", &schema, 3, &data));
            let to = graph.add(sink("to", 3, kept));
            graph.connect(from, to, Sort::by(names.iter().map(SortKey::ascending)));
        })
        .unwrap();
        let all = concat_batches(&schema, kept.values().flatten()).unwrap();
        let rows: BTreeSet<_> = numbers(&all, "row").into_iter().collect();
        assert_eq!((rows.len(), all.num_rows()), (3600, 3600), "{kind}");
        let ascending = SortOptions { descending: false, nulls_first: true };
        let columns: Vec<DynComparator> = names
            .iter()
            .map(|name| all.column_by_name(name).unwrap())
            .map(|column| canonical(column).unwrap())
            .map(|column| make_comparator(&column, &column, ascending).unwrap())
            .collect();
        for row in 1..all.num_rows() {
            let by_column = columns.iter().map(|compare| compare(row - 1, row));
            let order = by_column.fold(Ordering::Equal, Ordering::then);
            assert!(order.is_le(), "{kind}, spilling {spill}: row {row}");
        }
    }
}

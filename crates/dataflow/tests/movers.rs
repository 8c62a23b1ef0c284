//! Direct, broadcast, gather, partition: what arrives is what was sent, at the right copy, in order where that is
//! promised, on any number of workers and copies, with any type of column.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::*;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, SchemaRef};
use common::{Data, OVERLAYS, all_rows, rows, run_graph, schema, sink, sorted_rows, source, tight};
use proptest::prelude::*;
use tidemill_dataflow::exchange::{Broadcast, Direct, Exchange, Gather, Partition};
use tidemill_dataflow::keys::KeyHasher;
use tidemill_dataflow::{RouteMap, StreamElement, TaskSpec};

/// A batch with every kind of column: numbers with NaN, strings, views, dictionaries, nested; with nulls everywhere.
fn mixed(seed: u64, count: usize) -> RecordBatch {
    let n = |row: usize| (seed.wrapping_mul(31).wrapping_add(row as u64 * 7919)) % 97;
    let null = |row: usize| n(row).is_multiple_of(11);
    let some = |row: usize| (!null(row)).then(|| n(row));
    let text = |row: usize| some(row).map(|n| format!("word {} {}", n % 10, "x".repeat(n as usize % 20)));
    let ints: Int64Array = (0..count).map(|row| some(row).map(|n| n as i64)).collect();
    let floats: Float64Array =
        (0..count).map(|row| some(row).map(|n| if n % 5 == 0 { f64::NAN } else { n as f64 })).collect();
    let strings: StringArray = (0..count).map(text).collect();
    let views: StringViewArray = (0..count).map(text).collect();
    let flags: BooleanArray = (0..count).map(|row| some(row).map(|n| n % 2 == 0)).collect();
    let words: DictionaryArray<Int32Type> =
        (0..count).map(|row| some(row).map(|n| ["a", "b", "c"][n as usize % 3])).collect();
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(
        (0..count).map(|row| some(row).map(|n| (0..n % 4).map(|i| (i != 2).then_some(i as i32)).collect::<Vec<_>>())),
    );
    let pair_int: ArrayRef = Arc::new(ints.clone());
    let pair_text: ArrayRef = Arc::new(strings.clone());
    let fields = vec![Field::new("n", DataType::Int64, true), Field::new("t", DataType::Utf8, true)];
    let pairs = StructArray::new(fields.into(), vec![pair_int, pair_text], None);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i", Arc::new(ints)),
        ("f", Arc::new(floats)),
        ("s", Arc::new(strings)),
        ("v", Arc::new(views)),
        ("b", Arc::new(flags)),
        ("d", Arc::new(words)),
        ("l", Arc::new(lists)),
        ("p", Arc::new(pairs)),
    ];
    let fields: Vec<(&str, DataType)> = columns.iter().map(|(name, c)| (*name, c.data_type().clone())).collect();
    RecordBatch::try_new(schema(&fields), columns.into_iter().map(|(_, column)| column).collect()).unwrap()
}

fn mixed_schema() -> SchemaRef {
    mixed(0, 0).schema()
}

/// Copies send different numbers of batches of different sizes, some empty, and some copies none.
fn mixed_data(seed: u64, batches: usize, rows: usize) -> Data {
    Arc::new(move |copy| {
        let batch = |at: usize| mixed(seed + u64::from(copy) * 1000 + at as u64, (rows * at) % (rows + 1));
        (0..batches + copy as usize % 2).map(batch).collect()
    })
}

fn sent(data: &Data, copies: u32) -> Vec<RecordBatch> {
    (0..copies).flat_map(|copy| data(copy)).collect()
}

fn run(
    workers: u32,
    copies: (u32, u32),
    data: &Data,
    schema: &SchemaRef,
    exchange: impl Exchange + Clone + 'static,
) -> BTreeMap<u32, Vec<RecordBatch>> {
    let result = run_graph(workers, &tight(), |graph, kept| {
        let from = graph.add(source("from", schema, copies.0, data));
        let to = graph.add(sink("to", copies.1, kept));
        graph.connect(from, to, exchange.clone());
    });
    let (kept, reports) = result.unwrap();
    let rows: usize = kept.values().flatten().map(RecordBatch::num_rows).sum();
    assert_eq!(reports.iter().map(|report| report.edges[0].rows_received).sum::<u64>(), rows as u64);
    for batch in kept.values().flatten() {
        assert!(batch.num_rows() > 0);
        assert_eq!(batch.schema(), *schema);
    }
    kept
}

/// Sends messages of these sizes: those that `nulls` selects as batches that begin with a null, the others as values
/// or as batches.
fn messages(copies: u32, sizes: &Arc<Vec<usize>>, nulls: u64, as_values: bool) -> TaskSpec {
    let sizes = Arc::clone(sizes);
    TaskSpec::new("from", move |_, outputs, context| {
        let sizes = Arc::clone(&sizes);
        async move {
            let mut output = outputs.into_only();
            let mut next = i64::from(context.copy()) * 1_000_000;
            for (number, &size) in sizes.iter().enumerate() {
                let has_null = nulls >> (number % 64) & 1 == 1;
                let values: Vec<i64> = (next..).take(size).collect();
                next += size as i64;
                if as_values && !has_null {
                    output.send_values::<Int64Type>(&values).await?;
                    continue;
                }
                let column: Int64Array =
                    has_null.then_some(None).into_iter().chain(values.into_iter().map(Some)).collect();
                output.send(RecordBatch::try_new(schema(&[("n", DataType::Int64)]), vec![Arc::new(column)])?).await?;
            }
            Ok(())
        }
    })
    .output("out", schema(&[("n", DataType::Int64)]))
    .copies(copies)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Catches values that overtook earlier ones, got lost between batches, or went to another copy than a batch of
    /// them.
    #[test]
    fn values_are_sent_as_batches_are(
        workers in 1u32..=4, from in 1u32..4, to in 1u32..4, nulls: (u64, u64, u64), by in 0usize..4,
        sizes in prop::collection::vec(prop_oneof![8 => 0usize..40, 1 => 400usize..3000], 0..200),
    ) {
        let sizes = Arc::new(sizes);
        // For each copy, what came from each source in order, and how many nulls.
        let received = |as_values: bool| -> BTreeMap<u32, (Vec<i64>, usize)> {
            let result = run_graph(workers, &tight(), |graph, kept| {
                let source = graph.add(messages(from, &sizes, nulls.0 & nulls.1 & nulls.2, as_values));
                let sink = graph.add(sink("to", to, kept));
                match by {
                    0 => graph.connect(source, sink, Partition::round_robin()),
                    1 => graph.connect(source, sink, Partition::by_key(["n"])),
                    2 => graph.connect(source, sink, Gather::default()),
                    _ => graph.connect(source, sink, Broadcast::default()),
                };
            });
            let of = |batches: Vec<RecordBatch>| {
                let columns = || batches.iter().map(|batch| batch.column(0).as_primitive::<Int64Type>());
                let mut values: Vec<i64> = columns().flat_map(|column| column.iter().flatten()).collect();
                values.sort_by_key(|n| n / 1_000_000);
                (values, columns().map(Array::null_count).sum())
            };
            result.unwrap().0.into_iter().map(|(copy, batches)| (copy, of(batches))).collect()
        };
        let (by_values, by_batches) = (received(true), received(false));
        if by > 0 {
            prop_assert_eq!(by_values, by_batches);
        } else {
            // When copies take turns, the one with room gets the next batch.
            let all = |received: BTreeMap<u32, (Vec<i64>, usize)>| {
                let nulls: usize = received.values().map(|(_, nulls)| nulls).sum();
                let mut values: Vec<i64> = received.into_values().flat_map(|(values, _)| values).collect();
                values.sort_unstable();
                (values, nulls)
            };
            prop_assert_eq!(all(by_values), all(by_batches));
        }
    }

    /// A row that is lost, doubled, changed or sent to the wrong copy differs from where its key was first seen.
    #[test]
    fn partition_by_key_keeps_rows_and_brings_equal_keys_together(
        workers in 1u32..=8, from in 1u32..6, to in 1u32..6, batches in 0usize..6, rows_max in 0usize..400,
        seed in 0u64..1000, keys in 0usize..5,
    ) {
        let data = mixed_data(seed, batches, rows_max);
        let names = [&["i"][..], &["s", "f"], &["d"], &["l", "b"], &["p"]][keys];
        let kept = run(workers, (from, to), &data, &mixed_schema(), Partition::by_key(names.iter().copied()));
        prop_assert_eq!(all_rows(&kept), sorted_rows(&sent(&data, from)));
        let mut owner: HashMap<Vec<u8>, u32> = HashMap::new();
        for (&copy, batches) in &kept {
            let only: Vec<RecordBatch> = batches.iter().map(|batch| {
                let at: Vec<usize> = names.iter().map(|name| batch.schema().index_of(name).unwrap()).collect();
                batch.project(&at).unwrap()
            }).collect();
            for key in rows(&only) {
                prop_assert_eq!(*owner.entry(key).or_insert(copy), copy);
            }
        }
    }

    /// Round-robin, gathered and custom: nothing is lost, and gathered streams keep their order.
    #[test]
    fn other_movers_keep_rows_and_order(
        workers in 1u32..=8, from in 1u32..6, to in 1u32..6, batches in 0usize..6, rows_max in 0usize..400, seed in 0u64..1000,
        kind in 0..OVERLAYS.len(),
    ) {
        let overlay = OVERLAYS[kind];
        let (data, schema) = (mixed_data(seed, batches, rows_max), mixed_schema());
        let all = sorted_rows(&sent(&data, from));

        prop_assert_eq!(all_rows(&run(workers, (from, to), &data, &schema, Partition::round_robin())), all.clone());

        let by_size = Partition::with("size", |batch, copies| {
            Ok((0..batch.num_rows()).map(|row| row as u32 % copies).collect())
        });
        let kept = run(workers, (from, to), &data, &schema, by_size);
        prop_assert_eq!(all_rows(&kept), all.clone());

        let kept = run(workers, (from, to), &data, &schema, Gather::to(to - 1));
        prop_assert!(kept.keys().all(|&copy| copy == to - 1));
        prop_assert_eq!(all_rows(&kept), all.clone());
        let kept = run(workers, (from, to), &data, &schema, Gather::to(to - 1).along(overlay));
        prop_assert!(kept.keys().all(|&copy| copy == to - 1));
        prop_assert_eq!(all_rows(&kept), all);
        // With one source the order is the source's; direct edges have one source each.
        for gather in [Gather::to(0), Gather::to(0).along(overlay)] {
            let kept = run(workers, (1, to), &data, &schema, gather);
            prop_assert_eq!(rows(kept.get(&0).map_or(&[], Vec::as_slice)), rows(&data(0)));
        }
        let kept = run(workers, (from, from), &data, &schema, Direct);
        for copy in 0..from {
            prop_assert_eq!(rows(kept.get(&copy).map_or(&[], Vec::as_slice)), rows(&data(copy)));
        }
    }

    /// Every copy gets everything, along every kind of tree.
    #[test]
    fn broadcasts_reach_every_copy(
        workers in 1u32..=8, from in 1u32..4, to in 1u32..9, batches in 0usize..6, rows_max in 0usize..400, seed in 0u64..1000,
        kind in 0..OVERLAYS.len(),
    ) {
        let overlay = OVERLAYS[kind];
        let data = mixed_data(seed, batches, rows_max);
        let kept = run(workers, (from, to), &data, &mixed_schema(), Broadcast::along(overlay));
        let all = sorted_rows(&sent(&data, from));
        for copy in 0..to {
            prop_assert_eq!(sorted_rows(kept.get(&copy).map_or(&[], Vec::as_slice)), all.clone());
        }
    }

    /// The same if each copy is sent to separately, and if the tree is chosen automatically; rows of one source keep
    /// their order.
    #[test]
    fn broadcasts_to_copies_and_by_choice_reach_every_copy(
        workers in 1u32..=8, from in 1u32..4, to in 1u32..9, batches in 0usize..6, rows_max in 0usize..400, seed in 0u64..1000,
    ) {
        let data = mixed_data(seed, batches, rows_max);
        for broadcast in [Broadcast::to_copies(), Broadcast::default(), Broadcast::for_messages(1 << 20)] {
            let kept = run(workers, (from, to), &data, &mixed_schema(), broadcast);
            let all = sorted_rows(&sent(&data, from));
            for copy in 0..to {
                prop_assert_eq!(sorted_rows(kept.get(&copy).map_or(&[], Vec::as_slice)), all.clone());
            }
            let kept = run(workers, (1, to), &data, &mixed_schema(), broadcast);
            for copy in 0..to {
                prop_assert_eq!(rows(kept.get(&copy).map_or(&[], Vec::as_slice)), rows(&data(0)));
            }
        }
    }
}

/// A worker receives a batch once, however many copies it runs; sending to each copy would cross the network once per
/// copy.
#[test]
fn a_broadcast_crosses_to_each_worker_once() {
    let schema = schema(&[("n", DataType::Int64)]);
    let of_batch = schema.clone();
    let data: Data = Arc::new(move |_| {
        let batch = |at: i64| {
            RecordBatch::try_new(of_batch.clone(), vec![Arc::new(Int64Array::from_iter_values(at..at + 20_000))])
                .unwrap()
        };
        (0..5).map(batch).collect()
    });
    for overlay in OVERLAYS {
        let (kept, reports) = run_graph(3, &tight(), |graph, kept| {
            let from = graph.add(source("from", &schema, 1, &data));
            let to = graph.add(sink("to", 12, kept));
            graph.connect(from, to, Broadcast::along(overlay));
        })
        .unwrap();
        assert_eq!(kept.values().flatten().map(RecordBatch::num_rows).sum::<usize>(), 12 * 100_000);
        let crossed: u64 = reports.iter().flat_map(|report| &report.edges).map(|edge| edge.remote_bytes).sum();
        let once = 2 * 8 * 100_000;
        assert!((once..once + once / 10).contains(&crossed), "{overlay:?}: {crossed} bytes, not {once}");
    }
}

/// A custom route map is followed bucket by bucket, and its buckets are counted.
#[test]
fn route_maps_are_followed_and_counted() {
    let schema = schema(&[("k", DataType::Int64)]);
    let of_batch = schema.clone();
    let data: Data = Arc::new(move |copy| {
        let keys: Int64Array = (0..1000i64).map(|i| Some(i * 10 + i64::from(copy))).collect();
        vec![RecordBatch::try_new(of_batch.clone(), vec![Arc::new(keys)]).unwrap()]
    });
    // Everything goes to copy 1, except for bucket 3.
    let map = RouteMap::new(1, vec![1, 1, 1, 2, 1, 1, 1, 1]);
    let (kept, reports) = run_graph(2, &tight(), |graph, kept| {
        let from = graph.add(source("from", &schema, 2, &data));
        let to = graph.add(sink("to", 3, kept));
        graph.connect(from, to, Partition::by_key(["k"]).route(map.clone()));
    })
    .unwrap();
    let count = |copy: u32| kept.get(&copy).map_or(0, |b| b.iter().map(|b| b.num_rows() as u64).sum());
    let buckets: Vec<u64> = (0..8).map(|b| reports.iter().map(|report| report.edges[0].bucket_rows[b]).sum()).collect();
    assert_eq!(buckets.iter().sum::<u64>(), 2000);
    assert_eq!((count(0), count(1), count(2)), (0, 2000 - buckets[3], buckets[3]));
    assert!(buckets.iter().all(|&rows| (190..310).contains(&rows)), "{buckets:?}");
}

/// Moving buckets to less loaded copies requires their cost: rows of one may take far longer than those of others.
#[test]
fn buckets_are_charged_with_the_time_that_their_rows_take() {
    let schema = schema(&[("k", DataType::Int64)]);
    let of_keys =
        |keys: Vec<i64>| RecordBatch::try_from_iter([("k", Arc::new(Int64Array::from(keys)) as ArrayRef)]).unwrap();
    let data: Data = Arc::new(move |_| (0..256).map(|at| of_keys(vec![at / 64; 512])).collect());
    let slept_ns = Arc::new(AtomicU64::new(0));
    let (_, reports) = run_graph(2, &tight(), |graph, _| {
        let from = graph.add(source("from", &schema, 2, &data));
        let slept_ns = Arc::clone(&slept_ns);
        let slow = TaskSpec::new("slow", move |inputs, _, _| {
            let slept_ns = Arc::clone(&slept_ns);
            async move {
                let mut input = inputs.into_only();
                while let Some(StreamElement::Batch(batch)) = input.recv().await? {
                    if batch.column(0).as_primitive::<Int64Type>().value(0) == 3 {
                        std::thread::sleep(Duration::from_millis(1));
                        slept_ns.fetch_add(1_000_000, Ordering::Relaxed);
                    }
                }
                Ok(())
            }
        });
        let to = graph.add(slow.input("in").copies(2));
        graph.connect(from, to, Partition::by_key(["k"]).buckets(64));
    })
    .unwrap();
    let mut work_ns = vec![0; 64];
    for report in &reports {
        work_ns.iter_mut().zip(&report.edges[0].bucket_work_ns).for_each(|(all, ns)| *all += ns);
    }
    let mut hashes = Vec::new();
    KeyHasher::new(vec![0]).hash(&of_keys(vec![0, 1, 2, 3]), &mut hashes).unwrap();
    let map = RouteMap::even(64, 2);
    let buckets: Vec<usize> = hashes.iter().map(|&hash| map.bucket(hash) as usize).collect();
    // A millisecond or more for each block; one block in sixteen represents those before it, including some with
    // other keys.
    let slept_ns = slept_ns.load(Ordering::Relaxed);
    assert!(4 * work_ns[buckets[3]] > slept_ns, "of {slept_ns} {work_ns:?}");
    assert!((0..64).all(|bucket| buckets.contains(&bucket) || work_ns[bucket] == 0), "{work_ns:?}");
}

/// A column that is a slice of a large dictionary, or of many long strings, takes along only its own values; an
/// unchanged dictionary is sent once.
#[test]
fn dictionaries_and_views_cross_without_their_ballast() {
    let words: Vec<String> = (0..50_000).map(|i| format!("a rather long word with the number {i}")).collect();
    let strings: ArrayRef = Arc::new(StringArray::from(words));
    let dictionary_type = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    for data_type in [dictionary_type, DataType::Utf8View] {
        let big = cast(&strings, &data_type).unwrap();
        let schema: SchemaRef = Arc::new(arrow::datatypes::Schema::new(vec![Field::new("w", data_type.clone(), true)]));
        let batch = RecordBatch::try_new(schema.clone(), vec![big]).unwrap();
        let slices = batch.clone();
        let data: Data = Arc::new(move |_| (0..100).map(|i| slices.slice(i * 500, 500)).collect());
        let (kept, reports) = run_graph(2, &tight(), |graph, kept| {
            let from = graph.add(source("from", &schema, 1, &data));
            let to = graph.add(sink("to", 2, kept));
            graph.connect(from, to, Gather::to(1));
        })
        .unwrap();
        assert_eq!(rows(&kept[&1]), rows(&[batch]));
        let bytes: u64 = reports.iter().map(|report| report.edges[0].remote_bytes).sum();
        assert!(bytes < 5 << 20, "{data_type}: {bytes} bytes");
    }
}

/// Rows without columns, and columns without memory, are still rows.
#[test]
fn rows_without_bytes_arrive() {
    for fields in [&[][..], &[("n", DataType::Null), ("m", DataType::Null)]] {
        let schema = schema(fields);
        let of_batch = schema.clone();
        let data: Data = Arc::new(move |_| {
            let columns: Vec<ArrayRef> = of_batch.fields().iter().map(|_| Arc::new(NullArray::new(7)) as _).collect();
            let options = RecordBatchOptions::new().with_row_count(Some(7));
            vec![RecordBatch::try_new_with_options(of_batch.clone(), columns, &options).unwrap(); 3]
        });
        let kept = run(2, (2, 2), &data, &schema, Broadcast::default());
        for copy in 0..2 {
            assert_eq!(kept[&copy].iter().map(RecordBatch::num_rows).sum::<usize>(), 42);
        }
    }
}

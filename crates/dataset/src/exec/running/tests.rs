use arrow::array::{BooleanArray, Decimal128Array, Float64Array, Int64Array, StringArray};
use arrow::util::pretty::pretty_format_batches;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::datasource::MemTable;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::SessionContext;
use tidemill_dataflow::memory::MemorySettings;

use super::*;
use crate::engine::{Engine, EngineConfig};
use crate::error::DataSetError;
use crate::exec::replaced_exec::ReplacedExec;
use crate::exec::spilling_rule::SpillingRule;

/// Pseudorandom numbers.
struct TestRandom(u64);

impl TestRandom {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

fn batch(dice: &mut TestRandom, rows: u64, keys: u64) -> RecordBatch {
    let floats = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, 1.0, 2.5, -3.0];
    let mut column = |of: &mut dyn FnMut(u64) -> Option<u64>| -> Vec<Option<u64>> {
        (0..rows)
            .map(|_| {
                let n = dice.roll(1 << 20);
                of(n)
            })
            .collect()
    };
    let k = column(&mut |n| (n % 9 > 0).then_some(n / 9 % keys));
    let v = column(&mut |n| (n % 7 > 0).then_some(n / 7 % 8));
    let w = column(&mut |n| (n % 5 > 0).then_some(n / 5 % 1000));
    let columns: [(&str, ArrayRef); 7] = [
        ("k", Arc::new(Int64Array::from_iter(k.iter().map(|k| k.map(|k| k as i64 - 2))))),
        (
            "s",
            Arc::new(StringArray::from_iter(
                k.iter().map(|k| k.map(|k| format!("a long text for each key {}", k % 3))),
            )),
        ),
        ("v", Arc::new(Float64Array::from_iter(v.iter().map(|v| v.map(|v| floats[v as usize]))))),
        ("w", Arc::new(Int64Array::from_iter(w.iter().map(|w| w.map(|w| w as i64 - 500))))),
        ("x", Arc::new(Float64Array::from_iter(w.iter().map(|w| w.map(|w| w as f64 / 4.0))))),
        (
            "d",
            Arc::new(
                w.iter()
                    .map(|w| w.map(i128::from))
                    .collect::<Decimal128Array>()
                    .with_precision_and_scale(9, 2)
                    .unwrap(),
            ),
        ),
        ("b", Arc::new(BooleanArray::from_iter(w.iter().map(|w| w.map(|w| w % 2 == 0))))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

/// The results of a query with DataFusion's step and with this one, over the same sort; and the plan.
fn both(engine: &Engine, batches: &[RecordBatch], query: &str) -> [Result<String>; 2] {
    let state = engine.session().state();
    let mut rules = state.physical_optimizers().to_vec();
    rules.retain(|rule| rule.name() != SpillingRule::NAME);
    let config = state.config().clone().with_target_partitions(1);
    let builder =
        SessionStateBuilder::new_from_existing(state).with_config(config).with_physical_optimizer_rules(rules);
    let context = SessionContext::new_with_state(builder.build());
    let table = MemTable::try_new(batches[0].schema(), vec![batches.to_vec()]).unwrap();
    context.register_table("t", Arc::new(table)).unwrap();
    let in_order = InOrder { governor: Governor::new(MemorySettings::default()) };
    let query = query.to_owned();
    let run = async move {
        let plan = context.sql(&query).await?.create_physical_plan().await?;
        let replaced = Arc::clone(&plan).transform_up(|node| {
            Ok(ReplacedExec::of(&node, &in_order).map_or_else(|| Transformed::no(node), Transformed::yes))
        });
        let replaced = replaced?.data;
        let text = displayable(replaced.as_ref()).indent(false).to_string();
        assert!(text.contains("RunningExec"), "{query}: {text}");
        let shown =
            |rows: Result<Vec<RecordBatch>>| -> Result<String> { Ok(pretty_format_batches(&rows?)?.to_string()) };
        Ok::<_, DataFusionError>([
            shown(collect(plan, context.task_ctx()).await),
            shown(collect(replaced, context.task_ctx()).await),
        ])
    };
    engine.run(async move { run.await.map_err(DataSetError::from) }).unwrap()
}

fn engine() -> Engine {
    Engine::new(&EngineConfig { threads: 1, workers: 1, memory_bytes: None, spill_dir: None }).unwrap()
}

const FUNCTIONS: [&str; 14] = [
    "row_number()",
    "rank()",
    "dense_rank()",
    "lag(w)",
    "lag(s, 3)",
    "lag(b, 2, true)",
    "lead(w)",
    "lead(d, 7)",
    "lead(x, 2, -1.5)",
    "count(w)",
    "count(*)",
    "sum(w)",
    "sum(d)",
    "sum(x)",
];
const EXTREMES: [&str; 4] = ["min(w)", "max(d)", "min(x)", "max(x)"];

/// A comparison with DataFusion's own step catches state that survives the end of a partition, a batch that ends among
/// peers, and a row from the wrong partition.
#[test]
fn equals_datafusion() {
    let engine = engine();
    for round in 0..60 {
        let mut dice = TestRandom(round);
        let (batches, rows) = (1 + dice.roll(6), [1, 3, 40, 300][round as usize % 4]);
        let keys = [1, 4, 30][dice.roll(3) as usize];
        let batches: Vec<_> = (0..batches)
            .map(|_| {
                let rows = dice.roll(rows + 1);
                batch(&mut dice, rows, keys)
            })
            .collect();
        let partition =
            ["", "partition by k", "partition by s", "partition by k, s", "partition by v"][dice.roll(5) as usize];
        let order = ["v", "v desc", "v nulls first", "s desc nulls last, v", "w", "d desc, v"][dice.roll(6) as usize];
        let frame = ["", "rows between unbounded preceding and current row"][dice.roll(2) as usize];
        let some = FUNCTIONS.iter().chain(&EXTREMES).filter(|_| dice.roll(3) > 0);
        let calls: Vec<String> = some.enumerate().map(|(at, call)| format!("{call} over o as c{at}")).collect();
        let query = format!(
            "select *, row_number() over o, {} from t window o as ({partition} order by {order} {frame})",
            calls.join(", ")
        );
        let [theirs, ours] = both(&engine, &batches, &query).map(|shown| shown.unwrap());
        assert!(theirs == ours, "round {round}: {query}\n{theirs}\n{ours}");
    }
}

/// Many peers, and values far ahead: rows are held back over many batches until their values are known.
#[test]
fn rows_wait_for_their_values() {
    let engine = engine();
    let mut dice = TestRandom(1);
    let batches: Vec<_> = (0..30).map(|_| batch(&mut dice, 100, 2)).collect();
    for calls in
        ["sum(w) over o, count(*) over o", "lead(w, 2999) over o, lag(w, 500) over o, lead(x, 1200, 0.5) over o"]
    {
        let query = format!("select *, {calls} from t window o as (order by b)");
        let [theirs, ours] = both(&engine, &batches, &query).map(|shown| shown.unwrap());
        assert!(theirs == ours, "{query}");
    }
}

/// Overflowing sums cause the same error, but not if no row needs them.
#[test]
fn sums_beyond_their_type() {
    let engine = engine();
    let numbers = [i64::MAX, 1, -5, i64::MAX];
    let rows = |at: usize| {
        let columns: [(&str, ArrayRef); 3] = [
            ("n", Arc::new(Int64Array::from(numbers[..=at].to_vec()))),
            ("i", Arc::new(Int64Array::from_iter_values([0, 1, 1, 2][..=at].iter().copied()))),
            (
                "d",
                Arc::new(
                    numbers[..=at]
                        .iter()
                        .map(|_| Some(10_i128.pow(38) - 1))
                        .collect::<Decimal128Array>()
                        .with_precision_and_scale(38, 0)
                        .unwrap(),
                ),
            ),
        ];
        vec![RecordBatch::try_from_iter(columns).unwrap()]
    };
    let fine = both(&engine, &rows(2), "select sum(n) over (order by i) from t").map(|shown| shown.unwrap());
    assert_eq!(fine[0], fine[1]);
    for query in ["select sum(n) over (order by i) from t", "select sum(d) over (order by i) from t"] {
        let [theirs, ours] = both(&engine, &rows(3), query).map(|shown| shown.unwrap_err().to_string());
        assert_eq!(theirs, ours);
        assert!(ours.contains("beyond the range"), "{ours}");
    }
}

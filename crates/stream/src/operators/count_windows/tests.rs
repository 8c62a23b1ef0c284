//! Count windows on two copies, with moving keys and jobs that resume from snapshots, compared with a model that stores
//! all rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StructArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use bytes::Bytes;
use datafusion::functions_aggregate::{array_agg::array_agg_udaf, sum::sum_udaf};
use datafusion::physical_expr::aggregate::AggregateExprBuilder;
use datafusion::physical_expr::expressions::col;
use tidemill_dataflow::checkpoint::rows::decode;
use tidemill_dataflow::checkpoint::{DeferredPart, RestoredState};
use tidemill_dataflow::route_map::BUCKETS;

use super::state::CountState;
use super::{CountAggregation, KeyTtl};
use crate::rows::keyed::KeyedRows;
use crate::rows::late_rows::LateCount;
use crate::state::groups::GroupAggregation;
use crate::state::operator_memory::SpillArea;
use crate::state::snapshot_codec::buckets_of;
use crate::state::state_layout::{SavedParts, apply};
use crate::time::window::{Micros, count_fields};

/// A row: key, value and time.
type Row = (i64, i64, Micros);
/// A result: key, first row and the one after the last, sum of the values, and the values in order.
type Given = (i64, i64, i64, i64, Vec<i64>);

fn shape(size: i64, slide: i64) -> Arc<CountAggregation> {
    shape_for(size, slide, None)
}

/// How far times of rows may lie behind the watermark.
const BEHIND: Micros = 5;

fn shape_for(size: i64, slide: i64, ttl: Option<Micros>) -> Arc<CountAggregation> {
    let schema: SchemaRef =
        Arc::new(Schema::new(["key", "value", "at"].map(|name| Field::new(name, DataType::Int64, true)).to_vec()));
    let function = |of, name: &str| {
        let built = AggregateExprBuilder::new(of, vec![col("value", &schema).unwrap()]);
        Arc::new(built.schema(Arc::clone(&schema)).alias(name).build().unwrap())
    };
    let functions = vec![function(sum_udaf(), "sum"), function(array_agg_udaf(), "values")];
    let key = col("key", &schema).unwrap();
    let keyed = KeyedRows::new(&schema, vec![Arc::clone(&key)], false, None).unwrap();
    let mut output = vec![
        Arc::new(schema.field(0).clone()),
        Arc::new(Field::new("window", DataType::Struct(count_fields()), false)),
    ];
    output.extend(functions.iter().map(|function| function.field()));
    let of = GroupAggregation::new(vec![(key, "key".to_owned())], functions, vec![None, None], &schema).unwrap();
    let ttl = ttl.map(|ttl| KeyTtl { time: col("at", &schema).unwrap(), behind: BEHIND, ttl });
    let output = (Arc::new(Schema::new(output)) as SchemaRef, 1);
    Arc::new(CountAggregation::new(of, (size, slide), ttl, keyed, output, LateCount::default()))
}

fn batch(rows: &[Row]) -> RecordBatch {
    let column = |of: fn(&Row) -> i64| Arc::new(Int64Array::from_iter_values(rows.iter().map(of))) as ArrayRef;
    let columns = [("key", column(|row| row.0)), ("value", column(|row| row.1)), ("at", column(|row| row.2))];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

fn results(of: &RecordBatch) -> Vec<Given> {
    let windows: &StructArray = of.column(1).as_struct();
    let number = |column: &ArrayRef, at: usize| column.as_primitive::<Int64Type>().value(at);
    let of_row = |at| {
        let values = of.column(3).as_list::<i32>().value(at);
        let values = values.as_primitive::<Int64Type>().values().to_vec();
        let [start, end] = [0, 1].map(|bound| number(windows.column(bound), at));
        (number(of.column(0), at), start, end, number(of.column(2), at), values)
    };
    (0..of.num_rows()).map(of_row).collect()
}

/// All rows of each key, and when it expires.
#[derive(Default)]
struct CountModel {
    size: i64,
    slide: i64,
    ttl: Option<Micros>,
    now: Micros,
    rows: BTreeMap<i64, Vec<i64>>,
    until: BTreeMap<i64, Micros>,
}

impl CountModel {
    fn rows(&mut self, rows: &[Row]) -> Vec<Given> {
        let mut given = Vec::new();
        for &(key, value, at) in rows {
            let values = self.rows.entry(key).or_default();
            if let Some(ttl) = self.ttl {
                let until = self.until.entry(key).or_insert(at + ttl);
                if at >= *until || *until <= self.now - BEHIND {
                    values.clear();
                    *until = at + ttl;
                }
                *until = (at + ttl).max(*until);
            }
            values.push(value);
            let (end, size) = (values.len() as i64, self.size);
            if end >= size && (end - size) % self.slide == 0 {
                let window = &values[(end - size) as usize..];
                given.push((key, end - size, end, window.iter().sum(), window.to_vec()));
            }
        }
        given.sort();
        given
    }
}

/// Two copies, the owner of each bucket, and the snapshots of each by bucket: a full one, and changes since.
struct CountCopies {
    shape: Arc<CountAggregation>,
    disk: SpillArea,
    /// Copies spill each time rows have arrived this many times.
    spills: Option<usize>,
    came: usize,
    states: Vec<CountState>,
    owners: Vec<usize>,
    saved: Vec<SavedParts>,
    now: Micros,
}

impl CountCopies {
    fn new(shape: Arc<CountAggregation>, spills: Option<usize>, disk: SpillArea) -> Self {
        let states = (0..2).map(|_| CountState::new(&shape, true, &disk)).collect();
        let owners = (0..BUCKETS as usize).map(|bucket| bucket % 2).collect();
        CountCopies {
            shape,
            disk,
            spills,
            came: 0,
            states,
            owners,
            saved: vec![SavedParts::new(); 2],
            now: Micros::MIN,
        }
    }

    fn pass(&mut self, now: Micros) {
        self.now = now;
        self.states.iter_mut().for_each(|state| state.pass(now).unwrap());
    }

    fn rows(&mut self, rows: &[Row]) -> Vec<Given> {
        let all = batch(rows);
        let buckets = buckets_of(&all, &[0]).unwrap();
        let mut given = Vec::new();
        for (number, state) in self.states.iter_mut().enumerate() {
            let is_mine = buckets.iter().map(|&bucket| Some(self.owners[bucket as usize] == number));
            let mine = filter_record_batch(&all, &is_mine.collect()).unwrap();
            if mine.num_rows() > 0 {
                state.take(&mine, |some| given.extend(results(&some))).unwrap();
            }
        }
        self.came += 1;
        if self.spills.is_some_and(|every| self.came.is_multiple_of(every)) {
            self.spill();
        }
        given.sort();
        given
    }

    fn spill(&mut self) {
        self.states.iter_mut().for_each(|state| state.spill().unwrap());
    }

    fn bytes(&self) -> usize {
        self.states.iter().map(CountState::bytes).sum()
    }

    fn save(&mut self, whole: bool) {
        for (state, saved) in self.states.iter_mut().zip(&mut self.saved) {
            let parts = state.snapshot(whole).later.map_or_else(Vec::new, |DeferredPart(make)| make().unwrap());
            apply(parts, saved);
        }
    }

    /// Moves buckets to another owner, as just after a barrier.
    fn move_keys(&mut self, lost: &[u32], from: usize) {
        self.save(false);
        let moved = self.states[from].release(lost).unwrap();
        moved.iter().for_each(|(_, part)| _ = self.states[1 - from].acquire(part).unwrap());
        for &bucket in lost {
            self.owners[bucket as usize] = 1 - from;
            // The new owner now saves this bucket.
            self.saved[from].remove(&bucket);
        }
        self.save(true);
    }

    /// Resumes the job from its snapshots, with other owners.
    fn restart(&mut self, owners: Vec<usize>) {
        let all: SavedParts = std::mem::take(&mut self.saved).into_iter().flatten().collect();
        self.owners = owners;
        self.saved = Vec::new();
        for (number, state) in self.states.iter_mut().enumerate() {
            let mut restored = RestoredState::default();
            restored.shared.insert("fired".into(), vec![Bytes::copy_from_slice(&self.now.to_le_bytes())]);
            let mine = all.iter().filter(|(bucket, _)| self.owners[**bucket as usize] == number);
            restored.buckets.extend(mine.map(|(&bucket, parts)| (bucket, parts.clone())));
            *state = CountState::new(&self.shape, true, &self.disk);
            let mut rows = 0;
            for (number, table) in state.restore(&restored).unwrap().iter().enumerate() {
                let panes = decode(&self.shape.kept_schema, table).unwrap();
                rows += panes.num_rows();
                state.keep(panes).unwrap();
                if self.spills.is_some() && number % 100 == 0 {
                    state.spill().unwrap();
                }
            }
            state.restored(rows);
            self.saved.push(restored.buckets);
        }
    }
}

/// Random numbers.
struct CountRandom(u64);

impl CountRandom {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn owners(&mut self) -> Vec<usize> {
        (0..BUCKETS).map(|_| self.below(2) as usize).collect()
    }

    fn rows(&mut self, most: u64, keys: u64) -> Vec<Row> {
        (0..self.below(most)).map(|_| (self.below(keys) as i64, self.below(1000) as i64, 0)).collect()
    }

    fn step(&mut self, copies: &mut CountCopies) {
        match self.below(12) {
            0 | 1 => copies.save(self.below(4) == 0),
            2 => {
                let from = self.below(2) as usize;
                let lost = (0..BUCKETS).filter(|&bucket| copies.owners[bucket as usize] == from);
                let lost: Vec<u32> = lost.filter(|_| self.below(3) == 0).collect();
                copies.move_keys(&lost, from);
            }
            3 => {
                copies.save(self.below(4) == 0);
                copies.restart(self.owners());
            }
            _ => {}
        }
    }
}

/// Each result must have the rows of its window in order, and come once, with the last of them, whatever moves, in
/// memory or on disk, and whenever the job resumes from a snapshot.
#[test]
fn windows_are_those_of_the_model() {
    for spills in [None, Some(1)] {
        for (seed, (size, slide)) in (1..).zip([(1, 1), (7, 7), (100, 100), (10, 4), (12, 3), (5, 1), (60, 1)]) {
            let disk = spills.map_or_else(SpillArea::default, |_| SpillArea::with_runs_of(1 << 9));
            let mut copies = CountCopies::new(shape(size, slide), spills, disk);
            let (mut model, mut dice) = (CountModel { size, slide, ..CountModel::default() }, CountRandom(seed));
            let mut given = 0;
            for step in 0..400 {
                let most = if dice.below(10) == 0 { 300 } else { 30 };
                let rows = dice.rows(most, 5);
                let expected = model.rows(&rows);
                assert_eq!(copies.rows(&rows), expected, "{size} {slide}, step {step}");
                given += expected.len();
                dice.step(&mut copies);
            }
            assert!(given > 50, "{given}");
        }
    }
}

/// A key without rows for the ttl is restarted, and no other key is, whether or not it was forgotten by then, whatever
/// moves, and whenever the job resumes from a snapshot, which contains earlier rows of the key.
#[test]
fn keys_are_remembered_for_a_time() {
    for spills in [None, Some(1)] {
        for (seed, (size, slide, ttl)) in (1..).zip([(1, 1, 20), (7, 7, 40), (5, 1, 30), (10, 4, 60), (3, 3, 1)]) {
            let disk = spills.map_or_else(SpillArea::default, |_| SpillArea::with_runs_of(1 << 9));
            let mut copies = CountCopies::new(shape_for(size, slide, Some(ttl)), spills, disk);
            let mut dice = CountRandom(seed);
            let mut model = CountModel { size, slide, ttl: Some(ttl), now: -1000, ..CountModel::default() };
            let (mut given, mut now) = (0, 0);
            for step in 0..600 {
                now += dice.below(12) as Micros;
                let most_rows = if dice.below(10) == 0 { 200 } else { 12 };
                // Some keys have few rows, others hundreds; some rows are late.
                let mut rows = dice.rows(most_rows, 9);
                rows.retain(|row| row.0 < 5 || dice.below(3) == 0);
                for row in &mut rows {
                    let late = if dice.below(5) == 0 { dice.below(80) } else { 0 };
                    row.2 = now + dice.below(15) as Micros - late as Micros;
                }
                let expected = model.rows(&rows);
                assert_eq!(copies.rows(&rows), expected, "{size} {slide} {ttl}, step {step}");
                given += expected.len();
                if dice.below(3) > 0 {
                    model.now = now - 5;
                    copies.pass(now - 5);
                }
                dice.step(&mut copies);
            }
            assert!(given > 50, "{given}");
            copies.save(false);
            copies.pass(now + 1000);
            copies.restart(dice.owners());
            copies.pass(now + 1001);
            assert!(copies.states.iter().all(|state| state.left() == 0));
        }
    }
}

/// State and snapshots must not grow with keys that occur only once.
#[test]
fn keys_that_are_forgotten_are_gone() {
    let mut copies = CountCopies::new(shape_for(10, 10, Some(100)), None, SpillArea::default());
    for step in 0..3000 {
        let rows: Vec<Row> = (0..40).map(|row| (step * 40 + row, 1, step)).collect();
        copies.rows(&rows);
        copies.pass(step);
        if step % 20 == 19 {
            copies.save(false);
        }
    }
    let kept: u32 = copies.states.iter().map(|state| state.rows().1).sum();
    assert!(kept < 40_000, "{kept} rows");
    copies.restart(copies.owners.clone());
    let kept: u32 = copies.states.iter().map(|state| state.rows().1).sum();
    assert!(kept < 40_000, "{kept} rows were saved");
}

/// Windows of many keys, far more than fit in memory, must be the same as in memory.
#[test]
fn windows_larger_than_memory_are_the_same() {
    for (size, slide) in [(9, 9), (12, 4)] {
        let mut memory = CountCopies::new(shape(size, slide), None, SpillArea::default());
        let mut disk = CountCopies::new(shape(size, slide), Some(50), SpillArea::with_runs_of(1 << 14));
        let (mut model, mut dice) = (CountModel { size, slide, ..CountModel::default() }, CountRandom(7));
        let (mut given, mut most, mut held) = (0, 0, 0);
        for step in 0..2500 {
            let rows = dice.rows(160, 12_000);
            let expected = model.rows(&rows);
            assert_eq!(memory.rows(&rows), expected, "{size} {slide}, step {step}");
            assert_eq!(disk.rows(&rows), expected, "{size} {slide}, step {step}");
            given += expected.len();
            let both = [&mut memory, &mut disk];
            match step % 400 {
                100 | 200 => both.into_iter().for_each(|copies| copies.save(step % 1200 == 100)),
                250 => {
                    let lost = (0..BUCKETS).filter(|&bucket| both[0].owners[bucket as usize] == 0);
                    let lost: Vec<u32> = lost.step_by(3).collect();
                    both.into_iter().for_each(|copies| copies.move_keys(&lost, 0));
                }
                350 => {
                    let owners = dice.owners();
                    for copies in both {
                        copies.save(false);
                        copies.restart(owners.clone());
                    }
                }
                _ => {}
            }
            if step % 50 == 49 {
                disk.spill();
                most = most.max(memory.bytes());
                held = held.max(disk.bytes());
            }
        }
        assert!(given > 5_000, "{given}");
        assert!(most > 5 * held, "{most} bytes in memory, {held} beside what was on disk");
        assert!(disk.disk.governor().spilled_bytes() > most as u64);
    }
}

/// State must not grow with the rows of a key, nor must the changes since the last snapshot, of which there are none if
/// the job makes no snapshots. Long states are removed soon after they become obsolete.
#[test]
fn rows_of_one_key_are_few() {
    for saves in [true, false] {
        for (size, slide) in [(100, 100), (100, 1), (1 << 40, 1 << 40)] {
            let mut state = CountState::new(&shape(size, slide), saves, &SpillArea::default());
            let mut most = 0;
            for number in 0..20_000 {
                state.take(&batch(&[(0, number, 0)]), |_| {}).unwrap();
                most = most.max(state.bytes());
            }
            let (news, kept) = state.rows();
            assert!(news <= if saves { 1 << 14 } else { 0 }, "{news} rows");
            assert!(kept <= 1 << 14, "{kept} rows");
            assert!(most < 16 << 20, "{most} bytes");
        }
    }
}

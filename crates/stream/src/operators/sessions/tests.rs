//! Sessions on two copies, with moving keys and jobs that resume from snapshots, compared with a model that knows each
//! row.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, StructArray, TimestampMicrosecondArray,
};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit, TimestampMicrosecondType};
use bytes::Bytes;
use datafusion::functions_aggregate::{count::count_udaf, sum::sum_udaf};
use datafusion::physical_expr::aggregate::AggregateExprBuilder;
use datafusion::physical_expr::expressions::col;
use tidemill_dataflow::checkpoint::rows::decode;
use tidemill_dataflow::checkpoint::{BucketStates, DeferredPart, RestoredState, StateSchema};
use tidemill_dataflow::route_map::BUCKETS;

use super::state::SessionState;
use super::{EARLY, FINAL, NOTHING, SessionAggregation, SessionTimes};
use crate::state::groups::GroupAggregation;
use crate::state::operator_memory::SpillArea;
use crate::state::snapshot_codec::{buckets_of, tables_of};
use crate::state::state_layout::{SavedParts, apply};
use crate::time::window::{EarlyResults, Micros, window_array};

const GAP: Micros = 10;
const KEYS: i64 = 5;

/// A row: key, time and value.
type Row = (i64, Micros, i64);
/// A result: key, start and end, whether it is final, number of rows, and sum.
type Given = (i64, Micros, Micros, bool, i64, i64);

fn input() -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Microsecond, None);
    let fields = [("key", DataType::Int64), ("value", DataType::Int64), ("time", time)];
    Arc::new(Schema::new(fields.map(|(name, of)| Field::new(name, of, true)).to_vec()))
}

fn shape(lateness: Micros, early: EarlyResults) -> Arc<SessionAggregation> {
    let schema = input();
    let function = |of, name: &str| {
        let built = AggregateExprBuilder::new(of, vec![col("value", &schema).unwrap()]);
        Arc::new(built.schema(Arc::clone(&schema)).alias(name).build().unwrap())
    };
    let functions = vec![function(count_udaf(), "count"), function(sum_udaf(), "sum")];
    let keys = vec![(col("key", &schema).unwrap(), "key".to_owned())];
    let of = GroupAggregation::new(keys, functions, vec![None, None], &schema).unwrap();
    let times = SessionTimes { time: col("time", &schema).unwrap(), behind: 0, gap: GAP, lateness, early };
    let last = (early != EarlyResults::Never).then_some(true);
    let window = window_array(Vec::new(), Vec::new(), last).data_type().clone();
    let output = [("key", DataType::Int64), ("window", window), ("count", DataType::Int64), ("sum", DataType::Int64)];
    let output = Arc::new(Schema::new(output.map(|(name, of)| Field::new(name, of, true)).to_vec()));
    Arc::new(SessionAggregation::new(of, times, (output, 1), None, Default::default()))
}

fn batch(rows: &[Row]) -> RecordBatch {
    let column = |of: fn(&Row) -> i64| rows.iter().map(of);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(column(|row| row.0))),
        Arc::new(Int64Array::from_iter_values(column(|row| row.2))),
        Arc::new(TimestampMicrosecondArray::from_iter_values(column(|row| row.1))),
    ];
    RecordBatch::try_new(input(), columns).unwrap()
}

fn results(of: &RecordBatch) -> Vec<Given> {
    let windows: &StructArray = of.column(1).as_struct();
    let time = |column: usize, at: usize| windows.column(column).as_primitive::<TimestampMicrosecondType>().value(at);
    let number = |column: usize, at: usize| of.column(column).as_primitive::<Int64Type>().value(at);
    let last = |at: usize| windows.num_columns() == 2 || windows.column(2).as_boolean().value(at);
    let of_row = |at| (number(0, at), time(0, at), time(1, at), last(at), number(2, at), number(3, at));
    (0..of.num_rows()).map(of_row).collect()
}

/// All remaining results of a state.
fn all_of(state: &mut SessionState) -> Vec<Given> {
    std::iter::from_fn(|| state.go_on().unwrap()).flat_map(|given| results(&given)).collect()
}

fn fire(state: &mut SessionState, time: Micros) -> Vec<Given> {
    state.fire(time);
    all_of(state)
}

fn so_far(state: &mut SessionState) -> Vec<Given> {
    state.so_far();
    all_of(state)
}

/// A session of the model.
#[derive(Clone, Debug)]
struct ModelSession {
    key: i64,
    first: Micros,
    last: Micros,
    values: Vec<i64>,
    told: i8,
    untold: i64,
}

impl ModelSession {
    fn given(&self, last: bool) -> Given {
        let (count, sum) = (self.values.len() as i64, self.values.iter().sum());
        (self.key, self.first, self.last + GAP, last, count, sum)
    }
}

/// The expected sessions and results.
struct SessionModel {
    lateness: Micros,
    early: EarlyResults,
    fired: Micros,
    sessions: Vec<ModelSession>,
    late: usize,
}

impl SessionModel {
    fn is_gone(&self, last: Micros) -> bool {
        last + GAP + self.lateness <= self.fired
    }

    /// Adds rows that arrive together; returns results by rows.
    fn rows(&mut self, rows: &[Row]) -> Vec<Given> {
        let mut given = Vec::new();
        for &row in rows {
            if self.is_late(row, rows) {
                self.late += 1;
                continue;
            }
            let (key, at, value) = row;
            let near = |of: &ModelSession| of.key == key && at - of.last < GAP && of.first - at < GAP;
            let (joined, others) = std::mem::take(&mut self.sessions).into_iter().partition::<Vec<_>, _>(near);
            self.sessions = others;
            let mut all = ModelSession { key, first: at, last: at, values: vec![value], told: NOTHING, untold: 1 };
            for one in joined {
                all.first = all.first.min(one.first);
                all.last = all.last.max(one.last);
                all.values.extend(one.values);
                all.untold += one.untold;
            }
            if let EarlyResults::Rows(every) = self.early
                && all.untold >= every
                && all.last + GAP > self.fired
            {
                given.push(all.given(false));
                all.untold = 0;
            }
            self.sessions.push(all);
        }
        given
    }

    /// Whether a row is late, considering the rows that arrive with it.
    fn is_late(&self, row: Row, rows: &[Row]) -> bool {
        let kept = self.sessions.iter().filter(|of| of.key == row.0).map(|of| (of.first, of.last));
        let beside = rows.iter().filter(|other| other.0 == row.0).map(|other| (other.1, other.1));
        let mut spans: Vec<_> = kept.chain(beside).collect();
        spans.sort_unstable();
        let (mut first, mut last) = spans[0];
        for &(from, to) in &spans {
            if from - last >= GAP {
                if (first..=last).contains(&row.1) {
                    break;
                }
                first = from;
                last = to;
            }
            last = last.max(to);
        }
        self.is_gone(last)
    }

    fn fire(&mut self, time: Micros) -> Vec<Given> {
        self.fired = self.fired.max(time);
        let mut given = Vec::new();
        for of in self.sessions.iter_mut().filter(|of| of.told < FINAL && of.last + GAP <= self.fired) {
            (of.told, of.untold) = (FINAL, 0);
            given.push(of.given(true));
        }
        let (lateness, fired) = (self.lateness, self.fired);
        self.sessions.retain(|of| of.last + GAP + lateness > fired);
        given
    }

    fn so_far(&mut self) -> Vec<Given> {
        let new = self.sessions.iter_mut().filter(|of| of.told == NOTHING && of.last + GAP > self.fired);
        new.map(|of| {
            of.told = EARLY;
            of.given(false)
        })
        .collect()
    }
}

/// Two copies, the owner of each bucket, and the snapshots of each.
struct SessionCopies {
    shape: Arc<SessionAggregation>,
    disk: SpillArea,
    /// Copies spill each time rows have arrived this many times; so many bytes are merged in memory.
    spills: Option<(usize, usize)>,
    came: usize,
    states: Vec<SessionState>,
    owners: Vec<usize>,
    saved: Vec<SavedParts>,
    late: usize,
}

fn parts(of: &mut SessionState, whole: bool) -> BucketStates {
    let later = of.snapshot(whole).unwrap().later;
    later.map_or_else(Vec::new, |DeferredPart(make)| make().unwrap())
}

impl SessionCopies {
    fn new(lateness: Micros, early: EarlyResults, spills: Option<(usize, usize)>) -> Self {
        let shape = shape(lateness, early);
        let disk = spills.map_or_else(SpillArea::default, |(_, run_bytes)| SpillArea::with_runs_of(run_bytes));
        let states = (0..2).map(|_| SessionState::new(&shape, true, &disk)).collect();
        let owners = (0..BUCKETS as usize).map(|bucket| bucket % 2).collect();
        SessionCopies { shape, disk, spills, came: 0, states, owners, saved: vec![SavedParts::new(); 2], late: 0 }
    }

    /// Advances time.
    fn fire(&mut self, time: Micros) -> Vec<Given> {
        sorted(self.states.iter_mut().flat_map(|state| fire(state, time)).collect())
    }

    fn so_far(&mut self) -> Vec<Given> {
        sorted(self.states.iter_mut().flat_map(so_far).collect())
    }

    /// Adds rows, each on the copy that owns its key.
    fn rows(&mut self, rows: &[Row]) -> Vec<Given> {
        self.came += 1;
        if self.spills.is_some_and(|(every, _)| self.came.is_multiple_of(every)) {
            self.states.iter_mut().for_each(|state| state.spill().unwrap());
        }
        let all = batch(rows);
        let buckets = buckets_of(&all, &[0]).unwrap();
        let mut given = Vec::new();
        for (number, state) in self.states.iter_mut().enumerate() {
            let is_mine = buckets.iter().map(|&bucket| Some(self.owners[bucket as usize] == number));
            let mut mine = filter_record_batch(&all, &is_mine.collect()).unwrap();
            let at = |rows: &RecordBatch| rows.column(2).as_primitive::<TimestampMicrosecondType>().values().to_vec();
            let times = at(&mine);
            if let Some(late) = state.late(&mine.columns()[..1], &times, &times).unwrap() {
                self.late += late.true_count();
                let in_time: BooleanArray = late.iter().map(|late| Some(late == Some(false))).collect();
                mine = filter_record_batch(&mine, &in_time).unwrap();
            }
            if mine.num_rows() == 0 {
                continue;
            }
            let times = at(&mine);
            if let EarlyResults::Rows(every) = self.shape.times.early {
                let brought = state.add_by_rows(every, &mine, &times).unwrap();
                given.extend(brought.iter().flat_map(results));
                continue;
            }
            let arguments = self.shape.of.arguments(&mine).unwrap();
            let (columns, counts) = self.shape.of_rows(&arguments, &times).unwrap();
            state.take(columns, counts.len()).unwrap();
        }
        given
    }

    fn save(&mut self, whole: bool) {
        for (state, saved) in self.states.iter_mut().zip(&mut self.saved) {
            apply(parts(state, whole), saved);
        }
    }

    /// Moves buckets to another owner, as just after a barrier.
    fn move_keys(&mut self, lost: &[u32], from: usize) {
        self.save(false);
        let moved = self.states[from].release(lost).unwrap();
        moved.iter().for_each(|(_, part)| _ = self.states[1 - from].acquire(part).unwrap());
        for &bucket in lost {
            self.owners[bucket as usize] = 1 - from;
            // The new owner now saves this bucket; `apply` checks for that.
            self.saved[from].remove(&bucket);
        }
        self.save(true);
    }

    /// Resumes the job from its snapshots, with other owners.
    fn restart(&mut self, owners: Vec<usize>) {
        let all: SavedParts = std::mem::take(&mut self.saved).into_iter().flatten().collect();
        let fired = self.states[0].fired;
        self.owners = owners;
        self.saved = vec![SavedParts::new(); 2];
        for (number, state) in self.states.iter_mut().enumerate() {
            let mut restored = RestoredState::default();
            restored.shared.insert("fired".into(), vec![Bytes::copy_from_slice(&fired.to_le_bytes())]);
            let mine = all.iter().filter(|(bucket, _)| self.owners[**bucket as usize] == number);
            restored.buckets.extend(mine.map(|(&bucket, parts)| (bucket, parts.clone())));
            *state = SessionState::new(&self.shape, true, &self.disk);
            for (number, table) in state.restore(&restored).unwrap().iter().enumerate() {
                state.keep(decode(&self.shape.kept_schema, table).unwrap()).unwrap();
                if self.spills.is_some() && number % 100 == 0 {
                    state.spill().unwrap();
                }
            }
            self.saved[number] = restored.buckets;
        }
    }

    /// All stored sessions, each with its columns as text.
    fn kept(&mut self) -> Vec<String> {
        self.save(true);
        let parts = self.saved.iter().flat_map(|saved| saved.values().flatten());
        let tables = parts.flat_map(|part| tables_of(part).unwrap());
        let parts: Vec<_> = tables.map(|(_, table)| decode(&self.shape.kept_schema, &table).unwrap()).collect();
        let sessions = self.shape.merged(&parts).unwrap();
        let mut lines: Vec<String> =
            (0..sessions.num_rows()).map(|row| format!("{:?}", sessions.slice(row, 1).columns())).collect();
        lines.sort_unstable();
        lines
    }
}

fn sorted(mut of: Vec<Given>) -> Vec<Given> {
    of.sort_unstable();
    of
}

/// Results by key, in the order of arrival.
fn by_key(of: Vec<Given>) -> BTreeMap<i64, Vec<Given>> {
    let mut keys: BTreeMap<i64, Vec<Given>> = BTreeMap::new();
    of.into_iter().for_each(|one| keys.entry(one.0).or_default().push(one));
    keys
}

/// Random numbers.
struct SessionRandom(u64);

impl SessionRandom {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn owners(&mut self) -> Vec<usize> {
        (0..BUCKETS).map(|_| self.below(2) as usize).collect()
    }
}

/// Whatever the order of rows, however late they are, whatever moves and whenever the job resumes from a snapshot: each
/// result equals that of the model, which adds rows one by one to lists; and resuming does not change the state.
fn check_against_the_model(spills: Option<(usize, usize)>) {
    let ways = [
        EarlyResults::Never,
        EarlyResults::Every(1000),
        EarlyResults::Rows(1),
        EarlyResults::Rows(3),
        EarlyResults::Rows(50),
    ];
    let (mut merged, mut late, mut corrected, mut given_early) = (0, 0, 0, 0);
    for seed in 0..60 {
        let mut dice = SessionRandom(seed);
        let (lateness, early) = ([0, 15, 60][seed as usize % 3], ways[seed as usize / 3 % ways.len()]);
        let mut copies = SessionCopies::new(lateness, early, spills);
        let mut model = SessionModel { lateness, early, fired: Micros::MIN / 2, sessions: Vec::new(), late: 0 };
        let (mut now, mut number) = (0, 0);
        let mut finals: BTreeSet<(i64, Micros, Micros)> = BTreeSet::new();
        for step in 0..200 {
            let context = format!("seed {seed}, step {step}");
            match dice.below(12) {
                0..6 => {
                    let rows: Vec<Row> = (0..dice.below(30))
                        .map(|_| {
                            number += 1;
                            (dice.below(KEYS as u64) as i64, now + dice.below(90) as i64 - 70, number)
                        })
                        .collect();
                    let found = by_key(copies.rows(&rows));
                    given_early += found.len();
                    assert_eq!(found, by_key(model.rows(&rows)), "{context}");
                }
                6..9 => {
                    now += dice.below(25) as i64;
                    let given = sorted(model.fire(now));
                    assert_eq!(copies.fire(now), given, "{context}");
                    for (key, start, end, ..) in given {
                        let within =
                            |&&(of, from, to): &&(i64, Micros, Micros)| of == key && start <= from && to <= end;
                        let replaced: Vec<_> = finals.iter().filter(within).copied().collect();
                        corrected += usize::from(!replaced.is_empty());
                        merged += usize::from(replaced.len() > 1);
                        replaced.iter().for_each(|old| _ = finals.remove(old));
                        // Sessions that are neither replaced nor forgotten never overlap.
                        let beside = |&&(of, from, to): &&(i64, Micros, Micros)| of == key && from < end && start < to;
                        assert_eq!(finals.iter().find(beside), None, "{context}");
                        finals.insert((key, start, end));
                    }
                    finals.retain(|(.., end)| end + lateness > now);
                }
                9 if matches!(early, EarlyResults::Every(_)) => {
                    let found = copies.so_far();
                    given_early += found.len();
                    assert_eq!(found, sorted(model.so_far()), "{context}");
                }
                9 => copies.save(dice.below(4) == 0),
                10 => {
                    let from = dice.below(2) as usize;
                    let lost = (0..BUCKETS).filter(|&bucket| copies.owners[bucket as usize] == from);
                    let lost: Vec<u32> = lost.filter(|_| dice.below(3) == 0).collect();
                    copies.move_keys(&lost, from);
                }
                // Whether early results were emitted need not be remembered.
                _ if matches!(early, EarlyResults::Every(_)) => {}
                _ => {
                    copies.save(dice.below(2) == 0);
                    copies.restart(dice.owners());
                    let before = copies.kept();
                    copies.restart(dice.owners());
                    assert_eq!(copies.kept(), before, "{context}");
                }
            }
            assert_eq!(copies.late, model.late, "{context}");
        }
        late += model.late;
        assert_eq!(copies.fire(Micros::MAX), sorted(model.fire(Micros::MAX / 2)), "seed {seed}");
        assert!(copies.kept().is_empty(), "seed {seed}: nothing is left");
    }
    assert!(
        merged > 20 && late > 100 && corrected > 100 && given_early > 100,
        "{merged} {late} {corrected} {given_early}"
    );
}

#[test]
fn sessions_are_those_of_the_model() {
    check_against_the_model(None);
}

/// The same with all state on disk.
#[test]
fn sessions_on_disk_are_those_of_the_model() {
    check_against_the_model(Some((1, 1 << 9)));
}

/// Sessions of many keys, far more than fit in memory, must be the same as in memory: through thousands of batches,
/// late rows, merged sessions, incremental and full snapshots, moving keys, and a job that resumes.
#[test]
fn sessions_larger_than_memory_are_the_same() {
    const KEYS: u64 = 12_000;
    for (lateness, early) in
        [(0, EarlyResults::Never), (40, EarlyResults::Never), (20, EarlyResults::Every(1)), (20, EarlyResults::Rows(3))]
    {
        let mut dice = SessionRandom(9);
        let mut memory = SessionCopies::new(lateness, early, None);
        let mut disk = SessionCopies::new(lateness, early, Some((50, 1 << 14)));
        let (mut given, mut most, mut held) = (0, 0, 0);
        for step in 0..3000_i64 {
            let context = format!("lateness {lateness}, {early:?}, step {step}");
            // A session ends after a few hundred steps without another row of its key. Some rows are much too late.
            let now = step / 30;
            let row = |dice: &mut SessionRandom| {
                let behind = dice.below(8) + if dice.below(20) == 0 { dice.below(60) } else { 0 };
                (dice.below(KEYS) as i64, now - behind as i64, dice.below(1000) as i64)
            };
            let rows: Vec<Row> = (0..dice.below(80)).map(|_| row(&mut dice)).collect();
            let mut both = |check: &mut dyn FnMut(&mut SessionCopies) -> Vec<Given>| {
                let found = sorted(check(&mut memory));
                assert_eq!(sorted(check(&mut disk)), found, "{context}");
                found.len()
            };
            given += both(&mut |copies| copies.rows(&rows));
            if step % 10 == 0 {
                given += both(&mut |copies| copies.fire(now - 4));
            }
            if step % 30 == 7 && matches!(early, EarlyResults::Every(_)) {
                given += both(&mut SessionCopies::so_far);
            }
            if step % 100 == 50 {
                both(&mut |copies| {
                    copies.save(step % 500 == 50);
                    Vec::new()
                });
            }
            if step % 400 == 250 {
                let lost: Vec<u32> =
                    (0..BUCKETS).filter(|&bucket| disk.owners[bucket as usize] == 0).step_by(3).collect();
                memory.move_keys(&lost, 0);
                disk.move_keys(&lost, 0);
            }
            if step % 1000 == 650 && !matches!(early, EarlyResults::Every(_)) {
                let owners = dice.owners();
                for copies in [&mut memory, &mut disk] {
                    copies.save(false);
                    copies.restart(owners.clone());
                }
                assert_eq!(disk.kept(), memory.kept(), "{context}");
            }
            if step % 50 == 49 {
                disk.states.iter_mut().for_each(|state| state.spill().unwrap());
                let bytes = |copies: &SessionCopies| copies.states.iter().map(SessionState::bytes).sum::<usize>();
                most = most.max(bytes(&memory));
                held = held.max(bytes(&disk));
            }
            assert_eq!(disk.late, memory.late, "{context}");
        }
        assert_eq!(disk.fire(Micros::MAX), memory.fire(Micros::MAX));
        assert!(given > 10_000 && disk.late > 0, "{given} {}", disk.late);
        assert!(most > 5 * held, "{most} bytes in memory, {held} beside what was on disk");
        assert!(disk.disk.governor().spilled_bytes() > most as u64);
    }
}

/// The changes since the last snapshot must not grow with the rows of a session, and must be empty if the job makes no
/// snapshots; nor must the state grow, with a key or without.
#[test]
fn rows_of_one_session_are_few() {
    for saves in [true, false] {
        let shape = shape(0, EarlyResults::Never);
        let mut state = SessionState::new(&shape, saves, &SpillArea::default());
        for number in 0..40_000 {
            let rows = batch(&[(0, number, 1)]);
            let (columns, counts) = shape.of_rows(&shape.of.arguments(&rows).unwrap(), &[number]).unwrap();
            state.take(columns, counts.len()).unwrap();
            if number % 1000 == 0 {
                assert_eq!(fire(&mut state, number - 1000), []);
                so_far(&mut state);
            }
        }
        let (news, kept) = state.rows();
        assert!(news <= if saves { 1 << 14 } else { 0 }, "{news} rows");
        assert!(kept <= 1 << 14, "{kept} rows");
    }
}

/// State saved by earlier versions had other columns, which must not be misread: it is refused by the name of its
/// format.
#[test]
fn sessions_of_other_formats_are_refused() {
    let now = shape(0, EarlyResults::Never).state();
    assert_eq!(now.version_after(&now), Ok(1));
    for kind in ["sessions with a gap of 10 us", "sessions with a gap of 10 us, and what was given of them"] {
        let refused = now.version_after(&StateSchema::new(kind, now.fields.clone())).unwrap_err();
        assert!(refused.starts_with(&format!("it held {kind}, but now holds {}; ", now.kind)), "{refused}");
        assert!(refused.contains("start fresh"), "{refused}");
    }
}

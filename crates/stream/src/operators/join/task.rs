//! The task of a join: the state of both sides, and the matching of rows.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, UInt32Array, new_null_array};
use arrow::compute::{concat_batches, filter_record_batch, take, take_record_batch};
use arrow::datatypes::{DataType, Field, Schema, UInt32Type};
use bytes::Bytes;
use datafusion::error::{DataFusionError, Result};
use tidemill_dataflow::checkpoint::{DeferredPart, RestoredState, Snapshot, rows};
use tidemill_dataflow::memory::SpillVec;
use tidemill_dataflow::operator::{EmitStatus, ReleasedParts};
use tidemill_dataflow::stream::EventTime;
use tidemill_dataflow::{Emitter, Operator, TaskContext, TaskError};

use super::{JoinOutput, Side, StreamJoin};
use crate::rows::keyed::known;
use crate::state::expiring_rows::ExpiringRows;
use crate::state::groups::batch;
use crate::state::keys::NumberedKeys;
use crate::state::operator_memory::{OperatorMemory, SpillArea, SpillableState};
use crate::state::snapshot_codec::{SavedBuckets, SnapshotTables, buckets_of, tables_of, together};
use crate::state::state_layout::{StateReader, fired_of, shared};
use crate::time::window::Micros;

/// Pairs that are evaluated together.
const PAIRS: usize = 8192;
/// Minimum number of rows before expired ones are removed; half of them may be expired.
const CLEAR_MIN: u32 = 1 << 13;

/// The state of a side.
struct SideState {
    kept: ExpiringRows,
    /// By key, the number of its newest row plus one; 0 if there is none.
    newest: SpillVec<u32>,
    /// By row, the number of the previous row with its key plus one.
    before: SpillVec<u32>,
    /// By row of flagged sides, 1 if it has found a partner, or was emitted without one.
    met: SpillVec<u8>,
    /// Rows with smaller numbers are in the last snapshot.
    saved: u32,
    /// Those of them that have found a partner since.
    news: Vec<u32>,
    /// The input of this side has ended.
    over: bool,
}

impl SideState {
    fn new(join: &StreamJoin, side: Side, disk: &SpillArea) -> Self {
        let kept = ExpiringRows::new(Arc::clone(&join.sides[side].schema), disk);
        let (newest, before, met, news) = Default::default();
        SideState { kept, newest, before, met, saved: 0, news, over: false }
    }

    /// Adds rows with these key numbers.
    fn add(
        &mut self,
        rows: RecordBatch,
        until: Vec<Micros>,
        keys: &[usize],
        met: Option<&[bool]>,
    ) -> Result<(), TaskError> {
        self.kept.add(rows, until)?;
        self.chain(keys)?;
        if let Some(met) = met {
            self.met.extend_from_slice(&met.iter().map(|&met| u8::from(met)).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Appends the newest rows, with these key numbers, to their chains.
    fn chain(&mut self, keys: &[usize]) -> Result<(), TaskError> {
        let start = self.before.len();
        self.before.resize(start + keys.len())?;
        let most = keys.iter().map(|key| key + 1).max().unwrap_or(0);
        if most > self.newest.len() {
            self.newest.resize(most)?;
        }
        let newest = &mut self.newest[..];
        for ((&key, before), number) in keys.iter().zip(&mut self.before[start..]).zip(start as u32 + 1..) {
            *before = std::mem::replace(&mut newest[key], number);
        }
        Ok(())
    }

    /// Moves to disk what can be there.
    fn spill(&mut self, disk: &SpillArea) -> Result<(), TaskError> {
        self.kept.spill()?;
        self.newest.spill(disk.governor())?;
        self.before.spill(disk.governor())?;
        Ok(self.met.spill(disk.governor())?)
    }

    /// The newest row of a key, plus one.
    fn newest(&self, key: usize) -> u32 {
        self.newest.get(key).copied().unwrap_or(0)
    }
}

/// Rows that are being joined with the other side.
struct JoinProbe {
    side: Side,
    rows: RecordBatch,
    /// The key number of each row.
    keys: Vec<usize>,
    until: Vec<Micros>,
    met: Vec<bool>,
    /// The current position: a row, and the next of its partners plus one.
    row: usize,
    partner: u32,
}

/// The task of a join.
pub(crate) struct JoinTask {
    join: Arc<StreamJoin>,
    keys: NumberedKeys,
    halves: [SideState; 2],
    probe: Option<JoinProbe>,
    now: Micros,
    /// Expired rows are removed at this number of rows.
    clear_at: u32,
    /// Row numbers have changed: the next snapshot is full.
    renumbered: bool,
    /// Expired rows may not have been emitted yet.
    overdue: bool,
    saved: SavedBuckets,
    held: OperatorMemory,
}

fn no_keys(join: &StreamJoin, disk: &SpillArea) -> Result<NumberedKeys> {
    let left = &join.sides[0];
    NumberedKeys::new(Arc::new(left.schema.project(&left.keys())?), disk)
}

/// The kinds of tables in a snapshot: the rows of a side; this much higher, the numbers of rows that have found a
/// partner.
const MET: u8 = 2;

impl JoinTask {
    pub(crate) fn new(join: &Arc<StreamJoin>, context: &TaskContext) -> Result<Self, TaskError> {
        let held = OperatorMemory::new(context);
        let mut new = JoinTask {
            join: Arc::clone(join),
            keys: no_keys(join, held.disk())?,
            halves: [0, 1].map(|side| SideState::new(join, side, held.disk())),
            probe: None,
            now: Micros::MIN,
            clear_at: if join.forgets() { CLEAR_MIN } else { u32::MAX },
            renumbered: false,
            overdue: false,
            saved: SavedBuckets::default(),
            held,
        };
        if let Some(restored) = context.restored() {
            new.restore(restored)?;
        }
        Ok(new)
    }

    fn restore(&mut self, restored: &RestoredState) -> Result<(), TaskError> {
        let reader = |side| self.join.layout(side).reader(&self.join.saved_schema(side), restored);
        let readers = [reader(0)?, reader(1)?];
        self.now = fired_of(restored)?;
        for parts in restored.buckets.values() {
            self.take(parts, Some(&readers))?;
        }
        for side in 0..2 {
            self.halves[side].saved = self.halves[side].kept.count();
            self.renumbered |= self.join.flagged(side);
        }
        self.saved.restore(restored);
        Ok(())
    }

    /// Adds the parts of a bucket: from a checkpoint, if `readers` of its sides are given, else from another copy.
    fn take(&mut self, parts: &[Bytes], readers: Option<&[StateReader; 2]>) -> Result<(), TaskError> {
        let join = Arc::clone(&self.join);
        let numbers = Arc::new(Schema::new(vec![Field::new("number", DataType::UInt32, false)]));
        let mut rows: [Vec<RecordBatch>; 2] = Default::default();
        let mut met: [Vec<u32>; 2] = Default::default();
        for part in parts {
            for (kind, bytes) in tables_of(part)? {
                let side = usize::from(kind % MET);
                if kind < MET {
                    rows[side].push(match readers {
                        Some(readers) => readers[side].read(&bytes)?,
                        None => rows::decode(&join.saved_schema(side), &bytes)?,
                    });
                } else {
                    let numbers = rows::decode(&numbers, &bytes)?;
                    met[side].extend(numbers.column(0).as_primitive::<UInt32Type>().values());
                }
            }
        }
        for side in 0..2 {
            let saved = concat_batches(&join.saved_schema(side), &rows[side])?;
            let flags = join.flagged(side).then(|| {
                let width = saved.num_columns();
                let numbers = saved.column(width - 1).as_primitive::<UInt32Type>();
                let rows: HashMap<u32, usize> =
                    numbers.values().iter().enumerate().map(|(row, number)| (*number, row)).collect();
                let mut flags: Vec<bool> = saved.column(width - 2).as_boolean().values().iter().collect();
                met[side].iter().filter_map(|number| rows.get(number)).for_each(|&row| flags[row] = true);
                flags
            });
            let schema = &join.sides[side].schema;
            let columns = saved.columns()[..schema.fields().len()].to_vec();
            let saved = batch(schema, columns, saved.num_rows())?;
            let until = self.until(side, &saved)?;
            self.keep(side, &saved, &until, flags.as_deref(), None)?;
            self.weigh(saved.num_rows())?;
        }
        Ok(())
    }

    /// A side's rows from number `from` on, in their saved form.
    fn saved_rows(&self, side: Side, from: u32) -> Result<Vec<RecordBatch>> {
        let half = &self.halves[side];
        let mut rows = half.kept.since(from);
        if self.join.flagged(side) {
            let schema = self.join.saved_schema(side);
            let mut number = from as usize;
            for rows in &mut rows {
                let numbers = number..number + rows.num_rows();
                number = numbers.end;
                let mut columns = rows.columns().to_vec();
                let met = half.met[numbers.clone()].iter().map(|&met| Some(met != 0));
                columns.push(Arc::new(met.collect::<BooleanArray>()));
                columns.push(Arc::new(UInt32Array::from_iter_values(numbers.map(|number| number as u32))));
                *rows = batch(&schema, columns, rows.num_rows())?;
            }
        }
        Ok(rows)
    }

    fn until(&self, side: Side, rows: &RecordBatch) -> Result<Vec<Micros>> {
        match self.join.until[side].0.is_empty() {
            true => Ok(Vec::new()),
            false => self.join.until[side].of(rows),
        }
    }

    fn intern(&mut self, side: Side, rows: &RecordBatch) -> Result<Vec<usize>, TaskError> {
        self.keys.intern(&rows.columns()[self.join.sides[side].width..], rows.num_rows())
    }

    /// Stores those rows that may still find a partner.
    fn keep(
        &mut self,
        side: Side,
        rows: &RecordBatch,
        until: &[Micros],
        met: Option<&[bool]>,
        keys: Option<Vec<usize>>,
    ) -> Result<(), TaskError> {
        let done = |row: usize| met.is_some_and(|met| met[row]);
        let once = self.join.gives == JoinOutput::With(side) || self.join.gives == JoinOutput::Without(side);
        let over = |row: usize| until.get(row).is_some_and(|&until| until < self.now);
        // Stored by another copy, whose time may differ: such a row is emitted, if at all, the next time that time
        // advances.
        let due = |row: usize| over(row) && keys.is_none() && self.join.gives.waits(side) && !done(row);
        let wanted = |row: usize| (!over(row) || due(row)) && !(once && done(row));
        let wanted: Vec<bool> = (0..rows.num_rows()).map(wanted).collect();
        let overdue = (0..rows.num_rows()).any(due);
        self.overdue |= overdue;
        let keys = match keys {
            Some(keys) => keys,
            None => self.intern(side, rows)?,
        };
        let flags = self.join.flagged(side).then(|| met.map_or_else(|| vec![false; rows.num_rows()], <[bool]>::to_vec));
        let half = &mut self.halves[side];
        if wanted.iter().all(|wanted| *wanted) {
            return half.add(rows.clone(), until.to_vec(), &keys, flags.as_deref());
        }
        let of = |row: usize| wanted[row];
        let until = until.iter().enumerate().filter(|(row, _)| of(*row)).map(|(_, until)| *until).collect();
        let keys: Vec<usize> = keys.into_iter().enumerate().filter(|(row, _)| of(*row)).map(|(_, key)| key).collect();
        let flags: Option<Vec<bool>> =
            flags.map(|flags| flags.into_iter().enumerate().filter(|(row, _)| of(*row)).map(|(_, met)| met).collect());
        half.add(filter_record_batch(rows, &wanted.into())?, until, &keys, flags.as_deref())
    }

    /// Evaluates the next pairs.
    fn probe(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let Some(mut probe) = self.probe.take() else { return Ok(EmitStatus::Done) };
        let join = Arc::clone(&self.join);
        let (side, partner) = (probe.side, 1 - probe.side);
        let once = join.gives == JoinOutput::With(partner);
        let (mut rows, mut partners) = (Vec::new(), Vec::new());
        let half = &self.halves[partner];
        let (before, met) = (&half.before[..], &half.met[..]);
        while probe.row < probe.keys.len() && rows.len() < PAIRS {
            while probe.partner > 0 && rows.len() < PAIRS {
                let number = probe.partner - 1;
                probe.partner = before[number as usize];
                if !(once && met[number as usize] != 0) {
                    rows.push(probe.row as u32);
                    partners.push(number);
                }
            }
            if probe.partner == 0 {
                probe.row += 1;
                if let Some(&key) = probe.keys.get(probe.row) {
                    probe.partner = half.newest(key);
                }
            }
        }
        self.pairs(&mut probe, rows, partners, emit)?;
        if probe.row < probe.keys.len() {
            self.probe = Some(probe);
            return Ok(EmitStatus::More);
        }
        // Rows that have already expired without a partner are emitted now, since only stored rows are checked later.
        if join.gives.waits(side) {
            let alone = |row: &u32| {
                let row = *row as usize;
                !probe.met[row] && probe.until.get(row).is_some_and(|&until| until < self.now)
            };
            let alone: Vec<u32> = (0..probe.rows.num_rows() as u32).filter(alone).collect();
            if !alone.is_empty() {
                let rows = take_record_batch(&probe.rows, &UInt32Array::from(alone))?;
                self.give_alone(side, rows.num_rows(), &|column| Ok(Arc::clone(rows.column(column))), emit)?;
            }
        }
        if !self.halves[partner].over || join.gives.waits(side) {
            self.keep(side, &probe.rows, &probe.until, Some(&probe.met), Some(probe.keys))?;
        }
        self.weigh(probe.rows.num_rows())?;
        if self.halves.iter().map(|half| half.kept.count()).fold(0, u32::saturating_add) >= self.clear_at {
            self.clear()?;
        }
        Ok(EmitStatus::Done)
    }

    /// Emits the results of pairs with equal keys.
    fn pairs(
        &mut self,
        probe: &mut JoinProbe,
        rows: Vec<u32>,
        partners: Vec<u32>,
        emit: &mut Emitter,
    ) -> Result<(), TaskError> {
        if rows.is_empty() {
            return Ok(());
        }
        let join = Arc::clone(&self.join);
        let (side, partner) = (probe.side, 1 - probe.side);
        let (mut rows, mut partners) = (rows, partners);
        if let Some(condition) = &join.condition {
            let chosen = UInt32Array::from(rows.clone());
            let column = |&(of, column): &(Side, usize)| match of == side {
                true => Ok(take(probe.rows.column(column), &chosen, None)?),
                false => self.halves[partner].kept.gather(column, &partners),
            };
            let columns = condition.columns.iter().map(column).collect::<Result<_>>()?;
            let pairs = batch(&condition.schema, columns, rows.len())?;
            let holds = condition.expr.evaluate(&pairs)?.into_array(rows.len())?;
            let holds =
                holds.as_boolean_opt().ok_or_else(|| DataFusionError::Plan("a condition is not boolean".into()))?;
            let holds: Vec<bool> = holds.iter().map(|holds| holds == Some(true)).collect();
            let mut at = holds.iter();
            rows.retain(|_| at.next() == Some(&true));
            let mut at = holds.iter();
            partners.retain(|_| at.next() == Some(&true));
        }
        if rows.is_empty() {
            return Ok(());
        }
        // Rows that find their first partner.
        let (mut first_rows, mut first_partners) = (Vec::new(), Vec::new());
        if join.flagged(side) {
            for &row in &rows {
                if !std::mem::replace(&mut probe.met[row as usize], true) {
                    first_rows.push(row);
                }
            }
        }
        if join.flagged(partner) {
            let half = &mut self.halves[partner];
            for &number in &partners {
                if std::mem::replace(&mut half.met[number as usize], 1) == 0 {
                    first_partners.push(number);
                    if number < half.saved {
                        half.news.push(number);
                    }
                }
            }
        }
        match join.gives {
            JoinOutput::Without(_) => return Ok(()),
            JoinOutput::With(of) if of == side => (rows, partners) = (first_rows, Vec::new()),
            JoinOutput::With(_) => (rows, partners) = (Vec::new(), first_partners),
            JoinOutput::Pairs { .. } => {}
        }
        let count = rows.len().max(partners.len());
        if count == 0 {
            return Ok(());
        }
        let chosen = UInt32Array::from(rows);
        let column = |&(of, column): &(Side, usize)| match of == side {
            true => Ok(take(probe.rows.column(column), &chosen, None)?),
            false => self.halves[partner].kept.gather(column, &partners),
        };
        let columns = join.columns.iter().map(column).collect::<Result<_>>()?;
        emit.send(batch(&join.output, columns, count)?);
        Ok(())
    }

    /// Emits rows without a partner.
    fn give_alone(
        &self,
        side: Side,
        count: usize,
        own: &dyn Fn(usize) -> Result<ArrayRef>,
        emit: &mut Emitter,
    ) -> Result<(), TaskError> {
        let join = &self.join;
        let column = |&(of, column): &(Side, usize)| match of == side {
            true => own(column),
            false => Ok(new_null_array(join.sides[of].schema.field(column).data_type(), count)),
        };
        let columns = join.columns.iter().map(column).collect::<Result<_>>()?;
        emit.send(batch(&join.output, columns, count)?);
        Ok(())
    }

    /// As time passes, emits rows that can no longer find a partner.
    fn pass(&mut self, time: Micros, emit: &mut Emitter) -> Result<(), TaskError> {
        for side in (0..2).filter(|&side| self.join.gives.waits(side)) {
            let half = &mut self.halves[side];
            let mut alone = half.kept.over(if self.overdue { Micros::MIN } else { self.now }, time);
            alone.retain(|&number| std::mem::replace(&mut half.met[number as usize], 1) == 0);
            half.news.extend(alone.iter().filter(|&&number| number < half.saved));
            for alone in alone.chunks(PAIRS) {
                let kept = &self.halves[side].kept;
                self.give_alone(side, alone.len(), &|column| kept.gather(column, alone), emit)?;
            }
        }
        self.overdue = false;
        self.now = self.now.max(time);
        Ok(())
    }

    /// Removes rows that can no longer find a partner.
    fn clear(&mut self) -> Result<(), TaskError> {
        self.clear_but([&|_| true, &|_| true])
    }

    /// Also removes rows that are not `wanted`, by side.
    fn clear_but(&mut self, wanted: [&dyn Fn(u32) -> bool; 2]) -> Result<(), TaskError> {
        let join = Arc::clone(&self.join);
        self.keys = no_keys(&join, self.held.disk())?;
        for (side, wanted) in wanted.into_iter().enumerate() {
            let once = join.gives == JoinOutput::With(side) || join.gives == JoinOutput::Without(side);
            let half = &mut self.halves[side];
            let met = std::mem::take(&mut half.met);
            let stay = half.kept.clear(if self.overdue { Micros::MIN } else { self.now }, |number| {
                wanted(number) && !(once && met[number as usize] != 0)
            })?;
            if join.flagged(side) {
                half.met.extend_from_slice(&stay.iter().map(|&number| met[number as usize]).collect::<Vec<_>>())?;
            }
            (half.newest, half.before) = Default::default();
            half.news.clear();
            for rows in self.halves[side].kept.since(0) {
                let keys = self.intern(side, &rows)?;
                self.halves[side].chain(&keys)?;
                self.weigh(rows.num_rows())?;
            }
        }
        let rows = self.halves.iter().map(|half| half.kept.count()).fold(0, u32::saturating_add);
        self.clear_at = if join.forgets() { rows.saturating_mul(2).max(CLEAR_MIN) } else { u32::MAX };
        self.renumbered = true;
        Ok(())
    }
}

impl Operator for JoinTask {
    fn on_batch(&mut self, side: usize, rows: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        let until = self.until(side, &rows)?;
        let keys = self.intern(side, &rows)?;
        let width = self.join.sides[side].width;
        let met = vec![false; rows.num_rows()];
        let mut probe = JoinProbe { side, keys, until, met, row: 0, partner: 0, rows };
        // A null equals nothing: such a row is emitted alone, if at all, and is not stored for future partners.
        if !self.join.null_equal
            && let Some(known) = known(&probe.rows.columns()[width..])
        {
            self.set_apart(&mut probe, &known, emit)?;
        }
        if let Some(&key) = probe.keys.first() {
            probe.partner = self.halves[1 - side].newest(key);
        }
        self.probe = Some(probe);
        self.probe(emit)
    }

    fn more(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.probe(emit)
    }

    fn on_input_end(&mut self, input: usize, _emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.halves[input].over = true;
        Ok(EmitStatus::Done)
    }

    fn on_watermark(&mut self, time: EventTime, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.pass(time.0, emit)?;
        Ok(EmitStatus::Done)
    }

    fn on_end(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        for side in (0..2).filter(|&side| self.join.gives.waits(side)) {
            let half = &self.halves[side];
            let alone: Vec<u32> = (0..half.kept.count()).filter(|&number| half.met[number as usize] == 0).collect();
            for alone in alone.chunks(PAIRS) {
                self.give_alone(side, alone.len(), &|column| half.kept.gather(column, alone), emit)?;
            }
        }
        Ok(EmitStatus::Done)
    }

    fn moves() -> bool {
        true
    }

    fn release(&mut self, buckets: &[u32]) -> Result<ReleasedParts, TaskError> {
        let disk = self.held.disk().clone();
        let mut moved = SnapshotTables::new(&disk);
        let mut stays: [Vec<bool>; 2] = Default::default();
        for (side, stays) in stays.iter_mut().enumerate() {
            let keys = self.join.sides[side].keys();
            for rows in together(&self.join.saved_schema(side), &self.saved_rows(side, 0)?, &disk) {
                let rows = rows?;
                let of = buckets_of(&rows, &keys)?;
                stays.extend(moved.add_some(side as u8, &rows, &of, buckets)?);
            }
        }
        self.clear_but([&|number| stays[0][number as usize], &|number| stays[1][number as usize]])?;
        self.saved.forget(buckets);
        Ok(moved.finish()?.into())
    }

    fn acquire(&mut self, parts: Vec<(u32, Bytes)>) -> Result<(), TaskError> {
        let mut by_bucket: BTreeMap<u32, Vec<Bytes>> = BTreeMap::new();
        parts.into_iter().for_each(|(bucket, part)| by_bucket.entry(bucket).or_default().push(part));
        by_bucket.values().try_for_each(|parts| self.take(parts, None))
    }

    fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        let mut snapshot = shared(self.now);
        if (self.renumbered || whole) && self.join.forgets() {
            // Expired rows need not be saved.
            self.clear()?;
        }
        let whole = std::mem::take(&mut self.renumbered) || whole;
        let mut tables: Vec<(u8, Vec<RecordBatch>, Side)> = Vec::new();
        for side in 0..2 {
            let from = if whole { 0 } else { self.halves[side].saved };
            let rows = self.saved_rows(side, from)?;
            let half = &mut self.halves[side];
            tables.push((side as u8, rows, side));
            let news = std::mem::take(&mut half.news);
            if !whole && !news.is_empty() {
                // Keys determine the buckets of rows.
                let keyed = &self.join.sides[side];
                let mut columns =
                    keyed.keys().into_iter().map(|key| half.kept.gather(key, &news)).collect::<Result<Vec<_>>>()?;
                columns.push(Arc::new(UInt32Array::from(news)));
                let fields: Vec<Field> = columns
                    .iter()
                    .enumerate()
                    .map(|(at, column)| Field::new(at.to_string(), column.data_type().clone(), true))
                    .collect();
                let rows = columns[0].len();
                tables.push((side as u8 + MET, vec![batch(&Arc::new(Schema::new(fields)), columns, rows)?], side));
            }
            half.saved = half.kept.count();
        }
        if !whole && tables.iter().all(|(_, rows, _)| rows.is_empty()) {
            return Ok(snapshot);
        }
        let (join, saved, disk) = (Arc::clone(&self.join), self.saved.clone(), self.held.disk().clone());
        snapshot.later = Some(DeferredPart(Box::new(move || {
            let mut parts = SnapshotTables::new(&disk);
            for (kind, rows, side) in tables {
                let Some(schema) = rows.first().map(RecordBatch::schema) else { continue };
                for rows in together(&schema, &rows, &disk) {
                    let rows = rows?;
                    if kind < MET {
                        parts.add(kind, &rows, &buckets_of(&rows, &join.sides[side].keys())?)?;
                    } else {
                        let keys = rows.num_columns() - 1;
                        let buckets = buckets_of(&rows, &(0..keys).collect::<Vec<_>>())?;
                        let numbers: ArrayRef = Arc::clone(rows.column(keys));
                        let numbers = RecordBatch::try_from_iter([("number", numbers)])?;
                        parts.add(kind, &numbers, &buckets)?;
                    }
                }
            }
            parts.parts(whole, &saved)
        })));
        Ok(snapshot)
    }
}

impl SpillableState for JoinTask {
    fn held(&mut self) -> &mut OperatorMemory {
        &mut self.held
    }

    fn bytes(&self) -> Result<usize, TaskError> {
        let half = |half: &SideState| half.kept.bytes() + half.before.bytes() + half.newest.bytes() + half.met.bytes();
        Ok(self.keys.bytes() + self.halves.iter().map(half).sum::<usize>())
    }

    fn spill(&mut self) -> Result<(), TaskError> {
        let disk = self.held.disk().clone();
        self.keys.spill()?;
        self.halves.iter_mut().try_for_each(|half| half.spill(&disk))
    }
}

impl JoinTask {
    /// Separates rows that have a null key.
    fn set_apart(
        &mut self,
        probe: &mut JoinProbe,
        known: &arrow::buffer::BooleanBuffer,
        emit: &mut Emitter,
    ) -> Result<(), TaskError> {
        let side = probe.side;
        if self.join.gives.waits(side) {
            let nulls = filter_record_batch(&probe.rows, &BooleanArray::new(!known, None))?;
            self.give_alone(side, nulls.num_rows(), &|column| Ok(Arc::clone(nulls.column(column))), emit)?;
        }
        let mut at = known.iter();
        probe.keys.retain(|_| at.next() == Some(true));
        let mut at = known.iter();
        probe.until.retain(|_| at.next() == Some(true));
        probe.rows = filter_record_batch(&probe.rows, &BooleanArray::new(known.clone(), None))?;
        probe.met.truncate(probe.rows.num_rows());
        Ok(())
    }
}

//! The states of a time span on their owner: a growing table, and below it levels of frozen states, in memory or, if
//! memory has run out, on disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::error::Result;
use tidemill_dataflow::TaskError;

use crate::state::groups::{GroupAggregation, GroupStates};
use crate::state::operator_memory::SpillArea;
use crate::state::sorted_states::{DetachedStates, SMALL_BYTES, SortedStates, StateLevels, put_small_on_disk};
use crate::time::window::Micros;

/// The states of a pane.
#[derive(Default)]
pub(crate) struct PaneStates {
    open: Option<GroupStates>,
    closed: StateLevels,
    /// The states frozen last, which become a level once they are sorted.
    cut: Option<DetachedStates>,
}

impl PaneStates {
    /// The growing table.
    pub(crate) fn open(&mut self, of: &Arc<GroupAggregation>) -> Result<&mut GroupStates> {
        if self.open.is_none() {
            self.open = Some(GroupStates::new(of)?);
        }
        Ok(self.open.as_mut().expect("just made"))
    }

    /// Turns the states frozen last into a level. Must be called before levels are read.
    pub(crate) fn settle(&mut self) -> Result<(), TaskError> {
        if let Some(cut) = self.cut.take() {
            self.closed.add(vec![cut.sorted()?]);
        }
        Ok(())
    }

    /// Freezes and sorts the growing table. Returns its states, if any.
    pub(crate) fn cut(&mut self, of: &Arc<GroupAggregation>) -> Result<Option<SortedStates>, TaskError> {
        self.settle()?;
        let Some(states) = self.cut_states()? else { return Ok(None) };
        let states = SortedStates::new(states, of)?;
        self.closed.add(vec![states.clone()]);
        Ok(Some(states))
    }

    /// The same, but large states are sorted later, by whoever needs them first.
    pub(crate) fn cut_later(&mut self, of: &Arc<GroupAggregation>) -> Result<Option<DetachedStates>, TaskError> {
        self.settle()?;
        let Some(states) = self.cut_states()? else { return Ok(None) };
        self.cut = Some(DetachedStates::new(states, of)?);
        Ok(self.cut.clone())
    }

    /// The states of the growing table, which keeps its capacity.
    fn cut_states(&mut self) -> Result<Option<RecordBatch>> {
        let Some(open) = &mut self.open else { return Ok(None) };
        let states = open.take_states()?;
        if states.num_rows() == 0 {
            self.open = None;
            return Ok(None);
        }
        Ok(Some(states))
    }

    /// Merges levels of similar size. Must be called after levels were added.
    pub(crate) fn compact(&mut self, of: &Arc<GroupAggregation>, disk: &SpillArea) -> Result<(), TaskError> {
        self.settle()?;
        self.closed.compact(of, disk)
    }

    /// The same, outside of the operator if it takes long.
    pub(crate) fn compact_later(&mut self, of: &Arc<GroupAggregation>, disk: &SpillArea) -> Result<(), TaskError> {
        self.settle()?;
        self.closed.compact_later(of, disk)
    }

    /// Adds states to a level that does not contain their keys.
    pub(crate) fn add_to(&mut self, level: usize, states: Vec<SortedStates>) -> Result<(), TaskError> {
        self.settle()?;
        self.closed.add_to(level, states)
    }

    /// Removes the growing table, and returns its states, sorted.
    fn take_states(&mut self, of: &GroupAggregation) -> Result<Option<SortedStates>> {
        self.take().map(|mut open| SortedStates::new(open.take_states()?, of)).transpose()
    }

    /// Moves everything to disk. Returns the states that were frozen for this.
    pub(crate) fn spill(
        &mut self,
        of: &Arc<GroupAggregation>,
        disk: &SpillArea,
    ) -> Result<Vec<SortedStates>, TaskError> {
        self.settle()?;
        // The table and its memory are released before the states are sorted.
        let states = self.take().map(|mut open| open.take_states()).transpose()?;
        let cut = states.map_or(Ok(Vec::new()), |states| SortedStates::new_on_disk(states, of, disk))?;
        self.closed.add(cut.clone());
        self.closed.spill(of, disk)?;
        Ok(cut)
    }

    /// Whether the pane is worth a file of its own.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes_to_spill() >= SMALL_BYTES
    }

    /// Bytes in memory that could be on disk.
    fn bytes_to_spill(&self) -> usize {
        let closed = self.closed.pieces().filter(|piece| !piece.is_on_disk());
        self.open_bytes() + closed.map(SortedStates::bytes).sum::<usize>()
    }

    fn open_bytes(&self) -> usize {
        self.open.as_ref().map_or(0, GroupStates::bytes) + self.cut.as_ref().map_or(0, DetachedStates::bytes)
    }

    /// The levels, without the growing table. Requires [`PaneStates::settle`].
    pub(crate) fn closed(&self) -> impl Iterator<Item = &SortedStates> {
        self.closed.pieces()
    }

    /// The same, plus the states frozen last, if they are not a level yet.
    pub(crate) fn all(&self) -> impl Iterator<Item = DetachedStates> {
        self.closed.pieces().cloned().map(DetachedStates::Sorted).chain(self.cut.clone())
    }

    /// Adds all states of another pane.
    pub(crate) fn absorb(
        &mut self,
        mut other: PaneStates,
        of: &Arc<GroupAggregation>,
        disk: &SpillArea,
    ) -> Result<(), TaskError> {
        other.cut(of)?;
        self.settle()?;
        other.closed.into_levels().into_iter().for_each(|level| self.closed.add(level));
        self.compact(of, disk)
    }

    /// Removes and returns the growing table.
    pub(crate) fn take(&mut self) -> Option<GroupStates> {
        self.open.take().filter(|open| open.len() > 0)
    }

    /// Removes and returns the states of the buckets that go, by level.
    pub(crate) fn split(
        &mut self,
        of: &Arc<GroupAggregation>,
        goes: impl Fn(u16) -> bool,
    ) -> Result<Vec<Vec<SortedStates>>> {
        self.cut(of)?;
        let mut levels = Vec::new();
        for level in std::mem::take(&mut self.closed).into_levels() {
            let (mut gone, mut left) = (Vec::new(), Vec::new());
            for piece in level {
                let (some, rest) = piece.split(&goes)?;
                gone.extend(some);
                left.extend(rest);
            }
            self.closed.add(left);
            levels.push(gone);
        }
        Ok(levels)
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.open_bytes() + self.closed.pieces().map(SortedStates::bytes).sum::<usize>()
    }

    pub(crate) fn rows(&self) -> usize {
        self.open.as_ref().map_or(0, GroupStates::len)
            + self.cut.as_ref().map_or(0, DetachedStates::rows)
            + self.closed.rows()
    }
}

/// Moves small panes to shared files on disk, if together they are worth one. Returns the states that were frozen for
/// this.
pub(crate) fn spill_small(
    panes: &mut BTreeMap<Micros, PaneStates>,
    of: &Arc<GroupAggregation>,
    disk: &SpillArea,
) -> Result<Vec<(Micros, SortedStates)>, TaskError> {
    let bytes = panes.iter().map(|(&start, pane)| (start, pane.bytes_to_spill()));
    let small: BTreeMap<Micros, usize> = bytes.filter(|(_, bytes)| *bytes < SMALL_BYTES).collect();
    // Without keys there is a single group, which is smaller than the metadata for finding it on disk.
    if of.keys.is_empty() || small.values().sum::<usize>() < SMALL_BYTES {
        return Ok(Vec::new());
    }
    let is_small = |(start, _): &(&Micros, &mut PaneStates)| small.contains_key(start);
    let mut cut = Vec::new();
    for (&start, pane) in panes.iter_mut().filter(is_small) {
        pane.settle()?;
        cut.extend(pane.take_states(of)?.map(|states| (start, states)));
    }
    put_small_on_disk(cut.iter_mut().map(|(_, states)| states), disk)?;
    for (start, states) in &cut {
        panes.entry(*start).or_default().closed.add(vec![states.clone()]);
    }
    // Merged small states are small, and go to disk together with those of other panes.
    for (_, pane) in panes.iter_mut().filter(is_small) {
        pane.closed.compact_but(SMALL_BYTES, of, disk)?;
    }
    let pieces = panes.iter_mut().filter(is_small).map(|(_, pane)| pane.closed.pieces_mut());
    put_small_on_disk(pieces.collect::<Result<Vec<_>, _>>()?.into_iter().flatten(), disk)?;
    Ok(cut)
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};
    use datafusion::functions_aggregate::sum::sum_udaf;
    use datafusion::physical_expr::aggregate::AggregateExprBuilder;
    use datafusion::physical_expr::expressions::col;

    use super::*;
    use crate::state::sorted_states::{ALL, merge_into};

    const PANES: i64 = 2000;
    const KEYS: i64 = 200;
    const ROUNDS: i64 = 9;

    /// Thousands of small panes must not stay in memory just because each is small; and when they share files, no pane
    /// may get the states of another or lose its own.
    #[test]
    fn small_panes_go_to_disk_together() {
        let schema =
            Arc::new(Schema::new(["key", "value"].map(|name| Field::new(name, DataType::Int64, true)).to_vec()));
        let built = AggregateExprBuilder::new(sum_udaf(), vec![col("value", &schema).unwrap()]);
        let function = Arc::new(built.schema(Arc::clone(&schema)).alias("sum").build().unwrap());
        let keys = vec![(col("key", &schema).unwrap(), "key".to_owned())];
        let of = Arc::new(GroupAggregation::new(keys, vec![function], vec![None], &schema).unwrap());
        let disk = SpillArea::with_runs_of(1 << 18);
        let mut panes: BTreeMap<Micros, PaneStates> = BTreeMap::new();
        let add = |pane: &mut PaneStates, keys: Vec<i64>, value: &dyn Fn(i64) -> i64| {
            let values = Int64Array::from_iter_values(keys.iter().map(|&key| value(key)));
            let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(keys)), Arc::new(values)];
            let rows = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
            pane.open(&of).unwrap().update(&of.arguments(&rows).unwrap(), rows.num_rows()).unwrap();
        };
        // Each time, a pane has a third of the keys.
        let has = |key: i64, round: i64, pane: i64| (key + round + pane) % 3 == 0;
        let mut cut_rows = 0;
        for round in 0..ROUNDS {
            for pane in 0..PANES {
                let keys = (0..KEYS).filter(|&key| has(key, round, pane)).collect();
                add(panes.entry(pane).or_default(), keys, &|key| key * pane + round);
            }
            let cut = spill_small(&mut panes, &of, &disk).unwrap();
            assert!(cut.iter().all(|(_, states)| states.is_on_disk()));
            cut_rows += cut.iter().map(|(_, states)| states.rows()).sum::<usize>() as i64;
            assert_eq!(panes.values().map(PaneStates::bytes_to_spill).sum::<usize>(), 0);
        }
        assert!(cut_rows > 2 * PANES * KEYS, "{cut_rows}");
        assert!(panes.values().map(PaneStates::rows).sum::<usize>() < (3 * PANES * KEYS) as usize);
        for (&pane, held) in &panes {
            let pieces: Vec<SortedStates> = held.closed().cloned().collect();
            let mut merged = None;
            merge_into(&pieces, &mut merged, &of, &ALL).unwrap();
            let (keys, sums, rows) = merged.unwrap().take_results().unwrap();
            let [keys, sums] = [&keys[0], &sums[0]].map(|column| column.as_primitive::<Int64Type>().values());
            assert_eq!(rows as i64, KEYS);
            for (&key, &sum) in keys.iter().zip(sums) {
                let rounds = (0..ROUNDS).filter(|&round| has(key, round, pane));
                assert_eq!(sum, rounds.map(|round| key * pane + round).sum::<i64>(), "key {key} of pane {pane}");
            }
        }
        // Small amounts stay in memory.
        let mut few = BTreeMap::from([(0, PaneStates::default())]);
        few.values_mut().for_each(|pane| add(pane, vec![1, 2, 3], &|key| key));
        assert!(spill_small(&mut few, &of, &disk).unwrap().is_empty() && few[&0].bytes_to_spill() > 0);
    }
}

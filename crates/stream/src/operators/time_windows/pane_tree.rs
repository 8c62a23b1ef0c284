//! Coarser panes: of four successive panes, of four of these, and so on. A window of thousands of panes is combined
//! from a few dozen of them, for any functions, without inverses.
//!
//! A coarser pane is made when a window needs it, from the four within it, and stays for later windows, as long as its
//! panes do. A new row in one of its panes discards it. So it costs nothing while panes are filled, and it is a copy
//! rather than part of the state.
//!
//! Source: trees of partial aggregates, as in Tangwongsan, Hirzel, Schneider and Wu, "General incremental
//! sliding-window aggregation" (2015), over panes instead of rows.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tidemill_dataflow::TaskError;

use crate::state::groups::GroupAggregation;
use crate::state::operator_memory::SpillArea;
use crate::state::panes::PaneStates;
use crate::state::sorted_states::{SMALL_BYTES, SortedStates, merged, put_on_disk};
use crate::time::window::Micros;
use crate::time::window_assigner::WindowAssigner;

/// The number of panes that are combined. With fewer, more would be stored; with more, a window would consist of more.
const TOGETHER: Micros = 4;
/// A window with no more panes than this is combined from the panes themselves.
const PANES_MAX: Micros = 16;

/// The coarser panes of a copy.
pub(super) struct PaneTree {
    of: Arc<GroupAggregation>,
    disk: SpillArea,
    /// The length of a pane, and of a window.
    pane: Micros,
    window: Micros,
    /// By length and start.
    made: BTreeMap<(Micros, Micros), Vec<SortedStates>>,
}

impl PaneTree {
    /// `None` if windows have few panes, or if panes are not of constant length.
    pub(super) fn new(spans: &WindowAssigner, of: &Arc<GroupAggregation>, disk: &SpillArea) -> Option<Self> {
        let (pane, window) = (spans.pane_length()?, spans.longest());
        (!spans.tumble() && window / pane > PANES_MAX).then(|| PaneTree {
            of: Arc::clone(of),
            disk: disk.clone(),
            pane,
            window,
            made: BTreeMap::new(),
        })
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.made.values().flatten().map(SortedStates::bytes).sum()
    }

    /// A pane is about to change.
    pub(super) fn touch(&mut self, pane: Micros) {
        let mut length = self.pane;
        while !self.made.is_empty() && length <= self.window / TOGETHER {
            length *= TOGETHER;
            self.made.remove(&(length, pane - pane.rem_euclid(length)));
        }
    }

    /// Panes have changed.
    pub(super) fn clear(&mut self) {
        self.made.clear();
    }

    /// Retains those that begin with a `wanted` pane; only windows that have fired contain the others.
    pub(super) fn retain(&mut self, wanted: impl Fn(Micros) -> bool) {
        self.made.retain(|&(_, start), _| wanted(start));
    }

    /// Moves to disk what is worth a file; the rest can be made again.
    pub(super) fn spill(&mut self) -> Result<(), TaskError> {
        let is_large =
            |pieces: &Vec<SortedStates>| pieces.iter().map(SortedStates::bytes).sum::<usize>() >= SMALL_BYTES;
        self.made.retain(|_, pieces| is_large(pieces) || pieces.iter().all(SortedStates::is_on_disk));
        self.made.values_mut().try_for_each(|pieces| put_on_disk(pieces, &self.disk))
    }

    /// The pieces that a window is combined from. `close` freezes the growing part of a pane.
    pub(super) fn pieces(
        &mut self,
        window: Range<Micros>,
        panes: &mut BTreeMap<Micros, PaneStates>,
        close: &mut impl FnMut(Micros, &mut PaneStates) -> Result<(), TaskError>,
    ) -> Result<Vec<SortedStates>, TaskError> {
        let (mut pieces, mut at) = (Vec::new(), window.start);
        while at < window.end {
            // The longest that begins here and ends within the window.
            let mut length = self.pane;
            while length <= (window.end - at) / TOGETHER && at.rem_euclid(length * TOGETHER) == 0 {
                length *= TOGETHER;
            }
            pieces.extend(self.stretch(at, length, panes, close)?);
            at = at.saturating_add(length);
        }
        Ok(pieces)
    }

    /// The states of a span that is a pane or a coarser pane.
    fn stretch(
        &mut self,
        start: Micros,
        length: Micros,
        panes: &mut BTreeMap<Micros, PaneStates>,
        close: &mut impl FnMut(Micros, &mut PaneStates) -> Result<(), TaskError>,
    ) -> Result<Vec<SortedStates>, TaskError> {
        if length == self.pane {
            let Some(pane) = panes.get_mut(&start) else { return Ok(Vec::new()) };
            close(start, pane)?;
            return Ok(pane.closed().cloned().collect());
        }
        if let Some(made) = self.made.get(&(length, start)) {
            return Ok(made.clone());
        }
        let (mut pieces, part) = (Vec::new(), length / TOGETHER);
        for number in 0..TOGETHER {
            let start = start + number * part;
            if panes.range(start..start + part).next().is_some() {
                pieces.extend(self.stretch(start, part, panes, close)?);
            }
        }
        if pieces.len() > 1 {
            let bytes: usize = pieces.iter().map(SortedStates::bytes).sum();
            let to_disk = bytes > self.disk.run_bytes() || pieces.iter().any(SortedStates::is_on_disk);
            pieces = merged(&pieces, to_disk, &self.of, &self.disk)?;
            self.made.insert((length, start), pieces.clone());
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};
    use datafusion::functions_aggregate::min_max::max_udaf;
    use datafusion::physical_expr::aggregate::AggregateExprBuilder;
    use datafusion::physical_expr::expressions::col;

    use super::*;
    use crate::state::sorted_states::{ALL, merge_into};

    /// The maximum value of each key.
    fn of() -> Arc<GroupAggregation> {
        let schema =
            Arc::new(Schema::new(["key", "value"].map(|name| Field::new(name, DataType::Int64, true)).to_vec()));
        let built = AggregateExprBuilder::new(max_udaf(), vec![col("value", &schema).unwrap()]);
        let function = Arc::new(built.schema(Arc::clone(&schema)).alias("max").build().unwrap());
        let keys = vec![(col("key", &schema).unwrap(), "key".to_owned())];
        Arc::new(GroupAggregation::new(keys, vec![function], vec![None], &schema).unwrap())
    }

    fn add(of: &Arc<GroupAggregation>, pane: &mut PaneStates, rows: &[(i64, i64)]) {
        let column =
            |of: fn(&(i64, i64)) -> i64| Arc::new(Int64Array::from_iter_values(rows.iter().map(of))) as ArrayRef;
        let columns = [("key", column(|row| row.0), true), ("value", column(|row| row.1), true)];
        let rows = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let arguments = of.arguments(&rows).unwrap();
        pane.open(of).unwrap().update(&arguments, rows.num_rows()).unwrap();
    }

    /// A window must be the combination of its panes, whenever rows arrive in any of them and whatever is on disk, and
    /// it must be combined from few pieces.
    #[test]
    fn windows_are_what_their_panes_are() {
        const PANE: Micros = 5;
        let mut random = 5_u64;
        let mut draw = |below: i64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as i64 % below
        };
        let spans = WindowAssigner::sliding(300 * PANE, PANE);
        assert!(PaneTree::new(&WindowAssigner::sliding(16, 1), &of(), &SpillArea::default()).is_none());
        assert!(PaneTree::new(&WindowAssigner::sliding(1000, 1000), &of(), &SpillArea::default()).is_none());
        for on_disk in [false, true] {
            let (of, disk) = (of(), if on_disk { SpillArea::with_runs_of(1 << 9) } else { SpillArea::default() });
            let mut coarse = PaneTree::new(&spans, &of, &disk).unwrap();
            let mut panes: BTreeMap<Micros, PaneStates> = BTreeMap::new();
            let mut model: BTreeMap<(Micros, i64), i64> = BTreeMap::new();
            let (mut most, mut closed, mut looked) = (0, 0, 0);
            for now in 0..800 {
                // Most rows are recent, some are late; now and then there are none.
                let late = if draw(3) == 0 { draw(250) } else { 0 };
                let pane = (now - late - 400) * PANE;
                let rows: Vec<(i64, i64)> = (0..draw(30)).map(|_| (draw(40), draw(1_000_000))).collect();
                if !rows.is_empty() && now % 50 > 5 {
                    coarse.touch(pane);
                    add(&of, panes.entry(pane).or_default(), &rows);
                    for (key, value) in rows {
                        let known = model.entry((pane, key)).or_insert(value);
                        *known = value.max(*known);
                    }
                }
                let start = (now - 400 - 299 + draw(3) * draw(50)) * PANE;
                let window = start..start + 300 * PANE;
                let mut close = |_: Micros, pane: &mut PaneStates| {
                    closed += 1;
                    if on_disk {
                        pane.spill(&of, &disk).unwrap();
                    } else {
                        pane.cut(&of).unwrap();
                        pane.compact(&of, &disk).unwrap();
                    }
                    Ok(())
                };
                let pieces = coarse.pieces(window.clone(), &mut panes, &mut close).unwrap();
                most = most.max(pieces.len());
                looked += panes.range(window.clone()).count();
                let mut found = None;
                merge_into(&pieces, &mut found, &of, &ALL).unwrap();
                let found: BTreeMap<i64, i64> = found.map_or_else(BTreeMap::new, |mut found| {
                    let (keys, values, _) = found.take_results().unwrap();
                    let [keys, values] =
                        [&keys[0], &values[0]].map(|column| column.as_primitive::<Int64Type>().values());
                    keys.iter().copied().zip(values.iter().copied()).collect()
                });
                let mut expected: BTreeMap<i64, i64> = BTreeMap::new();
                for (&(_, key), &value) in model.range((window.start, i64::MIN)..(window.end, i64::MIN)) {
                    let known = expected.entry(key).or_insert(value);
                    *known = value.max(*known);
                }
                assert_eq!(found, expected, "at {now}");
                if draw(20) == 0 {
                    coarse.spill().unwrap();
                    assert!(coarse.made.values().flatten().all(SortedStates::is_on_disk));
                }
                coarse.retain(|pane| pane >= start - 250 * PANE);
                if now % 300 == 299 {
                    coarse.clear();
                    assert_eq!(coarse.bytes(), 0);
                }
            }
            assert!(most < if on_disk { 300 } else { 60 }, "{most} pieces");
            assert!(looked > 5 * closed, "{closed} panes of {looked} were looked at");
        }
    }
}

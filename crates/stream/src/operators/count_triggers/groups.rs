//! The metadata of each window and key, by number, and the chains from there to stored states. It consists of numbers
//! only, which move to disk with the states when memory runs out.

use datafusion::error::Result;
use tidemill_dataflow::TaskError;
use tidemill_dataflow::memory::{Governor, SpillElement, SpillVec};

use crate::time::window::Micros;

/// Processes at most this many groups at a time without a spillable list.
const STRETCH: usize = 1 << 13;

/// The groups of a copy. A group is a window and a key; a state is a stored row.
#[derive(Default)]
pub(super) struct TriggeredGroups {
    /// By group: the start of its window.
    start: SpillVec<Micros>,
    /// By group: the number of its rows so far.
    seen: SpillVec<i64>,
    /// By group: the number of its newest state plus one; zero if it has none, for example after it has fired.
    newest: SpillVec<u32>,
    /// By group: the number of states in its chain.
    length: SpillVec<u32>,
    /// By state: the number of the group's rows up to it.
    seen_by: SpillVec<i64>,
    /// By state: the previous state in its chain, plus one.
    before: SpillVec<u32>,
}

impl TriggeredGroups {
    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        let states = self.seen_by.bytes() + self.before.bytes();
        self.start.bytes() + self.seen.bytes() + self.newest.bytes() + self.length.bytes() + states
    }

    /// Moves everything to disk, where it stays.
    pub(super) fn spill(&mut self, governor: &Governor) -> Result<(), TaskError> {
        self.start.spill(governor)?;
        self.seen.spill(governor)?;
        self.newest.spill(governor)?;
        self.length.spill(governor)?;
        self.seen_by.spill(governor)?;
        Ok(self.before.spill(governor)?)
    }

    /// An empty vector in the same place (memory or disk) as these.
    fn beside<T: SpillElement>(&self) -> Result<SpillVec<T>, TaskError> {
        let mut cells = SpillVec::default();
        if let Some(governor) = self.start.governor() {
            cells.spill(governor)?;
        }
        Ok(cells)
    }

    /// Makes room for at least `count` groups.
    pub(super) fn reserve(&mut self, count: usize) -> Result<(), TaskError> {
        if count > self.start.len() {
            self.start.resize(count)?;
            self.seen.resize(count)?;
            self.newest.resize(count)?;
            self.length.resize(count)?;
        }
        Ok(())
    }

    pub(super) fn starts_at(&mut self, group: usize, start: Micros) {
        self.start[group] = start;
    }

    /// The number of rows of a group so far.
    pub(super) fn seen(&self, group: usize) -> i64 {
        self.seen[group]
    }

    /// Counts one more row of a group.
    pub(super) fn count_row(&mut self, group: usize) {
        self.seen[group] += 1;
    }

    /// The number of states in a group's chain.
    pub(super) fn length(&self, group: usize) -> u32 {
        self.length[group]
    }

    /// Appends states to their chains. `of` is the group of each, and `seen` the number of the group's rows up to it. A
    /// total starts a new chain.
    pub(super) fn chain(
        &mut self,
        of: &[usize],
        seen: &[i64],
        totals: impl Fn(usize) -> bool,
    ) -> Result<(), TaskError> {
        let first = self.before.len();
        self.seen_by.extend_from_slice(seen)?;
        self.before.resize(first + of.len())?;
        for (at, &group) in of.iter().enumerate() {
            if totals(at) {
                self.end_chain(group);
            }
            self.seen[group] = self.seen[group].max(seen[at]);
            self.length[group] += 1;
            self.before[first + at] = self.newest[group];
            self.newest[group] = (first + at) as u32 + 1;
        }
        Ok(())
    }

    /// Removes all states of a group.
    pub(super) fn end_chain(&mut self, group: usize) {
        (self.newest[group], self.length[group]) = (0, 0);
    }

    /// The numbers of the states that cover the first `seen` rows of a group, in order.
    pub(super) fn states(&self, group: usize, seen: i64) -> Vec<u32> {
        let (seen_by, before) = (&self.seen_by[..], &self.before[..]);
        let mut next = self.newest[group] as usize;
        let mut found = Vec::new();
        while next > 0 {
            if seen_by[next - 1] <= seen {
                found.push(next as u32 - 1);
            }
            next = before[next - 1] as usize;
        }
        found.reverse();
        found
    }

    /// For each state, by number, one if it is in a chain, else zero.
    pub(super) fn chained(&self) -> Result<SpillVec<u8>, TaskError> {
        let mut chained = self.beside()?;
        chained.resize(self.before.len())?;
        let (marks, before) = (&mut chained[..], &self.before[..]);
        for &newest in self.newest.iter() {
            let mut next = newest as usize;
            while next > 0 {
                marks[next - 1] = 1;
                next = before[next - 1] as usize;
            }
        }
        Ok(chained)
    }

    /// The groups with states whose window is `over`, given its start; sorted by this start.
    pub(super) fn over(&self, over: impl Fn(Micros) -> bool) -> Result<SpillVec<u32>, TaskError> {
        let (start, length) = (&self.start[..], &self.length[..]);
        let mut found = self.beside()?;
        for from in (0..start.len()).step_by(STRETCH) {
            let stretch = from..start.len().min(from + STRETCH);
            let some = stretch.filter(|&group| length[group] > 0 && over(start[group])).map(|group| group as u32);
            found.extend_from_slice(&some.collect::<Vec<_>>())?;
        }
        // Sorted in place, since there may be more than fit in memory.
        found.sort_unstable_by_key(|&group| (start[group as usize], group));
        Ok(found)
    }

    /// The starts of the windows of groups with states, and the number of each group's states.
    pub(super) fn open(&self) -> impl Iterator<Item = (Micros, u32)> {
        self.start.iter().copied().zip(self.length.iter().copied()).filter(|(_, length)| *length > 0)
    }

    /// Removes all groups. New ones are in memory again if `few` states are stored.
    pub(super) fn clear(&mut self, few: bool) -> Result<(), TaskError> {
        let governor = self.start.governor().filter(|_| !few).cloned();
        *self = TriggeredGroups::default();
        governor.map_or(Ok(()), |governor| self.spill(&governor))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tidemill_dataflow::memory::MemorySettings;

    use super::*;

    /// Results would lack a state that is in no chain, and a state in the wrong chain would count for two groups:
    /// checked in memory and on disk, with random totals and window ends.
    #[test]
    fn groups_have_their_states() {
        let governor = Governor::new(MemorySettings::default());
        let mut random = 11_u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((random >> 33) % below) as usize
        };
        let (mut groups, mut next) = (TriggeredGroups::default(), 0);
        let mut model: BTreeMap<usize, (i64, Vec<(u32, i64)>)> = BTreeMap::new();
        let start = |group: usize| (group % 7) as Micros * 10;
        for round in 0..300 {
            if round == 100 {
                groups.spill(&governor).unwrap();
            }
            assert_eq!(groups.bytes() == 0, round == 0 || (100..=200).contains(&round));
            if round == 150 || round == 200 {
                // On disk again, and then in memory.
                groups.clear(round == 200).unwrap();
                (model, next) = (BTreeMap::new(), 0);
            }
            let of: Vec<usize> = (0..1 + draw(50)).map(|_| draw(20_000)).collect();
            groups.reserve(20_000).unwrap();
            let (mut seen, totals) = (Vec::new(), draw(3));
            for (at, &group) in of.iter().enumerate() {
                groups.starts_at(group, start(group));
                groups.count_row(group);
                let (rows, states) = model.entry(group).or_default();
                *rows += 1;
                if at % 3 == totals {
                    states.clear();
                }
                states.push((next, *rows));
                next += 1;
                seen.push(*rows);
            }
            groups.chain(&of, &seen, |at| at % 3 == totals).unwrap();
            for (&group, (rows, states)) in &model {
                assert_eq!(groups.seen(group), *rows);
                assert_eq!(groups.length(group) as usize, states.len());
                let first = rows - draw(3) as i64;
                let found = states.iter().filter(|(_, seen)| *seen <= first).map(|(number, _)| *number);
                assert_eq!(groups.states(group, first), found.collect::<Vec<_>>());
            }
            let chained = groups.chained().unwrap();
            let mut expected = vec![0_u8; next as usize];
            model.values().flat_map(|(_, states)| states).for_each(|(number, _)| expected[*number as usize] = 1);
            assert_eq!(&chained[..], expected);
            let over = groups.over(|start| start < 30).unwrap();
            let mut expected: Vec<u32> = model
                .iter()
                .filter(|(group, (_, states))| start(**group) < 30 && !states.is_empty())
                .map(|(group, _)| *group as u32)
                .collect();
            expected.sort_by_key(|&group| start(group as usize));
            assert_eq!(&over[..], expected);
            assert_eq!(groups.open().count(), model.values().filter(|(_, states)| !states.is_empty()).count());
            for &group in over.iter().take(draw(10)) {
                groups.end_chain(group as usize);
                model.get_mut(&(group as usize)).unwrap().1.clear();
            }
        }
    }
}

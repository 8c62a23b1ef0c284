//! Which copies of sources should read which splits. A split's load is not known, so all count as one.

use std::collections::BTreeMap;

use crate::layout::{ClusterLayout, TaskLayout};

/// Splits that should have another reader: by source task, and by the copy that reads them now, each with its next one.
pub type SplitPlan = BTreeMap<String, BTreeMap<u32, BTreeMap<String, u32>>>;

/// The splits that must leave drained hosts and spare workers, each to the copy that has the fewest; with `evens`, also
/// those that other copies have more of than others. As few as possible move. Splits stay where no other copy is left.
pub fn plan_splits(layout: &ClusterLayout, evens: bool) -> SplitPlan {
    let plans = layout.tasks.iter().map(|task| (task.name.clone(), plan_task(layout, task, evens)));
    plans.filter(|(_, moves)| !moves.is_empty()).collect()
}

fn plan_task(layout: &ClusterLayout, task: &TaskLayout, evens: bool) -> BTreeMap<u32, BTreeMap<String, u32>> {
    // Each split with the copy that has it now.
    let mut held: BTreeMap<u32, Vec<(&String, u32)>> = BTreeMap::new();
    let mut leaving = Vec::new();
    for (copy, splits) in (0..).zip(&task.splits) {
        // A copy that has ended cannot take any, and what it has read it need not give.
        let Some(splits) = splits else { continue };
        let splits = splits.iter().map(|split| (split, copy));
        match layout.is_closed(task.copy_workers[copy as usize]) {
            true => leaving.extend(splits),
            false => held.entry(copy).or_default().extend(splits),
        }
    }
    if held.is_empty() {
        return BTreeMap::new();
    }
    for split in leaving {
        let fewest = held.values_mut().min_by_key(|splits| splits.len()).expect("there is one");
        fewest.push(split);
    }
    if evens {
        even_out(&mut held);
    }
    let mut moves: BTreeMap<u32, BTreeMap<String, u32>> = BTreeMap::new();
    for (to, splits) in held {
        for (split, from) in splits.into_iter().filter(|(_, from)| *from != to) {
            moves.entry(from).or_default().insert(split.clone(), to);
        }
    }
    moves
}

/// Moves splits until no copy has two more than another.
fn even_out(held: &mut BTreeMap<u32, Vec<(&String, u32)>>) {
    loop {
        let count = |copy: &u32| held[copy].len();
        // Of several, the one with the lowest number.
        let most = *held.keys().rev().max_by_key(|copy| count(copy)).expect("there is one");
        let least = *held.keys().min_by_key(|copy| count(copy)).expect("there is one");
        if count(&most) <= count(&least) + 1 {
            return;
        }
        let split = held.get_mut(&most).and_then(Vec::pop).expect("it has the most");
        held.entry(least).or_default().push(split);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::layout::HostLayout;

    fn layout(splits: Vec<Option<Vec<String>>>, drained: &[bool]) -> ClusterLayout {
        let host = |&drained: &bool| HostLayout { name: String::new(), cores: 1.0, drained };
        let copy_workers = (0..splits.len() as u32).collect();
        let task = TaskLayout { name: "numbers".into(), copy_workers, splits, ..TaskLayout::default() };
        ClusterLayout {
            hosts: drained.iter().map(host).collect(),
            worker_hosts: (0..drained.len() as u32).collect(),
            spares: BTreeSet::new(),
            tasks: vec![task, TaskLayout { name: "count".into(), ..TaskLayout::default() }],
        }
    }

    fn named(names: &[&str]) -> Option<Vec<String>> {
        Some(names.iter().map(|&name| name.to_owned()).collect())
    }

    /// A split for a copy that has ended would never be read, and one that moves for nothing stands still for nothing.
    #[test]
    fn splits_leave_drained_hosts_for_those_with_fewest() {
        let splits = || vec![named(&["0", "3"]), named(&["1", "4", "5"]), None, named(&[])];
        let moves = plan_splits(&layout(splits(), &[true, false, false, false]), false);
        assert_eq!(moves["numbers"], [(0, [("0".into(), 3), ("3".into(), 3)].into())].into());
        assert!(plan_splits(&layout(splits(), &[false; 4]), false).is_empty());
        assert!(plan_splits(&layout(splits(), &[true; 4]), true).is_empty());
        let even = plan_splits(&layout(splits(), &[false; 4]), true);
        assert_eq!(even["numbers"], [(1, [("5".into(), 3)].into())].into());
        let spare = layout(splits(), &[false; 4]).with_spares([1].into());
        assert_eq!(plan_splits(&spare, false)["numbers"].keys().collect::<Vec<_>>(), [&1]);
        let all = plan_splits(&layout(splits(), &[true, true, true, false]), true);
        assert_eq!(all["numbers"].values().map(BTreeMap::len).sum::<usize>(), 5);
    }
}

//! Gives workers that have just joined their share of the buckets.
//!
//! [`assign`](super::assign) moves a bucket only if that makes the fullest part less full, and one without load not at
//! all. A user who adds workers wants them to take part at once, and also in keys that have no rows at the moment.

use std::collections::BTreeSet;

use super::{plan::Plan, problem::Problem, state::State};

/// Moves buckets to the workers `joined`, so that each of their copies has as many as the other copies have on average.
///
/// Every other copy gives the same part of its buckets, of light and heavy ones alike: what one had more than another,
/// it still has. Nothing moves to drained hosts and spare workers.
pub fn share_with(problem: &Problem, joined: &BTreeSet<u32>) -> Plan {
    let mut state = State::of_homes(problem);
    for task in 0..problem.first_lane.len().saturating_sub(1) {
        let (new, old): (Vec<usize>, Vec<usize>) =
            problem.lanes_of(task).partition(|lane| joined.contains(&problem.lanes[*lane].worker));
        if new.is_empty() {
            continue;
        }
        let of_task = |item: &usize| problem.items[*item].task == task;
        let buckets = (0..problem.items.len()).filter(of_task).count();
        let quota = buckets / (new.len() + old.len());
        let mut given = given(problem, &state, &old, new.len());
        // Heavy ones first, each to the copy that has least so far.
        given.sort_by(|a, b| size(problem, *b).total_cmp(&size(problem, *a)).then(a.cmp(b)));
        for item in given {
            let least = new.iter().filter(|lane| state.lane_items[**lane] < quota).min_by(|a, b| {
                let load = |lane: usize| (state.lane_work[lane], state.lane_items[lane]);
                load(**a).partial_cmp(&load(**b)).expect("works are numbers")
            });
            let Some(&lane) = least else { break };
            state.move_to(item, lane);
        }
    }
    Plan::of(problem, &state)
}

/// The buckets that copies give if `new` others join them: of every one the same part.
fn given(problem: &Problem, state: &State<'_>, old: &[usize], new: usize) -> Vec<usize> {
    let (part, all) = (new, old.len() + new);
    let mut given = Vec::new();
    // What is left over from one copy counts with the next: parts of few buckets are rounded once.
    let mut owed = all / 2;
    for &lane in old {
        let mut items: Vec<usize> = (0..problem.items.len()).filter(|item| state.place[*item] == lane).collect();
        items.sort_by(|a, b| size(problem, *b).total_cmp(&size(problem, *a)).then(a.cmp(b)));
        for item in items {
            owed += part;
            if owed >= all {
                owed -= all;
                given.push(item);
            }
        }
    }
    given
}

/// How much a bucket does, in any unit.
fn size(problem: &Problem, item: usize) -> f64 {
    let item = &problem.items[item];
    item.work + item.sent * 1e-12
}

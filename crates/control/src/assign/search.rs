//! Makes moves and swaps away from the fullest hosts, as long as that helps.

use super::state::State;

/// A host is among the fullest if it is at least this fraction as full as the fullest.
const HOT: f64 = 0.98;
/// The most moves that are priced, so that the search ends in milliseconds.
const PRICED_MAX: usize = 300_000;
/// The most swaps that are priced, and up to how many buckets of a copy: with more, moves alone come as near, and each
/// swap moves two buckets.
const SWAPS_MAX: usize = 5_000;
const SWAPS_BUCKETS_MAX: usize = 16;
/// A step must gain this fraction of the price, divided by the number of buckets.
const STEP_MIN: f64 = 0.01;
/// The weight of evenness at first.
const EVENNESS: f64 = 0.1;
/// All steps together must gain this fraction of the objective, or nothing moves.
const GAIN_MIN: f64 = 0.01;
/// Problems with at most this many pairs of buckets and hosts are searched thoroughly.
const SMALL: usize = 1500;
/// How often a small problem is restarted from another placement.
const STARTS: u64 = 24;

/// Improves the placement of buckets; leaves everything where it is if that gains next to nothing.
pub(super) fn improve(state: &mut State<'_>) {
    let start = state.place.clone();
    let before = state.objective();
    let mut left = PRICED_MAX;
    descend(state, &mut left);
    let items = state.problem.items.len();
    if items > 1 && items * state.problem.hosts.len() <= SMALL {
        try_other_starts(state, &start);
    }
    take_back(state, &start);
    if state.objective() > before * (1.0 - GAIN_MIN) {
        put_back(state, &start);
    }
}

/// Makes moves, and swaps when no move helps: first with evenness in the price, then for the objective alone.
fn descend(state: &mut State<'_>, left: &mut usize) {
    let are_few = state.problem.items.len() <= SWAPS_BUCKETS_MAX * state.problem.lanes.len();
    let mut swaps = if are_few { SWAPS_MAX } else { 0 };
    for evenness in [EVENNESS, 0.0] {
        state.evenness = evenness;
        while *left > 0 && (move_all(state, left) || swap_one(state, &mut swaps)) {}
    }
}

/// The price that a step must fall below.
fn bound(state: &State<'_>) -> f64 {
    state.price() * (1.0 - STEP_MIN / state.problem.items.len() as f64)
}

/// Whether a host is worth moving away from.
fn is_hot(state: &State<'_>, host: usize) -> bool {
    let small = state.problem.items.len() * state.problem.hosts.len() <= SMALL;
    small || state.heat(host) >= HOT
}

/// The loaded items by host, the largest first.
fn by_host(state: &State<'_>) -> Vec<Vec<usize>> {
    let problem = state.problem;
    let mut items = vec![Vec::new(); problem.hosts.len()];
    for (item, lane) in state.place.iter().enumerate() {
        if problem.items[item].is_loaded() {
            items[problem.lanes[*lane].host].push(item);
        }
    }
    let load = state.load();
    let works: f64 = problem.items.iter().map(|item| item.work).sum();
    let sents: f64 = problem.items.iter().map(|item| item.sent).sum();
    let size = |item: usize| {
        let item = &problem.items[item];
        load.cpu * item.work / works.max(1e-9) + load.network * item.sent / sents.max(1e-9)
    };
    for items in &mut items {
        items.sort_by(|a, b| size(*b).total_cmp(&size(*a)));
    }
    items
}

/// Visits the items of the fullest hosts once and moves each to its best place. Returns whether any has moved.
fn move_all(state: &mut State<'_>, left: &mut usize) -> bool {
    let mut moved = false;
    let items = by_host(state);
    for host in 0..items.len() {
        if !is_hot(state, host) {
            continue;
        }
        // A host that sends too much should also own more of the buckets that it sends to.
        let attracted = state.sends_most(host);
        let others = items.iter().enumerate().filter(|(other, _)| attracted && *other != host);
        let coming: Vec<usize> = others.flat_map(|(_, items)| items.iter().copied()).collect();
        for (item, only) in
            items[host].iter().map(|item| (*item, None)).chain(coming.into_iter().map(|item| (item, Some(host))))
        {
            if *left == 0 || !is_hot(state, host) {
                break;
            }
            moved |= move_one(state, item, only, left);
        }
    }
    moved
}

/// Moves an item to its best place, on any host or only one. Returns whether it has moved.
fn move_one(state: &mut State<'_>, item: usize, only: Option<usize>, left: &mut usize) -> bool {
    let problem = state.problem;
    let mut best = (bound(state), None);
    // Consider only the lane with the least work on each host; the lanes of a host may not be adjacent.
    let mut seen: Vec<(usize, usize)> = Vec::new();
    for lane in problem.lanes_of(problem.items[item].task) {
        let host = problem.lanes[lane].host;
        if lane == state.place[item] || only.is_some_and(|only| only != host) {
            continue;
        }
        match seen.iter_mut().find(|(other, _)| *other == host) {
            Some((_, best)) => {
                if state.lane_work[lane] < state.lane_work[*best] {
                    *best = lane;
                }
            }
            None => seen.push((host, lane)),
        }
    }
    for (_, lane) in seen {
        *left = left.saturating_sub(1);
        let priced = state.priced(item, lane);
        if priced < best.0 {
            best = (priced, Some(lane));
        }
    }
    if let Some(lane) = best.1 {
        state.move_to(item, lane);
    }
    best.1.is_some()
}

/// Makes the first swap that helps. Returns whether there is one.
fn swap_one(state: &mut State<'_>, left: &mut usize) -> bool {
    let problem = state.problem;
    let items = by_host(state);
    let bound = bound(state);
    for host in (0..items.len()).filter(|host| is_hot(state, *host)) {
        for item in &items[host] {
            for other in items.iter().flatten() {
                let (a, b) = (state.place[*item], state.place[*other]);
                if a == b || problem.items[*item].task != problem.items[*other].task {
                    continue;
                }
                if *left == 0 {
                    return false;
                }
                *left -= 1;
                if state.priced_swap(*item, *other) < bound {
                    state.move_to(*item, b);
                    state.move_to(*other, a);
                    return true;
                }
            }
        }
    }
    false
}

/// Searches from other placements: a local optimum from one start may not be one from another.
fn try_other_starts(state: &mut State<'_>, start: &[usize]) {
    let problem = state.problem;
    let mut best = (state.objective(), state.place.clone());
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    for attempt in 0..STARTS {
        for (item, home) in start.iter().enumerate() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let lanes: Vec<usize> = problem.lanes_of(problem.items[item].task).collect();
            let lane = match attempt % 2 {
                0 => lanes[(seed >> 33) as usize % lanes.len()],
                _ if (seed >> 33).is_multiple_of(3) => lanes[(seed >> 40) as usize % lanes.len()],
                _ => best.1.get(item).copied().unwrap_or(*home),
            };
            if problem.items[item].is_loaded() {
                state.move_to(item, lane);
            }
        }
        descend(state, &mut (PRICED_MAX / STARTS as usize));
        if state.objective() < best.0 {
            best = (state.objective(), state.place.clone());
        }
    }
    put_back(state, &best.1);
}

/// Undoes moves that gain nothing: as few buckets as possible should move.
fn take_back(state: &mut State<'_>, start: &[usize]) {
    for (item, home) in start.iter().enumerate() {
        let lane = state.place[item];
        if lane != *home {
            let objective = state.objective();
            state.move_to(item, *home);
            if state.objective() > objective {
                state.move_to(item, lane);
            }
        }
    }
}

fn put_back(state: &mut State<'_>, place: &[usize]) {
    for (item, lane) in place.iter().enumerate() {
        if state.place[item] != *lane {
            state.move_to(item, *lane);
        }
    }
}

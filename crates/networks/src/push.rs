//! PageRank by pushing residuals: scores follow a network whose links change, at a cost proportional to the nodes
//! affected.
//!
//! The state consists of scores x and residuals r with x + r = (1 - damping) + damping * P' x, where P is the walk
//! along links. A node whose residual exceeds a tolerance adds it to its score, and passes it on to the nodes that its
//! links lead to. Each push removes at least (1 - damping) of a residual, in any order.
//!
//! Source: Ohsaka, Maehara and Kawarabayashi (2015), Efficient PageRank tracking in evolving networks.

use crate::error::{NetworkError, ensure};

/// Nodes of all shares are numbered: slot in the share * number of shares + share.
const NUMBER_BITS: u32 = 32;

/// The links of a share's nodes with their counts: ascending keys (slot << 32 | number), in a large table and a small
/// one of recent changes. A link's count is the sum of both.
#[derive(Clone, Copy, Debug)]
pub struct CountedLinks<'a> {
    /// The start of each slot's links in `keys`, followed by the end; later slots have none there.
    pub firsts: &'a [i64],
    /// The large table.
    pub keys: &'a [i64],
    /// The counts of `keys`.
    pub counts: &'a [i64],
    /// The small table.
    pub new_keys: &'a [i64],
    /// The counts of `new_keys`.
    pub new_counts: &'a [i64],
    /// Whether parallel links count several times, or once. A link with weights counts by its weight.
    pub several: bool,
    /// The weights of `keys` and of `new_keys`, if links have some: those of the small table replace those of the large
    /// one, so that a weight is not the difference of two large ones.
    pub weights: Option<(&'a [f64], &'a [f64])>,
}

impl CountedLinks<'_> {
    fn check(&self) -> Result<(), NetworkError> {
        ensure(self.keys.len() == self.counts.len(), "there must be one count for each key")?;
        ensure(self.new_keys.len() == self.new_counts.len(), "there must be one count for each new key")?;
        let weighted =
            self.weights.is_none_or(|(old, new)| old.len() == self.keys.len() && new.len() == self.new_keys.len());
        ensure(weighted, "there must be one weight for each key")?;
        let rising = self.firsts.windows(2).all(|pair| pair[0] <= pair[1]);
        let inside = self.firsts.first().is_none_or(|&first| first >= 0)
            && self.firsts.last().is_none_or(|&last| last as usize <= self.keys.len());
        ensure(rising && inside, "firsts must ascend within the keys")
    }

    /// Calls `each` with the number of every link of a slot, and by how much it counts.
    #[inline(always)]
    fn each(&self, slot: usize, mut each: impl FnMut(u32, f64)) {
        let mut call = |key: i64, count: i64, weight: Option<f64>| {
            if count > 0 {
                each(key as u32, weight.unwrap_or(if self.several { count as f64 } else { 1.0 }));
            }
        };
        let old_weight = |at: usize| self.weights.map(|(old, _)| old[at]);
        let new_weight = |at: usize| self.weights.map(|(_, new)| new[at]);
        let old = if slot + 1 < self.firsts.len() {
            self.firsts[slot] as usize..self.firsts[slot + 1] as usize
        } else {
            0..0
        };
        let begin = (slot as i64) << NUMBER_BITS;
        let mut new = self.new_keys.partition_point(|&key| key < begin);
        let end = begin + (1 << NUMBER_BITS);
        for at in old {
            let (key, mut count, mut weight) = (self.keys[at], self.counts[at], old_weight(at));
            while new < self.new_keys.len() && self.new_keys[new] < key {
                call(self.new_keys[new], self.new_counts[new], new_weight(new));
                new += 1;
            }
            if new < self.new_keys.len() && self.new_keys[new] == key {
                count += self.new_counts[new];
                weight = new_weight(new);
                new += 1;
            }
            call(key, count, weight);
        }
        while new < self.new_keys.len() && self.new_keys[new] < end {
            call(self.new_keys[new], self.new_counts[new], new_weight(new));
            new += 1;
        }
    }
}

/// Options of [`push_residuals`].
#[derive(Clone, Copy, Debug)]
pub struct PushOptions {
    /// The index of this share.
    pub share: usize,
    /// The number of shares.
    pub shares: usize,
    /// Less than 1.
    pub damping: f64,
    /// Residuals up to this are kept.
    pub tolerance: f64,
    /// Maximum number of rounds in which all nodes with a larger residual push it; by default until there are none.
    pub rounds_max: Option<usize>,
}

/// The remaining work after a push.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pushed {
    /// Nodes of other shares by number, ascending.
    pub numbers: Vec<i64>,
    /// The values to add to their residuals.
    pub values: Vec<f64>,
    /// Own slots whose residual still exceeds the tolerance.
    pub active: Vec<i64>,
    /// The number of links visited.
    pub links: u64,
}

/// Pushes the residuals of those `candidates` (own slots) that exceed the tolerance, and of nodes that exceed it as a
/// result. `outgoing` is the number of links that leave each slot, or the sum of their weights.
///
/// # Errors
/// `BadArgument` if lengths differ, or if a candidate is not a slot.
pub fn push_residuals(
    links: &CountedLinks<'_>,
    outgoing: &[f64],
    scores: &mut [f64],
    residuals: &mut [f64],
    candidates: &[i64],
    options: &PushOptions,
) -> Result<Pushed, NetworkError> {
    links.check()?;
    let slots = outgoing.len();
    ensure(scores.len() == slots && residuals.len() == slots, "there must be a score and a residual for each slot")?;
    ensure(options.share < options.shares, "a share is one of the shares")?;
    ensure(candidates.iter().all(|&slot| (0..slots as i64).contains(&slot)), "candidates are slots")?;
    let PushOptions { share, shares, damping, tolerance, rounds_max } = *options;
    let mut queued = vec![false; slots];
    let mut active = Vec::new();
    for &slot in candidates {
        if residuals[slot as usize].abs() > tolerance && !std::mem::replace(&mut queued[slot as usize], true) {
            active.push(slot as usize);
        }
    }
    let mut pushed = Pushed::default();
    // By number, for other shares; touched ones are recorded.
    let mut given: Vec<f64> = Vec::new();
    let mut rounds = 0;
    while !active.is_empty() && rounds_max.is_none_or(|most| rounds < most) {
        let mut next = Vec::new();
        for slot in std::mem::take(&mut active) {
            queued[slot] = false;
            let residual = std::mem::take(&mut residuals[slot]);
            scores[slot] += residual;
            // Links whose weights are all 0 lead nowhere.
            let rate = if outgoing[slot] > 0.0 { damping * residual / outgoing[slot] } else { 0.0 };
            links.each(slot, |number, weight| {
                pushed.links += 1;
                let (number, value) = (number as usize, rate * weight);
                let target = number / shares;
                if number % shares != share {
                    if number >= given.len() {
                        given.resize((number + 1).max(2 * given.len()).max(slots * shares), 0.0);
                    }
                    if given[number] == 0.0 {
                        pushed.numbers.push(number as i64);
                    }
                    given[number] += value;
                } else if target < slots {
                    residuals[target] += value;
                    if residuals[target].abs() > tolerance && !std::mem::replace(&mut queued[target], true) {
                        next.push(target);
                    }
                }
            });
        }
        active = next;
        rounds += 1;
    }
    // A node whose sum was temporarily 0 was recorded twice.
    pushed.numbers.sort_unstable();
    pushed.numbers.dedup();
    pushed.values = pushed.numbers.iter().map(|&number| given[number as usize]).collect();
    pushed.active = active.iter().map(|&slot| slot as i64).collect();
    Ok(pushed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::CompressedRows;
    use crate::testing::any_network;
    use proptest::prelude::*;

    /// A weight of a link, some of them 0.
    fn weight(source: usize, target: usize) -> f64 {
        ((source * 7 + target * 3) % 5) as f64 / 4.0
    }

    /// The tables of a share: keys and counts, and as floats weights.
    type Tables = ([Vec<i64>; 5], [Vec<f64>; 2]);

    /// The links of a share, every third in the small table, which also removes some links of the large one.
    fn tables(rows: &CompressedRows, share: usize, shares: usize) -> Tables {
        let mut found: [Vec<i64>; 5] = Default::default();
        let mut weights: [Vec<f64>; 2] = Default::default();
        let slots = rows.rows().div_ceil(shares);
        found[0].push(0);
        for slot in 0..slots {
            let node = slot * shares + share;
            let mut targets = if node < rows.rows() { rows.neighbors(node).to_vec() } else { Vec::new() };
            targets.dedup();
            for (at, target) in targets.into_iter().enumerate() {
                let key = (slot as i64) << NUMBER_BITS | i64::from(target);
                let weight = weight(node, target as usize);
                // A weight of the large table that the small one replaces is wrong.
                let (old, new, old_weight) = [(1, 0, weight), (0, 1, 0.0), (3, -2, 1e9)][at % 3];
                for (count, table, weight) in [(old, 1, old_weight), (new, 3, weight)] {
                    if count != 0 {
                        found[table].push(key);
                        found[table + 1].push(count);
                        weights[table / 2].push(weight);
                    }
                }
            }
            found[0].push(found[1].len() as i64);
        }
        (found, weights)
    }

    proptest! {
        /// If a residual is lost, or passed on twice, the scores are not those of the walk.
        #[test]
        fn pushed_scores_are_those_of_the_walk(
            rows in any_network(false), shares in 1usize..4, rounds in 1usize..4, weighted: bool,
        ) {
            let (n, damping) = (rows.rows(), 0.85);
            let slots = n.div_ceil(shares);
            let counts = |node: usize, target: u32| if weighted { weight(node, target as usize) } else { 1.0 };
            let targets = |node: usize| {
                let mut targets = if node < n { rows.neighbors(node).to_vec() } else { Vec::new() };
                targets.dedup();
                targets
            };
            let leaving = |node: usize| targets(node).iter().map(|&target| counts(node, target)).sum::<f64>();
            let tables: Vec<_> = (0..shares).map(|share| tables(&rows, share, shares)).collect();
            let mut scores = vec![vec![0.0; slots]; shares];
            let mut residuals = vec![vec![1.0 - damping; slots]; shares];
            let mut candidates: Vec<Vec<i64>> = vec![(0..slots as i64).collect(); shares];
            let degrees: Vec<Vec<f64>> =
                (0..shares).map(|share| (0..slots).map(|slot| leaving(slot * shares + share)).collect()).collect();
            while candidates.iter().any(|own| !own.is_empty()) {
                for share in 0..shares {
                    let ([firsts, keys, counts, new_keys, new_counts], [old, new]) = &tables[share];
                    let weights = weighted.then_some((&old[..], &new[..]));
                    let links = CountedLinks { firsts, keys, counts, new_keys, new_counts, several: true, weights };
                    let options = PushOptions { share, shares, damping, tolerance: 1e-12, rounds_max: Some(rounds) };
                    let own = std::mem::take(&mut candidates[share]);
                    let pushed =
                        push_residuals(&links, &degrees[share], &mut scores[share], &mut residuals[share], &own, &options)
                            .unwrap();
                    candidates[share].extend(pushed.active);
                    for (number, value) in pushed.numbers.iter().zip(pushed.values) {
                        let (slot, to) = (*number as usize / shares, *number as usize % shares);
                        residuals[to][slot] += value;
                        if residuals[to][slot].abs() > 1e-12 {
                            candidates[to].push(slot as i64);
                        }
                    }
                }
            }
            let mut walked = vec![1.0 - damping; n];
            for node in 0..n {
                for target in targets(node) {
                    if leaving(node) > 0.0 {
                        let share = counts(node, target) / leaving(node);
                        walked[target as usize] += damping * scores[node % shares][node / shares] * share;
                    }
                }
            }
            for node in 0..n {
                prop_assert!((scores[node % shares][node / shares] - walked[node]).abs() < 1e-10);
            }
        }
    }
}

//! PageRank by pulling: each node sums the contributions of its incoming links, so no two threads write to the same
//! place, and a row's sum does not depend on the number of threads.
//!
//! Source: S. Brin and L. Page (1998); nodes without outgoing links are treated as in networkx.

use crate::error::{NetworkError, ensure};
use crate::rows::CompressedRows;
use crate::shared::{SharedSlice, fill_with, gather_sum};
use std::str::FromStr;
use std::sync::Mutex;
use tidemill_kernels::pool::Pool;

/// The change between two iterations that is compared with the tolerance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeRule {
    /// The sum of the absolute changes.
    L1,
    /// The largest absolute change.
    Largest,
}

impl FromStr for ChangeRule {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "l1" => Ok(ChangeRule::L1),
            "largest" => Ok(ChangeRule::Largest),
            _ => Err(format!("rule must be \"l1\" or \"largest\", not {name:?}")),
        }
    }
}

/// Options of [`pagerank`].
#[derive(Clone, Copy, Debug)]
pub struct PagerankOptions<'a> {
    /// The share of a score that follows links.
    pub damping: f64,
    /// Iterations end when the change is smaller.
    pub tolerance: f64,
    /// Maximum number of iterations.
    pub iterations_max: usize,
    /// How the change is measured.
    pub rule: ChangeRule,
    /// The initial scores; by default 1 / n each.
    pub start: Option<&'a [f64]>,
    /// The distribution of the rest of the scores; by default 1 / n each.
    pub teleport: Option<&'a [f64]>,
    /// The distribution of the scores of nodes without outgoing links; by default as `teleport`.
    pub dangling: Option<&'a [f64]>,
    /// Whether these scores are dropped instead.
    pub drop_dangling: bool,
}

/// Scores, and how they were reached.
#[derive(Clone, Debug)]
pub struct PagerankScores {
    /// One per node.
    pub scores: Vec<f64>,
    /// The number of iterations.
    pub iterations: usize,
    /// The change in the last iteration.
    pub change: f64,
}

/// The changes of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepChange {
    /// The sum of the absolute changes.
    pub l1: f64,
    /// The largest absolute change.
    pub largest: f64,
}

/// What nodes receive in addition to links.
#[derive(Clone, Copy, Debug)]
pub enum BaseScores<'a> {
    /// The same value for all.
    Uniform(f64),
    /// One value per node.
    Each(&'a [f64]),
}

impl BaseScores<'_> {
    /// The value for `node`.
    #[inline(always)]
    #[must_use]
    pub fn of(&self, node: usize) -> f64 {
        match self {
            BaseScores::Uniform(value) => *value,
            BaseScores::Each(values) => values[node],
        }
    }
}

/// Scores of the nodes that `incoming` leads into; `outgoing` is the sum of the weights, or the number, of the links
/// that leave each node. Nothing is normalized.
///
/// # Errors
/// `BadArgument` if lengths differ, `BadWeight` for a weight that is negative or NaN.
pub fn pagerank(
    pool: &Pool,
    incoming: &CompressedRows,
    outgoing: &[f64],
    options: PagerankOptions<'_>,
) -> Result<PagerankScores, NetworkError> {
    incoming.check_square()?;
    incoming.check_weights()?;
    let n = incoming.rows();
    let fits = |values: Option<&[f64]>| values.is_none_or(|values| values.len() == n);
    let lengths = outgoing.len() == n && fits(options.start) && fits(options.teleport) && fits(options.dangling);
    ensure(lengths, "outgoing, start, teleport and dangling need one value for each node")?;
    let uniform = 1.0 / n as f64;
    let mut inverse = vec![0.0; n];
    fill_with(pool, &mut inverse, |v| if outgoing[v] > 0.0 { 1.0 / outgoing[v] } else { 0.0 });
    let sinks: Vec<u32> = (0..n as u32).filter(|&v| !options.drop_dangling && outgoing[v as usize] <= 0.0).collect();
    let mut scores = options.start.map_or_else(|| vec![uniform; n], <[f64]>::to_vec);
    let mut contributions = vec![0.0; n];
    fill_with(pool, &mut contributions, |v| scores[v] * inverse[v]);
    let mut next = vec![0.0; n];
    let mut each = if options.teleport.is_some() || options.dangling.is_some() { vec![0.0; n] } else { Vec::new() };
    let (mut iterations, mut change) = (0, f64::INFINITY);
    while iterations < options.iterations_max && n > 0 {
        let lost = options.damping * sinks.iter().map(|&v| scores[v as usize]).sum::<f64>();
        let base = if each.is_empty() {
            BaseScores::Uniform((1.0 - options.damping + lost) * uniform)
        } else {
            fill_with(pool, &mut each, |v| {
                let teleport = options.teleport.map_or(uniform, |teleport| teleport[v]);
                (1.0 - options.damping) * teleport + lost * options.dangling.map_or(teleport, |dangling| dangling[v])
            });
            BaseScores::Each(&each)
        };
        let after = Contributions { next: SharedSlice::new(&mut next), inverse: &inverse };
        let step = pull(pool, incoming, &contributions, base, options.damping, &mut scores, Some(after));
        std::mem::swap(&mut contributions, &mut next);
        change = if options.rule == ChangeRule::L1 { step.l1 } else { step.largest };
        iterations += 1;
        if change < options.tolerance {
            break;
        }
    }
    Ok(PagerankScores { scores, iterations, change })
}

/// One step: `values` become base + damping * the sum over links of weight * contribution. `incoming` may belong to a
/// part.
///
/// # Errors
/// `BadArgument` if lengths differ.
pub fn pagerank_step(
    pool: &Pool,
    incoming: &CompressedRows,
    contributions: &[f64],
    base: BaseScores<'_>,
    damping: f64,
    values: &mut [f64],
) -> Result<StepChange, NetworkError> {
    check_lengths(incoming, contributions, base, values)?;
    Ok(pull(pool, incoming, contributions, base, damping, values, None))
}

pub(crate) fn check_lengths(
    incoming: &CompressedRows,
    contributions: &[f64],
    base: BaseScores<'_>,
    values: &[f64],
) -> Result<(), NetworkError> {
    ensure(contributions.len() == incoming.columns(), "there must be one contribution for each column")?;
    let base = if let BaseScores::Each(base) = base { base.len() } else { incoming.rows() };
    ensure(values.len() == incoming.rows() && base == incoming.rows(), "there must be one value and base for each row")
}

/// Where to write the contributions of the next step.
struct Contributions<'a> {
    next: SharedSlice<'a, f64>,
    inverse: &'a [f64],
}

fn pull(
    pool: &Pool,
    incoming: &CompressedRows,
    contributions: &[f64],
    base: BaseScores<'_>,
    damping: f64,
    values: &mut [f64],
    after: Option<Contributions<'_>>,
) -> StepChange {
    // Changes are summed chunk by chunk in order, so that their sum does not depend on threads either.
    let changes = Mutex::new(Vec::new());
    let chunks = incoming.chunks(1 << 14);
    let values = SharedSlice::new(values);
    pool.run(|_| {
        let mut mine = Vec::new();
        while let Some((chunk, range)) = chunks.next() {
            let mut change = StepChange::default();
            for v in range {
                let sum = row_sum(incoming, v, contributions);
                let value = base.of(v) + damping * sum;
                // SAFETY: chunks do not overlap.
                let old = unsafe { &mut values.range(v..v + 1)[0] };
                let difference = (value - *old).abs();
                change.l1 += difference;
                change.largest = change.largest.max(difference);
                *old = value;
                if let Some(after) = &after {
                    // SAFETY: as above.
                    unsafe { after.next.set(v, value * after.inverse[v]) };
                }
            }
            mine.push((chunk, change));
        }
        changes.lock().expect("no thread panics with it").append(&mut mine);
    });
    let mut changes = changes.into_inner().expect("no thread panics with it");
    changes.sort_unstable_by_key(|&(chunk, _)| chunk);
    changes.iter().fold(StepChange::default(), |all, (_, change)| StepChange {
        l1: all.l1 + change.l1,
        largest: all.largest.max(change.largest),
    })
}

/// The sum over the links of `row` of weight * contribution, in an order that depends only on the row.
#[inline(always)]
pub(crate) fn row_sum(incoming: &CompressedRows, row: usize, contributions: &[f64]) -> f64 {
    assert!(contributions.len() >= incoming.columns());
    let sources = incoming.neighbors(row);
    let Some(weights) = incoming.weights() else {
        // SAFETY: targets are below `columns` (the invariant of the rows).
        return unsafe { gather_sum(contributions, sources) };
    };
    let mut sums = [0.0; 4];
    for (i, (&source, weight)) in sources.iter().zip(&weights[incoming.range(row)]).enumerate() {
        sums[i % 4] += weight * contributions[source as usize];
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_network, pool, unweighted};
    use proptest::prelude::*;

    /// The loop of networkx over a dense matrix.
    fn naive(outgoing: &CompressedRows, teleport: &[f64], iterations: usize, drop: bool) -> Vec<f64> {
        let n = outgoing.rows();
        let mut scores = vec![1.0 / n as f64; n];
        for _ in 0..iterations {
            let mut next: Vec<f64> = teleport.iter().map(|t| 0.15 * t).collect();
            for (v, &score) in scores.iter().enumerate() {
                let out: f64 = outgoing.weighted(v).map(|link| link.1).sum();
                for (target, weight) in outgoing.weighted(v).filter(|_| out > 0.0) {
                    next[target as usize] += 0.85 * score * weight / out;
                }
                if out == 0.0 && !drop {
                    next.iter_mut().zip(teleport).for_each(|(next, t)| *next += 0.85 * score * t);
                }
            }
            scores = next;
        }
        scores
    }

    proptest! {
        /// With and without weights, with and without dangling nodes; bitwise equal for any number of threads.
        #[test]
        fn scores_equal_the_dense_loop(network in any_network(false), weighted: bool, drop: bool, even: bool) {
            let network = if weighted { network } else { unweighted(&network) };
            let n = network.rows();
            let teleport: Vec<f64> = (0..n).map(|v| if even { 1.0 / n as f64 } else { v as f64 / (n * n) as f64 }).collect();
            let options = PagerankOptions {
                damping: 0.85, tolerance: 0.0, iterations_max: 20, rule: ChangeRule::L1, start: None,
                teleport: (!even).then_some(&teleport[..]), dangling: None, drop_dangling: drop,
            };
            let mut before: Option<Vec<f64>> = None;
            for threads in 1..4 {
                let pool = pool(threads);
                let (incoming, sums) = (network.transpose(&pool), network.weight_sums(&pool));
                let found = pagerank(&pool, &incoming, &sums, options).unwrap();
                for (a, b) in found.scores.iter().zip(naive(&network, &teleport, found.iterations, drop)) {
                    prop_assert!((a - b).abs() < 1e-12);
                }
                prop_assert!(before.is_none_or(|before| before == found.scores));
                before = Some(found.scores);
            }
        }
    }

    #[test]
    fn iterations_end_by_the_rule() {
        let pool = pool(1);
        let ring =
            crate::testing::rows_of(4, &[(0, 1, 1.0), (1, 2, 1.0), (2, 3, 1.0), (3, 0, 1.0), (0, 2, 1.0)], false);
        let sums = ring.weight_sums(&pool);
        let options = |rule| PagerankOptions {
            damping: 0.85,
            tolerance: 1e-6,
            iterations_max: 1000,
            rule,
            start: None,
            teleport: None,
            dangling: None,
            drop_dangling: false,
        };
        let l1 = pagerank(&pool, &ring.transpose(&pool), &sums, options(ChangeRule::L1)).unwrap();
        let largest = pagerank(&pool, &ring.transpose(&pool), &sums, options(ChangeRule::Largest)).unwrap();
        assert!(
            l1.change < 1e-6 && largest.change < 1e-6 && largest.iterations <= l1.iterations && l1.iterations < 1000
        );
    }
}

//! Takes chance out of the rates of buckets: within seconds, a bucket of a slow stream gets a handful of rows, and
//! those that happen to get most would be moved for load that they do not have.
//!
//! Rows arrive at random, so counts vary as much as their mean by chance alone. What they vary beyond that is real.
//! Rates are pulled towards the mean of their owner's buckets as far as chance explains them. The sum of each owner
//! stays: it is of many rows, and certain. Buckets without rows stay so. Work is measured for a few rows only: it goes
//! by rows, except for the differences that are more than chance.
//!
//! Source: James and Stein (1961), as an empirical Bayes estimate of Poisson rates (Efron and Morris 1973).

/// One row of so many is measured for the work that it takes.
const MEASURED_EVERY: f64 = 16.0;

/// Pulls the rates of buckets `in_use` towards the means of their owners. `per_row` is what one row adds to a
/// rate.
pub(crate) fn smooth(rates: &mut [f64], in_use: &[bool], owners: &[u32], per_row: f64) {
    let means = means(rates, in_use, owners);
    let (mut spread, mut chance) = (0.0, 0.0);
    for ((rate, owner), _) in rates.iter().zip(owners).zip(in_use).filter(|(_, in_use)| **in_use) {
        let (mean, buckets) = means[*owner as usize];
        spread += (rate - mean).powi(2);
        chance += mean * per_row * (1.0 - 1.0 / buckets);
    }
    let real = real_part(spread, chance);
    for ((rate, owner), _) in rates.iter_mut().zip(owners).zip(in_use).filter(|(_, in_use)| **in_use) {
        let (mean, _) = means[*owner as usize];
        *rate = mean + real * (*rate - mean);
    }
}

/// Pulls the work of buckets towards what their rows take on average at their owner, over `seconds`.
pub(super) fn smooth_work(work: &mut [f64], rows_s: &[f64], owners: &[u32], seconds: f64) {
    let mut sums = vec![(0.0, 0.0); owners.iter().max().map_or(0, |most| *most as usize + 1)];
    for ((work, rows_s), owner) in work.iter().zip(rows_s).zip(owners) {
        sums[*owner as usize].0 += work;
        sums[*owner as usize].1 += rows_s;
    }
    let per_row = |owner: u32| {
        let (work, rows_s) = sums[owner as usize];
        if rows_s > 0.0 { work / rows_s } else { 0.0 }
    };
    let (mut spread, mut chance) = (0.0, 0.0);
    for ((work, rows_s), owner) in work.iter().zip(rows_s).zip(owners) {
        let usual = per_row(*owner) * rows_s;
        spread += (work - usual).powi(2);
        chance += usual * per_row(*owner) * MEASURED_EVERY / seconds;
    }
    let real = real_part(spread, chance);
    for ((work, rows_s), owner) in work.iter_mut().zip(rows_s).zip(owners) {
        let usual = per_row(*owner) * rows_s;
        *work = usual + real * (*work - usual);
    }
}

/// Which part of a sum of squared differences is more than chance.
fn real_part(spread: f64, chance: f64) -> f64 {
    if spread > 0.0 { (1.0 - chance / spread).clamp(0.0, 1.0) } else { 1.0 }
}

/// By owner: the mean of its buckets in use, and how many these are.
fn means(rates: &[f64], in_use: &[bool], owners: &[u32]) -> Vec<(f64, f64)> {
    let count = owners.iter().max().map_or(0, |most| *most as usize + 1);
    let mut sums = vec![(0.0, 0.0); count];
    for ((rate, owner), _) in rates.iter().zip(owners).zip(in_use).filter(|(_, in_use)| **in_use) {
        let (sum, buckets) = &mut sums[*owner as usize];
        *sum += rate;
        *buckets += 1.0;
    }
    sums.into_iter().map(|(sum, buckets)| (if buckets > 0.0 { sum / buckets } else { 0.0 }, buckets)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    /// How many of `rows` rows, dealt at random by weight, each bucket gets.
    fn dealt(random: &mut Random, weights: &[f64], rows: usize) -> Vec<f64> {
        let all: f64 = weights.iter().sum();
        let mut counts = vec![0.0; weights.len()];
        for _ in 0..rows {
            let mut left = random.share() * all;
            let bucket = weights.iter().position(|weight| {
                left -= weight;
                left < 0.0
            });
            counts[bucket.unwrap_or(0)] += 1.0;
        }
        counts
    }

    fn error(rates: &[f64], weights: &[f64]) -> f64 {
        let scale = rates.iter().sum::<f64>() / weights.iter().sum::<f64>();
        rates.iter().zip(weights).map(|(rate, weight)| (rate - scale * weight).powi(2)).sum()
    }

    /// Moves would be chosen by chance, and gain less than they promise; a skew that is real must stay.
    #[test]
    fn takes_chance_out_and_keeps_skew() {
        for seed in 0..5 {
            println!("seed {seed}");
            let mut random = Random(seed);
            let owners: Vec<u32> = (0..256).map(|bucket| bucket / 64).collect();
            let alike = vec![1.0; 256];
            let skewed: Vec<f64> = (0..256).map(|bucket| if bucket % 16 == 0 { 20.0 } else { 1.0 }).collect();
            for (weights, rows, at_most) in [(&alike, 2000, 0.2), (&skewed, 2000, 1.1), (&skewed, 20_000, 1.1)] {
                let counts = dealt(&mut random, weights, rows);
                let mut rates: Vec<f64> = counts.iter().map(|count| count / 3.0).collect();
                let raw = error(&rates, weights);
                smooth(&mut rates, &[true; 256], &owners, 1.0 / 3.0);
                assert!(error(&rates, weights) < at_most * raw, "{} of {raw}", error(&rates, weights));
                let sum = |of: &dyn Fn(usize) -> f64| (0..64).map(of).sum::<f64>();
                assert!((sum(&|bucket| rates[bucket]) - sum(&|bucket| counts[bucket] / 3.0)).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn leaves_what_has_no_rows() {
        let mut rates = [0.0, 3.0, 0.0, 5.0];
        smooth(&mut rates, &[false, true, false, true], &[0, 0, 1, 1], 1.0);
        assert_eq!(rates, [0.0, 3.0, 0.0, 5.0]);
        smooth(&mut [], &[], &[], 1.0);
    }

    /// Buckets that happened not to be measured would seem to cost nothing; one that does cost more must stay heavy.
    #[test]
    fn work_goes_by_rows_but_for_what_is_certain() {
        for seed in 0..5 {
            println!("seed {seed}");
            let mut random = Random(seed);
            let owners: Vec<u32> = (0..64).map(|bucket| bucket / 32).collect();
            let costs: Vec<f64> = (0..64).map(|bucket| if bucket == 7 { 60.0 } else { 1.0 }).collect();
            let measured = dealt(&mut random, &[1.0; 64], 200);
            let rows_s = [50.0 / 3.0; 64];
            let mut work: Vec<f64> = measured.iter().map(|count| count * MEASURED_EVERY * 1e-4 / 3.0).collect();
            smooth_work(&mut work, &rows_s, &owners, 3.0);
            let (most, least) =
                (work.iter().fold(0.0, |a: f64, b| a.max(*b)), work.iter().fold(1.0, |a: f64, b| a.min(*b)));
            assert!(most < 2.0 * least, "{least} to {most}");
            let mut work: Vec<f64> = measured.iter().zip(&costs).map(|(count, cost)| count * cost).collect();
            smooth_work(&mut work, &rows_s, &owners, 3.0);
            assert!(measured[7] == 0.0 || work[7] > 5.0 * work[40], "{work:?}");
        }
    }
}

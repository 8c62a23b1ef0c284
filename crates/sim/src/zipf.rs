//! Skewed keys: the fraction of all rows that each worker receives.

use crate::random::SplitMix64;

/// The minimum number of buckets for keys, as in a graph that does not set it.
const BUCKETS: u32 = 1024;
/// Buckets per worker, if these are more.
const BUCKETS_OF_WORKER: u32 = 4;

/// Each worker's fraction of all rows, times the number of workers, so that 1 is an even share. The k-th most
/// frequent bucket has a share in proportion to k^-`exponent` (Zipf's law); `seed` decides which bucket that is.
/// Buckets are assigned to workers as in a graph, neighbors together.
pub(crate) fn shares(workers: u32, exponent: f64, seed: u64) -> Vec<f64> {
    let buckets = BUCKETS.max(BUCKETS_OF_WORKER.saturating_mul(workers)) as usize;
    let mut weights: Vec<f64> = (1..=buckets).map(|rank| (rank as f64).powf(-exponent)).collect();
    let all: f64 = weights.iter().sum();
    let mut random = SplitMix64::scattered(seed);
    (1..buckets).rev().for_each(|at| weights.swap(at, random.below(at + 1)));
    let mut shares = vec![0.0; workers as usize];
    for (bucket, weight) in weights.iter().enumerate() {
        shares[bucket * workers as usize / buckets] += weight / all * f64::from(workers);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most frequent key's share is known in closed form: 1 / H(n, s).
    #[test]
    fn the_hottest_worker_has_the_hottest_bucket() {
        let shares_of = |workers, exponent| shares(workers, exponent, 7);
        assert_eq!(shares_of(16, 0.0), [1.0; 16]);
        for (workers, exponent) in [(1024, 1.1), (4096, 1.5), (2, 1.1)] {
            let found = shares_of(workers, exponent);
            let buckets = 1024.max(4 * workers);
            let harmonic: f64 = (1..=buckets).map(|rank| f64::from(rank).powf(-exponent)).sum();
            let hottest = found.iter().copied().fold(0.0, f64::max) / f64::from(workers);
            assert!(hottest >= 1.0 / harmonic && hottest < 1.0 / harmonic + 0.5, "{workers}, {exponent}: {hottest}");
            assert!((found.iter().sum::<f64>() / f64::from(workers) - 1.0).abs() < 1e-9);
            assert_eq!(found, shares_of(workers, exponent), "a seed repeats it");
        }
    }
}

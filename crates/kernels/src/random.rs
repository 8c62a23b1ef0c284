//! Random numbers by address: a pure function of a seed, a stream and an index, so that a row's draw does not depend on
//! its worker or thread.
//!
//! Source: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014), chained over the three parts.

fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Sixty-four random bits.
pub(crate) fn bits(seed: u64, stream: u64, index: u64) -> u64 {
    mix(mix(mix(seed) ^ stream) ^ index)
}

/// A number in `[0, 1)`.
pub(crate) fn uniform(seed: u64, stream: u64, index: u64) -> f64 {
    (bits(seed, stream, index) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::uniform;

    /// Neighboring indices, streams and seeds must be unrelated: their means and correlations stay within five sigma.
    #[test]
    fn neighbours_are_unrelated() {
        let n = 100_000u64;
        let draw: [&dyn Fn(u64) -> f64; 3] = [&|i| uniform(7, 3, i), &|i| uniform(7, i, 3), &|i| uniform(i, 7, 3)];
        for numbers in draw {
            let mean = (0..n).map(numbers).sum::<f64>() / n as f64;
            assert!((mean - 0.5).abs() < 5.0 * (1.0 / 12.0 / n as f64).sqrt(), "mean {mean}");
            let lag = (1..n).map(|i| (numbers(i) - 0.5) * (numbers(i - 1) - 0.5)).sum::<f64>() / n as f64;
            assert!(lag.abs() < 5.0 / 12.0 / (n as f64).sqrt(), "correlation {lag}");
        }
    }
}

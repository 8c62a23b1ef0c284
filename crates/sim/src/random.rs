//! Random choices that a seed replays.

/// A splitmix64 generator, whose seed is its whole state. Not for secrets.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Starts the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    /// Starts a sequence for `seed` that is unrelated to those of neighboring seeds.
    pub fn scattered(seed: u64) -> Self {
        SplitMix64(seed.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end > 0`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// A number from 0 up to 1.
    pub fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns true with probability 1 / `times`; never for 0.
    pub fn once_in(&mut self, times: usize) -> bool {
        times > 0 && self.below(times) == 0
    }

    /// One of `choices`, which must not be empty.
    pub fn one_of(&mut self, choices: &[usize]) -> usize {
        choices[self.below(choices.len())]
    }
}

/// How many of `all` seeds a test tries: the fraction in `SIMULATION_EFFORT`, from 0 to 1. `make test-all` tries all.
///
/// # Panics
/// If the variable is not a number.
pub fn share_of_seeds(all: u64) -> u64 {
    let share = std::env::var("SIMULATION_EFFORT")
        .map_or(0.2, |text| text.parse::<f64>().expect("SIMULATION_EFFORT is a number from 0 to 1"));
    // Fewer seeds than this would not reach everything that can happen.
    ((all as f64 * share.clamp(0.0, 1.0)) as u64).max(all / 10)
}

//! Random choices that a seed replays.

/// A splitmix64 generator: the seed is its whole state. Not for secrets.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Begins the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    /// Begins a sequence of `seed` that has nothing in common with those of the seeds beside it.
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

    /// True once in `times`; never, for 0.
    pub fn once_in(&mut self, times: usize) -> bool {
        times > 0 && self.below(times) == 0
    }

    /// One of `choices`, which are not empty.
    pub fn one_of(&mut self, choices: &[usize]) -> usize {
        choices[self.below(choices.len())]
    }
}

/// How many of `all` seeds a test tries: the share that `SIMULATION_EFFORT` says, from 0 to 1. `make test-all` tries
/// all.
///
/// # Panics
/// If the variable is not a number.
pub fn share_of_seeds(all: u64) -> u64 {
    let share = std::env::var("SIMULATION_EFFORT")
        .map_or(0.2, |text| text.parse::<f64>().expect("SIMULATION_EFFORT is a number from 0 to 1"));
    // Fewer than these would not come to all that can happen.
    ((all as f64 * share.clamp(0.0, 1.0)) as u64).max(all / 10)
}

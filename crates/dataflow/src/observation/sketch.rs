//! The most frequent keys of a sample of the rows, in little memory: Space-Saving (Metwally, Agrawal and El Abbadi,
//! 2005). A key that is not among those kept replaces the one with the fewest rows and takes over its count as an
//! error. Reported counts exclude this error, so no key is reported with more rows than it has.

/// How many keys are kept.
const KEYS: usize = 64;
/// On average, one in this many rows is sampled.
const EVERY: u64 = 64;
/// A key is worth a text if it has at least this fraction (1 / `SHARE`) of all rows,
const SHARE: u64 = 256;
/// and at least this many rows of the sample: fewer may be chance.
const COUNT_MIN: u64 = 8;

/// The sketch that the module describes.
#[derive(Debug, Default)]
pub(crate) struct KeySketch {
    keys: Vec<SketchedKey>,
    all: u64,
}

#[derive(Debug)]
struct SketchedKey {
    hash: u64,
    count: u64,
    /// How much of the count may belong to other keys.
    error: u64,
    /// Its bucket and its text, once it is frequent.
    named: Option<(u32, String)>,
}

/// A frequent key: its bucket, its text, and about how many rows have it.
pub(crate) type FrequentKey = (u32, String, u64);

impl SketchedKey {
    fn sure(&self) -> u64 {
        self.count - self.error
    }
}

impl KeySketch {
    /// Adds a row with this key, given as a hash. `name` is called for its bucket and its text when the key turns out
    /// to be frequent.
    pub(crate) fn add(&mut self, hash: u64, name: impl FnOnce() -> (u32, String)) {
        self.all += 1;
        let at = match self.keys.iter().position(|key| key.hash == hash) {
            Some(at) => at,
            None if self.keys.len() < KEYS => {
                self.keys.push(SketchedKey { hash, count: 0, error: 0, named: None });
                self.keys.len() - 1
            }
            None => {
                let least = self.keys.iter().enumerate().min_by_key(|(_, key)| key.count);
                let (at, count) = least.map(|(at, key)| (at, key.count)).expect("it is full");
                self.keys[at] = SketchedKey { hash, count, error: count, named: None };
                at
            }
        };
        let key = &mut self.keys[at];
        key.count += 1;
        if key.named.is_none() && key.sure() >= COUNT_MIN && key.sure() * SHARE >= self.all {
            key.named = Some(name());
        }
    }

    /// Halves all counts, so that old rows fade.
    pub(crate) fn halve(&mut self) {
        self.all /= 2;
        for key in &mut self.keys {
            key.count /= 2;
            key.error = key.error.div_ceil(2).min(key.count);
        }
    }

    /// The frequent keys, the heaviest first, and the approximate number of rows, both scaled from the sample to all
    /// rows.
    pub(crate) fn frequent(&self) -> (Vec<FrequentKey>, u64) {
        let is_frequent = |key: &&SketchedKey| key.sure() >= COUNT_MIN && key.sure() * SHARE >= self.all;
        let told = |key: &SketchedKey| {
            let (bucket, text) = key.named.clone()?;
            Some((bucket, text, key.sure() * EVERY))
        };
        let mut keys: Vec<FrequentKey> = self.keys.iter().filter(is_frequent).filter_map(told).collect();
        keys.sort_by(|a, b| (b.2, &a.1).cmp(&(a.2, &b.1)));
        (keys, self.all * EVERY)
    }
}

/// Which rows of a stream of batches are sampled: one in 64, at distances that follow no pattern that rows may have.
#[derive(Debug)]
pub(crate) struct SampledRows {
    /// How many rows come before the next sampled one.
    skip: usize,
    random: u64,
}

impl SampledRows {
    pub(crate) fn new(seed: u64) -> Self {
        SampledRows { skip: 0, random: seed }
    }

    /// Whether none of the next `rows` rows is sampled; if so, skips them.
    pub(crate) fn skip(&mut self, rows: usize) -> bool {
        let skips = rows <= self.skip;
        self.skip -= if skips { rows } else { 0 };
        skips
    }

    /// The sampled rows of a batch with `rows` rows.
    pub(crate) fn of(&mut self, rows: usize) -> impl Iterator<Item = usize> {
        std::iter::from_fn(move || {
            let row = self.skip;
            if row >= rows {
                self.skip -= rows;
                return None;
            }
            self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // From 1 to 127.
            self.skip += 1 + (self.random >> 33) as usize % (2 * EVERY as usize - 1);
            Some(row)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Among many keys that come and go, one has a tenth of the rows.
    #[test]
    fn a_frequent_key_is_found_among_many() {
        let mut sketch = KeySketch::default();
        let name = |hash: u64| move || ((hash % 7) as u32, format!("key {hash}"));
        for row in 0..100_000u64 {
            let hash = if row % 10 == 3 { 42 } else { 1000 + row.wrapping_mul(7919) % 5000 };
            sketch.add(hash, name(hash));
        }
        let (keys, all) = sketch.frequent();
        assert_eq!((keys.len(), all), (1, 100_000 * EVERY), "{keys:?}");
        let (bucket, text, rows) = &keys[0];
        assert_eq!((*bucket, text.as_str()), (0, "key 42"));
        assert!((9_000 * EVERY..=10_000 * EVERY).contains(rows), "{rows}");
        for _ in 0..12 {
            sketch.halve();
            (0..100).for_each(|hash| sketch.add(hash * 3 + 500_000, name(hash)));
        }
        assert_eq!(sketch.frequent().0, [], "it is forgotten");
    }

    /// If rows were sampled twice, never, or only at one place of a pattern, keys would look heavy that are not.
    #[test]
    fn one_in_sixty_four_rows_is_sampled() {
        for batch in [1, 7, 64, 1000, 8192] {
            let (mut rows, mut seen) = (SampledRows::new(batch as u64), Vec::new());
            for begin in (0..1_000_000).step_by(batch) {
                if !rows.skip(batch) {
                    seen.extend(rows.of(batch).map(|row| begin + row));
                }
            }
            assert!(seen.is_sorted_by(|a, b| a < b));
            let expected = 1_000_000 / EVERY as usize;
            assert!(seen.len().abs_diff(expected) < expected / 10, "{} of batches of {batch}", seen.len());
            let even = seen.iter().filter(|row| **row % 2 == 0).count();
            assert!(even.abs_diff(expected / 2) < expected / 10, "{even}");
        }
    }
}

//! Maps arbitrary 64-bit integers to nodes 0, 1, ...: the distinct values in ascending order, and the index of each
//! value among them.
//!
//! If ids are dense, a table over their range does both; otherwise they are sorted, and looked up by hashing.

use crate::rows::NO_NODE;
use crate::shared::{fill_with, for_chunks};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_kernels::pool::Pool;

/// An integer that names a node.
pub trait NodeId: Copy + Ord + Send + Sync {
    /// Its distance above `low`.
    fn above(self, low: Self) -> u64;
    /// The id `distance` above this one.
    fn plus(self, distance: u64) -> Self;
}

impl NodeId for i64 {
    fn above(self, low: i64) -> u64 {
        self.wrapping_sub(low) as u64
    }
    fn plus(self, distance: u64) -> i64 {
        self.wrapping_add(distance as i64)
    }
}

impl NodeId for u64 {
    fn above(self, low: u64) -> u64 {
        self.wrapping_sub(low)
    }
    fn plus(self, distance: u64) -> u64 {
        self.wrapping_add(distance)
    }
}

/// A table costs a bit for each number in the range, which pays off up to this many bits per value.
const TABLE_BITS_EACH: u64 = 64;

/// The distinct ids, ascending.
#[must_use]
pub fn distinct<T: NodeId>(pool: &Pool, lists: &[&[T]]) -> Vec<T> {
    let count = lists.iter().map(|list| list.len() as u64).sum::<u64>();
    let Some((low, high)) =
        lists.iter().filter_map(|list| bounds(pool, list)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    else {
        return Vec::new();
    };
    let range = high.above(low);
    if range / TABLE_BITS_EACH <= count {
        let words: Vec<AtomicU64> = (0..=range / 64).map(|_| AtomicU64::new(0)).collect();
        for list in lists {
            for_chunks(pool, list.len(), 1 << 15, |_, part| {
                for value in &list[part] {
                    let at = value.above(low);
                    let (word, bit) = (&words[(at / 64) as usize], 1 << (at % 64));
                    // Most are present already, and a read is cheaper than an atomic write.
                    if word.load(Ordering::Relaxed) & bit == 0 {
                        word.fetch_or(bit, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut ids = Vec::new();
        for (word, bits) in words.iter().enumerate() {
            let mut bits = bits.load(Ordering::Relaxed);
            while bits != 0 {
                ids.push(low.plus(word as u64 * 64 + u64::from(bits.trailing_zeros())));
                bits &= bits - 1;
            }
        }
        return ids;
    }
    let sorted = Mutex::new(Vec::new());
    for list in lists {
        for_chunks(pool, list.len(), list.len().div_ceil(pool.threads()), |_, part| {
            let mut ids = list[part].to_vec();
            ids.sort_unstable();
            ids.dedup();
            sorted.lock().expect("no thread panics with it").push(ids);
        });
    }
    let mut all = sorted.into_inner().expect("no thread panics with it").concat();
    all.sort(); // runs of sorted ids, which this sort merges
    all.dedup();
    all
}

/// The index of each value in the ascending `ids`; `NO_NODE` for values that are not among them.
#[must_use]
pub fn find<T: NodeId>(pool: &Pool, ids: &[T], values: &[T]) -> Vec<u32> {
    let mut places = vec![NO_NODE; values.len()];
    let (Some(&low), Some(&high)) = (ids.first(), ids.last()) else { return places };
    let range = high.above(low);
    if range == ids.len() as u64 - 1 {
        fill_with(pool, &mut places, |i| {
            if values[i] >= low && values[i] <= high { values[i].above(low) as u32 } else { NO_NODE }
        });
    } else if range / 8 <= (ids.len() + values.len()) as u64 {
        let mut table = vec![NO_NODE; range as usize + 1];
        for (place, id) in ids.iter().enumerate() {
            table[id.above(low) as usize] = place as u32;
        }
        fill_with(pool, &mut places, |i| {
            if values[i] >= low && values[i] <= high { table[values[i].above(low) as usize] } else { NO_NODE }
        });
    } else {
        let slots_bits = (ids.len() * 2).next_power_of_two().trailing_zeros().max(1);
        let mut slots = vec![NO_NODE; 1 << slots_bits];
        // Fibonacci hashing with linear probing.
        let slot = |id: T| (id.above(low).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - slots_bits)) as usize;
        let mask = slots.len() - 1;
        for (place, &id) in ids.iter().enumerate() {
            let mut at = slot(id);
            while slots[at] != NO_NODE {
                at = (at + 1) & mask;
            }
            slots[at] = place as u32;
        }
        fill_with(pool, &mut places, |i| {
            let mut at = slot(values[i]);
            while slots[at] != NO_NODE && ids[slots[at] as usize] != values[i] {
                at = (at + 1) & mask;
            }
            slots[at]
        });
    }
    places
}

/// The minimum and the maximum.
fn bounds<T: NodeId>(pool: &Pool, list: &[T]) -> Option<(T, T)> {
    let found = Mutex::new(None);
    for_chunks(pool, list.len(), 1 << 16, |_, part| {
        let first = list[part.start];
        let mine = list[part].iter().fold((first, first), |(low, high), &id| (low.min(id), high.max(id)));
        let mut found = found.lock().expect("no thread panics with it");
        *found = Some(found.map_or(mine, |(low, high): (T, T)| (low.min(mine.0), high.max(mine.1))));
    });
    found.into_inner().expect("no thread panics with it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pool;
    use proptest::prelude::*;

    fn check<T: NodeId + std::fmt::Debug + std::hash::Hash>(a: &[T], b: &[T]) {
        let pool = pool(2);
        let mut expected = [a, b].concat();
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(distinct(&pool, &[a, b]), expected);
        for ids in [&expected[..], &expected[..expected.len() / 2]] {
            let expected: Vec<u32> = a.iter().map(|v| ids.binary_search(v).map_or(NO_NODE, |at| at as u32)).collect();
            assert_eq!(find(&pool, ids, a), expected);
        }
    }

    proptest! {
        /// Dense ids use the table, sparse ones the sort and the hash.
        #[test]
        fn ids_are_found(
            near in prop::collection::vec(-50i64..50, 0..80), far in prop::collection::vec(any::<i64>(), 0..80),
            large in prop::collection::vec(any::<u64>(), 0..80), dense in prop::collection::vec(5u64..9, 0..30),
        ) {
            check(&near, &near);
            check(&far, &near);
            check(&near, &far);
            check(&large, &dense);
            check(&dense, &dense);
        }
    }
}

//! The route map assigns buckets to copies. A key's hash determines its bucket, the same on every worker, machine and
//! release; the map determines the bucket's owner, and may change from version to version.

use serde::{Deserialize, Serialize};

/// Default number of buckets of a keyed exchange.
pub const BUCKETS: u32 = 1024;
/// Maximum number of buckets: every sender counts the rows it sends to each.
pub const BUCKETS_MAX: u32 = 1 << 20;

/// The route map, see the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "EncodedMap")]
pub struct RouteMap {
    version: u64,
    /// The copy that owns each bucket.
    owners: Vec<u32>,
}

/// An unchecked map from elsewhere.
#[derive(Deserialize)]
struct EncodedMap {
    version: u64,
    owners: Vec<u32>,
}

impl TryFrom<EncodedMap> for RouteMap {
    type Error = &'static str;

    fn try_from(encoded: EncodedMap) -> Result<Self, Self::Error> {
        match encoded.owners.is_empty() {
            true => Err("a route map needs at least one bucket"),
            false => Ok(RouteMap { version: encoded.version, owners: encoded.owners }),
        }
    }
}

impl RouteMap {
    /// Buckets distributed evenly, with neighbors together.
    ///
    /// # Panics
    /// If either number is 0.
    pub fn even(buckets: u32, copies: u32) -> Self {
        assert!(buckets > 0 && copies > 0, "a route map needs at least one bucket and one copy");
        let owner = |bucket: u32| (u64::from(bucket) * u64::from(copies) / u64::from(buckets)) as u32;
        RouteMap { version: 1, owners: (0..buckets).map(owner).collect() }
    }

    /// Like [`RouteMap::even`], over some copies only.
    ///
    /// # Panics
    /// If there are no buckets or copies.
    pub fn even_among(buckets: u32, copies: &[u32]) -> Self {
        let map = Self::even(buckets, copies.len() as u32);
        RouteMap { owners: map.copies().map(|at| copies[at as usize]).collect(), ..map }
    }

    /// A map from an explicit list with the owner of each bucket.
    ///
    /// # Panics
    /// If there are no buckets.
    pub fn new(version: u64, owners: Vec<u32>) -> Self {
        assert!(!owners.is_empty(), "a route map needs at least one bucket");
        RouteMap { version, owners }
    }

    /// Increases with every change.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The number of buckets.
    #[inline]
    pub fn buckets(&self) -> u32 {
        self.owners.len() as u32
    }

    /// The bucket of a key's hash. Uses the high bits, so that other uses of the low bits stay independent.
    #[inline]
    pub fn bucket(&self, hash: u64) -> u32 {
        ((u128::from(hash) * self.owners.len() as u128) >> 64) as u32
    }

    /// The copy that owns a bucket.
    #[inline]
    pub fn copy(&self, bucket: u32) -> u32 {
        self.owners[bucket as usize]
    }

    /// The owner of every bucket.
    pub fn copies(&self) -> impl Iterator<Item = u32> {
        self.owners.iter().copied()
    }

    /// Checks whether the map can distribute rows to `copies` copies in `buckets` buckets.
    ///
    /// # Errors
    /// A description, if it cannot.
    pub fn fits(&self, buckets: u32, copies: u32) -> Result<(), String> {
        if self.buckets() != buckets {
            return Err(format!("the map has {} buckets, but the task's keys use {buckets}", self.buckets()));
        }
        match self.copies().find(|&copy| copy >= copies) {
            Some(copy) => Err(format!("the map names copy {copy}, but the task has {copies}, counted from 0")),
            None => Ok(()),
        }
    }

    /// The next version, with some buckets moved: `(bucket, new owner)`.
    #[must_use]
    pub fn moved(&self, moves: &[(u32, u32)]) -> Self {
        let mut owners = self.owners.clone();
        moves.iter().for_each(|&(bucket, owner)| owners[bucket as usize] = owner);
        RouteMap { version: self.version + 1, owners }
    }

    /// A description that includes a hash of all owners.
    pub fn describe(&self) -> String {
        let mut bytes = Vec::with_capacity(self.owners.len() * 4);
        self.owners.iter().for_each(|owner| bytes.extend_from_slice(&owner.to_le_bytes()));
        let hash = twox_hash::XxHash3_64::oneshot(&bytes);
        format!("route map v{} of {} buckets ({:08x})", self.version, self.buckets(), hash as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An additional bucket would mean a copy with more work; a bucket without an owner, an error at run time.
    #[test]
    fn even_maps_are_even() {
        for copies in [1, 2, 3, 7, 64, 1000, 1024] {
            let map = RouteMap::even(BUCKETS, copies);
            let mut counts = vec![0u32; copies as usize];
            map.copies().for_each(|copy| counts[copy as usize] += 1);
            let (min, max) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(max - min <= 1 && *min > 0, "{copies}: {min} to {max}");
        }
    }

    #[test]
    fn some_copies_own_all_buckets() {
        let map = RouteMap::even_among(10, &[0, 3]);
        assert_eq!(map.copies().collect::<Vec<_>>(), [0, 0, 0, 0, 0, 3, 3, 3, 3, 3]);
        assert_eq!(RouteMap::even_among(1000, &(0..7).collect::<Vec<_>>()), RouteMap::even(1000, 7));
    }

    #[test]
    fn hashes_fill_all_buckets() {
        let map = RouteMap::even(1000, 3);
        assert_eq!((map.bucket(0), map.bucket(u64::MAX), map.bucket(u64::MAX / 2)), (0, 999, 499));
        let moved = map.moved(&[(999, 0)]);
        assert_eq!((moved.version(), moved.copy(999), map.copy(999)), (2, 0, 2));
    }
}

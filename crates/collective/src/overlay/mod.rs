//! Overlays: the trees along which a vector travels, as data, so that they can be computed from the rates of links and
//! swapped between calls.
//!
//! An all-reduce's elements are cut into parts. The slices of a part climb its reduction tree, are complete at the
//! root, and go down its broadcast tree while later slices still climb. A single part is a tree as in "minimum weighted
//! degree" overlays. Two parts with different inner ranks are a double tree. One part per rank, with stars as trees, is
//! a reduce-scatter followed by an all-gather, with shards as large as the parts' shares.
//!
//! | module     | contents                                                  |
//! |------------|-----------------------------------------------------------|
//! | `weighted` | Trees in which slow ends of links are leaves              |
//! | `shards`   | Shares of the elements by what hosts can send and receive |
//! | `model`    | The time along an overlay, and the lowest possible time   |
//! | `choose`   | The best overlay for given rates of hosts                 |
//! | `probe`    | Rates of hosts from an exchange of messages               |
//! | `adapt`    | When to measure, and when to change                       |

mod adapt;
mod choose;
mod model;
mod probe;
mod shards;
mod weighted;

pub use adapt::{ADAPTIVE_BYTES_MIN, AdaptiveOverlay};
pub use choose::{OverlayChoice, OverlayKind, choose, reconsider};
pub(crate) use model::slice_bytes;
pub use model::{OverlayForecast, OverlayModel, lower_bound};
pub use weighted::{TreeRule, TreeShape};

/// Trees for an all-reduce over a fixed number of ranks. All ranks of a call must use equal overlays.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Overlay {
    parts: Vec<OverlayPart>,
    size: u32,
}

/// A share of the elements, and the trees along which they travel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OverlayPart {
    /// The part's elements, out of the sum of all shares. 0 carries nothing.
    pub share: u32,
    /// The rank to which each rank sends its slices; `None` for the root.
    pub reduce: Vec<Option<u32>>,
    /// The rank from which each rank receives the complete slices; `None` for the root, which is the same.
    pub broadcast: Vec<Option<u32>>,
}

/// A defect in the trees of an overlay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverlayError {
    /// No part has a share.
    #[error("an overlay needs at least one part with a share above 0")]
    Empty,
    /// A tree has a different number of ranks.
    #[error("part {part}: its trees have {found} and {other} ranks; they must have {size}")]
    Size {
        /// The index of the part.
        part: usize,
        /// Ranks of the reduction tree.
        found: usize,
        /// Ranks of the broadcast tree.
        other: usize,
        /// Ranks that it should have.
        size: u32,
    },
    /// Not a tree with one root, or the two roots differ.
    #[error("part {part}: both of its trees must lead every rank to one root, the same in both")]
    Shape {
        /// The index of the part.
        part: usize,
    },
}

impl Overlay {
    /// An overlay of `size` ranks.
    ///
    /// # Errors
    /// If a part's trees are not trees over all ranks with one common root, or no part carries anything.
    pub fn new(size: u32, parts: Vec<OverlayPart>) -> Result<Overlay, OverlayError> {
        for (part, trees) in parts.iter().enumerate() {
            let (found, other) = (trees.reduce.len(), trees.broadcast.len());
            if found != size as usize || other != size as usize {
                return Err(OverlayError::Size { part, found, other, size });
            }
            match (root(&trees.reduce), root(&trees.broadcast)) {
                (Some(up), Some(down)) if up == down => {}
                _ => return Err(OverlayError::Shape { part }),
            }
        }
        if parts.iter().all(|part| part.share == 0) {
            return Err(OverlayError::Empty);
        }
        Ok(Overlay { parts, size })
    }

    /// The parts, in the order of their elements.
    pub fn parts(&self) -> &[OverlayPart] {
        &self.parts
    }

    /// The number of ranks that it is for.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The elements of each part out of `count`: consecutive ranges in proportion to the shares, rounded.
    pub fn ranges(&self, count: usize) -> Vec<std::ops::Range<usize>> {
        let total: u64 = self.parts.iter().map(|part| u64::from(part.share)).sum();
        let mut before = 0_u64;
        let end = |before: u64| (count as u128 * u128::from(before) / u128::from(total)) as usize;
        let mut ranges = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let start = end(before);
            before += u64::from(part.share);
            ranges.push(start..end(before));
        }
        ranges
    }

    /// A number that differs between different overlays, the same on every machine.
    pub fn fingerprint(&self) -> u64 {
        // FNV-1a: `Hash` may differ between builds.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |value: u32| {
            for byte in value.to_le_bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        add(self.size);
        for part in &self.parts {
            add(part.share);
            part.reduce.iter().chain(&part.broadcast).for_each(|parent| add(parent.unwrap_or(u32::MAX)));
        }
        hash
    }
}

/// The root, if a path leads to it from every rank.
pub(crate) fn root(parents: &[Option<u32>]) -> Option<u32> {
    let mut roots = parents.iter().enumerate().filter(|(_, parent)| parent.is_none());
    let root = roots.next()?.0 as u32;
    if roots.next().is_some() {
        return None;
    }
    // 1: leads to the root. A rank that appears twice on one path is on a cycle.
    let mut known = vec![false; parents.len()];
    known[root as usize] = true;
    for start in 0..parents.len() {
        let (mut rank, mut steps) = (start, 0);
        while !known[rank] {
            rank = parents[rank]? as usize;
            steps += 1;
            if rank >= parents.len() || steps > parents.len() {
                return None;
            }
        }
        let mut rank = start;
        while !known[rank] {
            known[rank] = true;
            rank = parents[rank]? as usize;
        }
    }
    Some(root)
}

/// How fast a host can send and receive, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostRate {
    /// Maximum receive rate.
    pub input: f64,
    /// Maximum send rate.
    pub output: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn star(size: u32, center: u32) -> Vec<Option<u32>> {
        (0..size).map(|rank| (rank != center).then_some(center)).collect()
    }

    fn part(share: u32, size: u32, center: u32) -> OverlayPart {
        OverlayPart { share, reduce: star(size, center), broadcast: star(size, center) }
    }

    #[test]
    fn shares_cut_all_elements_in_order() {
        let overlay = Overlay::new(3, vec![part(1, 3, 0), part(0, 3, 1), part(2, 3, 2)]).unwrap();
        for count in [0, 1, 2, 3, 1000, 1 << 40] {
            let ranges = overlay.ranges(count);
            assert_eq!((ranges[0].start, ranges[2].end), (0, count));
            assert!(ranges[1].is_empty());
            assert_eq!(ranges[0].end, count / 3);
        }
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        let circle = vec![None, Some(2), Some(1)];
        let two = vec![None, None, Some(1)];
        for bad in [circle, two, vec![None, Some(7), Some(0)]] {
            let trees = OverlayPart { share: 1, reduce: bad, broadcast: star(3, 0) };
            assert_eq!(Overlay::new(3, vec![trees]), Err(OverlayError::Shape { part: 0 }));
        }
        assert_eq!(Overlay::new(3, vec![part(0, 3, 0)]), Err(OverlayError::Empty));
        let other_roots = OverlayPart { share: 1, reduce: star(3, 0), broadcast: star(3, 1) };
        assert_eq!(Overlay::new(3, vec![other_roots]), Err(OverlayError::Shape { part: 0 }));
    }

    #[test]
    fn fingerprints_tell_overlays_apart() {
        let one = Overlay::new(3, vec![part(1, 3, 0)]).unwrap();
        let other = Overlay::new(3, vec![part(1, 3, 1)]).unwrap();
        assert_ne!(one.fingerprint(), other.fingerprint());
        assert_eq!(one.fingerprint(), one.clone().fingerprint());
    }
}

//! Builds rows from links in any order.
//!
//! Links are distributed to buckets of neighboring rows, small enough to be sorted in the cache; a bucket is sorted by
//! row and target with a stable radix sort, merged, and copied to its place. Both phases run on all threads, and the
//! result does not depend on their number.

use crate::error::{NetworkError, ensure};
use crate::rows::{CompressedRows, check_size};
use crate::shared::{SharedSlice, for_chunks};
use std::str::FromStr;
use tidemill_kernels::pool::Pool;

/// How to treat several links from one node to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duplicates {
    /// Keep all, in the given order.
    #[default]
    Keep,
    /// Replace by one with the sum of their weights; if links have no weights, with their number.
    Sum,
    /// Replace by one with their minimum weight.
    Min,
    /// Replace by one with their maximum weight.
    Max,
    /// Keep the first.
    First,
}

impl FromStr for Duplicates {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "keep" => Ok(Duplicates::Keep),
            "sum" => Ok(Duplicates::Sum),
            "min" => Ok(Duplicates::Min),
            "max" => Ok(Duplicates::Max),
            "first" => Ok(Duplicates::First),
            _ => Err(format!("duplicates must be \"keep\", \"sum\", \"min\", \"max\" or \"first\", not {name:?}")),
        }
    }
}

/// Links in any order.
#[derive(Clone, Copy, Debug)]
pub struct Links<'a> {
    /// The source of each link.
    pub sources: &'a [u32],
    /// The target of each link.
    pub targets: &'a [u32],
    /// The weight of each link.
    pub weights: Option<&'a [f64]>,
}

/// How to build rows from links.
#[derive(Clone, Copy, Debug)]
pub struct LinkOptions {
    /// The number of nodes that links start from.
    pub rows: usize,
    /// The number of nodes that links lead to.
    pub columns: usize,
    /// How to treat several links from one node to another.
    pub duplicates: Duplicates,
    /// Whether to keep links from a node to itself.
    pub loops: bool,
    /// Whether to add the reverse of each link, before duplicates are merged. Loops have no reverse.
    pub symmetric: bool,
}

impl LinkOptions {
    /// Keeps all links unchanged, between `n` nodes.
    #[must_use]
    pub fn square(n: usize) -> Self {
        LinkOptions { rows: n, columns: n, duplicates: Duplicates::Keep, loops: true, symmetric: false }
    }
}

/// The data of a link in the sort.
trait LinkWeight: Copy + Default + Send + Sync {
    const WEIGHTED: bool;
    fn of(weights: Option<&[f64]>, link: usize) -> Self;
    fn merge(self, later: Self, duplicates: Duplicates) -> Self;
    fn value(self) -> f64;
}

impl LinkWeight for () {
    const WEIGHTED: bool = false;
    fn of(_: Option<&[f64]>, _: usize) {}
    fn merge(self, (): (), _: Duplicates) {}
    fn value(self) -> f64 {
        1.0
    }
}

impl LinkWeight for f64 {
    const WEIGHTED: bool = true;
    #[inline(always)]
    fn of(weights: Option<&[f64]>, link: usize) -> f64 {
        weights.map_or(1.0, |weights| weights[link])
    }
    fn merge(self, later: f64, duplicates: Duplicates) -> f64 {
        match duplicates {
            Duplicates::Sum => self + later,
            // NaN is kept, to be rejected by algorithms that need numbers.
            Duplicates::Min if later < self || later.is_nan() => later,
            Duplicates::Max if later > self || later.is_nan() => later,
            _ => self,
        }
    }
    fn value(self) -> f64 {
        self
    }
}

/// A link in its bucket: the row relative to the bucket's first, above the target.
#[derive(Clone, Copy, Default)]
struct KeyedLink<W> {
    key: u64,
    weight: W,
}

/// The division of rows into buckets.
#[derive(Clone, Copy)]
struct Buckets {
    count: usize,
    /// `row >> row_bits` is the bucket.
    row_bits: u32,
    target_bits: u32,
}

impl Buckets {
    const COUNT_MAX: usize = 2048;
    /// Small enough for a level-2 cache, including scratch space of the same size.
    const LINKS_EACH: usize = 4096;

    fn new(options: &LinkOptions, links: usize) -> Self {
        let bits = |nodes: usize| usize::BITS - nodes.saturating_sub(1).leading_zeros();
        let wanted = (links / Self::LINKS_EACH).clamp(1, Self::COUNT_MAX);
        let row_bits = bits(options.rows).saturating_sub(bits(wanted));
        let count = (options.rows.saturating_sub(1) >> row_bits) + 1;
        Buckets { count, row_bits, target_bits: bits(options.columns) }
    }

    #[inline(always)]
    fn of(&self, row: u32) -> usize {
        row as usize >> self.row_bits
    }

    #[inline(always)]
    fn key(&self, row: u32, target: u32) -> u64 {
        let row = u64::from(row) & ((1 << self.row_bits) - 1);
        row << self.target_bits | u64::from(target)
    }

    #[inline(always)]
    fn target(&self, key: u64) -> u32 {
        (key & ((1 << self.target_bits) - 1)) as u32
    }

    /// The row, relative to the bucket's first.
    #[inline(always)]
    fn row(&self, key: u64) -> usize {
        (key >> self.target_bits) as usize
    }
}

impl CompressedRows {
    /// Rows of `links`, each sorted by target.
    ///
    /// # Errors
    /// `NoSuchNode` with the first link that leads out of `rows` or `columns`; `BadArgument` if lengths differ.
    pub fn of_links(pool: &Pool, links: Links<'_>, options: &LinkOptions) -> Result<Self, NetworkError> {
        ensure(links.sources.len() == links.targets.len(), "sources and targets must have equal lengths")?;
        ensure(links.weights.is_none_or(|w| w.len() == links.sources.len()), "there must be one weight for each link")?;
        ensure(!options.symmetric || options.rows == options.columns, "symmetric links need as many rows as columns")?;
        check_size(options.rows)?;
        check_size(options.columns)?;
        if links.weights.is_some() || options.duplicates == Duplicates::Sum {
            sorted::<f64>(pool, links, options)
        } else {
            sorted::<()>(pool, links, options)
        }
    }

    /// The transposed rows.
    #[must_use]
    pub fn transpose(&self, pool: &Pool) -> Self {
        let sources = self.sources(pool);
        let links = Links { sources: self.targets(), targets: &sources, weights: self.weights() };
        let square = LinkOptions::square(0);
        let options = LinkOptions { rows: self.columns(), columns: self.rows(), ..square };
        CompressedRows::of_links(pool, links, &options).expect("the links of rows are fine")
    }
}

/// Calls `function` with the ends and the index of every link of `range` that is kept.
#[inline(always)]
fn each_link(
    links: Links<'_>,
    options: &LinkOptions,
    range: std::ops::Range<usize>,
    mut function: impl FnMut(u32, u32, usize),
) {
    let (sources, targets) = (&links.sources[range.clone()], &links.targets[range.clone()]);
    for ((link, &source), &target) in range.zip(sources).zip(targets) {
        if source != target {
            function(source, target, link);
            if options.symmetric {
                function(target, source, link);
            }
        } else if options.loops {
            function(source, target, link);
        }
    }
}

/// The error of the first bad link of `range`.
fn check_links(links: Links<'_>, options: &LinkOptions, range: std::ops::Range<usize>) -> Option<NetworkError> {
    let beyond = |nodes: &[u32], count: usize| nodes.iter().fold(0, |most, &node| most.max(node)) as usize >= count;
    let (sources, targets) = (&links.sources[range.clone()], &links.targets[range.clone()]);
    if range.is_empty() || !(beyond(sources, options.rows) || beyond(targets, options.columns)) {
        return None;
    }
    range.into_iter().find_map(|link| {
        let (node, nodes) = match (links.sources[link], links.targets[link]) {
            (source, _) if source as usize >= options.rows => (source, options.rows),
            (_, target) if target as usize >= options.columns => (target, options.columns),
            _ => return None,
        };
        Some(NetworkError::NoSuchNode { link, node, nodes })
    })
}

fn sorted<W: LinkWeight>(pool: &Pool, links: Links<'_>, options: &LinkOptions) -> Result<CompressedRows, NetworkError> {
    let buckets = Buckets::new(options, links.sources.len());
    // By thread: the number of links in each bucket, then the position of its next one.
    let mut places: Vec<(Vec<usize>, Option<NetworkError>)> = vec![(vec![0; buckets.count], None); pool.threads()];
    pool.each(&mut places, |worker, (counts, error)| {
        let range = worker.share(links.sources.len(), 1 << 10);
        *error = check_links(links, options, range.clone());
        if error.is_none() {
            each_link(links, options, range, |source, _, _| counts[buckets.of(source)] += 1);
        }
    });
    if let Some(error) = places.iter().find_map(|(_, error)| error.clone()) {
        return Err(error);
    }
    let mut starts = Vec::with_capacity(buckets.count + 1);
    let mut total = 0;
    for bucket in 0..buckets.count {
        starts.push(total);
        for (counts, _) in &mut places {
            total += std::mem::replace(&mut counts[bucket], total);
        }
    }
    starts.push(total);

    let mut dealt = vec![KeyedLink::<W>::default(); total];
    let shared = SharedSlice::new(&mut dealt);
    pool.each(&mut places, |worker, (places, _)| {
        each_link(links, options, worker.share(links.sources.len(), 1 << 10), |source, target, link| {
            let place = &mut places[buckets.of(source)];
            let keyed = KeyedLink { key: buckets.key(source, target), weight: W::of(links.weights, link) };
            // SAFETY: the counts above give each thread its own positions in each bucket.
            unsafe { shared.set(*place, keyed) };
            *place += 1;
        });
    });
    drop(places);
    Ok(compress(pool, &mut dealt, &starts, buckets, options))
}

/// Sorts and merges each bucket, and concatenates the remaining links.
fn compress<W: LinkWeight>(
    pool: &Pool,
    dealt: &mut [KeyedLink<W>],
    starts: &[usize],
    buckets: Buckets,
    options: &LinkOptions,
) -> CompressedRows {
    let dealt = SharedSlice::new(dealt);
    let mut offsets = vec![0i64; options.rows + 1];
    let shared_offsets = SharedSlice::new(&mut offsets[..options.rows]);
    let first_row = |bucket: usize| (bucket << buckets.row_bits).min(options.rows);
    let mut kept = vec![0; buckets.count];
    let shared_kept = SharedSlice::new(&mut kept);
    for_chunks(pool, buckets.count, 1, |bucket, _| {
        // SAFETY: buckets and their rows do not overlap, and each is processed once.
        let (links, counts, kept) = unsafe {
            let links = dealt.range(starts[bucket]..starts[bucket + 1]);
            let counts = shared_offsets.range(first_row(bucket)..first_row(bucket + 1));
            (links, counts, &mut shared_kept.range(bucket..bucket + 1)[0])
        };
        sort(links, buckets.row_bits + buckets.target_bits);
        *kept = merge(links, options.duplicates);
        for link in &links[..*kept] {
            counts[buckets.row(link.key)] += 1;
        }
    });
    let mut total = 0;
    let kept_starts: Vec<usize> = kept
        .iter()
        .map(|kept| {
            total += kept;
            total - kept
        })
        .collect();
    let mut targets = vec![0; total];
    let mut weights = vec![0.0; if W::WEIGHTED { total } else { 0 }];
    let (shared_targets, shared_weights) = (SharedSlice::new(&mut targets), SharedSlice::new(&mut weights));
    for_chunks(pool, buckets.count, 1, |bucket, _| {
        let range = kept_starts[bucket]..kept_starts[bucket] + kept[bucket];
        // SAFETY: as above.
        let (links, offsets, targets) = unsafe {
            let links = dealt.range(starts[bucket]..starts[bucket] + kept[bucket]);
            let offsets = shared_offsets.range(first_row(bucket)..first_row(bucket + 1));
            (&*links, offsets, shared_targets.range(range.clone()))
        };
        let mut at = range.start as i64;
        for offset in offsets {
            at += std::mem::replace(offset, at);
        }
        for (target, link) in targets.iter_mut().zip(links) {
            *target = buckets.target(link.key);
        }
        if W::WEIGHTED {
            // SAFETY: as above.
            for (weight, link) in unsafe { shared_weights.range(range) }.iter_mut().zip(links) {
                *weight = link.weight.value();
            }
        }
    });
    offsets[options.rows] = total as i64;
    CompressedRows::of_parts(offsets, targets, W::WEIGHTED.then_some(weights), options.columns)
}

/// A stable sort by the lowest `bits` of the keys; higher bits are zero.
fn sort<W: LinkWeight>(links: &mut [KeyedLink<W>], bits: u32) {
    const DIGIT_BITS_MAX: u32 = 11;
    const SMALL: usize = 512;
    if links.len() < SMALL {
        links.sort_by_key(|link| link.key);
        return;
    }
    let passes = bits.div_ceil(DIGIT_BITS_MAX);
    let mut scratch = vec![KeyedLink::<W>::default(); links.len()];
    let (mut from, mut to) = (&mut *links, scratch.as_mut_slice());
    let mut at = 0;
    for pass in 0..passes {
        let digit_bits = (bits - at).div_ceil(passes - pass);
        let digit = |key: u64| (key >> at) as usize & ((1 << digit_bits) - 1);
        let mut places = [0u32; 1 << DIGIT_BITS_MAX];
        for link in from.iter() {
            places[digit(link.key)] += 1;
        }
        let mut total = 0;
        for place in &mut places[..1 << digit_bits] {
            total += std::mem::replace(place, total);
        }
        for link in from.iter() {
            let place = &mut places[digit(link.key)];
            to[*place as usize] = *link;
            *place += 1;
        }
        std::mem::swap(&mut from, &mut to);
        at += digit_bits;
    }
    if passes % 2 == 1 {
        to.copy_from_slice(from);
    }
}

/// Merges adjacent links with the same key; returns the number of remaining links, at the front.
fn merge<W: LinkWeight>(links: &mut [KeyedLink<W>], duplicates: Duplicates) -> usize {
    if duplicates == Duplicates::Keep || links.is_empty() {
        return links.len();
    }
    let mut last = 0;
    for at in 1..links.len() {
        let link = links[at];
        if link.key == links[last].key {
            links[last].weight = links[last].weight.merge(link.weight, duplicates);
        } else {
            last += 1;
            links[last] = link;
        }
    }
    last + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pool;
    use proptest::prelude::*;

    /// The same by a stable sort and one pass.
    fn naive(links: &[(u32, u32, f64)], options: &LinkOptions, weighted: bool) -> Vec<(u32, u32, f64)> {
        let mut all = Vec::new();
        for &(source, target, weight) in links {
            let weight = if weighted { weight } else { 1.0 };
            if source != target || options.loops {
                all.push((source, target, weight));
            }
            if source != target && options.symmetric {
                all.push((target, source, weight));
            }
        }
        all.sort_by_key(|link| (link.0, link.1));
        if options.duplicates != Duplicates::Keep {
            all.dedup_by(|later, first| {
                let same = (later.0, later.1) == (first.0, first.1);
                if same && options.duplicates == Duplicates::Sum {
                    first.2 += later.2;
                } else if same && options.duplicates == Duplicates::Min {
                    first.2 = first.2.min(later.2);
                } else if same && options.duplicates == Duplicates::Max {
                    first.2 = first.2.max(later.2);
                }
                same
            });
        }
        all
    }

    fn listed(rows: &CompressedRows) -> Vec<(u32, u32, f64)> {
        (0..rows.rows())
            .flat_map(|v| rows.weighted(v).map(move |(target, weight)| (v as u32, target, weight)))
            .collect()
    }

    fn any_links(n: u32, most: usize) -> impl Strategy<Value = Vec<(u32, u32, f64)>> {
        prop::collection::vec((0..n, 0..n, (0..9).prop_map(f64::from)), 0..most)
    }

    proptest! {
        /// A wrong bucket, position or merge gives a different list of links than the naive algorithm.
        #[test]
        fn rows_equal_a_sorted_list(
            links in any_links(40, 300), threads in 1usize..4, loops: bool, symmetric: bool, weighted: bool, rule in 0usize..5,
        ) {
            let duplicates =
                [Duplicates::Keep, Duplicates::Sum, Duplicates::Min, Duplicates::First, Duplicates::Max][rule];
            let options = LinkOptions { rows: 40, columns: 40, duplicates, loops, symmetric };
            let sources: Vec<u32> = links.iter().map(|link| link.0).collect();
            let targets: Vec<u32> = links.iter().map(|link| link.1).collect();
            let weights: Vec<f64> = links.iter().map(|link| link.2).collect();
            let given = Links { sources: &sources, targets: &targets, weights: weighted.then_some(&weights[..]) };
            let pool = pool(threads);
            let rows = CompressedRows::of_links(&pool, given, &options).unwrap();
            prop_assert_eq!(listed(&rows), naive(&links, &options, weighted));
            let back: Vec<_> = listed(&rows.transpose(&pool)).into_iter().map(|(s, t, w)| (t, s, w)).collect();
            let mut expected = listed(&rows);
            expected.sort_by_key(|link| (link.1, link.0));
            prop_assert_eq!(back, expected);
            prop_assert!(!symmetric || rows.is_symmetric(&pool) || duplicates == Duplicates::Keep || duplicates == Duplicates::First);
        }
    }

    /// Many buckets and several digits; small tests have only one bucket, sorted with the plain sort.
    #[test]
    fn many_links() {
        let n = 100_000u32;
        let links: Vec<(u32, u32, f64)> = (0..200_000u64)
            .map(|i| {
                let mixed = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
                (mixed as u32 % n % (1 + mixed as u32 % 977), (mixed >> 20) as u32 % n, i as f64)
            })
            .collect();
        let sources: Vec<u32> = links.iter().map(|link| link.0).collect();
        let targets: Vec<u32> = links.iter().map(|link| link.1).collect();
        let weights: Vec<f64> = links.iter().map(|link| link.2).collect();
        for (threads, weighted, duplicates) in
            [(1, true, Duplicates::Keep), (3, true, Duplicates::First), (2, false, Duplicates::Min)]
        {
            let options = LinkOptions { duplicates, ..LinkOptions::square(n as usize) };
            let given = Links { sources: &sources, targets: &targets, weights: weighted.then_some(&weights[..]) };
            let rows = CompressedRows::of_links(&pool(threads), given, &options).unwrap();
            assert!(listed(&rows) == naive(&links, &options, weighted));
        }
    }

    #[test]
    fn a_bad_link_is_named() {
        let links = Links { sources: &[0, 1, 7], targets: &[1, 0, 0], weights: None };
        let error = CompressedRows::of_links(&pool(2), links, &LinkOptions::square(2)).unwrap_err();
        assert_eq!(error.to_string(), "link 2 names node 7, but there are 2 nodes, from 0");
        let none = Links { sources: &[], targets: &[], weights: None };
        let rows = CompressedRows::of_links(&pool(2), none, &LinkOptions::square(0)).unwrap();
        assert_eq!((rows.rows(), rows.links()), (0, 0));
    }
}

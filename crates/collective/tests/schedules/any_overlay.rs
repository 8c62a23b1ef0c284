//! Overlays of every shape, for tests that must hold on all of them.

use tidemill_collective::overlay::{Overlay, OverlayPart};

use crate::runner::Random;

/// A random tree over all ranks: in a random order, each rank's parent is among the latest `window` ranks before it (1:
/// a chain; the number of ranks: anything up to a star).
fn tree(size: u32, root: u32, window: usize, random: &mut Random) -> Vec<Option<u32>> {
    let mut order: Vec<u32> = (0..size).filter(|&rank| rank != root).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i + 1));
    }
    order.insert(0, root);
    let mut parents = vec![None; size as usize];
    for place in 1..order.len() {
        let parent = place - 1 - random.below(window.min(place));
        parents[order[place] as usize] = Some(order[parent]);
    }
    parents
}

/// Up to 4 parts, some without a share, whose trees have only the root in common.
pub fn any_overlay(size: u32, random: &mut Random) -> Overlay {
    let parts = (0..=random.below(4)).map(|part| {
        let root = random.below(size as usize) as u32;
        let mut tree = || {
            let window = [1, 2, size as usize][random.below(3)];
            tree(size, root, window, random)
        };
        let (reduce, broadcast) = (tree(), tree());
        OverlayPart { share: if part == 0 { 1 } else { random.below(5) as u32 }, reduce, broadcast }
    });
    let parts = parts.collect();
    Overlay::new(size, parts).expect("a tree over all ranks")
}

fn star(size: u32, center: u32) -> Vec<Option<u32>> {
    (0..size).map(|rank| (rank != center).then_some(center)).collect()
}

/// One part per rank, with stars as trees: a reduce-scatter and an all-gather with shards of different lengths.
pub fn stars(size: u32) -> Overlay {
    let part = |rank| OverlayPart { share: 2 + rank % 3, reduce: star(size, rank), broadcast: star(size, rank) };
    Overlay::new(size, (0..size).map(part).collect()).expect("stars are trees")
}

//! Helpers of the algorithms' tests: threads, and small random networks.

use crate::build::{LinkOptions, Links};
use crate::rows::CompressedRows;
use proptest::prelude::*;
use tidemill_kernels::pool::{Pool, PoolConfig};

pub(crate) fn pool(threads: usize) -> Pool {
    Pool::new(PoolConfig { threads, spins: 0, ..PoolConfig::default() })
}

/// Rows of a list of links with weights.
pub(crate) fn rows_of(n: usize, links: &[(u32, u32, f64)], symmetric: bool) -> CompressedRows {
    let sources: Vec<u32> = links.iter().map(|link| link.0).collect();
    let targets: Vec<u32> = links.iter().map(|link| link.1).collect();
    let weights: Vec<f64> = links.iter().map(|link| link.2).collect();
    let links = Links { sources: &sources, targets: &targets, weights: Some(&weights) };
    CompressedRows::of_links(&pool(1), links, &LinkOptions { symmetric, ..LinkOptions::square(n) }).unwrap()
}

/// The same links without weights.
pub(crate) fn unweighted(rows: &CompressedRows) -> CompressedRows {
    CompressedRows::of_parts(rows.offsets().to_vec(), rows.targets().to_vec(), None, rows.columns())
}

/// 0 to 30 nodes, sparse to dense, with loops, parallel links and weights from 0 to 8.
pub(crate) fn any_network(symmetric: bool) -> impl Strategy<Value = CompressedRows> {
    (0u32..30, 0usize..90).prop_flat_map(move |(n, most)| {
        let most = if n == 0 { 0 } else { most };
        let ends = 0..n.max(1);
        prop::collection::vec((ends.clone(), ends, (0..9).prop_map(f64::from)), 0..=most)
            .prop_map(move |links| rows_of(n as usize, &links, symmetric))
    })
}

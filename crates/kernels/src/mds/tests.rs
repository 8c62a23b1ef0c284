//! Tests the passes against the definitions in `f64`, for every storage, instruction set and shape.

use super::*;
use crate::pool::PoolConfig;
use crate::random::uniform;
use crate::simd::Isa;
use proptest::prelude::*;

fn pool(threads: usize) -> Pool {
    Pool::new(PoolConfig { threads, spins: 0, ..PoolConfig::default() })
}

fn numbers(seed: u64, count: usize) -> Vec<f64> {
    (0..count).map(|i| uniform(seed, 0, i as u64)).collect()
}

/// Symmetric, with zeros on the diagonal, none above 1.
fn symmetric(seed: u64, n: usize) -> Vec<f64> {
    let mut cells = numbers(seed, n * n);
    for i in 0..n {
        cells[i * n + i] = 0.0;
        for j in 0..i {
            cells[i * n + j] = cells[j * n + i];
        }
    }
    cells
}

fn between(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

/// By the definition.
fn reference(
    delta: impl Fn(usize, usize) -> f64,
    weight: impl Fn(usize, usize) -> f64,
    rows: &[f64],
    columns: &[f64],
    k: usize,
    shift: f64,
) -> Vec<f64> {
    let mut out = Vec::new();
    for (i, z) in rows.chunks_exact(k).enumerate() {
        let mut sums = vec![0.0; k + 1];
        for (j, x) in columns.chunks_exact(k).enumerate() {
            let (d, delta, w) = (between(z, x), (delta(i, j) - shift).max(0.0), weight(i, j));
            for c in 0..k {
                sums[c] += if d > 0.0 { w * delta / d * (z[c] - x[c]) } else { 0.0 };
            }
            sums[k] += w * (d - delta).powi(2);
        }
        out.extend(sums);
    }
    out
}

fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= tolerance, "{what}, number {i}: {found} instead of {expected}");
    }
}

/// The maximum error of a stored distance or weight that is at most 1.
fn error(storage: CellStorage) -> f64 {
    match storage {
        CellStorage::F32 => 2f64.powi(-24),
        CellStorage::F16 => 2f64.powi(-12),
        CellStorage::Fixed16 => 1.0 / 131_070.0 + 1e-7,
    }
}

const STORAGES: [CellStorage; 3] = [CellStorage::F32, CellStorage::F16, CellStorage::Fixed16];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A padded column that counts, a remaining row that is summed differently, or a wrong weight shows as a different
    /// sum.
    #[test]
    fn guttman_is_the_definition(
        n in 1usize..90, first in 0usize..40, rows in 0usize..40, k in 1usize..8, threads in 1usize..4, seed: u64,
        storage in 0usize..3, weight_storage in 0usize..3, shift in prop::sample::select(vec![0.0, 0.3]), matrix: bool,
    ) {
        let (n, storage, weight_storage) = (n.max(first + rows).max(1), STORAGES[storage], STORAGES[weight_storage]);
        let delta = symmetric(seed, n);
        let weights: Vec<f64> = symmetric(seed ^ 1, n).iter().map(|&w| if w < 0.2 { 0.0 } else { w }).collect();
        let (u, x) = (numbers(seed ^ 2, n), numbers(seed ^ 3, n * k));
        let pool = pool(threads);
        let mut distances = DistanceBlock::new(rows, n, Some(first), storage);
        let part = first * n..(first + rows) * n;
        // In two blocks, and in user's units.
        let half = rows / 2 * n;
        let scaled: Vec<f64> = delta[part.clone()].iter().map(|d| d * 7.0).collect();
        distances.fill(&pool, 0, &scaled[..half], 7.0);
        distances.fill(&pool, rows / 2, &scaled[half..], 7.0);
        if matrix {
            distances.make_weights(weight_storage);
            distances.weigh(&pool, 0, &weights[part], 1.0);
        }
        let at = |i: usize, j: usize| (first + i) * n + j;
        let own = &x[first * k..(first + rows) * k];
        let weight = |i: usize, j: usize| if matrix { weights[at(i, j)] } else { u[j] };
        let expected = reference(|i, j| delta[at(i, j)], weight, own, &x, k, shift);
        for isa in Isa::available() {
            let mut out = vec![f64::NAN; rows * (k + 1)];
            let pass = GuttmanPass { rows: own, columns: &x, k, weights: (!matrix).then_some(&u), shift };
            guttman(&pool, isa, &distances, pass, &mut out);
            let error = error(storage) + if matrix { error(weight_storage) } else { 0.0 };
            assert_close(&out, &expected, n as f64 * 2.5 * (error + 1e-6), isa.name());
        }
    }

    /// A row's sums must not depend on its thread or worker, not even by a bit.
    #[test]
    fn a_row_is_the_same_wherever_it_is(
        n in 2usize..200, cut in 0usize..200, k in 1usize..6, seed: u64, weighted in prop::option::of(0usize..3),
    ) {
        let cut = cut % n;
        let (delta, x, u) = (symmetric(seed, n), numbers(seed ^ 1, n * k), vec![1.0; n]);
        let run = |first: usize, rows: usize, threads: usize| {
            let pool = pool(threads);
            let mut distances = DistanceBlock::new(rows, n, Some(first), CellStorage::F32);
            let part = first * n..(first + rows) * n;
            distances.fill(&pool, 0, &delta[part.clone()], 1.0);
            if let Some(storage) = weighted {
                distances.make_weights(STORAGES[storage]);
                distances.weigh(&pool, 0, &delta[part], 1.0);
            }
            let mut out = vec![0.0; rows * (k + 1)];
            let rows = &x[first * k..(first + rows) * k];
            let weights = weighted.is_none().then_some(&u[..]);
            let pass = GuttmanPass { rows, columns: &x, k, weights, shift: 0.0 };
            guttman(&pool, Isa::best(), &distances, pass, &mut out);
            out
        };
        let whole = run(0, n, 1);
        prop_assert_eq!(&[run(0, cut, 2), run(cut, n - cut, 3)].concat(), &whole);
    }

    /// Vectors must give the same results as their distances, through every blocking of rows, columns and features.
    #[test]
    fn vectors_stand_for_their_distances(n in 1usize..150, d in 1usize..600, threads in 1usize..3, seed: u64) {
        let k = 3;
        let vectors: Vec<f32> = numbers(seed, n * d).iter().map(|&x| (x / (d as f64).sqrt()) as f32).collect();
        let exact: Vec<f64> = vectors.iter().map(|&x| f64::from(x)).collect();
        let (x, u) = (numbers(seed ^ 1, n * k), vec![1.0; n]);
        let delta = |i: usize, j: usize| between(&exact[i * d..(i + 1) * d], &exact[j * d..(j + 1) * d]);
        let expected = reference(delta, |_, j| u[j], &x, &x, k, 0.0);
        let distances = DistanceBlock::of_vectors(&vectors, &vectors, d, Some(0));
        for isa in Isa::available() {
            let mut out = vec![0.0; n * (k + 1)];
            let pass = GuttmanPass { rows: &x, columns: &x, k, weights: Some(&u), shift: 0.0 };
            guttman(&pool(threads), isa, &distances, pass, &mut out);
            assert_close(&out, &expected, n as f64 * 2e-5, isa.name());
        }
    }

    #[test]
    fn laplacians_are_the_definition(
        n in 1usize..80, first in 0usize..30, rows in 1usize..30, k in 1usize..7, threads in 1usize..3, seed: u64,
        storage in 0usize..3,
    ) {
        let (n, storage) = (n.max(first + rows), STORAGES[storage]);
        let delta = symmetric(seed, n);
        let weights: Vec<f64> = symmetric(seed ^ 1, n).iter().map(|&w| if w < 0.4 { 0.0 } else { w }).collect();
        let p = numbers(seed ^ 2, n * k);
        let pool = pool(threads);
        let part = first * n..(first + rows) * n;
        let mut distances = DistanceBlock::new(rows, n, Some(first), CellStorage::F32);
        distances.fill(&pool, 0, &delta[part.clone()], 1.0);
        distances.make_weights(storage);
        distances.weigh(&pool, 0, &weights[part], 1.0);
        for (name, coefficients) in ["weights", "squares", "missing"].map(|name| (name, name.parse().unwrap())) {
            let c = |i: usize, j: usize| match coefficients {
                LaplacianCoefficients::Weights => weights[i * n + j],
                LaplacianCoefficients::Squares => delta[i * n + j].powi(2),
                LaplacianCoefficients::Missing => f64::from(u8::from(i != j && weights[i * n + j] == 0.0)),
            };
            let mut expected = Vec::new();
            for i in first..first + rows {
                for axis in 0..k {
                    expected.push((0..n).map(|j| c(i, j) * (p[i * k + axis] - p[j * k + axis])).sum());
                }
                expected.push((0..n).map(|j| c(i, j)).sum::<f64>());
            }
            for isa in Isa::available() {
                let mut out = vec![0.0; rows * (k + 1)];
                laplacian(&pool, isa, &distances, coefficients, &p, &mut out);
                let error = if coefficients == LaplacianCoefficients::Weights { error(storage) } else { 0.0 };
                assert_close(&out, &expected, n as f64 * (error + 1e-5), name);
            }
        }
    }
}

/// Each storage must be as precise as documented, even for the smallest distances.
#[test]
fn storages_keep_their_errors() {
    let n = 4000;
    let mut values = numbers(5, n);
    for (i, value) in values.iter_mut().enumerate() {
        // Down to far below what half precision can represent.
        *value *= 2f64.powi(-((i % 50) as i32));
    }
    (values[0], values[1]) = (0.0, 1.0);
    for storage in STORAGES {
        let mut distances = DistanceBlock::new(1, n, None, storage);
        distances.fill(&pool(1), 0, &values, 1.0);
        let kept = SymmetryCheck { distances: &distances, plane: CellPlane::Distances }.block(Isa::best(), 0..1, 0..n);
        for (&value, &kept) in values.iter().zip(&kept) {
            let bound = match storage {
                CellStorage::F32 => value * 2f64.powi(-24),
                CellStorage::F16 => (value * 2f64.powi(-11)).max(2f64.powi(-40) * 1.01),
                CellStorage::Fixed16 => 1.0 / 131_070.0 + value * 2f64.powi(-23),
            };
            assert!((value - f64::from(kept)).abs() <= bound, "{storage:?}: {value} became {kept}");
        }
        assert_eq!((kept[0], kept[1]), (0.0, 1.0));
    }
}

/// Weights have the same errors as distances, but one above 0 never becomes 0: its distance would count as missing.
#[test]
fn weights_keep_their_errors_and_stay_above_zero() {
    let n = 4000;
    let mut values = numbers(6, n);
    for (i, value) in values.iter_mut().enumerate() {
        *value = (*value + 0.01) * 0.99 * 2f64.powi(-((i % 60) as i32));
    }
    (values[0], values[1]) = (0.0, 1.0);
    for storage in STORAGES {
        let mut distances = DistanceBlock::new(1, n, None, CellStorage::F32);
        let unweighted = distances.len_bytes();
        distances.make_weights(storage);
        let (bytes, least) = match storage {
            CellStorage::F32 => (4, 0.0),
            CellStorage::F16 => (2, 2f64.powi(-39)),
            CellStorage::Fixed16 => (2, 1.0 / 65_535.0),
        };
        assert_eq!(distances.len_bytes() - unweighted, bytes * n);
        distances.weigh(&pool(1), 0, &values, 1.0);
        let kept = SymmetryCheck { distances: &distances, plane: CellPlane::Weights }.block(Isa::best(), 0..1, 0..n);
        for (&value, &kept) in values.iter().zip(&kept) {
            let bound = match storage {
                CellStorage::F32 => value * 2f64.powi(-24),
                CellStorage::F16 => (value * 2f64.powi(-11)).max(2f64.powi(-40)),
                CellStorage::Fixed16 => 1.0 / 131_070.0 + value * 2f64.powi(-23),
            };
            let least = if value < least { least * 1.000_001 } else { 0.0 };
            assert!((value - f64::from(kept)).abs() <= bound.max(least), "{storage:?}: {value} became {kept}");
            assert_eq!(value > 0.0, kept > 0.0, "{storage:?}: {value} became {kept}");
        }
        assert_eq!((kept[0], kept[1]), (0.0, 1.0));
    }
}

/// A row, column or reason that is off by one would send users to a cell where nothing is wrong.
#[test]
fn inspection_names_the_first_bad_cell() {
    let n = 37;
    for threads in [1, 3] {
        for (value, trouble) in
            [(f64::NAN, CellError::Nan), (f64::INFINITY, CellError::Infinite), (-0.5, CellError::Negative)]
        {
            let mut block = symmetric(1, n);
            block[20 * n + 30] = value;
            block[22 * n + 3] = f64::NAN;
            let found =
                inspect(&pool(threads), &block, n, BlockDiagonal { first: Some(0), ..BlockDiagonal::default() });
            assert_eq!(found.bad, Some((20, 30, trouble)));
            let narrow: Vec<f32> = block.iter().map(|&x| x as f32).collect();
            let found =
                inspect(&pool(threads), &narrow, n, BlockDiagonal { first: Some(0), ..BlockDiagonal::default() });
            assert_eq!(found.bad, Some((20, 30, trouble)));
        }
    }
    let mut block = symmetric(1, n);
    block[5 * n + 7] = 3.5;
    block[4 * n + 6] = 0.25;
    let found = inspect(&pool(2), &block, n, BlockDiagonal { first: Some(2), ..BlockDiagonal::default() });
    assert_eq!(found.max, 3.5);
    assert_eq!(found.bad, None);
    assert_eq!(found.diagonal.map(|(_, row)| block[row * n + row + 2]), found.diagonal.map(|(most, _)| most));
}

#[test]
fn missing_distances_are_accepted_only_without_weight() {
    let n = 9;
    let mut block = symmetric(2, n);
    block[3 * n + 5] = f64::NAN;
    let mut weights = vec![1.0; n * n];
    let bad = |weights: Option<&[f64]>, columns: Option<&[f64]>| {
        inspect(&pool(1), &block, n, BlockDiagonal { first: Some(0), weights, columns }).bad
    };
    assert_eq!(bad(Some(&weights), None), Some((3, 5, CellError::Nan)));
    let mut columns = vec![1.0; n];
    assert_eq!(bad(None, Some(&columns)), Some((3, 5, CellError::Nan)));
    for point in [3, 5] {
        columns.fill(1.0);
        columns[point] = 0.0;
        assert_eq!(bad(None, Some(&columns)), None, "the weight of either point is 0");
    }
    weights[3 * n + 5] = 0.0;
    assert_eq!(bad(Some(&weights), None), None);
}

/// Tiles and threads must not hide a difference, and the first one by rows must be reported.
#[test]
fn the_first_asymmetric_cell_is_found() {
    let n = 150;
    for storage in STORAGES {
        for threads in [1, 3] {
            let pool = pool(threads);
            let mut cells = symmetric(3, n);
            let mut distances = DistanceBlock::new(n, n, Some(0), storage);
            distances.fill(&pool, 0, &cells, 1.0);
            let look = |distances: &DistanceBlock, columns: std::ops::Range<usize>| {
                let symmetry = SymmetryCheck { distances, plane: CellPlane::Distances };
                let others = symmetry.block(Isa::best(), columns.clone(), 0..n);
                symmetry.first_difference(&pool, Isa::best(), columns, &others, 1e-3)
            };
            assert_eq!(look(&distances, 0..n), None);
            cells[100 * n + 140] = 0.0;
            cells[101 * n + 3] = 0.0;
            distances.fill(&pool, 0, &cells, 1.0);
            let found = look(&distances, 0..n).expect("two cells differ");
            assert_eq!((found.0, found.1), (3, 101));
            let found = look(&distances, 120..n).expect("a cell differs");
            assert_eq!((found.0, found.1, found.2), (100, 140, 0.0));
        }
    }
}

/// Workers without rows take part in the exchange like all others.
#[test]
fn empty_blocks_are_empty() {
    let distances = DistanceBlock::new(0, 5, Some(5), CellStorage::F32);
    let symmetry = SymmetryCheck { distances: &distances, plane: CellPlane::Distances };
    assert!(symmetry.block(Isa::best(), 0..0, 2..4).is_empty());
    assert_eq!(symmetry.first_difference(&pool(2), Isa::best(), 5..5, &[], 0.0), None);
    let distances = DistanceBlock::new(5, 5, Some(0), CellStorage::F32);
    let symmetry = SymmetryCheck { distances: &distances, plane: CellPlane::Distances };
    assert!(symmetry.block(Isa::best(), 1..4, 5..5).is_empty());
}

#[test]
fn components_are_those_of_the_rows() {
    let n = 6;
    let mut weights = vec![0.0; n * n];
    for (i, j) in [(0, 3), (3, 4), (1, 5)] {
        weights[i * n + j] = 1.0;
        weights[j * n + i] = 1.0;
    }
    for storage in STORAGES {
        let mut distances = DistanceBlock::new(n, n, Some(0), CellStorage::F32);
        distances.make_weights(storage);
        distances.weigh(&pool(1), 0, &weights, 1e9);
        assert_eq!(distances.components(), [0, 1, 2, 0, 0, 1]);
        // A worker that has only some of the rows knows only their connections.
        let mut distances = DistanceBlock::new(2, n, Some(4), CellStorage::F32);
        distances.make_weights(storage);
        distances.weigh(&pool(1), 0, &weights[4 * n..], 1.0);
        assert_eq!(distances.components(), [0, 1, 2, 3, 3, 1]);
    }
}

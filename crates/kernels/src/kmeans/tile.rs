//! The distance tile: two vectors of points against up to twelve centers, all in registers, with a fused search for the
//! nearest and the second nearest center.
//!
//! For a point `x` and a center `c` it computes `v = |c|^2 / 2 - x.c`, which orders centers like the distance, because
//! `|x - c|^2 = |x|^2 + 2 v`. Each feature costs one multiply-add per pair. Points lie along the lanes, so the search
//! needs no work across lanes.

use super::rows::{PANEL_MAX, PointPanel};
use crate::memory::AlignedBuffer;
use crate::simd::{FloatElement, Simd, WIDE};

/// Centers in the tile's layout: tile after tile, within a tile feature after feature, with `width` centers side by
/// side.
#[derive(Debug)]
pub(crate) struct TiledCentres<T> {
    pub(crate) k: usize,
    pub(crate) d: usize,
    /// As given, `k x d`, in `f64`: used to decide near ties.
    pub(crate) exact: Vec<f64>,
    values: AlignedBuffer<T>,
    /// `|c|^2 / 2`, infinite for padding centers.
    half: Vec<T>,
    /// The center's number, as an element.
    index: Vec<T>,
    tiles: Vec<CentreTile>,
    /// Largest norm of a center.
    pub(crate) norm_max: f64,
}

#[derive(Clone, Copy, Debug)]
struct CentreTile {
    first: usize,
    width: usize,
}

/// Compiled widths; the last tile uses the next larger one.
const WIDTHS: [usize; 9] = [1, 2, 3, 4, 5, 6, 8, 10, 12];

impl<T: FloatElement> TiledCentres<T> {
    /// Lays out `k` centers of `d` features. They are already in the shifted frame.
    pub(crate) fn new(exact: &[f64], d: usize, width_max: usize) -> Self {
        let k = exact.len() / d;
        assert!(k > 0 && exact.len() == k * d, "the centres must be complete, and at least one");
        assert!((k as u64) < T::INTEGER_MAX, "too many centres for this element type");
        let mut tiles = Vec::new();
        let mut first = 0;
        while first < k {
            let left = (k - first).min(width_max);
            let width = WIDTHS.into_iter().find(|&width| width >= left).expect("no tile is wider than the widest");
            tiles.push(CentreTile { first, width });
            first += width;
        }
        let padded = first;
        let mut values = AlignedBuffer::zeroed(padded * d);
        let mut half = vec![T::from_f64(f64::INFINITY); padded];
        let mut norm_max = 0.0f64;
        for tile in &tiles {
            for t in 0..tile.width.min(k - tile.first) {
                let centre = &exact[(tile.first + t) * d..(tile.first + t + 1) * d];
                let mut norm = 0.0;
                for (f, &value) in centre.iter().enumerate() {
                    values.as_mut_slice()[tile.first * d + f * tile.width + t] = T::from_f64(value);
                    norm += value * value;
                }
                half[tile.first + t] = T::from_f64(norm / 2.0);
                norm_max = norm_max.max(norm);
            }
        }
        let index = (0..padded).map(|i| T::from_f64(i as f64)).collect();
        TiledCentres { k, d, exact: exact.to_vec(), values, half, index, tiles, norm_max: norm_max.sqrt() }
    }

    /// Center `j`.
    #[inline(always)]
    pub(crate) fn get(&self, j: usize) -> &[f64] {
        &self.exact[j * self.d..(j + 1) * self.d]
    }
}

/// For each point of a panel: the nearest center, its `v`, and the second smallest `v` (infinite if there is only one
/// center).
pub(crate) struct NearestCentres<T> {
    pub(crate) best: [T; PANEL_MAX],
    pub(crate) second: [T; PANEL_MAX],
    pub(crate) index: [T; PANEL_MAX],
}

impl<T: FloatElement> NearestCentres<T> {
    pub(crate) fn new() -> Self {
        NearestCentres {
            best: [T::default(); PANEL_MAX],
            second: [T::default(); PANEL_MAX],
            index: [T::default(); PANEL_MAX],
        }
    }
}

#[derive(Clone, Copy)]
struct RunningNearest<V> {
    best: [V; WIDE],
    second: [V; WIDE],
    index: [V; WIDE],
}

/// Searches all centers for every point of the panel. Ties go to the lowest number. Meanwhile it calls `ahead` once for
/// each tile, with its number and the number of tiles, to prefetch the next panel.
#[inline(always)]
pub(crate) fn search<S: Simd>(
    s: S,
    panel: &PointPanel<S::Elem>,
    centres: &TiledCentres<S::Elem>,
    found: &mut NearestCentres<S::Elem>,
    ahead: impl Fn(usize, usize),
) {
    let infinity = s.splat(S::Elem::from_f64(f64::INFINITY));
    let zero = s.splat(S::Elem::default());
    let mut running = RunningNearest { best: [infinity; WIDE], second: [infinity; WIDE], index: [zero; WIDE] };
    assert!(panel.values.as_slice().len() >= centres.d * WIDE * S::LANES, "panel and centres differ in features");
    for (number, tile) in centres.tiles.iter().enumerate() {
        ahead(number, centres.tiles.len());
        // SAFETY: the panel was checked above; a tile's centers lie within `values`, `half` and `index` by
        // construction.
        unsafe {
            let scan = TileScan {
                points: panel.values.as_slice().as_ptr(),
                d: centres.d,
                values: centres.values.as_slice().as_ptr().add(tile.first * centres.d),
                half: centres.half.as_ptr().add(tile.first),
                index: centres.index.as_ptr().add(tile.first),
            };
            running = match tile.width {
                1 => scan.run::<S, 1>(s, running),
                2 => scan.run::<S, 2>(s, running),
                3 => scan.run::<S, 3>(s, running),
                4 => scan.run::<S, 4>(s, running),
                5 => scan.run::<S, 5>(s, running),
                6 => scan.run::<S, 6>(s, running),
                8 => scan.run::<S, 8>(s, running),
                10 => scan.run::<S, 10>(s, running),
                12 => scan.run::<S, 12>(s, running),
                width => unreachable!("no tile is {width} wide"),
            };
        }
    }
    for w in 0..WIDE {
        let at = w * S::LANES;
        assert!(at + S::LANES <= PANEL_MAX, "PANEL_MAX is the widest set's");
        // SAFETY: just checked; each array has `PANEL_MAX` elements.
        unsafe {
            s.store(found.best.as_mut_ptr().add(at), running.best[w]);
            s.store(found.second.as_mut_ptr().add(at), running.second[w]);
            s.store(found.index.as_mut_ptr().add(at), running.index[w]);
        }
    }
}

/// One tile's operands.
struct TileScan<T> {
    points: *const T,
    d: usize,
    values: *const T,
    half: *const T,
    index: *const T,
}

impl<T: FloatElement> TileScan<T> {
    /// # Safety
    /// `points` holds `d * WIDE * LANES` elements, `values` `d * W`, `half` and `index` `W`.
    #[inline(always)]
    unsafe fn run<S: Simd<Elem = T>, const W: usize>(
        &self,
        s: S,
        mut running: RunningNearest<S::V>,
    ) -> RunningNearest<S::V> {
        // SAFETY: the caller's promise bounds every offset below.
        unsafe {
            let mut v = [[s.splat(T::default()); WIDE]; W];
            for (t, v) in v.iter_mut().enumerate() {
                *v = [s.splat(*self.half.add(t)); WIDE];
            }
            let (mut points, mut values) = (self.points, self.values);
            for _ in 0..self.d {
                let x = [s.load(points), s.load(points.add(S::LANES))];
                for (t, v) in v.iter_mut().enumerate() {
                    let c = s.splat(*values.add(t));
                    for (v, &x) in v.iter_mut().zip(&x) {
                        *v = s.neg_mul_add(x, c, *v);
                    }
                }
                points = points.add(WIDE * S::LANES);
                values = values.add(W);
            }
            for (t, v) in v.iter().enumerate() {
                let number = s.splat(*self.index.add(t));
                for (w, &v) in v.iter().enumerate() {
                    let (best, second) = (&mut running.best[w], &mut running.second[w]);
                    s.keep_nearest(v, number, best, second, &mut running.index[w]);
                }
            }
            running
        }
    }
}

//! A first pass over distances with AMX, in numbers of two 8-bit digits: the fastest multiply-adds of a processor core.
//!
//! `tdpbssd` multiplies a tile of 16 rows by one of 16 columns, with 64 products of 8-bit integers in each, and adds to
//! 32-bit sums: 16,384 multiply-adds in 16 cycles. A number `256 high + low` has a signed digit in each byte. For a
//! product, one tile sums `high high` and another one `high low + low high`; `low low` is omitted. The sums are exact:
//! with up to [`FEATURES_MAX`] features none overflows.
//!
//! **Error.** Let `x'` be a point in digits and `l` its low digits, times the point's scale, which is its largest
//! feature over [`RANGE`]; likewise for a center `c`. Then the result differs from `x.c` by at most
//! `|x| |c| (ex + (1 + ex) ec + qx qc)`, with `ex = |x - x'| / |x|` and `qx = |l| / |x|`. These are known for each
//! point, and their maximum for the centers. If this error, and the few roundings in `f32` after it, could change
//! which center is nearest, the row goes on to the distance tile. So labels are exact all the same.

use super::amx::{ConfiguredTiles, SIDE, TILE, TileProducts};
use super::{CoarseSearch, NORM_ERROR, POINTS};
use crate::kmeans::rows::PointRows;
use crate::memory::AlignedBuffer;
use crate::simd::{FloatElement, Simd, prefetch};
use std::arch::x86_64::*;

/// Largest number: both digits are at most 127.
const RANGE: f32 = 32_639.0;

/// Maximum number of features for which `256 high high + high low + low high` stays below `2^31`.
pub(super) const FEATURES_MAX: usize = 512;

// Up to 32 sums plus 4 in a row, and the earlier rounding of the vector.
const _: () = assert!(40.0 * f32::EPSILON as f64 <= 2.0 * NORM_ERROR);

/// Features per row that a transposition moves at once: 16 bytes, four groups of four.
const CHUNK: usize = 16;

/// How features are divided into tiles: as few steps as possible, each as narrow as possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FeatureSplit {
    /// Consecutive tiles.
    steps: usize,
    /// Chunks per tile.
    chunks: usize,
}

impl FeatureSplit {
    fn new(d: usize) -> Self {
        let chunks = d.div_ceil(CHUNK);
        let steps = chunks.div_ceil(64 / CHUNK);
        FeatureSplit { steps, chunks: chunks.div_ceil(steps) }
    }

    /// Number of features, including padding.
    fn padded(self) -> usize {
        self.steps * self.chunks * CHUNK
    }
}

/// A vector in digits.
#[derive(Clone, Copy, Debug)]
struct DigitVector {
    scale: f32,
    /// Its squared norm, off by less than [`NORM_ERROR`].
    squared: f32,
    /// `e` and `q` of the module documentation, rounded up.
    lost: f32,
    low: f32,
}

/// Rounds a vector to digits.
///
/// # Safety
/// The processor has AVX-512 F. `x` has a multiple of 16 elements, and `high` and `low` have room for as many.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn round(x: &[f32], high: *mut i8, low: *mut i8) -> DigitVector {
    // SAFETY: the caller's promise bounds every offset.
    unsafe {
        let mut largest = _mm512_setzero_ps();
        for f in (0..x.len()).step_by(16) {
            largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_loadu_ps(x.as_ptr().add(f))));
        }
        let largest = _mm512_reduce_max_ps(largest);
        let scale = if largest > 0.0 { (largest / RANGE).max(f32::MIN_POSITIVE) } else { 1.0 };
        let (scales, inverse) = (_mm512_set1_ps(scale), _mm512_set1_ps(1.0 / scale));
        let zero = _mm512_setzero_ps();
        let (mut squared, mut lost, mut lows) = (zero, zero, zero);
        for f in (0..x.len()).step_by(16) {
            let x = _mm512_loadu_ps(x.as_ptr().add(f));
            let number = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
            // Halves round up, so that the low digit is between -128 and 127.
            let digit = _mm512_srai_epi32::<8>(_mm512_add_epi32(number, _mm512_set1_epi32(128)));
            let rest = _mm512_sub_epi32(number, _mm512_slli_epi32::<8>(digit));
            _mm_storeu_si128(high.add(f).cast(), _mm512_cvtepi32_epi8(digit));
            _mm_storeu_si128(low.add(f).cast(), _mm512_cvtepi32_epi8(rest));
            let off = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(number), scales, x);
            let rest = _mm512_mul_ps(_mm512_cvtepi32_ps(rest), scales);
            squared = _mm512_fmadd_ps(x, x, squared);
            lost = _mm512_fmadd_ps(off, off, lost);
            lows = _mm512_fmadd_ps(rest, rest, lows);
        }
        let squared = _mm512_reduce_add_ps(squared);
        // A vector of norm 0 is all zeros and loses nothing. 2^-12 covers the rounding of these sums, and 2 epsilon the
        // earlier conversion of the vector to f32.
        let inverse = if squared > 0.0 { (1.0 + 1.0 / 4096.0) / squared.sqrt() } else { 1.0 };
        DigitVector {
            scale,
            squared,
            lost: _mm512_reduce_add_ps(lost).sqrt() * inverse + 2.0 * f32::EPSILON,
            low: _mm512_reduce_add_ps(lows).sqrt() * inverse + f32::EPSILON,
        }
    }
}

/// Centers in digits: tile after tile, within a tile step after step, high digits before low ones.
#[derive(Debug)]
pub(crate) struct TileCentres {
    split: FeatureSplit,
    tiles: usize,
    /// Centers per tile; all tiles have the same width.
    width: usize,
    digits: AlignedBuffer<i8>,
    /// 256 times the center's scale.
    scale: Vec<f32>,
    /// `|c|^2 / 2`, infinite for padding centers.
    half: Vec<f32>,
    index: Vec<f32>,
    /// The largest of the centers' `e` and `q`.
    lost: f32,
    low: f32,
}

impl TileCentres {
    /// From `k x d` centers.
    pub(crate) fn new(centres: &[f64], d: usize) -> Self {
        assert!(d <= FEATURES_MAX, "the sums could overflow");
        let (k, split) = (centres.len() / d, FeatureSplit::new(d));
        let tiles = k.div_ceil(SIDE);
        let width = k.div_ceil(tiles);
        let mut made = TileCentres {
            split,
            tiles,
            width,
            digits: AlignedBuffer::zeroed(tiles * split.steps * 2 * TILE),
            scale: vec![1.0; tiles * width],
            half: vec![f32::INFINITY; tiles * width],
            index: (0..tiles * width).map(|i| i as f32).collect(),
            lost: 0.0,
            low: 0.0,
        };
        let mut x = vec![0.0; split.padded()];
        let (mut high, mut low) = (vec![0; split.padded()], vec![0; split.padded()]);
        for (j, centre) in centres.chunks_exact(d).enumerate() {
            for (x, &value) in x.iter_mut().zip(centre) {
                *x = value as f32;
            }
            // SAFETY: `TileCentres` are made only for an instruction set with AVX-512; the lists have the same length.
            let rounded = unsafe { round(&x, high.as_mut_ptr(), low.as_mut_ptr()) };
            let squared: f64 = centre.iter().map(|x| x * x).sum();
            (made.lost, made.low) = (made.lost.max(rounded.lost), made.low.max(rounded.low));
            made.scale[j] = 256.0 * rounded.scale;
            made.half[j] = (squared / 2.0) as f32;
            let per_step = split.chunks * CHUNK;
            for step in 0..split.steps {
                let at = ((j / width * split.steps + step) * 2) * TILE + j % width * 64;
                let part = step * per_step..(step + 1) * per_step;
                let digits = made.digits.as_mut_slice();
                digits[at..at + per_step].copy_from_slice(&high[part.clone()]);
                digits[at + TILE..at + TILE + per_step].copy_from_slice(&low[part]);
            }
        }
        made
    }
}

/// Rows in digits, rounded once for all steps of a fit, and a panel of them. A row's high digits come first.
pub(crate) struct TilePass {
    d: usize,
    split: FeatureSplit,
    /// Bytes per digit of a row: a multiple of [`CHUNK`].
    stride: usize,
    digits: AlignedBuffer<i8>,
    rounded: Vec<DigitVector>,
    /// Step after step: high digits of the first 16 points and of the second, then low digits of both, each in rows of
    /// four features by 16 points.
    panel: AlignedBuffer<i8>,
    /// A row in `f32`, less the shift.
    plain: Vec<f32>,
    products: Box<[TileProducts; 2]>,
    glance: CoarseSearch,
    configured: Option<ConfiguredTiles>,
    /// The maximum of the centers.
    lost: f32,
    low: f32,
}

// SAFETY: the tiles are configured only from `begin` to `end`, during which the pass stays on one thread; otherwise
// `configured` is empty.
unsafe impl Send for TilePass {}
// SAFETY: a shared reference allows no operations.
unsafe impl Sync for TilePass {}

impl TilePass {
    /// For `n` rows, none of which are rounded yet.
    pub(super) fn new(n: usize, d: usize) -> Self {
        let split = FeatureSplit::new(d);
        let stride = d.next_multiple_of(CHUNK);
        let none = || TileProducts { sums: [[[0; SIDE]; SIDE]; 4] };
        TilePass {
            d,
            split,
            stride,
            digits: AlignedBuffer::zeroed(n * 2 * stride),
            rounded: Vec::with_capacity(n),
            panel: AlignedBuffer::zeroed(split.steps * 4 * TILE),
            plain: vec![0.0; stride],
            products: Box::new([none(), none()]),
            glance: CoarseSearch::new(),
            configured: None,
            lost: 0.0,
            low: 0.0,
        }
    }

    /// Configures this thread's tiles for a step.
    pub(super) fn begin(&mut self, centres: &TileCentres) {
        assert!(self.split == centres.split, "rows and centres differ in features");
        (self.lost, self.low) = (centres.lost, centres.low);
        // SAFETY: `TileCentres` are made only for an instruction set with AMX.
        self.configured = Some(unsafe { ConfiguredTiles::new(centres.width, centres.split.chunks * CHUNK) });
    }

    /// Releases the tiles.
    pub(super) fn end(&mut self) {
        self.configured = None;
    }

    /// As `FirstPass::extend`.
    ///
    /// # Safety
    /// The processor has AVX-512 F.
    #[inline(always)]
    pub(super) unsafe fn extend<T: FloatElement>(&mut self, rows: &PointRows<'_, T>, first: usize, n: usize) {
        assert!(rows.d() == self.d, "the rows must be those the look was made for");
        for i in self.rounded.len()..n {
            let raw = rows.raw(first + i);
            for ((plain, x), &shift) in self.plain.iter_mut().zip(raw).zip(rows.shift()) {
                *plain = x.minus(shift).to_f64() as f32;
            }
            let out = &mut self.digits.as_mut_slice()[i * 2 * self.stride..][..2 * self.stride];
            let (high, low) = out.split_at_mut(self.stride);
            // SAFETY: `plain`, `high` and `low` are `stride` long; the caller guarantees the instruction set.
            self.rounded.push(unsafe { round(&self.plain, high.as_mut_ptr(), low.as_mut_ptr()) });
        }
    }

    /// As `FirstPass::search`.
    ///
    /// # Safety
    /// The processor has AMX and AVX-512 F, and `centres` are those of `begin`.
    #[inline(always)]
    pub(super) unsafe fn search(&mut self, centres: &TileCentres, now: &[usize], next: &[usize]) -> &CoarseSearch {
        let FeatureSplit { steps, .. } = self.split;
        // SAFETY: by the caller's promise; tiles, panel and lists fit each other by construction.
        unsafe {
            self.fill(now);
            let mut configured = self.configured.take().expect("`begin` sets up the tiles");
            let (even, odd) = self.products.split_at_mut(1);
            let (mut newer, mut older) = (&mut even[0], &mut odd[0]);
            let (panel, digits) = (self.panel.as_slice().as_ptr(), centres.digits.as_slice().as_ptr());
            // The products of a tile alternate with the search of the previous tile: neither waits for the other.
            let share = centres.width.div_ceil(2 * steps);
            for tile in 0..centres.tiles {
                let mut found = TileSearch { glance: &mut self.glance, centres, tile, products: older };
                configured.clear();
                for step in 0..steps {
                    let digits = digits.add((tile * steps + step) * 2 * TILE);
                    let panel = panel.add(step * 4 * TILE);
                    configured.add_first(digits, panel);
                    found.reduce(2 * step * share, share);
                    configured.add_second(panel);
                    found.reduce((2 * step + 1) * share, share);
                }
                configured.store(newer);
                let part = next.len() * tile / centres.tiles..next.len() * (tile + 1) / centres.tiles;
                for &row in &next[part] {
                    let row = &self.digits.as_slice()[row * 2 * self.stride..][..2 * self.stride];
                    for at in (0..row.len()).step_by(64) {
                        prefetch(&row[at]);
                    }
                    prefetch(&row[row.len() - 1]);
                }
                std::mem::swap(&mut newer, &mut older);
            }
            let mut found = TileSearch { glance: &mut self.glance, centres, tile: centres.tiles, products: older };
            found.reduce(0, centres.width);
            self.configured = Some(configured);
        }
        &self.glance
    }

    /// Fills the panel and resets the results.
    ///
    /// # Safety
    /// The processor has AVX-512 F.
    #[inline(always)]
    unsafe fn fill(&mut self, rows: &[usize]) {
        let (centres_lost, centres_low) = (self.lost, self.low);
        let mut pointers = [std::ptr::null::<f32>(); POINTS];
        for (lane, pointer) in pointers.iter_mut().enumerate() {
            let row = rows[lane.min(rows.len() - 1)];
            *pointer = self.digits.as_slice()[row * 2 * self.stride..][..2 * self.stride].as_ptr().cast();
            let DigitVector { squared, scale, lost, low } = self.rounded[row];
            self.glance.scale[lane] = scale;
            self.glance.inverse[lane] = 1.0 / scale;
            self.glance.norms[lane] = f64::from(squared);
            // 18 epsilon: 16 for the roundings in f32 after the product, and the rest for this sum.
            self.glance.errors[lane] = lost + (1.0 + lost) * centres_lost + low * centres_low + 18.0 * f32::EPSILON;
        }
        // SAFETY: each pointer begins `2 stride` digits, read 16 at a time up to their end; the panel has a place for
        // each chunk. The transposition moves 32-bit words regardless of their meaning, and needs no alignment.
        unsafe {
            let s = <f32 as FloatElement>::Avx512::assume_present();
            let out = self.panel.as_mut_slice().as_mut_ptr();
            for digit in 0..2 {
                for chunk in 0..self.stride / CHUNK {
                    let mut at = pointers;
                    for pointer in &mut at {
                        *pointer = pointer.byte_add(digit * self.stride + chunk * CHUNK);
                    }
                    let (step, chunk) = (chunk / self.split.chunks, chunk % self.split.chunks);
                    for w in 0..2 {
                        let to = out.add((step * 4 + digit * 2 + w) * TILE + chunk * 4 * 64);
                        s.transpose(&at[SIDE * w..SIDE * (w + 1)], to.cast(), SIDE);
                    }
                }
            }
        }
        self.glance.clear();
    }
}

/// The products of the tile before `tile` (the first one has none), and the search results.
struct TileSearch<'a> {
    glance: &'a mut CoarseSearch,
    centres: &'a TileCentres,
    tile: usize,
    products: &'a TileProducts,
}

impl TileSearch<'_> {
    /// Searches up to `count` centers of the tile, starting at `start`.
    ///
    /// # Safety
    /// The processor has AVX-512 F.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn reduce(&mut self, start: usize, count: usize) {
        let TileSearch { glance, centres, tile, products } = self;
        let end = (start + count).min(centres.width);
        if *tile == 0 || start >= end {
            return;
        }
        let first = (*tile - 1) * centres.width;
        // SAFETY: every list of the results has `POINTS` elements, and those of the centers contain whole tiles.
        unsafe {
            let s = <f32 as FloatElement>::Avx512::assume_present();
            for w in 0..2 {
                let at = SIDE * w;
                let inverse = _mm512_loadu_ps(glance.inverse.as_ptr().add(at));
                let mut best = _mm512_loadu_ps(glance.best.as_ptr().add(at));
                let mut second = _mm512_loadu_ps(glance.second.as_ptr().add(at));
                let mut index = _mm512_loadu_ps(glance.index.as_ptr().add(at));
                for t in start..end {
                    let high = _mm512_load_si512(products.sums[w].as_ptr().add(t).cast());
                    let low = _mm512_load_si512(products.sums[2 + w].as_ptr().add(t).cast());
                    let sum = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32::<8>(high), low));
                    // v over the point's scale.
                    let half = _mm512_set1_ps(*centres.half.as_ptr().add(first + t));
                    let scale = _mm512_set1_ps(*centres.scale.as_ptr().add(first + t));
                    let v = _mm512_fnmadd_ps(sum, scale, _mm512_mul_ps(half, inverse));
                    let number = _mm512_set1_ps(*centres.index.as_ptr().add(first + t));
                    s.keep_nearest(v, number, &mut best, &mut second, &mut index);
                }
                _mm512_storeu_ps(glance.best.as_mut_ptr().add(at), best);
                _mm512_storeu_ps(glance.second.as_mut_ptr().add(at), second);
                _mm512_storeu_ps(glance.index.as_mut_ptr().add(at), index);
            }
        }
    }
}

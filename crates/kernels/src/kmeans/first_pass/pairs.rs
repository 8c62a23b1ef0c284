//! A first pass over distances in 16-bit integers, twice as fast as in `f32` and four times as fast as in `f64`; needs
//! AVX-512 VNNI.
//!
//! `vpdpwssd` multiplies pairs of 16-bit numbers and adds both products to a 32-bit sum: two multiply-adds in each
//! 32-bit lane. Each point and each center has its own scale, its norm over [`RANGE`], and is rounded to multiples of
//! that. So a sum cannot overflow: by Cauchy-Schwarz it stays below `RANGE^2 < 2^30`.
//!
//! **Error.** The computation gives `v = |c'|^2 / 2 - x'.c'` for the rounded point `x'` and the rounded center `c'`;
//! the sums and the norms are exact. Hence `|x'|^2 + 2 v` is the squared distance of `x'` from `c'`, up to a few
//! roundings in `f32` at the end, and its root differs from the true distance by at most `|x - x'| + |c - c'|`. Both
//! are measured when the vectors are rounded. The error of a distance does not grow with the product of the norms. This
//! matters for rows that are far from the mean and close to each other, as with correlated features. Rows that these
//! bounds leave undecided are compared exactly with the few centers that can be nearest, see `FirstPass::candidates`.

use super::{CoarsePrecision, CoarseSearch, POINTS};
use crate::kmeans::exact::squared_distance;
use crate::kmeans::rows::PointRows;
use crate::memory::AlignedBuffer;
use crate::simd::{FloatElement, Simd, prefetch};
use std::arch::x86_64::*;

/// Norm of a point or center in multiples of its scale. Rounding adds at most `sqrt(d) / 2`, and the norm still fits 16
/// bits.
const RANGE: f32 = 32_700.0;

/// Maximum number of features for which that holds.
pub(super) const FEATURES_MAX: usize = 4096;

/// Centers in a tile; the last may have 4 or 8.
const TILE: usize = 12;

/// Maximum number of centers for which every `v` is kept to find candidates: 1 MiB for each thread.
const KEPT_MAX: usize = 8192;

/// Scale of a vector with this norm; arbitrary for a zero vector.
fn scale_of(norm: f64) -> f32 {
    let scale = (norm / f64::from(RANGE)) as f32;
    if scale > 0.0 { scale } else { 1.0 }
}

/// Centers as pairs: tile after tile, within a tile pair after pair, with its centers side by side.
#[derive(Debug)]
pub(crate) struct PairCentres {
    pairs: usize,
    /// First center and width of each tile.
    tiles: Vec<(usize, usize)>,
    values: Vec<i32>,
    scale: Vec<f32>,
    /// `|c|^2 / 2`, infinite for padding centers.
    half: Vec<f32>,
    index: Vec<f32>,
    pub(super) precision: CoarsePrecision,
}

impl PairCentres {
    /// From `k x d` centers.
    pub(crate) fn new(centres: &[f64], d: usize) -> Self {
        assert!(d <= FEATURES_MAX, "the sums could overflow");
        let k = centres.len() / d;
        let mut tiles = Vec::new();
        let mut padded = 0;
        while padded < k {
            let width = (k - padded).next_multiple_of(4).min(TILE);
            tiles.push((padded, width));
            padded += width;
        }
        let pairs = d.div_ceil(2);
        let mut made = PairCentres {
            pairs,
            tiles,
            values: vec![0; padded * pairs],
            scale: vec![1.0; padded],
            half: vec![f32::INFINITY; padded],
            index: (0..padded).map(|i| i as f32).collect(),
            precision: CoarsePrecision::default(),
        };
        for &(first, width) in &made.tiles {
            for t in 0..width.min(k - first) {
                let j = first + t;
                let centre = &centres[j * d..(j + 1) * d];
                let squared: f64 = centre.iter().map(|x| x * x).sum();
                let scale = scale_of(squared.sqrt());
                let round = |x: f64| (x / f64::from(scale)).round() as i16;
                for (pair, features) in centre.chunks(2).enumerate() {
                    let low = i32::from(round(features[0])) & 0xFFFF;
                    let high = features.get(1).map_or(0, |&x| i32::from(round(x)) << 16);
                    made.values[first * pairs + pair * width + t] = high | low;
                }
                let (mut norm, mut lost) = (0.0, 0.0);
                for &x in centre {
                    let rounded = f64::from(round(x)) * f64::from(scale);
                    norm += rounded * rounded;
                    lost += (x - rounded) * (x - rounded);
                }
                made.scale[j] = scale;
                made.half[j] = (norm / 2.0) as f32;
                made.precision.include(norm.sqrt(), lost.sqrt());
            }
        }
        made
    }
}

/// Numbers per row that a transposition moves at once: 16 bytes.
const BLOCK: usize = 8;

/// Rows as pairs, rounded once for all steps of a fit, and a panel of them.
pub(crate) struct PairPass {
    d: usize,
    /// Numbers per row, a multiple of [`BLOCK`]; padding is 0.
    stride: usize,
    values: AlignedBuffer<i16>,
    scale: Vec<f32>,
    /// Squared norms of the rounded rows, exact.
    norms: Vec<f64>,
    /// The distance of each rounded row from the row.
    lost: Vec<f32>,
    zeros: Vec<f64>,
    panel: AlignedBuffer<i32>,
    glance: CoarseSearch,
}

impl PairPass {
    /// For `n` rows, none of which are rounded yet.
    pub(super) fn new(n: usize, d: usize) -> Self {
        let stride = d.next_multiple_of(BLOCK);
        PairPass {
            d,
            stride,
            values: AlignedBuffer::zeroed(n * stride),
            scale: Vec::with_capacity(n),
            norms: Vec::with_capacity(n),
            lost: Vec::with_capacity(n),
            zeros: vec![0.0; d],
            panel: AlignedBuffer::zeroed(stride / 2 * POINTS),
            glance: CoarseSearch::new(),
        }
    }

    /// As `FirstPass::extend`.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW and VL.
    #[inline(always)]
    pub(super) unsafe fn extend<T: FloatElement>(&mut self, rows: &PointRows<'_, T>, first: usize, n: usize) {
        let (d, stride) = (self.d, self.stride);
        assert!(rows.d() == d, "the rows must be those the look was made for");
        for i in self.scale.len()..n {
            let raw = rows.raw(first + i);
            let norm = squared_distance(raw, rows.shift(), &self.zeros);
            let scale = scale_of(norm.sqrt());
            let out = &mut self.values.as_mut_slice()[i * stride..][..stride];
            // SAFETY: `raw` and `shift` have `d` elements and `out` has at least as many; the caller guarantees the
            // instruction set.
            let (squared, lost) = unsafe {
                let (raw, shift) = (raw.as_ptr(), rows.shift().as_ptr());
                if size_of::<T>() == 4 {
                    round_f32(raw.cast(), shift.cast(), d, scale, out.as_mut_ptr())
                } else {
                    round_f64(raw.cast(), shift.cast(), d, scale, out.as_mut_ptr())
                }
            };
            self.scale.push(scale);
            self.norms.push(f64::from(squared) * f64::from(scale) * f64::from(scale));
            // Slightly more, for the rounding of the sum and of the product.
            self.lost.push(lost.sqrt() * 1.001 * scale);
        }
    }

    /// As `FirstPass::search`.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW and VNNI.
    #[inline(always)]
    pub(super) unsafe fn search(&mut self, centres: &PairCentres, now: &[usize], next: &[usize]) -> &CoarseSearch {
        assert!(centres.pairs == self.d.div_ceil(2), "rows and centres differ in features");
        // SAFETY: by the caller's promise; a tile's centers lie within the lists by construction.
        unsafe {
            self.fill(now);
            let kept = if centres.half.len() <= KEPT_MAX { centres.half.len() * POINTS } else { 0 };
            self.glance.kept.resize(kept, 0.0);
            for (number, &(first, width)) in centres.tiles.iter().enumerate() {
                self.prefetch(next, number, centres.tiles.len());
                let (panel, glance) = (self.panel.as_slice(), &mut self.glance);
                match width {
                    4 => search_tile::<4>(panel, glance, centres, first),
                    8 => search_tile::<8>(panel, glance, centres, first),
                    _ => search_tile::<12>(panel, glance, centres, first),
                }
            }
        }
        &self.glance
    }

    /// Prefetches part `part` of `parts` of some rows.
    #[inline(always)]
    fn prefetch(&self, rows: &[usize], part: usize, parts: usize) {
        for &row in &rows[rows.len() * part / parts..rows.len() * (part + 1) / parts] {
            let row = &self.values.as_slice()[row * self.stride..][..self.stride];
            for at in (0..row.len()).step_by(32) {
                prefetch(&row[at]);
            }
            prefetch(&row[row.len() - 1]);
        }
    }

    /// Fills the panel and resets the results.
    ///
    /// # Safety
    /// The processor has AVX-512 F.
    #[inline(always)]
    unsafe fn fill(&mut self, rows: &[usize]) {
        let mut pointers = [std::ptr::null::<f32>(); POINTS];
        for (lane, pointer) in pointers.iter_mut().enumerate() {
            let row = rows[lane.min(rows.len() - 1)];
            *pointer = self.values.as_slice()[row * self.stride..][..self.stride].as_ptr().cast();
            self.glance.scale[lane] = self.scale[row];
            self.glance.inverse[lane] = 1.0 / self.scale[row];
            self.glance.norms[lane] = self.norms[row];
            self.glance.errors[lane] = self.lost[row];
        }
        // SAFETY: each pointer begins a row of `stride` numbers, read 8 at a time up to its end; the panel has room for
        // them. The transposition moves 32-bit words regardless of their meaning, and allows the alignment of 2 that a
        // row's address has.
        unsafe {
            let s = <f32 as FloatElement>::Avx512::assume_present();
            let out = self.panel.as_mut_slice().as_mut_ptr().cast::<f32>();
            for block in 0..self.stride / BLOCK {
                let mut at = pointers;
                for pointer in &mut at {
                    *pointer = pointer.byte_add(block * BLOCK * size_of::<i16>());
                }
                for w in 0..2 {
                    s.transpose(&at[16 * w..16 * (w + 1)], out.add(block * BLOCK / 2 * POINTS + 16 * w), POINTS);
                }
            }
        }
        self.glance.clear();
    }
}

/// Rounds `d` elements less `shift` to multiples of `scale`. Returns the exact sum of the squares of the numbers, and
/// the sum of the squares of the rounding errors, in multiples of the scale.
///
/// # Safety
/// `row` and `shift` hold `d` elements, and `out` has room for `d`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
unsafe fn round_f32(row: *const f32, shift: *const f32, d: usize, scale: f32, out: *mut i16) -> (i32, f32) {
    let (scales, inverse) = (_mm512_set1_ps(scale), _mm512_set1_ps(1.0 / scale));
    let (mut squared, mut lost) = (_mm512_setzero_si512(), _mm512_setzero_ps());
    for f in (0..d).step_by(16) {
        let mask = if d - f >= 16 { u16::MAX } else { (1 << (d - f)) - 1 };
        // SAFETY: the mask excludes everything beyond `d`.
        unsafe {
            let x = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, row.add(f)), _mm512_maskz_loadu_ps(mask, shift.add(f)));
            let number = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
            // In multiples of the scale, so that squares of tiny rows do not vanish.
            let rest = _mm512_mul_ps(_mm512_fnmadd_ps(_mm512_cvtepi32_ps(number), scales, x), inverse);
            lost = _mm512_fmadd_ps(rest, rest, lost);
            squared = _mm512_add_epi32(squared, _mm512_mullo_epi32(number, number));
            _mm256_mask_storeu_epi16(out.add(f), mask, _mm512_cvtepi32_epi16(number));
        }
    }
    (_mm512_reduce_add_epi32(squared), _mm512_reduce_add_ps(lost))
}

/// As [`round_f32`], from `f64`.
///
/// # Safety
/// As [`round_f32`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
unsafe fn round_f64(row: *const f64, shift: *const f64, d: usize, scale: f32, out: *mut i16) -> (i32, f32) {
    let (scales, inverse) = (_mm512_set1_pd(f64::from(scale)), _mm512_set1_pd(f64::from(1.0 / scale)));
    let (mut squared, mut lost) = (_mm512_setzero_si512(), _mm512_setzero_pd());
    for f in (0..d).step_by(8) {
        let mask = if d - f >= 8 { u8::MAX } else { (1 << (d - f)) - 1 };
        // SAFETY: the mask excludes everything beyond `d`.
        unsafe {
            let x = _mm512_sub_pd(_mm512_maskz_loadu_pd(mask, row.add(f)), _mm512_maskz_loadu_pd(mask, shift.add(f)));
            let number = _mm512_cvtpd_epi32(_mm512_mul_pd(x, inverse));
            let rest = _mm512_mul_pd(_mm512_fnmadd_pd(_mm512_cvtepi32_pd(number), scales, x), inverse);
            lost = _mm512_fmadd_pd(rest, rest, lost);
            squared = _mm512_add_epi32(squared, _mm512_zextsi256_si512(_mm256_mullo_epi32(number, number)));
            _mm_mask_storeu_epi16(out.add(f), mask, _mm256_cvtepi32_epi16(number));
        }
    }
    (_mm512_reduce_add_epi32(squared), _mm512_reduce_add_pd(lost) as f32)
}

/// The tile: 32 points against `W` centers from `first` on.
///
/// # Safety
/// The panel holds `POINTS` points of as many pairs as the centers have, and the centers `first..first + W` are a tile.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn search_tile<const W: usize>(panel: &[i32], glance: &mut CoarseSearch, centres: &PairCentres, first: usize) {
    // SAFETY: the caller's promise bounds every offset; each array of the results has `POINTS` elements.
    unsafe {
        let mut sums = [[_mm512_setzero_si512(); 2]; W];
        let mut points = panel.as_ptr();
        let mut values = centres.values.as_ptr().add(first * centres.pairs);
        for _ in 0..centres.pairs {
            let x = [_mm512_loadu_si512(points.cast()), _mm512_loadu_si512(points.add(16).cast())];
            for (t, sums) in sums.iter_mut().enumerate() {
                let c = _mm512_set1_epi32(*values.add(t));
                sums[0] = _mm512_dpwssd_epi32(sums[0], x[0], c);
                sums[1] = _mm512_dpwssd_epi32(sums[1], x[1], c);
            }
            points = points.add(POINTS);
            values = values.add(W);
        }
        let s = <f32 as FloatElement>::Avx512::assume_present();
        // As long as the centers' lists, or empty.
        let kept = (!glance.kept.is_empty()).then_some(glance.kept.as_mut_ptr());
        for w in 0..2 {
            let at = 16 * w;
            let inverse = _mm512_loadu_ps(glance.inverse.as_ptr().add(at));
            let mut best = _mm512_loadu_ps(glance.best.as_ptr().add(at));
            let mut second = _mm512_loadu_ps(glance.second.as_ptr().add(at));
            let mut index = _mm512_loadu_ps(glance.index.as_ptr().add(at));
            for (t, sums) in sums.iter().enumerate() {
                // v over the point's scale: |c|^2 / 2 / scale - (sum of products) * (the center's scale).
                let half = _mm512_set1_ps(*centres.half.as_ptr().add(first + t));
                let scale = _mm512_set1_ps(*centres.scale.as_ptr().add(first + t));
                let v = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(sums[w]), scale, _mm512_mul_ps(half, inverse));
                let number = _mm512_set1_ps(*centres.index.as_ptr().add(first + t));
                if let Some(kept) = kept {
                    _mm512_storeu_ps(kept.add((first + t) * POINTS + at), v);
                }
                s.keep_nearest(v, number, &mut best, &mut second, &mut index);
            }
            _mm512_storeu_ps(glance.best.as_mut_ptr().add(at), best);
            _mm512_storeu_ps(glance.second.as_mut_ptr().add(at), second);
            _mm512_storeu_ps(glance.index.as_mut_ptr().add(at), index);
        }
    }
}

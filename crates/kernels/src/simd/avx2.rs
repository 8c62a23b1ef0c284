//! AVX2 with FMA: 8 x f32, 4 x f64. Sixteen registers: 2 x 5 accumulators, two points, a center, and room to compare.

use super::Simd;
use std::arch::x86_64::*;

macro_rules! avx2 {
    ($name:ident, $t:ty, $v:ty, $lanes:expr,
     $set1:ident, $loadu:ident, $storeu:ident, $sub:ident, $mul:ident,
     $rsqrt:ident, $fmadd:ident, $fnmadd:ident, $min:ident, $max:ident,
     $cmpi:ident, $blendv:ident, $movemask:ident, $block:expr, $transpose:ident) => {
        /// Token of AVX2 and FMA.
        #[derive(Clone, Copy)]
        pub struct $name(());

        impl Simd for $name {
            type Elem = $t;
            type V = $v;
            type M = $v;
            const LANES: usize = $lanes;
            const TILE: usize = 5;
            const BLOCK: usize = $block;

            unsafe fn assume_present() -> Self {
                $name(())
            }
            #[inline(always)]
            fn splat(self, x: $t) -> $v {
                // SAFETY: the token proves AVX2 and FMA.
                unsafe { $set1(x) }
            }
            #[inline(always)]
            unsafe fn load(self, p: *const $t) -> $v {
                // SAFETY: the token, and the caller's promise.
                unsafe { $loadu(p) }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $t, v: $v) {
                // SAFETY: the token, and the caller's promise.
                unsafe { $storeu(p, v) }
            }
            #[inline(always)]
            fn sub(self, a: $v, b: $v) -> $v {
                // SAFETY: the token proves AVX2 and FMA.
                unsafe { $sub(a, b) }
            }
            #[inline(always)]
            fn mul(self, a: $v, b: $v) -> $v {
                // SAFETY: the token proves AVX2 and FMA.
                unsafe { $mul(a, b) }
            }
            #[inline(always)]
            fn rsqrt(self, v: $v) -> $v {
                // SAFETY: the token proves AVX2 and FMA.
                unsafe { $rsqrt(v) }
            }
            #[inline(always)]
            fn mul_add(self, a: $v, b: $v, c: $v) -> $v {
                // SAFETY: the token proves AVX2 and FMA.
                unsafe { $fmadd(a, b, c) }
            }
            #[inline(always)]
            fn neg_mul_add(self, a: $v, b: $v, c: $v) -> $v {
                // SAFETY: the token proves AVX2 and FMA.
                unsafe { $fnmadd(a, b, c) }
            }
            #[inline(always)]
            fn min(self, a: $v, b: $v) -> $v {
                // SAFETY: the token proves AVX2 and FMA.
                unsafe { $min(a, b) }
            }
            #[inline(always)]
            fn max(self, a: $v, b: $v) -> $v {
                // SAFETY: the token proves AVX2 and FMA.
                unsafe { $max(a, b) }
            }
            #[inline(always)]
            fn lt(self, a: $v, b: $v) -> $v {
                // SAFETY: the token proves AVX2 and FMA.
                unsafe { $cmpi::<_CMP_LT_OQ>(a, b) }
            }
            #[inline(always)]
            fn select(self, m: $v, a: $v, b: $v) -> $v {
                // SAFETY: the token proves AVX2 and FMA.
                unsafe { $blendv(b, a, m) }
            }
            #[inline(always)]
            fn bits(self, m: $v) -> u32 {
                // SAFETY: the token proves AVX2 and FMA.
                unsafe { $movemask(m) as u32 }
            }
            #[inline(always)]
            unsafe fn transpose(self, rows: &[*const $t], dst: *mut $t, stride: usize) {
                // SAFETY: the token, and the caller's promise.
                unsafe { $transpose(rows, dst, stride) }
            }
        }
    };
}
avx2!(
    Avx2F32,
    f32,
    __m256,
    8,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_sub_ps,
    _mm256_mul_ps,
    rsqrt_f32,
    _mm256_fmadd_ps,
    _mm256_fnmadd_ps,
    _mm256_min_ps,
    _mm256_max_ps,
    _mm256_cmp_ps,
    _mm256_blendv_ps,
    _mm256_movemask_ps,
    4,
    transpose_f32
);
avx2!(
    Avx2F64,
    f64,
    __m256d,
    4,
    _mm256_set1_pd,
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_sub_pd,
    _mm256_mul_pd,
    rsqrt_f64,
    _mm256_fmadd_pd,
    _mm256_fnmadd_pd,
    _mm256_min_pd,
    _mm256_max_pd,
    _mm256_cmp_pd,
    _mm256_blendv_pd,
    _mm256_movemask_pd,
    2,
    transpose_f64
);

/// Eight rows of four features. Row `j + 4` is loaded beside row `j`, so that only shuffles within 128 bits remain.
///
/// # Safety
/// AVX2 is present; as [`Simd::transpose`].
#[inline(always)]
unsafe fn transpose_f32(rows: &[*const f32], dst: *mut f32, stride: usize) {
    assert!(rows.len() >= 8, "a block is eight rows");
    // SAFETY: the caller's promise covers every pointer used; `rows` has eight.
    unsafe {
        let pair = |j: usize| {
            _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(_mm_loadu_ps(rows[j])), _mm_loadu_ps(rows[j + 4]))
        };
        let (r0, r1, r2, r3) = (pair(0), pair(1), pair(2), pair(3));
        let (a, b) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpackhi_ps(r0, r1));
        let (c, d) = (_mm256_unpacklo_ps(r2, r3), _mm256_unpackhi_ps(r2, r3));
        _mm256_storeu_ps(dst, _mm256_shuffle_ps::<0x44>(a, c));
        _mm256_storeu_ps(dst.add(stride), _mm256_shuffle_ps::<0xEE>(a, c));
        _mm256_storeu_ps(dst.add(2 * stride), _mm256_shuffle_ps::<0x44>(b, d));
        _mm256_storeu_ps(dst.add(3 * stride), _mm256_shuffle_ps::<0xEE>(b, d));
    }
}

/// Four rows of two features, as [`transpose_f32`].
///
/// # Safety
/// AVX2 is present; as [`Simd::transpose`].
#[inline(always)]
unsafe fn transpose_f64(rows: &[*const f64], dst: *mut f64, stride: usize) {
    assert!(rows.len() >= 4, "a block is four rows");
    // SAFETY: the caller's promise covers every pointer used; `rows` has four.
    unsafe {
        let pair = |j: usize| {
            _mm256_insertf128_pd::<1>(_mm256_castpd128_pd256(_mm_loadu_pd(rows[j])), _mm_loadu_pd(rows[j + 2]))
        };
        let (r0, r1) = (pair(0), pair(1));
        _mm256_storeu_pd(dst, _mm256_unpacklo_pd(r0, r1));
        _mm256_storeu_pd(dst.add(stride), _mm256_unpackhi_pd(r0, r1));
    }
}

/// An estimate of 12 bits and one step of Newton's method, which doubles them.
///
/// # Safety
/// AVX2 and FMA are present.
#[inline(always)]
unsafe fn rsqrt_f32(v: __m256) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let y = _mm256_rsqrt_ps(v);
        let rest = _mm256_fnmadd_ps(_mm256_mul_ps(v, y), y, _mm256_set1_ps(3.0));
        _mm256_mul_ps(_mm256_mul_ps(y, _mm256_set1_ps(0.5)), rest)
    }
}

/// Exact up to two roundings: an estimate with refinement steps would not pay here.
///
/// # Safety
/// AVX2 and FMA are present.
#[inline(always)]
unsafe fn rsqrt_f64(v: __m256d) -> __m256d {
    // SAFETY: the caller's promise.
    unsafe { _mm256_div_pd(_mm256_set1_pd(1.0), _mm256_sqrt_pd(v)) }
}

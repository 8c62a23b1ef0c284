//! AVX-512F: 16 x f32, 8 x f64. Thirty-two registers: 2 x 12 accumulators, two points, a center, and room to compare.

use super::Simd;
use std::arch::x86_64::*;

macro_rules! avx512 {
    ($name:ident, $t:ty, $v:ty, $m:ty, $lanes:expr, $set1:ident, $loadu:ident, $storeu:ident, $sub:ident,
     $mul:ident, $rsqrt:ident, $fmadd:ident,
     $fnmadd:ident, $min:ident, $max:ident, $cmp:ident, $blend:ident, $block:expr, $transpose:ident) => {
        /// Token of AVX-512F.
        #[derive(Clone, Copy)]
        pub struct $name(());

        impl Simd for $name {
            type Elem = $t;
            type V = $v;
            type M = $m;
            const LANES: usize = $lanes;
            const TILE: usize = 12;
            const BLOCK: usize = $block;

            unsafe fn assume_present() -> Self {
                $name(())
            }
            #[inline(always)]
            fn splat(self, x: $t) -> $v {
                // SAFETY: the token proves AVX-512F.
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
                // SAFETY: the token proves AVX-512F.
                unsafe { $sub(a, b) }
            }
            #[inline(always)]
            fn mul(self, a: $v, b: $v) -> $v {
                // SAFETY: the token proves AVX-512F.
                unsafe { $mul(a, b) }
            }
            #[inline(always)]
            fn rsqrt(self, v: $v) -> $v {
                // SAFETY: the token proves AVX-512F.
                unsafe { $rsqrt(v) }
            }
            #[inline(always)]
            fn mul_add(self, a: $v, b: $v, c: $v) -> $v {
                // SAFETY: the token proves AVX-512F.
                unsafe { $fmadd(a, b, c) }
            }
            #[inline(always)]
            fn neg_mul_add(self, a: $v, b: $v, c: $v) -> $v {
                // SAFETY: the token proves AVX-512F.
                unsafe { $fnmadd(a, b, c) }
            }
            #[inline(always)]
            fn min(self, a: $v, b: $v) -> $v {
                // SAFETY: the token proves AVX-512F.
                unsafe { $min(a, b) }
            }
            #[inline(always)]
            fn max(self, a: $v, b: $v) -> $v {
                // SAFETY: the token proves AVX-512F.
                unsafe { $max(a, b) }
            }
            #[inline(always)]
            fn lt(self, a: $v, b: $v) -> $m {
                // SAFETY: the token proves AVX-512F.
                unsafe { $cmp::<_CMP_LT_OQ>(a, b) }
            }
            #[inline(always)]
            fn select(self, m: $m, a: $v, b: $v) -> $v {
                // SAFETY: the token proves AVX-512F.
                unsafe { $blend(m, b, a) }
            }
            #[inline(always)]
            fn bits(self, m: $m) -> u32 {
                u32::from(m)
            }
            #[inline(always)]
            unsafe fn transpose(self, rows: &[*const $t], dst: *mut $t, stride: usize) {
                // SAFETY: the token, and the caller's promise.
                unsafe { $transpose(rows, dst, stride) }
            }
        }
    };
}
avx512!(
    Avx512F32,
    f32,
    __m512,
    __mmask16,
    16,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_sub_ps,
    _mm512_mul_ps,
    rsqrt_f32,
    _mm512_fmadd_ps,
    _mm512_fnmadd_ps,
    _mm512_min_ps,
    _mm512_max_ps,
    _mm512_cmp_ps_mask,
    _mm512_mask_blend_ps,
    4,
    transpose_f32
);
avx512!(
    Avx512F64,
    f64,
    __m512d,
    __mmask8,
    8,
    _mm512_set1_pd,
    _mm512_loadu_pd,
    _mm512_storeu_pd,
    _mm512_sub_pd,
    _mm512_mul_pd,
    rsqrt_f64,
    _mm512_fmadd_pd,
    _mm512_fnmadd_pd,
    _mm512_min_pd,
    _mm512_max_pd,
    _mm512_cmp_pd_mask,
    _mm512_mask_blend_pd,
    2,
    transpose_f64
);

/// Four rows, one in each 128 bits. Merging broadcasts use the load ports, which are idle here, not the shuffle port.
///
/// # Safety
/// AVX-512F is present; 16 bytes are readable at each row.
#[inline(always)]
unsafe fn quad(rows: [*const f32; 4]) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        let first = _mm512_castps128_ps512(_mm_loadu_ps(rows[0]));
        let second = _mm512_mask_broadcast_f32x4(first, 0x00F0, _mm_loadu_ps(rows[1]));
        let third = _mm512_mask_broadcast_f32x4(second, 0x0F00, _mm_loadu_ps(rows[2]));
        _mm512_mask_broadcast_f32x4(third, 0xF000, _mm_loadu_ps(rows[3]))
    }
}

/// Sixteen rows of four features: rows `j, j + 4, j + 8, j + 12` share a register, so that only shuffles within 128
/// bits remain.
///
/// # Safety
/// AVX-512F is present; as [`Simd::transpose`].
#[inline(always)]
unsafe fn transpose_f32(rows: &[*const f32], dst: *mut f32, stride: usize) {
    assert!(rows.len() >= 16, "a block is sixteen rows");
    // SAFETY: the caller's promise covers every pointer used; `rows` has sixteen.
    unsafe {
        let group = |j: usize| quad([rows[j], rows[j + 4], rows[j + 8], rows[j + 12]]);
        let (r0, r1, r2, r3) = (group(0), group(1), group(2), group(3));
        let (a, b) = (_mm512_unpacklo_ps(r0, r1), _mm512_unpackhi_ps(r0, r1));
        let (c, d) = (_mm512_unpacklo_ps(r2, r3), _mm512_unpackhi_ps(r2, r3));
        _mm512_storeu_ps(dst, _mm512_shuffle_ps::<0x44>(a, c));
        _mm512_storeu_ps(dst.add(stride), _mm512_shuffle_ps::<0xEE>(a, c));
        _mm512_storeu_ps(dst.add(2 * stride), _mm512_shuffle_ps::<0x44>(b, d));
        _mm512_storeu_ps(dst.add(3 * stride), _mm512_shuffle_ps::<0xEE>(b, d));
    }
}

/// Eight rows of two features, as [`transpose_f32`].
///
/// # Safety
/// AVX-512F is present; as [`Simd::transpose`].
#[inline(always)]
unsafe fn transpose_f64(rows: &[*const f64], dst: *mut f64, stride: usize) {
    assert!(rows.len() >= 8, "a block is eight rows");
    // SAFETY: the caller's promise covers every pointer used; `rows` has eight.
    unsafe {
        let group = |j: usize| {
            let at = |i: usize| rows[j + 2 * i].cast::<f32>();
            _mm512_castps_pd(quad([at(0), at(1), at(2), at(3)]))
        };
        let (r0, r1) = (group(0), group(1));
        _mm512_storeu_pd(dst, _mm512_unpacklo_pd(r0, r1));
        _mm512_storeu_pd(dst.add(stride), _mm512_unpackhi_pd(r0, r1));
    }
}

/// An estimate of 14 bits and one step of Newton's method, which doubles them.
///
/// # Safety
/// AVX-512F is present.
#[inline(always)]
unsafe fn rsqrt_f32(v: __m512) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        let y = _mm512_rsqrt14_ps(v);
        let rest = _mm512_fnmadd_ps(_mm512_mul_ps(v, y), y, _mm512_set1_ps(3.0));
        _mm512_mul_ps(_mm512_mul_ps(y, _mm512_set1_ps(0.5)), rest)
    }
}

/// Exact up to two roundings: an estimate with refinement steps would not pay here.
///
/// # Safety
/// AVX-512F is present.
#[inline(always)]
unsafe fn rsqrt_f64(v: __m512d) -> __m512d {
    // SAFETY: the caller's promise.
    unsafe { _mm512_div_pd(_mm512_set1_pd(1.0), _mm512_sqrt_pd(v)) }
}

//! NEON (64-bit ARM): 4 x f32, 2 x f64. Thirty-two registers: 2 x 12 accumulators, two points, a center, and room to
//! compare.

// NEON is always enabled here, so newer compilers allow most of these calls without `unsafe`; older ones do not.
#![allow(unused_unsafe)]

use super::Simd;
use std::arch::aarch64::*;

macro_rules! neon {
    ($name:ident, $t:ty, $v:ty, $m:ty, $lanes:expr, $dup:ident, $ld:ident, $st:ident, $sub:ident,
     $mul:ident, $rsqrt:ident, $fma:ident, $fms:ident,
     $min:ident, $max:ident, $lt:ident, $bsl:ident, $bits:ident, $transpose:ident) => {
        /// Token of NEON.
        #[derive(Clone, Copy)]
        pub struct $name(());

        impl Simd for $name {
            type Elem = $t;
            type V = $v;
            type M = $m;
            const LANES: usize = $lanes;
            const TILE: usize = 12;
            const BLOCK: usize = $lanes;

            unsafe fn assume_present() -> Self {
                $name(())
            }
            #[inline(always)]
            fn splat(self, x: $t) -> $v {
                // SAFETY: the token proves NEON.
                unsafe { $dup(x) }
            }
            #[inline(always)]
            unsafe fn load(self, p: *const $t) -> $v {
                // SAFETY: the token, and the caller's promise.
                unsafe { $ld(p) }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $t, v: $v) {
                // SAFETY: the token, and the caller's promise.
                unsafe { $st(p, v) }
            }
            #[inline(always)]
            fn sub(self, a: $v, b: $v) -> $v {
                // SAFETY: the token proves NEON.
                unsafe { $sub(a, b) }
            }
            #[inline(always)]
            fn mul(self, a: $v, b: $v) -> $v {
                // SAFETY: the token proves NEON.
                unsafe { $mul(a, b) }
            }
            #[inline(always)]
            fn rsqrt(self, v: $v) -> $v {
                // SAFETY: the token proves NEON.
                unsafe { $rsqrt(v) }
            }
            #[inline(always)]
            fn mul_add(self, a: $v, b: $v, c: $v) -> $v {
                // SAFETY: the token proves NEON.
                unsafe { $fma(c, a, b) }
            }
            #[inline(always)]
            fn neg_mul_add(self, a: $v, b: $v, c: $v) -> $v {
                // SAFETY: the token proves NEON.
                unsafe { $fms(c, a, b) }
            }
            #[inline(always)]
            fn min(self, a: $v, b: $v) -> $v {
                // SAFETY: the token proves NEON.
                unsafe { $min(a, b) }
            }
            #[inline(always)]
            fn max(self, a: $v, b: $v) -> $v {
                // SAFETY: the token proves NEON.
                unsafe { $max(a, b) }
            }
            #[inline(always)]
            fn lt(self, a: $v, b: $v) -> $m {
                // SAFETY: the token proves NEON.
                unsafe { $lt(a, b) }
            }
            #[inline(always)]
            fn select(self, m: $m, a: $v, b: $v) -> $v {
                // SAFETY: the token proves NEON.
                unsafe { $bsl(m, a, b) }
            }
            #[inline(always)]
            fn bits(self, m: $m) -> u32 {
                // SAFETY: the token proves NEON.
                unsafe { $bits(m) }
            }
            #[inline(always)]
            unsafe fn transpose(self, rows: &[*const $t], dst: *mut $t, stride: usize) {
                // SAFETY: the token, and the caller's promise.
                unsafe { $transpose(rows, dst, stride) }
            }
        }
    };
}
neon!(
    NeonF32,
    f32,
    float32x4_t,
    uint32x4_t,
    4,
    vdupq_n_f32,
    vld1q_f32,
    vst1q_f32,
    vsubq_f32,
    vmulq_f32,
    rsqrt_f32,
    vfmaq_f32,
    vfmsq_f32,
    vminq_f32,
    vmaxq_f32,
    vcltq_f32,
    vbslq_f32,
    bits_f32,
    transpose_f32
);
neon!(
    NeonF64,
    f64,
    float64x2_t,
    uint64x2_t,
    2,
    vdupq_n_f64,
    vld1q_f64,
    vst1q_f64,
    vsubq_f64,
    vmulq_f64,
    rsqrt_f64,
    vfmaq_f64,
    vfmsq_f64,
    vminq_f64,
    vmaxq_f64,
    vcltq_f64,
    vbslq_f64,
    bits_f64,
    transpose_f64
);

/// # Safety
/// NEON is present.
#[inline(always)]
unsafe fn bits_f32(m: uint32x4_t) -> u32 {
    // SAFETY: the caller's promise; the array has four readable elements.
    unsafe { vaddvq_u32(vandq_u32(m, vld1q_u32([1, 2, 4, 8].as_ptr()))) }
}

/// # Safety
/// NEON is present.
#[inline(always)]
unsafe fn bits_f64(m: uint64x2_t) -> u32 {
    // SAFETY: the caller's promise; the array has two readable elements.
    unsafe { vaddvq_u64(vandq_u64(m, vld1q_u64([1, 2].as_ptr()))) as u32 }
}

/// Four rows of four features.
///
/// # Safety
/// NEON is present; as [`Simd::transpose`].
#[inline(always)]
unsafe fn transpose_f32(rows: &[*const f32], dst: *mut f32, stride: usize) {
    assert!(rows.len() >= 4, "a block is four rows");
    // SAFETY: the caller's promise covers every pointer used; `rows` has four.
    unsafe {
        let low = vtrnq_f32(vld1q_f32(rows[0]), vld1q_f32(rows[1]));
        let high = vtrnq_f32(vld1q_f32(rows[2]), vld1q_f32(rows[3]));
        vst1q_f32(dst, vcombine_f32(vget_low_f32(low.0), vget_low_f32(high.0)));
        vst1q_f32(dst.add(stride), vcombine_f32(vget_low_f32(low.1), vget_low_f32(high.1)));
        vst1q_f32(dst.add(2 * stride), vcombine_f32(vget_high_f32(low.0), vget_high_f32(high.0)));
        vst1q_f32(dst.add(3 * stride), vcombine_f32(vget_high_f32(low.1), vget_high_f32(high.1)));
    }
}

/// Two rows of two features.
///
/// # Safety
/// NEON is present; as [`Simd::transpose`].
#[inline(always)]
unsafe fn transpose_f64(rows: &[*const f64], dst: *mut f64, stride: usize) {
    assert!(rows.len() >= 2, "a block is two rows");
    // SAFETY: the caller's promise covers every pointer used; `rows` has two.
    unsafe {
        let (first, second) = (vld1q_f64(rows[0]), vld1q_f64(rows[1]));
        vst1q_f64(dst, vzip1q_f64(first, second));
        vst1q_f64(dst.add(stride), vzip2q_f64(first, second));
    }
}

/// # Safety
/// NEON is present.
#[inline(always)]
unsafe fn rsqrt_f32(v: float32x4_t) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe { vdivq_f32(vdupq_n_f32(1.0), vsqrtq_f32(v)) }
}

/// # Safety
/// NEON is present.
#[inline(always)]
unsafe fn rsqrt_f64(v: float64x2_t) -> float64x2_t {
    // SAFETY: the caller's promise.
    unsafe { vdivq_f64(vdupq_n_f64(1.0), vsqrtq_f64(v)) }
}

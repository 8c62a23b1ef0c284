//! One element at a time: the fallback, and the reference for testing the other sets.

use super::Simd;

macro_rules! scalar {
    ($name:ident, $t:ty) => {
        /// Token of the scalar set.
        #[derive(Clone, Copy)]
        pub struct $name(());

        impl Simd for $name {
            type Elem = $t;
            type V = $t;
            type M = bool;
            const LANES: usize = 1;
            const TILE: usize = 5;
            const BLOCK: usize = 1;

            unsafe fn assume_present() -> Self {
                $name(())
            }
            #[inline(always)]
            fn splat(self, x: $t) -> $t {
                x
            }
            #[inline(always)]
            unsafe fn load(self, p: *const $t) -> $t {
                // SAFETY: the caller's promise.
                unsafe { *p }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $t, v: $t) {
                // SAFETY: the caller's promise.
                unsafe { *p = v }
            }
            #[inline(always)]
            fn sub(self, a: $t, b: $t) -> $t {
                a - b
            }
            #[inline(always)]
            fn mul(self, a: $t, b: $t) -> $t {
                a * b
            }
            #[inline(always)]
            fn rsqrt(self, v: $t) -> $t {
                1.0 / v.sqrt()
            }
            // Two roundings here: without hardware support, `mul_add` is a slow library call. All error bounds allow
            // for it.
            #[inline(always)]
            fn mul_add(self, a: $t, b: $t, c: $t) -> $t {
                a * b + c
            }
            #[inline(always)]
            fn neg_mul_add(self, a: $t, b: $t, c: $t) -> $t {
                c - a * b
            }
            #[inline(always)]
            fn min(self, a: $t, b: $t) -> $t {
                if a < b { a } else { b }
            }
            #[inline(always)]
            fn max(self, a: $t, b: $t) -> $t {
                if a > b { a } else { b }
            }
            #[inline(always)]
            fn lt(self, a: $t, b: $t) -> bool {
                a < b
            }
            #[inline(always)]
            fn select(self, m: bool, a: $t, b: $t) -> $t {
                if m { a } else { b }
            }
            #[inline(always)]
            fn bits(self, m: bool) -> u32 {
                u32::from(m)
            }
            #[inline(always)]
            unsafe fn transpose(self, rows: &[*const $t], dst: *mut $t, _stride: usize) {
                // SAFETY: the caller's promise, for one row and one feature.
                unsafe { *dst = *rows[0] }
            }
        }
    };
}
scalar!(ScalarF32, f32);
scalar!(ScalarF64, f64);

//! Half-precision reductions eight at a time: F16C widens to single precision, AVX computes, F16C rounds back.

use std::arch::x86_64::*;

use crate::ReduceOp;
use crate::reduce::{OperandForm, UnalignedElement, each};

/// Eight half-precision numbers, or fewer and padding.
#[derive(Clone, Copy)]
struct HalfLanes([u8; 16]);

impl UnalignedElement<16> for HalfLanes {
    #[inline(always)]
    fn load(bytes: &[u8; 16]) -> Self {
        HalfLanes(*bytes)
    }
    #[inline(always)]
    fn store(self) -> [u8; 16] {
        self.0
    }
}

/// A last element, or the few elements that do not fill a vector.
#[derive(Clone, Copy)]
struct HalfTail([u8; 2]);

impl UnalignedElement<2> for HalfTail {
    fn load(bytes: &[u8; 2]) -> Self {
        HalfTail(*bytes)
    }
    fn store(self) -> [u8; 2] {
        self.0
    }
}

/// Sum, prod, min or max of `float16`.
#[target_feature(enable = "avx,f16c")]
pub(crate) fn reduce(op: &ReduceOp, form: OperandForm<'_>) {
    match op {
        ReduceOp::Sum => run(form, |l, r| _mm256_add_ps(l, r)),
        ReduceOp::Prod => run(form, |l, r| _mm256_mul_ps(l, r)),
        // The left operand where it is smaller (larger) or NaN, as for the other floats.
        ReduceOp::Min => run(form, |l, r| keep_left(l, r, _mm256_cmp_ps::<_CMP_LT_OQ>(l, r))),
        ReduceOp::Max => run(form, |l, r| keep_left(l, r, _mm256_cmp_ps::<_CMP_GT_OQ>(l, r))),
        _ => unreachable!("Op::check let {op} on float16 pass"),
    }
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn keep_left(left: __m256, right: __m256, better: __m256) -> __m256 {
    let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(left, left);
    _mm256_blendv_ps(right, left, _mm256_or_ps(better, nan))
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn run(form: OperandForm<'_>, f: impl Fn(__m256, __m256) -> __m256) {
    let combine = |l: HalfLanes, r: HalfLanes| HalfLanes(narrow(f(widen(l.0), widen(r.0))));
    let whole = form.len() / 16 * 16;
    let (lanes, rest) = form.split_at(whole);
    each(lanes, combine);
    each(rest, |l: HalfTail, r: HalfTail| {
        let pad = |s: HalfTail| {
            let mut lanes = [0; 16];
            lanes[..2].copy_from_slice(&s.0);
            HalfLanes(lanes)
        };
        let result = combine(pad(l), pad(r)).0;
        HalfTail([result[0], result[1]])
    });
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn widen(bytes: [u8; 16]) -> __m256 {
    let (words, _) = bytes.as_chunks();
    _mm256_cvtph_ps(_mm_set_epi64x(i64::from_ne_bytes(words[1]), i64::from_ne_bytes(words[0])))
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn narrow(wide: __m256) -> [u8; 16] {
    let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&_mm_cvtsi128_si64(halves).to_ne_bytes());
    bytes[8..].copy_from_slice(&_mm_extract_epi64::<1>(halves).to_ne_bytes());
    bytes
}

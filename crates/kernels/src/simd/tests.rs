//! Tests each operation of each instruction set against plain arithmetic: a swapped operand or lane shows here first.

use super::*;

struct Operations<'a, T>(&'a [T]);

impl<T: FloatElement> Kernel<T> for Operations<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<Elem = T>>(self, s: S) {
        let lanes = S::LANES;
        let (a, b, c) = (&self.0[..lanes], &self.0[lanes..2 * lanes], &self.0[2 * lanes..3 * lanes]);
        // SAFETY: each slice has `lanes` elements.
        let (va, vb, vc) = unsafe { (s.load(a.as_ptr()), s.load(b.as_ptr()), s.load(c.as_ptr())) };
        let check = |v: S::V, expected: &dyn Fn(f64, f64, f64) -> f64, what: &str| {
            let mut out = vec![T::default(); lanes];
            // SAFETY: `out` has `lanes` elements.
            unsafe { s.store(out.as_mut_ptr(), v) };
            for i in 0..lanes {
                let want = expected(a[i].to_f64(), b[i].to_f64(), c[i].to_f64());
                assert_eq!(out[i].to_f64(), want, "{what}, lane {i} of {lanes}");
            }
        };
        check(s.sub(va, vb), &|a, b, _| a - b, "sub");
        check(s.mul(va, vb), &|a, b, _| a * b, "mul");
        check(s.mul_add(va, vb, vc), &|a, b, c| a * b + c, "mul_add");
        check(s.neg_mul_add(va, vb, vc), &|a, b, c| c - a * b, "neg_mul_add");
        check(s.min(va, vb), &|a, b, _| a.min(b), "min");
        check(s.max(va, vb), &|a, b, _| a.max(b), "max");
        check(s.splat(T::from_f64(3.0)), &|_, _, _| 3.0, "splat");
        let mut roots = vec![T::default(); lanes];
        let positive = s.mul_add(va, va, s.splat(T::from_f64(0.01)));
        // SAFETY: `roots` has `lanes` elements.
        unsafe { s.store(roots.as_mut_ptr(), s.rsqrt(positive)) };
        for i in 0..lanes {
            let want = (a[i].to_f64().powi(2) + 0.01).sqrt().recip();
            assert!((roots[i].to_f64() / want - 1.0).abs() < 8.0 * T::EPSILON, "rsqrt, lane {i} of {lanes}");
        }
        let m = s.lt(va, vb);
        check(s.select(m, va, vc), &|a, b, c| if a < b { a } else { c }, "select");
        let bits = (0..lanes).filter(|&i| a[i] < b[i]).fold(0, |bits, i| bits | 1 << i);
        assert_eq!(s.bits(m), bits, "bits");

        let rows: Vec<*const T> = (0..lanes).map(|r| self.0[r * S::BLOCK..][..S::BLOCK].as_ptr()).collect();
        let stride = lanes + 1;
        let mut out = vec![T::default(); S::BLOCK * stride];
        // SAFETY: each row has `BLOCK` elements, and `out` has room for `BLOCK` strides.
        unsafe { s.transpose(&rows, out.as_mut_ptr(), stride) };
        for r in 0..lanes {
            for f in 0..S::BLOCK {
                assert_eq!(out[f * stride + r], self.0[r * S::BLOCK + f], "transpose, row {r}, feature {f}");
            }
        }
    }
}

fn every_set<T: FloatElement>() {
    // Small integers, so that one rounding and two give the same result.
    let values: Vec<T> = (0..96).map(|i| T::from_f64(f64::from((i * 37 + 11) % 53) - 26.0)).collect();
    for isa in Isa::available() {
        dispatch(isa, Operations(&values));
    }
}

#[test]
fn every_set_computes_what_plain_arithmetic_does() {
    every_set::<f32>();
    every_set::<f64>();
}

#[test]
fn names_lead_back_to_sets() {
    for isa in Isa::available() {
        assert_eq!(Isa::named(isa.name()), Some(isa));
    }
    assert_eq!(Isa::named("mmx"), None);
}

//! x87 extended precision (C's `long double` on x86-64) in its 16-byte storage form. Rust has no such type, so the few
//! operations that reductions need are written as x87 instructions.
//!
//! Invariant: every block finds the x87 register stack empty and leaves it empty. The Rust inline-assembly rules
//! guarantee the former to a block that declares all of `st(0)` to `st(7)` clobbered.

use std::arch::asm;
use std::cmp::Ordering;
use std::ops::{Add, Mul, Sub};

/// An extended-precision number: 10 bytes of value and 6 of padding, which is zero in results.
#[derive(Clone, Copy)]
pub(crate) struct X87([u8; 16]);

impl X87 {
    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        X87(bytes)
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    pub(crate) fn is_nan(self) -> bool {
        self.partial_cmp(&self).is_none()
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $instruction:literal) => {
        impl $trait for X87 {
            type Output = X87;

            fn $method(self, right: X87) -> X87 {
                let mut result = [0u8; 16];
                // SAFETY: reads 10 bytes of each operand and writes 10 of `result`, all 16 bytes long; pushes two
                // registers onto the empty stack and pops two; every x87 register is declared clobbered.
                unsafe {
                    asm!(
                        "fld tbyte ptr [{left}]",
                        "fld tbyte ptr [{right}]",
                        $instruction,
                        "fstp tbyte ptr [{result}]",
                        left = in(reg) self.0.as_ptr(),
                        right = in(reg) right.0.as_ptr(),
                        result = in(reg) result.as_mut_ptr(),
                        out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                        out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                        options(nostack),
                    );
                }
                X87(result)
            }
        }
    };
}
operator!(Add, add, "faddp st(1), st");
operator!(Sub, sub, "fsubp st(1), st");
operator!(Mul, mul, "fmulp st(1), st");

impl PartialEq for X87 {
    fn eq(&self, right: &X87) -> bool {
        self.partial_cmp(right) == Some(Ordering::Equal)
    }
}

impl PartialOrd for X87 {
    fn partial_cmp(&self, right: &X87) -> Option<Ordering> {
        let (unordered, below, equal): (u8, u8, u8);
        // SAFETY: reads 10 bytes of each 16-byte operand; pushes two registers and pops two (`fucomip` one, `fstp` the
        // other); every x87 register is declared clobbered.
        unsafe {
            asm!(
                "fld tbyte ptr [{right}]",
                "fld tbyte ptr [{left}]",
                "fucomip st, st(1)",
                "fstp st(0)",
                "setp {unordered}",
                "setb {below}",
                "sete {equal}",
                left = in(reg) self.0.as_ptr(),
                right = in(reg) right.0.as_ptr(),
                unordered = out(reg_byte) unordered,
                below = out(reg_byte) below,
                equal = out(reg_byte) equal,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack, readonly),
            );
        }
        match (unordered, below, equal) {
            (1, _, _) => None,
            (_, _, 1) => Some(Ordering::Equal),
            (_, 1, _) => Some(Ordering::Less),
            _ => Some(Ordering::Greater),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 80-bit form of a small integer: explicit leading one, exponent biased by 16383.
    fn x87(value: i64) -> X87 {
        let mut bytes = [0u8; 16];
        if value != 0 {
            let magnitude = value.unsigned_abs();
            let shift = magnitude.leading_zeros();
            bytes[..8].copy_from_slice(&(magnitude << shift).to_ne_bytes());
            let exponent = (16383 + 63 - shift) as u16 | if value < 0 { 0x8000 } else { 0 };
            bytes[8..10].copy_from_slice(&exponent.to_ne_bytes());
        }
        X87(bytes)
    }

    /// A wrong operand order or a misread comparison flag would show here.
    #[test]
    fn arithmetic_and_order_match_integers() {
        let values = [-5i64, -1, 0, 1, 2, 7, (1 << 61) + 1];
        for a in values {
            for b in values {
                assert_eq!((x87(a) - x87(b)).0, x87(a - b).0, "{a} - {b}");
                assert_eq!(x87(a).partial_cmp(&x87(b)), a.partial_cmp(&b));
                assert_eq!((x87(a) + x87(b)).0, x87(a + b).0);
                if a.checked_mul(b).is_some_and(|p| p.unsigned_abs() < 1 << 63) {
                    assert_eq!((x87(a) * x87(b)).0[..8], x87(a * b).0[..8], "{a} * {b}");
                }
            }
        }
    }

    /// More digits than a double has must survive, and NaN does not compare with anything.
    #[test]
    fn keeps_64_bits_and_knows_nan() {
        let big = x87((1 << 62) + 1);
        assert_eq!((big + x87(1)).0, x87((1 << 62) + 2).0);
        let mut nan = x87(1);
        nan.0[8..10].copy_from_slice(&0x7fffu16.to_ne_bytes());
        nan.0[7] = 0xc0;
        assert!(nan.is_nan() && (nan + big).is_nan() && !big.is_nan());
    }
}

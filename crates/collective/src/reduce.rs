//! Elementwise kernels: `into = left op right` for every defined pair of operation and dtype, at memory speed.
//!
//! Three forms, so that no schedule needs a copy pass: the result replaces the right operand ([`reduce_left`]), the
//! left one ([`reduce_right`]), or neither ([`combine`]). Operands are never exchanged, not even for commutative
//! operations: two ranks that compute the same `a op b` in different forms must agree to the last bit (signed zeros,
//! NaN payloads).
//!
//! Buffers may have any alignment: elements are loaded from and stored to byte arrays, which compiles to unaligned
//! vector moves that cost nothing extra on aligned data. Loops are compiled for the base instruction set and for AVX2
//! and AVX-512; the best one is selected at run time.

#[cfg(target_arch = "x86_64")]
mod half_lanes;

use half::f16;
use tidemill_net::copy_slice;

#[cfg(target_arch = "x86_64")]
use crate::long_double::X87;
use crate::{DType, OpError, ReduceOp};

/// `into = op(left, into)`.
///
/// # Errors
/// [`OpError`] when the operation is not defined for `dtype` or a user function fails; `into` is then unspecified.
///
/// # Panics
/// When the lengths differ or are not whole elements: a bug of the caller.
pub fn reduce_left(op: &ReduceOp, dtype: DType, left: &[u8], into: &mut [u8]) -> Result<(), OpError> {
    check_lengths(dtype, &[left.len(), into.len()]);
    match op {
        ReduceOp::User(user) => user.call(left, into, dtype),
        ReduceOp::Replace => Ok(()),
        ReduceOp::NoOp => {
            copy_slice(into, left);
            Ok(())
        }
        _ => dispatch(op, dtype, OperandForm::Left { left, into }),
    }
}

/// `into = op(into, right)`.
///
/// # Errors
/// As [`reduce_left`].
///
/// # Panics
/// As [`reduce_left`].
pub fn reduce_right(op: &ReduceOp, dtype: DType, into: &mut [u8], right: &[u8]) -> Result<(), OpError> {
    check_lengths(dtype, &[right.len(), into.len()]);
    match op {
        ReduceOp::User(user) if op.is_commutative() => user.call(right, into, dtype),
        ReduceOp::User(user) => {
            // A user function overwrites its right operand, which here is a message that may still have other readers.
            let mut result = right.to_vec();
            user.call(into, &mut result, dtype)?;
            copy_slice(into, &result);
            Ok(())
        }
        ReduceOp::Replace => {
            copy_slice(into, right);
            Ok(())
        }
        ReduceOp::NoOp => Ok(()),
        _ => dispatch(op, dtype, OperandForm::Right { into, right }),
    }
}

/// `out = op(left, right)`.
///
/// # Errors
/// As [`reduce_left`].
///
/// # Panics
/// As [`reduce_left`].
pub fn combine(op: &ReduceOp, dtype: DType, left: &[u8], right: &[u8], out: &mut [u8]) -> Result<(), OpError> {
    check_lengths(dtype, &[left.len(), right.len(), out.len()]);
    match op {
        ReduceOp::User(user) => {
            copy_slice(out, right);
            user.call(left, out, dtype)
        }
        ReduceOp::Replace => {
            copy_slice(out, right);
            Ok(())
        }
        ReduceOp::NoOp => {
            copy_slice(out, left);
            Ok(())
        }
        _ => dispatch(op, dtype, OperandForm::Both { left, right, out }),
    }
}

fn check_lengths(dtype: DType, lengths: &[usize]) {
    let size = dtype.size_bytes().max(1);
    assert!(
        lengths.iter().all(|&len| len == lengths[0]),
        "operands of a reduction differ in length: {lengths:?} bytes"
    );
    assert!(lengths[0].is_multiple_of(size), "{} bytes are not a whole number of {dtype} elements", lengths[0]);
}

/// Where the operands lie and where the result goes.
pub(crate) enum OperandForm<'a> {
    Left { left: &'a [u8], into: &'a mut [u8] },
    Right { into: &'a mut [u8], right: &'a [u8] },
    Both { left: &'a [u8], right: &'a [u8], out: &'a mut [u8] },
}

#[cfg(target_arch = "x86_64")]
impl<'a> OperandForm<'a> {
    /// The first `bytes` bytes, and the rest.
    pub(crate) fn split_at(self, bytes: usize) -> (OperandForm<'a>, OperandForm<'a>) {
        match self {
            OperandForm::Left { left, into } => {
                let ((l0, l1), (i0, i1)) = (left.split_at(bytes), into.split_at_mut(bytes));
                (OperandForm::Left { left: l0, into: i0 }, OperandForm::Left { left: l1, into: i1 })
            }
            OperandForm::Right { into, right } => {
                let ((i0, i1), (r0, r1)) = (into.split_at_mut(bytes), right.split_at(bytes));
                (OperandForm::Right { into: i0, right: r0 }, OperandForm::Right { into: i1, right: r1 })
            }
            OperandForm::Both { left, right, out } => {
                let ((l0, l1), (r0, r1)) = (left.split_at(bytes), right.split_at(bytes));
                let (o0, o1) = out.split_at_mut(bytes);
                (OperandForm::Both { left: l0, right: r0, out: o0 }, OperandForm::Both { left: l1, right: r1, out: o1 })
            }
        }
    }

    /// Bytes of an operand.
    pub(crate) fn len(&self) -> usize {
        let (OperandForm::Left { left: operand, .. }
        | OperandForm::Right { right: operand, .. }
        | OperandForm::Both { left: operand, .. }) = self;
        operand.len()
    }
}

/// A value that can be loaded from and stored to `N` bytes at any address.
pub(crate) trait UnalignedElement<const N: usize>: Copy {
    fn load(bytes: &[u8; N]) -> Self;
    fn store(self) -> [u8; N];
}

macro_rules! numeric_elements {
    ($($t:ty),*) => {$(
        impl UnalignedElement<{ size_of::<$t>() }> for $t {
            #[inline(always)]
            fn load(bytes: &[u8; size_of::<$t>()]) -> Self { <$t>::from_ne_bytes(*bytes) }
            #[inline(always)]
            fn store(self) -> [u8; size_of::<$t>()] { self.to_ne_bytes() }
        }
    )*};
}
numeric_elements!(i8, i16, i32, i64, u8, u16, u32, u64, f16, f32, f64);

/// Complex numbers as their two parts.
macro_rules! complex_elements {
    ($($t:ty, $half:expr);*) => {$(
        impl UnalignedElement<{ 2 * $half }> for [$t; 2] {
            #[inline(always)]
            fn load(bytes: &[u8; 2 * $half]) -> Self {
                let (parts, _) = bytes.as_chunks::<$half>();
                [<$t>::from_ne_bytes(parts[0]), <$t>::from_ne_bytes(parts[1])]
            }
            #[inline(always)]
            fn store(self) -> [u8; 2 * $half] {
                let mut bytes = [0; 2 * $half];
                bytes[..$half].copy_from_slice(&self[0].to_ne_bytes());
                bytes[$half..].copy_from_slice(&self[1].to_ne_bytes());
                bytes
            }
        }
    )*};
}
complex_elements!(f32, 4; f64, 8);

/// The loops themselves; inlined into one function per instruction set.
#[inline(always)]
pub(crate) fn each<const N: usize, T: UnalignedElement<N>>(form: OperandForm<'_>, f: impl Fn(T, T) -> T) {
    match form {
        OperandForm::Left { left, into } => {
            for (l, r) in left.as_chunks().0.iter().zip(into.as_chunks_mut().0) {
                *r = f(T::load(l), T::load(r)).store();
            }
        }
        OperandForm::Right { into, right } => {
            for (l, r) in into.as_chunks_mut().0.iter_mut().zip(right.as_chunks().0) {
                *l = f(T::load(l), T::load(r)).store();
            }
        }
        OperandForm::Both { left, right, out } => {
            let operands = left.as_chunks().0.iter().zip(right.as_chunks().0);
            for ((l, r), o) in operands.zip(out.as_chunks_mut().0) {
                *o = f(T::load(l), T::load(r)).store();
            }
        }
    }
}

/// Runs [`each`] compiled for the best instruction set of this machine.
fn run<const N: usize, T: UnalignedElement<N>>(form: OperandForm<'_>, f: impl Fn(T, T) -> T + Copy) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn avx2<const N: usize, T: UnalignedElement<N>>(form: OperandForm<'_>, f: impl Fn(T, T) -> T) {
            each(form, f);
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn avx512<const N: usize, T: UnalignedElement<N>>(form: OperandForm<'_>, f: impl Fn(T, T) -> T) {
            each(form, f);
        }
        use std::arch::is_x86_feature_detected as has;
        if has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
            // SAFETY: every feature the function is compiled for was just detected.
            return unsafe { avx512(form, f) };
        }
        if has!("avx2") {
            // SAFETY: the feature the function is compiled for was just detected.
            return unsafe { avx2(form, f) };
        }
    }
    each(form, f);
}

fn dispatch(op: &ReduceOp, dtype: DType, form: OperandForm<'_>) -> Result<(), OpError> {
    op.check(dtype)?;
    match dtype {
        DType::Bool => boolean(op, form),
        DType::I8 => integer_i8(op, form),
        DType::I16 => integer_i16(op, form),
        DType::I32 => integer_i32(op, form),
        DType::I64 => integer_i64(op, form),
        DType::U8 => integer_u8(op, form),
        DType::U16 => integer_u16(op, form),
        DType::U32 => integer_u32(op, form),
        DType::U64 => integer_u64(op, form),
        DType::F32 => float_f32(op, form),
        DType::F64 => float_f64(op, form),
        DType::F16 => half_float(op, form),
        DType::C64 => complex_f32(op, form),
        DType::C128 => complex_f64(op, form),
        DType::FloatInt => pair::<8, f32>(op, form, 4, |b| f32::from_ne_bytes(head(b))),
        DType::DoubleInt => pair::<16, f64>(op, form, 8, |b| f64::from_ne_bytes(head(b))),
        DType::LongInt => pair::<16, i64>(op, form, 8, |b| i64::from_ne_bytes(head(b))),
        DType::TwoInt => pair::<8, i32>(op, form, 4, |b| i32::from_ne_bytes(head(b))),
        DType::ShortInt => pair::<8, i16>(op, form, 4, |b| i16::from_ne_bytes(head(b))),
        #[cfg(target_arch = "x86_64")]
        DType::LongDouble => long_double(op, form),
        #[cfg(target_arch = "x86_64")]
        DType::CLongDouble => complex_long_double(op, form),
        #[cfg(target_arch = "x86_64")]
        DType::LongDoubleInt => pair::<32, X87>(op, form, 16, |b| X87::from_bytes(head(b))),
        _ => unreachable!("Op::check let {op} on {dtype} pass"),
    }
    Ok(())
}

fn boolean(op: &ReduceOp, form: OperandForm<'_>) {
    match op {
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::Lor | ReduceOp::Bor => {
            run(form, |l: u8, r: u8| u8::from((l | r) != 0))
        }
        ReduceOp::Prod | ReduceOp::Min | ReduceOp::Land | ReduceOp::Band => {
            run(form, |l: u8, r: u8| u8::from(l != 0) & u8::from(r != 0))
        }
        ReduceOp::Lxor | ReduceOp::Bxor => run(form, |l: u8, r: u8| u8::from(l != 0) ^ u8::from(r != 0)),
        _ => unreachable!("Op::check let {op} on bool pass"),
    }
}

macro_rules! integers {
    ($($name:ident: $t:ty),*) => {$(
        fn $name(op: &ReduceOp, form: OperandForm<'_>) {
            match op {
                ReduceOp::Sum => run(form, |l: $t, r: $t| l.wrapping_add(r)),
                ReduceOp::Prod => run(form, |l: $t, r: $t| l.wrapping_mul(r)),
                ReduceOp::Min => run(form, |l: $t, r: $t| l.min(r)),
                ReduceOp::Max => run(form, |l: $t, r: $t| l.max(r)),
                ReduceOp::Land => run(form, |l: $t, r: $t| <$t>::from(l != 0) & <$t>::from(r != 0)),
                ReduceOp::Lor => run(form, |l: $t, r: $t| <$t>::from((l | r) != 0)),
                ReduceOp::Lxor => run(form, |l: $t, r: $t| <$t>::from(l != 0) ^ <$t>::from(r != 0)),
                ReduceOp::Band => run(form, |l: $t, r: $t| l & r),
                ReduceOp::Bor => run(form, |l: $t, r: $t| l | r),
                ReduceOp::Bxor => run(form, |l: $t, r: $t| l ^ r),
                _ => unreachable!("Op::check let {op} on integers pass"),
            }
        }
    )*};
}
integers!(integer_i8: i8, integer_i16: i16, integer_i32: i32, integer_i64: i64);
integers!(integer_u8: u8, integer_u16: u16, integer_u32: u32, integer_u64: u64);

/// The left operand if it is smaller or NaN, else the right one: NaN on either side wins, as in NumPy.
macro_rules! nan_min {
    ($l:expr, $r:expr) => {
        if $l < $r || $l.is_nan() { $l } else { $r }
    };
}
macro_rules! nan_max {
    ($l:expr, $r:expr) => {
        if $l > $r || $l.is_nan() { $l } else { $r }
    };
}

macro_rules! floats {
    ($($name:ident, $complex:ident: $t:ty);*) => {$(
        fn $name(op: &ReduceOp, form: OperandForm<'_>) {
            match op {
                ReduceOp::Sum => run(form, |l: $t, r: $t| l + r),
                ReduceOp::Prod => run(form, |l: $t, r: $t| l * r),
                ReduceOp::Min => run(form, |l: $t, r: $t| nan_min!(l, r)),
                ReduceOp::Max => run(form, |l: $t, r: $t| nan_max!(l, r)),
                _ => unreachable!("Op::check let {op} on floats pass"),
            }
        }

        fn $complex(op: &ReduceOp, form: OperandForm<'_>) {
            match op {
                // A sum of complex numbers is a sum of their parts, which vectorizes better.
                ReduceOp::Sum => $name(op, form),
                ReduceOp::Prod => run(form, |l: [$t; 2], r: [$t; 2]| {
                    [l[0] * r[0] - l[1] * r[1], l[0] * r[1] + l[1] * r[0]]
                }),
                _ => unreachable!("Op::check let {op} on complex numbers pass"),
            }
        }
    )*};
}
floats!(float_f32, complex_f32: f32; float_f64, complex_f64: f64);

/// Half precision is computed in single precision and rounded once per operation.
fn half_float(op: &ReduceOp, form: OperandForm<'_>) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx") && std::arch::is_x86_feature_detected!("f16c") {
        // SAFETY: the features the function is compiled for were just detected.
        return unsafe { half_lanes::reduce(op, form) };
    }
    fn wide(f: impl Fn(f32, f32) -> f32) -> impl Fn(f16, f16) -> f16 {
        move |l, r| f16::from_f32(f(l.to_f32(), r.to_f32()))
    }
    match op {
        ReduceOp::Sum => each(form, wide(|l, r| l + r)),
        ReduceOp::Prod => each(form, wide(|l, r| l * r)),
        ReduceOp::Min => each(form, wide(|l, r| nan_min!(l, r))),
        ReduceOp::Max => each(form, wide(|l, r| nan_max!(l, r))),
        _ => unreachable!("Op::check let {op} on float16 pass"),
    }
}

/// A value-and-index struct as its bytes, so that padding travels with the winner.
#[derive(Clone, Copy)]
struct RawPair<const N: usize>([u8; N]);

impl<const N: usize> UnalignedElement<N> for RawPair<N> {
    #[inline(always)]
    fn load(bytes: &[u8; N]) -> Self {
        RawPair(*bytes)
    }
    #[inline(always)]
    fn store(self) -> [u8; N] {
        self.0
    }
}

/// Minloc or maxloc of structs whose value starts at byte 0 and whose `int` index starts at byte `index_at`.
#[inline(always)]
fn pair<const N: usize, V: PartialOrd>(
    op: &ReduceOp,
    form: OperandForm<'_>,
    index_at: usize,
    value: impl Fn(&[u8; N]) -> V + Copy,
) {
    let index = move |raw: &RawPair<N>| {
        let (chunks, _) = raw.0[index_at..].as_chunks::<4>();
        i32::from_ne_bytes(chunks[0])
    };
    let nan = |v: &V| v.partial_cmp(v).is_none();
    // Ties, and two NaNs, go to the lower index.
    let keep_left =
        move |l: &RawPair<N>, r: &RawPair<N>, better: bool, tie: bool, l_nan: bool, r_nan: bool| match (l_nan, r_nan) {
            (true, true) => index(l) <= index(r),
            (true, false) => true,
            (false, true) => false,
            (false, false) => better || (tie && index(l) <= index(r)),
        };
    let pick = move |l: RawPair<N>, r: RawPair<N>, better: fn(&V, &V) -> bool| {
        let (lv, rv) = (value(&l.0), value(&r.0));
        if keep_left(&l, &r, better(&lv, &rv), lv == rv, nan(&lv), nan(&rv)) { l } else { r }
    };
    match op {
        ReduceOp::Minloc => run(form, |l, r| pick(l, r, |a, b| a < b)),
        ReduceOp::Maxloc => run(form, |l, r| pick(l, r, |a, b| a > b)),
        _ => unreachable!("Op::check let {op} on pairs pass"),
    }
}

/// The first `M` bytes of a struct of `N`.
#[inline(always)]
fn head<const N: usize, const M: usize>(bytes: &[u8; N]) -> [u8; M] {
    bytes.as_chunks::<M>().0[0]
}

#[cfg(target_arch = "x86_64")]
impl UnalignedElement<16> for X87 {
    fn load(bytes: &[u8; 16]) -> Self {
        X87::from_bytes(*bytes)
    }
    fn store(self) -> [u8; 16] {
        self.to_bytes()
    }
}

#[cfg(target_arch = "x86_64")]
impl UnalignedElement<32> for [X87; 2] {
    fn load(bytes: &[u8; 32]) -> Self {
        let (parts, _) = bytes.as_chunks();
        [X87::from_bytes(parts[0]), X87::from_bytes(parts[1])]
    }
    fn store(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self[0].to_bytes());
        bytes[16..].copy_from_slice(&self[1].to_bytes());
        bytes
    }
}

/// Vector units do not do x87 arithmetic, so these loops skip the choice of an instruction set.
#[cfg(target_arch = "x86_64")]
fn long_double(op: &ReduceOp, form: OperandForm<'_>) {
    match op {
        ReduceOp::Sum => each(form, |l: X87, r: X87| l + r),
        ReduceOp::Prod => each(form, |l: X87, r: X87| l * r),
        ReduceOp::Min => each(form, |l: X87, r: X87| nan_min!(l, r)),
        ReduceOp::Max => each(form, |l: X87, r: X87| nan_max!(l, r)),
        _ => unreachable!("Op::check let {op} on longdouble pass"),
    }
}

#[cfg(target_arch = "x86_64")]
fn complex_long_double(op: &ReduceOp, form: OperandForm<'_>) {
    match op {
        ReduceOp::Sum => long_double(op, form),
        ReduceOp::Prod => {
            each(form, |l: [X87; 2], r: [X87; 2]| [l[0] * r[0] - l[1] * r[1], l[0] * r[1] + l[1] * r[0]]);
        }
        _ => unreachable!("Op::check let {op} on clongdouble pass"),
    }
}

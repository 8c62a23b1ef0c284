//! Reduction kernels: every operation on every dtype, in all three forms, at odd lengths and addresses, compared with a
//! plain element-by-element version; undefined ones report that; NaN, wrapping and ties as documented.

use half::f16;
use tidemill_collective::reduce::{combine, reduce_left, reduce_right};
use tidemill_collective::{DType, OpError, PREDEFINED, ReduceOp, UserOp};

/// Runs all three forms on unaligned copies, checks that they agree, and returns the result.
fn reduced(op: &ReduceOp, dtype: DType, left: &[u8], right: &[u8]) -> Vec<u8> {
    let mut results = Vec::new();
    for shift in [0, 1, 3] {
        let moved = |bytes: &[u8]| [&vec![0xa5; shift][..], bytes, &[0x5a]].concat();
        let n = left.len();
        let (l, r) = (moved(left), moved(right));
        let mut into = r.clone();
        reduce_left(op, dtype, &l[shift..shift + n], &mut into[shift..shift + n]).unwrap();
        results.push(into);
        let mut into = l.clone();
        reduce_right(op, dtype, &mut into[shift..shift + n], &r[shift..shift + n]).unwrap();
        results.push(into);
        let mut out = moved(&vec![0; n]);
        combine(op, dtype, &l[shift..shift + n], &r[shift..shift + n], &mut out[shift..shift + n]).unwrap();
        results.push(out);
        for result in results.iter_mut().rev().take(3) {
            assert_eq!(result.pop(), Some(0x5a), "{op} on {dtype} writes past the end");
            assert!(result.drain(..shift).all(|b| b == 0xa5), "{op} on {dtype} writes before the start");
        }
    }
    assert!(results.iter().all(|r| *r == results[0]), "the forms of {op} on {dtype} differ");
    results.swap_remove(0)
}

macro_rules! check_numbers {
    ($t:ty, $dtype:expr, $left:expr, $right:expr, $($op:expr => $f:expr),*) => {{
        for len in [0usize, 1, 2, 7, 64, 129] {
            let (left, right): (Vec<$t>, Vec<$t>) = ((0..len).map($left).collect(), (0..len).map($right).collect());
            let bytes = |v: &[$t]| v.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
            $({
                let f: fn($t, $t) -> $t = $f;
                let expected: Vec<$t> = left.iter().zip(&right).map(|(&l, &r)| f(l, r)).collect();
                let found = reduced(&$op, $dtype, &bytes(&left), &bytes(&right));
                assert_eq!(found, bytes(&expected), "{} on {} x {len}", $op, $dtype);
            })*
        }
    }};
}

/// Catches a wrong lane, tail or signedness in any kernel.
#[test]
fn integers_match_the_scalar_operations() {
    macro_rules! all {
        ($($t:ident: $dtype:expr),*) => {$(
            check_numbers!($t, $dtype,
                |i| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(11) as $t,
                |i| if i % 5 == 0 { 0 } else { (i as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(7) as $t },
                ReduceOp::Sum => |l, r| l.wrapping_add(r), ReduceOp::Prod => |l, r| l.wrapping_mul(r),
                ReduceOp::Min => |l, r| l.min(r), ReduceOp::Max => |l, r| l.max(r),
                ReduceOp::Land => |l, r| <$t>::from(l != 0 && r != 0), ReduceOp::Lor => |l, r| <$t>::from(l != 0 || r != 0),
                ReduceOp::Lxor => |l, r| <$t>::from((l != 0) != (r != 0)),
                ReduceOp::Band => |l, r| l & r, ReduceOp::Bor => |l, r| l | r, ReduceOp::Bxor => |l, r| l ^ r,
                ReduceOp::Replace => |_, r| r, ReduceOp::NoOp => |l, _| l);
        )*};
    }
    all!(i8: DType::I8, i16: DType::I16, i32: DType::I32, i64: DType::I64);
    all!(u8: DType::U8, u16: DType::U16, u32: DType::U32, u64: DType::U64);
}

/// Catches a NaN that is lost on one side, or a signed zero that depends on the form of the call.
#[test]
fn floats_match_the_scalar_operations_and_nan_wins() {
    macro_rules! all {
        ($($t:ident: $dtype:expr),*) => {$(
            let special = [0.0, -0.0, 1.5, -2.25, $t::NAN, $t::INFINITY, $t::NEG_INFINITY, 1e-30, $t::MAX];
            let n = special.len();
            let (left, right): (Vec<$t>, Vec<$t>) = (0..n * n).map(|i| (special[i / n], special[i % n])).unzip();
            let bytes = |v: &[$t]| v.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
            for (op, f) in [
                (ReduceOp::Sum, (|l, r| l + r) as fn($t, $t) -> $t),
                (ReduceOp::Prod, |l, r| l * r),
                (ReduceOp::Min, |l, r| if l.is_nan() || r.is_nan() { $t::NAN } else { l.min(r) }),
                (ReduceOp::Max, |l, r| if l.is_nan() || r.is_nan() { $t::NAN } else { l.max(r) }),
            ] {
                let found = reduced(&op, $dtype, &bytes(&left), &bytes(&right));
                for (i, found) in found.chunks(size_of::<$t>()).enumerate() {
                    let (found, expected) = ($t::from_ne_bytes(found.try_into().unwrap()), f(left[i], right[i]));
                    let same = found == expected || found.is_nan() && expected.is_nan();
                    assert!(same, "{op} of {} and {} is {found}, not {expected}", left[i], right[i]);
                }
            }
        )*};
    }
    all!(f32: DType::F32, f64: DType::F64);
}

/// Catches rounding in another precision, or a block boundary that loses elements.
#[test]
fn half_precision_rounds_once() {
    let f = |i: usize, k: usize| f16::from_f32((i * k % 97) as f32 * 0.37 - 11.0);
    check_numbers!(f16, DType::F16, |i| f(i, 31), |i| f(i, 53),
        ReduceOp::Sum => |l, r| f16::from_f32(l.to_f32() + r.to_f32()),
        ReduceOp::Prod => |l, r| f16::from_f32(l.to_f32() * r.to_f32()),
        ReduceOp::Min => |l, r| if l < r { l } else { r }, ReduceOp::Max => |l, r| if l > r { l } else { r });
    let long: Vec<u8> = (0..3000).flat_map(|i| f(i, 7).to_ne_bytes()).collect();
    let sum = reduced(&ReduceOp::Sum, DType::F16, &long, &long);
    let twice: Vec<u8> = (0..3000).flat_map(|i| (f(i, 7) + f(i, 7)).to_ne_bytes()).collect();
    assert_eq!(sum, twice);
    let nan = reduced(&ReduceOp::Min, DType::F16, &f16::NAN.to_ne_bytes(), &f16::ONE.to_ne_bytes());
    assert!(f16::from_ne_bytes([nan[0], nan[1]]).is_nan());
}

/// Bool follows NumPy: "+" is or, "*" is and; any non-zero byte is true, results are 0 or 1.
#[test]
fn bool_adds_as_or() {
    let (left, right) = ([0u8, 0, 1, 1, 2, 0, 4], [0u8, 1, 0, 1, 1, 8, 3]);
    let expect =
        |op: ReduceOp, expected: [u8; 7]| assert_eq!(reduced(&op, DType::Bool, &left, &right), expected, "{op}");
    for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Lor, ReduceOp::Bor] {
        expect(op, [0, 1, 1, 1, 1, 1, 1]);
    }
    for op in [ReduceOp::Prod, ReduceOp::Min, ReduceOp::Land, ReduceOp::Band] {
        expect(op, [0, 0, 0, 1, 1, 0, 1]);
    }
    for op in [ReduceOp::Lxor, ReduceOp::Bxor] {
        expect(op, [0, 1, 1, 0, 0, 1, 0]);
    }
}

/// Catches a product that mixes up its parts.
#[test]
fn complex_numbers_multiply_as_such() {
    let bytes = |v: [f64; 4]| v.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
    let (left, right) = (bytes([1.0, 2.0, -3.0, 0.5]), bytes([5.0, -7.0, 2.0, 4.0]));
    assert_eq!(reduced(&ReduceOp::Sum, DType::C128, &left, &right), bytes([6.0, -5.0, -1.0, 4.5]));
    assert_eq!(reduced(&ReduceOp::Prod, DType::C128, &left, &right), bytes([19.0, 3.0, -8.0, -11.0]));
    let bytes = |v: [f32; 2]| v.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
    let product = reduced(&ReduceOp::Prod, DType::C64, &bytes([1.0, 2.0]), &bytes([5.0, -7.0]));
    assert_eq!(product, bytes([19.0, 3.0]));
}

/// The C layout of a pair, with non-zero padding.
fn pair(dtype: DType, value: f64, index: i32) -> Vec<u8> {
    let mut bytes = vec![0xee; dtype.size_bytes()];
    let mut put = |at: usize, data: &[u8]| bytes[at..at + data.len()].copy_from_slice(data);
    match dtype {
        DType::FloatInt => put(0, &(value as f32).to_ne_bytes()),
        DType::DoubleInt => put(0, &value.to_ne_bytes()),
        DType::LongInt => put(0, &(value as i64).to_ne_bytes()),
        DType::TwoInt => put(0, &(value as i32).to_ne_bytes()),
        DType::ShortInt => put(0, &(value as i16).to_ne_bytes()),
        _ => unreachable!(),
    }
    let at = match dtype {
        DType::DoubleInt | DType::LongInt => 8,
        _ => 4,
    };
    put(at, &index.to_ne_bytes());
    bytes
}

/// With the wrong winner of a tie, argmin would differ between ranks.
#[test]
fn minloc_and_maxloc_pick_value_then_lower_index() {
    for dtype in [DType::FloatInt, DType::DoubleInt, DType::LongInt, DType::TwoInt, DType::ShortInt] {
        let cases = [((3.0, 5), (2.0, 9), 1, 0), ((2.0, 5), (2.0, 4), 1, 1), ((-1.0, -2), (-1.0, 7), 0, 0)];
        for (left, right, min, max) in cases {
            let operands = [pair(dtype, left.0, left.1), pair(dtype, right.0, right.1)];
            let of = |op| reduced(&op, dtype, &operands[0], &operands[1]);
            assert_eq!(of(ReduceOp::Minloc), operands[min], "{dtype} {left:?} {right:?}");
            assert_eq!(of(ReduceOp::Maxloc), operands[max], "{dtype} {left:?} {right:?}");
        }
    }
    let nan = |index| pair(DType::DoubleInt, f64::NAN, index);
    let one = pair(DType::DoubleInt, 1.0, 0);
    for op in [ReduceOp::Minloc, ReduceOp::Maxloc] {
        assert_eq!(reduced(&op, DType::DoubleInt, &nan(7), &one), nan(7));
        assert_eq!(reduced(&op, DType::DoubleInt, &one, &nan(7)), nan(7));
        assert_eq!(reduced(&op, DType::DoubleInt, &nan(7), &nan(3)), nan(3));
    }
}

/// `long double` as C compilers on x86-64 store it: 1.0 + 2.0 and the order of their maximum.
#[cfg(target_arch = "x86_64")]
#[test]
fn long_double_is_reduced_on_x86() {
    let x87 = |mantissa: u64, exponent: u16| {
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(&mantissa.to_ne_bytes());
        bytes[8..10].copy_from_slice(&exponent.to_ne_bytes());
        bytes
    };
    let (one, two, three) = (x87(1 << 63, 0x3fff), x87(1 << 63, 0x4000), x87(3 << 62, 0x4000));
    assert_eq!(reduced(&ReduceOp::Sum, DType::LongDouble, &one, &two), three);
    assert_eq!(reduced(&ReduceOp::Prod, DType::LongDouble, &three, &one), three);
    assert_eq!(reduced(&ReduceOp::Min, DType::LongDouble, &three, &two), two);
    assert_eq!(reduced(&ReduceOp::Max, DType::LongDouble, &three, &two), three);
    // (0 + 1i) (0 + 1i) = -1.
    let i = [x87(0, 0), one].concat();
    assert_eq!(reduced(&ReduceOp::Prod, DType::CLongDouble, &i, &i), [x87(1 << 63, 0xbfff), x87(0, 0)].concat());
    let loc = |value: [u8; 16], index: i32| [&value[..], &index.to_ne_bytes(), &[0xee; 12]].concat();
    assert_eq!(reduced(&ReduceOp::Maxloc, DType::LongDoubleInt, &loc(two, 1), &loc(three, 2)), loc(three, 2));
}

/// Catches an undefined pair that computes something, or an error that names neither side.
#[test]
fn undefined_pairs_are_refused_by_name() {
    let defined = |op: &ReduceOp, dtype: DType| op.check(dtype).is_ok();
    assert!(
        !defined(&ReduceOp::Band, DType::F64)
            && !defined(&ReduceOp::Max, DType::C64)
            && !defined(&ReduceOp::Sum, DType::FloatInt)
    );
    assert!(
        !defined(&ReduceOp::Minloc, DType::F64)
            && !defined(&ReduceOp::Sum, DType::Bytes(8))
            && defined(&ReduceOp::Sum, DType::F16)
    );
    for (op, _) in &PREDEFINED {
        for dtype in DType::all().chain([DType::Bytes(3)]) {
            let bytes = vec![0; 2 * dtype.size_bytes()];
            let found = reduce_left(op, dtype, &bytes, &mut bytes.clone());
            assert_eq!(found.is_ok(), defined(op, dtype), "{op} on {dtype}");
            if let Err(error) = found {
                let text = error.to_string();
                assert!(text.contains(op.name()) && text.contains(&dtype.to_string()), "{text}");
            }
        }
    }
}

/// Catches operands of a user function in the wrong order, or a lost error of the function.
#[test]
fn user_functions_see_left_and_right() {
    // Not commutative: keeps 10 left + right.
    let digits = |commutative| {
        UserOp::new("digits", commutative, |left, right, dtype| {
            assert_eq!(dtype, DType::U8);
            left.iter().zip(right).for_each(|(l, r)| *r += 10 * l);
            Ok(())
        })
    };
    assert_eq!(reduced(&ReduceOp::User(digits(false)), DType::U8, &[1, 2], &[3, 4]), [13, 24]);
    assert!(!ReduceOp::User(digits(false)).is_commutative() && ReduceOp::User(digits(true)).is_commutative());
    let fails = ReduceOp::User(UserOp::new("picky", true, |_, _, _| Err("no such luck".into())));
    match combine(&fails, DType::Bytes(2), &[0; 4], &[0; 4], &mut [0; 4]) {
        Err(error @ OpError::User { .. }) => {
            assert_eq!(error.to_string(), "user operation picky failed: no such luck");
        }
        other => panic!("{other:?}"),
    }
}

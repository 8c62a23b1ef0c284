//! Element types: every fixed-size NumPy numeric dtype, the value-and-index pairs of minloc and maxloc, and opaque
//! items.
//!
//! Names are NumPy's (`int32`, `float64`, `V12`); pairs carry MPI's names in lower case (`double_int`) and the layout
//! of the C struct `{ value; int index; }`, padding included.

use std::fmt;
use std::str::FromStr;

/// The type of one element of a buffer. Native byte order; any alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DType {
    /// One byte, zero or not.
    Bool,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// C `long double` in 16 bytes: x87 extended on x86-64 (where it can be reduced); only moved elsewhere.
    LongDouble,
    /// Two `f32`.
    C64,
    /// Two `f64`.
    C128,
    /// Two `long double`.
    CLongDouble,
    /// `struct { float; int; }`, 8 bytes.
    FloatInt,
    /// `struct { double; int; }`, 16 bytes.
    DoubleInt,
    /// `struct { long; int; }`, 16 bytes.
    LongInt,
    /// `struct { int; int; }`, 8 bytes.
    TwoInt,
    /// `struct { short; int; }`, 8 bytes.
    ShortInt,
    /// `struct { long double; int; }`, 32 bytes.
    LongDoubleInt,
    /// An opaque item of this many bytes (a structured dtype): moved, never reduced by a predefined operation.
    Bytes(usize),
}

use DType::*;

/// Every dtype but `Bytes`, with its name and size.
const NAMED: [(DType, &str, usize); 22] = [
    (Bool, "bool", 1),
    (I8, "int8", 1),
    (I16, "int16", 2),
    (I32, "int32", 4),
    (I64, "int64", 8),
    (U8, "uint8", 1),
    (U16, "uint16", 2),
    (U32, "uint32", 4),
    (U64, "uint64", 8),
    (F16, "float16", 2),
    (F32, "float32", 4),
    (F64, "float64", 8),
    (LongDouble, "longdouble", 16),
    (C64, "complex64", 8),
    (C128, "complex128", 16),
    (CLongDouble, "clongdouble", 32),
    (FloatInt, "float_int", 8),
    (DoubleInt, "double_int", 16),
    (LongInt, "long_int", 16),
    (TwoInt, "2int", 8),
    (ShortInt, "short_int", 8),
    (LongDoubleInt, "long_double_int", 32),
];

impl DType {
    /// Every dtype except opaque items, for tables and tests.
    pub fn all() -> impl Iterator<Item = DType> {
        NAMED.into_iter().map(|(dtype, _, _)| dtype)
    }

    /// A number that identifies the dtype in fingerprints; all opaque items share one.
    #[inline]
    pub(crate) fn code(self) -> u64 {
        // SAFETY: a `repr(u8)` enum begins with its discriminant.
        u64::from(unsafe { *std::ptr::from_ref(&self).cast::<u8>() })
    }

    /// The dtype for a [`DType::code`], except for opaque items.
    pub(crate) fn from_code(code: u64) -> Option<DType> {
        DType::all().find(|dtype| dtype.code() == code)
    }

    /// Bytes of one element, padding included.
    #[inline]
    pub fn size_bytes(self) -> usize {
        match self {
            Bool | I8 | U8 => 1,
            I16 | U16 | F16 => 2,
            I32 | U32 | F32 => 4,
            I64 | U64 | F64 | C64 | FloatInt | TwoInt | ShortInt => 8,
            LongDouble | C128 | DoubleInt | LongInt => 16,
            CLongDouble | LongDoubleInt => 32,
            Bytes(n) => n,
        }
    }

    /// The name shown to users; opaque items are all called `V` (their [`Display`](fmt::Display) adds the size).
    pub fn name(self) -> &'static str {
        NAMED.iter().find(|entry| entry.0 == self).map_or("V", |entry| entry.1)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bytes(n) => write!(f, "V{n}"),
            _ => f.write_str(self.name()),
        }
    }
}

/// The text does not name a dtype of Tidemill.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype {0:?}: use a NumPy name such as int32 or float64, a pair such as double_int, or V<bytes>")]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(text: &str) -> Result<Self, UnknownDType> {
        if let Some(entry) = NAMED.iter().find(|entry| entry.1 == text) {
            return Ok(entry.0);
        }
        let digits = text.strip_prefix('V').filter(|d| d.bytes().all(|b| b.is_ascii_digit()));
        digits.and_then(|d| d.parse().ok()).map(Bytes).ok_or_else(|| UnknownDType(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name or size that disagrees between the table and the match would corrupt buffers silently.
    #[test]
    fn names_and_sizes_round_trip() {
        for (dtype, name, size) in NAMED {
            assert_eq!(name.parse(), Ok(dtype));
            assert_eq!(dtype.to_string(), name);
            assert_eq!(dtype.size_bytes(), size, "{name}");
        }
        assert_eq!("V12".parse(), Ok(Bytes(12)));
        assert_eq!(Bytes(12).to_string(), "V12");
        for bad in ["", "V", "V-1", "V+1", "float", "Vx", "V99999999999999999999999"] {
            assert_eq!(bad.parse::<DType>(), Err(UnknownDType(bad.into())));
        }
    }
}

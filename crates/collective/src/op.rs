//! Reduction operations: MPI's predefined ones and user functions, and which dtypes each is defined for.
//!
//! | operation | bool | integers | floats | complex | pairs |
//! |---|---|---|---|---|---|
//! | sum, prod | or, and | wrapping | yes | yes | |
//! | min, max | and, or | yes | yes, NaN wins | | |
//! | land, lor, lxor | yes | non-zero is true, result 0 or 1 | | | |
//! | band, bor, bxor | logical | yes | | | |
//! | minloc, maxloc | | | | | yes, NaN wins, ties to the lower index |
//! | replace, no_op | yes | yes | yes | yes | yes |
//!
//! `replace` keeps the right operand (the highest rank's value), `no_op` the left one. Where MPI leaves the result
//! open, NumPy's behavior applies: a NaN on either side of min or max is the result, integers wrap, and bool adds as
//! "or" (Open MPI rejects arithmetic on bool, so no program that ran there sees a difference). `Bytes(n)` items can
//! only be reduced by user functions, `replace` and `no_op`.

use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::DType;

/// The result of a user function. Its own error reaches the caller unchanged.
pub type UserResult = Result<(), Box<dyn Error + Send + Sync>>;

/// `right = function(left, right)` elementwise: equal byte lengths, a whole number of elements, any alignment. May be
/// called with any part of the vectors.
pub type UserFunction = dyn Fn(&[u8], &mut [u8], DType) -> UserResult + Send + Sync;

/// A reduction by a user function, which must be associative.
#[derive(Clone)]
pub struct UserOp {
    name: Arc<str>,
    commutative: bool,
    function: Arc<UserFunction>,
}

impl UserOp {
    /// Wraps `function`. Without `commutative`, operands are combined in rank order.
    pub fn new(
        name: impl Into<Arc<str>>,
        commutative: bool,
        function: impl Fn(&[u8], &mut [u8], DType) -> UserResult + Send + Sync + 'static,
    ) -> Self {
        UserOp { name: name.into(), commutative, function: Arc::new(function) }
    }

    /// Runs the function: `right = left op right`.
    ///
    /// # Errors
    /// [`OpError::User`] with the function's error.
    pub fn call(&self, left: &[u8], right: &mut [u8], dtype: DType) -> Result<(), OpError> {
        (self.function)(left, right, dtype)
            .map_err(|source| OpError::User { op: self.name.to_string(), source: source.into() })
    }
}

impl fmt::Debug for UserOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserOp").field("name", &self.name).field("commutative", &self.commutative).finish()
    }
}

/// How two elements are combined.
#[derive(Clone, Debug)]
#[repr(u8)]
pub enum ReduceOp {
    /// Sum; integers wrap; "or" for bool.
    Sum,
    /// Product; integers wrap; "and" for bool.
    Prod,
    /// The smaller; NaN wins.
    Min,
    /// The larger; NaN wins.
    Max,
    /// Logical and, 0 or 1.
    Land,
    /// Logical or, 0 or 1.
    Lor,
    /// Logical exclusive or, 0 or 1.
    Lxor,
    /// Bitwise and.
    Band,
    /// Bitwise or.
    Bor,
    /// Bitwise exclusive or.
    Bxor,
    /// The pair with the smaller value; the lower index on ties.
    Minloc,
    /// The pair with the larger value; the lower index on ties.
    Maxloc,
    /// The right operand.
    Replace,
    /// The left operand.
    NoOp,
    /// A user function.
    User(UserOp),
}

/// Why a reduction did not happen.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// The table above has no entry for the pair.
    #[error("operation {op} is not defined for dtype {dtype}; use another operation or a user function")]
    Undefined {
        /// The operation's name.
        op: String,
        /// The element type.
        dtype: DType,
    },
    /// A user function failed.
    #[error("user operation {op} failed: {source}")]
    User {
        /// The operation's name.
        op: String,
        /// The error that the function returned.
        source: Arc<dyn Error + Send + Sync>,
    },
}

/// The predefined operations and their names.
pub static PREDEFINED: [(ReduceOp, &str); 14] = [
    (ReduceOp::Sum, "sum"),
    (ReduceOp::Prod, "prod"),
    (ReduceOp::Min, "min"),
    (ReduceOp::Max, "max"),
    (ReduceOp::Land, "land"),
    (ReduceOp::Lor, "lor"),
    (ReduceOp::Lxor, "lxor"),
    (ReduceOp::Band, "band"),
    (ReduceOp::Bor, "bor"),
    (ReduceOp::Bxor, "bxor"),
    (ReduceOp::Minloc, "minloc"),
    (ReduceOp::Maxloc, "maxloc"),
    (ReduceOp::Replace, "replace"),
    (ReduceOp::NoOp, "no_op"),
];

impl ReduceOp {
    /// A number that identifies the operation in fingerprints; all user functions share one.
    #[inline]
    pub(crate) fn code(&self) -> u64 {
        // SAFETY: a `repr(u8)` enum begins with its discriminant.
        u64::from(unsafe { *std::ptr::from_ref(self).cast::<u8>() })
    }

    /// The name shown to users; for a user function, its own name.
    pub fn name(&self) -> &str {
        match self {
            ReduceOp::User(user) => &user.name,
            _ => {
                let same = |entry: &&(ReduceOp, &str)| std::mem::discriminant(&entry.0) == std::mem::discriminant(self);
                PREDEFINED.iter().find(same).map_or("?", |entry| entry.1)
            }
        }
    }

    /// Whether operands may be exchanged. `replace` and `no_op` depend on the order of ranks, so they are not
    /// commutative.
    pub fn is_commutative(&self) -> bool {
        match self {
            ReduceOp::Replace | ReduceOp::NoOp => false,
            ReduceOp::User(user) => user.commutative,
            _ => true,
        }
    }

    /// Whether the operation is defined for `dtype`.
    ///
    /// # Errors
    /// [`OpError::Undefined`], naming both.
    pub fn check(&self, dtype: DType) -> Result<(), OpError> {
        use DType::*;
        let integer = matches!(dtype, I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64);
        let long_double = matches!(dtype, LongDouble | CLongDouble | LongDoubleInt);
        let float = matches!(dtype, F16 | F32 | F64 | LongDouble);
        let complex = matches!(dtype, C64 | C128 | CLongDouble);
        let pair = matches!(dtype, FloatInt | DoubleInt | LongInt | TwoInt | ShortInt | LongDoubleInt);
        let defined = match self {
            ReduceOp::Sum | ReduceOp::Prod => dtype == Bool || integer || float || complex,
            ReduceOp::Min | ReduceOp::Max => dtype == Bool || integer || float,
            ReduceOp::Land | ReduceOp::Lor | ReduceOp::Lxor | ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor => {
                dtype == Bool || integer
            }
            ReduceOp::Minloc | ReduceOp::Maxloc => pair,
            ReduceOp::Replace | ReduceOp::NoOp | ReduceOp::User(_) => return Ok(()),
        };
        // The extended format is specific to x87; elsewhere `long double` is a different type that is only moved.
        if defined && (!long_double || cfg!(target_arch = "x86_64")) {
            return Ok(());
        }
        Err(OpError::Undefined { op: self.name().to_owned(), dtype })
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text does not name a predefined operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown predefined operation {0:?}")]
pub struct UnknownOp(pub String);

impl FromStr for ReduceOp {
    type Err = UnknownOp;

    fn from_str(text: &str) -> Result<Self, UnknownOp> {
        let found = PREDEFINED.iter().find(|entry| entry.1 == text);
        found.map(|entry| entry.0.clone()).ok_or_else(|| UnknownOp(text.to_owned()))
    }
}

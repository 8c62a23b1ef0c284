//! Floats as keys: all NaNs are one value, which is the largest, and the two zeros are equal.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, make_array};
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};
use arrow::error::ArrowError;

/// Which floats count as one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatEquality {
    /// NaNs; a zero keeps its sign.
    NaNs,
    /// NaNs, and both zeros.
    NaNsAndZeros,
}

/// Whether values of this type are floats or contain floats.
pub fn has_floats(data_type: &DataType) -> bool {
    match data_type {
        DataType::Float16 | DataType::Float32 | DataType::Float64 => true,
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) | DataType::Map(f, _) => {
            has_floats(f.data_type())
        }
        DataType::Struct(fields) => fields.iter().any(|field| has_floats(field.data_type())),
        DataType::Dictionary(_, values) => has_floats(values),
        DataType::RunEndEncoded(_, values) => has_floats(values.data_type()),
        _ => false,
    }
}

/// The same values with a single NaN and a single zero, so that equal values have equal bits.
///
/// # Errors
/// None known.
pub fn canonical(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    with_same(array, FloatEquality::NaNsAndZeros)
}

/// The same values, with equal bits for all that `same` unifies. Usually that is already so, and nothing is copied.
///
/// # Errors
/// None known.
pub fn with_same(array: &ArrayRef, same: FloatEquality) -> Result<ArrayRef, ArrowError> {
    macro_rules! of_floats {
        ($type:ty, $float:ty) => {{
            let (nan, zeros) = (<$float>::NAN, same == FloatEquality::NaNsAndZeros);
            let floats = array.as_primitive::<$type>();
            let odd_zero = (-<$float>::from(0_i8)).to_bits();
            let is_odd =
                |x: $float| (x.is_nan() & (x.to_bits() != nan.to_bits())) | (zeros & (x.to_bits() == odd_zero));
            // A loop without an early exit handles many values at once.
            if !floats.values().iter().fold(false, |odd, &x| odd | is_odd(x)) {
                return Ok(Arc::clone(array));
            }
            let one = |x: $float| match () {
                () if x.is_nan() => nan,
                () if zeros && x.to_bits() == odd_zero => <$float>::from(0_i8),
                () => x,
            };
            Arc::new(floats.unary::<_, $type>(one)) as ArrayRef
        }};
    }
    Ok(match array.data_type() {
        DataType::Float64 => of_floats!(Float64Type, f64),
        DataType::Float32 => of_floats!(Float32Type, f32),
        DataType::Float16 => of_floats!(Float16Type, half::f16),
        data_type if has_floats(data_type) => {
            let data = array.to_data();
            let children = data.child_data().iter();
            let children = children.map(|child| with_same(&make_array(child.clone()), same).map(|c| c.to_data()));
            let children = children.collect::<Result<Vec<_>, _>>()?;
            make_array(data.into_builder().child_data(children).build()?)
        }
        _ => Arc::clone(array),
    })
}

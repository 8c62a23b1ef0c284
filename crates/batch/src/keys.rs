//! Hashes of keys, the same on every worker, machine and release, because both the routing of rows and the contents of
//! checkpoints depend on them. Makes one pass per column over a vector of hashes. Equal keys have equal hashes:
//!
//! - nulls equal nulls; all NaNs equal each other; -0.0 equals 0.0;
//! - a dictionary's rows hash like their values, and a run's like its value, so encodings do not matter;
//! - integers hash by value, whatever their width.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, OffsetSizeTrait, PrimitiveArray, RecordBatch, downcast_primitive_array,
    downcast_run_array,
};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, IntervalDayTime, IntervalMonthDayNano, i256};
use arrow::error::ArrowError;
use twox_hash::XxHash3_64;

// Fixed forever: digits of pi.
const SEED: u64 = 0x243f_6a88_85a3_08d3;
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
const SPREAD: u64 = 0xa409_3822_299f_31d0;
const NULL: u64 = 0x082e_fa98_ec4e_6c89;

/// Mixes a value into a hash: both halves of a product, so that every bit reaches every other.
#[inline]
fn mix(hash: u64, value: u64) -> u64 {
    let product = u128::from(hash.rotate_left(23) ^ value ^ SPREAD) * u128::from(MULTIPLIER);
    let folded = product as u64 ^ (product >> 64) as u64;
    // One more multiplication; without it, keys that count up by a power of two would fill buckets unevenly.
    (folded ^ (folded >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Whether a column can be (part of) a key.
///
/// # Errors
/// A description, if it cannot.
pub fn check(field: &Field) -> Result<(), String> {
    fn hashable(data_type: &DataType) -> bool {
        match data_type {
            DataType::Union(..) | DataType::ListView(_) | DataType::LargeListView(_) => false,
            DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) | DataType::Map(f, _) => {
                hashable(f.data_type())
            }
            DataType::Struct(fields) => fields.iter().all(|field| hashable(field.data_type())),
            DataType::Dictionary(_, values) => hashable(values),
            DataType::RunEndEncoded(_, values) => hashable(values.data_type()),
            _ => true,
        }
    }
    match hashable(field.data_type()) {
        true => Ok(()),
        false => Err(format!("column \"{}\" ({}) cannot be a key", field.name(), field.data_type())),
    }
}

/// Hashes the key columns of batches.
#[derive(Clone, Debug)]
pub struct KeyHasher {
    columns: Vec<usize>,
}

impl KeyHasher {
    /// Hashes the columns at these positions, in this order.
    pub fn new(columns: Vec<usize>) -> Self {
        KeyHasher { columns }
    }

    /// Writes the hash of each row to `hashes`.
    ///
    /// # Errors
    /// If a column's type cannot be a key.
    pub fn hash(&self, batch: &RecordBatch, hashes: &mut Vec<u64>) -> Result<(), ArrowError> {
        hashes.clear();
        hashes.resize(batch.num_rows(), SEED);
        self.columns.iter().try_for_each(|&column| hash_into(batch.column(column), hashes))
    }
}

/// A fixed-size value as a word, equal for equal keys.
trait HashWord: Copy {
    fn word(self) -> u64;
}

macro_rules! words {
    ($($integer:ty),*) => { $(impl HashWord for $integer { #[inline] fn word(self) -> u64 { self as i64 as u64 } })* };
}

words!(i8, i16, i32, i64, u8, u16, u32, u64);

impl HashWord for f64 {
    #[inline]
    fn word(self) -> u64 {
        // Adding 0.0 turns -0.0 into 0.0.
        if self.is_nan() { f64::NAN.to_bits() } else { (self + 0.0).to_bits() }
    }
}

impl HashWord for f32 {
    #[inline]
    fn word(self) -> u64 {
        f64::from(self).word()
    }
}

impl HashWord for half::f16 {
    fn word(self) -> u64 {
        self.to_f64().word()
    }
}

impl HashWord for i128 {
    #[inline]
    fn word(self) -> u64 {
        // A value that fits in 64 bits hashes like a 64-bit value, whatever its type.
        if self as i64 as i128 == self { self as u64 } else { mix(self as u64, (self >> 64) as u64) }
    }
}

impl HashWord for i256 {
    fn word(self) -> u64 {
        let (low, high) = self.to_parts();
        if i256::from_i128(low as i128) == self { (low as i128).word() } else { mix((low as i128).word(), high.word()) }
    }
}

impl HashWord for IntervalDayTime {
    fn word(self) -> u64 {
        (self.days as u32 as u64) << 32 | self.milliseconds as u32 as u64
    }
}

impl HashWord for IntervalMonthDayNano {
    fn word(self) -> u64 {
        mix((self.months as u32 as u64) << 32 | self.days as u32 as u64, self.nanoseconds as u64)
    }
}

/// Mixes a column into the hashes, one per row.
fn hash_into(array: &ArrayRef, hashes: &mut [u64]) -> Result<(), ArrowError> {
    fn primitive<T: ArrowPrimitiveType>(array: &PrimitiveArray<T>, hashes: &mut [u64])
    where
        T::Native: HashWord,
    {
        hashes.iter_mut().zip(array.values()).for_each(|(hash, value)| *hash = mix(*hash, value.word()));
    }
    let any: &dyn Array = array.as_ref();
    if any.null_count() == 0 {
        downcast_primitive_array!(
            any => {
                primitive(any, hashes);
                return Ok(());
            },
            _ => {}
        );
    }
    let words = words(array)?;
    hashes.iter_mut().zip(words).for_each(|(hash, word)| *hash = mix(*hash, word));
    Ok(())
}

/// One word per row, from which the hash is computed.
fn words(array: &ArrayRef) -> Result<Vec<u64>, ArrowError> {
    fn rows(array: &dyn Array, word: impl Fn(usize) -> u64) -> Vec<u64> {
        match array.logical_nulls().filter(|nulls| nulls.null_count() > 0) {
            None => (0..array.len()).map(word).collect(),
            Some(nulls) => (0..array.len()).map(|row| if nulls.is_valid(row) { word(row) } else { NULL }).collect(),
        }
    }
    fn primitive<T: ArrowPrimitiveType>(array: &PrimitiveArray<T>) -> Vec<u64>
    where
        T::Native: HashWord,
    {
        rows(array, |row| array.value(row).word())
    }
    fn bytes<'a, V: AsRef<[u8]> + ?Sized + 'a>(array: &dyn Array, value: impl Fn(usize) -> &'a V) -> Vec<u64> {
        rows(array, |row| XxHash3_64::oneshot(value(row).as_ref()))
    }
    fn list<O: OffsetSizeTrait>(array: &dyn Array) -> Result<Vec<u64>, ArrowError> {
        let array = array.as_list::<O>();
        let (values, offsets) = (words(array.values())?, array.value_offsets());
        Ok(rows(array, |row| sequence(&values[offsets[row].as_usize()..offsets[row + 1].as_usize()])))
    }
    let any: &dyn Array = array.as_ref();
    Ok(downcast_primitive_array!(
        any => primitive(any),
        DataType::Null => vec![NULL; any.len()],
        DataType::Boolean => rows(any, |row| u64::from(any.as_boolean().value(row))),
        DataType::Utf8 => bytes(any, |row| any.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => bytes(any, |row| any.as_string::<i64>().value(row)),
        DataType::Utf8View => bytes(any, |row| any.as_string_view().value(row)),
        DataType::Binary => bytes(any, |row| any.as_binary::<i32>().value(row)),
        DataType::LargeBinary => bytes(any, |row| any.as_binary::<i64>().value(row)),
        DataType::BinaryView => bytes(any, |row| any.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => bytes(any, |row| any.as_fixed_size_binary().value(row)),
        DataType::Dictionary(..) => {
            let dictionary = any.as_any_dictionary();
            // Logical nulls cover both null keys and keys of null values; all other keys refer to a value.
            let values = words(dictionary.values())?;
            // A dictionary without values, whose rows are all null, has no normalized keys.
            let keys = if values.is_empty() { Vec::new() } else { dictionary.normalized_keys() };
            rows(any, |row| values[keys[row]])
        }
        DataType::RunEndEncoded(..) => downcast_run_array!(
            any => {
                let values = words(any.values())?;
                rows(any, |row| values[any.get_physical_index(row)])
            },
            other => return Err(refused(other))
        ),
        DataType::Struct(_) => {
            let array = any.as_struct();
            let mut within = vec![SEED; array.len()];
            array.columns().iter().try_for_each(|column| hash_into(column, &mut within))?;
            rows(array, |row| within[row])
        }
        DataType::List(_) => list::<i32>(any)?,
        DataType::LargeList(_) => list::<i64>(any)?,
        DataType::Map(..) => {
            let array = any.as_map();
            let entries: ArrayRef = Arc::new(array.entries().clone());
            let (values, offsets) = (words(&entries)?, array.offsets());
            rows(array, |row| sequence(&values[offsets[row] as usize..offsets[row + 1] as usize]))
        }
        DataType::FixedSizeList(_, len) => {
            let array = any.as_fixed_size_list();
            let (values, len) = (words(array.values())?, *len as usize);
            rows(array, |row| {
                let start = array.value_offset(row) as usize;
                sequence(&values[start..start + len])
            })
        }
        other => return Err(refused(other))
    ))
}

fn refused(data_type: &DataType) -> ArrowError {
    ArrowError::NotYetImplemented(format!("a column of type {data_type} cannot be a key"))
}

/// The word of a list, from its length and its elements in order.
fn sequence(elements: &[u64]) -> u64 {
    elements.iter().fold(mix(SEED, elements.len() as u64), |hash, &element| mix(hash, element))
}

#[cfg(test)]
mod tests {
    use arrow::array::*;
    use arrow::compute::cast;
    use arrow::datatypes::{Float32Type, Int32Type, Schema};

    use super::*;

    fn hashes(array: ArrayRef) -> Vec<u64> {
        let schema = Schema::new(vec![Field::new("k", array.data_type().clone(), true)]);
        let batch = RecordBatch::try_new(Arc::new(schema), vec![array]).unwrap();
        let mut hashes = Vec::new();
        KeyHasher::new(vec![0]).hash(&batch, &mut hashes).unwrap();
        hashes
    }

    /// Checkpoints and route maps outlive a release: a changed hash would send a key to the wrong owner of its state.
    #[test]
    fn hashes_never_change() {
        let numbers = hashes(Arc::new(Int64Array::from(vec![Some(0), Some(1), Some(-1), None])));
        let words = hashes(Arc::new(StringArray::from(vec!["", "tide", "mill and a longer text of many bytes"])));
        assert_eq!((numbers, words), (NUMBERS.to_vec(), WORDS.to_vec()));
    }

    const NUMBERS: [u64; 4] = [3215088789702110615, 8789993786757746775, 3740166720385767507, 10680932142282622192];
    const WORDS: [u64; 3] = [15716366261599575436, 6005961549839706369, 12849759520041046507];

    /// Two encodings of one value on two workers must go to the same copy.
    #[test]
    fn encodings_do_not_matter() {
        let strings: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("bb"), Some("a"), Some("bb")]));
        let plain = hashes(strings.clone());
        let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
        for data_type in [DataType::LargeUtf8, DataType::Utf8View, DataType::Binary, dictionary] {
            assert_eq!(hashes(cast(&strings, &data_type).unwrap()), plain, "{data_type}");
        }
        let sliced = strings.slice(1, 3);
        assert_eq!(hashes(sliced), plain[1..4]);
        let runs: RunArray<Int32Type> = [Some("a"), Some("a"), None, Some("bb")].into_iter().collect();
        assert_eq!(hashes(Arc::new(runs)), [plain[0], plain[0], plain[1], plain[2]]);
        let ints = hashes(Arc::new(Int8Array::from(vec![Some(-5), None, Some(7)])));
        assert_eq!(hashes(Arc::new(Int64Array::from(vec![Some(-5), None, Some(7)]))), ints);
        assert_eq!(hashes(Arc::new(Decimal128Array::from(vec![Some(-5), None, Some(7)]))), ints);
        // A null value referenced by a valid key is a null.
        let values: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
        let keys = DictionaryArray::<Int32Type>::new(Int32Array::from(vec![Some(0), Some(1), None]), values);
        assert_eq!(hashes(Arc::new(keys)), [plain[0], plain[1], plain[1]]);
    }

    /// A NaN that hashes differently from other NaNs would form a separate group.
    #[test]
    fn floats_have_one_nan_and_one_zero() {
        let odd_nan = f64::from_bits(f64::NAN.to_bits() | 1 << 63 | 5);
        let h = hashes(Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN, odd_nan, 1.5, f64::INFINITY])));
        assert_eq!((h[0], h[2]), (h[1], h[3]));
        assert_ne!(h[0], h[2]);
        let f = hashes(Arc::new(PrimitiveArray::<Float32Type>::from(vec![-0.0, 0.0, f32::NAN, -f32::NAN, 1.5])));
        assert_eq!(f, [h[0], h[0], h[2], h[2], h[4]]);
    }

    /// Lists that differ only in the position of an element are different keys; nesting must not change with slicing.
    #[test]
    fn nested_keys() {
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([
            Some(vec![Some(1), Some(2)]),
            Some(vec![Some(2), Some(1)]),
            Some(vec![]),
            None,
            Some(vec![None]),
            Some(vec![Some(1), Some(2)]),
        ]);
        let h = hashes(Arc::new(lists.clone()));
        assert_eq!(h[0], h[5]);
        let distinct: std::collections::HashSet<u64> = h[..5].iter().copied().collect();
        assert_eq!(distinct.len(), 5);
        assert_eq!(hashes(Arc::new(lists.slice(3, 3))), h[3..]);
        let pair = |a: i32, b: &str| -> ArrayRef {
            let a: ArrayRef = Arc::new(Int32Array::from(vec![a]));
            let b: ArrayRef = Arc::new(StringArray::from(vec![b]));
            Arc::new(StructArray::try_from(vec![("a", a), ("b", b)]).unwrap())
        };
        assert_eq!(hashes(pair(1, "x")), hashes(pair(1, "x")));
        assert_ne!(hashes(pair(1, "x")), hashes(pair(1, "y")));
    }

    /// Consecutive keys, with or without a step, are the most common ones: they must not pile up in a few buckets.
    #[test]
    fn sequences_fill_buckets_evenly() {
        for step in [1i64, 2, 10, 64, 1024, 4096, 1 << 20, 1 << 32, 1_000_003] {
            let keys: Int64Array = (0..200_000).map(|i| i * step).collect();
            let mut counts = vec![0i64; 1024];
            let map = crate::route_map::RouteMap::even(1024, 1);
            hashes(Arc::new(keys)).iter().for_each(|&hash| counts[map.bucket(hash) as usize] += 1);
            // 195 on average, with a standard deviation of 14: six deviations either way.
            let (min, max) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(*min > 110 && *max < 285, "step {step}: {min} to {max}");
        }
    }
}

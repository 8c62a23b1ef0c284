//! Sort keys of plain numbers, in as few bits as the values at hand need.
//!
//! Arrow's row format takes 9 bytes for each number, so the keys of two columns rarely fit into 16 bytes. With the least and the
//! greatest value of each column known, a key needs only the bits in which values differ: numbers are mapped to unsigned words of the
//! same order, the least is subtracted, and nulls become one more value at either end.

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::SortOptions;
use arrow::datatypes::DataType;

/// Whether a column of this type can be part of such a key.
pub(crate) fn is_plain(data_type: &DataType) -> bool {
    use DataType::*;
    data_type.is_integer()
        || matches!(
            data_type,
            Float32 | Float64 | Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..) | Duration(_)
        )
}

/// How the values of a column become a part of a key.
struct Part {
    column: usize,
    descending: bool,
    /// The least word.
    low: u64,
    /// Of the least word.
    first: u128,
    null: u128,
    bits: u32,
}

/// Makes keys of the rows of some batches.
pub(crate) struct Compact {
    parts: Vec<Part>,
    /// Of one column and one batch; kept for its memory.
    words: Vec<u64>,
}

impl Compact {
    /// `None` if a key of these columns, all of them [plain](is_plain), does not fit into 128 bits.
    pub(crate) fn of(batches: &[RecordBatch], columns: impl Iterator<Item = (usize, SortOptions)>) -> Option<Self> {
        let mut words = Vec::new();
        let parts: Vec<Part> =
            columns.map(|(column, options)| Part::of(batches, column, options, &mut words)).collect();
        let bits: u32 = parts.iter().map(|part| part.bits).sum();
        (bits <= u128::BITS).then_some(Compact { parts, words })
    }

    /// The keys of a batch's rows, in place of what is in `keys`.
    pub(crate) fn keys(&mut self, batch: &RecordBatch, keys: &mut Vec<u128>) {
        keys.clear();
        keys.resize(batch.num_rows(), 0);
        for part in &self.parts {
            let column = batch.column(part.column);
            words(column, part.descending, &mut self.words);
            let add = |key: &mut u128, value: u128| *key = *key << part.bits | value;
            let value = |word: u64| u128::from(word.wrapping_sub(part.low)) + part.first;
            match column.nulls().filter(|nulls| nulls.null_count() > 0) {
                None => keys.iter_mut().zip(&self.words).for_each(|(key, &word)| add(key, value(word))),
                Some(nulls) => {
                    for ((key, &word), is_valid) in keys.iter_mut().zip(&self.words).zip(nulls) {
                        add(key, if is_valid { value(word) } else { part.null });
                    }
                }
            }
        }
    }
}

impl Part {
    fn of(batches: &[RecordBatch], column: usize, options: SortOptions, buffer: &mut Vec<u64>) -> Self {
        let (mut low, mut high, mut has_nulls) = (u64::MAX, 0, false);
        for batch in batches {
            let array = batch.column(column);
            words(array, options.descending, buffer);
            let mut see = |word: u64| (low, high) = (low.min(word), high.max(word));
            match array.nulls().filter(|nulls| nulls.null_count() > 0) {
                None => buffer.iter().for_each(|&word| see(word)),
                Some(nulls) => {
                    has_nulls = true;
                    nulls.valid_indices().for_each(|row| see(buffer[row]));
                }
            }
        }
        let greatest = u128::from(high.saturating_sub(low));
        let (first, null) = match (has_nulls, options.nulls_first) {
            (false, _) => (0, 0),
            (true, true) => (1, 0),
            (true, false) => (0, greatest + 1),
        };
        let bits = u128::BITS - (greatest + u128::from(has_nulls)).leading_zeros();
        Part { column, descending: options.descending, low, first, null, bits }
    }
}

/// Words that compare as the values do; those of nulls are any.
fn words(array: &ArrayRef, descending: bool, words: &mut Vec<u64>) {
    words.clear();
    let data = array.to_data();
    macro_rules! of {
        ($t:ty, $word:expr) => {
            words.extend(data.buffer::<$t>(0)[..data.len()].iter().map(|&value| $word(value)))
        };
    }
    match array.data_type() {
        DataType::UInt8 => of!(u8, u64::from),
        DataType::UInt16 => of!(u16, u64::from),
        DataType::UInt32 => of!(u32, u64::from),
        DataType::UInt64 => of!(u64, |value| value),
        DataType::Int8 => of!(i8, |value| signed(i64::from(value))),
        DataType::Int16 => of!(i16, |value| signed(i64::from(value))),
        DataType::Int32 | DataType::Date32 | DataType::Time32(_) => of!(i32, |value| signed(i64::from(value))),
        DataType::Float32 => of!(f32, |value| float(f64::from(value))),
        DataType::Float64 => of!(f64, float),
        // Times of 64 bits.
        other => {
            debug_assert!(is_plain(other), "{other}");
            of!(i64, signed);
        }
    }
    if descending {
        words.iter_mut().for_each(|word| *word = !*word);
    }
}

fn signed(value: i64) -> u64 {
    value as u64 ^ 1 << 63
}

/// One NaN, the greatest, and one zero.
fn float(value: f64) -> u64 {
    const NAN: u64 = 0x7ff8 << 48;
    // The negative zero becomes the other.
    let bits = if value.is_nan() { NAN } else { (value + 0.0).to_bits() };
    bits ^ (((bits as i64) >> 63) as u64 | 1 << 63)
}

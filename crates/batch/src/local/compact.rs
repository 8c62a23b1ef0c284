//! Sort keys of plain numbers, in as few bits as the values at hand need.
//!
//! Arrow's row format takes 9 bytes per number, so the keys of two columns rarely fit into 16 bytes. Given the minimum
//! and maximum of each column, a key needs only the bits in which values differ: numbers are mapped to unsigned words
//! of the same order, the minimum is subtracted, and nulls become one more value at either end.

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::SortOptions;
use arrow::datatypes::DataType;

/// Returns true if a compact key can hold columns of this type.
pub(crate) fn is_plain(data_type: &DataType) -> bool {
    use DataType::*;
    data_type.is_integer()
        || matches!(
            data_type,
            Float32 | Float64 | Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..) | Duration(_)
        )
}

/// How the values of a column become part of a key.
struct CompactPart {
    column: usize,
    descending: bool,
    /// The smallest word.
    low: u64,
    /// The code of the smallest word: 1 if nulls come first and take 0.
    first: u128,
    null: u128,
    bits: u32,
}

/// Makes keys of the rows of some batches.
pub(crate) struct CompactKeys {
    parts: Vec<CompactPart>,
    /// Scratch space for one column of one batch.
    words: Vec<u64>,
}

impl CompactKeys {
    /// `None` if the key of these columns, all of them [plain](is_plain), does not fit into 128 bits.
    pub(crate) fn of(batches: &[RecordBatch], columns: impl Iterator<Item = (usize, SortOptions)>) -> Option<Self> {
        let mut words = Vec::new();
        let parts: Vec<CompactPart> =
            columns.map(|(column, options)| CompactPart::of(batches, column, options, &mut words)).collect();
        let bits: u32 = parts.iter().map(|part| part.bits).sum();
        (bits <= u128::BITS).then_some(CompactKeys { parts, words })
    }

    /// Writes the keys of a batch's rows to `keys`, replacing its contents.
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

impl CompactPart {
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
        CompactPart { column, descending: options.descending, low, first, null, bits }
    }
}

/// Words that compare like the values; the words of nulls are arbitrary.
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

/// One NaN, the largest value, and one zero.
fn float(value: f64) -> u64 {
    const NAN: u64 = 0x7ff8 << 48;
    // Negative zero becomes positive zero.
    let bits = if value.is_nan() { NAN } else { (value + 0.0).to_bits() };
    bits ^ (((bits as i64) >> 63) as u64 | 1 << 63)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        Date32Array, Float32Array, Float64Array, Int8Array, Int64Array, TimestampNanosecondArray, UInt64Array,
    };

    use super::*;
    use crate::local::order::{RowOrder, SortKey};

    fn columns() -> Vec<(&'static str, ArrayRef)> {
        let floats = [-f64::NAN, f64::NAN, f64::INFINITY, f64::MIN, -0.0, 0.0, 1e-300, -1.5];
        vec![
            ("i8", Arc::new(Int8Array::from_iter([1, i8::MIN, i8::MAX, 0, 0, -1, 5, 5].map(Some)))),
            ("i64", Arc::new(Int64Array::from(vec![3, i64::MIN, i64::MAX, 0, -1, 7, 7, 2]))),
            ("none", Arc::new(Int64Array::from(vec![None; 8]))),
            (
                "some",
                Arc::new(Int64Array::from_iter([
                    Some(i64::MIN),
                    None,
                    Some(i64::MAX),
                    None,
                    Some(0),
                    Some(1),
                    None,
                    Some(1),
                ])),
            ),
            ("u64", Arc::new(UInt64Array::from(vec![0, u64::MAX, 1 << 63, 9, 9, 0, 1, 2]))),
            (
                "f64",
                Arc::new(Float64Array::from_iter(floats.iter().enumerate().map(|(at, x)| (at != 3).then_some(*x)))),
            ),
            ("f32", Arc::new(Float32Array::from_iter_values(floats.map(|x| x as f32)))),
            ("date", Arc::new(Date32Array::from(vec![0, -5, i32::MAX, 4, 4, 3, 2, 1]))),
            ("time", Arc::new(TimestampNanosecondArray::from(vec![1, 2, -9, 4, 4, 5, 6, 7]).with_timezone("UTC"))),
        ]
    }

    /// Compares with Arrow's row format, for every pair of types, both directions and both positions of nulls; in
    /// slices.
    #[test]
    fn keys_compare_as_rows_do() {
        let batch =
            RecordBatch::try_from_iter_with_nullable(columns().into_iter().map(|(name, array)| (name, array, true)));
        let batch = batch.unwrap();
        let batches = [batch.slice(0, 3), batch.slice(3, 5)];
        let names = columns();
        let (mut made, mut too_long) = (0, 0);
        for (pair, turn) in (0..names.len() * names.len()).flat_map(|pair| (0..16).map(move |turn| (pair, turn))) {
            let key = |at: usize, bits: usize| match bits & 1 {
                0 => SortKey::ascending(names[at].0).nulls_first(bits & 2 > 0),
                _ => SortKey::descending(names[at].0).nulls_first(bits & 2 > 0),
            };
            let keys = [key(pair / names.len(), turn), key(pair % names.len(), turn >> 2)];
            let order = RowOrder::new(&batch.schema(), &keys).unwrap();
            let Some(mut compact) = CompactKeys::of(&batches, order.plain().expect("all are plain")) else {
                too_long += 1;
                continue;
            };
            made += 1;
            let (mut found, mut some) = (Vec::new(), Vec::new());
            for batch in &batches {
                compact.keys(batch, &mut some);
                found.extend_from_slice(&some);
            }
            let rows = order.rows(&batch).unwrap();
            for (a, b) in (0..8).flat_map(|a| (0..8).map(move |b| (a, b))) {
                assert_eq!(found[a].cmp(&found[b]), rows.row(a).data().cmp(rows.row(b).data()), "{keys:?} {a} {b}");
            }
        }
        assert!(made > 1000 && too_long > 0, "{made} {too_long}");
    }
}

//! Packs whole numbers, and types stored as such, into as many bytes as the range between their minimum and maximum
//! needs. Keys, counts and times are most of the data in snapshots: general compression hardly reduces them, and takes
//! many times as long.
//!
//! ```text
//! u8      bytes of each value: 1, 2, 4 or 8; plus NULLS, if there are any
//! i64     the least value
//! bits    which are no nulls, if there are any
//! values  how much each is above the least
//! ```

use arrow::array::{Array, ArrayData, ArrayRef, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{DataType, IntervalUnit};
use arrow::error::ArrowError;

const NULLS: u8 = 16;

/// The size in bytes of a value of a type that can be packed.
fn width(data_type: &DataType) -> Option<usize> {
    use DataType::*;
    match data_type {
        Int32 | UInt32 | Date32 | Time32(_) | Interval(IntervalUnit::YearMonth) | Decimal32(..) => Some(4),
        Int64 | UInt64 | Date64 | Time64(_) | Timestamp(..) | Duration(_) | Decimal64(..) => Some(8),
        _ => None,
    }
}

/// Whether columns of a type can be packed.
pub(super) fn can(data_type: &DataType) -> bool {
    width(data_type).is_some()
}

/// Appends a column of a type that can be packed.
pub(super) fn pack(column: &dyn Array, bytes: &mut Vec<u8>) {
    let data = column.to_data();
    match width(data.data_type()) {
        Some(4) => pack_values(&data.buffer::<i32>(0)[..data.len()], data.nulls(), bytes),
        _ => pack_values(&data.buffer::<i64>(0)[..data.len()], data.nulls(), bytes),
    }
}

/// Values under nulls count like the others; they are mostly zero.
fn pack_values<N: Copy + Into<i64>>(values: &[N], nulls: Option<&NullBuffer>, bytes: &mut Vec<u8>) {
    let ends = values
        .iter()
        .fold((i64::MAX, i64::MIN), |(least, most), &value| (least.min(value.into()), most.max(value.into())));
    let (least, most) = if values.is_empty() { (0, 0) } else { ends };
    let width = match most.wrapping_sub(least) as u64 {
        0..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xffff_ffff => 4,
        _ => 8,
    };
    bytes.push(width | if nulls.is_some() { NULLS } else { 0 });
    bytes.extend_from_slice(&least.to_le_bytes());
    if let Some(nulls) = nulls {
        bytes.extend_from_slice(&nulls.inner().sliced()[..nulls.len().div_ceil(8)]);
    }
    let above = values.iter().map(|&value| value.into().wrapping_sub(least));
    match width {
        1 => put(above.map(|above| [above as u8]), bytes),
        2 => put(above.map(|above| (above as u16).to_le_bytes()), bytes),
        4 => put(above.map(|above| (above as u32).to_le_bytes()), bytes),
        _ => put(above.map(i64::to_le_bytes), bytes),
    }
}

fn put<const WIDTH: usize>(values: impl ExactSizeIterator<Item = [u8; WIDTH]>, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.resize(start + WIDTH * values.len(), 0);
    let places = bytes[start..].as_chunks_mut().0;
    places.iter_mut().zip(values).for_each(|(place, value)| *place = value);
}

/// Removes a column with this type and number of rows from the front of `bytes`.
pub(super) fn unpack(data_type: &DataType, rows: usize, bytes: &mut &[u8]) -> Result<ArrayRef, ArrowError> {
    let how = take(bytes, 1)?[0];
    let least = i64::from_le_bytes(take(bytes, 8)?.try_into().expect("eight bytes"));
    let nulls = match how & NULLS {
        0 => None,
        _ => {
            let bits = Buffer::from(take(bytes, rows.div_ceil(8))?);
            Some(NullBuffer::new(BooleanBuffer::new(bits, 0, rows)))
        }
    };
    let above = usize::from(how & !NULLS);
    let values = take(bytes, rows.checked_mul(above).ok_or_else(cut_short)?)?;
    let buffer = match (width(data_type), above) {
        (Some(4), 1) => buffer(values, |[byte]: [u8; 1]| least.wrapping_add(byte.into()) as i32),
        (Some(4), 2) => buffer(values, |two| least.wrapping_add(u16::from_le_bytes(two).into()) as i32),
        (Some(4), 4) => buffer(values, |four| least.wrapping_add(u32::from_le_bytes(four).into()) as i32),
        (Some(8), 1) => buffer(values, |[byte]: [u8; 1]| least.wrapping_add(byte.into())),
        (Some(8), 2) => buffer(values, |two| least.wrapping_add(u16::from_le_bytes(two).into())),
        (Some(8), 4) => buffer(values, |four| least.wrapping_add(u32::from_le_bytes(four).into())),
        (Some(8), 8) => buffer(values, |eight| least.wrapping_add(i64::from_le_bytes(eight))),
        _ => return Err(ArrowError::IpcError(format!("{data_type} in {above} bytes"))),
    };
    Ok(make_array(ArrayData::builder(data_type.clone()).len(rows).add_buffer(buffer).nulls(nulls).build()?))
}

fn buffer<const WIDTH: usize, N: arrow::datatypes::ArrowNativeType>(
    values: &[u8],
    value: impl Fn([u8; WIDTH]) -> N,
) -> Buffer {
    Buffer::from_vec(values.as_chunks().0.iter().map(|bytes| value(*bytes)).collect::<Vec<N>>())
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], ArrowError> {
    let (taken, rest) = bytes.split_at_checked(count).ok_or_else(cut_short)?;
    *bytes = rest;
    Ok(taken)
}

pub(super) fn cut_short() -> ArrowError {
    ArrowError::IpcError("rows are truncated".into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Date32Array, Int32Array, Int64Array, TimestampMicrosecondArray, UInt32Array, UInt64Array};
    use proptest::prelude::*;

    use super::*;

    fn packed(column: &ArrayRef) -> Vec<u8> {
        let mut bytes = Vec::new();
        pack(column.as_ref(), &mut bytes);
        bytes
    }

    fn assert_comes_back(column: &ArrayRef) {
        let bytes = packed(column);
        let mut rest = bytes.as_slice();
        assert_eq!(&unpack(column.data_type(), column.len(), &mut rest).unwrap(), column);
        assert!(rest.is_empty());
        for end in 0..bytes.len() {
            assert!(unpack(column.data_type(), column.len(), &mut &bytes[..end]).is_err(), "cut at {end}");
        }
    }

    /// At each limit of each width, and at the limits of the types.
    #[test]
    fn numbers_take_the_bytes_they_need() {
        for (most, width) in [(0, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 4), (u32::MAX.into(), 4), (1 << 32, 8)]
        {
            for least in [i64::MIN, -100, 0, i64::MAX - most] {
                let column: ArrayRef = Arc::new(Int64Array::from(vec![least + most, least, least + most / 2]));
                assert_eq!(packed(&column).len(), 9 + 3 * width, "{least} to {most} above");
                assert_comes_back(&column);
            }
        }
        let columns: [ArrayRef; 6] = [
            Arc::new(Int64Array::from(vec![i64::MIN, i64::MAX])),
            Arc::new(UInt64Array::from(vec![u64::MAX, 0, 1 << 63])),
            Arc::new(UInt32Array::from(vec![u32::MAX, 0, 1 << 31])),
            Arc::new(Int32Array::from(vec![i32::MIN, i32::MAX])),
            Arc::new(Date32Array::from(vec![Some(20_000), None, Some(20_001)])),
            Arc::new(TimestampMicrosecondArray::from(vec![Some(1), None]).with_timezone("UTC")),
        ];
        columns.iter().for_each(assert_comes_back);
    }

    #[test]
    fn invalid_widths_are_refused() {
        for how in [0, 3, 9, 255] {
            let bytes = [vec![how], vec![0; 100]].concat();
            assert!(unpack(&DataType::Int64, 1, &mut bytes.as_slice()).is_err());
        }
        let eight = [vec![8], vec![0; 16]].concat();
        assert!(unpack(&DataType::Int32, 1, &mut eight.as_slice()).is_err());
        assert!(unpack(&DataType::Int64, usize::MAX, &mut eight.as_slice()).is_err());
    }

    proptest! {
        #[test]
        fn numbers_round_trip(
            values in prop::collection::vec(prop::option::weighted(0.9, any::<i64>()), 0..50), shift in 0_u32..64, skip in 0_usize..9,
        ) {
            let of = |value: Option<i64>| value.map(|value| value >> shift);
            let wide = Int64Array::from_iter(values.iter().copied().map(of));
            let narrow = Int32Array::from_iter(values.iter().map(|&value| of(value).map(|value| value as i32)));
            let columns: [ArrayRef; 2] = [Arc::new(wide), Arc::new(narrow)];
            for column in columns {
                let skip = skip.min(column.len());
                assert_comes_back(&column.slice(skip, column.len() - skip));
            }
        }
    }
}

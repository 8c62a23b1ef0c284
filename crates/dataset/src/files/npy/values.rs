//! The Arrow equivalents of NumPy's types, and columns of bytes in files.

use std::sync::Arc;

use arrow::array::{ArrayData, ArrayRef, BooleanArray, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{ArrowNativeType, DataType, TimeUnit};
use arrow::error::ArrowError;

use super::header::PythonLiteral;

/// The remedy for other types.
pub(super) const READABLE: &str =
    "read_npy reads bool, integers and floats of up to 64 bits, and times in s, ms, us or ns";

/// The layout of a value in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ValueLayout {
    pub data_type: DataType,
    /// Its size in bytes.
    pub width: usize,
    /// Whether its byte order differs from this machine's.
    is_swapped: bool,
}

/// A NumPy type string for a single value: the byte order, a letter, and the number of bytes or characters.
struct TypeString<'a> {
    order: char,
    letter: char,
    count: &'a str,
    /// The unit of times, in brackets.
    unit: Option<&'a str>,
}

impl<'a> TypeString<'a> {
    fn of(descr: &'a PythonLiteral) -> Option<Self> {
        let PythonLiteral::Text(text) = descr else { return None };
        let (order, rest) = match text.strip_prefix(['<', '>', '|', '=']) {
            Some(rest) => (text.chars().next()?, rest),
            None => ('=', text.as_str()),
        };
        let letter = rest.chars().next()?;
        let rest = &rest[letter.len_utf8()..];
        let (count, unit) = match rest.strip_suffix(']').and_then(|rest| rest.split_once('[')) {
            Some((count, unit)) => (count, Some(unit)),
            None => (rest, None),
        };
        count.bytes().all(|byte| byte.is_ascii_digit()).then_some(TypeString { order, letter, count, unit })
    }
}

/// The type as displayed by NumPy.
pub(super) fn shown(descr: &PythonLiteral) -> String {
    let Some(TypeString { order, letter, count, unit }) = TypeString::of(descr) else { return descr.to_string() };
    let is_native = matches!(order, '=' | '|') || (order == '<') == cfg!(target_endian = "little") || count == "1";
    let bits = count.parse::<u32>().unwrap_or(0).saturating_mul(8);
    match (letter, is_native) {
        ('b', _) if count == "1" => "bool".into(),
        ('i', true) => format!("int{bits}"),
        ('u', true) => format!("uint{bits}"),
        ('f', true) => format!("float{bits}"),
        ('c', true) => format!("complex{bits}"),
        ('M', true) => format!("datetime64{}", unit.map(|unit| format!("[{unit}]")).unwrap_or_default()),
        ('m', true) => format!("timedelta64{}", unit.map(|unit| format!("[{unit}]")).unwrap_or_default()),
        ('O', _) => "object".into(),
        _ => match descr {
            PythonLiteral::Text(text) => text.clone(),
            other => other.to_string(),
        },
    }
}

/// The number of padding bytes; `None` for anything else.
pub(super) fn padding(descr: &PythonLiteral) -> Option<u64> {
    let TypeString { letter, count, .. } = TypeString::of(descr)?;
    if letter == 'V' { count.parse().ok() } else { None }
}

impl ValueLayout {
    /// `None` for types that cannot be a column.
    pub(super) fn of(descr: &PythonLiteral) -> Option<Self> {
        let TypeString { order, letter, count, unit } = TypeString::of(descr)?;
        let unit = match unit {
            None => None,
            Some("s") => Some(TimeUnit::Second),
            Some("ms") => Some(TimeUnit::Millisecond),
            Some("us") => Some(TimeUnit::Microsecond),
            Some("ns") => Some(TimeUnit::Nanosecond),
            Some(_) => return None,
        };
        let (data_type, width) = match (letter, count, unit) {
            ('b', "1", None) => (DataType::Boolean, 1),
            ('i', "1", None) => (DataType::Int8, 1),
            ('i', "2", None) => (DataType::Int16, 2),
            ('i', "4", None) => (DataType::Int32, 4),
            ('i', "8", None) => (DataType::Int64, 8),
            ('u', "1", None) => (DataType::UInt8, 1),
            ('u', "2", None) => (DataType::UInt16, 2),
            ('u', "4", None) => (DataType::UInt32, 4),
            ('u', "8", None) => (DataType::UInt64, 8),
            ('f', "2", None) => (DataType::Float16, 2),
            ('f', "4", None) => (DataType::Float32, 4),
            ('f', "8", None) => (DataType::Float64, 8),
            ('M', "8", Some(unit)) => (DataType::Timestamp(unit, None), 8),
            ('m', "8", Some(unit)) => (DataType::Duration(unit), 8),
            _ => return None,
        };
        let is_swapped = width > 1 && order == if cfg!(target_endian = "little") { '>' } else { '<' };
        Some(ValueLayout { data_type, width, is_swapped })
    }

    /// Whether there may be nulls, for NumPy's not-a-time values.
    pub(super) fn is_nullable(&self) -> bool {
        matches!(self.data_type, DataType::Timestamp(..) | DataType::Duration(_))
    }

    /// The values at `offset` in each of some rows of `stride` bytes.
    pub(super) fn values(&self, rows: &[u8], stride: usize, offset: usize) -> Result<ArrayRef, ArrowError> {
        let len = rows.len() / stride;
        if self.data_type == DataType::Boolean {
            let bits = BooleanBuffer::collect_bool(len, |row| rows[row * stride + offset] != 0);
            return Ok(Arc::new(BooleanArray::new(bits, None)));
        }
        let buffer = match (self.width, self.is_swapped) {
            (1, _) => gathered(rows, stride, offset, u8::from_ne_bytes),
            (2, false) => gathered(rows, stride, offset, u16::from_ne_bytes),
            (2, true) => gathered(rows, stride, offset, |bytes| u16::from_ne_bytes(bytes).swap_bytes()),
            (4, false) => gathered(rows, stride, offset, u32::from_ne_bytes),
            (4, true) => gathered(rows, stride, offset, |bytes| u32::from_ne_bytes(bytes).swap_bytes()),
            (_, false) => gathered(rows, stride, offset, u64::from_ne_bytes),
            (_, true) => gathered(rows, stride, offset, |bytes| u64::from_ne_bytes(bytes).swap_bytes()),
        };
        let nulls = self.is_nullable().then(|| {
            // NumPy's NaT.
            NullBuffer::from_iter(buffer.typed_data::<i64>().iter().map(|&value| value != i64::MIN))
        });
        let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
        Ok(make_array(ArrayData::builder(self.data_type.clone()).len(len).add_buffer(buffer).nulls(nulls).build()?))
    }
}

fn gathered<const N: usize, T: ArrowNativeType>(
    rows: &[u8],
    stride: usize,
    offset: usize,
    read: impl Fn([u8; N]) -> T,
) -> Buffer {
    let value = |row: &[u8]| read(row[offset..offset + N].try_into().expect("so many bytes"));
    Buffer::from_vec(rows.chunks_exact(stride).map(value).collect::<Vec<T>>())
}

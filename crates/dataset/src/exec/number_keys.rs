//! Tables of keys that are integers, dates or times, and that number each key.
//!
//! With many keys, each row's key is somewhere else in memory. A table that stores the keys themselves costs one cache
//! miss per row. The slots of a whole batch are known before the first lookup, so they are prefetched some rows ahead.
//! Clearing the table is free: its slots are stamped with a generation.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray, downcast_primitive};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowNativeType, DataType, SchemaRef};
use datafusion::error::Result;
use datafusion::logical_expr::EmitTo;
use datafusion::physical_plan::aggregates::group_values::{GroupValues, new_group_values};
use datafusion::physical_plan::aggregates::order::GroupOrdering;
use tidemill_dataflow::prefetch;

/// Whether values of a type are equal if and only if their bits are, and have at most 64 bits.
pub(crate) fn is_number(data_type: &DataType) -> bool {
    let is_date = data_type.is_temporal() && !matches!(data_type, DataType::Interval(_));
    data_type.is_integer() || is_date
}

/// Groups for columns with this schema: in a table of numbers if possible, else in DataFusion's.
///
/// # Errors
/// DataFusion's, for types that it cannot group.
pub fn group_values(schema: &SchemaRef) -> Result<Box<dyn GroupValues>> {
    match schema.fields().as_ref() {
        [key] if is_number(key.data_type()) => {
            Ok(Box::new(KeyColumn { keys: NumberKeys::default(), data_type: key.data_type().clone() }))
        }
        _ => new_group_values(Arc::clone(schema), &GroupOrdering::None),
    }
}

/// A column of number keys with DataFusion's interface.
struct KeyColumn {
    keys: NumberKeys,
    data_type: DataType,
}

impl GroupValues for KeyColumn {
    fn intern(&mut self, columns: &[ArrayRef], groups: &mut Vec<usize>) -> Result<()> {
        self.keys.assign(&columns[0], groups);
        Ok(())
    }

    fn size(&self) -> usize {
        self.keys.bytes()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn len(&self) -> usize {
        self.keys.count()
    }

    fn emit(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let count = match emit_to {
            EmitTo::All => self.keys.count(),
            EmitTo::First(count) => count,
        };
        Ok(vec![self.keys.take_first(count, &self.data_type)])
    }

    fn clear_shrink(&mut self, num_rows: usize) {
        self.keys.clear();
        self.keys.shrink_to(num_rows);
    }
}

/// Keys, numbered in the order in which they first appear.
#[derive(Default)]
pub(crate) struct NumberKeys {
    /// Slots: a power of two, at least twice the number of keys; none before the first row. A slot contains a key's
    /// bits, followed by its generation and its number, of 32 bits each. A slot of another generation is empty.
    slots: Vec<[u64; 2]>,
    /// The current generation, from 1: new memory is empty.
    now: u32,
    /// The bits of each key.
    keys: Vec<u64>,
    /// The number of the null key.
    null: Option<usize>,
    /// The bits of a batch's keys; kept to reuse the memory.
    bits: Vec<u64>,
}

const SLOTS_MIN: usize = 1024;
/// Rows between checks for enough slots: each row may have a new key.
const STRETCH_ROWS: usize = 512;
/// How many rows ahead a slot is prefetched.
const AHEAD: usize = 24;
/// Up to this size, slots stay in a processor's own cache and need no prefetching.
const NEAR_BYTES: usize = 1 << 18;

impl NumberKeys {
    pub(crate) fn count(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<[u64; 2]>() + (self.keys.capacity() + self.bits.capacity()) * size_of::<u64>()
    }

    /// Writes the number of each key to `numbers`.
    pub(crate) fn assign(&mut self, keys: &ArrayRef, numbers: &mut Vec<usize>) {
        numbers.clear();
        let mut bits = std::mem::take(&mut self.bits);
        bits_of(keys, &mut bits);
        numbers.reserve(bits.len());
        let nulls = keys.nulls().filter(|nulls| nulls.null_count() > 0);
        for from in (0..bits.len()).step_by(STRETCH_ROWS) {
            let to = bits.len().min(from + STRETCH_ROWS);
            self.make_room(to - from);
            let number = |keys: &mut Self, at: usize| match nulls {
                Some(nulls) if nulls.is_null(at) => keys.null_number(),
                _ => keys.number(bits[at]),
            };
            if size_of_val(self.slots.as_slice()) <= NEAR_BYTES {
                numbers.extend((from..to).map(|at| number(self, at)));
                continue;
            }
            numbers.extend((from..to).map(|at| {
                if let Some(&ahead) = bits.get(at + AHEAD) {
                    prefetch(&self.slots[place(ahead, self.slots.len())]);
                }
                number(self, at)
            }));
        }
        self.bits = bits;
    }

    fn null_number(&mut self) -> usize {
        *self.null.get_or_insert_with(|| {
            self.keys.push(0);
            self.keys.len() - 1
        })
    }

    #[inline]
    fn number(&mut self, key: u64) -> usize {
        let last = self.slots.len() - 1;
        let mut at = place(key, self.slots.len());
        loop {
            let [held, of] = &mut self.slots[at];
            if (*of >> 32) as u32 != self.now {
                let number = self.keys.len();
                (*held, *of) = (key, u64::from(self.now) << 32 | number as u64);
                self.keys.push(key);
                return number;
            }
            if *held == key {
                return *of as u32 as usize;
            }
            at = (at + 1) & last;
        }
    }

    /// Makes slots for `more` additional keys, with at most half of them in use.
    ///
    /// # Panics
    /// With more than four billion keys.
    fn make_room(&mut self, more: usize) {
        let keys = self.keys.len() + more;
        assert!(u32::try_from(keys).is_ok(), "more than four billion keys in one table: use more workers or threads");
        let slots = slots_for(keys);
        if slots > self.slots.len() {
            self.build(slots);
        }
    }

    /// Rebuilds the table with this number of slots.
    fn build(&mut self, slots: usize) {
        // Frees the old slots first.
        self.slots = Vec::new();
        self.slots = vec![[0; 2]; slots];
        self.now = 1;
        for (number, &key) in self.keys.iter().enumerate().filter(|(number, _)| Some(*number) != self.null) {
            if let Some(&ahead) = self.keys.get(number + AHEAD) {
                prefetch(&self.slots[place(ahead, slots)]);
            }
            let mut at = place(key, slots);
            while self.slots[at][1] != 0 {
                at = (at + 1) & (slots - 1);
            }
            self.slots[at] = [key, 1 << 32 | number as u64];
        }
    }

    /// Forgets all keys, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.null = None;
        match self.now.checked_add(1) {
            Some(next) => self.now = next,
            None => self.build(self.slots.len()),
        }
    }

    /// Frees memory far beyond what this number of keys needs; usually a similar number of keys follows.
    fn shrink_to(&mut self, keys: usize) {
        if self.slots.len() > 4 * slots_for(keys) {
            self.build(slots_for(keys));
            self.keys.shrink_to(keys);
        }
    }

    /// Removes and returns all keys, as a column.
    pub(crate) fn take(&mut self, data_type: &DataType) -> ArrayRef {
        let taken = self.take_first(self.keys.len(), data_type);
        *self = NumberKeys::default();
        taken
    }

    /// Removes and returns the first `count` keys, as a column; the numbers of the others decrease accordingly.
    fn take_first(&mut self, count: usize, data_type: &DataType) -> ArrayRef {
        // A vector that is refilled keeps its memory.
        let rest = if count == self.keys.len() { Vec::with_capacity(count) } else { self.keys.split_off(count) };
        let keys = std::mem::replace(&mut self.keys, rest);
        let null = self.null.filter(|null| *null < count);
        self.null = self.null.and_then(|null| null.checked_sub(count));
        match self.keys.is_empty() {
            true => self.clear(),
            false => self.build(self.slots.len()),
        }
        let nulls = null.map(|null| NullBuffer::from_iter((0..keys.len()).map(|number| number != null)));
        fn array<T: ArrowPrimitiveType>(keys: &[u64], nulls: Option<NullBuffer>, data_type: &DataType) -> ArrayRef {
            let values: ScalarBuffer<T::Native> = keys.iter().map(|&key| T::Native::usize_as(key as usize)).collect();
            Arc::new(PrimitiveArray::<T>::new(values, nulls).with_data_type(data_type.clone()))
        }
        macro_rules! array_of {
            ($t:ty) => {
                array::<$t>(&keys, nulls, data_type)
            };
        }
        downcast_primitive! {
            data_type => (array_of),
            other => unreachable!("{other} is not numeric")
        }
    }
}

fn slots_for(keys: usize) -> usize {
    (2 * keys).next_power_of_two().max(SLOTS_MIN)
}

/// The home slot of a key.
#[inline]
fn place(key: u64, slots: usize) -> usize {
    // Both halves of a product with an odd pseudorandom number: each bit of the key affects all of them.
    let product = u128::from(key ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
    (product as u64 ^ (product >> 64) as u64) as usize & (slots - 1)
}

/// The bits of each value; those of nulls are arbitrary.
fn bits_of(keys: &ArrayRef, bits: &mut Vec<u64>) {
    bits.clear();
    macro_rules! bits_of {
        ($t:ty) => {
            bits.extend(keys.as_primitive::<$t>().values().iter().map(|value| value.as_usize() as u64))
        };
    }
    downcast_primitive! {
        keys.data_type() => (bits_of),
        other => unreachable!("{other} is not numeric")
    }
}

// Integer conversions through `usize` keep all bits.
const _: () = assert!(usize::BITS == 64);

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow::array::{Int16Array, Int64Array, TimestampMicrosecondArray, UInt64Array};
    use arrow::datatypes::{Field, Int64Type, Schema};

    use super::*;

    fn numbered(batches: &[ArrayRef]) -> (Vec<usize>, ArrayRef) {
        let (mut groups, mut indices, mut all) = (NumberKeys::default(), Vec::new(), Vec::new());
        for keys in batches {
            groups.assign(keys, &mut indices);
            all.extend_from_slice(&indices);
        }
        let count = groups.count();
        let keys = groups.take(batches[0].data_type());
        assert_eq!((keys.len(), groups.count()), (count, 0));
        (all, keys)
    }

    /// Keys that share a slot, grow the table or are null must neither be merged nor split. Compares with a map, for
    /// many sizes, numbers of keys and positions of the differing bits.
    #[test]
    fn equals_a_map() {
        let mut state = 1_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..120 {
            // Some have more slots than stay in the cache.
            let most = if round % 8 == 1 { 60_000 } else { 6000 };
            let (batches, keys, shift, nulls) = (1 + next(4), 1 + next(most), next(64) as u32, round % 2 == 0);
            let batch = |next: &mut dyn FnMut(u64) -> u64| -> Vec<Option<i64>> {
                let rows = 1 + next(most / 2);
                let key = |_| (!nulls || next(10) > 0).then(|| (next(keys) as i64).rotate_left(shift));
                (0..rows).map(key).collect()
            };
            let batches: Vec<Vec<Option<i64>>> = (0..batches).map(|_| batch(&mut next)).collect();
            let arrays: Vec<ArrayRef> =
                batches.iter().map(|keys| Arc::new(Int64Array::from(keys.clone())) as ArrayRef).collect();
            let (found, keys) = numbered(&arrays);
            let mut seen: HashMap<Option<i64>, usize> = HashMap::new();
            for (row, group) in batches.concat().iter().zip(found) {
                let count = seen.len();
                assert_eq!(*seen.entry(*row).or_insert(count), group, "round {round}");
            }
            let keys = keys.as_primitive::<Int64Type>();
            assert_eq!(keys.len(), seen.len());
            keys.iter().enumerate().for_each(|(group, key)| assert_eq!(seen[&key], group, "round {round}"));
        }
    }

    /// The way DataFusion uses keys: emitted keys are gone, the others have smaller numbers, and a table that is
    /// cleared again and again, for longer than the generation counter lasts, does not remember old keys.
    #[test]
    fn some_go_and_all_go() {
        let schema = Arc::new(Schema::new(vec![Field::new("key", DataType::Int64, true)]));
        let mut groups = KeyColumn { keys: NumberKeys::default(), data_type: DataType::Int64 };
        let mut theirs = new_group_values(schema, &GroupOrdering::None).unwrap();
        let mut state = 7_u64;
        for round in 0..60 {
            let mut next = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            let rows = next(3000);
            let keys: ArrayRef =
                Arc::new((0..rows).map(|_| (next(9) > 0).then(|| next(2000) as i64)).collect::<Int64Array>());
            let (mut mine, mut expected) = (Vec::new(), Vec::new());
            groups.intern(&[Arc::clone(&keys)], &mut mine).unwrap();
            theirs.intern(&[keys], &mut expected).unwrap();
            assert_eq!((&mine, groups.len()), (&expected, theirs.len()), "round {round}");
            let emit = || match round % 3 {
                0 => EmitTo::First(theirs.len() / 2),
                _ => EmitTo::All,
            };
            if round % 4 != 3 {
                let all = matches!(emit(), EmitTo::All);
                let found = groups.emit(emit()).unwrap();
                assert_eq!(found, theirs.emit(emit()).unwrap(), "round {round}");
                if all {
                    groups.clear_shrink(found[0].len());
                    theirs.clear_shrink(found[0].len());
                    assert!(groups.is_empty());
                    if round == 10 {
                        groups.keys.now = u32::MAX - 2;
                    }
                }
            }
        }
    }

    /// A type whose values lost bits, or their unit, in the table would come out with different keys.
    #[test]
    fn keys_of_all_types_come_back() {
        let times = TimestampMicrosecondArray::from(vec![-1, i64::MIN, i64::MAX, 0]).with_timezone("Europe/Berlin");
        let arrays: [ArrayRef; 3] = [
            Arc::new(Int16Array::from(vec![Some(-1), Some(i16::MIN), None, Some(i16::MAX)])),
            Arc::new(UInt64Array::from(vec![0, u64::MAX, 1 << 63, 1])),
            Arc::new(times),
        ];
        for array in arrays {
            let (indices, keys) = numbered(&[Arc::clone(&array), Arc::clone(&array)]);
            assert_eq!(indices, [0, 1, 2, 3, 0, 1, 2, 3]);
            assert_eq!(keys.as_ref(), array.as_ref());
        }
    }
}

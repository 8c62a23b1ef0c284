//! Rows in flight to a port when a barrier overtook them: to bytes, and back to whoever takes them when the job goes
//! on.

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use bytes::{Buf, Bytes};
use tidemill_checkpoint::{RestoredState, rows};

use crate::error::TaskError;
use crate::partitioner::{RowAssigner, RowAssignment};

/// What the rows are made of; names may change.
pub(crate) fn described(schema: &SchemaRef) -> String {
    let types: Vec<String> = schema.fields().iter().map(|field| field.data_type().to_string()).collect();
    types.join(", ")
}

/// Batches of one schema, each behind its length; first of all their types.
///
/// # Errors
/// When a column cannot be encoded.
pub(crate) fn encode(batches: &[RecordBatch]) -> Result<Bytes, TaskError> {
    let mut bytes = Vec::new();
    let mut put = |part: &[u8]| {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part);
    };
    put(batches.first().map(|batch| described(batch.schema_ref())).unwrap_or_default().as_bytes());
    for batch in batches {
        put(&rows::encode(batch)?);
    }
    Ok(bytes.into())
}

/// The next part of what [`encode`] made.
pub(crate) fn next(bytes: &mut Bytes) -> Result<Bytes, TaskError> {
    let cut = || TaskError::from("rows in flight are truncated");
    let len = usize::try_from(bytes.try_get_u64_le().map_err(|_| cut())?)?;
    (len <= bytes.len()).then(|| bytes.split_to(len)).ok_or_else(cut)
}

/// # Errors
/// When rows that were [`described`] so are not of this schema.
pub(crate) fn check_described(schema: &SchemaRef, then: &str) -> Result<(), TaskError> {
    let now = described(schema);
    if then == now {
        return Ok(());
    }
    Err(format!(
        "the rows in flight at the checkpoint have the schema ({then}), but the task takes ({now}): run the program as \
         it was and stop it with a checkpoint, which leaves nothing in flight"
    )
    .into())
}

pub(super) fn decode(schema: &SchemaRef, mut bytes: Bytes) -> Result<Vec<RecordBatch>, TaskError> {
    check_described(schema, &String::from_utf8_lossy(&next(&mut bytes)?))?;
    let mut batches = Vec::new();
    while !bytes.is_empty() {
        batches.push(rows::decode(schema, &next(&mut bytes)?)?);
    }
    Ok(batches)
}

/// Who gets rows that were on their way to copies of which there were not as many.
pub(crate) enum InFlightRouting {
    /// Each row goes where its edge sends it now.
    Assigned(Box<dyn RowAssigner>),
    /// Copies are followed by others.
    ByCopy,
}

/// What a copy's port takes first.
pub(crate) struct InFlightReplay {
    copy: u32,
    copies: u32,
    /// By the copy then.
    parts: Vec<(u32, Bytes)>,
    dealing: Option<InFlightRouting>,
}

impl InFlightReplay {
    /// What was in flight to `port` of a copy of `copies`; `None` when nothing was. `dealing` says how it is dealt if
    /// need be.
    pub(crate) fn of(
        restored: Option<&RestoredState>,
        port: u32,
        (copy, copies): (u32, u32),
        dealing: impl FnOnce() -> InFlightRouting,
    ) -> Option<Self> {
        let restored = restored?;
        let parts = restored.in_flight.iter().filter(|((_, of), _)| *of == port);
        let parts: Vec<(u32, Bytes)> = parts.map(|((then, _), bytes)| (*then, bytes.clone())).collect();
        let dealing = restored.rescaled.then(dealing);
        (!parts.is_empty()).then_some(InFlightReplay { copy, copies, parts, dealing })
    }

    /// The rows that are this copy's, in the order in which they were to be taken.
    ///
    /// # Errors
    /// When they are of another schema, or damaged; when they cannot be dealt.
    pub(crate) fn rows(mut self, schema: &SchemaRef) -> Result<Vec<RecordBatch>, TaskError> {
        let mut mine = Vec::new();
        for (then, bytes) in std::mem::take(&mut self.parts) {
            if matches!(self.dealing, Some(InFlightRouting::ByCopy)) && then % self.copies != self.copy {
                continue;
            }
            for batch in decode(schema, bytes)? {
                mine.extend(share_of(&mut self.dealing, self.copy, batch)?);
            }
        }
        Ok(mine)
    }
}

/// The rows of a batch that are now a copy's.
///
/// # Errors
/// When they cannot be dealt.
pub(crate) fn share_of(
    dealing: &mut Option<InFlightRouting>,
    copy: u32,
    batch: RecordBatch,
) -> Result<Option<RecordBatch>, TaskError> {
    let Some(InFlightRouting::Assigned(assign)) = dealing else { return Ok(Some(batch)) };
    let mut targets = Vec::new();
    let share = match assign.assign(&batch, &mut targets)? {
        RowAssignment::Whole(target) => (target == copy).then_some(batch),
        RowAssignment::ByRow => {
            let mine: BooleanArray = targets.iter().map(|target| Some(*target == copy)).collect();
            Some(filter_record_batch(&batch, &mine)?)
        }
    };
    Ok(share.filter(|batch| batch.num_rows() > 0))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array, StringArray};
    use arrow::datatypes::Int64Type;

    use super::*;

    fn numbers(values: std::ops::Range<i64>) -> RecordBatch {
        RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from_iter_values(values)) as ArrayRef)]).unwrap()
    }

    /// By remainder.
    struct ModuloPartitioner(i64);

    impl RowAssigner for ModuloPartitioner {
        fn assign(&mut self, batch: &RecordBatch, targets: &mut Vec<u32>) -> Result<RowAssignment, TaskError> {
            targets.extend(batch.column(0).as_primitive::<Int64Type>().values().iter().map(|n| (n % self.0) as u32));
            Ok(RowAssignment::ByRow)
        }
    }

    fn replayed(restored: &RestoredState, port: u32, id: (u32, u32), dealing: fn(u32) -> InFlightRouting) -> Vec<i64> {
        let Some(replay) = InFlightReplay::of(Some(restored), port, id, || dealing(id.1)) else { return Vec::new() };
        let rows = replay.rows(&numbers(0..0).schema()).unwrap();
        rows.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
    }

    /// Each row comes back once, whatever the number of copies, and in its order.
    #[test]
    fn rows_are_dealt_once() {
        let in_flight = vec![
            ((0, 0), encode(&[numbers(0..3), numbers(10..12)]).unwrap()),
            ((0, 1), encode(&[numbers(90..91)]).unwrap()),
            ((1, 0), encode(&[numbers(20..29)]).unwrap()),
        ];
        let same = RestoredState { in_flight: in_flight[..2].to_vec(), ..RestoredState::default() };
        assert_eq!(replayed(&same, 0, (0, 2), |_| unreachable!("nothing is dealt")), [0, 1, 2, 10, 11]);
        assert_eq!(replayed(&same, 2, (0, 2), |_| unreachable!("nothing is there")), [] as [i64; 0]);
        let other = RestoredState { in_flight, rescaled: true, ..RestoredState::default() };
        for copies in [1, 2, 3, 7] {
            for dealing in [
                (|copies| InFlightRouting::Assigned(Box::new(ModuloPartitioner(copies.into()))))
                    as fn(u32) -> InFlightRouting,
                |_| InFlightRouting::ByCopy,
            ] {
                let dealt: Vec<Vec<i64>> =
                    (0..copies).map(|copy| replayed(&other, 0, (copy, copies), dealing)).collect();
                assert!(dealt.iter().all(|rows| rows.is_sorted()));
                let mut all = dealt.concat();
                all.sort_unstable();
                assert_eq!(all, (0..3).chain(10..12).chain(20..29).collect::<Vec<_>>());
            }
        }
    }

    /// A program that has changed must hear so, and not take a date for a number.
    #[test]
    fn what_does_not_fit_is_refused() {
        let texts = RecordBatch::try_from_iter([("t", Arc::new(StringArray::from(vec!["a"])) as ArrayRef)]).unwrap();
        let bytes = encode(&[texts.clone(), texts.clone()]).unwrap();
        assert_eq!(decode(&texts.schema(), bytes.clone()).unwrap(), [texts.clone(), texts.clone()]);
        let error = decode(&numbers(0..1).schema(), bytes.clone()).unwrap_err().to_string();
        assert!(error.contains("have the schema (Utf8), but the task takes (Int64)"), "{error}");
        for len in [0, 7, 9, bytes.len() - 1] {
            assert!(decode(&texts.schema(), bytes.slice(..len)).is_err(), "{len}");
        }
    }
}

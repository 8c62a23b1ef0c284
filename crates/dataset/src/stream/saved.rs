//! What copies of a task share in checkpoints: the time that they had come to, and what their states are of.

use arrow::datatypes::Schema;
use bytes::Bytes;
use tidemill_dataflow::TaskError;
use tidemill_dataflow::checkpoint::{Restored, Snapshot};

use super::window::Micros;

/// What copies share in checkpoints.
const FIRED: &str = "fired";
const SCHEMA: &str = "schema";

/// Which windows there are, and the columns that are saved, but for the first ones, which are ours.
fn described(windows: &str, schema: &Schema, before: usize) -> String {
    let fields: Vec<String> =
        schema.fields().iter().skip(before).map(|field| format!("{}: {}", field.name(), field.data_type())).collect();
    format!("{windows} of {}", fields.join(", "))
}

/// A snapshot with what copies share: the time until which windows have fired, and the columns of what is saved.
pub(crate) fn shared(fired: Micros, windows: &str, schema: &Schema, before: usize) -> Snapshot {
    let fired = Bytes::copy_from_slice(&fired.to_le_bytes());
    let shared = vec![(FIRED.into(), fired), (SCHEMA.into(), described(windows, schema, before).into())];
    Snapshot { shared, ..Snapshot::default() }
}

/// Whether what was saved is of the query as it is now.
pub(crate) fn check_schema(
    restored: &Restored,
    windows: &str,
    schema: &Schema,
    before: usize,
) -> Result<(), TaskError> {
    let now = described(windows, schema, before);
    for then in restored.shared.get(SCHEMA).into_iter().flatten() {
        let then = String::from_utf8_lossy(then);
        if then != now {
            return Err(format!(
                "the checkpoint has states of other windows, aggregates or rows ({then}) than the query now ({now}); begin anew in another \
                 place, or change the query back"
            )
            .into());
        }
    }
    Ok(())
}

/// The time until which windows of a bucket had fired.
pub(crate) fn fired_by(restored: &Restored, bucket: u32) -> Result<Option<Micros>, TaskError> {
    restored.shared_of(bucket, FIRED).map(time_of).transpose()
}

fn time_of(bytes: &Bytes) -> Result<Micros, TaskError> {
    let time: [u8; 8] = bytes.as_ref().try_into().map_err(|_| "a checkpoint's time is no time")?;
    Ok(Micros::from_le_bytes(time))
}

/// The time until which windows had fired.
pub(crate) fn fired_of(restored: &Restored) -> Result<Micros, TaskError> {
    let mut last = Micros::MIN;
    for fired in restored.shared.get(FIRED).into_iter().flatten() {
        last = last.max(time_of(fired)?);
    }
    Ok(last)
}

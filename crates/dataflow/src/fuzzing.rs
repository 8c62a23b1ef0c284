//! Functions that fuzz targets and property tests feed with arbitrary bytes: messages about failures, and another
//! worker's counters. A decoder must not panic, or read beyond a message.

use crate::observation::CounterTable;
use crate::run::RunFault;

/// Decodes a message about a failure. Panics if the result is longer than the bytes allow. Returns whether the
/// message was valid.
pub fn fault(bytes: &[u8]) -> bool {
    let fault = RunFault::decode(bytes);
    if let Some(fault) = &fault {
        // Invalid text is replaced by a character of three bytes.
        assert!(fault.task.len() + fault.message.len() <= 3 * bytes.len());
    }
    fault.is_some()
}

/// Decodes a worker's counters. Panics if they change when encoded and decoded again. Returns whether they were
/// valid.
pub fn counters(bytes: &[u8]) -> bool {
    let (workers, tasks) = (8, 8);
    let mut table = CounterTable::default();
    let is_read = table.apply(bytes, workers, tasks).is_ok();
    if is_read {
        let (mut here, mut there) = (CounterTable::default(), CounterTable::default());
        let message = here.update(&table.sample(0), true);
        there.apply(&message, workers, tasks).expect("what is told can be read");
        assert_eq!(here, there);
    }
    is_read
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_counters_or_refused(bytes in prop::collection::vec(0u8..12, 0..40)) {
            counters(&bytes);
            // The number of a message, with a row for the worker.
            counters(&[&[0, 1, 0], &bytes[..]].concat());
        }

        #[test]
        fn any_bytes_are_a_fault_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400), task in 0u8..40) {
            fault(&bytes);
            let mut framed = vec![0; 8];
            framed.extend_from_slice(&u32::from(task).to_le_bytes());
            framed.extend_from_slice(&bytes);
            prop_assert_eq!(fault(&framed), usize::from(task) <= bytes.len());
        }
    }
}

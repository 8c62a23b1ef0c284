//! What fuzz targets and property tests feed with bytes from nowhere: the news of a failure. A decoder must not panic,
//! and not read beyond a message.

use crate::run::RunFault;

/// Decodes the news of a failure. Panics when what was decoded is longer than the bytes allow. Returns whether it was
/// one.
pub fn fault(bytes: &[u8]) -> bool {
    let fault = RunFault::decode(bytes);
    if let Some(fault) = &fault {
        // What is no text is replaced by a character of three bytes.
        assert!(fault.task.len() + fault.message.len() <= 3 * bytes.len());
    }
    fault.is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
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

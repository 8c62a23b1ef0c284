//! The news of a failure, as another worker sends it: a fault that is no longer than its bytes, or a refusal.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    tidemill_dataflow::fuzzing::fault(bytes);
});

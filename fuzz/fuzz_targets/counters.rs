//! What a worker has counted, as another one tells it: a table that can be told again, or a refusal.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    tidemill_dataflow::fuzzing::counters(bytes);
});

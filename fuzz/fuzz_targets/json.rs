//! Records of JSON: the same rows as Arrow's decoder gives, or none.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    tidemill_json::fuzzing::plain_records(bytes);
});

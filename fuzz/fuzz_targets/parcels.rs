//! The message in front of an object's arrays: lengths that fit it, or a refusal.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tidemill_collective::fuzzing::parcel(bytes));

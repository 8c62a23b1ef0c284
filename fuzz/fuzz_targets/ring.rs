//! A ring in shared memory whose other side, or a third, writes over it: frames or a refusal, and no access outside.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| tidemill_net::fuzzing::ring(script));

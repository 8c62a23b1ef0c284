//! A file of measured choices, which people edit and rank 0 sends to all: refused, or a table that is the same when it is written
//! and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| tidemill_collective::fuzzing::table(text));

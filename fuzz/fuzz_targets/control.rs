//! Bytes on a control link: messages or a refusal, the same however the stream is cut.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], &[u8])| tidemill_net::fuzzing::control(input.1, input.0));

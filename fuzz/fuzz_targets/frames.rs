//! Bytes on a TCP connection: frames or a refusal, the same however the stream is cut. The first bytes say how.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], &[u8])| tidemill_net::fuzzing::frames(input.1, input.0));

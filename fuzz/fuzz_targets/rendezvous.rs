//! Bytes of a stranger at the rendezvous, as a client and as a server, and what
//! authenticated workers may send first.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    tidemill_net::fuzzing::handshake(bytes);
    tidemill_net::fuzzing::told(bytes);
    tidemill_net::fuzzing::joining(bytes);
});

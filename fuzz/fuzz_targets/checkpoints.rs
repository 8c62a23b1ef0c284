//! Bytes of a checkpoint's manifest, of a report and of a barrier: refused, or what they encode to. Half of the inputs become
//! a manifest whose checksum is right.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_checkpoint::fuzzing;

fuzz_target!(|input: (bool, &[u8])| {
    let (framed, bytes) = input;
    match framed {
        true => fuzzing::checkpoints(&fuzzing::manifest(bytes)),
        false => fuzzing::checkpoints(bytes),
    };
});

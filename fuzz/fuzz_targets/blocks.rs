//! Bytes of a message between dataflow workers: frames or a refusal, damage never unnoticed. Half of the inputs begin as a
//! frame whose body is the input.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_batch::fuzzing;

fuzz_target!(|input: (bool, usize, u8, &[u8])| {
    let (framed, at, flip, bytes) = input;
    if !framed {
        fuzzing::frames(bytes);
        return;
    }
    let mut frame = fuzzing::frame(1, bytes);
    assert_eq!(fuzzing::frames(&frame), 1);
    let at = at % frame.len();
    frame[at] ^= flip;
    fuzzing::frames(&frame);
});

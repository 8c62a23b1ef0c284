//! The header of an array in NumPy's format: one that is the same when it is written and read again, or a refusal. Half of the inputs become
//! a header that is as long as it says.
#![no_main]

// It needs nothing but the standard library; to build its crate is to build all of DataFusion.
#[path = "../../crates/dataset/src/files/npy/header.rs"]
mod header;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, u8, &[u8])| {
    let (framed, version, bytes) = input;
    match framed {
        true => header::fuzz(&header::framed(version % 3 + 1, bytes)),
        false => header::fuzz(bytes),
    };
});

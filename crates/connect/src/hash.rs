//! Pseudorandom numbers that are the same everywhere and always.

use twox_hash::XxHash3_64;

/// One round of SplitMix64: consecutive inputs give unrelated outputs.
///
/// Source: Steele, Lea and Flood (2014), "Fast splittable pseudorandom number generators".
pub(crate) fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The hash of a name.
pub(crate) fn of_name(name: &str) -> u64 {
    of_bytes(name.as_bytes())
}

/// The hash of bytes.
pub(crate) fn of_bytes(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// A unique name, in hexadecimal.
pub(crate) fn unique() -> String {
    use std::collections::hash_map::RandomState;
    use std::hash::{BuildHasher, Hasher};
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

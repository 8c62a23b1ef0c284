//! Copies whose speed does not depend on an accident of addresses.
//!
//! `rep movsb`, with which the kernel and the C library copy blocks of a few KiB, is about fifteen times slower on
//! several processors if the target lies 1 to 31 bytes behind the source within a page, however far apart the pages
//! are: each load then looks as if it depended on the store before it. Two arrays whose lengths are whole pages,
//! allocated one after the other, lie exactly so, 16 bytes apart, and so do the same two arrays of two workers that
//! run the same program. Seen on AMD EPYC; glibc's `memmove` avoids the same "4K aliasing" only in its longest
//! copies.

use std::cell::RefCell;
use std::io;

const PAGE_BYTES: usize = 4096;
/// A target less than this far behind its source is a trap.
const TRAP_BYTES: usize = 32;
/// Shorter blocks are not copied with `rep movsb`, or are so short that it does not matter.
const TRAPPED_BYTES_MIN: usize = 2048;
/// How much of a copy goes through intermediate memory at once: it fits a core's own cache.
const DETOUR_BYTES: usize = 64 << 10;

/// Whether a copy of `len` bytes would be slow.
#[inline]
pub(crate) fn is_trap(from: usize, into: usize, len: usize) -> bool {
    len >= TRAPPED_BYTES_MIN && (1..TRAP_BYTES).contains(&(into.wrapping_sub(from) % PAGE_BYTES))
}

/// Copies `len` bytes.
///
/// # Safety
/// `from` is readable and `into` writable for `len` bytes, and the two do not overlap.
#[inline]
pub unsafe fn copy(from: *const u8, into: *mut u8, len: usize) {
    if is_trap(from.addr(), into.addr(), len) {
        // SAFETY: by this function's contract.
        unsafe { copy_by_blocks(from, into, len) }
    } else {
        // SAFETY: by this function's contract.
        unsafe { std::ptr::copy_nonoverlapping(from, into, len) }
    }
}

/// Copies `len` bytes between ranges that may overlap, such as the buffers of an in-place operation.
///
/// # Safety
/// `from` is readable and `into` writable for `len` bytes.
#[inline]
pub unsafe fn copy_or_move(from: *const u8, into: *mut u8, len: usize) {
    if from.addr() == into.addr() {
        // In place: others may be reading the same bytes.
    } else if from.addr().abs_diff(into.addr()) >= len {
        // SAFETY: they do not overlap, as just checked; the rest is this function's contract.
        unsafe { copy(from, into, len) }
    } else {
        // SAFETY: by this function's contract.
        unsafe { std::ptr::copy(from, into, len) }
    }
}

/// `into.copy_from_slice(from)`.
///
/// # Panics
/// If the lengths differ, which is a bug of the caller.
#[inline]
pub fn copy_slice(into: &mut [u8], from: &[u8]) {
    assert_eq!(into.len(), from.len(), "a copy is as long as its source");
    // SAFETY: both are `len` bytes long, and an exclusive slice overlaps no other.
    unsafe { copy(from.as_ptr(), into.as_mut_ptr(), from.len()) }
}

/// Loads a whole block before storing it, so that few loads follow a store that looks related.
///
/// # Safety
/// As [`copy`].
#[cold]
unsafe fn copy_by_blocks(from: *const u8, into: *mut u8, len: usize) {
    type Block = [u128; 8];
    let whole = len - len % size_of::<Block>();
    // SAFETY: `whole` and the rest make up `len`; the accesses require no alignment.
    unsafe {
        for at in (0..whole).step_by(size_of::<Block>()) {
            let block = from.add(at).cast::<Block>().read_unaligned();
            into.add(at).cast::<Block>().write_unaligned(block);
        }
        std::ptr::copy_nonoverlapping(from.add(whole), into.add(whole), len - whole);
    }
}

/// Makes `read` copy from `from`, an address that only it understands; avoids a trap by way of intermediate memory.
pub(crate) fn read_around(
    from: usize,
    into: &mut [u8],
    mut read: impl FnMut(usize, &mut [u8]) -> io::Result<()>,
) -> io::Result<()> {
    if !is_trap(from, into.as_ptr().addr(), into.len()) {
        return read(from, into);
    }
    detour(from, |between| {
        for (i, part) in into.chunks_mut(DETOUR_BYTES).enumerate() {
            let between = &mut between[..part.len()];
            read(from + i * DETOUR_BYTES, between)?;
            part.copy_from_slice(between);
        }
        Ok(())
    })
}

/// Makes `write` copy to `into`, an address that only it understands; avoids a trap by way of intermediate memory.
pub(crate) fn write_around(
    from: &[u8],
    into: usize,
    mut write: impl FnMut(&[u8], usize) -> io::Result<()>,
) -> io::Result<()> {
    if !is_trap(from.as_ptr().addr(), into, from.len()) {
        return write(from, into);
    }
    detour(into, |between| {
        for (i, part) in from.chunks(DETOUR_BYTES).enumerate() {
            let between = &mut between[..part.len()];
            between.copy_from_slice(part);
            write(between, into + i * DETOUR_BYTES)?;
        }
        Ok(())
    })
}

/// Lends memory half a page away from `place` within its page, where neither a copy from it nor a copy to it is slow.
fn detour<R>(place: usize, with: impl FnOnce(&mut [u8]) -> R) -> R {
    thread_local! {
        static BETWEEN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    BETWEEN.with_borrow_mut(|memory| {
        memory.resize(DETOUR_BYTES + PAGE_BYTES, 0);
        let start = (place + PAGE_BYTES / 2).wrapping_sub(memory.as_ptr().addr()) % PAGE_BYTES;
        with(&mut memory[start..start + DETOUR_BYTES])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first byte of a page in memory of `pages` pages plus one.
    fn pages(pages: usize, fill: impl Fn(usize) -> u8) -> (Vec<u8>, usize) {
        let memory: Vec<u8> = (0..(pages + 1) * PAGE_BYTES).map(fill).collect();
        let start = memory.as_ptr().align_offset(PAGE_BYTES);
        (memory, start)
    }

    #[test]
    fn every_byte_and_no_other() {
        let (source, from) = pages(2, |i| (i * 7 + i / 256) as u8);
        for behind in [0, 1, 16, 31, 32, 4080] {
            for len in [0, 1, 2047, 2048, 2049, 2200, 4000] {
                let (mut target, page) = pages(3, |_| 0);
                let into = page + behind;
                assert_eq!(
                    is_trap(source[from..].as_ptr().addr(), target[into..].as_ptr().addr(), len),
                    (1..32).contains(&behind) && len >= 2048
                );
                copy_slice(&mut target[into..into + len], &source[from..from + len]);
                assert_eq!(target[into..into + len], source[from..from + len], "{behind} {len}");
                assert!(target[..into].iter().chain(&target[into + len..]).all(|byte| *byte == 0), "{behind} {len}");
            }
        }
    }

    /// Copies by another function avoid a trap in parts, none of which is a trap itself.
    #[test]
    fn detours_are_no_traps_themselves() {
        for len in [PAGE_BYTES, DETOUR_BYTES, 2 * DETOUR_BYTES + 5] {
            for (from_in_page, into_in_page) in [(0, 16), (100, 101), (4090, 2), (64, 64), (0, 2048)] {
                let (source, page) = pages(len / PAGE_BYTES + 3, |i| (i * 7 + i / 256) as u8);
                let (mut target, target_page) = pages(len / PAGE_BYTES + 3, |_| 0);
                let source = &source[page + from_in_page..][..len];
                let target = &mut target[target_page + into_in_page..][..len];
                let start = source.as_ptr().addr();
                read_around(start, target, |from, into| {
                    assert!(!is_trap(from, into.as_ptr().addr(), into.len()));
                    into.copy_from_slice(&source[from - start..][..into.len()]);
                    Ok(())
                })
                .unwrap();
                assert_eq!(source, target);
                target.fill(0);
                let start = target.as_ptr().addr();
                write_around(source, start, |from, into| {
                    assert!(!is_trap(from.as_ptr().addr(), into, from.len()));
                    target[into - start..][..from.len()].copy_from_slice(from);
                    Ok(())
                })
                .unwrap();
                assert_eq!(source, target);
            }
        }
    }
}

//! Puts large allocations into huge pages, if the kernel provides them on advice, as is usual. Otherwise a growing
//! table makes the kernel clear and map 4 KiB at a time, and every lookup needs its own page table entry.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: usize = 2 << 20;
/// An allocation of this size contains at least one whole huge page, wherever it starts.
const BYTES_MIN: usize = 2 * PAGE;
/// Malloc's own alignment. With a larger one, the system's allocator grows an allocation by moving it into new memory,
/// for which no advice was given.
const ALIGN: usize = 2 * size_of::<usize>();

/// Whether large allocations use huge pages. A small budget has no room for their unused ends.
static ADVISES: AtomicBool = AtomicBool::new(true);

pub(super) fn use_huge_pages(uses: bool) {
    ADVISES.store(uses, Ordering::Relaxed);
}

/// The system's allocator with huge pages for large allocations, for a program's `#[global_allocator]`.
#[derive(Debug)]
pub struct HugePages;

#[inline]
fn advised(memory: *mut u8, bytes: usize) -> *mut u8 {
    if bytes >= BYTES_MIN {
        advise(memory.addr(), bytes);
    }
    memory
}

#[cold]
fn advise(first: usize, bytes: usize) {
    if first == 0 || !ADVISES.load(Ordering::Relaxed) {
        return;
    }
    let (start, end) = (first.next_multiple_of(PAGE), (first + bytes) / PAGE * PAGE);
    #[cfg(target_os = "linux")]
    // SAFETY: the range lies within the allocation, and the advice does not change its contents. A kernel without huge
    // pages returns an error and provides small pages.
    unsafe {
        libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, end);
}

// SAFETY: all memory comes from `System`, with the same layouts.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the caller's contract.
        advised(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the caller's contract.
        advised(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: by the caller's contract.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if layout.align() <= ALIGN || bytes < BYTES_MIN {
            // SAFETY: by the caller's contract.
            return advised(unsafe { System.realloc(memory, layout, bytes) }, bytes);
        }
        // SAFETY: the caller guarantees that this size is valid for the alignment.
        let grown = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        // SAFETY: `bytes` is not zero; both are at least as large as the copied range, and the old allocation is not
        // used any more.
        unsafe {
            let moved = self.alloc(grown);
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(memory, layout.size().min(bytes));
                System.dealloc(memory, layout);
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(align: usize, sizes: [usize; 2]) {
        let layout = Layout::from_size_align(sizes[0], align).unwrap();
        // SAFETY: layouts of existing memory, and bytes within it.
        unsafe {
            let memory = HugePages.alloc(layout);
            for at in 0..sizes[0] {
                memory.add(at).write(at as u8);
            }
            let memory = HugePages.realloc(memory, layout, sizes[1]);
            assert_eq!(memory.addr() % align, 0);
            assert!((0..sizes[0].min(sizes[1])).all(|at| memory.add(at).read() == at as u8));
            HugePages.dealloc(memory, Layout::from_size_align(sizes[1], align).unwrap());
        }
    }

    #[test]
    fn memory_grows_and_shrinks() {
        for align in [1, 8, ALIGN, 64, 128, 4096] {
            for sizes in
                [[1, 7], [100, BYTES_MIN], [BYTES_MIN - 1, BYTES_MIN + 1], [BYTES_MIN + PAGE, 3], [BYTES_MIN, 5 * PAGE]]
            {
                grown(align, sizes);
            }
        }
    }

    #[test]
    fn zeroed_memory_is_zero() {
        let layout = Layout::from_size_align(BYTES_MIN + 5, 64).unwrap();
        // SAFETY: as above.
        unsafe {
            let memory = HugePages.alloc_zeroed(layout);
            assert!((0..layout.size()).all(|at| memory.add(at).read() == 0));
            HugePages.dealloc(memory, layout);
        }
    }
}

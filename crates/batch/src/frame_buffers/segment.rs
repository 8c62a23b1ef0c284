//! An allocator for memory that several workers map: a frame for a worker of the same host is written into an extent of
//! it and read in place.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_net::Segment;

/// Extents begin and end at multiples of the page size: this aligns them for every type, and no two share a cache line.
const STEP_BYTES: usize = 4096;

/// See the module.
pub struct SegmentAllocator {
    segment: Segment,
    /// Start and length of each free range; no two are adjacent.
    free: Mutex<BTreeMap<usize, usize>>,
}

impl SegmentAllocator {
    /// All of a segment except its first page.
    pub fn new(segment: Segment) -> Arc<Self> {
        let len = segment.len().saturating_sub(STEP_BYTES) / STEP_BYTES * STEP_BYTES;
        let free = (len > 0).then_some((STEP_BYTES, len)).into_iter().collect();
        Arc::new(SegmentAllocator { segment, free: Mutex::new(free) })
    }

    /// An extent for `len` bytes, at least one; `None` while no free range is long enough.
    pub fn take(self: &Arc<Self>, len: usize) -> Option<Extent> {
        let len = len.next_multiple_of(STEP_BYTES);
        let mut free = self.free.lock();
        // The lowest one, so that few pages are in use and these stay in the caches.
        let (start, found) = free.iter().map(|(start, len)| (*start, *len)).find(|(_, found)| *found >= len)?;
        free.remove(&start);
        if found > len {
            free.insert(start + len, found - len);
        }
        drop(free);
        Some(Extent { space: Arc::clone(self), start, len })
    }

    fn give_back(&self, mut start: usize, mut len: usize) {
        let mut free = self.free.lock();
        if let Some((&before, &free_before)) = free.range(..start).next_back()
            && before + free_before == start
        {
            (start, len) = (before, len + free_before);
        }
        if let Some(after) = free.remove(&(start + len)) {
            len += after;
        }
        free.insert(start, len);
    }

    /// The offset of `bytes` in the segment, if they lie in it.
    pub fn offset_of(&self, bytes: &[u8]) -> Option<usize> {
        let offset = bytes.as_ptr().addr().checked_sub(self.segment.base().addr().get())?;
        (offset < self.segment.len()).then_some(offset)
    }
}

/// A range of a [`SegmentAllocator`] with a single owner.
pub struct Extent {
    space: Arc<SegmentAllocator>,
    start: usize,
    len: usize,
}

impl Extent {
    pub(crate) fn ptr(&self) -> NonNull<u8> {
        // SAFETY: an extent lies within its segment.
        unsafe { self.space.segment.base().add(self.start) }
    }

    /// The memory to write to.
    pub(crate) fn spare(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: the extent has `len` bytes there, which nothing else reads or writes until it is handed on.
        unsafe { slice::from_raw_parts_mut(self.ptr().as_ptr().cast(), self.len) }
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.space.give_back(self.start, self.len);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Overlapping extents would silently corrupt data; lost ones would leak memory.
        #[test]
        fn places_are_apart_and_come_back(steps in prop::collection::vec((any::<prop::sample::Index>(), 1usize..40_000), 1..200)) {
            let space = SegmentAllocator::new(Segment::private(40 * STEP_BYTES + 100).unwrap());
            let mut held: Vec<Extent> = Vec::new();
            for (which, len) in steps {
                match space.take(len) {
                    Some(mut place) if which.index(3) > 0 => {
                        prop_assert!(place.spare().len() >= len && place.start >= STEP_BYTES);
                        prop_assert!(place.start + place.len <= 40 * STEP_BYTES);
                        let apart = |other: &Extent| other.start + other.len <= place.start || place.start + place.len <= other.start;
                        prop_assert!(held.iter().all(apart));
                        held.push(place);
                    }
                    _ if held.is_empty() => {}
                    _ => drop(held.swap_remove(which.index(held.len()))),
                }
                let taken: usize = held.iter().map(|place| place.len).sum();
                prop_assert_eq!(space.free.lock().values().sum::<usize>() + taken, 39 * STEP_BYTES);
            }
            held.clear();
            prop_assert_eq!(&*space.free.lock(), &BTreeMap::from([(STEP_BYTES, 39 * STEP_BYTES)]));
        }
    }
}

//! The contexts in use, by number. A program may create and free any number of communicators: a freed one leaves only
//! one bit behind, which tells messages that come too late from those that come early.

use std::collections::HashMap;

use super::matching::MatchContext;

/// How many numbers share one page of bits.
const PAGE: u32 = 4096;

/// How many recent lookups are remembered.
const RECENT: usize = 16;

pub(super) struct ContextTable {
    slots: Vec<MatchContext>,
    /// Unused slots.
    free: Vec<usize>,
    slot_of: HashMap<u32, usize>,
    /// The numbers of recent lookups with their slots, each at its number modulo [`RECENT`].
    recent: [(u32, usize); RECENT],
    closed: HashMap<u32, Box<[u64; PAGE as usize / 64]>>,
}

/// Holds at index `i` a number that belongs at another index, so that no lookup finds it.
const NOTHING: [(u32, usize); RECENT] = {
    let mut nothing = [(0, 0); RECENT];
    let mut i = 0;
    while i < RECENT {
        nothing[i].0 = i as u32 + 1;
        i += 1;
    }
    nothing
};

impl Default for ContextTable {
    fn default() -> Self {
        ContextTable {
            slots: Vec::new(),
            free: Vec::new(),
            slot_of: HashMap::new(),
            recent: NOTHING,
            closed: HashMap::new(),
        }
    }
}

impl ContextTable {
    /// The context, which this opens if necessary: a message may arrive before its communicator is created here.
    #[inline]
    pub(super) fn get(&mut self, id: u32) -> &mut MatchContext {
        let slot = match self.recent[id as usize % RECENT] {
            (recent, slot) if recent == id => slot,
            _ => self.find(id),
        };
        &mut self.slots[slot]
    }

    fn find(&mut self, id: u32) -> usize {
        let slot = *self.slot_of.entry(id).or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                self.slots.push(MatchContext::default());
                self.slots.len() - 1
            })
        });
        self.recent[id as usize % RECENT] = (id, slot);
        slot
    }

    /// Whether its communicator has ended here.
    #[inline]
    pub(super) fn is_closed(&self, id: u32) -> bool {
        if self.recent[id as usize % RECENT].0 == id || self.slot_of.contains_key(&id) {
            return false;
        }
        self.closed.get(&(id / PAGE)).is_some_and(|page| page[(id % PAGE / 64) as usize] >> (id % 64) & 1 == 1)
    }

    /// Closes the context of an ended communicator, for which later messages are dropped. Returns its content.
    pub(super) fn close(&mut self, id: u32) -> MatchContext {
        let mut left = MatchContext::default();
        if let Some(slot) = self.slot_of.remove(&id) {
            std::mem::swap(&mut self.slots[slot], &mut left);
            self.free.push(slot);
        }
        self.recent[id as usize % RECENT] = NOTHING[id as usize % RECENT];
        let page = self.closed.entry(id / PAGE).or_insert_with(|| Box::new([0; PAGE as usize / 64]));
        page[(id % PAGE / 64) as usize] |= 1 << (id % 64);
        left
    }

    /// Marks the number as used (again).
    pub(super) fn open(&mut self, id: u32) {
        if let Some(page) = self.closed.get_mut(&(id / PAGE)) {
            page[(id % PAGE / 64) as usize] &= !(1 << (id % 64));
        }
        self.find(id);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &MatchContext> {
        self.slots.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut MatchContext> {
        self.slots.iter_mut()
    }

    /// Empties all contexts; the numbers in use stay the same.
    pub(super) fn clear(&mut self) {
        self.slots.iter_mut().for_each(|context| *context = MatchContext::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A freed communicator must leave next to nothing, and a message for it must not be kept forever.
    #[test]
    fn a_closed_context_stays_closed_and_costs_a_bit() {
        let mut contexts = ContextTable::default();
        for id in 0..100_000 {
            assert!(!contexts.is_closed(id), "{id} may still be made");
            contexts.open(id);
            assert!(!contexts.is_closed(id));
            contexts.close(id);
            assert!(contexts.is_closed(id));
        }
        assert_eq!((contexts.slots.len(), contexts.slot_of.len()), (1, 0));
        assert_eq!(contexts.closed.len(), 100_000usize.div_ceil(PAGE as usize));
        assert!(contexts.is_closed(4095) && !contexts.is_closed(100_000));
        contexts.open(4095);
        assert!(!contexts.is_closed(4095) && contexts.is_closed(4096));
    }
}

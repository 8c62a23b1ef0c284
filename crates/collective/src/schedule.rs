//! A schedule: one rank's part of a collective, as data. Algorithms are pure functions that return one; the executor
//! runs it over any transport, the simulator costs it, tests run all ranks of it in one thread.
//!
//! Invariants of the schedules of one collective, taken over all its ranks:
//! - the k-th send from rank a to rank b on a channel is received by the k-th receive of b from a on it, and both have
//!   the same length (messages carry no round number; the order per pair and channel is enough);
//! - within a round no receive writes a range that a send of the same round reads, or that another receive writes;
//! - what a late send reads is written by nobody before its receiver has it: until the end, or until something has come
//!   that only exists because the receiver had it. A receive is complete when all bytes are in the receiver's memory,
//!   so no transport reads the sender's any more, though its notice that the send is complete may still be on its way;
//! - `BufferId::Send` is only read.

/// The three buffers a schedule may name. All ranges are in elements; the executor knows the element's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferId {
    /// What the caller contributes. With `MPI_IN_PLACE` it is the part of `Recv` the standard says.
    Send,
    /// Where the result goes.
    Recv,
    /// [`Schedule::scratch_len`] elements of the executor's own.
    Scratch,
}

/// `len` elements of `buffer` from `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferRange {
    /// Which buffer.
    pub buffer: BufferId,
    /// First element.
    pub start: usize,
    /// Elements; 0 is allowed and moves nothing (but still a message when sent).
    pub len: usize,
}

/// A message of this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleMessage {
    /// Send `range` to rank `to` of the communicator.
    Send {
        /// Receiving rank.
        to: u32,
        /// What is sent.
        range: BufferRange,
    },
    /// The same, but the round does not wait for it: a slow receiver holds up nobody else. The call does at its end;
    /// not if it is sent out of scratch, which then lives on until the receiver has it.
    LateSend {
        /// Receiving rank.
        to: u32,
        /// What is sent.
        range: BufferRange,
    },
    /// Receive into `range` from rank `from` of the communicator.
    Recv {
        /// Sending rank.
        from: u32,
        /// Where it goes.
        range: BufferRange,
    },
}

/// Work on this rank's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalStep {
    /// `into = from`. The ranges have one length and do not overlap (or are equal).
    Copy {
        /// Source.
        from: BufferRange,
        /// Target.
        into: BufferRange,
    },
    /// `into = op(left = from, right = into)` elementwise: `from` holds the contribution of lower ranks.
    ReduceLeft {
        /// The left operand.
        from: BufferRange,
        /// The right operand and the result.
        into: BufferRange,
    },
    /// `into = op(left = into, right = from)` elementwise: `from` holds the contribution of higher ranks.
    ReduceRight {
        /// The right operand.
        from: BufferRange,
        /// The left operand and the result.
        into: BufferRange,
    },
}

/// Messages that are in flight together, then local work in order once all of them are complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Started together; sends and receives to one peer keep their order.
    pub messages: Vec<ScheduleMessage>,
    /// Done in order when every message of the round is complete, late ones aside.
    pub local: Vec<LocalStep>,
}

/// Rounds one after the other, whatever other strands do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strand {
    /// Run one after the other.
    pub rounds: Vec<Round>,
    /// What tells its sends from those of other strands to the same rank: the receiving strand's `recv_channel`.
    pub send_channel: u32,
    /// What tells its receives from those of other strands from the same rank.
    pub recv_channel: u32,
}

/// One rank's part of a collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Run side by side. Most collectives have one.
    pub strands: Vec<Strand>,
    /// Elements of scratch the executor must provide.
    pub scratch_len: usize,
}

//! A schedule: one rank's part of a collective, as data. Algorithms are pure functions that return one. The executor
//! runs it over any transport, the simulator computes its cost, and tests run all ranks' schedules in one thread.
//!
//! Invariants of the schedules of one collective, over all its ranks:
//! - the k-th send from rank a to rank b on a channel is received by the k-th receive of b from a on it, and both have
//!   the same length (messages carry no round number; the order per pair and channel is enough);
//! - within a round no receive writes a range that a send of the same round reads, or that another receive writes;
//! - nothing writes the data of a late send before its receiver has it: until the end, or until data have arrived that
//!   exist only because the receiver had it. A receive is complete when all bytes are in the receiver's memory, so no
//!   transport reads the sender's memory any more, even if the notice that the send is complete is still on its way;
//! - `BufferId::Send` is only read.

/// The three buffers of a schedule. All ranges are in elements; the executor knows the element size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferId {
    /// The caller's contribution. With `MPI_IN_PLACE` it is the part of `Recv` that the standard specifies.
    Send,
    /// The result.
    Recv,
    /// [`Schedule::scratch_len`] elements that belong to the executor.
    Scratch,
}

/// `len` elements of `buffer` from `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferRange {
    /// Which buffer.
    pub buffer: BufferId,
    /// First element.
    pub start: usize,
    /// Number of elements. A range of 0 elements moves nothing, but sending it still sends a message.
    pub len: usize,
}

/// A message of this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleMessage {
    /// Send `range` to rank `to` of the communicator.
    Send {
        /// Receiving rank.
        to: u32,
        /// The data to send.
        range: BufferRange,
    },
    /// The same, but the round does not wait for it: a slow receiver delays nothing else. The call waits for it at its
    /// end, except for sends from scratch, which then lives on until the receiver has the data.
    LateSend {
        /// Receiving rank.
        to: u32,
        /// The data to send.
        range: BufferRange,
    },
    /// Receive into `range` from rank `from` of the communicator.
    Recv {
        /// Sending rank.
        from: u32,
        /// Where the data go.
        range: BufferRange,
    },
}

/// Work on this rank's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalStep {
    /// `into = from`. The ranges have the same length and do not overlap (or are equal).
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

/// Messages that are in flight together, then local work, in order, once all of them are complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Started together; sends and receives to one peer keep their order.
    pub messages: Vec<ScheduleMessage>,
    /// Done in order when every message of the round is complete, late ones aside.
    pub local: Vec<LocalStep>,
}

/// Rounds that run one after the other, independently of other strands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strand {
    /// Run one after the other.
    pub rounds: Vec<Round>,
    /// Distinguishes its sends from those of other strands to the same rank: the receiving strand's `recv_channel`.
    pub send_channel: u32,
    /// Distinguishes its receives from those of other strands from the same rank.
    pub recv_channel: u32,
}

/// One rank's part of a collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Strands that run side by side. Most collectives have one.
    pub strands: Vec<Strand>,
    /// Elements of scratch the executor must provide.
    pub scratch_len: usize,
}

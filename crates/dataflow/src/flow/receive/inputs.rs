//! All input ports of a copy together: the next item on any of them, and the marks of all.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use tidemill_checkpoint::marks::MarkMerger;

use super::input::{Input, StreamElement};
use crate::error::DataflowError;
use crate::flow::{BucketHandover, Handover, SplitHandover};

/// A copy that always finds something to do yields its thread after this long: other copies may have a barrier to
/// pass on.
const TURN: Duration = Duration::from_millis(1);

/// All input ports of a copy, in the order of the task's declaration.
pub struct Inputs {
    ports: Vec<Input>,
    /// Ports whose end has been reported.
    ended: Vec<bool>,
    /// The port to look at first, in turn, so that none is starved.
    first: usize,
    /// The marks of the ports together.
    marks: MarkMerger,
    /// For operators and sources that can hand over what they have.
    handover: Option<Handover>,
    /// Since when the copy has not waited.
    busy_since: Option<Instant>,
}

impl Inputs {
    pub(crate) fn new(inputs: Vec<Input>, handover: Option<Handover>) -> Self {
        let mut marks = MarkMerger::default();
        (0..inputs.len()).for_each(|port| marks.add(port, false));
        if inputs.iter().any(Input::is_of_some) {
            marks.set_of_some();
        }
        Inputs { ended: vec![false; inputs.len()], ports: inputs, first: 0, marks, handover, busy_since: None }
    }

    /// The ends of the edge on which the copies of the task hand over buckets.
    pub(crate) fn take_handover(&mut self) -> Option<BucketHandover> {
        match self.handover.take() {
            Some(Handover::Buckets(handover)) => Some(handover),
            Some(Handover::Splits(_)) | None => None,
        }
    }

    /// The ends of the edge on which the copies of a source hand over splits.
    pub(crate) fn take_split_handover(&mut self) -> Option<SplitHandover> {
        match self.handover.take() {
            Some(Handover::Splits(handover)) => Some(handover),
            Some(Handover::Buckets(_)) | None => None,
        }
    }

    /// The number of ports.
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// Whether there are no ports: the task is a source.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// One port.
    pub fn port(&mut self, index: usize) -> &mut Input {
        &mut self.ports[index]
    }

    /// See [`Input::limit_rows`].
    pub(crate) fn limit_rows(&mut self) {
        self.ports.iter_mut().for_each(Input::limit_rows);
    }

    /// The ports, to be read separately.
    pub fn into_ports(self) -> Vec<Input> {
        self.ports
    }

    /// The only port.
    ///
    /// # Panics
    /// If there are none or several.
    pub fn into_only(mut self) -> Input {
        assert_eq!(self.ports.len(), 1, "the task has {} input ports", self.ports.len());
        self.ports.remove(0)
    }

    /// The next item on any of the ports that `wanted` names: an item with its port, or, once for each port, its end.
    /// Returns `None` when all wanted ports have ended. A mark is for all ports together: a time that none is behind,
    /// or a barrier that all have delivered. A port that has delivered a barrier is not read until the others have
    /// delivered it too, and the port number that comes with a mark means nothing.
    ///
    /// # Errors
    /// As [`Input::recv`].
    pub async fn recv_any(
        &mut self,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<Option<(usize, Option<StreamElement>)>, DataflowError> {
        self.recv_any_aligning(|port, _| wanted(port)).await
    }

    /// Like [`Inputs::recv_any`], but also passes to `wanted` whether some port has delivered a barrier that others
    /// have not: a caller that does not read one of those others holds up the barrier, and everyone may be waiting
    /// for it.
    pub(crate) async fn recv_any_aligning(
        &mut self,
        wanted: impl Fn(usize, bool) -> bool,
    ) -> Result<Option<(usize, Option<StreamElement>)>, DataflowError> {
        if self.busy_since.get_or_insert_with(Instant::now).elapsed() >= TURN {
            tokio::task::yield_now().await;
            self.busy_since = Some(Instant::now());
        }
        self.ports.iter_mut().for_each(Input::worked);
        poll_fn(|context| {
            let count = self.ports.len();
            'look: loop {
                if let Some(mark) = self.marks.next_mark() {
                    return Poll::Ready(Ok(Some((0, Some(StreamElement::Mark(mark))))));
                }
                let mut waiting = false;
                let aligning = (0..count).any(|port| self.marks.holds(port));
                for index in (0..count).map(|i| (self.first + i) % count) {
                    if self.ended[index] || !wanted(index, aligning) || self.marks.holds(index) {
                        continue;
                    }
                    match self.ports[index].poll_recv(context)? {
                        Poll::Ready(Some((_, StreamElement::Mark(mark)))) => {
                            self.marks.mark(index, mark);
                            continue 'look;
                        }
                        Poll::Ready(found) => {
                            self.first = index + 1;
                            if found.is_none() {
                                self.ended[index] = true;
                                self.marks.end_stream(index);
                            }
                            return Poll::Ready(Ok(Some((index, found.map(|(_, item)| item)))));
                        }
                        Poll::Pending => waiting = true,
                    }
                }
                if waiting {
                    self.busy_since = None;
                    return Poll::Pending;
                }
                return Poll::Ready(Ok(None));
            }
        })
        .await
    }

    /// [`Inputs::recv_any`] for a copy that blocks its thread. The error is `Cancelled` if the run is given up.
    ///
    /// # Errors
    /// As [`Input::recv`].
    pub fn recv_any_blocking(
        &mut self,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<Option<(usize, Option<StreamElement>)>, DataflowError> {
        let Some(first) = self.ports.first() else { return Ok(None) };
        let cancel = first.cancel().clone();
        cancel.block_on(cancel.guard(self.recv_any(wanted)))?
    }

    /// Whether the end of every port has been reported.
    pub fn is_over(&self) -> bool {
        self.ended.iter().all(|&ended| ended)
    }

    /// Whether a receive from these ports would wait.
    pub fn is_idle(&self) -> bool {
        self.ports.iter().any(|input| !input.is_over())
            && self.ports.iter().all(|input| input.is_over() || input.is_idle())
    }
}

//! Catches panics of decoders: the panic message becomes the error of the file being decoded.
//!
//! Libraries that decode Parquet and Arrow IPC have assertions that a broken file can violate. Such a panic is not a
//! bug in Tidemill, and should end only the reading of that file.

use std::any::Any;
use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll};

use datafusion::error::DataFusionError;
use futures::Stream;

use crate::error::DataSetError;

/// The start of the error of a decoder that panicked.
pub(crate) const DAMAGED: &str = "the file is damaged";

thread_local! {
    /// Whether this thread is decoding: then a panic becomes an error and is not printed.
    static DECODING: Cell<bool> = const { Cell::new(false) };
}

static HOOK: Once = Once::new();

/// Runs a decoder. Returns a panic's message as an error.
pub(crate) fn caught<R>(decode: impl FnOnce() -> R) -> Result<R, String> {
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !DECODING.try_with(Cell::get).unwrap_or(false) {
                before(panic);
            }
        }));
    });
    let outer = DECODING.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(decode));
    DECODING.set(outer);
    outcome.map_err(|panic| said(panic.as_ref()))
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    format!("{DAMAGED} (its decoder stopped: {})", text.lines().next().unwrap_or_default())
}

/// A decoding future or stream.
pub(crate) struct CatchPanics<T>(Option<Pin<Box<T>>>);

impl<T> CatchPanics<T> {
    pub(crate) fn new(decoding: T) -> Self {
        CatchPanics(Some(Box::pin(decoding)))
    }
}

impl<F: Future> Future for CatchPanics<F> {
    type Output = Result<F::Output, String>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let inner = self.0.as_mut().expect("polled after its end");
        match caught(|| inner.as_mut().poll(context)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(text) => Poll::Ready(Err(text)),
        }
    }
}

impl<T, S: Stream<Item = datafusion::error::Result<T>>> Stream for CatchPanics<S> {
    type Item = datafusion::error::Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // After a panic its state is unknown.
        let Some(inner) = self.0.as_mut() else { return Poll::Ready(None) };
        match caught(|| inner.as_mut().poll_next(context)) {
            Ok(polled) => polled,
            Err(text) => {
                self.0 = None;
                Poll::Ready(Some(Err(DataFusionError::External(Box::new(DataSetError::Data(text))))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};

    use super::*;

    /// A panic causes a single error and ends the stream; earlier results are kept.
    #[test]
    fn a_panic_ends_a_stream_with_an_error() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let row = |at: i32| if at == 1 { panic!("index {at}\nmore") } else { Ok(at) };
        let all: Vec<datafusion::error::Result<i32>> =
            runtime.block_on(CatchPanics::new(stream::iter(0..3).map(row)).collect());
        assert_eq!(all.len(), 2);
        let mut all = all.into_iter();
        assert_eq!(all.next().unwrap().unwrap(), 0);
        let error = DataSetError::from(all.next().unwrap().unwrap_err());
        assert_eq!(error.to_string(), "the file is damaged (its decoder stopped: index 1)");
        let text = caught(|| -> i32 { panic!("at once") }).unwrap_err();
        assert!(text.contains("at once"), "{text}");
    }
}

//! What the control plane takes of this machine's processor: measured on the control planes of a small job whose
//! workers are threads of this process, over loopback.
//!
//! Counts the processor's time of the threads of rank 0, not time by the clock, so that other load on the machine
//! matters little. `tidemill simulate` takes the results as parameters.

use std::net::TcpListener;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use crate::rendezvous::{JobSecret, JoinConfig, JoinError, join};
use crate::{ControlEvent, ControlHandle, ControlPlane, MessageTarget, Rank};

/// How many workers are connected to rank 0.
const OTHERS: u32 = 16;
/// How often all of them join.
const JOBS: u32 = 8;
/// How often rank 0 sends a message to all, and each answers.
const ROUNDS: u32 = 400;
/// The length of a message.
const MESSAGE_BYTES: usize = 100;
/// A measurement that takes this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Seconds of a processor of this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControlCosts {
    /// To send or receive a small message, when there is one message for each of several workers.
    pub message_s: f64,
    /// To accept a worker that joins, and verify its proof.
    pub handshake_s: f64,
}

/// Measures them; takes about a second.
///
/// # Errors
/// If the workers, which are threads, cannot connect to each other.
pub fn measure_control() -> Result<ControlCosts, JoinError> {
    let mut handshakes_s = 0.0;
    for _ in 1..JOBS {
        handshakes_s += joined()?.1;
    }
    let (controls, last_s) = joined()?;
    handshakes_s += last_s;
    let handshake_s = handshakes_s / f64::from(JOBS * OTHERS);
    Ok(ControlCosts { message_s: exchange_messages(controls)?, handshake_s })
}

/// The workers of a job, and what their joining took of rank 0's processor, in seconds.
fn joined() -> Result<(Vec<ControlPlane>, f64), JoinError> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (root, secret) = (listener.local_addr()?.to_string(), JobSecret::random());
    let mut threads = Vec::new();
    for rank in 0..=OTHERS {
        let mut config = JoinConfig::new(Rank(rank), OTHERS + 1, "measurement", secret.clone(), &root);
        config.listener = if rank == 0 { Some(listener.try_clone()?.into()) } else { None };
        config.control_fanout = Some(OTHERS);
        config.timeout = PATIENCE;
        let work = move || {
            let before_s = processor_s();
            Ok((join(config)?, processor_s() - before_s))
        };
        threads.push(thread::Builder::new().spawn(work)?);
    }
    let outcomes = threads.into_iter().map(|thread| thread.join().expect("joining does not panic"));
    let (controls, times_s): (Vec<ControlPlane>, Vec<f64>) =
        outcomes.collect::<Result<Vec<_>, JoinError>>()?.into_iter().unzip();
    Ok((controls, times_s[0]))
}

/// What a message takes of the processor of rank 0's control thread, in seconds.
fn exchange_messages(controls: Vec<ControlPlane>) -> Result<f64, JoinError> {
    let (done, result) = channel();
    let mut handles = Vec::new();
    let mut all_started = Ok(());
    for control in controls {
        let handle: Arc<OnceLock<ControlHandle>> = Arc::default();
        let on_event = match control.rank() {
            Rank(0) => ask(Arc::clone(&handle), done.clone()),
            _ => answer(Arc::clone(&handle)),
        };
        match control.start(on_event) {
            Ok(started) => handles.push(handle.get_or_init(|| started).clone()),
            Err(error) => {
                all_started = Err(error);
                break;
            }
        }
    }
    let begun = all_started.and_then(|()| handles[0].send(MessageTarget::All, &[0; MESSAGE_BYTES]));
    let spent_s = begun.map(|()| result.recv_timeout(PATIENCE));
    // The handlers hold the handles, so dropping these would not end the threads. Rank 0 comes last, so that nobody
    // loses it.
    let mut have_left = Ok(());
    for handle in handles.iter().rev() {
        have_left = have_left.and(handle.leave());
        handle.shutdown();
    }
    let silence = |_| std::io::Error::other(format!("no answer within {} s", PATIENCE.as_secs()));
    let spent_s = spent_s?.map_err(silence)?;
    have_left?;
    Ok(spent_s / f64::from(2 * OTHERS * (ROUNDS - 1)))
}

type OnEvent = Box<dyn Fn(ControlEvent) + Send + Sync>;

/// Rank 0's part: asks again when all have answered. Runs on its control thread.
fn ask(handle: Arc<OnceLock<ControlHandle>>, done: Sender<f64>) -> OnEvent {
    let state = Mutex::new((0, 0.0, done));
    Box::new(move |event| {
        let (answers, since_s, done) = &mut *state.lock().expect("nothing panics while it is locked");
        if !matches!(event, ControlEvent::Message { .. }) {
            return;
        }
        *answers += 1;
        if *answers == OTHERS {
            // The first round warms up.
            *since_s = processor_s();
        }
        if *answers == OTHERS * ROUNDS {
            // Nobody listens any more if the measurement has been given up.
            let _ = done.send(processor_s() - *since_s);
        } else if answers.is_multiple_of(OTHERS)
            && let Some(handle) = handle.get()
        {
            // A lost message ends the measurement with an error.
            let _ = handle.send(MessageTarget::All, &[0; MESSAGE_BYTES]);
        }
    })
}

fn answer(handle: Arc<OnceLock<ControlHandle>>) -> OnEvent {
    Box::new(move |event| {
        if let (ControlEvent::Message { bytes, .. }, Some(handle)) = (event, handle.get()) {
            let _ = handle.send(MessageTarget::One(Rank(0)), &bytes);
        }
    })
}

/// The processor's time of this thread, in seconds.
fn processor_s() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every Linux, and `time` is ours to write.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert!(status == 0, "the clock of a thread's processor time cannot be read");
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message that was never sent, or a clock of another thread, would cost nothing.
    #[test]
    fn messages_and_handshakes_take_time() {
        let costs = measure_control().unwrap();
        for cost_s in [costs.message_s, costs.handshake_s] {
            assert!(cost_s > 1e-8 && cost_s < 0.1, "{costs:?}");
        }
        assert!(costs.handshake_s > costs.message_s, "{costs:?}");
    }
}

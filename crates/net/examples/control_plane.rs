//! Runs the control planes of a large job as threads of one process, over loopback. Measures how long it takes to
//! join, to exchange a part of 150 bytes from each worker, and until all have learned that one is lost; and what rank
//! 0 holds open, when the last worker joins and later. Then measures what messages and handshakes take of the
//! processor, as `tidemill tune --links` does.
//!
//! `control_plane 300` uses the tree of a job of 300 workers, `control_plane 300 299` a star. Both ends of each
//! connection are in this process: 1,000 workers need about 8,000 descriptors (`ulimit -n`).

use std::net::TcpListener;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use tidemill_net::measure::measure_control;
use tidemill_net::rendezvous::{JobSecret, JoinConfig, join};
use tidemill_net::{ControlEvent, Rank};

fn main() {
    let numbers: Vec<u32> = std::env::args().skip(1).map(|text| text.parse().expect("a number")).collect();
    let (size, fanout) = (numbers.first().copied().unwrap_or(300), numbers.get(1).copied());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let root = listener.local_addr().expect("bound").to_string();
    let secret = JobSecret::random();
    let barrier = Barrier::new(size as usize);
    // The last worker dies, and all others learn of it.
    let victim = Rank(size - 1);
    std::thread::scope(|scope| {
        for rank in 0..size {
            let mut config = JoinConfig::new(Rank(rank), size, "control plane", secret.clone(), &root);
            config.listener = (rank == 0).then(|| listener.try_clone().expect("a descriptor").into());
            config.control_fanout = fanout;
            config.timeout = Duration::from_secs(300);
            let barrier = &barrier;
            let work = move || {
                let says = |what: &str| {
                    if rank == 0 {
                        println!("{what}");
                    }
                };
                barrier.wait();
                let start = Instant::now();
                let mut control = join(config).unwrap_or_else(|error| panic!("rank {rank}: {error}"));
                barrier.wait();
                let (at_join, later) = (control.links_at_join(), control.links());
                says(&format!(
                    "{size} workers: rank 0 was connected to {at_join} when the last joined, now to {later}"
                ));
                says(&format!("joined after          {:>9.1} ms", start.elapsed().as_secs_f64() * 1e3));
                barrier.wait();
                let start = Instant::now();
                let all = control.allgather(&[rank as u8; 150]).expect("an exchange");
                assert!(all.len() == size as usize && all.iter().enumerate().all(|(r, part)| part[0] == r as u8));
                barrier.wait();
                says(&format!("exchanged after       {:>9.1} ms", start.elapsed().as_secs_f64() * 1e3));
                let (sender, events) = channel();
                let sender = std::sync::Mutex::new(sender);
                let on_event = move |event| drop(sender.lock().expect("never poisoned").send(event));
                let handle = control.start(Box::new(on_event)).expect("a thread");
                barrier.wait();
                let start = Instant::now();
                if Rank(rank) == victim {
                    drop(handle);
                    barrier.wait();
                    barrier.wait();
                    return;
                }
                let event = events.recv_timeout(Duration::from_secs(100)).expect("news");
                assert!(matches!(event, ControlEvent::Lost { rank, .. } if rank == victim), "{event:?}");
                barrier.wait();
                says(&format!("heard of a loss after {:>9.1} ms", start.elapsed().as_secs_f64() * 1e3));
                // Without this, each worker would lose each other one.
                handle.leave().expect("open");
                barrier.wait();
            };
            std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, work).expect("a thread");
        }
    });
    let costs = measure_control().expect("loopback connections");
    println!("a message takes       {:>9.1} us of the processor", costs.message_s * 1e6);
    println!("a handshake takes     {:>9.1} us of the processor", costs.handshake_s * 1e6);
}

//! What connecting on demand saves: opens jobs over TCP, their workers being threads of this process, with connections
//! on demand and with all at the start, and prints the time to open and the descriptors in use.
//!
//! ```text
//! cargo run --release -p tidemill-collective --example connect -- 64 256
//! ```

use std::net::TcpListener;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use tidemill_collective::{Communicator, ReduceOp, TuneTable};
use tidemill_net::rendezvous::{JobSecret, JoinConfig, join};
use tidemill_net::tcp::ConnectChoice;
use tidemill_net::{Endpoint, EndpointSettings, Rank, TransportChoice};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("Linux has it").count()
}

/// Seconds to open, to reduce for the first time and for the second; descriptors of a worker after each of the first
/// two.
fn measure(size: u32, connect: ConnectChoice) -> ([f64; 3], [f64; 2]) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let root = listener.local_addr().expect("bound").to_string();
    let secret = JobSecret::random();
    let mut first = Some(listener.into());
    let before = descriptors();
    let step = Arc::new(Barrier::new(size as usize + 1));
    let workers: Vec<_> = (0..size)
        .map(|rank| {
            let mut config = JoinConfig::new(Rank(rank), size, "connect", secret.clone(), &root);
            config.listener = first.take();
            let step = Arc::clone(&step);
            thread::spawn(move || {
                let control = join(config).expect("all workers join");
                step.wait();
                let settings =
                    EndpointSettings { transport: TransportChoice::Tcp, connect, ..EndpointSettings::default() };
                let endpoint = Endpoint::open(control, settings).expect("all workers open");
                let world = Communicator::world(endpoint.clone(), Arc::new(TuneTable::default())).expect("a world");
                step.wait();
                step.wait();
                for _ in 0..2 {
                    let mut sum = [0.0];
                    world.allreduce(&[f64::from(rank)], &mut sum, &ReduceOp::Sum).expect("all workers reduce");
                    assert_eq!(sum, [f64::from(size * (size - 1) / 2)]);
                    step.wait();
                    step.wait();
                }
                endpoint.leave();
            })
        })
        .collect();
    step.wait();
    let mut start = Instant::now();
    let mut lap = || {
        step.wait();
        let seconds = start.elapsed().as_secs_f64();
        let each = (descriptors() - before) as f64 / f64::from(size);
        start = Instant::now();
        step.wait();
        (seconds, each)
    };
    let [(open, opened), (first, reduced), (second, _)] = [lap(), lap(), lap()];
    workers.into_iter().for_each(|worker| worker.join().expect("no worker panics"));
    ([open, first, second], [opened, reduced])
}

fn main() {
    let sizes: Vec<u32> = std::env::args().skip(1).map(|size| size.parse().expect("a number of workers")).collect();
    println!(
        "{:>7} {:10} {:>9} {:>12} {:>13} {:>20}",
        "workers", "connect", "open", "1st reduce", "2nd reduce", "descriptors/worker"
    );
    for size in if sizes.is_empty() { vec![64] } else { sizes } {
        for (name, connect) in [("on-demand", ConnectChoice::OnDemand), ("all", ConnectChoice::All)] {
            let ([open, first, second], [opened, reduced]) = measure(size, connect);
            println!(
                "{size:>7} {name:10} {open:>7.2} s {:>9.1} ms {:>10.1} ms {opened:>9.1}, then {reduced:.1}",
                first * 1e3,
                second * 1e3
            );
            thread::sleep(Duration::from_millis(200));
        }
    }
}

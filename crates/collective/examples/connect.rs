//! What connecting on demand saves: runs jobs with the given numbers of processes over TCP, with connections on demand
//! and with all at the start. Prints the time to open and to reduce for the first and second time, and the descriptors
//! in use.
//!
//! ```text
//! cargo run --release -p tidemill-collective --example connect -- 64 256
//! ```

use std::env;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use tidemill_collective::{Communicator, ReduceOp, TuneTable};
use tidemill_net::rendezvous::{JobSecret, JoinConfig, join};
use tidemill_net::tcp::ConnectChoice;
use tidemill_net::{Endpoint, EndpointSettings, Rank, TransportChoice};

fn descriptors() -> u32 {
    std::fs::read_dir("/proc/self/fd").expect("Linux has it").count() as u32
}

/// One worker: `rank size root secret connect`.
fn work(words: &[String]) {
    let number = |at: usize| words[at].parse::<u32>().expect("a number");
    let (rank, size) = (number(0), number(1));
    let secret = JobSecret::from_hex(&words[3]).expect("64 digits");
    let mut config = JoinConfig::new(Rank(rank), size, "connect", secret, &words[2]);
    if rank == 0 {
        // The others may look for it a moment earlier: they try again.
        config.listener = Some(TcpListener::bind(&words[2]).expect("the port is free").into());
    }
    let control = join(config).expect("all workers join");
    let before = descriptors();
    let connect: ConnectChoice = words[4].parse().expect("a way to connect");
    let settings = EndpointSettings { transport: TransportChoice::Tcp, connect, ..EndpointSettings::default() };
    let mut start = Instant::now();
    let mut lap = || std::mem::replace(&mut start, Instant::now()).elapsed().as_secs_f64() * 1e3;
    let endpoint = Endpoint::open(control, settings).expect("all workers open");
    let world = Communicator::world(endpoint.clone(), Arc::new(TuneTable::default())).expect("a world");
    let (open_ms, opened) = (lap(), descriptors() - before);
    let mut reduce = || {
        let mut sum = [0.0];
        world.allreduce(&[f64::from(rank)], &mut sum, &ReduceOp::Sum).expect("all workers reduce");
        assert_eq!(sum, [f64::from(size * (size - 1) / 2)]);
        lap()
    };
    let (first_ms, reduced, second_ms) = (reduce(), descriptors() - before, reduce());
    let mut all = vec![0u32; 2 * size as usize];
    world.allgather(&[opened, reduced], &mut all).expect("all workers report");
    if rank == 0 {
        let most = |at: usize| all.iter().skip(at).step_by(2).max().expect("one at least");
        println!(
            "{size:>7} {:10} {open_ms:>9.0} ms {first_ms:>9.1} ms {second_ms:>9.1} ms {:>5}, then {}",
            words[4],
            most(0),
            most(1)
        );
    }
    endpoint.leave();
}

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    if words.len() == 5 && words[3].len() == 64 {
        return work(&words);
    }
    println!("workers connect            open   1st reduce   2nd reduce   descriptors of a worker at most");
    for size in words {
        for connect in ["on-demand", "all"] {
            let root = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound").to_string();
            let secret = "5e".repeat(32);
            let count: u32 = size.parse().expect("a number of workers");
            let workers = (0..count).map(|rank| {
                let program = env::current_exe().expect("this program");
                let words = [&rank.to_string(), &size, &root, &secret, connect];
                Command::new(program).args(words).spawn().expect("a process starts")
            });
            for mut worker in workers.collect::<Vec<_>>() {
                assert!(worker.wait().expect("it ends").success());
            }
        }
    }
}

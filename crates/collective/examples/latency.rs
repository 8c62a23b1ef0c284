//! One-way latency and allreduce time between two workers that are threads; only a first impression, see `bench/` for
//! real benchmarks. Run with `cargo run --release -p tidemill-collective --example latency [RANKS]`.

use std::time::Instant;

use tidemill_collective::{ReduceOp, run_ranks};

fn main() {
    let ranks: u32 = std::env::args().nth(1).map_or(2, |n| n.parse().expect("a number of ranks"));
    let lines = run_ranks(ranks, |comm| {
        let mut lines = Vec::new();
        for len in [8usize, 64, 1024, 8192, 65_536, 1 << 20, 16 << 20] {
            let repeats = (200_000_000 / (len + 20_000)).clamp(5, 20_000);
            let mut buffer = vec![0u8; len];
            let other = vec![1f64; len / 8];
            let mut result = vec![0f64; len / 8];
            let mut times = [f64::MAX; 3];
            for _ in 0..3 {
                comm.barrier().unwrap();
                let start = Instant::now();
                for _ in 0..repeats {
                    match comm.rank() {
                        0 => {
                            comm.send_slice(&buffer, 1, 0).unwrap();
                            comm.recv_slice(&mut buffer, Some(1), None).unwrap();
                        }
                        1 => {
                            comm.recv_slice(&mut buffer, Some(0), None).unwrap();
                            comm.send_slice(&buffer, 0, 0).unwrap();
                        }
                        _ => {}
                    }
                }
                times[0] = times[0].min(start.elapsed().as_secs_f64() / (2 * repeats) as f64);
                comm.barrier().unwrap();
                let start = Instant::now();
                (0..repeats).for_each(|_| comm.allreduce(&other, &mut result, &ReduceOp::Sum).unwrap());
                times[1] = times[1].min(start.elapsed().as_secs_f64() / repeats as f64);
                let start = Instant::now();
                (0..repeats).for_each(|_| comm.bcast(&mut buffer, 0).unwrap());
                comm.barrier().unwrap();
                times[2] = times[2].min(start.elapsed().as_secs_f64() / repeats as f64);
            }
            let [ping, reduce, bcast] = times.map(|t| t * 1e6);
            lines
                .push(format!("{len:>9} B  one way {ping:>9.3} us  allreduce {reduce:>9.3} us  bcast {bcast:>9.3} us"));
        }
        lines
    })
    .unwrap();
    println!("{}", lines[0].join("\n"));
}

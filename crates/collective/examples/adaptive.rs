//! Runs all-reduces one after the other. For each it prints the time on average and on the last rank, and the overlay
//! that it used. Change the links of emulated hosts meanwhile to see overlays adapt.
//!
//! ```text
//! tidemill hosts up --hosts 8 --bandwidth 50mbit
//! tidemill run --on lab -n 8 target/release/examples/adaptive 4 20 adaptive
//! ```
//!
//! The arguments are MiB, calls, and an algorithm; `-` leaves it to the tuner.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use tidemill_collective::{
    Algorithm, CallOptions, Collective, CollectiveCall, Communicator, DType, ReduceOp, TuneTable,
};
use tidemill_net::rendezvous::join_from_environment;
use tidemill_net::{Endpoint, EndpointSettings, MemoryRegion};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [mib, calls, algorithm] = &words[..] else { return Err("usage: adaptive MIB CALLS ALGORITHM".into()) };
    let (count, calls): (usize, u32) = ((mib.parse::<f64>()? * 131_072.0) as usize, calls.parse()?);
    let algorithm = if algorithm == "-" { None } else { Some(algorithm.parse::<Algorithm>()?) };
    let endpoint = Endpoint::open(join_from_environment()?, EndpointSettings::default())?;
    let comm = Communicator::world(endpoint.clone(), Arc::new(TuneTable::default()))?;
    let mine = vec![f64::from(comm.rank()); count];
    let mut sum = vec![0.0; count];
    let region = |slice: &mut [f64]| MemoryRegion { ptr: slice.as_mut_ptr().cast(), len: size_of_val(slice) };
    let expected = f64::from(comm.size() * (comm.size() - 1) / 2);
    for call in 0..calls {
        comm.barrier()?;
        let start = Instant::now();
        let options = CallOptions { algorithm, ..CallOptions::default() };
        let send = MemoryRegion { ptr: mine.as_ptr().cast_mut().cast(), len: size_of_val(&mine[..]) };
        let reduction = CollectiveCall {
            dtype: DType::F64,
            op: &ReduceOp::Sum,
            count,
            send: Some(send),
            recv: Some(region(&mut sum)),
            options,
            ..CollectiveCall::new(Collective::Allreduce)
        };
        // SAFETY: both vectors outlive the call, which waits.
        unsafe { comm.run(&reduction)? };
        let took_s = start.elapsed().as_secs_f64();
        assert!(sum.iter().all(|&value| value == expected), "rank {} has a wrong sum", comm.rank());
        let mut all = vec![0.0; comm.size() as usize];
        comm.allgather(&[took_s], &mut all)?;
        if comm.rank() == 0 {
            let mean_s = all.iter().sum::<f64>() / all.len() as f64;
            let last_s = all.iter().copied().fold(0.0, f64::max);
            println!("{call:>3} {mean_s:.3} s, last {last_s:.3} s; {}", comm.describe_overlay());
        }
    }
    endpoint.leave();
    Ok(())
}

//! Speed of the reduction kernels compared with a plain copy of the same bytes: `cargo bench --bench reduce`. Bytes are
//! those of one operand; a two-address reduction reads two and writes one. `--test` runs every kernel once, briefly.

use std::hint::black_box;
use std::time::{Duration, Instant};

use tidemill_collective::reduce::{combine, reduce_left};
use tidemill_collective::{DType, ReduceOp};

fn main() {
    let brief = std::env::args().any(|arg| arg == "--test");
    let sizes: &[usize] = if brief { &[4096] } else { &[4 << 10, 64 << 10, 1 << 20, 16 << 20] };
    let time = if brief { Duration::ZERO } else { Duration::from_millis(60) };
    println!(
        "{:<12} {:<8} {:>10} {:>12} {:>12} {:>12}",
        "dtype", "op", "bytes", "copy GB/s", "2-addr GB/s", "3-addr GB/s"
    );
    for (dtype, op) in [
        (DType::F64, ReduceOp::Sum),
        (DType::F32, ReduceOp::Sum),
        (DType::F32, ReduceOp::Max),
        (DType::I64, ReduceOp::Sum),
        (DType::I64, ReduceOp::Prod),
        (DType::I64, ReduceOp::Min),
        (DType::U8, ReduceOp::Prod),
        (DType::Bool, ReduceOp::Land),
        (DType::F16, ReduceOp::Sum),
        (DType::C128, ReduceOp::Prod),
        (DType::DoubleInt, ReduceOp::Minloc),
        (DType::LongDouble, ReduceOp::Sum),
    ] {
        for &bytes in sizes {
            // Written once: otherwise all zero pages would be a single page, which is always in the cache.
            let zeros = || {
                let mut buffer = vec![1u8; bytes];
                buffer.fill(0);
                buffer
            };
            let (left, mut into, mut out) = (zeros(), zeros(), zeros());
            let copy = rate(bytes, time, || out.copy_from_slice(black_box(&left)));
            let two = rate(bytes, time, || reduce_left(&op, dtype, black_box(&left), &mut into).unwrap());
            let three = rate(bytes, time, || combine(&op, dtype, black_box(&left), &into, &mut out).unwrap());
            println!("{dtype:<12} {op:<8} {bytes:>10} {copy:>12.1} {two:>12.1} {three:>12.1}");
        }
    }
}

/// The best rate of repeated runs, in GB/s.
fn rate(bytes: usize, time: Duration, mut work: impl FnMut()) -> f64 {
    let started = Instant::now();
    let mut best = f64::MAX;
    loop {
        let repeats = (1 << 20) / bytes + 1;
        let begun = Instant::now();
        for _ in 0..repeats {
            work();
        }
        best = best.min(begun.elapsed().as_secs_f64() / repeats as f64);
        if started.elapsed() >= time {
            return bytes as f64 / best / 1e9;
        }
    }
}

//! Seconds of a SMACOF pass, and the bytes of distances it reads a second, for each storage.
//!
//! `cargo bench -p tidemill-kernels --bench mds -- [--threads T] [--passes P] [--points N] [--isa NAME] [--tiny]`.

use std::time::Instant;
use tidemill_kernels::{
    Isa,
    mds::{CellStorage, DistanceBlock, GuttmanPass, LaplacianCoefficients, guttman, laplacian},
    pool::{Pool, PoolConfig},
};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1).cloned());
    let number = |name: &str, default: usize| {
        value(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} takes a number")))
    };
    let tiny = arguments.iter().any(|a| a == "--tiny");
    let (threads, passes) = (number("--threads", 1), if tiny { 1 } else { number("--passes", 10) });
    let isa = value("--isa").map_or(Isa::best(), |name| Isa::named(&name).expect("this processor lacks that set"));
    let pool = Pool::new(PoolConfig { threads, ..PoolConfig::default() });
    println!("{threads} threads, {}, best of {passes} passes", isa.name());
    let all = if tiny {
        vec![100]
    } else {
        value("--points").map_or(vec![505, 2000, 10_000], |_| vec![number("--points", 0)])
    };
    for n in all {
        let mut state = 1u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / (1u64 << 24) as f64
        };
        let positions: Vec<f64> = (0..n * 3).map(|_| uniform()).collect();
        let vectors: Vec<f32> = (0..n * 10).map(|_| uniform() as f32).collect();
        let weights = vec![1.0; n];
        let best = |name: &str, distances: &DistanceBlock, work: &mut dyn FnMut(&DistanceBlock)| {
            let seconds = (0..passes)
                .map(|_| {
                    let begin = Instant::now();
                    work(distances);
                    begin.elapsed().as_secs_f64()
                })
                .fold(f64::INFINITY, f64::min);
            let rate = distances.len_bytes() as f64 / seconds * 1e-9;
            let pairs = (n * n) as f64 / seconds * 1e-9;
            println!("{n:>6} {name:>10} {:>9.3} ms  {pairs:.2} G pairs/s  {rate:.1} GB/s", seconds * 1e3);
        };
        let mut out = vec![0.0; n * 4];
        let pass = GuttmanPass { rows: &positions, columns: &positions, k: 3, weights: Some(&weights), shift: 0.0 };
        for (name, storage) in
            [("float32", CellStorage::F32), ("float16", CellStorage::F16), ("fixed16", CellStorage::Fixed16)]
        {
            let mut distances = DistanceBlock::new(n, n, Some(0), storage);
            let row: Vec<f64> = (0..n).map(|_| uniform()).collect();
            for i in 0..n {
                distances.fill(&pool, i, &row, 1.0);
            }
            best(name, &distances, &mut |distances| guttman(&pool, isa, distances, pass, &mut out));
            if storage == CellStorage::F32 {
                best("squares", &distances, &mut |distances| {
                    laplacian(&pool, isa, distances, LaplacianCoefficients::Squares, &positions, &mut out);
                });
            }
        }
        let distances = DistanceBlock::of_vectors(&vectors, &vectors, 10, Some(0));
        best("vectors", &distances, &mut |distances| guttman(&pool, isa, distances, pass, &mut out));
    }
}

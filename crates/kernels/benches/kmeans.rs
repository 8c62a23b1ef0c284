//! Seconds per Lloyd step of each algorithm, and the share of the processor's multiply-add rate that the tile reaches.
//!
//! `cargo bench -p tidemill-kernels -- [--threads T] [--steps S] [--isa NAME] [--only SIZE] [--algorithm NAME]
//! [--rows N] [--tiny]`. Data: `uniform` in the unit cube,
//! and `blobs`, k normal clusters with a tenth of the cube's width as deviation. Start: k rows of the data.

use std::time::Instant;
use tidemill_kernels::{
    FloatElement, Isa,
    kmeans::{KmeansAlgorithm, KmeansFit, PointRows},
    pool::{Pool, PoolConfig},
};

struct Options {
    threads: usize,
    steps: usize,
    isa: Isa,
    algorithm: Option<KmeansAlgorithm>,
    tiny: bool,
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1).cloned());
    let options = Options {
        threads: value("--threads").map_or(1, |t| t.parse().expect("--threads takes a number")),
        steps: value("--steps").map_or(20, |s| s.parse().expect("--steps takes a number")),
        isa: value("--isa").map_or(Isa::best(), |name| Isa::named(&name).expect("this processor lacks that set")),
        algorithm: value("--algorithm").map(|name| name.parse().expect("--algorithm takes lloyd, hamerly or tree")),
        tiny: arguments.iter().any(|a| a == "--tiny"),
    };
    let only = value("--only").unwrap_or_default();
    println!("{} threads, {}, {} steps", options.threads, options.isa.name(), options.steps);
    for (n, d, k) in [(1_000_000, 2, 10), (1_000_000, 2, 1000), (200_000, 100, 100)] {
        if !format!("{n}x{d}k{k}").contains(&only) {
            continue;
        }
        let n = if options.tiny {
            n / 1000
        } else {
            value("--rows").map_or(n, |n| n.parse().expect("--rows takes a number"))
        };
        for blobs in [false, true] {
            run::<f32>(&options, n, d, k.min(n / 2), blobs);
            run::<f64>(&options, n, d, k.min(n / 2), blobs);
        }
    }
}

fn run<T: FloatElement>(options: &Options, n: usize, d: usize, k: usize, blobs: bool) {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 24) as f64
    };
    let middles: Vec<f64> = (0..k * d).map(|_| uniform()).collect();
    let x: Vec<T> = (0..n * d)
        .map(|i| {
            let noise = (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
            let middle = middles[(i / d % k) * d + i % d];
            T::from_f64(if blobs { middle + 0.1 * noise } else { uniform() })
        })
        .collect();
    let shift = vec![T::from_f64(0.5); d];
    let rows = PointRows::new(&x, &shift, None);
    let pool = Pool::new(PoolConfig { threads: options.threads, ..PoolConfig::default() });
    let start: Vec<f64> = (0..k * d).map(|i| x[i / d * (n / k) * d + i % d].to_f64() - 0.5).collect();
    for algorithm in [KmeansAlgorithm::Lloyd, KmeansAlgorithm::Hamerly, KmeansAlgorithm::Tree] {
        let many = algorithm == KmeansAlgorithm::Lloyd && d < 5 && k > 100;
        if options.algorithm.is_some_and(|only| only != algorithm) {
            continue;
        }
        if algorithm == KmeansAlgorithm::Tree && d > KmeansAlgorithm::TREE_FEATURES_MAX {
            continue;
        }
        let begin = Instant::now();
        let mut fit = KmeansFit::new(&pool, options.isa, rows, k, algorithm);
        let build = begin.elapsed().as_secs_f64();
        let mut centres = start.clone();
        let steps = if many { options.steps.min(5) } else { options.steps };
        let (mut searched, mut first, mut least) = (0, 0.0, f64::INFINITY);
        let begin = Instant::now();
        for step in 0..steps {
            let one = Instant::now();
            searched += fit.step(&pool, rows, &centres).searched;
            for (j, &weight) in fit.weights().iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
                for f in 0..d {
                    centres[j * d + f] = fit.sums()[j * d + f] / weight;
                }
            }
            let one = one.elapsed().as_secs_f64();
            first = if step == 0 { one } else { first };
            least = f64::min(least, one);
        }
        let each = begin.elapsed().as_secs_f64() / steps as f64;
        let checksum: f64 = centres.iter().sum();
        println!(
            "{n} x {d} k {k} f{} {} {:8} {:8.3} ms/step (build {:.1} ms, first {:.2}, least {:.2}); {:4.1}% searched; {:.0} GFLOP/s; {checksum:.6}",
            8 * size_of::<T>(),
            if blobs { "blobs  " } else { "uniform" },
            algorithm.name(),
            each * 1e3,
            build * 1e3,
            first * 1e3,
            least * 1e3,
            100.0 * searched as f64 / (n * steps) as f64,
            2.0 * (searched as f64 / steps as f64) * (d * k) as f64 / each / 1e9,
        );
    }
}

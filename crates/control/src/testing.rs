//! Shared by tests: random numbers from a seed, and layouts and samples that may be inconsistent.

use crate::{
    layout::{ClusterLayout, HostLayout, TaskLayout, TaskRole},
    sample::{BucketCounters, HeavyKey, LinkCounters, TaskCounters, TcpCounters, WorkerSample},
};

/// Random numbers (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// A number from 0 to 1.
    pub(crate) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A number of random magnitude.
fn any(random: &mut Random) -> u64 {
    random.next() >> random.below(64)
}

/// A layout that may be inconsistent.
pub(crate) fn random_layout(random: &mut Random) -> ClusterLayout {
    let list = |random: &mut Random, end: usize| -> Vec<u32> {
        (0..random.below(8)).map(|_| random.below(end) as u32).collect()
    };
    let task = |random: &mut Random| TaskLayout {
        name: "task".to_owned(),
        role: [TaskRole::Source, TaskRole::Step, TaskRole::Sink][random.below(3)],
        copy_workers: list(random, 5),
        owners: list(random, 6),
        version: any(random),
        splits: (0..random.below(5))
            .map(|_| (random.below(4) > 0).then(|| list(random, 3).iter().map(u32::to_string).collect()))
            .collect(),
        moves_splits: random.below(2) == 1,
        why_stays: None,
        state_bytes: (0..random.below(8)).map(|_| any(random)).collect(),
        inputs: list(random, 5),
    };
    let cores = [2.0, 0.0, -1.0, f64::NAN, f64::INFINITY, 1e-9];
    ClusterLayout {
        hosts: (0..random.below(5))
            .map(|host| HostLayout {
                name: format!("host{host}"),
                cores: cores[random.below(cores.len())],
                drained: false,
            })
            .collect(),
        worker_hosts: list(random, 5),
        spares: (random.below(4) == 0).then(|| list(random, 5)).into_iter().flatten().collect(),
        tasks: (0..random.below(4)).map(|_| task(random)).collect(),
    }
}

/// Samples that may be inconsistent.
pub(crate) fn random_samples(random: &mut Random) -> Vec<WorkerSample> {
    let index = |random: &mut Random| if random.below(20) == 0 { u32::MAX } else { random.below(5) as u32 };
    let link = |random: &mut Random| LinkCounters {
        peer: index(random),
        sent_bytes: any(random),
        queued_bytes: any(random),
        busy_ns: any(random),
        link_wait_ns: any(random),
        credit_wait_ns: any(random),
        tcp: (random.below(2) == 0).then(|| TcpCounters {
            app_limited: random.below(2) == 0,
            rtt_us: any(random),
            busy_us: any(random),
            receiver_limited_us: any(random),
            ..TcpCounters::default()
        }),
    };
    let task = |random: &mut Random| TaskCounters {
        task: index(random),
        copies: index(random),
        busy_ns: any(random),
        blocked_ns: any(random),
        idle_ns: any(random),
        interpreter_ns: any(random),
        rows_in: any(random),
        rows_out: any(random),
    };
    let bucket = |random: &mut Random| BucketCounters {
        task: index(random),
        bucket: index(random),
        rows: any(random),
        bytes: any(random),
        work_ns: any(random),
    };
    let key = |random: &mut Random| HeavyKey {
        task: index(random),
        bucket: index(random),
        key: any(random).to_string(),
        rows: any(random),
        all_rows: any(random),
    };
    let sample = |random: &mut Random| WorkerSample {
        worker: index(random),
        at_ns: any(random),
        cpu_ns: any(random),
        cpu_wait_ns: any(random),
        links: (0..random.below(6)).map(|_| link(random)).collect(),
        tasks: (0..random.below(6)).map(|_| task(random)).collect(),
        buckets_at_ns: any(random),
        buckets: (0..random.below(9)).map(|_| bucket(random)).collect(),
        heavy_keys: (0..random.below(4)).map(|_| key(random)).collect(),
    };
    (0..random.below(8)).map(|_| sample(random)).collect()
}

use super::*;
use crate::{
    layout::{HostLayout, TaskLayout},
    observe::{HostLimits, TaskRates},
    report::{HeavyKeyReport, HostLinkReport, HostReport, TaskWorkerReport},
};

/// Four hosts with one worker each; a source, a keyed step with 512 buckets, a sink. Sources wait 71 % of the time.
fn job() -> (ClusterLayout, Rates) {
    let task = |name: &str, role, inputs: Vec<u32>, owners: Vec<u32>| TaskLayout {
        name: name.to_owned(),
        role,
        copy_workers: (0..4).collect(),
        state_bytes: vec![10_000; owners.len()],
        owners,
        inputs,
        ..TaskLayout::default()
    };
    let layout = ClusterLayout {
        hosts: (0..4).map(|host| HostLayout { name: format!("host{host}"), cores: 2.0, drained: false }).collect(),
        worker_hosts: (0..4).collect(),
        tasks: vec![
            task("read", TaskRole::Source, vec![], vec![]),
            task("count", TaskRole::Step, vec![0], (0..512).map(|bucket| bucket / 128).collect()),
            task("write", TaskRole::Sink, vec![1], vec![]),
        ],
        ..ClusterLayout::default()
    };
    let workers = |busy: f64, blocked: f64| {
        let worker = |worker| TaskWorkerReport { worker, copies: 1, busy, blocked, rows_s: 100.0, idle: 0.0 };
        (0..4).map(worker).collect::<Vec<_>>()
    };
    let rates = |workers| TaskRates { workers, interpreter: vec![0.0; 4], ..TaskRates::default() };
    let host = |host: &HostLayout| HostReport {
        name: host.name.clone(),
        cores: 2.0,
        cpus_used: 0.5,
        in_bytes_s: 128.0 * 3.0 * 1000.0,
        ..HostReport::default()
    };
    let pairs = (0..16).map(|pair| (pair / 4, pair % 4)).filter(|(from, to)| from != to);
    let rates = Rates {
        span_s: 3.0,
        hosts: layout.hosts.iter().map(host).collect(),
        limits: vec![HostLimits { in_peak: 1e6, ..HostLimits::default() }; 4],
        links: pairs
            .map(|(from, to)| HostLinkReport { from, to, bytes_s: 128e3, ..HostLinkReport::default() })
            .collect(),
        link_full: vec![false; 12],
        tasks: vec![
            rates(workers(0.2, 0.71)),
            TaskRates {
                rows_s: vec![1.0; 512],
                work: vec![0.0005; 512],
                sent_bytes_s: vec![1000.0; 2048],
                ..rates(workers(0.1, 0.0))
            },
            rates(workers(0.1, 0.0)),
        ],
        source_rows_s: 400.0,
    };
    (layout, rates)
}

fn kinds(layout: &ClusterLayout, rates: &Rates) -> Vec<CauseKind> {
    let causes = diagnose(layout, rates);
    for cause in &causes {
        println!("{:.2} {}\n    {}", cause.weight, cause.sentence, cause.evidence.join("\n    "));
    }
    causes.iter().map(|cause| cause.kind).collect()
}

fn choke_inbound(rates: &mut Rates, host: u32) {
    rates.limits[host as usize].in_full = true;
    rates.hosts[host as usize].in_capacity = Some(384e3);
    for link in rates.links.iter_mut().filter(|link| link.to == host) {
        (link.busy, link.link_wait) = (0.95, 0.71);
    }
}

#[test]
fn nothing_waits() {
    let (layout, mut rates) = job();
    for worker in &mut rates.tasks[0].workers {
        worker.blocked = 0.0;
    }
    assert_eq!(kinds(&layout, &rates), []);
}

/// The sentence that users read first.
#[test]
fn says_which_link_is_full_and_what_helps() {
    let (layout, mut rates) = job();
    choke_inbound(&mut rates, 3);
    assert_eq!(kinds(&layout, &rates), [CauseKind::Inbound]);
    let cause = &diagnose(&layout, &rates)[0];
    let begin = "host3 receives 3.1 Mbit/s, all that its link takes; senders wait 71 % of the time for it. Moving ";
    assert!(cause.sentence.starts_with(begin), "{}", cause.sentence);
    assert!(cause.sentence.contains(" of its 128 buckets should give +"), "{}", cause.sentence);
    let remedy = cause.remedy.as_ref().unwrap();
    assert!(remedy.gain > 0.5 && remedy.buckets > 30 && remedy.state_bytes == u64::from(remedy.buckets) * 10_000);
    assert!(cause.evidence.iter().any(|line| line.contains("8.0 Mbit/s before")), "{:?}", cause.evidence);
}

#[test]
fn tells_links_apart() {
    let (layout, mut rates) = job();
    rates.limits[1].out_full = true;
    for link in rates.links.iter_mut().filter(|link| link.from == 1) {
        link.link_wait = 0.4;
    }
    assert_eq!(kinds(&layout, &rates), [CauseKind::Outbound]);
    let (layout, mut rates) = job();
    (rates.link_full[2], rates.links[2].link_wait) = (true, 0.7);
    assert_eq!(kinds(&layout, &rates), [CauseKind::Link]);
}

#[test]
fn tells_cpus_apart() {
    let (layout, mut rates) = job();
    (rates.limits[2].cpus_taken, rates.limits[2].cpus) = (true, Some(0.5));
    rates.hosts[2].cpus_waited = 1.0;
    assert_eq!(kinds(&layout, &rates), [CauseKind::CpuTaken]);
    let (layout, mut rates) = job();
    rates.hosts[2].cpus_used = 1.9;
    assert_eq!(kinds(&layout, &rates), [CauseKind::CpuSkew]);
    for host in &mut rates.hosts {
        host.cpus_used = 1.9;
    }
    assert_eq!(kinds(&layout, &rates), [CauseKind::CpuFull]);
}

#[test]
fn tells_tasks_apart() {
    let (layout, mut rates) = job();
    rates.tasks[1].interpreter[2] = 0.97;
    rates.tasks[1].workers[2].busy = 0.7;
    assert_eq!(kinds(&layout, &rates), [CauseKind::Interpreter]);
    let (layout, mut rates) = job();
    rates.tasks[1].workers[2].busy = 0.95;
    assert_eq!(kinds(&layout, &rates), [CauseKind::CpuSkew]);
    (rates.tasks[1].work[300], rates.tasks[1].rows_s[300]) = (0.9, 600.0);
    rates.tasks[1].heavy_keys = vec![HeavyKeyReport { key: "#cats".to_owned(), bucket: 300, share: 0.5 }];
    assert!(kinds(&layout, &rates).contains(&CauseKind::HeavyKey));
    for (task, kind) in [(1, CauseKind::SlowStep), (2, CauseKind::SlowSink)] {
        let (layout, mut rates) = job();
        for worker in &mut rates.tasks[task].workers {
            worker.busy = 0.95;
        }
        for worker in &mut rates.tasks[1].workers {
            worker.blocked = if task == 2 { 0.8 } else { 0.0 };
        }
        assert_eq!(kinds(&layout, &rates), [kind]);
    }
}

/// A sink that waits for nobody but has little to do is not slow, and sinks are not to blame for full links.
#[test]
fn does_not_blame_sinks_for_links() {
    let (layout, mut rates) = job();
    choke_inbound(&mut rates, 3);
    for worker in &mut rates.tasks[2].workers {
        worker.busy = 0.5;
    }
    assert_eq!(kinds(&layout, &rates), [CauseKind::Inbound]);
}

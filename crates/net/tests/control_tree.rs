//! The control plane of a large job in miniature: a tree of fan-out 2, over real connections.

use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use tidemill_net::rendezvous::{JobSecret, JoinConfig, JoinError, join};
use tidemill_net::{ControlEvent, ControlHandle, ControlPlane, MessageTarget, Rank};

/// Long enough for a busy machine; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Configurations of a job whose control plane is a tree of fan-out 2.
fn configs(size: u32, timeout: Duration) -> Vec<JoinConfig> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (root, secret) = (listener.local_addr().unwrap().to_string(), JobSecret::random());
    let config = |rank| JoinConfig {
        timeout,
        listener: (rank == 0).then(|| listener.try_clone().unwrap().into()),
        // Rank 0 tells the others.
        control_fanout: (rank == 0).then_some(2),
        ..JoinConfig::new(Rank(rank), size, "test", secret.clone(), &root)
    };
    (0..size).map(config).collect()
}

fn join_these(configs: Vec<JoinConfig>) -> Vec<Result<ControlPlane, JoinError>> {
    let threads: Vec<_> = configs.into_iter().map(|config| thread::spawn(move || join(config))).collect();
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

fn joined(size: u32) -> Vec<ControlPlane> {
    join_these(configs(size, PATIENCE)).into_iter().map(Result::unwrap).collect()
}

fn errors(results: Vec<Result<ControlPlane, JoinError>>) -> Vec<String> {
    results.into_iter().filter_map(Result::err).map(|e| e.to_string()).collect()
}

/// A running job, by rank; `None` once a worker has ended.
struct Running(Vec<Option<(ControlHandle, Receiver<ControlEvent>)>>);

impl Running {
    fn start(size: u32) -> Running {
        let started = |control: ControlPlane| {
            let (sender, receiver) = channel();
            let sender = std::sync::Mutex::new(sender);
            let on_event = Box::new(move |event| drop(sender.lock().unwrap().send(event)));
            Some((control.start(on_event).unwrap(), receiver))
        };
        Running(joined(size).into_iter().map(started).collect())
    }

    fn handle(&self, rank: u32) -> &ControlHandle {
        &self.0[rank as usize].as_ref().unwrap().0
    }

    fn next(&self, rank: u32) -> ControlEvent {
        let event = self.0[rank as usize].as_ref().unwrap().1.recv_timeout(PATIENCE);
        event.unwrap_or_else(|_| panic!("rank {rank} heard nothing"))
    }

    /// Ends a worker's process.
    fn end(&mut self, rank: u32) {
        self.0[rank as usize] = None;
    }

    fn present(&self) -> Vec<u32> {
        (0..self.0.len() as u32).filter(|&rank| self.0[rank as usize].is_some()).collect()
    }

    /// Messages between all present workers arrive: from each to all, and from each to each.
    fn check_messages(&self) {
        let present = self.present();
        for &rank in &present {
            self.handle(rank).send(MessageTarget::All, b"to all").unwrap();
            let others = present.iter().filter(|&&other| other != rank);
            others.for_each(|&other| self.handle(rank).send(MessageTarget::One(Rank(other)), b"to one").unwrap());
        }
        for &rank in &present {
            let mut expected: Vec<_> = present
                .iter()
                .filter(|&&other| other != rank)
                .flat_map(|&other| [(Rank(other), b"to all".to_vec()), (Rank(other), b"to one".to_vec())])
                .collect();
            let mut got = Vec::new();
            while got.len() < expected.len() {
                match self.next(rank) {
                    ControlEvent::Message { from, bytes } => got.push((from, bytes)),
                    other => panic!("rank {rank} heard {other:?}"),
                }
            }
            // The sort is stable: a sender's message to all comes before its message to one.
            got.sort_by_key(|(from, _)| *from);
            expected.sort_by_key(|(from, _)| *from);
            assert_eq!(got, expected, "at rank {rank}");
        }
    }
}

#[test]
fn trees_of_many_sizes_join_and_exchange() {
    for size in [2, 3, 4, 7, 8, 13, 16] {
        let controls = joined(size);
        let links: Vec<usize> = controls.iter().map(ControlPlane::links).collect();
        assert_eq!(links.iter().sum::<usize>(), 2 * (size as usize - 1));
        assert!(links[0] <= 2 && links.iter().all(|&links| links <= 3), "{links:?}");
        let part = |rank: usize, round: usize| vec![rank as u8; (rank * 7 + round) % 11 * 100];
        let threads: Vec<_> = controls
            .into_iter()
            .map(|mut control| {
                thread::spawn(move || {
                    for round in 0..3 {
                        let all = control.allgather(&part(control.rank().index(), round)).unwrap();
                        assert_eq!(all, (0..size as usize).map(|rank| part(rank, round)).collect::<Vec<_>>());
                    }
                    control
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| drop(thread.join().unwrap()));
    }
}

#[test]
fn messages_reach_everybody() {
    Running::start(13).check_messages();
}

/// In a tree of seven with fan-out 2, ranks 2 and 3 are connected through 1, and ranks 5 and 6 through 4.
#[test]
fn the_loss_of_an_inner_worker_is_its_own() {
    let mut job = Running::start(7);
    assert_eq!(job.handle(1).subtree(), 1..4);
    let start = Instant::now();
    job.end(1);
    for rank in job.present() {
        let event = job.next(rank);
        assert!(matches!(event, ControlEvent::Lost { rank: Rank(1), .. }), "rank {rank}: {event:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(8), "noticed by silence, not by the end of the connection");
    job.check_messages();
    // Its orphans are still watched.
    job.end(3);
    for rank in job.present() {
        let event = job.next(rank);
        assert!(matches!(event, ControlEvent::Lost { rank: Rank(3), .. }), "rank {rank}: {event:?}");
    }
    job.check_messages();
}

#[test]
fn workers_connected_through_one_that_leaves_stay() {
    let mut job = Running::start(16);
    let inner = (1..16).find(|&rank| job.handle(rank).subtree().len() > 3).unwrap();
    job.handle(inner).leave().unwrap();
    let present: Vec<u32> = job.present().into_iter().filter(|&rank| rank != inner).collect();
    for &rank in &present {
        assert_eq!(job.next(rank), ControlEvent::Left { rank: Rank(inner) });
    }
    // It passes on the messages of others until its process ends; then they do without it.
    job.handle(inner + 1).send(MessageTarget::One(Rank(0)), b"by way of it").unwrap();
    assert_eq!(job.next(0), ControlEvent::Message { from: Rank(inner + 1), bytes: b"by way of it".to_vec() });
    // No message in transit through it is lost, up or down.
    let sent = 2000u32;
    let number = |event| match event {
        ControlEvent::Message { bytes, .. } => u32::from_le_bytes(bytes.try_into().unwrap()),
        other => panic!("{other:?}"),
    };
    for count in 0..sent {
        job.handle(inner + 1).send(MessageTarget::One(Rank(0)), &count.to_le_bytes()).unwrap();
        job.handle(0).send(MessageTarget::One(Rank(inner + 1)), &count.to_le_bytes()).unwrap();
        if count == sent / 2 {
            job.end(inner);
        }
    }
    for rank in [0, inner + 1] {
        let got: Vec<u32> = (0..sent).map(|_| number(job.next(rank))).collect();
        assert!(got.iter().copied().eq(0..sent), "rank {rank} got {} messages, of {sent}", got.len());
    }
    job.check_messages();
}

/// Only its children notice the second of the two losses; they connect to rank 0 without it.
#[test]
fn two_workers_are_lost_at_once() {
    let mut job = Running::start(15);
    let outer = (1..15).find(|&rank| job.handle(rank).subtree().len() > 3).unwrap();
    let inner = (outer + 1..15).find(|&rank| job.handle(rank).subtree().len() > 2).unwrap();
    assert!(job.handle(outer).subtree().contains(&inner));
    job.end(outer);
    job.end(inner);
    for rank in job.present() {
        let mut lost: Vec<u32> = (0..2)
            .map(|_| match job.next(rank) {
                ControlEvent::Lost { rank, .. } => rank.0,
                other => panic!("rank {rank} heard {other:?}"),
            })
            .collect();
        lost.sort();
        assert_eq!(lost, [outer, inner], "at rank {rank}");
    }
    job.check_messages();
}

#[test]
fn all_learn_of_the_loss_of_rank_0() {
    let mut job = Running::start(7);
    job.end(0);
    for rank in job.present() {
        let event = job.next(rank);
        assert!(matches!(event, ControlEvent::Lost { rank: Rank(0), .. }), "rank {rank}: {event:?}");
    }
}

/// The usual end of a program, in the worst order for workers connected through others.
#[test]
fn all_leave_and_nobody_is_lost() {
    let mut job = Running::start(13);
    for rank in (1..13).chain([0]) {
        job.handle(rank).leave().unwrap();
        if rank != 0 {
            job.end(rank);
        }
    }
    let heard: Vec<ControlEvent> = (1..13).map(|_| job.next(0)).collect();
    assert!(heard.iter().all(|event| matches!(event, ControlEvent::Left { .. })), "{heard:?}");
}

#[test]
fn a_worker_that_ends_during_an_exchange_is_named_on_every_worker() {
    for culprit in [1, 2, 6] {
        let mut controls = joined(7);
        drop(controls.remove(culprit));
        let threads: Vec<_> = controls.into_iter().map(|mut c| thread::spawn(move || c.allgather(b"x"))).collect();
        for thread in threads {
            let text = thread.join().unwrap().unwrap_err().to_string();
            assert!(text.contains(&format!("worker {culprit} was lost")), "{text}");
        }
    }
}

#[test]
fn everybody_is_told_who_is_missing() {
    let mut job = configs(7, Duration::from_secs(2));
    job.retain(|config| ![1, 5].contains(&config.rank.0));
    let texts = errors(join_these(job));
    assert_eq!(texts.len(), 5);
    assert!(texts.iter().all(|text| text.contains("worker(s) 1, 5 did not join")), "{texts:?}");
}

#[test]
fn a_rank_given_twice_is_an_error_on_every_worker() {
    let mut job = configs(7, PATIENCE);
    job[4].rank = Rank(2);
    let texts = errors(join_these(job));
    assert_eq!(texts.len(), 7);
    assert!(texts.iter().all(|text| text.contains("two workers claim rank 2")), "{texts:?}");
}

#[test]
fn a_wrong_secret_is_refused_and_the_job_starts_without_it() {
    let mut job = configs(7, PATIENCE);
    let stranger = JoinConfig {
        secret: JobSecret::random(),
        ..JoinConfig::new(Rank(3), 7, "test", JobSecret::random(), &job[3].root)
    };
    let stranger = thread::spawn(move || join(stranger).map(drop).unwrap_err().to_string());
    let last = job.remove(3);
    let others = thread::spawn(move || join_these(job));
    let text = stranger.join().unwrap();
    assert!(text.contains("TIDEMILL_SECRET"), "{text}");
    join(last).unwrap();
    others.join().unwrap().into_iter().for_each(|result| drop(result.unwrap()));
}

//! Joining a job: who must be admitted, who must not, and what everybody learns if joining fails.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use tidemill_net::rendezvous::{JobSecret, JoinConfig, JoinError, PROTOCOL, join};
use tidemill_net::{ControlEvent, ControlHandle, ControlPlane, MessageTarget, Rank};

/// Long enough for a busy machine; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

struct Job {
    listener: TcpListener,
    root: String,
    secret: JobSecret,
    size: u32,
    timeout: Duration,
}

impl Job {
    fn new(size: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let root = listener.local_addr().unwrap().to_string();
        Job { listener, root, secret: JobSecret::random(), size, timeout: PATIENCE }
    }

    fn address(&self) -> SocketAddr {
        self.root.parse().unwrap()
    }

    fn config(&self, rank: u32) -> JoinConfig {
        let mut config = JoinConfig::new(Rank(rank), self.size, "test", self.secret.clone(), &self.root);
        config.timeout = self.timeout;
        if rank == 0 {
            config.listener = Some(self.listener.try_clone().unwrap().into());
        }
        config
    }

    /// Joins every rank from its own thread, after `change` has adjusted the configuration.
    fn join_all(&self, change: impl Fn(&mut JoinConfig)) -> Vec<Result<ControlPlane, JoinError>> {
        let configs: Vec<_> = (0..self.size).map(|rank| self.config(rank)).collect();
        join_these(configs.into_iter().map(|mut config| {
            change(&mut config);
            config
        }))
    }
}

fn join_these(configs: impl Iterator<Item = JoinConfig>) -> Vec<Result<ControlPlane, JoinError>> {
    let threads: Vec<_> = configs.map(|config| thread::spawn(move || join(config))).collect();
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

fn started(control: ControlPlane) -> (ControlHandle, Receiver<ControlEvent>) {
    let (sender, receiver) = channel();
    let sender = std::sync::Mutex::new(sender);
    let on_event = Box::new(move |event| drop(sender.lock().unwrap().send(event)));
    (control.start(on_event).unwrap(), receiver)
}

fn errors(results: Vec<Result<ControlPlane, JoinError>>) -> Vec<String> {
    results.into_iter().filter_map(Result::err).map(|e| e.to_string()).collect()
}

/// Catches a rank that takes another's place, and an exchange that mixes up two rounds.
fn check_exchange(controls: Vec<ControlPlane>) {
    let size = controls.len();
    let threads: Vec<_> = controls
        .into_iter()
        .map(|mut control| {
            thread::spawn(move || {
                for round in 0..3 {
                    let part = |rank: usize| vec![rank as u8; (rank * 7 + round) % 11 * 100];
                    let all = control.allgather(&part(control.rank().index())).unwrap();
                    assert_eq!(all, (0..size).map(part).collect::<Vec<_>>());
                }
                control
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn jobs_of_many_sizes_join_and_exchange() {
    for size in [1, 2, 3, 5, 8, 13] {
        check_exchange(Job::new(size).join_all(|_| ()).into_iter().map(Result::unwrap).collect());
        check_exchange(ControlPlane::in_process(size));
    }
}

#[test]
fn sixty_four_workers_join() {
    check_exchange(Job::new(64).join_all(|_| ()).into_iter().map(Result::unwrap).collect());
}

/// Rank 0 is often the last to start.
#[test]
fn workers_wait_for_a_late_rank_0() {
    let job = Job::new(3);
    let address = job.address();
    let configs: Vec<_> = (0..3).map(|rank| job.config(rank)).map(|c| JoinConfig { listener: None, ..c }).collect();
    // Nobody listens until rank 0 binds the address itself.
    drop(job.listener);
    let mut configs = configs.into_iter();
    let first = configs.next().unwrap();
    let others: Vec<_> = configs.map(|config| thread::spawn(move || join(config))).collect();
    thread::sleep(Duration::from_millis(200));
    assert!(TcpStream::connect(address).is_err());
    let root = join(first).unwrap();
    assert_eq!(root.size(), 3);
    others.into_iter().for_each(|t| drop(t.join().unwrap().unwrap()));
}

#[test]
fn a_wrong_secret_is_refused_and_the_job_starts_without_it() {
    let job = Job::new(2);
    let wrong = JoinConfig { secret: JobSecret::random(), ..job.config(1) };
    let stranger = thread::spawn(move || join(wrong).map(drop).unwrap_err().to_string());
    let root = thread::spawn({
        let config = job.config(0);
        move || join(config)
    });
    let text = stranger.join().unwrap();
    assert!(text.contains("TIDEMILL_SECRET"), "{text}");
    let honest = join(job.config(1)).unwrap();
    assert_eq!(honest.rank(), Rank(1));
    assert_eq!(root.join().unwrap().unwrap().size(), 2);
}

/// A worker of another job that shares the secret (for example, an exported one) is a stranger too.
#[test]
fn another_job_with_the_same_secret_is_refused() {
    let mut job = Job::new(2);
    job.timeout = Duration::from_secs(4);
    let results = job.join_all(|config| config.job = format!("job of {}", config.rank));
    let texts = errors(results);
    assert_eq!(texts.len(), 2);
    assert!(texts.iter().any(|t| t.contains("TIDEMILL_JOB")), "{texts:?}");
}

/// Garbage, silence, half a hello, a scan, and a replay of an honest worker's bytes, all before any honest worker
/// comes.
#[test]
fn strangers_are_harmless() {
    let job = Job::new(3);
    let root = thread::spawn({
        let config = job.config(0);
        move || join(config)
    });
    let mut held = Vec::new();
    let mut hello = b"TIDEMILL".to_vec();
    hello.extend_from_slice(&PROTOCOL.to_le_bytes());
    hello.extend_from_slice(&[1, 1]);
    for i in 0..200 {
        let mut stream = TcpStream::connect(job.address()).unwrap();
        match i % 5 {
            // A scan: connects and disappears.
            0 => continue,
            1 => drop(stream.write_all(&vec![0xA5; 5000])),
            2 => drop(stream.write_all(b"GET / HTTP/1.1\r\n\r\n")),
            3 => drop(stream.write_all(&hello)),
            _ => {}
        }
        held.push(stream);
    }
    // A whole hello as rank 1, with a proof of zeros.
    let mut forger = TcpStream::connect(job.address()).unwrap();
    forger.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = hello.clone();
    bytes.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
    bytes.extend_from_slice(&[7; 32]);
    forger.write_all(&bytes).unwrap();
    let mut challenge = [0; 44];
    forger.read_exact(&mut challenge).unwrap();
    forger.write_all(&[0; 32]).unwrap();
    let mut verdict = [0; 36];
    forger.read_exact(&mut verdict).unwrap();
    assert_eq!(verdict[0], 2, "the verdict on a wrong proof");
    assert_eq!(verdict[4..], [0; 32], "a wrong proof gets no proof in return");
    assert_eq!(forger.read(&mut [0]).unwrap_or(0), 0);

    let others: Vec<_> = [1, 2].map(|r| job.config(r)).into_iter().map(|c| thread::spawn(move || join(c))).collect();
    let mut controls = vec![root.join().unwrap().unwrap()];
    controls.extend(others.into_iter().map(|t| t.join().unwrap().unwrap()));
    check_exchange(controls);
}

/// Bytes recorded from an honest worker's successful handshake do not work a second time.
#[test]
fn a_recorded_handshake_is_worthless() {
    let job = Job::new(3);
    let root = thread::spawn({
        let config = job.config(0);
        move || join(config)
    });
    // An eavesdropper between rank 1 and rank 0 records what rank 1 sends.
    let tap = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = JoinConfig { root: tap.local_addr().unwrap().to_string(), ..job.config(1) };
    let honest = thread::spawn(move || join(config));
    let (mut client, _) = tap.accept().unwrap();
    let mut server = TcpStream::connect(job.address()).unwrap();
    let mut recorded = Vec::new();
    for (from_client, from_server) in [(56, 44), (32, 36)] {
        let mut bytes = vec![0; from_client];
        client.read_exact(&mut bytes).unwrap();
        server.write_all(&bytes).unwrap();
        recorded.extend_from_slice(&bytes);
        let mut bytes = vec![0; from_server];
        server.read_exact(&mut bytes).unwrap();
        client.write_all(&bytes).unwrap();
    }
    let mut replay = TcpStream::connect(job.address()).unwrap();
    replay.write_all(&recorded).unwrap();
    replay.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    replay.read_to_end(&mut answer).unwrap();
    assert_eq!((answer.len(), answer[44]), (44 + 36, 2), "the replayed proof was believed");

    let last = job.config(2);
    let last = thread::spawn(move || join(last).map(drop));
    // The tap continues until both sides have what they need.
    let relay = |mut from: TcpStream, mut to: TcpStream| thread::spawn(move || drop(std::io::copy(&mut from, &mut to)));
    relay(client.try_clone().unwrap(), server.try_clone().unwrap());
    relay(server, client);
    root.join().unwrap().unwrap();
    honest.join().unwrap().unwrap();
    last.join().unwrap().unwrap();
}

#[test]
fn everybody_is_told_who_is_missing() {
    let mut job = Job::new(5);
    job.timeout = Duration::from_secs(2);
    let results = join_these([0, 1, 4].into_iter().map(|rank| job.config(rank)));
    for text in errors(results) {
        assert!(text.contains("worker(s) 2, 3 did not join"), "{text}");
    }
}

#[test]
fn a_missing_rank_0_is_named() {
    let mut job = Job::new(3);
    job.timeout = Duration::from_secs(1);
    let configs: Vec<_> = [1, 2].map(|rank| job.config(rank)).into();
    drop(job.listener);
    let texts = errors(join_these(configs.into_iter()));
    assert_eq!(texts.len(), 2);
    assert!(texts.iter().all(|t| t.contains("rank 0") && t.contains(&job.root)), "{texts:?}");
}

#[test]
fn a_rank_given_twice_is_an_error_on_every_worker() {
    let job = Job::new(4);
    let results = join_these([0, 1, 2, 2].into_iter().map(|rank| job.config(rank)));
    let texts = errors(results);
    assert_eq!(texts.len(), 4);
    assert!(texts.iter().all(|t| t.contains("two workers claim rank 2")), "{texts:?}");
}

#[test]
fn sizes_that_disagree_are_an_error_on_every_worker() {
    let job = Job::new(3);
    let results = job.join_all(|config| {
        if config.rank == Rank(2) {
            config.size = 4;
        }
    });
    let texts = errors(results);
    assert_eq!(texts.len(), 3);
    assert!(texts.iter().all(|t| t.contains("worker 2") && t.contains("4 worker(s)")), "{texts:?}");
}

#[test]
fn a_rank_outside_of_the_job_is_refused_at_once() {
    let job = Job::new(2);
    assert!(matches!(join(job.config(2)), Err(JoinError::RankOutOfRange { .. })));
}

#[test]
fn another_version_is_refused_by_name() {
    let job = Job::new(2);
    let root = thread::spawn({
        let config = job.config(0);
        move || join(config)
    });
    let mut stream = TcpStream::connect(job.address()).unwrap();
    stream.write_all(b"TIDEMILL\x63\x00\x01\x01").unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!((&answer[..8], answer[10]), (&b"TIDEMILL"[..], 1), "the answer names the version spoken here");
    // And the other way round: rank 0 runs another version.
    let future = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = JoinConfig { root: future.local_addr().unwrap().to_string(), ..job.config(1) };
    thread::spawn(move || {
        for stream in future.incoming() {
            let mut stream = stream.unwrap();
            stream.write_all(b"TIDEMILL\x63\x00\x01\x02").unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    let text = join(config).map(drop).unwrap_err().to_string();
    assert!(text.contains("another version of Tidemill (wire protocol 99"), "{text}");
    join(job.config(1)).unwrap();
    root.join().unwrap().unwrap();
}

#[test]
fn a_worker_that_ends_during_an_exchange_is_named_on_every_worker() {
    for in_process in [false, true] {
        let mut controls: Vec<ControlPlane> = match in_process {
            false => Job::new(4).join_all(|_| ()).into_iter().map(Result::unwrap).collect(),
            true => ControlPlane::in_process(4),
        };
        drop(controls.remove(2));
        let threads: Vec<_> = controls.into_iter().map(|mut c| thread::spawn(move || c.allgather(b"x"))).collect();
        for thread in threads {
            let text = thread.join().unwrap().unwrap_err().to_string();
            assert!(text.contains("worker 2 was lost"), "{text}");
        }
    }
}

/// Both kinds of job behave alike: messages arrive in order, departures are distinguished from losses, and each is
/// reported once.
#[test]
fn the_running_control_plane_delivers_messages_departures_and_losses() {
    for in_process in [false, true] {
        let controls: Vec<ControlPlane> = match in_process {
            false => Job::new(4).join_all(|_| ()).into_iter().map(Result::unwrap).collect(),
            true => ControlPlane::in_process(4),
        };
        let mut running: Vec<_> = controls.into_iter().map(|c| Some(started(c))).collect();
        let handle = |running: &[Option<(ControlHandle, _)>], rank: usize| running[rank].as_ref().unwrap().0.clone();
        for i in 0..100u8 {
            handle(&running, 1).send(MessageTarget::One(Rank(3)), &[i]).unwrap();
        }
        handle(&running, 2).send(MessageTarget::All, b"hello").unwrap();
        handle(&running, 0).send(MessageTarget::One(Rank(0)), b"self").unwrap();
        let next = |rank: usize, running: &[Option<(_, Receiver<ControlEvent>)>]| {
            running[rank].as_ref().unwrap().1.recv_timeout(PATIENCE).unwrap()
        };
        let mut at_3: Vec<_> = (0..101).map(|_| next(3, &running)).collect();
        let hello = ControlEvent::Message { from: Rank(2), bytes: b"hello".to_vec() };
        at_3.remove(at_3.iter().position(|event| *event == hello).unwrap());
        let expected = (0..100).map(|i| ControlEvent::Message { from: Rank(1), bytes: vec![i] });
        assert!(at_3.into_iter().eq(expected));
        assert_eq!(next(1, &running), hello);
        let mut at_0 = [next(0, &running), next(0, &running)];
        at_0.sort_by_key(|event| *event == hello);
        assert_eq!(at_0, [ControlEvent::Message { from: Rank(0), bytes: b"self".to_vec() }, hello]);

        handle(&running, 1).leave().unwrap();
        running[1] = None;
        for rank in [0, 2, 3] {
            assert_eq!(next(rank, &running), ControlEvent::Left { rank: Rank(1) });
        }
        let start = Instant::now();
        running[3] = None;
        for rank in [0, 2] {
            let event = next(rank, &running);
            assert!(matches!(event, ControlEvent::Lost { rank: Rank(3), .. }), "{event:?}");
        }
        assert!(start.elapsed() < Duration::from_secs(8), "noticed by silence, not by the end of the connection");
        running[0] = None;
        let event = next(2, &running);
        assert!(matches!(event, ControlEvent::Lost { rank: Rank(0), .. }), "{event:?}");
        assert!(running[2].as_ref().unwrap().1.recv_timeout(Duration::from_millis(50)).is_err(), "nothing comes twice");
    }
}

/// Rank 0 may end first, in an orderly way, and nobody calls that a loss.
#[test]
fn rank_0_may_leave_first() {
    let controls = Job::new(3).join_all(|_| ());
    let mut running: Vec<_> = controls.into_iter().map(|c| Some(started(c.unwrap()))).collect();
    running[0].as_ref().unwrap().0.leave().unwrap();
    for rank in [1, 2] {
        let event = running[rank].as_ref().unwrap().1.recv_timeout(PATIENCE).unwrap();
        assert_eq!(event, ControlEvent::Left { rank: Rank(0) });
    }
    // Its process is still alive, so messages still pass.
    running[1].as_ref().unwrap().0.send(MessageTarget::One(Rank(2)), b"by way of 0").unwrap();
    let event = running[2].as_ref().unwrap().1.recv_timeout(PATIENCE).unwrap();
    assert_eq!(event, ControlEvent::Message { from: Rank(1), bytes: b"by way of 0".to_vec() });
    running[0] = None;
    running[1].as_ref().unwrap().0.leave().unwrap();
    assert!(running[2].as_ref().unwrap().1.recv_timeout(Duration::from_millis(200)).is_err());
}

/// An unbounded queue would exhaust a worker's memory when another is slow.
#[test]
fn what_is_queued_is_bounded() {
    let mut controls = ControlPlane::in_process(2).into_iter();
    let (a, _a_events) = started(controls.next().unwrap());
    let gate = std::sync::Arc::new(std::sync::Mutex::new(()));
    let held = gate.lock().unwrap();
    let slow = std::sync::Arc::clone(&gate);
    let b = controls.next().unwrap().start(Box::new(move |_| drop(slow.lock()))).unwrap();
    let big = vec![0; 8 << 20];
    let refused = (0..10).map(|_| a.send(MessageTarget::One(Rank(1)), &big)).find_map(Result::err);
    assert!(refused.is_some_and(|e| e.to_string().contains("queued")));
    assert!(a.send(MessageTarget::One(Rank(2)), b"").is_err(), "there is no rank 2");
    drop(held);
    drop(b);
}

/// Hundreds of jobs in one process, as a notebook might run: no descriptor, thread or socket name is left behind.
#[test]
fn nothing_is_left_behind() {
    // In a separate process, so that other tests' descriptors do not count.
    if std::env::var_os("TIDEMILL_TEST_ALONE").is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "nothing_is_left_behind", "--test-threads=1"])
            .env("TIDEMILL_TEST_ALONE", "1")
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let one_job = |job: u32| {
        let controls =
            if job.is_multiple_of(4) { ControlPlane::in_process(3) } else { unwrapped(Job::new(3).join_all(|_| ())) };
        let running: Vec<_> = controls.into_iter().map(started).collect();
        running[0].0.send(MessageTarget::All, b"x").unwrap();
        // Some leave in an orderly way, some do not.
        if job.is_multiple_of(2) {
            running.iter().for_each(|(handle, _)| handle.leave().unwrap());
        }
    };
    // A thread that has done its work may still be ending.
    let settle = |done: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !done() && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(5));
        }
    };
    let threads = count("task");
    one_job(0);
    one_job(1);
    settle(&|| count("task") == threads);
    let before = (count("fd"), count("task"));
    (0..300).for_each(one_job);
    settle(&|| (count("fd"), count("task")) == before);
    assert_eq!((count("fd"), count("task")), before);
}

fn unwrapped(results: Vec<Result<ControlPlane, JoinError>>) -> Vec<ControlPlane> {
    results.into_iter().map(Result::unwrap).collect()
}

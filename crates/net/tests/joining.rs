//! Joining along the tree of a large job, in miniature: what rank 0 holds open, and workers that end, come again or
//! come in an unusual order.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tidemill_net::control::ControlTree;
use tidemill_net::rendezvous::{JobSecret, JoinConfig, JoinError, join};
use tidemill_net::{ControlPlane, Rank, interruptible};

/// Long enough for a busy machine; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A job whose workers join one by one.
struct Joining {
    listener: TcpListener,
    root: SocketAddr,
    secret: JobSecret,
    tree: ControlTree,
    fanout: u32,
    timeout: Duration,
    workers: BTreeMap<u32, Worker>,
}

/// A worker that joins, in its own thread. When `killed` is set it ends as if its process had.
struct Worker {
    killed: Arc<AtomicBool>,
    thread: JoinHandle<Result<ControlPlane, JoinError>>,
}

impl Joining {
    fn new(size: u32, fanout: u32) -> Joining {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let root = listener.local_addr().unwrap();
        let tree = ControlTree::new(size, Some(fanout));
        let (secret, workers) = (JobSecret::random(), BTreeMap::new());
        Joining { listener, root, secret, tree, fanout, timeout: PATIENCE, workers }
    }

    fn config(&self, rank: u32) -> JoinConfig {
        JoinConfig {
            timeout: self.timeout,
            listener: (rank == 0).then(|| self.listener.try_clone().unwrap().into()),
            control_fanout: (rank == 0).then_some(self.fanout),
            ..JoinConfig::new(Rank(rank), self.tree.size(), "test", self.secret.clone(), &self.root.to_string())
        }
    }

    fn start(&mut self, ranks: impl IntoIterator<Item = u32>) {
        for rank in ranks {
            let worker = start(self.config(rank));
            assert!(self.workers.insert(rank, worker).is_none(), "rank {rank} runs already");
        }
    }

    fn kill(&mut self, rank: u32) {
        let worker = self.workers.remove(&rank).unwrap();
        worker.killed.store(true, Ordering::Relaxed);
        assert!(worker.thread.join().unwrap().is_err(), "rank {rank} had joined");
    }

    /// The workers that rank 0 stays connected to until all have joined.
    fn kept(&self) -> usize {
        let is_kept = |&rank: &u32| {
            self.tree.parent(Rank(rank)) == Some(Rank(0)) || self.tree.children(Rank(rank)).next().is_some()
        };
        (1..self.tree.size()).filter(is_kept).count()
    }

    /// Waits until rank 0 has this many connections, as the system counts them.
    fn await_connections(&self, expected: usize) {
        let start = Instant::now();
        while connections_to(self.root) != expected {
            let count = connections_to(self.root);
            assert!(start.elapsed() < PATIENCE, "rank 0 has {count} connections, and not {expected}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until rank 0 has kept this many connections for a while: not those of the first workers that call.
    fn await_settled(&self, expected: usize) {
        let mut looks = 0;
        while looks < 100 {
            self.await_connections(expected);
            thread::sleep(Duration::from_millis(5));
            looks = if connections_to(self.root) == expected { looks + 1 } else { 0 };
        }
    }

    fn outcomes(self) -> Vec<Result<ControlPlane, JoinError>> {
        self.workers.into_values().map(|worker| worker.thread.join().unwrap()).collect()
    }

    /// Waits until all have joined, and checks that everybody is connected to the right ones.
    fn finish(self) -> Vec<ControlPlane> {
        let tree = self.tree;
        let mut controls: Vec<ControlPlane> = self.outcomes().into_iter().map(Result::unwrap).collect();
        assert_eq!(controls.len(), tree.size() as usize);
        let links = |rank: Rank| tree.children(rank).count() + usize::from(rank != Rank(0));
        assert!(controls.iter().all(|control| control.links() == links(control.rank())));
        let threads: Vec<_> = controls
            .drain(..)
            .map(|mut control| {
                thread::spawn(move || {
                    let all = control.allgather(&control.rank().0.to_le_bytes()).unwrap();
                    assert!(all.into_iter().eq((0..control.size()).map(|rank| rank.to_le_bytes().to_vec())));
                    control
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    fn errors(self) -> Vec<String> {
        self.outcomes().into_iter().filter_map(Result::err).map(|error| error.to_string()).collect()
    }
}

fn start(config: JoinConfig) -> Worker {
    let killed = Arc::new(AtomicBool::new(false));
    let is_killed = Arc::clone(&killed);
    let work = move || interruptible(Rc::new(move || is_killed.load(Ordering::Relaxed)), || join(config));
    Worker { killed, thread: thread::spawn(work) }
}

/// How many connections to `address` are accepted and open, in this network namespace.
fn connections_to(address: SocketAddr) -> usize {
    let local = format!("0100007F:{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let is_open = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        // Local address, remote address, state: established.
        fields.next() == Some(&local) && fields.nth(1) == Some("01")
    };
    table.lines().filter(is_open).count()
}

/// A rank 0 that kept a connection to each leaf would need as many descriptors as there are workers.
#[test]
fn rank_0_is_connected_to_workers_with_children_when_the_last_joins() {
    for (size, fanout) in [(40, 3), (85, 4)] {
        let mut job = Joining::new(size, fanout);
        job.start(0..size - 1);
        let kept = job.kept();
        assert!(kept < size as usize / 2);
        job.await_settled(kept);
        job.start([size - 1]);
        let controls = job.finish();
        assert_eq!(controls[0].links_at_join(), kept + 1, "of {size} workers");
        assert_eq!(controls[1].links_at_join(), 0);
    }
}

/// In a tree of seven with fan-out 2, ranks 2 and 3 are connected through 1, and ranks 5 and 6 through 4.
#[test]
fn leaves_that_come_before_their_parents_wait_for_them() {
    let mut job = Joining::new(7, 2);
    job.start([0, 2, 3, 5, 6]);
    job.await_connections(4);
    job.start([4]);
    job.await_connections(3);
    job.start([1]);
    job.finish();
}

/// Leaves that are connected only to a worker that ends have to find their way back to rank 0, and workers with
/// children to their parent's successor.
#[test]
fn parents_that_end_while_others_join_may_come_again() {
    for ended in [vec![1], vec![2], vec![1, 2], vec![1, 2, 5]] {
        // Rank 1 has the children 2 and 5, and these have two leaves each.
        let mut job = Joining::new(15, 2);
        job.start(0..8);
        job.await_connections(3);
        ended.iter().for_each(|&rank| job.kill(rank));
        let adrift = ended.iter().filter(|&&rank| rank != 1).count() * 2;
        job.await_connections(3 - ended.len() + adrift);
        job.start(ended.iter().rev().copied());
        job.await_connections(3);
        job.start(8..15);
        job.finish();
    }
}

/// A leaf is restarted by its launcher: rank 0, which is not connected to it, must not take it for two workers.
#[test]
fn a_leaf_that_ends_while_others_join_may_come_again() {
    let mut job = Joining::new(7, 2);
    job.start(0..4);
    job.await_connections(1);
    for _ in 0..5 {
        job.kill(2);
        // At once: news of its end may still be on their way.
        job.start([2]);
        job.await_connections(1);
    }
    job.kill(3);
    job.start([4, 5, 6]);
    job.await_connections(2);
    job.start([3]);
    job.finish();
}

/// Rank 0 has no connection to the first of the two any more, nor to others that have to learn of it.
#[test]
fn a_rank_given_twice_is_an_error_on_every_worker_below_others() {
    let mut job = Joining::new(7, 2);
    job.start(0..6);
    job.await_connections(2);
    let second = start(job.config(2));
    let mut texts = job.errors();
    texts.extend(second.thread.join().unwrap().err().map(|error| error.to_string()));
    assert_eq!(texts.len(), 7);
    assert!(texts.iter().all(|text| text.contains("two workers claim rank 2: one at 127.0.0.1:")), "{texts:?}");
}

#[test]
fn leaves_below_others_learn_who_is_missing_and_of_other_sizes() {
    let mut job = Joining { timeout: Duration::from_secs(2), ..Joining::new(7, 2) };
    job.start(0..6);
    let texts = job.errors();
    assert_eq!(texts.len(), 6);
    assert!(texts.iter().all(|text| text.contains("worker(s) 6 did not join within 2 s")), "{texts:?}");

    let mut job = Joining::new(7, 2);
    job.start(0..6);
    job.await_connections(2);
    let wrong = start(JoinConfig { size: 8, ..job.config(6) });
    let mut texts = job.errors();
    texts.extend(wrong.thread.join().unwrap().err().map(|error| error.to_string()));
    assert_eq!(texts.len(), 7);
    assert!(texts.iter().all(|text| text.contains("was told that the job has 8 worker(s)")), "{texts:?}");
}

/// Leaves below others are not connected to rank 0, so its end has to be passed on to them.
#[test]
fn the_end_of_rank_0_while_workers_join_reaches_all() {
    let mut job = Joining::new(7, 2);
    job.start(0..6);
    job.await_settled(2);
    job.kill(0);
    let texts = job.errors();
    assert_eq!(texts.len(), 5);
    assert!(texts.iter().all(|text| text.contains("interrupted")), "{texts:?}");
}

/// Rank 0 has welcomed all, but one of them ends before it reads that: whoever is connected through it must not wait
/// for it, nor name another. Ranks 3 and 4 are leaves below 2, which is below 1; 14 is elsewhere.
#[test]
fn a_worker_that_ends_just_as_all_have_joined_is_named_on_all_others() {
    let ends = |victim: u32| {
        let job = Joining::new(15, 2);
        let [is_stopped, is_killed, stops, all_joined] = [(); 4].map(|()| Arc::new(AtomicBool::new(false)));
        let wait_for = |flag: &AtomicBool, patience: Duration| {
            let start = Instant::now();
            while !flag.load(Ordering::Relaxed) && start.elapsed() < patience {
                thread::sleep(Duration::from_millis(1));
            }
            flag.load(Ordering::Relaxed)
        };
        // Stops in the middle of joining, like a process that is stopped, and is killed then.
        let (at_check, killed, stop) = (Arc::clone(&is_stopped), Arc::clone(&is_killed), Arc::clone(&stops));
        let check = move || {
            while stop.load(Ordering::Relaxed) && !killed.load(Ordering::Relaxed) {
                at_check.store(true, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
            killed.load(Ordering::Relaxed)
        };
        let config = job.config(victim);
        let victim_thread = thread::spawn(move || drop(interruptible(Rc::new(check), || join(config))));
        let survivor = |config: JoinConfig| {
            let joined = (config.rank == Rank(0)).then(|| Arc::clone(&all_joined));
            thread::spawn(move || {
                let mut control = join(config).map_err(|error| error.to_string())?;
                joined.inspect(|joined| joined.store(true, Ordering::Relaxed));
                control.allgather(b"x").map(drop).map_err(|error| error.to_string())
            })
        };
        let early = (0..14).filter(|&rank| rank != victim);
        let mut survivors: Vec<_> = early.map(|rank| survivor(job.config(rank))).collect();
        // The inner workers other than 0.
        job.await_settled(6);
        stops.store(true, Ordering::Relaxed);
        assert!(wait_for(&is_stopped, PATIENCE), "rank {victim} does not wait");
        survivors.push(survivor(job.config(14)));
        // On a very busy machine it may have been stopped before it was in its place: then it joins, and ends
        // afterwards.
        if wait_for(&all_joined, Duration::from_secs(5)) {
            is_killed.store(true, Ordering::Relaxed);
        }
        stops.store(false, Ordering::Relaxed);
        victim_thread.join().unwrap();
        let named = format!("worker {victim} was lost");
        for survivor in survivors {
            let text = survivor.join().unwrap().expect_err("the job started without a worker");
            assert!(text.contains(&named), "{text}");
        }
    };
    let threads = [1, 2, 3].map(|victim| thread::spawn(move || ends(victim)));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

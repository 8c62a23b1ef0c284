//! A thousand jobs opened and closed in one process leave nothing behind: no descriptor, thread, mapping, socket or
//! memory.
//!
//! A single test in a separate process, because another test's threads and descriptors would be counted, too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidemill_collective::{Communicator, ReduceOp, TuneTable};
use tidemill_net::environment::{LaunchContext, Variables};
use tidemill_net::rendezvous::{JobSecret, JoinConfig, join, join_launched};
use tidemill_net::{ControlPlane, Endpoint, EndpointSettings, Rank, TransportChoice};

const JOBS: usize = 1000;
/// Jobs before the first measurement: pools fill, tables of the C library grow.
const JOBS_WARM_UP: usize = 60;
/// Long enough for a busy machine; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts the bytes in use.
struct Counting;

static LIVE_BYTES: AtomicIsize = AtomicIsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; only a counter is added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: by this function's own contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Clone, Copy, Debug)]
enum Way {
    /// Threads, from [`ControlPlane::in_process`].
    InProcess,
    /// Through a port, then this transport.
    Port(TransportChoice),
    /// Through the abstract socket where workers on one host meet, then shared memory.
    SameHost,
}

const WAYS: [Way; 4] =
    [Way::InProcess, Way::Port(TransportChoice::Tcp), Way::SameHost, Way::Port(TransportChoice::SharedMemory)];

/// The control planes of a new job with two workers.
fn controls(way: Way, number: usize) -> Vec<ControlPlane> {
    let joins: Vec<Box<dyn FnOnce() -> ControlPlane + Send>> = match way {
        Way::InProcess => return ControlPlane::in_process(2),
        Way::Port(_) => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let root = listener.local_addr().unwrap().to_string();
            let secret = JobSecret::random();
            let mut listener = Some(listener.into());
            let config = |rank| JoinConfig::new(Rank(rank), 2, "leaks", secret.clone(), &root);
            let configs = [JoinConfig { listener: listener.take(), ..config(0) }, config(1)];
            configs.into_iter().map(|config| Box::new(move || join(config).unwrap()) as _).collect()
        }
        Way::SameHost => {
            let launch = move |rank: usize| {
                let id = std::process::id();
                let text = format!(
                    "RANK={rank} WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=7 TORCHELASTIC_RUN_ID={id}.{number}"
                );
                let pairs = text.split(' ').map(|pair| pair.split_once('=').unwrap());
                let variables: Variables = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
                LaunchContext::from_environment(&variables).unwrap()
            };
            (0..2).map(|rank| Box::new(move || join_launched(launch(rank)).unwrap()) as _).collect()
        }
    };
    let threads: Vec<_> = joins.into_iter().map(thread::spawn).collect();
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

/// Typical actions of a program, including things it leaves undone.
fn use_it(world: &Communicator) {
    let (me, peer) = (world.rank(), 1 - world.rank());
    for len in [1usize, 3000, 100_000] {
        let (send, mut recv) = (vec![1i64; len], vec![0i64; len]);
        world.allreduce(&send, &mut recv, &ReduceOp::Sum).unwrap();
        assert_eq!((recv[0], recv[len - 1]), (2, 2));
        if me == 0 {
            world.send_slice(&send, peer, 1).unwrap();
        } else {
            world.recv_slice(&mut recv, Some(peer), None).unwrap();
        }
    }
    let part = world.dup().unwrap().split(Some(me), 0).unwrap().unwrap();
    part.barrier().unwrap();
    // Never received.
    world.send_slice(&[1u8; 1000], peer, 2).unwrap();
    world.barrier().unwrap();
}

fn run_job(way: Way, number: usize) {
    let transport = if let Way::Port(transport) = way { transport } else { TransportChoice::Auto };
    let workers: Vec<_> = controls(way, number)
        .into_iter()
        .map(|control| {
            thread::spawn(move || {
                let endpoint =
                    Endpoint::open(control, EndpointSettings { transport, ..EndpointSettings::default() }).unwrap();
                let world = Communicator::world(endpoint.clone(), Arc::new(TuneTable::default())).unwrap();
                use_it(&world);
                // Every tenth job ends without notice.
                if number % 10 != 9 {
                    endpoint.leave();
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}

/// The resources of this process according to the kernel, and the memory it uses.
fn possessions() -> (BTreeMap<&'static str, usize>, isize) {
    let entries = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    let lines = |file: &str, word: &str| {
        std::fs::read_to_string(file).unwrap().lines().filter(|line| line.contains(word)).count()
    };
    let things = BTreeMap::from([
        ("descriptors", entries("/proc/self/fd")),
        ("threads", entries("/proc/self/task")),
        ("mapped files", lines("/proc/self/maps", "memfd:")),
        // Only ours: other processes, such as browsers, have files there too. Meeting points are abstract sockets,
        // which live as long as their descriptors, and those are counted.
        (
            "files in /dev/shm",
            std::fs::read_dir("/dev/shm").map_or(0, |files| {
                files.flatten().filter(|file| file.file_name().to_string_lossy().contains("tidemill")).count()
            }),
        ),
    ]);
    (things, LIVE_BYTES.load(Ordering::Relaxed))
}

/// Waits until there is no more than `before`, since threads end a moment after they are told to, and other processes
/// come and go. Returns the bytes in use then.
fn assert_nothing_more_than(before: &BTreeMap<&'static str, usize>) -> isize {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (now, bytes) = possessions();
        if now.iter().all(|(thing, count)| *count <= before[thing]) {
            return bytes;
        }
        assert!(Instant::now() < deadline, "before: {before:?}; now: {now:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_thousand_jobs_leave_nothing() {
    let (mut before, _) = possessions();
    // /dev/null is opened once for the whole process.
    *before.get_mut("descriptors").unwrap() += 1;
    let run = |numbers: std::ops::Range<usize>| numbers.for_each(|n| run_job(WAYS[n % WAYS.len()], n));
    run(0..JOBS_WARM_UP);
    let bytes_before = assert_nothing_more_than(&before);
    run(JOBS_WARM_UP..JOBS_WARM_UP + JOBS);
    let grown = assert_nothing_more_than(&before) - bytes_before;
    // Less than a small allocation per job.
    assert!(grown < JOBS as isize * 16, "{grown} bytes more after {JOBS} jobs");
}

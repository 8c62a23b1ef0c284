//! No allocation per message: once pools and slabs have grown to what a program needs, neither small messages nor small
//! collectives call the allocator, over any transport.
//!
//! A single test in a separate process, whose allocator counts the requests of the worker's thread while counting is
//! on. On a busy machine messages may arrive in unusual numbers, for which queues grow once more. So calls are counted
//! in batches, and there must be a batch without a single allocation on any rank.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use tidemill_collective::{Collective, CollectiveCall, Communicator, DType, ReduceOp, Request, StartResult, TuneTable};
use tidemill_net::rendezvous::{JobSecret, JoinConfig, join};
use tidemill_net::{ControlPlane, Endpoint, EndpointSettings, MemoryRegion, Rank, TransportChoice};

/// Calls per batch: with [`WINDOW`] messages of 4 KiB each, more than pass before credit is returned, so that this is
/// counted, too.
const CALLS: usize = 100;
/// Batches within which one must have no allocations. On an idle machine it is one of the first.
const BATCHES_MAX: usize = 200;
/// Batches that are not counted: pools fill, queues grow.
const BATCHES_WARM_UP: usize = 2;
/// Messages in flight at once.
const WINDOW: usize = 16;
/// In a slot of a ring, just beyond it, and eager over every transport; the last is offered, except over TCP.
const LENS_BYTES: [usize; 4] = [8, 97, 4096, 20_000];

/// Counts the allocations of threads that request it, and remembers where the first one was.
struct Counting;

thread_local! {
    static COUNT: Cell<Option<usize>> = const { Cell::new(None) };
    static FIRST: RefCell<Option<Backtrace>> = const { RefCell::new(None) };
}

// SAFETY: every call goes to the system's allocator unchanged; only a counter is added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no counter any more.
        let _ = COUNT.try_with(|count| {
            // Counting is off while the backtrace is made, because that allocates.
            if let Some(n) = count.take() {
                if n == 0 {
                    FIRST.with_borrow_mut(|first| *first = Some(Backtrace::force_capture()));
                }
                count.set(Some(n + 1));
            }
        });
        // SAFETY: by this function's own contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread during `work`.
fn allocations(work: impl FnOnce()) -> usize {
    COUNT.set(Some(0));
    work();
    COUNT.take().expect("counting since the line above")
}

/// Sends `WINDOW` messages to the next rank and receives as many from the previous one. `early`: all messages arrive
/// before the first is received.
fn exchange(comm: &Communicator, send: &[u8], recv: &mut [u8], early: bool) {
    let (me, size) = (comm.rank(), comm.size());
    let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
    let mut requests = [const { None::<Request> }; 2 * WINDOW];
    let keep = |request: &mut Option<Request>, started: StartResult| match started {
        StartResult::Done(_) => {}
        StartResult::Pending(pending) => *request = Some(pending),
    };
    let (sends, recvs) = requests.split_at_mut(WINDOW);
    for request in sends {
        // SAFETY: all requests, and with them the borrows, end before this function does.
        keep(request, unsafe { comm.send(next, 1, MemoryRegion::of(send)) }.unwrap());
    }
    if early {
        // Sent after them: when it arrives, they have arrived.
        let mut word = [0u8];
        comm.send_slice(&[7u8], next, 2).unwrap();
        comm.recv_slice(&mut word, Some(previous), Some(2)).unwrap();
    }
    let len = send.len();
    for (i, request) in recvs.iter_mut().enumerate() {
        let place = &mut recv[i * len..(i + 1) * len];
        // From any source or not, to cover both ways of matching.
        let source = (i % 2 == 0).then_some(previous);
        // SAFETY: as above.
        keep(request, unsafe { comm.recv(source, Some(1), MemoryRegion::of_mut(place)) }.unwrap());
    }
    for request in requests.into_iter().flatten() {
        request.wait().unwrap();
    }
}

/// One message each way, both waited for.
fn ping_pong(comm: &Communicator, send: &[u8], recv: &mut [u8]) {
    let peer = comm.rank() ^ 1;
    if peer >= comm.size() {
        return;
    }
    let recv = &mut recv[..send.len()];
    if comm.rank() < peer {
        comm.send_slice(send, peer, 3).unwrap();
        comm.recv_slice(recv, Some(peer), Some(3)).unwrap();
    } else {
        comm.recv_slice(recv, Some(peer), None).unwrap();
        comm.send_slice(send, peer, 3).unwrap();
    }
}

fn reduce(comm: &Communicator, send: &[i64], recv: &mut [i64], root: u32) {
    let region = |ptr: *const i64, len| MemoryRegion { ptr: ptr.cast_mut().cast(), len };
    let call = CollectiveCall {
        dtype: DType::I64,
        op: &ReduceOp::Sum,
        root,
        count: send.len(),
        send: Some(region(send.as_ptr(), size_of_val(send))),
        recv: Some(region(recv.as_mut_ptr(), size_of_val(recv))),
        ..CollectiveCall::new(Collective::Reduce)
    };
    // SAFETY: both slices are borrowed during the call.
    unsafe { comm.run(&call) }.unwrap();
}

/// Runs batches of `call` until one allocates nothing on any rank.
fn expect_none(comm: &Communicator, what: &str, mut call: impl FnMut()) {
    let mut batch = || (0..CALLS).for_each(|_| call());
    (0..BATCHES_WARM_UP).for_each(|_| batch());
    let mut fewest = i64::MAX;
    for _ in 0..BATCHES_MAX {
        let mine = allocations(&mut batch) as i64;
        let mut most = [0];
        comm.allreduce(&[mine], &mut most, &ReduceOp::Max).unwrap();
        if most[0] == 0 {
            return;
        }
        fewest = fewest.min(most[0]);
    }
    let first = FIRST.take().map_or_else(|| "on another rank".into(), |place| place.to_string());
    panic!("{what}: at least {fewest} allocations on some rank in {CALLS} calls; the latest first one:\n{first}");
}

fn use_it(name: &str, comm: &Communicator) {
    let size = comm.size();
    let bytes = vec![1u8; *LENS_BYTES.last().unwrap()];
    let mut recv = vec![0u8; WINDOW * bytes.len()];
    for len in LENS_BYTES {
        let (send, what) = (&bytes[..len], |what| format!("{name}, {size} workers, {what} of {len} bytes"));
        // The case that needs most room comes first, so that none of the others makes a queue grow.
        expect_none(comm, &what("early messages"), || exchange(comm, send, &mut recv, true));
        expect_none(comm, &what("messages"), || exchange(comm, send, &mut recv, false));
        expect_none(comm, &what("ping-pong"), || ping_pong(comm, send, &mut recv));
    }
    for count in [1usize, 500] {
        let (send, mut recv, mut all) = (vec![1i64; count], vec![0i64; count], vec![0i64; count * size as usize]);
        let what = |what| format!("{name}, {size} workers, {what} of {count} int64");
        // In turn: a root that only sends would be far ahead, with more messages at the others than their pools have
        // room for.
        let mut root = 0..;
        let mut root = || root.next().expect("few calls") % size;
        expect_none(comm, &what("barrier"), || comm.barrier().unwrap());
        expect_none(comm, &what("bcast"), || comm.bcast(&mut recv, root()).unwrap());
        expect_none(comm, &what("reduce"), || reduce(comm, &send, &mut recv, root()));
        expect_none(comm, &what("allreduce"), || comm.allreduce(&send, &mut recv, &ReduceOp::Sum).unwrap());
        expect_none(comm, &what("allgather"), || comm.allgather(&send, &mut all).unwrap());
    }
}

/// The control planes of a new job with threads as workers; through a port if the transport is for processes.
fn controls(size: u32, transport: Option<TransportChoice>) -> Vec<ControlPlane> {
    if transport.is_none() {
        return ControlPlane::in_process(size);
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let root = listener.local_addr().unwrap().to_string();
    let secret = JobSecret::random();
    let mut listener = Some(listener.into());
    let joins: Vec<_> = (0..size)
        .map(|rank| {
            let config = JoinConfig::new(Rank(rank), size, "allocations", secret.clone(), &root);
            let config = JoinConfig { listener: listener.take(), ..config };
            thread::spawn(move || join(config).unwrap())
        })
        .collect();
    joins.into_iter().map(|join| join.join().unwrap()).collect()
}

#[test]
fn neither_small_messages_nor_small_collectives_allocate() {
    let ways = [
        ("in-process", None),
        ("shared memory", Some(TransportChoice::SharedMemory)),
        ("tcp", Some(TransportChoice::Tcp)),
    ];
    for (name, transport) in ways {
        for size in [2, 3] {
            let workers: Vec<_> = controls(size, transport)
                .into_iter()
                .map(|control| {
                    thread::spawn(move || {
                        let settings = EndpointSettings {
                            transport: transport.unwrap_or_default(),
                            ..EndpointSettings::default()
                        };
                        let endpoint = Endpoint::open(control, settings).unwrap();
                        let world = Communicator::world(endpoint.clone(), Arc::new(TuneTable::default())).unwrap();
                        use_it(name, &world);
                        endpoint.leave();
                    })
                })
                .collect();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        }
    }
}

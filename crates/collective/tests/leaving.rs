//! A worker may end its program at any time: its messages arrive, and ranks that wait for more learn that it has left.
//!
//! Runs over every transport; workers are threads, which meet through a port except in process.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tidemill_collective::{CollectiveError, Communicator, StartResult, TuneTable};
use tidemill_net::rendezvous::{JobSecret, JoinConfig, join};
use tidemill_net::{
    ControlPlane, Endpoint, EndpointSettings, Engine, EngineTask, MemoryRegion, NetError, Rank, TransportChoice,
};

/// Runs `work` on a job of two workers over each transport. A worker leaves when its `work` returns.
fn over_every_transport(work: impl Fn(&str, &Communicator) + Send + Sync + 'static) {
    let work = Arc::new(work);
    for (name, transport) in
        [("in-process", None), ("shm", Some(TransportChoice::SharedMemory)), ("tcp", Some(TransportChoice::Tcp))]
    {
        let controls = match transport {
            None => ControlPlane::in_process(2),
            Some(_) => joined(2),
        };
        let settings = EndpointSettings { transport: transport.unwrap_or_default(), ..EndpointSettings::default() };
        let workers: Vec<_> = controls
            .into_iter()
            .map(|control| {
                let (work, settings) = (Arc::clone(&work), settings.clone());
                thread::spawn(move || {
                    let endpoint = Endpoint::open(control, settings).unwrap();
                    let world = Communicator::world(endpoint.clone(), Arc::new(TuneTable::default())).unwrap();
                    world.barrier().unwrap();
                    work(name, &world);
                    endpoint.leave();
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    }
}

/// The control planes of a job with `size` workers.
fn joined(size: u32) -> Vec<ControlPlane> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let root = listener.local_addr().unwrap().to_string();
    let secret = JobSecret::random();
    let config = |rank| JoinConfig::new(Rank(rank), size, "leaving", secret.clone(), &root);
    let mut configs: Vec<JoinConfig> = (0..size).map(config).collect();
    configs[0].listener = Some(listener.into());
    let joins: Vec<_> = configs.into_iter().map(|config| thread::spawn(move || join(config).unwrap())).collect();
    joins.into_iter().map(|join| join.join().unwrap()).collect()
}

fn is_left(error: &CollectiveError, rank: u32) -> bool {
    matches!(error, CollectiveError::Net(NetError::PeerLeft { rank: left }) if left.0 == rank)
}

/// Rank 0 stays until the others have left. Over TCP its connections stayed open meanwhile, and a rank that waited for
/// something from it used to wait for their end: forever.
#[test]
fn whoever_waits_for_a_worker_that_has_left_is_told() {
    for first in [0, 1] {
        over_every_transport(move |name, world| {
            if world.rank() == first {
                return;
            }
            let error = world.barrier().unwrap_err();
            assert!(is_left(&error, first), "{name}: {error}");
            let error = world.recv_slice(&mut [0u8], Some(first), None).unwrap_err();
            assert!(is_left(&error, first), "{name}: {error}");
            let error = world.recv_slice(&mut [0u8], None, None).unwrap_err();
            assert!(is_left(&error, first), "{name}: {error}");
            let error = world.send_slice(&[0u8; 1 << 20], first, 0).unwrap_err();
            assert!(is_left(&error, first), "{name}: {error}");
        });
    }
}

/// The last rank has ended, but stays until rank 0 takes its message. Rank 0 waits for another rank, and that one for
/// the last, without a connection through which to learn of its end.
#[test]
fn whoever_waits_for_a_worker_that_has_left_is_told_without_a_connection() {
    const SIZE: u32 = 8;
    const LAST: u32 = SIZE - 1;
    let program = |endpoint: &Endpoint, world: &Communicator| {
        // The ranks connected with the last one, after making the communicator and one more call of this kind.
        let mut linked = [0u8; SIZE as usize];
        for _ in 0..2 {
            let mine = [u8::from(endpoint.lock().is_linked(Rank(LAST)))];
            world.allgather(&mine, &mut linked).unwrap();
        }
        let other = (1..LAST).find(|&rank| linked[rank as usize] == 0).expect("a pair without a connection");
        if world.rank() == 0 {
            let mut got = vec![0u8; 1 << 20];
            world.recv_slice(&mut got[..1], Some(other), None).unwrap();
            world.recv_slice(&mut got, Some(LAST), None).unwrap();
            assert!(got.iter().all(|&byte| byte == 2));
        } else if world.rank() == other {
            let error = world.recv_slice(&mut [0u8], Some(LAST), None).unwrap_err();
            assert!(is_left(&error, LAST), "{error}");
            assert!(!endpoint.lock().is_linked(Rank(LAST)), "or this tests nothing");
            world.send_slice(&[1u8], 0, 0).unwrap();
        } else if world.rank() == LAST {
            let mut data = Box::new(vec![2u8; 1 << 20]);
            // SAFETY: the box is the request's keepalive.
            let started = unsafe { world.send(0, 0, MemoryRegion::of_mut(&mut data)) }.unwrap();
            if let StartResult::Pending(request) = started {
                request.detach(Some(data));
            }
        }
    };
    let workers: Vec<_> = joined(SIZE)
        .into_iter()
        .map(|control| {
            thread::spawn(move || {
                let settings = EndpointSettings { transport: TransportChoice::Tcp, ..EndpointSettings::default() };
                let endpoint = Endpoint::open(control, settings).unwrap();
                program(&endpoint, &Communicator::world(endpoint.clone(), Arc::new(TuneTable::default())).unwrap());
                endpoint.leave();
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}

/// A function that returned while others waited in its communicator used to leave them there forever.
#[test]
fn whoever_waits_in_a_communicator_that_another_is_done_with_is_told() {
    for first in [0, 1] {
        over_every_transport(move |name, world| {
            let comm = world.dup().unwrap();
            let tell = |result: Result<(), CollectiveError>, words: &str| {
                let error = result.unwrap_err();
                let is_told = matches!(&error, CollectiveError::Net(NetError::PeerEnded { rank, call })
                    if rank.0 == first && call.contains(words));
                assert!(is_told, "{name}: {error}");
            };
            if world.rank() == first {
                comm.send_slice(&[7u8], 1 - first, 0).unwrap();
                thread::sleep(Duration::from_millis(50));
                comm.end();
            } else {
                let mut got = [0u8];
                comm.recv_slice(&mut got, Some(first), None).unwrap();
                assert_eq!(got, [7], "{name}: what was sent before comes");
                tell(comm.recv_slice(&mut got, None, None).map(drop), "recv from any rank on comm");
                tell(
                    comm.recv_slice(&mut got, Some(first), None).map(drop),
                    &format!("recv from rank {first} on comm"),
                );
                tell(comm.iprobe(Some(first), None).map(drop), "probe on comm");
                tell(comm.barrier(), "barrier #");
                comm.send_slice(&[0u8; 1 << 20], first, 0).expect("nobody is kept by what nobody takes");
            }
            world.barrier().unwrap();
        });
    }
}

/// A message that its sender does not wait for (`Bsend`, a freed request) used to be lost if the program ended before
/// it was received, and its receiver waited forever.
#[test]
fn what_was_sent_is_received_after_its_sender_has_ended() {
    const LENS: [usize; 6] = [10, 1 << 20, 3, 5_000_000, 20_000, 1];
    for sender in [0, 1] {
        over_every_transport(move |name, world| {
            if world.rank() == sender {
                for (tag, len) in LENS.into_iter().enumerate() {
                    let mut data = Box::new(vec![tag as u8; len]);
                    // SAFETY: the box is the request's keepalive.
                    let started =
                        unsafe { world.send(1 - sender, tag as i32, MemoryRegion::of_mut(&mut data)) }.unwrap();
                    if let StartResult::Pending(request) = started {
                        request.detach(Some(data));
                    }
                }
                return;
            }
            // Time enough for the sender to end, if it does not wait.
            thread::sleep(Duration::from_millis(500));
            for (tag, len) in LENS.into_iter().enumerate().rev() {
                let mut got = vec![99u8; len];
                let status = world.recv_slice(&mut got, Some(sender), Some(tag as i32));
                assert!(status.is_ok(), "{name}: {status:?}");
                assert!(got.iter().all(|&byte| byte == tag as u8), "{name}: message {tag}");
            }
            let error = world.recv_slice(&mut [0u8], Some(sender), None).unwrap_err();
            assert!(is_left(&error, sender), "{name}: {error}");
        });
    }
}

/// Closing a connection with unread data makes the kernel drop data that it has not delivered: messages that a worker
/// had sent just before it ended used to be lost, if the other one had also sent something.
#[test]
fn what_was_sent_last_is_received_however_much_comes_the_other_way() {
    const COUNT: i32 = 100;
    for first in [0, 1] {
        over_every_transport(move |name, world| {
            let peer = 1 - world.rank();
            for tag in 0..COUNT {
                // Eager, and within the credit of a receiver that does not receive.
                let sent = world.send_slice(&[tag as u8; 8000], peer, tag);
                // The other may have ended meanwhile.
                assert!(sent.is_ok() || world.rank() != first, "{name}: {sent:?}");
            }
            if world.rank() == first {
                return;
            }
            thread::sleep(Duration::from_millis(300));
            let mut got = [0u8; 8000];
            for tag in 0..COUNT {
                let status = world.recv_slice(&mut got, Some(peer), Some(tag));
                assert!(status.is_ok(), "{name}: {status:?}");
                assert!(got.iter().all(|&byte| byte == tag as u8), "{name}: message {tag}");
            }
        });
    }
}

/// Two workers that have each sent something the other never receives must not wait for each other at the end.
#[test]
fn what_nobody_receives_keeps_nobody() {
    over_every_transport(move |_, world| {
        let mut data = Box::new(vec![1u8; 1 << 20]);
        // SAFETY: the box is the request's keepalive.
        let started = unsafe { world.send(1 - world.rank(), 5, MemoryRegion::of_mut(&mut data)) }.unwrap();
        let StartResult::Pending(request) = started else { panic!("nobody receives it") };
        world.barrier().unwrap();
        request.detach(Some(data));
        if world.rank() == 0 {
            thread::sleep(Duration::from_millis(200));
        }
    });
}

/// Ends when it is the only owner of the endpoint.
struct Last {
    _endpoint: Endpoint,
    is_last: Arc<AtomicBool>,
}

impl EngineTask for Last {
    fn step(&mut self, _: &mut Engine) -> Option<Result<(), NetError>> {
        self.is_last.load(Ordering::SeqCst).then_some(Ok(()))
    }

    fn waiting_for(&self, _: &Engine) -> Vec<Option<Rank>> {
        Vec::new()
    }
}

/// A task may outlive everything else that the program had of the job. The thread that drives the engine then drops it
/// while the engine is locked, and must neither lock it again nor wait for itself.
#[test]
fn the_last_endpoint_may_be_a_tasks() {
    for controls in [ControlPlane::in_process(2), joined(2)] {
        let is_last = Arc::new(AtomicBool::new(false));
        let (tell, told) = std::sync::mpsc::channel();
        let mut told = Some(told);
        let workers: Vec<_> = controls
            .into_iter()
            .map(|control| {
                let (is_last, tell) = (Arc::clone(&is_last), tell.clone());
                let told = if control.rank() == Rank(1) { told.take() } else { None };
                thread::spawn(move || {
                    let endpoint = Endpoint::open(control, EndpointSettings::default()).unwrap();
                    let world = Communicator::world(endpoint.clone(), Arc::new(TuneTable::default())).unwrap();
                    world.barrier().unwrap();
                    if let Some(told) = told {
                        told.recv().unwrap();
                        // Causes some progress, so that the task is polled.
                        world.send_slice(&[1u8], 0, 1).unwrap();
                        let error = world.recv_slice(&mut [0u8], Some(0), None).unwrap_err();
                        assert!(is_left(&error, 0), "{error}");
                        return;
                    }
                    let last = Last { _endpoint: endpoint.clone(), is_last: Arc::clone(&is_last) };
                    endpoint.lock().add_task(Box::new(last));
                    endpoint.leave_to_background();
                    drop((world, endpoint));
                    is_last.store(true, Ordering::SeqCst);
                    tell.send(()).unwrap();
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    }
}

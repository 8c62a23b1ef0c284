//! If the kernel rejects the fast path, a job continues with a slower one, and can say why.
//!
//! Workers are threads, and a system call filter belongs to a thread: each worker blocks the calls that the test is
//! about.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use tidemill_collective::{Communicator, ReduceOp, TuneTable};
use tidemill_net::rendezvous::{JobSecret, JoinConfig, join};
use tidemill_net::{ControlPlane, Endpoint, EndpointSettings, OpenError, Rank, TransportChoice};

/// From now on the system call fails on this thread, as if the kernel did not have it.
fn refuse(call: libc::c_long) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let filter = [
        // The number of the call is the first word of the filter's input.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: only affects this thread; the filter program outlives the call, which copies it.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(done, "{}", std::io::Error::last_os_error());
}

/// Runs `check` on both workers of a job in which `call` is blocked on rank 1.
fn with_refused<R: Send + 'static>(
    call: libc::c_long,
    transport: TransportChoice,
    check: impl Fn(Result<Endpoint, OpenError>) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let root = listener.local_addr().unwrap().to_string();
    let secret = JobSecret::random();
    let config = |rank| JoinConfig::new(Rank(rank), 2, "fallback", secret.clone(), &root);
    let configs = [JoinConfig { listener: Some(listener.into()), ..config(0) }, config(1)];
    let check = Arc::new(check);
    let workers: Vec<_> = configs
        .into_iter()
        .map(|config| {
            let check = Arc::clone(&check);
            thread::spawn(move || {
                if config.rank == Rank(1) {
                    refuse(call);
                }
                let control: ControlPlane = join(config).unwrap();
                check(Endpoint::open(control, EndpointSettings { transport, ..EndpointSettings::default() }))
            })
        })
        .collect();
    workers.into_iter().map(|worker| worker.join().unwrap()).collect()
}

/// What a job must be able to do over any transport.
fn use_it(endpoint: &Endpoint) {
    let world = Communicator::world(endpoint.clone(), Arc::new(TuneTable::default())).unwrap();
    for len in [1usize, 300_000] {
        let mut sum = vec![0i64; len];
        world.allreduce(&vec![1i64; len], &mut sum, &ReduceOp::Sum).unwrap();
        assert!(sum.iter().all(|&x| x == 2));
    }
}

/// The docs say that a job falls back to TCP; it used to fail instead.
#[test]
fn without_shared_memory_there_is_tcp() {
    let lacks = with_refused(libc::SYS_memfd_create, TransportChoice::Auto, |endpoint| {
        let endpoint = endpoint.unwrap();
        use_it(&endpoint);
        let peer = Rank(1 - endpoint.rank().0);
        assert!(!endpoint.shares_memory_with(peer));
        let lack = endpoint.lack(peer).unwrap().to_owned();
        endpoint.leave();
        lack
    });
    assert!(lacks[1].contains("no shared memory") && lacks[1].contains("create"), "{lacks:?}");
    assert!(lacks[0].contains("no shared memory"), "{lacks:?}");
}

/// Over TCP alone nothing needs shared memory.
#[test]
fn tcp_needs_no_shared_memory() {
    with_refused(libc::SYS_memfd_create, TransportChoice::Tcp, |endpoint| {
        let endpoint = endpoint.unwrap();
        use_it(&endpoint);
        assert_eq!(endpoint.lack(Rank(1 - endpoint.rank().0)), None, "the user wants it so");
        endpoint.leave();
    });
}

/// A request for shared memory must not be satisfied with something else.
#[test]
fn shared_memory_that_is_asked_for_is_not_replaced() {
    let errors = with_refused(libc::SYS_memfd_create, TransportChoice::SharedMemory, |endpoint| {
        endpoint.map(|_| ()).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("TIDEMILL_TRANSPORT=shm")), "{errors:?}");
}

/// Two copies of every large message are a cost that used to go unnoticed; and if only one of two workers could copy,
/// the job failed.
#[test]
fn without_single_copies_there_are_two_and_a_reason() {
    let lacks = with_refused(libc::SYS_process_vm_readv, TransportChoice::Auto, |endpoint| {
        let endpoint = endpoint.unwrap();
        use_it(&endpoint);
        let peer = Rank(1 - endpoint.rank().0);
        assert!(endpoint.shares_memory_with(peer));
        let lack = endpoint.lack(peer).map(str::to_owned);
        endpoint.leave();
        lack
    });
    let lacks: Vec<String> = lacks.into_iter().map(Option::unwrap).collect();
    assert!(lacks[1].contains("process_vm_readv") && lacks[1].contains("single copies"), "{lacks:?}");
    // A worker that could copy alone would ask the other to help, which rejects the request as damaged.
    assert!(lacks[0].contains("it cannot read"), "{lacks:?}");
}

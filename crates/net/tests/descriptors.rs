//! A job with more workers than rank 0 may have descriptors at first. In a separate file, since the limit applies to
//! the whole process.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use tidemill_net::Rank;
use tidemill_net::rendezvous::{JobSecret, JoinConfig, join};

/// Rank 0 has a descriptor for each worker until all have joined: with the usual limit of 1,024, no larger job could
/// start. Here all workers are in one process, which has both ends.
#[test]
fn a_job_starts_beyond_the_soft_limit() {
    let limit = |soft: u64| {
        let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: both calls read and write the plain memory they are given.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limits), 0);
            limits.rlim_cur = soft.min(limits.rlim_max);
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limits), 0);
        }
        limits.rlim_max
    };
    let size = 100;
    if limit(64) < 600 {
        eprintln!("skipped: the hard limit of descriptors is below 600");
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (root, secret) = (listener.local_addr().unwrap().to_string(), JobSecret::random());
    let config = |rank| JoinConfig {
        timeout: Duration::from_secs(120),
        listener: (rank == 0).then(|| listener.try_clone().unwrap().into()),
        control_fanout: (rank == 0).then_some(8),
        ..JoinConfig::new(Rank(rank), size, "test", secret.clone(), &root)
    };
    let joining: Vec<_> = (0..size).map(config).map(|config| thread::spawn(move || join(config))).collect();
    let joined: Vec<_> = joining.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
    assert!(joined[0].links() <= 8, "then it keeps only those of its children");
}

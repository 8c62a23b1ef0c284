//! Joins the job that the environment describes, exchanges a few bytes, prints who is present and leaves.
//!
//! Try `mpirun -n 4 target/release/examples/join`, the same with `mpiexec.hydra`, `srun` or `tidemill run`.

use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

use tidemill_net::environment::LaunchContext;
use tidemill_net::rendezvous::join_launched;
use tidemill_net::topology::WorkerPlacement;
use tidemill_net::{ControlEvent, MessageTarget};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let launch = LaunchContext::from_process()?;
    let launcher = launch.launcher;
    let mut control = join_launched(launch)?;
    let everybody = control.allgather(&WorkerPlacement::here().encode())?;
    let (rank, size) = (control.rank(), control.size());
    let hosts: std::collections::BTreeSet<_> =
        everybody.iter().filter_map(|b| WorkerPlacement::decode(b)).map(|p| p.host).collect();
    println!("rank {rank} of {size} on {} host(s), started by {launcher}", hosts.len());

    // Nobody leaves before everybody has received from everybody.
    let (sender, events) = channel();
    let sender = std::sync::Mutex::new(sender);
    let handle = control.start(Box::new(move |event| drop(sender.lock().expect("never poisoned").send(event))))?;
    handle.send(MessageTarget::All, b"hello")?;
    let mut greetings = 1;
    while greetings < size {
        match events.recv_timeout(Duration::from_secs(30))? {
            ControlEvent::Message { .. } => greetings += 1,
            ControlEvent::Left { .. } => {}
            ControlEvent::Lost { rank, reason } => return Err(format!("worker {rank} was lost: {reason}").into()),
        }
    }
    handle.leave()?;
    // `--die 2` tests what the launcher does when a worker dies.
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|a| a == "--die") && arguments.get(2) == Some(&rank.to_string()) {
        std::process::abort();
    }
    if arguments.get(1).is_some_and(|a| a == "--die") {
        std::thread::sleep(Duration::from_secs(30));
    }
    println!("rank {rank} leaves");
    Ok(())
}

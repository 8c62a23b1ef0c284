//! Measuring gives every rank the same rules, and a job that starts with them computes the same.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidemill_collective::measure::measure;
use tidemill_collective::tuner::TuneTable;
use tidemill_collective::{Collective, Communicator, ReduceOp, run_ranks};
use tidemill_net::Endpoint;

#[test]
fn measured_rules_are_alike_and_usable() {
    let texts = run_ranks(3, |comm| {
        let mut table = TuneTable::default();
        let mut found = 0;
        measure(&comm, &mut table, &[8, 6000], Duration::from_micros(200), |_| found += 1).unwrap();
        assert!(found > 20);
        table.to_text()
    })
    .unwrap();
    assert!(texts.iter().all(|text| *text == texts[0]));
    assert!(Collective::ALL.iter().filter(|c| texts[0].contains(&format!("\"{c}\""))).count() >= 11);

    // Only rank 0 has the table; the others receive it.
    let endpoints = Endpoint::in_process(3).unwrap();
    let sums = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for endpoint in endpoints {
            let (text, sums) = (&texts[0], &sums);
            scope.spawn(move || {
                let table =
                    if endpoint.rank().0 == 0 { TuneTable::parse(text, "test").unwrap() } else { TuneTable::default() };
                let world = Communicator::world(endpoint, Arc::new(table)).unwrap();
                let mut sum = vec![0i64; 5000];
                world.allreduce(&vec![2; 5000], &mut sum, &ReduceOp::Sum).unwrap();
                sums.lock().unwrap().push(sum == vec![6; 5000]);
                world.endpoint().leave();
            });
        }
    });
    assert_eq!(*sums.lock().unwrap(), [true; 3]);
}

/// On one host, blocking calls work without messages unless the table says otherwise.
#[test]
fn a_table_rules_blocking_calls_on_one_host() {
    let ring = "version = 2\nrules = [{ collective = \"allreduce\", ranks = 3, hosts = 1, algorithm = \"ring\" }]\n";
    for (text, in_rank_order) in [("version = 2\n", true), (ring, false)] {
        let endpoints = Endpoint::in_process(3).unwrap();
        std::thread::scope(|scope| {
            for endpoint in endpoints {
                scope.spawn(move || {
                    let world =
                        Communicator::world(endpoint, Arc::new(TuneTable::parse(text, "test").unwrap())).unwrap();
                    // In rank order the 1 is lost in rounding; around a ring some blocks begin elsewhere.
                    let mine = [1e17, 1.0, -1e17][world.rank() as usize];
                    let mut sum = [0f64; 3];
                    world.allreduce(&[mine; 3], &mut sum, &ReduceOp::Sum).unwrap();
                    assert_eq!(sum == [0.0; 3], in_rank_order, "{sum:?}");
                    world.endpoint().leave();
                });
            }
        });
    }
}

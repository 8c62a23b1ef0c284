//! What can be known to be wrong with a graph is said before it runs, all at once; and graphs print.

mod common;

use arrow::datatypes::DataType;
use common::{Data, Kept, schema, sink, source};
use tidemill_collective::tuner::CostModel;
use tidemill_dataflow::exchange::*;
use tidemill_dataflow::placement::{Placement, RoundRobin};
use tidemill_dataflow::{Graph, GraphError, Overlay, TaskSpec, WorkerInfo};

fn nothing() -> Data {
    std::sync::Arc::new(|_| Vec::new())
}

fn task(name: &str) -> TaskSpec {
    TaskSpec::new(name, |_, _, _| async { Ok(()) })
}

#[test]
fn everything_wrong_is_named() {
    let numbers = schema(&[("n", DataType::Int64)]);
    let words = schema(&[("w", DataType::Utf8)]);
    let mut graph = Graph::new("bad");
    let a = graph.add(source("a", &numbers, 2, &nothing()));
    let twin = graph.add(source("a", &words, 2, &nothing()));
    let picky = graph.add(task("picky").input_of("in", numbers.clone()).copies(3));
    let pair = graph.add(task("pair").input("left").input("right").copies(0));
    graph.connect(a, picky, Direct);
    graph.connect(twin, picky, Partition::by_key(["w"]));
    graph.connect(a, pair, Broadcast::default());
    graph.connect(a, pair.port("middle"), Broadcast::default());
    graph.connect(a, pair.port("left"), Partition::by_key(["x"]));
    graph.connect(a, picky, Gather::to(3));
    let errors = graph.check(2).unwrap_err();
    let text = errors.to_string();
    for words in [
        "two tasks are called \"a\"",
        "task \"pair\": it has no copies",
        "2 copies cannot be joined one to one to 3",
        "column \"w\" (Utf8) arrived, but \"n\" (Int64) is declared",
        "task \"pair\" has no input port to choose by itself; it has left, right",
        "task \"pair\" has no input port \"middle\"",
        "no column \"x\"; the columns are n",
        "no copy 3 among 3",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(errors.errors.len(), 8, "{text}");
}

#[test]
fn cycles_and_loose_ends_are_named() {
    let numbers = schema(&[("n", DataType::Int64)]);
    let mut graph = Graph::new("round");
    let from = graph.add(source("from", &numbers, 1, &nothing()));
    let step = |name: &str| task(name).input("in").output("out", numbers.clone()).copies(1);
    let (a, b) = (graph.add(step("a")), graph.add(step("b")));
    graph.connect(from, a, Direct).connect(a, b, Direct).connect(b, a, Direct);
    let errors = graph.check(1).unwrap_err().errors;
    assert_eq!(errors, [GraphError::Cycle { tasks: ["a", "b", "a"].map(str::to_owned).into() }]);

    let mut graph = Graph::new("loose");
    graph.add(source("from", &numbers, 1, &nothing()));
    graph.add(step("a"));
    assert_eq!(graph.check(1).unwrap_err().errors.len(), 3);
}

#[test]
fn joins_and_reductions_are_checked() {
    let left = schema(&[("k", DataType::Int64), ("v", DataType::Utf8)]);
    let right = schema(&[("k", DataType::Int64), ("u", DataType::Int32)]);
    let wrong =
        |sources: usize, exchange: &dyn Fn(&mut Graph, Vec<tidemill_dataflow::PortRef>, tidemill_dataflow::TaskId)| {
            let mut graph = Graph::new("g");
            let l = graph.add(source("l", &left, 2, &nothing()));
            let r = graph.add(source("r", &right, 2, &nothing()));
            let to = graph.add(sink("to", 3, &Kept::default()));
            exchange(&mut graph, [l, r].map(Into::into)[..sources].to_vec(), to);
            graph.check(2).unwrap_err().to_string()
        };
    let text = wrong(2, &|g, from, to| {
        g.connect_all(from, to, Join::new(JoinKind::Inner, [("k", "k")]));
    });
    assert!(text.contains("both sides have a column \"k\""), "{text}");
    let text = wrong(2, &|g, from, to| {
        g.connect_all(from, to, Join::new(JoinKind::Semi, [("k", "u")]));
    });
    assert!(text.contains("have different types"), "{text}");
    let text = wrong(1, &|g, from, to| {
        g.connect_all(from, to, Join::new(JoinKind::Inner, [("k", "k")]));
    });
    assert!(text.contains("two sources"), "{text}");
    let text = wrong(1, &|g, from, to| {
        g.connect_all(from, to, KeyedReduce::new(["k"], Reduction::new().sum("v")));
    });
    assert!(text.contains("does not support sum"), "{text}");
    let text = wrong(1, &|g, from, to| {
        g.connect_all(from, to, KeyedReduce::new(["k"], Reduction::new().sum("k")));
    });
    assert!(text.contains("is a key"), "{text}");
}

#[test]
fn graphs_print() {
    let numbers = schema(&[("n", DataType::Int64)]);
    let mut graph = Graph::new("say \"hi\"");
    let from = graph.add(source("from", &numbers, 5, &nothing()));
    let to = graph.add(sink("to", 2, &Kept::default()));
    graph.connect(from, to, KeyedReduce::new(["n"], Reduction::new()));
    let workers = vec![WorkerInfo { host: "h".into(), location: None, cores: 1.0, memory_bytes: 0 }; 2];
    let text = graph.explain(2, None).unwrap();
    assert_eq!(
        text,
        "graph \"say \\\"hi\\\"\" on 2 workers\n  source \"from\": 5 copies\n  sink \"to\": 2 copies\n  edge from.out -> to.in \
         (keyed reduce by n: ): n Int64\n"
            .replace("\\\"", "\"")
    );
    let resources = tidemill_dataflow::Resources::default();
    let info = |name, copies| tidemill_dataflow::placement::TaskInfo {
        name,
        copies,
        per_worker: false,
        resources: &resources,
    };
    let plan = RoundRobin.place(&[info("from", 5), info("to", 2)], &workers).unwrap();
    assert!(
        graph
            .explain(2, Some((&plan, &workers, &CostModel::TYPICAL)))
            .unwrap()
            .contains("5 copies on workers 0 x3, 1 x2\n")
    );
    let dot = graph.to_dot(2, Some(&plan)).unwrap();
    assert!(dot.starts_with("digraph \"say \\\"hi\\\"\" {") && dot.contains("t0 -> t1 [label=\"keyed reduce"), "{dot}");
    let svg = graph.to_svg(2, Some(&plan)).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains(">say &quot;hi&quot;</text>"), "{svg}");
    assert!(svg.contains(">source x 5</text>") && svg.contains(">on workers 0 x3, 1 x2</text>"), "{svg}");
    assert!(svg.contains(">keyed reduce by n: </text>"), "{svg}");
}

/// The line on the only edge of a plan for two hosts of two workers.
fn edge_line(exchange: impl Exchange + 'static) -> String {
    let numbers = schema(&[("n", DataType::Int64)]);
    let workers: Vec<WorkerInfo> = ["a", "a", "b", "b"]
        .map(|host| WorkerInfo { host: host.into(), location: None, cores: 1.0, memory_bytes: 0 })
        .into();
    let mut graph = Graph::new("g");
    let from = graph.add(source("from", &numbers, 4, &nothing()));
    let to = graph.add(sink("to", 4, &Kept::default()));
    graph.connect(from, to, exchange);
    let plan = graph.plan(&RoundRobin, &workers).unwrap();
    let unplaced = graph.explain(4, None).unwrap();
    assert!(!unplaced.contains("chosen") && !unplaced.contains("as set"), "{unplaced}");
    graph.explain(4, Some((&plan, &workers, &CostModel::TYPICAL))).unwrap().lines().last().unwrap().trim().to_owned()
}

/// Who reads a plan must see which tree was chosen, and for what; one that was set is said to be.
#[test]
fn plans_say_which_overlays_edges_have() {
    let chosen = edge_line(Broadcast::default());
    assert!(chosen.starts_with("edge from.out -> to.in (broadcast): n Int64; along "), "{chosen}");
    assert!(chosen.ends_with(", chosen for messages of 16384 bytes between 4 workers on 2 hosts"), "{chosen}");
    let set = edge_line(Union::by(Broadcast::along(Overlay::Ring)));
    assert!(set.ends_with("(union, broadcast along ring): n Int64; along ring, as set"), "{set}");
    let reduced = edge_line(Reduce::new(Reduction::new().sum("n")).to(1).for_messages(1 << 20));
    assert!(reduced.contains("; along ") && reduced.contains("messages of 1048576 bytes"), "{reduced}");
    let keyed = || KeyedReduce::new(["n"], Reduction::new());
    let rounds = edge_line(Rounds::new(keyed(), RoundEnd::Strict));
    assert!(rounds.contains("; to each copy along ") && rounds.contains(", chosen for messages of "), "{rounds}");
    let set = edge_line(keyed().along(Overlay::Flat));
    assert!(set.ends_with("; to each copy along flat, as set"), "{set}");
    assert!(!edge_line(keyed()).contains("along"), "how much comes is not known");
    let direct = edge_line(Gather::to(0));
    assert!(!direct.contains("along"), "{direct}");
}

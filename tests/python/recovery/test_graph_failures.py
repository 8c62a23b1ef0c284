"""Task graphs that cannot run, fail, block or lose a worker: one clear error on every worker, and nothing that hangs."""

from __future__ import annotations

import functools
import re
import signal
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import launched
import numpy as np
import pytest
import standing
import tidemill as tm
import workers
from graphs import program

N = {"n": "int64"}


def nothing(*_: object) -> None:
    pass


def generator(out: object, context: object) -> Iterator[int]:
    yield 1


async def coroutine(out: object, context: object) -> None:
    pass


def wrong(build: object) -> str:
    """What a graph is refused with."""
    graph = tm.Graph("wrong")
    with pytest.raises(tm.GraphError) as caught:
        build(graph)  # type: ignore[operator]
        graph.run()
    return str(caught.value)


def two(graph: tm.Graph, **options: object) -> tuple[tm.graph.Task, tm.graph.Task]:
    return graph.source("a", nothing, schema=N, parallelism=2), graph.sink("b", nothing, parallelism=3, **options)


def connected(exchange: object, **options: object) -> object:
    def build(graph: tm.Graph) -> None:
        graph.connect(*two(graph, **options), exchange)

    return build


def test_what_cannot_run_says_why() -> None:
    x = tm.exchange

    def cycle(graph: tm.Graph) -> None:
        a, b = (graph.compute(name, nothing, schema=N) for name in "ab")
        graph.connect(a, b)
        graph.connect(b, a)

    def same_name(graph: tm.Graph) -> None:
        graph.connect(graph.source("a", nothing), graph.sink("a"))

    def of_another(graph: tm.Graph) -> None:
        graph.connect(*two(tm.Graph()))

    def two_inputs(graph: tm.Graph) -> None:
        graph.connect(graph.source("a", nothing), graph.sink("b", nothing, inputs=["left", "right"]))

    def alone(graph: tm.Graph) -> None:
        two(graph)

    objects = lambda graph: graph.connect(graph.source("a", nothing), graph.sink("b"), x.partition("n"))  # noqa: E731
    summed = lambda graph: graph.connect(graph.source("a", nothing), graph.sink("b"), x.reduce({"n": "sum"}))  # noqa: E731
    cases = [
        (cycle, "tasks form a cycle: a -> b -> a"),
        (same_name, 'two tasks are called "a"'),
        (of_another, "is not a task of this graph"),
        (two_inputs, "task 'b' has the input ports left, right; choose one: task['left']"),
        (alone, 'output port "out" of task "a" is not connected'),
        (connected(None), "2 copies cannot be joined one to one to 3; give both tasks the same number"),
        (connected(x.partition("m")), 'no column "m"; the columns are n'),
        (connected(x.gather(3)), "no copy 3 among 3"),
        (connected(x.partition("n", owners=[0, 3])), "the route map names copy 3, but there are only 3"),
        (
            connected(x.partition(), inputs={"in": {"m": "int64"}}),
            'column "n" (Int64) arrived, but "m" (Int64) is declared',
        ),
        (connected(x.partition(), inputs={"in": {"n": "str"}}), 'column "n" (Int64) arrived, but "n" (Utf8View)'),
        (connected(x.partition(), inputs={"in": "objects"}), "is declared"),
        (connected(x.reduce({"n": "mean"})), 'unknown reduction "mean"'),
        (connected(x.reduce("sum")), "for tables, say which columns, as in {\"n\": 'sum'}"),
        (connected(x.join("n")), "a join needs two sources, not 1"),
        (connected(x.broadcast(along="star")), '"flat", "binary", "binomial", "chain", "ring" or "double"'),
        (connected(x.gather(along="star")), 'unknown along="star": use'),
        (connected("direct"), "an exchange must come from a function of tidemill.exchange"),
        (objects, "needs columns, but the port sends objects; give it a schema"),
        (summed, 'the port sends objects; use "sum" or a function'),
        (lambda g: g.source("a", nothing, schema={"n": "integer"}), "task 'a', output port 'out': schema="),
        (
            lambda g: g.source("a", nothing, schema="tables"),
            'a port sends "objects" (the default), "arrays", or tables',
        ),
        (lambda g: g.source("a", nothing, schema={}), "at least one column"),
        (lambda g: g.source("a", nothing, parallelism=0), "task 'a': parallelism=0; a task needs at least one copy"),
        (lambda g: g.source("a", nothing, parallelism="2"), "task 'a': parallelism='2' must be an integer"),
        (lambda g: g.source("a", nothing, per_worker=1.5), "task 'a': per_worker=1.5 must be an integer"),
        (lambda g: g.source("a", nothing, parallelism=1 << 30), "a task has at most 1048575 copies"),
        (lambda g: g.source("a", nothing, cores=-1), "task 'a': cores=-1 must be a non-negative number of cores"),
        (lambda g: g.source("a", nothing, cores=float("nan")), "cores=nan must be a non-negative number of cores"),
        (lambda g: g.source("a", nothing, cores="2"), "cores='2' must be a non-negative number of cores"),
        (lambda g: g.source("a", nothing, memory=-5), "memory=-5 must be a non-negative number of bytes"),
        (lambda g: g.source("a", nothing, memory=1.5), "memory=1.5 must be a size"),
        (lambda g: g.source("a", nothing, locations=["host"]), "locations=['host'] must be a list of hosts per copy"),
        (lambda g: g.source("a", nothing, locations="host"), "locations='host' must be a list of hosts per copy"),
        (lambda g: g.source("a", nothing, locations=[[1]]), "locations=[[1]] must be a list of hosts per copy"),
        (lambda g: g.source("a", nothing, schema={"n": int}), "\"n\": \"int64\", not 'n': <class 'int'>"),
        (lambda g: g.source("a", nothing, schema=5), 'schema= must be types by column, {"n": "int64"}'),
        (
            lambda g: g.sink("a", nothing, inputs={"in": 5}),
            "task 'a', input port 'in': schema= must be types by column",
        ),
        (lambda g: g.source("a", generator), "task 'a': its function is a generator or async"),
        (lambda g: g.source("a", functools.partial(generator)), "task 'a': its function is a generator or async"),
        (lambda g: g.source("a", coroutine), "task 'a': its function is a generator or async"),
        (connected(x.reduce(["n"])), "['n'] is not a reduction"),
        (connected(x.keyed_reduce("n", ["n"])), "['n'] is not a reduction"),
        (lambda g: g.source("a", lambda out: None), "task 'a': its function is called with (out, context), but"),
        (lambda g: g.source("a", 7), "7 is not callable"),
        (lambda g: g.source("a", nothing, memory="lots"), "memory='lots' must be a size"),
        (lambda g: g.source("a", nothing)["in"], "task 'a' has no port 'in'; it has out"),
        (lambda g: g.source("a", nothing, retries=-1), "task 'a': retries=-1 must be a non-negative number of calls"),
        (
            lambda g: g.source("a", nothing, retries=True),
            "task 'a': retries=True must be a non-negative number of calls",
        ),
        (
            lambda g: g.source("a", nothing, retries=1, comm=True),
            "task 'a': retries=1 cannot be combined with comm=True",
        ),
        (lambda g: g.sink("a", nothing, inputs=["x", "y"], each=True), "each=True is for one input port, not for x, y"),
        (lambda g: g.sink("a", each=True), "task 'a': each=True needs a function, which is called with every message"),
        (lambda g: g.sink("a", lambda m: None, each=True), "its function is called with (message, context), but"),
    ]
    for build, text in cases:
        assert text in wrong(build), (text, wrong(build))
    for make, text in [
        (lambda: x.gather(-1), "gather: to=-1 is not from 0 to 4294967295"),
        (lambda: x.reduce("sum", to=1 << 32), "reduce: to=4294967296 is not"),
        (lambda: x.partition("n", buckets=2.5), "partition: buckets=2.5 must be an integer"),
        (lambda: x.partition("n", owners=[0, -1]), "partition: owners=-1 is not"),
        (lambda: x.partition(buckets=8), "partition: buckets= applies to keys made of columns"),
        (lambda: x.partition(nothing, owners=[0]), "partition: owners= applies to keys made of columns"),
        (lambda: x.partition(ranges="n", buckets=8), "partition: buckets= applies to keys"),
        (lambda: x.union("x"), "union: by='x' must come from a function of tidemill.exchange"),
    ]:
        with pytest.raises(tm.GraphError, match=re.escape(text)):
            make()


def test_what_cannot_be_placed_says_why() -> None:
    graph = tm.Graph("placed")
    graph.connect(*two(graph), tm.exchange.partition())
    for placement, text in [
        ("random", '"round_robin", "first_fit", "locality" or "applications"'),
        ({"a": [0, 0]}, "the plan does not say where the 3 copies of task 'b' run"),
        ({"a": [0, 0], "b": [0, 0, 1]}, "the plan puts task 'b' on worker 1, but the last of the workers"),
        ({"a": [0], "b": [0, 0, 0]}, 'task "a"'),
        ({"c": [0]}, "the plan places 'c', which is not a task; the tasks are a, b"),
        (lambda tasks, workers: 1 / 0, "the placement failed\nTraceback"),
        (lambda tasks, workers: [0], "a placement must return a dict"),
        (None, "placement=None must be a placement name, a plan, or a function"),
        ({"a": ["0", "0"], "b": [0, 0, 0]}, "the plan gives task 'a' ['0', '0'], which is not a list of workers"),
        ({"a": [0.5, 0], "b": [0, 0, 0]}, "the plan gives task 'a' [0.5, 0], which is not a list of workers"),
        ({"a": 0, "b": [0, 0, 0]}, "the plan gives task 'a' 0, which is not a list of workers"),
    ]:
        with pytest.raises(tm.GraphError, match=re.escape(text)) as raised:
            graph.run(placement=placement)
        told = "".join(traceback.format_exception(raised.value))
        assert told.count("ZeroDivisionError") == (1 if "Traceback" in text else 0), told
    with pytest.raises(tm.GraphError, match='"text", "dot" or "svg", not "png"'):
        graph.explain("png")
    greedy = tm.Graph("greedy")
    task = greedy.source("a", nothing, cores=4096, parallelism=1)
    greedy.connect(task, greedy.sink("b", nothing, parallelism=1))
    with pytest.raises(tm.GraphError, match='task "a": no worker has 4096 cores'):
        greedy.plan("first_fit")
    everywhere = tm.Graph("everywhere")
    everywhere.connect(everywhere.source("a", nothing, memory="900TiB"), everywhere.sink("b", nothing))
    with pytest.raises(tm.GraphError, match='task "a": worker 0, which runs one as every worker does, has no'):
        everywhere.plan("first_fit")


def test_what_cannot_be_sent_says_why() -> None:
    def sends(message: object, schema: object) -> str:
        def build(graph: tm.Graph) -> None:
            task = graph.source("a", lambda out, context: out.send(message), schema=schema)
            graph.connect(task, graph.sink("b"))

        return wrong(build)

    for message, schema, text in [
        ({"m": [1]}, N, "the columns m are sent, but n are declared"),
        ({"n": ["one"]}, N, 'column "n" is Utf8, but Int64 is declared; cast it, or declare another type'),
        ({"n": [1.5]}, N, 'column "n" is Float64, but Int64 is declared'),
        ({"n": np.array([300])}, {"n": "int8"}, 'column "n" is Int64, but Int8 is declared: '),
        (7, N, "a port of tables cannot send int"),
        (np.array([None]), "arrays", "a port of arrays cannot send dtype object"),
        (nothing.__code__, None, "cannot pickle code objects"),
    ]:
        told = sends(message, schema)
        assert text in told and 'task "a", copy 0 on worker 0' in told, told


def test_returns_that_cannot_be_pickled() -> None:
    graph = tm.Graph()
    graph.connect(graph.source("a", nothing), graph.sink("b", lambda rows, context: threading_lock()))
    with pytest.raises(tm.GraphError, match=r"cannot be pickled: .*run\(share=False\)"):
        graph.run()
    assert len(graph.run(share=False)["b"]) == 1


def threading_lock() -> object:
    import threading

    return threading.Lock()


FAILURES = """
x = tm.exchange
N = {"n": "int64"}

def numbers(out, context):
    for i in range(200):
        out.send({"n": np.arange(i * 10, i * 10 + 10)})

def forward(rows, out, context):
    for table in rows:
        out.send(table)

def count(rows, context):
    return sum(len(table) for table in rows)

def build(send=numbers, pass_on=forward, take=count, first=None, second=None):
    graph = tm.Graph("failing")
    a = graph.source("a", send, schema=N, parallelism=3)
    b = graph.compute("b", pass_on, schema=N, parallelism=4)
    c = graph.sink("c", take, parallelism=2)
    graph.connect(a, b, first or x.partition("n"))
    graph.connect(b, c, second or x.partition())
    return graph

def fails(function, copy=1):
    def failing(*args):
        if args[-1].copy == copy:
            raise ZeroDivisionError("on purpose")
        return function(*args)
    return failing

def boom(*args):
    return 1 / 0

for graph, task, place, text in [
    (build(send=fails(numbers)), "a", 1, "ZeroDivisionError: on purpose"),
    (build(pass_on=fails(forward)), "b", 1, "ZeroDivisionError: on purpose"),
    (build(take=fails(count)), "c", 1, "ZeroDivisionError: on purpose"),
    (build(first=x.partition(boom)), "a", None, "in boom"),
    (build(second=x.partition(lambda table, copies: [copies] * len(table))), "b", None, "returned copy 2, but there are only 2"),
    (build(second=x.partition(lambda table, copies: [-1] * len(table))), "b", None, "returned copy -1, but there are only 2"),
    (build(second=x.partition(lambda table, copies: [0.9] * len(table))), "b", None, "returned float64; it must return the copy of each row as integers"),
    (build(second=x.partition(lambda table, copies: [0])), "b", None, "returned 1 targets for"),
    (build(second=x.reduce(boom)), None, None, "ZeroDivisionError: division by zero"),
    (build(second=x.reduce(lambda a, b: {"m": 1})), None, None, "not a dict with the columns n"),
    (build(send=fails(lambda out, context: sys.exit(3), 9)), "a", None, "SystemExit: 3"),
]:
    try:
        graph.run()
    except tm.GraphError as error:
        told = str(error)
        assert text in told, told
        assert "Traceback (most recent call last)" in told or "named" in told or "returned" in told, told
        assert "ZeroDivisionError" not in text or "app.py" in told, told
        if task is not None:
            assert error.task == task and (place is None or error.copy == place), (error.task, error.copy)
            assert error.worker == error.copy % job.size
            assert told.startswith(f'task "{task}", copy {error.copy} on worker {error.worker}: '), told
            trace = told.partition("Traceback (most recent call last):\\n")[2]
            assert "app.py" in trace.partition("\\n")[0] or not trace, told
    else:
        raise AssertionError(text)
    assert len(set(job.comm.allgather(told))) == 1, "not the same everywhere"
    # The next run is not disturbed.
    assert sum(build().run()["c"].values()) == 6000

# Workers that do not build the same.
if job.size > 1:
    for graph in [build(first=x.partition("n", buckets=64 + job.rank)), build() if job.rank else build(second=x.gather())]:
        try:
            graph.run()
        except tm.GraphError as error:
            assert "graphs differ" in str(error), error
        else:
            raise AssertionError("they differ")
    try:
        build().run(placement=lambda tasks, workers: {} if job.rank == 1 else {"a": [0] * 3, "b": [0] * 4, "c": [0] * 2})
    except tm.GraphError as error:
        assert "does not say where the 3 copies of task 'a' run (on worker 1)" in str(error), error
    else:
        raise AssertionError("one has no plan")

# A run within a run would wait for itself.
try:
    build(take=lambda rows, context: build().run()).run()
except tm.GraphError as error:
    assert "a task's function cannot run a graph" in str(error), error
print("done")
"""

BLOCKED = """
x = tm.exchange
never = threading.Event()

def sleeps(out, context):
    time.sleep(1000)

def waits(out, context):
    never.wait()

def computes(out, context):
    while True:
        sum(range(1000))

def polls(out, context):
    try:
        while not context.cancelled:
            time.sleep(0.001)
    finally:
        stopped.append(context.copy)

def sends(out, context):
    try:
        while True:
            out.send(np.zeros(100_000))
    except tm.Cancelled:
        stopped.append(context.copy)
        raise

def in_step(out, context):
    try:
        if context.copy == 0:
            context.comm.allreduce(1)
            context.comm.recv(source=tm.mpi.MPI.ANY_SOURCE)
        else:
            context.comm.allreduce(1)
            context.comm.barrier()
            context.comm.barrier()
    except tm.Cancelled:
        stopped.append(context.copy)
        raise

def fails(rows, context):
    if context.copy == 0:
        time.sleep(0.2)
        raise ValueError("enough")
    for _ in rows:
        time.sleep(0.01)

for blocked in sleeps, waits, computes, polls, sends, in_step:
    stopped = []
    graph = tm.Graph("blocked")
    comm = blocked is in_step
    a = graph.source("a", blocked, schema="arrays", parallelism=2 * job.size, comm=comm)
    b = graph.sink("b", fails, parallelism=2)
    graph.connect(a, b, x.gather(1))
    begun = time.monotonic()
    try:
        graph.run()
    except tm.GraphError as error:
        assert "ValueError: enough" in str(error) and (error.task, error.copy, error.worker) == ("b", 0, 0), error
    else:
        raise AssertionError(blocked)
    assert time.monotonic() - begun < 30
    if comm or blocked in (polls, sends):
        while len(stopped) < (1 if comm else 2):
            assert time.monotonic() - begun < 40, (blocked, stopped)
            time.sleep(0.001)
    good = tm.Graph()
    good.connect(good.source("a", lambda out, context: out.send(1)), good.sink("b"))
    assert good.run()["b"] == {copy: [1] for copy in range(job.size)}
print("done", flush=True)
"""


RETRIES = """
x = tm.exchange
lock = threading.Lock()
calls = collections.Counter()

def times(*key):
    with lock:
        calls[key] += 1
        return calls[key]

def late(out, context):
    if times("a", context.copy) < 3:
        raise OSError("not yet")
    for i in range(60):
        out.send([context.copy, i])

def work(message, out, context):
    # As it came: a call that failed has changed it, and has sent what nobody is to see.
    assert len(message) == 2, message
    copy, i = message
    out.send((copy, i, "first"))
    out.flush()
    message.append("changed")
    if times("b", copy, i) <= i % 3:
        raise ValueError("again")
    out.send((copy, i, "second"))

kept = []
def keep(message, context):
    if times("c", message) == 1 and message[1] % 7 == 0:
        raise KeyError("once")
    kept.append(message)

def build(source=late, function=work, sink=keep, retries=2, **options):
    graph = tm.Graph("again")
    a = graph.source("a", source, parallelism=2, retries=retries)
    b = graph.compute("b", function, parallelism=3, retries=retries, **{"each": True, **options})
    c = graph.sink("c", sink, parallelism=2, each=True, retries=1)
    graph.connect(a, b, x.partition())
    graph.connect(b, c, x.partition())
    return graph

build().run()
found = sorted(message for messages in job.comm.allgather(kept) for message in messages)
assert found == [(copy, i, which) for copy in range(2) for i in range(60) for which in ("first", "second")], found

def counted(times):
    return collections.Counter({key: count for counts in job.comm.allgather(times) for key, count in counts.items()})

def once(out, context):
    times("once", context.copy)
    out.send([context.copy, 0])
    raise OSError("too late")

def asked(rows, out, context):
    times("asked", context.copy)
    next(rows, None)
    raise OSError("too late")

def never(*_):
    raise OSError("always")

def takes(message, out, context):
    context.receive()

for graph, task, text in [
    (build(retries=1), "a", "OSError: not yet"),
    (build(source=once), "a", "OSError: too late"),
    (build(function=never), "b", "OSError: always"),
    (build(function=takes), "b", "with each=True, a function is called with every message"),
    (build(source=lambda out, context: out.send([0, 0]), function=asked, each=False), "b", "OSError: too late"),
]:
    calls.clear()
    calls["a", 0] = calls["a", 1] = 0 if task == "a" else 9
    try:
        graph.run()
    except tm.GraphError as error:
        assert error.task == task and text in str(error) and "app.py" in str(error), error
    else:
        raise AssertionError(text)
    # What has been seen is not done again; of several copies one may fail before others begin.
    assert all(count <= 1 for key, count in counted(calls).items() if key[0] in ("once", "asked")), calls
print("done")
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_functions_are_called_again(size: int, tmp_path: Path) -> None:
    """With what they were called with, and as if they had not been: or a message is lost, comes twice or is another."""
    app = tmp_path / "app.py"
    app.write_text(program(RETRIES))
    result = launched.run("run", "-n", str(size), app)
    assert result.returncode == 0, result.stderr.decode() + result.stdout.decode()
    assert result.stdout.decode().count("done") == size
    told = result.stderr.decode()
    assert "task 'b', copy " in told and "failed (ValueError: again); calling its function again (2 of 2)" in told, told
    assert "failed (OSError: not yet); calling its function again (1 of 2)" in told, told


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_errors_on_workers(size: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert standing.run_program(program(FAILURES), workers=size) == ["done\n"] * size
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_functions_that_never_return(size: int, tmp_path: Path) -> None:
    """The end of the program is a part of the test: they must not keep it."""
    app = tmp_path / "app.py"
    app.write_text(program(BLOCKED))
    result = launched.run("run", "-n", str(size), app)
    assert result.returncode == 0, result.stderr.decode() + result.stdout.decode()
    assert result.stdout.decode().count("done") == size
    assert "Traceback" not in result.stderr.decode(), result.stderr.decode()


def lost(folder: Path, graph: str) -> None:
    """Run a graph on three workers, of which the second kills itself in it: the others hear of that."""
    ending = """
try:
    graph.run()
except tm.WorkerLost as error:
    assert error.rank == 1
    print("lost", flush=True)
"""
    with workers.Job(folder, 3, program(textwrap.dedent(graph) + ending)) as job:
        ended = job.finish()
    assert ended[1][0] == -signal.SIGKILL
    for rank in 0, 2:
        assert ended[rank][:2] == (0, "lost\n"), ended[rank]


def test_a_worker_that_is_killed(tmp_path: Path) -> None:
    """The others hear of it wherever they are in the run: one waits for credit, one for rows, one in a function."""
    lost(
        tmp_path,
        """
        def send(out, context):
            for i in range(100_000):
                if context.copy == 1 and i == 100:
                    os.kill(os.getpid(), 9)
                if context.copy == 2 and i == 50:
                    time.sleep(1000)
                out.send(np.zeros(10_000))
        graph = tm.Graph()
        a = graph.source("a", send, schema="arrays", parallelism=3)
        b = graph.sink("b", lambda arrays, context: sum(len(array) for array in arrays), parallelism=3)
        graph.connect(a, b, x.partition())
        """,
    )


def test_a_worker_that_is_killed_in_a_loop(tmp_path: Path) -> None:
    """The others wait for a round that never comes, or for what a task in between sends on."""
    lost(
        tmp_path,
        """
        def work(back, out, context):
            for n in back.rounds():
                if context.copy == 1 and n == 20:
                    os.kill(os.getpid(), 9)
                out.send(np.full(10_000, n))
                next(back)
        def through(arrays, out, context):
            for array in arrays:
                out.send(array)
        graph = tm.Graph()
        a = graph.compute("a", work, schema="arrays", parallelism=3)
        b = graph.compute("b", through, schema="arrays", parallelism=3)
        graph.connect(a, b, x.direct(rounds="strict"))
        graph.feedback(b, a, x.all_reduce("sum", rounds="strict"), limit=1000)
        """,
    )


def test_a_worker_that_is_killed_in_a_function_that_another_spawned(tmp_path: Path) -> None:
    """The others wait for what it would return, run a function that it does not wait for any more, or serve."""
    lost(
        tmp_path,
        """
        def ends():
            os.kill(os.getpid(), 9)
        def work(out, context):
            others = [context.spawn(time.sleep, 1000, worker=2), context.spawn(int, 7, worker=1)]
            assert others[1].result() == 7
            context.spawn(ends, worker=1).result()
        graph = tm.Graph(spawns=True)
        work = graph.source("work", work, parallelism=1)
        graph.connect(work, graph.sink("end", lambda ns, context: list(ns), parallelism=1), x.gather())
        """,
    )


@pytest.mark.parametrize("function", ["time.sleep(1000)", "for _ in numbers: time.sleep(0.01)"])
def test_interrupt(function: str, tmp_path: Path) -> None:
    """Ctrl-C on one of two workers ends the run on both, and the program can go on."""
    with workers.Job(
        tmp_path,
        2,
        program(f"""
        def send(out, context):
            while True:
                out.send(context.copy)
        def take(numbers, context):
            print("running", os.getpid(), flush=True)
            {function}
        graph = tm.Graph("long")
        graph.connect(graph.source("a", send), graph.sink("b", take))
        try:
            graph.run()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        except tm.GraphError as error:
            assert str(error) == "interrupted (on worker 1)", error
            print("told", flush=True)
        good = tm.Graph()
        good.connect(good.source("a", lambda out, context: out.send(1)), good.sink("b"))
        assert good.run()["b"] == {{0: [1], 1: [1]}}
        """),
    ) as job:
        for worker in job.workers:
            assert worker.stdout is not None
            assert worker.stdout.readline().startswith("running")
        time.sleep(0.1)
        job.workers[1].send_signal(signal.SIGINT)
        outputs = job.succeed()
    assert outputs == ["told\n", "interrupted\n"]


def test_after_fork() -> None:
    """A forked child is no worker: it is told so, and leaves its parent's threads and folders alone."""
    source = (
        "import os, tidemill as tm\n"
        "def run():\n"
        "    graph = tm.Graph()\n"
        "    graph.connect(graph.source('a', lambda out, context: out.send(3)), graph.sink('b'))\n"
        "    return graph.run()['b']\n"
        "assert run() == {0: [3]}\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        run()\n"
        "    except tm.CommError as error:\n"
        "        raise SystemExit(0 if 'is a fork of a worker' in str(error) else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0 and run() == {0: [3]}\n"
        "print('done')\n"
    )
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, timeout=launched.PATIENCE_S)
    assert result.stdout == b"done\n", result.stderr.decode()

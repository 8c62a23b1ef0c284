"""Hosts that are cut off, reconnected or killed while a job communicates: it goes on without losses, or all others get
a clear error.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import launched
import pytest
import seeds
import stream_job
import tidemill.hosts
import tidemill.testing
import workers
from tidemill.hosts import Cluster, HostsError

pytestmark = pytest.mark.xdist_group("hosts")

#: Each test that kills takes one host; three are left for the last of them.
cluster = tidemill.testing.hosts(6, scope="module")

#: Hosts of a job, and its workers on each.
HOSTS, LOCAL = 3, 2
#: Longer than any host is cut off, even on the slowest machine, and shorter than anybody likes to wait for news.
LONG_S, SHORT_S = 100, 3


def living(cluster: Cluster) -> list[int]:
    """The first hosts that have not been killed."""
    found = [host.number for host in cluster.hosts if host.is_alive]
    assert len(found) >= HOSTS, f"only {len(found)} hosts are left"
    return found[:HOSTS]


@pytest.fixture
def places(cluster: Cluster) -> Iterator[list[int]]:
    """Hosts for a job that must leave no process on them."""
    yield living(cluster)
    alive = [host.number for host in cluster.hosts if host.is_alive]
    for number in alive:
        cluster.heal(number)

    def processes(number: int) -> list[str]:
        """The command lines of the Python processes on a host."""
        shown = subprocess.run(
            [*cluster.prefix(number), "sh", "-c", "cat /proc/[0-9]*/cmdline"], capture_output=True, text=True
        )
        return [line for line in shown.stdout.split("\0") if line.startswith(sys.prefix)]

    launched.wait_until(lambda: not any(map(processes, alive)), "the end of all workers")


#: Runs rounds of something until told to stop. Late data must arrive intact: each round checks what it received.
ROUNDS = """
import os, sys, time
from collections import Counter
from pathlib import Path
import numpy as np
import pyarrow as pa
import tidemill as tm
from tidemill.mpi import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
folder = Path(__file__).parent
x = tm.exchange
WHAT

n = 0
try:
    while not comm.bcast((folder / "stop").exists()):
        one_round(n)
        n += 1
        (folder / f"{rank}.count").write_text(f"{n}.")
    print("done", n)
except tm.WorkerLost as error:
    print("lost", error.rank, time.monotonic(), flush=True)
    os._exit(0)
"""

#: Long and short messages, by schedules that differ in who sends to whom.
COLLECTIVES = """
def one_round(n):
    long = 1 + n * 7919 % 60_000
    mine = np.arange(long) * (rank + 1) + n
    total = np.empty_like(mine)
    for algorithm in (None, "ring", "two_level"):
        comm.Allreduce(mine, total, algorithm=algorithm)
        assert (total == np.arange(long) * (size * (size + 1) // 2) + n * size).all(), (n, algorithm)
    root = n % size
    data = mine.copy()
    comm.Bcast(data, root)
    assert (data == np.arange(long) * (root + 1) + n).all(), n
    parts = np.empty((size, 100), int)
    comm.Alltoall(np.arange(size * 100) + 1_000_000 * rank + n, parts)
    assert (parts == 1_000_000 * np.arange(size)[:, None] + 100 * rank + np.arange(100) + n).all(), n
    assert comm.allgather((n, rank)) == [(n, other) for other in range(size)]
"""

#: Broadcasts along every kind of tree, and rows by key: each task must get each message once.
EXCHANGES = """
SHAPES = ["binary", "chain", "ring", "binomial", "flat/binary", "serial"]
ROWS, MESSAGES, KEYS = 400, 6, 997

def broadcast(n):
    def send(out, context):
        for at in range(MESSAGES):
            out.send({"copy": np.full(ROWS, context.copy), "v": n * 100_000 + at * ROWS + np.arange(ROWS)})

    def take(rows, context):
        found = Counter()
        for table in rows:
            found.update(zip(*table.to_dict().values()))
        return found

    graph = tm.Graph("all")
    a = graph.source("a", send, schema={"copy": "int64", "v": "int64"}, parallelism=HOSTS)
    b = graph.sink("b", take, parallelism=2 * size)
    graph.connect(a, b, x.broadcast(along=SHAPES[n % len(SHAPES)]))
    every = Counter((copy, n * 100_000 + at) for copy in range(HOSTS) for at in range(MESSAGES * ROWS))
    found = graph.run()["b"]
    for copy, rows in found.items():
        assert rows == every, (n, SHAPES[n % len(SHAPES)], copy, (rows - every).total(), (every - rows).total())
    assert comm.allreduce(len(found)) >= 2 * size

def joined(n):
    at = np.arange(20_000)
    left = tm.from_arrow(pa.table({"k": (at * 7 + n) % KEYS, "v": at}))
    right = tm.from_arrow(pa.table({"k": np.arange(KEYS), "w": np.arange(KEYS) * n}))
    rows = left.group_by("k").agg(n=tm.count(), total=tm.col("v").sum()).join(right, on="k").sort("k").to_dict()
    keys = (at * 7 + n) % KEYS
    assert rows["k"] == [*range(KEYS)] and rows["w"] == [k * n for k in range(KEYS)], n
    assert rows["n"] == np.bincount(keys).tolist(), n
    assert rows["total"] == np.bincount(keys, weights=at).astype(int).tolist(), n

def one_round(n):
    broadcast(n)
    joined(n)
""".replace("HOSTS", str(HOSTS))

WHAT = {"collectives": COLLECTIVES, "exchanges": EXCHANGES}


def job(folder: Path, cluster: Cluster, places: Sequence[int], what: str, timeout_s: int) -> workers.Job:
    """Workers that no launcher watches: they must find out themselves what happens to others."""
    prefixes = {rank: cluster.prefix(places[rank // LOCAL]) for rank in range(HOSTS * LOCAL)}
    env = {"MASTER_ADDR": cluster.hosts[places[0]].address, "TIDEMILL_FAILURE_TIMEOUT": str(timeout_s)}
    return workers.Job(folder, HOSTS * LOCAL, ROUNDS.replace("WHAT", WHAT[what]), env, prefixes)


def counts(folder: Path) -> dict[str, int]:
    """How many rounds each worker has completed."""
    texts = {file.stem: file.read_text() for file in folder.glob("*.count")}
    return {rank: int(text[:-1]) for rank, text in texts.items() if text.endswith(".")}


def await_rounds(folder: Path, running: workers.Job, least: int) -> None:
    def done() -> bool:
        assert all(worker.poll() is None for worker in running.workers), running.finish()
        found = counts(folder)
        return len(found) == HOSTS * LOCAL and min(found.values()) >= least

    launched.wait_until(done, f"round {least} of all workers")


def await_standstill(folder: Path) -> None:
    """Wait until no worker makes progress: all wait for what was lost in transit."""
    seen, since = counts(folder), time.monotonic()
    while time.monotonic() < since + 0.5:
        time.sleep(0.02)
        if (now := counts(folder)) != seen:
            seen, since = now, time.monotonic()


@pytest.mark.parametrize("what", list(WHAT))
def test_who_is_healed_in_time_misses_nothing(tmp_path: Path, cluster: Cluster, places: list[int], what: str) -> None:
    """Data in flight is lost, in both directions and in the middle of messages, and must be sent again exactly once: no
    sum is wrong, no row is missing or duplicated, and no host is taken for lost.
    """
    chance = seeds.dice(what)
    with job(tmp_path, cluster, places, what, LONG_S) as running:
        # The first host has worker 0, which relays news to the others.
        for cut in places[0], chance.choice(places[1:]):
            await_rounds(tmp_path, running, max(counts(tmp_path).values(), default=0) + 1)
            time.sleep(chance.uniform(0, 0.1))
            cluster.cut(cut)
            await_standstill(tmp_path)
            cluster.heal(cut)
        # Then every kind of tree once.
        await_rounds(tmp_path, running, max(counts(tmp_path).values()) + 6)
        (tmp_path / "stop").touch()
        outputs = running.succeed()
    assert len(set(outputs)) == 1 and outputs[0].startswith("done "), f"seed {seeds.SEED}: {outputs}"


@pytest.mark.parametrize("what", list(WHAT))
def test_who_is_killed_is_missed_by_all(tmp_path: Path, cluster: Cluster, places: list[int], what: str) -> None:
    """Nothing arrives from it: only silence tells, and a call that waits for somebody else, who waits for the host,
    must end as well.
    """
    chance = seeds.dice(what)
    victim = chance.randrange(HOSTS)
    with job(tmp_path, cluster, places, what, SHORT_S) as running:
        await_rounds(tmp_path, running, 2)
        time.sleep(chance.uniform(0, 0.1))
        killed = time.monotonic()
        cluster.kill(places[victim])
        results = running.finish()
    for rank, (code, out, err) in enumerate(results):
        if rank // LOCAL != victim:
            about = f"rank {rank} of seed {seeds.SEED}, host {victim} was killed: {out}{err}"
            assert code == 0 and out.startswith("lost "), about
            assert int(out.split()[1]) // LOCAL == victim, about
            # On a busy machine later than that, but within a bound.
            assert float(out.split()[2]) - killed < SHORT_S + 30, about


#: `stream_job`, whose sink stops where a test says: FOLDER/at names a method, the host, and what lets it continue.
STREAM = f"""
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, {str(Path(stream_job.__file__).parent)!r})
import stream_job

folder = Path(__file__).parent
life = os.environ["TIDEMILL_RESTART"]
(folder / f"life-{{life}}-{{os.uname().nodename}}").touch()


def stop(method):
    at = (folder / "at").read_text().split()
    # Not before some results are out, so that duplicates are possible.
    if life == "0" and at == [method, os.uname().nodename] and any((folder / "results").glob("[!.]*")):
        (folder / "stopped").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)


class Stopped(stream_job.Files):
    def write(self, rows):
        stop("write")
        super().write(rows)

    def prepare(self, epoch):
        stop("prepare")
        return super().prepare(epoch)

    def commit(self, prepared):
        stop("commit")
        super().commit(prepared)


stream_job.Files = Stopped
sys.argv[1:] = [str(folder), "windows"]
stream_job.main()
"""


class Stream:
    """A stream on the first hosts, one worker on each, which the launcher restarts."""

    def __init__(self, folder: Path, cluster: Cluster, method: str, host: int, timeout_s: int) -> None:
        self.folder = folder
        for name in ("results", "pids"):
            (folder / name).mkdir()
        (folder / "app.py").write_text(STREAM)
        (folder / "at").write_text(f"{method} {cluster.hosts[host].name}")
        env = {"TIDEMILL_FAILURE_TIMEOUT": str(timeout_s)}
        self._running = launched.start(
            "run", "--on", cluster.name, "-n", str(HOSTS), "--restarts", "2", folder / "app.py", env=env
        )

    def await_file(self, name: str) -> None:
        def is_there() -> bool:
            assert self._running.poll() is None, self._running.communicate()
            return any(self.folder.glob(name))

        launched.wait_until(is_there, name)

    def goes_on(self) -> None:
        (self.folder / "go").touch()

    def ended(self) -> int:
        """Wait for its end, check its results, and return how often it was restarted."""
        _, errors = self._running.communicate(timeout=launched.PATIENCE_S)
        assert self._running.returncode == 0, errors.decode()
        results = (self.folder / "results").glob("[!.]*")
        seen = Counter(line for file in results for line in file.read_text().splitlines())
        expected = stream_job.expected("windows")
        more, less = seen - expected, expected - seen
        assert not more and not less, f"{more.total()} rows too many, {less.total()} too few\n{errors.decode()}"
        return max(int(file.name.split("-")[1]) for file in self.folder.glob("life-*"))


def test_a_stream_waits_for_a_host_that_is_healed_in_time(tmp_path: Path, cluster: Cluster, places: list[int]) -> None:
    """Barriers, reports and rows are late: the stream must neither restart nor commit what not all workers have."""
    cut = seeds.dice("healed").choice(places)
    stream = Stream(tmp_path, cluster, "write", places[1], LONG_S)
    stream.await_file("stopped")
    cluster.cut(cut)
    stream.goes_on()
    time.sleep(1)
    cluster.heal(cut)
    assert stream.ended() == 0


def test_a_stream_resumes_when_a_host_is_back(tmp_path: Path, cluster: Cluster, places: list[int]) -> None:
    """The host was away for too long, and counts as lost: what it had prepared but not committed is done again, by all."""
    stream = Stream(tmp_path, cluster, "write", places[1], SHORT_S)
    stream.await_file("stopped")
    cluster.cut(places[2])
    stream.goes_on()
    stream.await_file("life-1-*")
    cluster.heal(places[2])
    assert stream.ended() >= 1


def test_a_stream_goes_on_without_a_host_that_stays_cut_off(
    tmp_path: Path, cluster: Cluster, places: list[int]
) -> None:
    """A worker restarted there would never reach the others: the remaining hosts take over all of its work."""
    cut = places[2]
    stream = Stream(tmp_path, cluster, "write", places[1], SHORT_S)
    stream.await_file("stopped")
    cluster.cut(cut)
    stream.goes_on()
    assert stream.ended() >= 1
    assert not any(tmp_path.glob(f"life-1-{cluster.hosts[cut].name}"))


@pytest.mark.parametrize("method", ["prepare", "commit"])
def test_a_host_dies_within_a_checkpoint(tmp_path: Path, cluster: Cluster, places: list[int], method: str) -> None:
    """While its rows are on their way into a checkpoint, or when the checkpoint is durable but they are not out yet:
    either way, each must come out once, from the remaining hosts.
    """
    # All hosts that run copies of the sink prepare and commit.
    victim = seeds.dice(method).choice(places)
    stream = Stream(tmp_path, cluster, method, victim, SHORT_S)
    stream.await_file("stopped")
    cluster.kill(victim)
    stream.goes_on()
    assert stream.ended() == 1
    assert not any(tmp_path.glob(f"life-1-{cluster.hosts[victim].name}"))


def namespaces() -> set[str]:
    """The network namespaces of all processes on this machine."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add(os.readlink(process / "ns" / "net"))
        except OSError:
            continue
    return found


def test_nothing_of_a_cluster_stays(tmp_path: Path) -> None:
    """The cluster is taken down in the middle of a job, with one host cut off and one killed: no process, namespace,
    device, cgroup, shared memory or file may remain.
    """
    try:
        cluster = tidemill.hosts.up(3, cpus=4, name=f"gone-{os.getpid()}")
    except HostsError as error:
        if "cpus=" not in str(error):
            pytest.skip(str(error))
        cluster = tidemill.hosts.up(3, name=f"gone-{os.getpid()}")
    with cluster:
        spaces = {os.readlink(f"/proc/{host.init}/ns/net") for host in cluster.hosts}
        spaces.add(os.readlink(f"/proc/{cluster._keeper}/ns/net"))
        groups = [Path(file).parent for host in cluster.hosts for file in host.cpu_group]
        assert len(spaces) == 4 and spaces <= namespaces() and all(group.exists() for group in groups)
        (tmp_path / "app.py").write_text(ROUNDS.replace("WHAT", COLLECTIVES))
        env = {"TIDEMILL_FAILURE_TIMEOUT": str(LONG_S)}
        running = launched.start("run", "--on", cluster.name, "-n", "6", tmp_path / "app.py", env=env)
        launched.wait_until(lambda: len(counts(tmp_path)) == 6, "all workers")
        # The workers, and the guard that ends them when the launcher is killed.
        pids = launched.children(running.pid)
        assert len(pids) >= 6
        cluster.cut(0)
        await_standstill(tmp_path)
        cluster.down()
        _, errors = running.communicate(timeout=launched.PATIENCE_S)
    assert running.returncode != 0 and re.search(rb"worker \d .*SIGKILL", errors), errors.decode()
    assert not any(map(launched.is_running, pids))
    launched.wait_until(lambda: not spaces & namespaces(), "the end of all namespaces")
    assert not [group for group in groups if group.exists()]
    assert cluster.name not in list(tidemill.hosts.names())
    assert not list(Path("/dev/shm").glob("*tidemill*"))
    assert not any(link.startswith("port") for link in os.listdir("/sys/class/net"))

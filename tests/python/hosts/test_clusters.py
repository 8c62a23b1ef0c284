"""Clusters of emulated hosts: what they consist of, what changes them, and that they leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import launched
import pytest
import tidemill.hosts
import tidemill.testing
from tidemill.hosts import Cluster, HostsError

# One cluster at a time, so that no other disturbs the measurements.
pytestmark = pytest.mark.xdist_group("hosts")

hosts = tidemill.testing.hosts(3)
shaped = tidemill.testing.hosts(2, bandwidth="40mbit")


def on(cluster: Cluster, host: int, *command: str) -> str:
    done = subprocess.run(
        [*cluster.prefix(host), *command], capture_output=True, text=True, timeout=launched.PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def reaches(cluster: Cluster, host: int, other: int) -> bool:
    """Whether a connection to a port where nobody listens is refused rather than lost."""
    program = f"""
import socket
try:
    socket.create_connection(("{cluster.hosts[other].address}", 9), timeout=1)
except ConnectionRefusedError:
    print("refused")
except OSError:
    print("lost")
"""
    return on(cluster, host, sys.executable, "-c", program) == "refused\n"


def test_hosts_see_nothing_of_each_other_but_the_network(hosts: Cluster) -> None:
    assert [on(hosts, n, "hostname").strip() for n in range(3)] == [host.name for host in hosts.hosts]
    assert all(on(hosts, n, "sh", "-c", "ls -d /proc/[0-9]* | wc -l").strip() in ("2", "3", "4") for n in range(3))
    links = [json.loads(on(hosts, n, "ip", "-j", "address", "show", "dev", "eth0"))[0] for n in range(3)]
    assert [link["addr_info"][0]["local"] for link in links] == [host.address for host in hosts.hosts]
    assert reaches(hosts, 0, 2) and reaches(hosts, 2, 1)
    # The machine itself has none of these addresses.
    assert not any(
        host.address in subprocess.run(["ip", "address"], capture_output=True, text=True).stdout for host in hosts.hosts
    )


def test_a_host_is_cut_and_healed_and_killed(hosts: Cluster) -> None:
    hosts.cut(1)
    assert not reaches(hosts, 0, 1) and not reaches(hosts, 1, 2) and reaches(hosts, 0, 2)
    assert [traffic.is_cut for traffic in hosts.traffic()] == [False, True, False]
    hosts.heal(1)
    assert not any(traffic.is_cut for traffic in hosts.traffic())
    # The kernel repeats an unanswered address request only after a while.
    launched.wait_until(lambda: reaches(hosts, 0, 1), "the host that was healed")
    sleeping = subprocess.Popen([*hosts.prefix(2), "sleep", "600"])
    hosts.kill(2)
    assert sleeping.wait(launched.PATIENCE_S) != 0
    assert not hosts.hosts[2].is_alive and hosts.hosts[1].is_alive
    for change in (lambda: hosts.cut(2), lambda: hosts.kill(2), lambda: hosts.prefix(2)):
        with pytest.raises(HostsError, match=f"host 2 of cluster '{hosts.name}' has been killed"):
            change()


SENT = """
import socket, sys, time
if sys.argv[1] == "take":
    with socket.create_server(("0.0.0.0", 5000)) as server:
        print("ready", flush=True)
        link, _ = server.accept()
        link.settimeout(60)
        begun = time.monotonic()
        while link.recv(1 << 16):
            pass
        print(time.monotonic() - begun)
else:
    with socket.create_connection((sys.argv[2], 5000)) as link:
        link.sendall(bytes(int(sys.argv[3])))
"""
#: What passes at once: a full token bucket, and the data in flight before the receiver has accepted.
AT_ONCE = 300_000


def least_s(bits: int, size: int) -> float:
    """The least time for so many bytes through a link of so many bits per second."""
    return (size - AT_ONCE) * 8 / bits


def seconds(cluster: Cluster, sender: int, receiver: int, size: int) -> float:
    """How long it takes to send so many bytes from one host to another."""
    taking = subprocess.Popen(
        [*cluster.prefix(receiver), sys.executable, "-c", SENT, "take"], stdout=subprocess.PIPE, text=True
    )
    assert taking.stdout is not None
    assert taking.stdout.readline() == "ready\n"
    on(cluster, sender, sys.executable, "-c", SENT, "give", cluster.hosts[receiver].address, str(size))
    out, _ = taking.communicate(timeout=launched.PATIENCE_S)
    return float(out)


def test_links_are_no_faster_than_their_bandwidth(shaped: Cluster) -> None:
    """On a busy machine everything takes longer, but nothing is faster than its link."""
    size = 3_000_000
    for sender, receiver in (0, 1), (1, 0):
        assert seconds(shaped, sender, receiver, size) > least_s(40_000_000, size)
    shaped.set(1, incoming="16mbit")
    assert seconds(shaped, 0, 1, size) > least_s(16_000_000, size)
    shaped.set(1, incoming="none", outgoing="16mbit")
    assert seconds(shaped, 1, 0, size) > least_s(16_000_000, size)
    limits = [(traffic.incoming, traffic.outgoing) for traffic in shaped.traffic()]
    assert limits == [(40_000_000, 40_000_000), (None, 16_000_000)]
    assert shaped.traffic()[1].incoming_bytes > 2 * size and shaped.traffic()[1].outgoing_bytes > 2 * size


JOB = """
import os
place = (os.uname().nodename, os.environ["TIDEMILL_LOCAL_RANK"], os.environ["TIDEMILL_LOCAL_SIZE"])
from tidemill.mpi import MPI

comm = MPI.COMM_WORLD
for rank, at in enumerate(comm.allgather(place)):
    if comm.rank == 0:
        print(rank, *at)
assert comm.allreduce(comm.rank) == comm.size * (comm.size - 1) // 2
"""


def test_a_job_runs_on_the_hosts(tmp_path: Path, hosts: Cluster) -> None:
    program = tmp_path / "job.py"
    program.write_text(JOB)
    done = launched.run("run", "--on", hosts.name, "-n", "5", "--no-prefix", program)
    assert done.returncode == 0, done.stderr.decode()
    names = [host.name for host in hosts.hosts]
    places = [(names[0], 0, 2), (names[0], 1, 2), (names[1], 0, 2), (names[1], 1, 2), (names[2], 0, 1)]
    assert done.stdout.decode().splitlines() == [f"{rank} {name} {n} {of}" for rank, (name, n, of) in enumerate(places)]
    hosts.kill(1)
    done = launched.run("run", "--on", hosts.name, "-n", "2", "--no-prefix", program)
    assert done.stdout.decode().splitlines() == [f"0 {names[0]} 0 1", f"1 {names[2]} 0 1"]


def test_a_job_ends_when_a_host_does(tmp_path: Path, hosts: Cluster) -> None:
    """It then starts again on the remaining hosts."""
    program = tmp_path / "job.py"
    program.write_text(
        """
import os, pathlib, time
import tidemill as tm

job = tm.init()
pathlib.Path(__file__).with_name(f"{os.environ['TIDEMILL_RESTART']}-{job.rank}").write_text(os.uname().nodename)
while job.comm.allreduce(int(os.environ["TIDEMILL_RESTART"])) == 0:
    time.sleep(0.01)
"""
    )
    env = {"TIDEMILL_FAILURE_TIMEOUT": "2"}
    running = launched.start("run", "--on", hosts.name, "-n", "6", "--restarts", "1", program, env=env)
    launched.wait_until(lambda: len(list(tmp_path.glob("0-*"))) == 6, "all workers")
    hosts.kill(1)
    _, errors = running.communicate(timeout=launched.PATIENCE_S)
    assert running.returncode == 0, errors.decode()
    left = sorted((tmp_path / f"1-{rank}").read_text() for rank in range(6))
    assert left == sorted([hosts.hosts[0].name, hosts.hosts[2].name] * 3)


def test_a_cluster_ends_with_its_owner() -> None:
    program = """
import os, sys, tidemill.hosts
cluster = tidemill.hosts.up(2, name=sys.argv[1])
print(cluster.hosts[1].init, cluster._keeper, flush=True)
sys.stdin.read()
os._exit(0)
"""
    name = f"own-{os.getpid()}"
    for end in "exit", "kill":
        owner = subprocess.Popen(
            [sys.executable, "-c", program, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert owner.stdin is not None and owner.stdout is not None
        line = owner.stdout.readline()
        if not line:
            pytest.skip("this user cannot have emulated hosts")
        processes = [Path("/proc", pid) for pid in line.split()]
        assert tidemill.hosts.find(name).is_up
        owner.kill() if end == "kill" else owner.stdin.close()
        owner.wait(launched.PATIENCE_S)
        launched.wait_until(lambda: name not in list(tidemill.hosts.names()), "the end of the cluster")
        launched.wait_until(
            lambda processes=processes: not any(map(Path.exists, processes)), "the end of its processes"
        )


def test_hosts_end_when_their_keeper_is_killed(hosts: Cluster) -> None:
    init = hosts.hosts[0].init
    os.kill(hosts._keeper, signal.SIGKILL)
    launched.wait_until(lambda: not Path(f"/proc/{init}").exists(), "the end of a host")
    with pytest.raises(HostsError, match="has been taken down"):
        hosts.cut(0)


def test_the_command(tmp_path: Path) -> None:
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}

    def ran(*words: str) -> tuple[int, str, str]:
        done = launched.run("hosts", *words, env=env)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    code, out, error = ran("up", "--hosts", "2", "--bandwidth", "100mbit")
    if code:
        pytest.skip(error)
    assert out.startswith("lab: lab-0, lab-1 are up until `tidemill hosts down`")
    try:
        assert ran("up", "--hosts", "2")[2].startswith("tidemill hosts: cluster 'lab' is up; take it down")
        assert ran("set", "lab", "1", "--in", "20mbit")[0] == 0
        assert ran("cut", "lab", "0")[0] == 0
        code, out, _ = ran("show", "--once")
        assert code == 0
        first, second = (line.split() for line in out.splitlines()[1:])
        assert (first[0], first[-2:], second[5]) == ("lab-0", ["cut", "off"], "20mbit")
        assert (
            ran("kill", "lab", "5")[2] == "tidemill hosts: host 5 is not one of cluster 'lab', whose hosts are 0 to 1\n"
        )
        assert ran("set", "lab", "1")[2] == "tidemill hosts: nothing to set: pass --in, --out or --cpus\n"
        assert ran("set", "lab", "1", "--in", "quick")[2].startswith(
            "tidemill hosts: incoming='quick' must be a bandwidth"
        )
    finally:
        assert ran("down")[0] == 0
    assert ran("down")[2] == "tidemill hosts: no cluster is up\n"
    assert ran("cut", "lab", "0")[2] == "tidemill hosts: there is no cluster 'lab'; `tidemill hosts up` makes one\n"
    done = launched.run("run", "--on", "lab", "-n", "2", "true", env=env)
    assert (done.returncode, done.stderr.decode()) == (
        1,
        'tidemill: there is no cluster "lab" of emulated hosts; `tidemill hosts up --name lab` makes one\n',
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hosts": 0}, "hosts=0 must be a number of hosts"),
        ({"hosts": 2, "name": "My Lab"}, "name='My Lab' must begin with a letter"),
        ({"hosts": 2, "bandwidth": "3kbit"}, "at least 16kbit"),
        ({"hosts": 2, "cpus": 0}, "cpus=0 must be a number of processors"),
    ],
)
def test_what_makes_no_sense(options: dict[str, object], words: str) -> None:
    with pytest.raises(HostsError, match=words):
        tidemill.hosts.up(**options)  # type: ignore[arg-type]


def test_a_host_has_its_part_of_the_processors() -> None:
    try:
        cluster = tidemill.hosts.up(1, cpus=0.25, name=f"cpus-{os.getpid()}")
    except HostsError as error:
        pytest.skip(str(error))
    with cluster:
        spin = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
        join = ["sh", "-c", f'echo 0 > {cluster.hosts[0].cpu_group[0]} && exec "$@"', "sh"]
        begun = time.monotonic()
        used = float(subprocess.run([*join, sys.executable, "-c", spin], capture_output=True, text=True).stdout)
        assert used < 0.45 * (time.monotonic() - begun) + 0.1

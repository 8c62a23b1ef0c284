"""Storm on emulated hosts, for the benchmark of broadcasts: ZooKeeper, Nimbus, and a supervisor on each host, as a cluster of Storm has them.

Storm's own programs from its packages on Maven, without its scripts in Python, which a cluster of this size does not need. All of them are in the
process groups of those that are started here, and on hosts that end with their cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .comm import SystemFailed
from .once import run_points
from .systems import PEERS, Launch

NAME = "storm"
HOME = PEERS / "storm"
#: Where Storm's supervisors look for the jars of workers.
JARS = HOME / "lib-worker"
PROGRAM, PROGRAM_JAR = "BroadcastStorm", HOME / "broadcast.jar"
ZOOKEEPER_PORT, NIMBUS_PORT, FIRST_WORKER_PORT = 2181, 6627, 6700
#: No answers of a daemon for so long, and it has not started.
START_S = 120
#: All topologies together.
TIMEOUT_S = 1800
#: Nobody is lost here, but starting so many Java processes on a few cores takes minutes.
PATIENCE_S = 300
#: Hosts share the folder where Java keeps counters by process numbers, which are the same on each host.
JAVA = ("-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xss512k", "-Dzookeeper.sasl.client=false")
#: What starts once and waits is not worth the better compiler.
DAEMON = (*JAVA, "-XX:TieredStopAtLevel=1")
WORKER_HEAP = ("-Xms32m", "-Xmx512m")
LOG = """<Configuration monitorInterval="0">
  <Appenders>
    <File name="file" fileName="{file}"><PatternLayout pattern="%d %c{{1}} %t [%p] %msg%n"/></File>
  </Appenders>
  <Loggers><Logger name="STDERR" level="info"/><Root level="warn"><AppenderRef ref="file"/></Root></Loggers>
</Configuration>
"""


def missing() -> str | None:
    """What keeps Storm from running here, with the remedy; None when it can run."""
    if shutil.which("java") and PROGRAM_JAR.exists():
        return None
    return "java or its program is missing: run bench/setup_peers.sh storm"


def version() -> str | None:
    """Of the jars that are installed."""
    return next((jar.stem.rpartition("-")[2] for jar in JARS.glob("storm-server-*.jar")), None)


def settings(hosts: Sequence[Any], host: int, workers: int, folder: Path) -> dict[str, Any]:
    """What Storm is told on one of the hosts, which have `workers` each; the reasons are in `bench/README.md`."""
    first = hosts[0].address
    names = names_option(folder)
    return {
        "storm.zookeeper.servers": [first],
        "storm.zookeeper.port": ZOOKEEPER_PORT,
        "storm.zookeeper.session.timeout": PATIENCE_S * 1000,
        "storm.zookeeper.connection.timeout": PATIENCE_S * 1000,
        "nimbus.seeds": [first],
        "nimbus.thrift.port": NIMBUS_PORT,
        "storm.local.hostname": hosts[host].address,
        "storm.local.dir": str(folder / str(host) / "local"),
        "storm.log4j2.conf.dir": str(folder),
        "storm.metricstore.rocksdb.location": str(folder / "metrics"),
        "storm.scheduler": f"{PROGRAM}$Places",
        "supervisor.slots.ports": [FIRST_WORKER_PORT + number for number in range(workers)],
        "nimbus.monitor.freq.secs": 1,
        "supervisor.monitor.frequency.secs": 1,
        "supervisor.worker.shutdown.sleep.secs": 1,
        **{
            f"{what}.secs": PATIENCE_S
            for what in (
                "nimbus.task.launch",
                "nimbus.task.timeout",
                "nimbus.supervisor.timeout",
                "supervisor.worker.start.timeout",
                "supervisor.worker.timeout",
            )
        },
        "worker.childopts": " ".join([*JAVA, *WORKER_HEAP, names]),
        "topology.worker.logwriter.childopts": " ".join([*DAEMON, "-Xms8m", "-Xmx16m", names]),
        "topology.disable.loadaware.messaging": True,
        # By default a bolt asks a thousand times without a pause before it sleeps for a millisecond: sixty of them leave two cores no time.
        "topology.bolt.wait.progressive.level2.count": 0,
        "topology.stats.sample.rate": 0.001,
        "topology.transfer.buffer.size": 32768,
    }


def names_option(folder: Path) -> str:
    """Has Java know the hosts' names, which no server of names does."""
    return f"-Djdk.net.hosts.file={folder / 'hosts'}"


def configure(hosts: Sequence[Any], workers: int, folder: Path) -> None:
    """Writes what the processes of all hosts read."""
    names = "".join(f"{host.address} {host.name}\n" for host in hosts)
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + names)
    (folder / "worker.xml").write_text(
        LOG.format(file="${sys:workers.artifacts}/${sys:storm.id}/${sys:worker.port}/worker.log")
    )
    (folder / "zoo.cfg").write_text(
        f"dataDir={folder / 'zookeeper'}\nclientPort={ZOOKEEPER_PORT}\nadmin.enableServer=false\nmaxClientCnxns=0\n"
        f"tickTime=2000\nmaxSessionTimeout={PATIENCE_S * 1000}\n"
    )
    for number in range(len(hosts)):
        (folder / str(number) / "conf").mkdir(parents=True)
        # Its YAML is JSON as well.
        told = json.dumps(settings(hosts, number, workers, folder), indent=1)
        (folder / str(number) / "conf" / "storm.yaml").write_text(told + "\n")


def java(cluster: Any, host: int, folder: Path, name: str, command: Sequence[str]) -> Launch:
    """A program of Storm on a host: its class and its arguments; its log, which is called `name`, has its warnings."""
    own = folder / str(host)
    log = folder / f"{name}.xml"
    log.write_text(LOG.format(file=own / f"{name}.log"))
    argv = [*cluster.prefix(host), "java", *DAEMON, "-Xmx256m", names_option(folder)]
    argv += [f"-Dstorm.home={HOME}", f"-Dstorm.log.dir={own}", f"-Dlog4j.configurationFile={log}"]
    argv += [f"-Dstorm.jar={PROGRAM_JAR}", "-Dzookeeper.forceSync=no"]
    argv += ["-cp", f"{JARS}/*:{PROGRAM_JAR}:{own / 'conf'}", *command]
    return Launch(argv, {"STORM_CONF_DIR": str(own / "conf")})


@contextlib.contextmanager
def started(cluster: Any, workers: int) -> Iterator[Path]:
    """Starts Storm on all hosts of a cluster, with slots for so many workers on each; all of it ends with the block, which gets its folder."""
    folder = Path(tempfile.mkdtemp(prefix="storm-"))
    processes: list[subprocess.Popen[str]] = []

    def start(host: int, name: str, *command: str) -> None:
        with (folder / str(host) / f"{name}.out").open("wb") as output:
            processes.append(java(cluster, host, folder, name, command).start(output))

    try:
        configure(cluster.hosts, workers, folder)
        # The server is in the library that Storm's own programs use, under a name of Storm's.
        zookeeper = "org.apache.storm.shade.org.apache.zookeeper.server.ZooKeeperServerMain"
        start(0, "zookeeper", zookeeper, str(folder / "zoo.cfg"))
        await_port(cluster, ZOOKEEPER_PORT, folder / "0" / "zookeeper.out")
        start(0, "nimbus", "org.apache.storm.daemon.nimbus.Nimbus")
        await_port(cluster, NIMBUS_PORT, folder / "0" / "nimbus.out")
        for host in range(len(cluster.hosts)):
            start(host, "supervisor", "org.apache.storm.daemon.supervisor.Supervisor")
        yield folder
    finally:
        for process in reversed(processes):
            # Supervisors first; their workers are in their groups.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # What is being killed may still write.
        for _ in range(50):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)


def await_port(cluster: Any, port: int, output: Path) -> None:
    """Waits until something listens at a port of the first host."""
    tries = round(START_S * 5)
    attempt = f"(exec 3<>/dev/tcp/{cluster.hosts[0].address}/{port}) 2>/dev/null && exit 0"
    loop = f"for i in $(seq {tries}); do {attempt}; sleep 0.2; done; exit 1"
    done = subprocess.run([*cluster.prefix(0), "bash", "-c", loop], stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        said = [*output.read_text(errors="replace").strip().splitlines(), *logged(output.with_suffix(".log"))]
        raise SystemFailed(f"{output.stem} has not started: " + (" | ".join(said[-3:]) or "it says nothing"))


def logged(log: Path) -> list[str]:
    return log.read_text(errors="replace").strip().splitlines() if log.exists() else []


def arguments(points: Sequence[Any]) -> list[str]:
    """Points as the program is told them."""
    return [f"{one.tasks},{one.size},{one.singles},{one.single_s},{one.many}" for one in points]


def measure(
    cluster: Any, workers: int, points: Sequence[Any], heard: Callable[[dict[str, Any], int], None]
) -> tuple[list[dict[str, Any]], str | None]:
    """What Storm's source found at each point, in order, and why it went no further."""
    slots = str(len(cluster.hosts) * workers)
    try:
        with started(cluster, workers) as folder:
            program = java(cluster, 0, folder, "client", [PROGRAM, slots, str(folder), *arguments(points)])
            results, failure = run_points(program, "overlay", len(points), TIMEOUT_S, heard)
            if failure:
                failure = " | ".join([failure, *last_errors(folder)])
            return results, failure
    except SystemFailed as error:
        return [], str(error)


def last_errors(folder: Path) -> list[str]:
    """What the logs, of the daemons and of the workers, say of errors, but for what all of them say; three lines at most."""
    lines = [line for log in sorted(folder.glob("*/**/*.log")) for line in logged(log) if "[ERROR]" in line]
    return list(dict.fromkeys(lines))[-3:]

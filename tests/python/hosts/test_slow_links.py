"""A link of a running stream becomes slow: checkpoints go on, `tidemill top` names the host, and the controller moves keys away from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import launched
import pytest
import tidemill.testing
from tidemill.hosts import Cluster

pytestmark = pytest.mark.xdist_group("hosts")

HOSTS = 4
SLOW = 2
cluster = tidemill.testing.hosts(HOSTS, scope="module", bandwidth="40mbit")

#: Rows of several kB by key, as many as the links carry. Each worker writes how many it has read, and each epoch how
#: many of each key it committed.
PROGRAM = """
import json
import logging
import sys
from collections import Counter
from pathlib import Path

import tidemill as tm

folder, controller = Path(__file__).parent, sys.argv[1]
TEXT = "x" * 4000


def note(record):
    facts = {name: value for name, value in vars(record).items() if name.startswith("tidemill.")}
    with (folder / "decisions").open("a") as file:
        print(json.dumps(facts), file=file)


log = logging.getLogger("tidemill.stream.controller")
log.setLevel("INFO")
log.addHandler(handler := logging.Handler())
handler.emit = note


def read(split, position):
    n = position or 0
    while not (folder / "stop").exists():
        yield [{"k": (n + i) * 7919 % 1000, "text": TEXT} for i in range(25)], n + 25
        n += 25
    (folder / f"{split}.read").write_text(f"{n}.")


class Counts:
    def __init__(self):
        self.rows = 0

    def write(self, rows):
        self.rows += sum(rows.to_dict()["n"])

    def prepare(self, epoch):
        rows, self.rows = self.rows, 0
        return f"{epoch}-{id(self)} {rows}".encode()

    def commit(self, prepared):
        name, rows = prepared.decode().split()
        (folder / "committed" / f"{tm.init().rank}-{name}").write_text(rows)


size = tm.init().size
rows = tm.stream.from_function(read, {"k": "int64", "text": "str"}, splits=[f"s{i}" for i in range(size)])
counts = rows.key_by("k").process(lambda key, rows, context: {"n": len(rows)}, {"n": "int64"})
checkpoint = tm.stream.Checkpoint(folder / "checkpoints", interval="1s")
counts.write_stream(Counts(), name="slow", checkpoint=checkpoint, controller=controller)
"""


class Stream:
    """A stream with one worker on each host; its status files are on worker 0's host."""

    def __init__(self, folder: Path, cluster: Cluster, controller: str) -> None:
        self.folder, self._cluster = folder, cluster
        (folder / "committed").mkdir()
        (folder / "app.py").write_text(textwrap.dedent(PROGRAM))
        # Hosts number their processes alike, and share files: worker 0's status would mix with another's.
        (folder / "launch.sh").write_text(
            'mkdir -p "$1/run-$(uname -n)"; XDG_RUNTIME_DIR="$1/run-$(uname -n)" exec "${@:2}"'
        )
        self._running = launched.start(
            "run", "--on", cluster.name, "-n", str(HOSTS), "bash", folder / "launch.sh", folder,
            sys.executable, folder / "app.py", controller,
        )  # fmt: skip

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.kill()
        self._running.communicate()

    def top(self) -> dict[str, Any] | None:
        """What worker 0 says about the whole job, once it says anything."""
        assert self._running.poll() is None, self._running.communicate()
        env = {**os.environ, "XDG_RUNTIME_DIR": str(self.folder / f"run-{self._cluster.hosts[0].name}")}
        command = [*self._cluster.prefix(0), *launched.command("top", "--json")]
        shown = subprocess.run(command, env=env, capture_output=True, text=True)
        found = [status for status in json.loads(shown.stdout or "[]") if status["worker"] == 0]
        return found[0] if found else None

    def await_cluster(self, condition: Any, what: str) -> None:
        def holds() -> bool:
            found = self.top()
            return found is not None and bool(condition(found))

        launched.wait_until(holds, what)

    def ended(self) -> None:
        """Let it end, and check that each row counted once."""
        (self.folder / "stop").touch()
        _, errors = self._running.communicate(timeout=launched.PATIENCE_S)
        assert self._running.returncode == 0, errors.decode()
        read = sum(int(file.read_text().rstrip(".")) for file in self.folder.glob("*.read"))
        committed = sum(int(file.read_text()) for file in (self.folder / "committed").iterdir())
        assert committed == read, errors.decode()


@pytest.fixture
def slow_host(cluster: Cluster) -> Iterator[int]:
    yield SLOW
    cluster.set(SLOW, incoming="40mbit")


def test_a_slow_link_is_named_while_checkpoints_go_on(tmp_path: Path, cluster: Cluster, slow_host: int) -> None:
    """A barrier behind megabytes on the slow link would take minutes to arrive, and nobody would know which host is
    slow.
    """
    with Stream(tmp_path, cluster, "advise") as stream:
        stream.await_cluster(lambda status: (status["durable"] or 0) >= 2, "checkpoints")
        cluster.set(slow_host, incoming="2mbit")

        def is_named(status: dict[str, Any]) -> bool:
            causes = status["cluster"]["causes"]
            return bool(causes) and causes[0]["kind"] == "inbound" and causes[0]["host"] == slow_host

        stream.await_cluster(is_named, "the slow host's name")
        found = stream.top()
        assert found is not None
        durable = found["durable"]
        stream.await_cluster(lambda status: status["durable"] >= durable + 3, "checkpoints past the slow link")
        stream.ended()


def test_the_controller_moves_keys_away_from_a_slow_host(tmp_path: Path, cluster: Cluster, slow_host: int) -> None:
    """The state of keys moves with them, while their rows are in flight: none is lost, none counts twice."""
    with Stream(tmp_path, cluster, "on") as stream:
        stream.await_cluster(lambda status: (status["durable"] or 0) >= 2, "checkpoints")
        cluster.set(slow_host, incoming="2mbit")

        def have_moved(status: dict[str, Any]) -> bool:
            """Whether it has moved keys since, away from that host: it may have evened them out before, as all links are full."""
            decisions = status["cluster"]["decisions"]
            owners = [task["buckets"]["hosts"] for task in status["cluster"]["tasks"] if task["buckets"]]
            spread = [hosts for hosts in owners if len(set(hosts)) > 1]
            return any(
                decision["outcome"] in ("judging", "kept") and decision["buckets"] for decision in decisions
            ) and (all(hosts.count(slow_host) < len(hosts) / HOSTS / 2 for hosts in spread))

        stream.await_cluster(have_moved, "buckets that have moved away from the slow host")
        stream.ended()
    logged = [json.loads(line) for line in (tmp_path / "decisions").read_text().splitlines()]
    assert any(of["tidemill.controller.outcome"] == "moving" and of["tidemill.controller.buckets"] > 0 for of in logged)
    kept = subprocess.run(
        launched.command("why", tmp_path / "checkpoints"), capture_output=True, text=True, timeout=launched.PATIENCE_S
    )
    assert kept.returncode == 0 and "receives" in kept.stdout, kept

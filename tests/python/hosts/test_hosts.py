"""Jobs on two emulated hosts, with workers that know only their rank and where rank 0 is."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import launched
import pytest
import stream_job
import tidemill.testing
import workers
from tidemill.hosts import Cluster

# One pair of hosts at a time: each takes many processes.
pytestmark = pytest.mark.xdist_group("hosts")

#: Workers on each host.
LOCAL = 2


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=launched.PATIENCE_S)


hosts = tidemill.testing.hosts(2)


def names_of(hosts: Cluster) -> list[str]:
    return [host.name for host in hosts.hosts]


def job(folder: Path, hosts: Cluster, program: str, **env: str) -> workers.Job:
    """Two workers on each host that know only `RANK`, `WORLD_SIZE` and where rank 0 is."""
    prefixes = {rank: hosts.prefix(rank // LOCAL) for rank in range(2 * LOCAL)}
    return workers.Job(folder, 2 * LOCAL, program, {"MASTER_ADDR": hosts.hosts[0].address, **env}, prefixes)


def test_a_program_runs_on_two_hosts(tmp_path: Path, hosts: Cluster) -> None:
    """Shared memory within a host and TCP between: a wrong choice would read another host's memory, or be slow."""
    program = """
        import numpy as np
        import tidemill as tm
        from tidemill.apps import job_info
        from tidemill.mpi import MPI

        job_info.main(["--json"])
        comm = MPI.COMM_WORLD
        rank, size = comm.rank, comm.size
        for n in (1, 1_000, 30_000, 500_000):
            mine = np.arange(n) + rank
            total = np.empty_like(mine)
            for algorithm in (None, "two_level", "ring"):
                comm.Allreduce(mine, total, algorithm=algorithm)
                assert (total == size * np.arange(n) + 6).all()
            comm.Sendrecv(mine, (rank + 1) % size, recvbuf=total, source=(rank - 1) % size)
            assert (total == np.arange(n) + (rank - 1) % size).all()
            for root in range(size):
                data = mine.copy()
                comm.Bcast(data, root)
                assert (data == np.arange(n) + root).all()
            parts = np.empty((size, n), int)
            comm.Alltoall(np.tile(mine, (size, 1)), parts)
            assert (parts == np.arange(n) + np.arange(size)[:, None]).all()
        assert comm.gather({rank: "x" * 100_000}, root=3) == (
            [{r: "x" * 100_000} for r in range(size)] if rank == 3 else None
        )
        across = comm.Split(rank % 2, rank)  # one worker of each host
        within = comm.Split(rank // 2, rank)
        assert across.allreduce(rank) == 2 * (rank % 2) + 2 and within.allreduce(rank) == 4 * (rank // 2) + 1
        print([worker["transport"] for worker in tm.init().workers])
    """
    with job(tmp_path, hosts, program, TIDEMILL_SECRET="") as running:
        outputs = running.succeed()
    table, _, last = outputs[0].rstrip().rpartition("\n")
    transports = [last, *(out.rstrip() for out in outputs[1:])]
    shm, tcp = ["None, 'shm'", "'shm', None"], "'tcp', 'tcp'"
    assert transports == [f"[{shm[0]}, {tcp}]", f"[{shm[1]}, {tcp}]", f"[{tcp}, {shm[0]}]", f"[{tcp}, {shm[1]}]"]
    rows = json.loads(table)
    assert [row["host"] for row in rows] == [name for name in names_of(hosts) for _ in range(LOCAL)]
    assert [row["host_id"] for row in rows] == [0, 0, LOCAL, LOCAL], "the lowest rank of each host"
    assert [row["reason"].partition(";")[0] for row in rows[1:]] == ["same host", "on another host", "on another host"]


def test_hosts_exchange_scores_among_their_workers(tmp_path: Path, hosts: Cluster) -> None:
    """PageRank with `host_rounds`: more exchanges within hosts, fewer between them, and fewer bytes on the wire between hosts."""
    program = """
        import numpy as np
        import tidemill as tm

        comm = tm.init().comm

        def sent():
            # By this host's interfaces, besides the loopback.
            lines = open("/proc/net/dev").read().splitlines()[2:]
            return sum(int(line.split(":")[1].split()[8]) for line in lines if line.split(":")[0].strip() != "lo")

        # Most links are short, so that most of what a part lacks is on the same host.
        n = 20_000
        dice = np.random.default_rng(5)
        sources = dice.integers(0, n, 6 * n)
        targets = (sources + np.rint(dice.standard_cauchy(6 * n) * 40).astype(np.int64)) % n
        net = tm.networks.read((sources, targets), directed=False, nodes=n)
        alone = tm.networks.pagerank(net, tol=1e-12, max_iter=2000).values
        told = []
        for host_rounds in (1, 4):
            comm.barrier()
            before = sent()
            options = {"sync": "partial", "local_sweeps": 1, "method": "blocks", "tol": 1e-12, "max_iter": 2000}
            found = tm.networks.pagerank(net, host_rounds=host_rounds, **options)
            comm.barrier()
            np.testing.assert_allclose(found.values, alone, atol=1e-10)
            account = found.account
            told.append([account.rounds, account.host_rounds, sent() - before])
        print(told)
    """
    with job(tmp_path, hosts, program, TIDEMILL_SECRET="") as running:
        outputs = [json.loads(out) for out in running.succeed()]
    for (rounds, host_rounds, sent), (fewer, more_within, less) in outputs:
        # The first round has no sweeps.
        assert host_rounds == 0 and more_within == 3 * (fewer - 1)
        assert fewer < 0.8 * rounds and less < 0.9 * sent, outputs


def test_sources_run_where_their_files_are(tmp_path: Path, hosts: Cluster) -> None:
    """Each host has its own files under the same names: a copy that reads on the other host gets the wrong rows."""
    data = tmp_path / "data"
    data.mkdir()
    for host in range(2):
        _run(*hosts.prefix(host), "mount", "-t", "tmpfs", "tmpfs", str(data))
        write = f'for part in 0 1 2; do seq {host}000$part {host}099$part > "$0/$part.txt"; done'
        _run(*hosts.prefix(host), "sh", "-c", write, str(data))
    program = f"""
        import numpy as np
        import tidemill as tm

        job = tm.init()
        x = tm.exchange
        names = list(dict.fromkeys(worker["host"] for worker in job.workers))
        files = [(host, part) for part in range(3) for host in range(2)]

        def read(out, context):
            _, part = files[context.copy]
            out.send({{"copy": np.full(991, context.copy), "n": np.loadtxt(f"{data}/{{part}}.txt", dtype=np.int64)}})
            return job.workers[context.worker]["host"]

        def take(rows, context):
            return [(row["copy"], row["n"]) for table in rows for row in table.to_pylist()]

        def rows(placement, gather):
            graph = tm.Graph("local")
            wanted = [[names[host]] for host, _ in files]
            a = graph.source("read", read, schema={{"copy": "int64", "n": "int64"}}, parallelism=len(files), locations=wanted)
            graph.connect(a, graph.sink("take", take, parallelism=1), gather)
            found = graph.run(placement=placement)
            return sorted(found["take"][0]), [found["read"][copy] for copy in range(len(files))]

        expected = sorted((copy, n) for copy, (host, part) in enumerate(files) for n in range(host * 10000 + part, host * 10000 + 990 + part + 1))
        for along in None, "flat", "binary", "binomial", "chain", "ring", "double", "serial", "flat/binary":
            found, ran = rows("locality", x.gather(along=along))
            assert ran == [names[host] for host, _ in files], ran
            assert found == expected, (along, len(found))
        # The point of this test: dealt in turn, copies land on the wrong host.
        assert rows("round_robin", x.gather())[0] != expected
        print("done")
    """
    with job(tmp_path, hosts, program) as running:
        assert running.succeed() == ["done\n"] * 4


def own_folder(hosts: Cluster, folder: Path, *files: dict[str, str]) -> None:
    """Give each host its own files in a folder; files with the same name and text get the same time."""
    folder.mkdir()
    for host, texts in enumerate(files):
        _run(*hosts.prefix(host), "mount", "-t", "tmpfs", "tmpfs", str(folder))
        for name, text in texts.items():
            when = f"@{1_700_000_000 + sum(text.encode())}"
            write = 'mkdir -p "$(dirname "$0")" && printf %s "$1" > "$0" && touch -d "$2" "$0"'
            _run(*hosts.prefix(host), "sh", "-c", write, str(folder / name), text, when)


def test_files_of_each_host_are_read_there(tmp_path: Path, hosts: Cluster) -> None:
    """Logs with one name on both hosts, a file that only one has, and one that both share: finds rows read twice, or
    from the wrong host.
    """
    logs = tmp_path / "logs"

    def log(start: int, stop: int) -> str:
        return "n,text\n" + "".join(f"{n},row {n}\n" for n in range(start, stop))

    same = log(0, 300)
    own_folder(
        hosts,
        logs,
        {"app.csv": log(1_000, 1_900), "old/app.csv": log(2_000, 2_050), "same.csv": same, "empty.csv": ""},
        {"app.csv": log(5_000, 6_500), "same.csv": same},
    )
    program = f"""
        import tidemill as tm

        tables = {str(logs)!r}
        job = tm.init()
        data = tm.read_csv(tables, each_host=True)
        expected = [*range(300), *range(1_000, 1_900), *range(2_000, 2_050), *range(5_000, 6_500)]
        assert data.sort("n").to_dict()["n"] == expected
        assert data.count() == len(expected)
        # Rows stay where they are; those that both hosts have may be read on either.
        local = [n for n in data.collect_local().to_dict()["n"] if n >= 300]
        assert all((n >= 5_000) == (job.rank >= 2) for n in local), (job.rank, local[:3])
        assert job.comm.allreduce(len(local)) == len(expected) - 300
        assert "OwnExec: files of each host" in data.explain()
        # As part of larger queries: with filters and projections, on either side of a join, joined with itself.
        small = data.filter(tm.col("n") % 100 == 0).select("n")
        hundreds = [n for n in expected if n % 100 == 0]
        assert small.sort("n").to_dict()["n"] == hundreds
        assert sorted(small.join(data, on="n").to_dict()["text"]) == sorted(f"row {{n}}" for n in hundreds)
        assert data.join(small, on="n", how="left").count() == len(expected)
        assert data.union(data).group_by("n").agg(times=tm.count()).filter(tm.col("times") == 2).count() == len(expected)
        assert tm.sql("select max(n) as last from data where n < (select max(n) from data)", data=data).to_dict() == {{"last": [6_498]}}
        assert data.limit(7).count() == 7

        lines = tm.read_text([tables + "/app.csv", tables + "/old"], each_host=True)
        assert lines.filter(tm.col("line") == "n,text").count() == 3 and lines.count() == 900 + 50 + 1_500 + 3
        # A file on one host only; other kinds of columns; bad rows.
        assert tm.read_csv(tables + "/old/*.csv", each_host=True).count() == 50
        bad = tm.read_csv(tables + "/app.csv", schema={{"n": "int64", "text": "int64"}}, on_error="skip", each_host=True)
        assert bad.to_dict() == {{"n": [], "text": []}} and tm.last_report().skipped_rows == 900 + 1_500, tm.last_report().skipped_rows
        print("done")
    """
    with job(tmp_path, hosts, program, TIDEMILL_THREADS="2") as running:
        assert running.succeed() == ["done\n"] * 4


def test_files_that_differ_between_hosts_are_told(tmp_path: Path, hosts: Cluster) -> None:
    """Otherwise each worker would read part of a different file, and nobody would know."""
    data = tmp_path / "data"
    own_folder(
        hosts,
        data,
        {
            "size.txt": "one\n",
            "time.txt": "ab\n",
            "mine.txt": "x\n",
            "there/t.txt": "x\n",
            "there/u.txt": "u\n",
            "own/n.csv": "n\n1\n",
            "kinds/k.csv": "x\n1\n",
            "types/t.csv": "x\n1\n",
            "json/j.jsonl": '{"n": 1}\n',
            "copies/c.txt": "1\n2\n3\n",
            "copies/d.txt": "4\n5\n6\n",
        },
        {
            "size.txt": "one\ntwo\n",
            "time.txt": "cd\n",
            "there/t.txt": "x\n",
            "own/n.csv": "m\n1\n",
            "kinds/k.csv": "x\na\n",
            "types/t.csv": "x\n2.5\n",
            "json/j.jsonl": '{"n": 2, "s": "x"}\n',
            "copies/c.txt": "1\n2\n3\n",
            "copies/d.txt": "4\n5\n6\n",
        },
    )
    _run(*hosts.prefix(1), "touch", str(data / "copies" / "c.txt"))
    for host, array in enumerate(["np.arange(10)", "np.arange(20, 50)"]):
        for name, saved in ("a", array), ("kinds", f"{array}.astype('i{4 << host}')"):
            save = f"import numpy as np; np.save({str(data / name)!r}, {saved})"
            _run(*hosts.prefix(host), sys.executable, "-c", save)
    program = f"""
        import tidemill as tm

        data = {str(data)!r}
        names = list(dict.fromkeys(worker["host"] for worker in tm.init().workers))

        def told(make):
            try:
                make()
            except tm.DataSetError as error:
                return str(error)
            raise AssertionError("no error")

        for read in tm.read_text, lambda path: tm.read_csv(path, header=False):
            for file, words in [
                ("size.txt", f"/size.txt is not the same file on all hosts: it has 4 bytes on {{names[0]}}, but 8 on {{names[1]}}"),
                ("time.txt", "/time.txt is not the same file on all hosts, or too large to compare: it was last changed at "),
                ("there", f"/there/u.txt is on host {{names[0]}}, but not on {{names[1]}}"),
            ]:
                error = told(lambda: read(f"{{data}}/{{file}}").count())
                assert words in error and "each_host=True" in error, error
            assert read(f"{{data}}/there/t.txt").count() == 1, "the same on both"
            assert read(f"{{data}}/copies").count() == 6, "copies, one of another time"

        error = told(lambda: tm.read_npy(f"{{data}}/a.npy").count())
        assert "/a.npy is not the same file on all hosts: " in error and "each_host=True" in error, error
        arrays = tm.read_npy(f"{{data}}/a.npy", each_host=True)
        assert arrays.sort("value").to_dict() == {{"value": [*range(10), *range(20, 50)]}}
        error = told(lambda: tm.read_npy(f"{{data}}/kinds.npy", each_host=True))
        assert "/kinds.npy has the columns value Int32, and with those of other hosts " in error and "value Int64" in error, error

        error = told(lambda: tm.read_csv(f"{{data}}/own", each_host=True))
        assert f"/own/n.csv on host {{names[1]}}: its columns are m, but those of " in error and f"/own/n.csv on host {{names[0]}} are n: " in error, error
        error = told(lambda: tm.read_csv(f"{{data}}/kinds", each_host=True))
        assert 'column "x" is Int64 in ' in error and f"k.csv on host {{names[0]}} but Utf8" in error and names[1] in error, error
        assert tm.read_csv(f"{{data}}/types", each_host=True).sort("x").to_dict() == {{"x": [1.0, 2.5]}}
        assert tm.read_json(f"{{data}}/json", each_host=True).sort("n").to_dict() == {{"n": [1, 2], "s": [None, "x"]}}
        error = told(lambda: tm.read_csv(f"{{data}}/none*", each_host=True))
        assert error.endswith(f"/none*, on none of the hosts {{names[0]}}, {{names[1]}}"), error
        error = told(lambda: tm.read_parquet(f"{{data}}/mine.txt", each_host=True))
        assert "mine.txt" in error and error.endswith(f"(on host {{names[0]}})"), error
        assert "s3://bucket is in a store" in told(lambda: tm.read_text("s3://bucket", each_host=True))
        print("done")
    """
    with job(tmp_path, hosts, program) as running:
        assert running.succeed() == ["done\n"] * 4


def test_files_of_a_stream_that_not_all_hosts_see(tmp_path: Path, hosts: Cluster) -> None:
    """Nobody would read a file that its reader's host does not see. A file that has just arrived may appear a moment
    later.
    """
    program = """
        import tidemill as tm

        job = tm.init()
        stream = tm.stream.from_files({path!r}, {{"n": "int64"}}, stop_at_end=True)
        seen = []
        try:
            stream.write_stream(lambda rows: seen.extend(row["n"] for row in rows.to_pylist()))
            print(sorted(sum(job.comm.allgather(seen), [])))
        except tm.DataSetError as error:
            print(error)
    """
    lines = {f"{n}.json": f'{{"n": {n}}}\n' for n in range(6)}
    apart, shared = tmp_path / "apart", tmp_path / "shared"
    own_folder(hosts, apart, {"0.json": lines["0.json"]}, {"0.json": lines["0.json"], "1.json": lines["1.json"]})
    with job(tmp_path, hosts, program.format(path=str(apart))) as running:
        told = set(running.succeed())
    (error,) = told
    here, there = names_of(hosts)
    assert (
        f"files {apart}: {here} does not see {apart}/1.json, which {there} has; all hosts must see a stream's files"
        in error
    )
    shared.mkdir()
    for name, line in lines.items():
        (shared / name).write_text(line)
    with job(tmp_path, hosts, program.format(path=str(shared))) as running:
        assert set(running.succeed()) == {f"{[*range(6)]}\n"}
    late = tmp_path / "late"
    own_folder(hosts, late, {}, {})
    new, show = 'printf %s "$1" > "$0"/0.json', 'while [ ! -e "$2" ]; do sleep 0.1; done; printf %s "$1" > "$0"/0.json'
    _run(*hosts.prefix(1), "sh", "-c", new, str(late), lines["0.json"])
    begun = tmp_path / "begun"
    waits = subprocess.Popen([*hosts.prefix(0), "sh", "-c", show, str(late), lines["0.json"], str(begun)])
    with job(tmp_path, hosts, program.format(path=str(late))) as running:
        time.sleep(3)
        begun.touch()
        assert set(running.succeed()) == {"[0]\n"}
    assert waits.wait(launched.PATIENCE_S) == 0


def test_a_table_is_measured_on_two_hosts_and_followed(tmp_path: Path, hosts: Cluster) -> None:
    """Only rank 0's host has the table: workers that chose without it would run another schedule and hang, or fail."""
    folder = tmp_path / "tables"
    folder.mkdir()
    _run(*hosts.prefix(1), "mount", "-t", "tmpfs", "tmpfs", str(folder))
    table = folder / "tune.toml"
    measure = f"""
        from tidemill.apps import tune
        raise SystemExit(tune.main(["--out", {str(table)!r}, "--budget", "0.0002", "--largest", "512"]))
    """
    with job(tmp_path, hosts, measure) as running:
        outputs = running.succeed()
    assert f"written: {table}" in outputs[0] and outputs[1:] == [""] * 3
    rules = [line for line in table.read_text().splitlines() if "collective = " in line]
    assert rules and all(f"ranks = {2 * LOCAL}, hosts = 2," in rule for rule in rules), rules
    assert any('collective = "allreduce"' in rule for rule in rules)
    assert not any("blocking" in rule for rule in rules), "there is no shared memory between hosts"

    # The measurement may pick any algorithm. A difference in the order of summation shows that ranks follow it.
    follow = """
        import numpy as np
        from tidemill.mpi import MPI

        comm = MPI.COMM_WORLD
        mine = np.random.default_rng(comm.rank).normal(size=2000)

        def total(algorithm):
            result = np.empty_like(mine)
            comm.Allreduce(mine, result, algorithm=algorithm)
            return result.tobytes()

        print([name for name in ("ring", "linear") if total(name) == total(None)])
    """
    for algorithm in "ring", "linear":
        text = 'version = 2\nrules = [{{ collective = "allreduce", ranks = 4, hosts = {}, algorithm = "{}" }}]\n'
        table.write_text(text.format(2, algorithm))
        with job(tmp_path, hosts, follow, TIDEMILL_TUNE=str(table)) as running:
            assert running.succeed() == [f"{[algorithm]}\n"] * 4


CLICKS = """
import tidemill as tm

clicks = tm.stream.from_generator(2000, keys=100, splits=8)
counts = clicks.group_by("key", tm.stream.window(tm.stream.tumbling("1s"), on="time")).agg(n=tm.count())
counts.write_stream(lambda rows: None, name="clicks")
"""


def test_a_stream_is_shown_where_its_worker_0_is(tmp_path: Path, hosts: Cluster) -> None:
    """No host sees another's status files: worker 0 must hear from all workers, and a user elsewhere is told so."""
    folder = tmp_path / "run"
    own_folder(hosts, folder, {}, {})
    env = {"XDG_RUNTIME_DIR": str(folder), "TIDEMILL_FAILURE_TIMEOUT": "60"}

    def ran(host: int, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*hosts.prefix(host), *launched.command(*words)]
        options = {"capture_output": True, "text": True, "timeout": launched.PATIENCE_S}
        return subprocess.run(command, env={**os.environ, **env}, **options)  # type: ignore[call-overload,no-any-return]

    def told(host: int) -> dict[int, dict[str, Any]]:
        return {status["worker"]: status for status in json.loads(ran(host, "top", "--json").stdout)}

    def line(text: str, begins: str) -> str:
        return next((line.strip() for line in text.splitlines() if line.strip().startswith(begins)), text)

    job_ids = set()
    # The second time it is the restarted job.
    for victim in 3, 0:
        with job(tmp_path, hosts, CLICKS, **env) as running:

            def all_work() -> bool:
                found = told(0)
                return len(found) == 2 * LOCAL and all(
                    any(edge["rows_sent"] for edge in status["edges"]) for status in found.values()
                )

            launched.wait_until(all_work, "what all workers do, on the host of worker 0")
            found = told(0)
            assert [found[worker]["host"] for worker in range(4)] == [
                names_of(hosts)[worker // LOCAL] for worker in range(4)
            ]
            assert len({status["job_id"] for status in found.values()}) == 1
            assert {status["first_host"] for status in found.values()} == {names_of(hosts)[0]}
            assert all(status["silent_s"] < 5 and not status["over"] for status in found.values())
            assert found[0]["job_id"] not in job_ids
            job_ids.add(found[0]["job_id"])
            assert sorted(told(1)) == [2, 3]

            def have_rates() -> bool:
                shown = ran(0, "top", "--once", "--every", "1").stdout
                assert line(shown, "stream").startswith("stream 'clicks'  4 of 4 workers on 2 hosts  running "), shown
                ofs = [f"workers {host * LOCAL}-{host * LOCAL + 1} on {names_of(hosts)[host]}" for host in range(2)]
                parts = [re.match(rf"{of} +([\d,]+) ", line(shown, of)) for of in ofs]
                assert all(parts), shown
                return all(part and part[1] != "0" for part in parts)

            launched.wait_until(have_rates, "rows of both hosts")
            shown = ran(1, "top", "--once", "--every", "0.5").stdout
            assert line(shown, "stream").startswith("stream 'clicks'  2 of 4 workers  running "), shown
            assert f"tidemill top shows all workers on host {names_of(hosts)[0]}, where worker 0 is" in shown
            stopped = ran(1, "stop", "clicks")
            where = f"streams are stopped on the machine of their worker 0: 'clicks' on host {names_of(hosts)[0]}"
            assert (stopped.returncode, stopped.stderr) == (1, f"tidemill stop: {where}\n")

            (pid,) = launched.children(running.workers[victim].pid)
            if victim != 0:
                os.kill(pid, signal.SIGSTOP)
                launched.wait_until(lambda: told(0)[3]["silent_s"] > 6, "silence")
                shown = ran(0, "top", "--once", "--every", "0.5").stdout
                silent = rf"nothing heard for \d+\.\d s: worker 3 on {names_of(hosts)[1]}"
                assert re.fullmatch(silent, line(shown, "nothing heard")), shown
                # nsenter(1) stops together with its child, and continues it.
                running.workers[victim].send_signal(signal.SIGCONT)
                launched.wait_until(lambda: told(0)[3]["silent_s"] < 3, "an end of the silence")
            os.kill(pid, signal.SIGKILL)
            for rank, (_, _, err) in enumerate(running.finish()):
                assert rank == victim or f"worker {victim} was lost" in err, f"rank {rank}: {err}"
            assert told(0) == {} and told(1) == {}


LOOP = """
import os, pathlib, time
import numpy as np
import tidemill as tm
from tidemill.mpi import MPI

comm = MPI.COMM_WORLD
total = np.empty(50_000)
try:
    while True:
        comm.Allreduce(np.ones(50_000), total)
        pathlib.Path(__file__).with_name(f"{comm.rank}.pid").write_text("1\\n")
except tm.WorkerLost as error:
    print("lost", error.rank, f"{time.monotonic():.3f}", flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_kill_reaches_the_other_host(tmp_path: Path, hosts: Cluster, victim: int) -> None:
    """The other host cannot see the process end; the last packet of its kernel must tell."""
    with job(tmp_path, hosts, LOOP) as running:
        launched.pids_in(tmp_path, 2 * LOCAL)
        (pid,) = launched.children(running.workers[victim].pid)
        os.kill(pid, signal.SIGKILL)
        results = running.finish()
    for rank, (code, out, err) in enumerate(results):
        if rank != victim:
            assert code == 0 and out.startswith(f"lost {victim} "), f"rank {rank}: {out}{err}"


def test_a_pulled_cable_is_noticed_on_both_sides(tmp_path: Path, hosts: Cluster) -> None:
    """Nothing arrives any more, not even the end of a connection; silence alone must tell."""
    with job(tmp_path, hosts, LOOP, TIDEMILL_FAILURE_TIMEOUT="2") as running:
        launched.pids_in(tmp_path, 2 * LOCAL)
        pulled = time.monotonic()
        hosts.cut(1)
        results = running.finish()
    for rank, (code, out, err) in enumerate(results):
        assert code == 0 and out.startswith("lost "), f"rank {rank}: {out}{err}"
        lost, at = int(out.split()[1]), float(out.split()[2])
        # The far side: rank 0's host loses the others; their host loses rank 0, which relays the news.
        assert lost in ((2, 3) if rank < LOCAL else (0,)), f"rank {rank}: {out}{err}"
        print(f"rank {rank} after {at - pulled:.1f} s")


#: `stream_job`, which has given some results, but not all, when a host is lost: while FOLDER/hold exists, whatever
#: follows the first results waits.
STREAM = f"""
import sys
import time
from pathlib import Path

sys.path.insert(0, {str(Path(stream_job.__file__).parent)!r})
import stream_job

folder = Path(__file__).parent


class Held(stream_job.Files):
    def write(self, rows):
        while (folder / "hold").exists() and any((folder / "results").glob("[!.]*")):
            time.sleep(0.01)
        super().write(rows)


stream_job.Files = Held
sys.argv[1:] = [str(folder), "windows"]
stream_job.main()
"""


def is_lost(err: str, host: str, ranks: range) -> bool:
    """Whether an error names a host, all of its workers, and the first one that was missed."""
    told = re.search(rf"WorkerLost: worker (\d+) was lost: .* \(host {host} has workers {ranks[0]}-{ranks[-1]}\)", err)
    return told is not None and int(told[1]) in ranks


@pytest.mark.parametrize(("how", "lost"), [("killed", 0), ("killed", 1), ("cut off", 0), ("cut off", 1)])
def test_a_stream_goes_on_with_the_host_that_is_left(tmp_path: Path, hosts: Cluster, how: str, lost: int) -> None:
    """A host dies, or is cut off, in the middle of a stream whose sink must get every row once. Nobody here can start
    its workers again: all others end and name it, and the job resumes from its last checkpoint on the remaining host,
    without lost or duplicate rows.
    """
    for name in ("results", "pids"):
        (tmp_path / name).mkdir()
    (tmp_path / "hold").touch()
    results = tmp_path / "results"

    def seen() -> Counter[str]:
        return Counter(line for file in results.glob("[!.]*") for line in file.read_text().splitlines())

    expected = stream_job.expected("windows")
    with job(tmp_path, hosts, STREAM, TIDEMILL_FAILURE_TIMEOUT="5") as running:

        def has_results() -> bool:
            assert all(worker.poll() is None for worker in running.workers), running.finish()
            return bool(seen())

        launched.wait_until(has_results, "the first results")
        hosts.cut(lost) if how == "cut off" else hosts.kill(lost)
        (tmp_path / "hold").unlink()
        ends = running.finish()
    of_host = [range(host * LOCAL, (host + 1) * LOCAL) for host in range(2)]
    for rank, (code, _, err) in enumerate(ends):
        # Whoever is alive, including the workers of a host that is cut off, for which the other one is lost.
        other = 1 - rank // LOCAL
        if how == "cut off" or other == lost:
            assert code != 0 and is_lost(err, names_of(hosts)[other], of_host[other]), f"rank {rank}: {code}\n{err}"
    # All rows, if the machine was so busy that the first checkpoint had everything.
    before = seen()
    assert before and before <= expected

    left = 1 - lost
    command = launched.command("run", "-n", str(LOCAL), tmp_path / "app.py")
    again = subprocess.run([*hosts.prefix(left), *command], capture_output=True, text=True, timeout=launched.PATIENCE_S)
    assert again.returncode == 0, again.stderr
    more, less = seen() - expected, expected - seen()
    assert not more and not less, f"{more.total()} rows too many, {less.total()} too few"

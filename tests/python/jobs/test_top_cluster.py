"""``tidemill top --why``, ``--links``, ``--buckets``: what they show of a job's report about its hosts."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import launched
import pytest
from tidemill._streaming import status as _status
from tidemill.apps import top
from tidemill.apps._top_buckets import bucket_lines
from tidemill.apps._top_cluster import Cluster, ClusterError, read_cluster
from tidemill.apps._top_collectives import late_copies, round_sentences
from tidemill.apps._top_links import links_lines
from tidemill.apps._top_text import Screen
from tidemill.apps._top_why import why_lines

MBIT = 1e6 / 8
WIDE = Screen(200)
SENTENCE = "lab-3 receives 19 of 20 Mbit/s; its 128 buckets wait 71 % of the time; moving 54 of them should give +38 %"


def host(name: str, **more: Any) -> dict[str, Any]:
    of = {"name": name, "workers": [0], "cores": 2.0, "cpus_used": 0.5, "cpus_waited": 0.0}
    rates = {"out_bytes_s": 0.0, "in_bytes_s": 0.0, "out_capacity": None, "in_capacity": None}
    return {**of, **rates, **more}


def link(source: int, to: int, mbit: float, **more: Any) -> dict[str, Any]:
    of = {"from": source, "to": to, "bytes_s": mbit * MBIT, "capacity": None, "busy": 0.1, "link_wait": 0.0}
    return {**of, "credit_wait": 0.0, "queued_bytes": 0, "rtt_us": 200, **more}


def task(owners: list[int], work: list[float], **more: Any) -> dict[str, Any]:
    flows = {"rows_s": [100 * of for of in work], "bytes_s": [1000 * of for of in work], "work": work}
    buckets = {"hosts": owners, **flows, "state_bytes": []}
    return {"name": "window 2", "workers": [], "buckets": buckets, "heavy_keys": [], **more}


def cause(**more: Any) -> dict[str, Any]:
    of = {"kind": "inbound", "sentence": SENTENCE, "evidence": ["lab-0 to lab-3: full 98 % of the time"], "host": 3}
    remedy = {"owners": [], "buckets": 54, "gain": 0.38, "state_bytes": 40_000_000, "pause_ms": 90}
    return {**of, "task": 0, "weight": 0.71, "remedy": remedy, **more}


def decision(outcome: Any, **more: Any) -> dict[str, Any]:
    of = {"at_s": 60.0, "sentence": SENTENCE, "buckets": 54, "predicted": 0.38, "measured": None}
    return {**of, "outcome": outcome, **more}


def report(**more: Any) -> dict[str, Any]:
    hosts = [host(f"lab-{at}") for at in range(4)]
    of = {"span_s": 3.0, "hosts": hosts, "links": [], "tasks": [], "causes": []}
    return {**of, "controller": "advise", "decisions": [], **more}


def read(told: dict[str, Any]) -> Cluster:
    """The report as it arrives: through JSON."""
    cluster = read_cluster(json.loads(json.dumps(told)))
    assert cluster is not None
    return cluster


def choked() -> dict[str, Any]:
    """A report of a job whose host 3 has a full inbound link."""
    hosts = [host(f"lab-{at}", out_bytes_s=12 * MBIT, in_bytes_s=10 * MBIT) for at in range(3)]
    hosts.append(host("lab-3", out_bytes_s=5 * MBIT, in_bytes_s=19 * MBIT, in_capacity=20 * MBIT))
    full = {"capacity": 7 * MBIT, "link_wait": 0.7, "busy": 0.98, "queued_bytes": 300_000, "rtt_us": 41_000}
    links = [link(at, 3, 6.3, **full) for at in range(3)] + [link(3, 0, 5), link(1, 2, 10, credit_wait=0.2)]
    return report(hosts=hosts, links=links, causes=[cause()])


# --- why ------------------------------------------------------------------------------------------------------------
def test_why_has_cause_evidence_and_what_to_do() -> None:
    lines = why_lines(read(choked()), 100.0, WIDE)
    assert lines[0].endswith("over the last 3.0 s")
    assert f"   71%  inbound: {SENTENCE}" in lines
    assert " " * 10 + "lab-0 to lab-3: full 98 % of the time" in lines
    assert "  controller: advise, it says what it would move and moves nothing" in lines
    assert '  to move buckets: tidemill balance, or write_stream(controller="on")' in lines
    assert lines[-1] == "  it has decided nothing yet"


def test_why_breaks_sentences_where_the_terminal_ends() -> None:
    """Cutting at the terminal's width would remove the half that says what helps."""
    lines = why_lines(read(choked()), 100.0, Screen(60))
    assert all(len(line) <= 60 for line in lines)
    assert "should give +38 %" in " ".join(" ".join(lines).split())


def test_why_says_that_nothing_holds_a_job_up() -> None:
    hosts = [host("lab-0", cpus_used=0.2), host("lab-1", cpus_used=0.9, in_bytes_s=9 * MBIT, in_capacity=20 * MBIT)]
    (said, *_) = why_lines(read(report(hosts=hosts)), 10.0, WIDE)
    assert said == (
        "  Nothing holds the job up: hosts use 10% to 45% of their CPUs, lab-1 most; the fullest link is lab-1's inbound one, "
        "45% of what it can carry"
    )
    (said, *_) = why_lines(read(report(hosts=hosts[:1])), 10.0, WIDE)
    assert said == "  Nothing holds the job up: lab-0 uses 10% of its CPUs"
    (said, *_) = why_lines(read(report(hosts=[])), 10.0, WIDE)
    assert said == "  Nothing holds the job up: no host has reported yet"


def bsp_worker(number: int, host: str, waits: list[float], first: int = 7) -> dict[str, Any]:
    """The report of a worker whose copy has waited so many seconds in each collective; no entry where it did not wait."""
    told = [[first + call, waited_s] for call, waited_s in enumerate(waits) if waited_s]
    return {"worker": number, "host": host, "collectives": [{"step": "bsp 2", "copy": number, "waits": told}]}


def test_why_names_who_is_late_to_collectives() -> None:
    """Also says whether its CPU, its work or its link is the reason, as far as its host reports."""
    late = [bsp_worker(at, f"lab-{at}", [0.04] * 100 if at != 3 else []) for at in range(4)]

    def said(workers: list[dict[str, Any]], **of_last: Any) -> list[str]:
        hosts = [host(f"lab-{at}") for at in range(3)] + [host("lab-3", **of_last)]
        return late_copies(workers, read(report(hosts=hosts)))

    full = (
        "copy 3 of bsp 2 on lab-3 comes 40 ms late to its collectives, 100 of the last 100: the CPUs of lab-3 are busy "
    )
    assert said(late, cpus_used=1.92) == [f"{full}96%: there is too much for them"]
    crowded = f"{full}50%, and 1.5 threads wait for one: there is too much for them"
    assert said(late, cpus_used=1.0, cpus_waited=1.5) == [crowded]
    assert said(late, cpus_used=1.0)[0].endswith(
        "so it is its own work that takes longer: it has more rows, or harder ones"
    )
    behind = [bsp_worker(at, f"lab-{at}", [0.001 if at != 3 else 0.0615] * 30) for at in range(4)]
    (choked,) = said(behind, in_bytes_s=19 * MBIT, in_capacity=20 * MBIT)
    assert choked.startswith("copy 3 of bsp 2 on lab-3 has its results 60 ms after the others, 30 of the last 30: ")
    assert choked.endswith("the inbound link of lab-3 is full")
    # Of two, one waits and the other does not: the work is to blame, unless a link is full.
    two = [bsp_worker(0, "lab-3", [0.04] * 20), bsp_worker(1, "lab-1", [])]
    assert said(two)[0].startswith("copy 1 of bsp 2 on lab-1 comes 40 ms late")
    full_link = said(two, in_bytes_s=19 * MBIT, in_capacity=20 * MBIT)
    assert full_link[0].startswith("copy 0 of bsp 2 on lab-3 has its results 40 ms after the others")
    # Nobody is late, once is not a pattern, and other streams have no collectives.
    assert said([bsp_worker(at, f"lab-{at}", [0.04] * 100) for at in range(4)]) == []
    once = [bsp_worker(at, f"lab-{at}", [0.002] * 99 + [0.04 if at != 3 else 0.0]) for at in range(4)]
    assert said(once) == [] and said([{"worker": 0, "host": "lab-0"}]) == []
    assert "  late: copy 3 is late" in why_lines(read(report()), 100.0, WIDE, ["copy 3 is late"])


def test_why_tells_how_long_rounds_take_and_whom_they_left_out() -> None:
    figures = [
        {"rounds": 40, "mean_s": 0.002, "worst_s": 0.03, "left_out": 0, "behind": 0, "late_s": 0.0},
        {"rounds": 40, "mean_s": 0.001, "worst_s": 1.5, "left_out": 2, "behind": 0, "late_s": 0.0},
        {"rounds": 40, "mean_s": 0.003, "worst_s": 0.02, "left_out": 7, "behind": 3, "late_s": 1.31},
    ]
    job = [bsp_worker(at, f"lab-{at}", []) for at in range(3)]
    assert round_sentences(job) == []
    for worker, rounds in zip(job, figures, strict=True):
        worker["collectives"][0]["rounds"] = rounds
    said = round_sentences(job)
    assert said == [
        "bsp 2 has ended 40 rounds; their results come 2 ms after a copy's part on average, 1.5 s at most, at copy 1 on lab-1",
        "2 of 40 rounds left out copy 1 of bsp 2 on lab-1: now it is on time",
        "7 of 40 rounds left out copy 2 of bsp 2 on lab-2: it has been late for 1.3 s, and 3 of its parts will be in a later round",
    ]
    assert f"  rounds: {said[1]}" in why_lines(read(report()), 100.0, WIDE, rounds=said)


def test_why_lists_decisions_newest_first() -> None:
    decisions = [
        decision("kept", measured=0.35),
        decision("rolled_back", at_s=300.0, measured=-0.04),
        decision({"failed": "a worker is lost"}, at_s=400.0),
    ]
    lines = why_lines(read(report(controller="on", decisions=decisions)), 420.0, WIDE)
    assert "  controller: on, it moves buckets by itself" in lines and not any(
        "to move buckets" in one for one in lines
    )
    rows = [" ".join(line.split()) for line in lines[-6::2]]
    assert rows == [
        "20.0 s 54 +38% failed: a worker is lost",
        "2 min 54 +38% -4% rolled back: it was slower",
        "6 min 54 +38% +35% kept",
    ]
    assert lines[-1].strip() == SENTENCE


# --- links ----------------------------------------------------------------------------------------------------------
def test_links_mark_where_senders_wait() -> None:
    lines = links_lines(read(choked()), WIDE)
    assert lines[1].split() == ["from", "\\", "to", "lab-0", "lab-1", "lab-2", "lab-3", "sent"]
    assert lines[2].split() == ["lab-0", "-", "6.3/7.0!", "12.0"]
    assert lines[3].split() == ["lab-1", "-", "10.0+", "6.3/7.0!", "12.0"]
    assert lines[6].split() == ["received", "10.0", "10.0", "10.0", "19.0/20.0"]
    assert "! senders wait for the link, + senders wait for credit of" in lines[7]
    waiting = [" ".join(line.split()) for line in lines[9:]]
    assert waiting[0] == "lab-0 to lab-3 6.3 7.0 98% 0.70 0.00 300.0 kB 41.0 ms"
    assert waiting[-1] == "lab-1 to lab-2 10.0 10% 0.00 0.20 0 B 0.2 ms"
    # Columns of numbers are right-aligned, marks or not.
    assert lines[2].index("6.3/7.0!") == lines[3].index("6.3/7.0!")


def test_links_without_links() -> None:
    assert links_lines(read(report(hosts=[host("lab-0")])), WIDE) == [
        "  all workers are on one host: there are no links between hosts"
    ]
    assert links_lines(read(report()), WIDE) == ["  hosts have sent nothing to each other"]


def test_links_of_many_hosts_are_cut_to_the_screen() -> None:
    """Of 64 hosts only some columns fit: those of links where senders wait, then those with the most traffic."""
    hosts = [host(f"lab-{at}", in_bytes_s=63e6 * (at == 40), out_bytes_s=1e6) for at in range(64)]
    links = [link(source, to, 8.0) for source in range(64) for to in range(64) if source != to]
    links[0] |= {"link_wait": 0.5}
    screen = Screen(80, 40)
    lines = links_lines(read(report(hosts=hosts, links=links)), screen)
    assert all(len(line) <= screen.width for line in lines) and len(lines) < 40
    heading = lines[1].split()
    assert heading[3:6] == ["lab-0", "lab-1", "lab-40"]
    assert any(line.startswith("  left out: 33 senders and 57 receivers; shown: ") for line in lines)
    # Everything requested, if nothing limits it.
    everything = links_lines(read(report(hosts=hosts, links=links)), Screen(2000))
    assert not any("left out" in line for line in everything) and len(everything[1].split()) == 3 + 64 + 1


# --- buckets --------------------------------------------------------------------------------------------------------
def test_buckets_are_shaded_by_their_work() -> None:
    work = [0.0] * 16
    work[3], work[8], work[9] = 0.1, 0.4, 0.3
    keys = [{"key": "user 17", "bucket": 8, "share": 0.41}]
    lines = bucket_lines(read(report(tasks=[task([at // 8 for at in range(16)], work, heavy_keys=keys)])), WIDE)
    assert lines[0] == "  window 2: 16 buckets, shaded by work: · nothing, █ 40% of a CPU"
    assert lines[2].split() == ["lab-0", "8", "12%", "···▂····"]
    assert lines[3].split() == ["lab-1", "8", "88%", "█▆······"]
    heaviest = [" ".join(line.split()) for line in lines[5:8]]
    assert heaviest[0] == "bucket 8 lab-1 50% 40% of a CPU 40 400 B/s"
    assert len(heaviest) == 3 and lines[-1].split() == ["user", "17", "lab-1", "41%", "8"]
    plain = bucket_lines(read(report(tasks=[task([at // 8 for at in range(16)], work)])), Screen(200, None, False))
    assert plain[3].split()[-1] == "@#......" and all(line.isascii() for line in plain)


def test_buckets_without_work_are_shaded_by_bytes() -> None:
    of = task([0, 1], [0.0, 0.0])
    of["buckets"]["bytes_s"] = [4e6, 1e6]
    lines = bucket_lines(read(report(tasks=[of])), WIDE)
    assert "shaded by bytes" in lines[0] and "█ 4.0 MB/s" in lines[0]
    of["buckets"] |= {"bytes_s": [], "rows_s": [], "work": []}
    assert bucket_lines(read(report(tasks=[of])), WIDE) == ["  window 2: 2 buckets, to which nothing has come"]
    assert bucket_lines(read(report(tasks=[task([], [], buckets=None)])), WIDE) == [
        "  no task of this job takes rows by key"
    ]


def test_buckets_of_many_hosts_are_cut_to_the_screen() -> None:
    hosts = [host(f"lab-{at}") for at in range(64)]
    work = [0.001 * (1 + bucket % 64) for bucket in range(1024)]
    many = read(report(hosts=hosts, tasks=[task([bucket % 64 for bucket in range(1024)], work)]))
    screen = Screen(80, 40)
    lines = bucket_lines(many, screen)
    assert all(len(line) <= screen.width for line in lines) and len(lines) <= 40
    assert lines[2].split()[0] == "lab-63" and any("left out: 42 hosts" in line for line in lines)
    everything = bucket_lines(many, Screen(80))
    assert sum(line.startswith("  lab-") for line in everything) == 64
    # All buckets of one host, in lines of as many cells as fit.
    one = bucket_lines(read(report(tasks=[task([0] * 1024, work)])), Screen(80))
    assert (
        all(len(line) <= 80 for line in one) and sum(len(line.split()[-1]) for line in one[2 : 2 + 1024 // 32]) == 1024
    )


# --- what comes in --------------------------------------------------------------------------------------------------
def test_texts_of_a_report_cannot_move_the_cursor() -> None:
    evil = "\x1b[2Jx\n"
    keys = [{"key": evil, "bucket": 0, "share": 0.5}]
    hosts = [host(evil), host("lab-1")]
    told = report(
        hosts=hosts,
        links=[link(0, 1, 1.0, link_wait=1.0)],
        tasks=[task([0], [0.5], name=evil, heavy_keys=keys)],
        causes=[cause(sentence=evil, evidence=[evil], kind=evil)],
        decisions=[decision({"failed": evil}, sentence=evil)],
        controller=evil,
    )
    cluster = read(told)
    lines = why_lines(cluster, 100.0, WIDE) + links_lines(cluster, WIDE) + bucket_lines(cluster, WIDE)
    assert all(line.isprintable() for line in lines)
    assert sum("\\x1b[2Jx\\n" in line for line in lines) >= 8


def test_what_is_no_number_is_never_shown() -> None:
    """JSON has `null` for it, or Python's reader makes a NaN of it."""
    for nothing in (None, float("nan"), float("inf")):
        hosts = [host(f"lab-{at}", cpus_used=nothing, in_bytes_s=nothing, in_capacity=nothing) for at in range(2)]
        told = report(
            span_s=nothing,
            hosts=hosts,
            links=[link(0, 1, 1.0) | {"bytes_s": nothing, "busy": nothing, "link_wait": 1.0}],
            tasks=[task([0, 1], [1.0, 1.0])],
            causes=[cause(weight=nothing)],
            decisions=[decision("kept", predicted=nothing, measured=nothing)],
        )
        told["tasks"][0]["buckets"]["work"][0] = nothing
        cluster = read(told)
        lines = why_lines(cluster, 1.0, WIDE) + links_lines(cluster, WIDE) + bucket_lines(cluster, WIDE)
        assert not any(word in line.lower() for line in lines for word in ("nan", "inf ", "none", "null"))


def test_a_report_of_another_version_is_named() -> None:
    assert read_cluster(None) is None
    wrong = [
        ([], "cluster is not an object"),
        (report(hosts=[host("lab-0"), host("lab-1", cores="two")]), "cluster.hosts[1].cores is not a number"),
        (report(links=[link(0, 9, 1.0)]), "cluster.links[0] is of a host that is not in it"),
        (report(tasks=[task([0, 7], [1.0, 1.0])]), "cluster.tasks[0].buckets is of a host that is not in it"),
        (report(tasks=[task([0, 1], [1.0])]), "cluster.tasks[0].buckets has lists of different lengths"),
        ({key: of for key, of in report().items() if key != "causes"}, "cluster.causes is not a list"),
    ]
    for told, why in wrong:
        with pytest.raises(ClusterError, match=why.replace("[", r"\[").replace(".", r"\.")):
            read_cluster(told)
    # New fields are ignored.
    assert read({**report(), "more": 1}).controller == "advise"


# --- the command ----------------------------------------------------------------------------------------------------
@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that writes down what worker 0 of a job has reported."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")

    def put(cluster: Any, workers: int = 2, running_s: float = 100.0) -> None:
        now_s, up_s = time.time(), _status._up_s()
        of = {"job": "clicks", "job_id": "a", "workers": workers, "first_host": "lab-0", "pid": os.getpid()}
        of |= {"at_s": now_s, "up_s": up_s, "begun_s": now_s - running_s, "begun_up_s": up_s - running_s}
        of |= {"durable": None, "every_s": None, "checkpoint": None, "spilled_bytes": 0, "edges": [], "host": "lab-0"}
        statuses = [{**of, "worker": worker} for worker in range(workers)]
        if cluster is not None:
            statuses[0]["cluster"] = cluster
        first, *others = statuses
        # The other workers come in no particular order.
        heard = [{"worker": one["worker"], "age_s": 0.1, "over": False, "status": one} for one in others[::-1]]
        file = _status._file()
        assert file is not None
        for old in Path(file).parent.iterdir():
            old.unlink()
        Path(file).write_text("".join(json.dumps(line) + "\n" for line in (first, *heard)))

    return put


def shown(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    assert top.main(["--once", "--every", "0.1", *options] if "--json" not in options else list(options)) == 0
    return capsys.readouterr().out.splitlines()


def test_each_display(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    runs(choked() | {"tasks": [task([0, 3], [0.1, 0.9])]})
    assert f"   71%  inbound: {SENTENCE}" in shown(capsys, "--why")
    assert any("6.3/7.0!" in line for line in shown(capsys, "--links"))
    assert any(line.startswith("  window 2: 2 buckets, shaded by work") for line in shown(capsys, "--buckets"))


def test_the_heaviest_cause_is_in_the_usual_display(
    runs: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rates need two reports, and nobody writes another one here.
    monkeypatch.setattr(top, "lacks_rates", lambda looks: False)
    runs(choked())
    assert f"  slow (more: --why): {SENTENCE}" in shown(capsys)
    runs(report())
    assert not any("slow (" in line for line in shown(capsys))
    runs({"hosts": 3})
    assert not any("slow (" in line for line in shown(capsys))


def test_jobs_without_a_report_say_so(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for view in ("--why", "--links", "--buckets"):
        for workers, running_s, why in (
            (2, 1.0, "  still measuring: the first report comes some seconds after the start"),
            (2, 100.0, "  this job does not measure its hosts, links and buckets"),
        ):
            runs(None, workers, running_s)
            heading, said, _ = shown(capsys, view)
            assert heading.startswith("stream 'clicks'") and said == why
    runs({"hosts": 3})
    assert "the report of worker 0 is not of this version (cluster.span_s" not in shown(capsys, "--why")[1]
    assert "(cluster.hosts is not a list)" in shown(capsys, "--why")[1]


def test_json_has_the_report_and_workers_in_order(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    runs(choked(), workers=12)
    (text,) = shown(capsys, "--json")
    told = json.loads(text)
    assert [worker["worker"] for worker in told] == list(range(12))
    assert told[0]["cluster"] == choked()


def test_displays_exclude_each_other() -> None:
    for options, why in (
        (["--why", "--links"], b"argument --links: not allowed with argument --why"),
        (["--buckets", "--json"], b"argument --json: not allowed with argument --buckets"),
        (["--links", "--workers"], b"--workers is of the usual display, so --links does not allow it"),
    ):
        wrong = launched.run("top", *options)
        assert wrong.returncode == 2 and why in wrong.stderr

"""``tidemill simulate``: output, errors, reproducible seeds, and the file of parameters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tidemill.apps import simulate
from tidemill.apps._links import ParametersError, describe, read_parameters, write_parameters
from tidemill.apps._validate import _hosts


def run(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert simulate.main([*words, "--json"]) == 0, capsys.readouterr().err
    read: dict[str, object] = json.loads(capsys.readouterr().out)
    return read


@pytest.mark.parametrize("workload", simulate._WORKLOADS)
def test_every_workload_ends(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A parameter that the command forgets is an error of the native code."""
    words = (workload, "--workers", "24", "--hosts", "6", "--racks", "2", "--bytes", "64KiB", "--points", "10000")
    outcome = run(capsys, *words)
    ends = outcome["end_s"]
    assert isinstance(ends, list) and len(ends) == 24 and min(ends) > 0 and outcome["unfinished"] == []
    assert simulate.main(words) == 0
    table = capsys.readouterr().out
    assert f"{workload} on 24 workers, 6 hosts, 2 racks" in table and "last worker" in table and "bound by" in table


def test_seeds_repeat_and_a_slow_host_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    """A prediction that cannot be repeated cannot be discussed."""
    words = ("partition", "--workers", "16", "--hosts", "8", "--noise", "0.2")
    first, again = run(capsys, *words, "--seed", "3"), run(capsys, *words, "--seed", "3")
    assert first == again
    assert run(capsys, *words, "--seed", "4")["end_s"] != first["end_s"]
    slow = run(capsys, *words, "--seed", "3", "--slow", "3:0.1")
    assert max(slow["end_s"]) > 2 * max(first["end_s"])  # type: ignore[call-overload]


def test_a_tree_carries_the_control_plane_of_many_workers(capsys: pytest.CaptureFixture[str]) -> None:
    """The recommendation in the documentation must follow from the command's output."""
    for workload in "rendezvous", "loss", "checkpoint":
        words = (workload, "--workers", "2000", "--hosts", "125")
        tree, star = run(capsys, *words), run(capsys, *words, "--fanout", "2000")
        assert max(tree["end_s"]) < max(star["end_s"])  # type: ignore[call-overload]


def test_skewed_keys_and_narrow_windows_take_longer(capsys: pytest.CaptureFixture[str]) -> None:
    """An option that does not reach the simulator would give predictions that no cluster fulfills."""
    for workload in "partition", "keyed":
        words = (workload, "--workers", "16", "--hosts", "16", "--bytes", "8MiB")
        last = [max(run(capsys, *words, *more)["end_s"]) for more in ((), ("--skew", "1.1"), ("--window", "1KiB"))]  # type: ignore[call-overload]
        assert last[1] > 1.5 * last[0] and last[2] > 2 * last[0], last
    with pytest.raises(SystemExit):
        simulate.main(["keyed", "--workers", "4", "--skew", "-1"])
    assert "0 for evenly" in capsys.readouterr().err
    assert simulate.main(["keyed", "--workers", "64", "--bytes", "1GiB", "--window", "1"]) == 2
    assert "choose a wider window" in capsys.readouterr().err


def test_collectives_of_a_host_go_without_messages(capsys: pytest.CaptureFixture[str]) -> None:
    """What jobs on one host use must be known, and be refused elsewhere."""
    words = ("allreduce", "--workers", "8", "--algorithm")
    direct, messages = run(capsys, *words, "single_copy"), run(capsys, *words, "ring")
    assert direct["messages"] == 0 and max(direct["end_s"]) < max(messages["end_s"])  # type: ignore[call-overload]
    assert simulate.main([*words, "shared_memory", "--hosts", "2"]) == 2
    assert "workers of one host" in capsys.readouterr().err


def test_a_dead_worker_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """Workers that wait for a dead one must not look as if they had ended."""
    words = ("allreduce", "--workers", "8", "--hosts", "4", "--fail", "5:0", "--failure-timeout", "3s")
    outcome = run(capsys, *words)
    assert outcome["unfinished"] == list(range(8))
    assert simulate.main(words) == 0
    assert "8 workers: 5 died, the others waited until the failure timeout" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--workers", "4", "--hosts", "5"], "5 hosts for 4 workers"),
        (["--workers", "4", "--hosts", "2", "--slow", "2:0.5"], "slow host 2 does not exist"),
        (["--workers", "4", "--oversubscription", "0.5"], "oversubscription of 0.5"),
        (["--workers", "4", "--noise", "loud"], "--noise loud"),
        (["--workers", "4", "--noise", "measured"], "--parameters FILE"),
        (["--workers", "4", "--algorithm", "bruck"], "it can be one of"),
        (["--workers", "16384", "--algorithm", "linear"], "choose another algorithm"),
        (["--workers", "4", "--parameters", "none.json"], "`tidemill tune --links FILE -n 4` writes one"),
    ],
)
def test_what_cannot_be_is_named_with_the_remedy(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate.main(["allreduce", *words]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "word"), [("--slow", "3"), ("--bytes", "much"), ("--fail", "5"), ("--workers", "0")]
)
def test_words_that_are_none_are_refused(option: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        simulate.main(["allreduce", "--workers", "4", option, word])
    assert word in capsys.readouterr().err


def test_parameters_change_the_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Links that are ten times as slow, from a file."""
    costs = {"same_host": (1e-6, 1e-6, 1e-9), "other_host": (1e-5, 1e-6, 1 / 115e6)}
    parameters = {"version": 1, "costs": costs, "rates": {"partition_bytes_per_s": 1e10}, "shared_cores": None}
    path = tmp_path / "links.json"
    write_parameters(str(path), {**parameters, "round_trips_s": [1e-5, 2e-5, 4e-5]})
    assert read_parameters(str(path))["costs"]["same_host"] == (1e-6, 1e-6, 1e-9)
    assert describe(parameters)[1] == "between hosts: latency 10.0 us, overhead 1.0 us, 115 MB/s"
    words = ("partition", "--workers", "8", "--hosts", "8")
    plain, slow = run(capsys, *words), run(capsys, *words, "--parameters", str(path))
    assert max(slow["end_s"]) > 4 * max(plain["end_s"])  # type: ignore[call-overload]
    noisy = run(capsys, *words, "--parameters", str(path), "--noise", "measured")
    assert noisy["end_s"] != slow["end_s"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no file of parameters"),
        ('{"version": 7}', "version 1"),
        ('{"version": 1, "costs": {"speed": 3}}', "unknown parameter 'speed'"),
        ('{"version": 1, "costs": {"same_host": [1, 2]}}', "latency, overhead and seconds per byte"),
    ],
)
def test_bad_parameters_are_named(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    path.write_text(text)
    with pytest.raises(ParametersError, match=words) as caught:
        read_parameters(str(path))
    assert str(path) in str(caught.value)


def test_hosts_are_numbered_by_their_first_worker() -> None:
    assert _hosts([("b", 1), ("a", 1), ("b", 1), ("b", 2)]) == [0, 1, 0, 2]

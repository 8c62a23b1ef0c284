"""`Comm.lateness`: who came late to collectives, and who got its results late."""

from __future__ import annotations

import time

import tidemill
from standing import run
from tidemill.mpi._lateness import Lateness, compare


def test_who_waited_least_came_last() -> None:
    """A rank without recorded waits did not wait; a slow link shows only at its own rank."""
    waits = [
        [(call, 0.040) for call in range(7, 157)],
        [(call, 0.0405) for call in range(7, 157)],
        [],
        [(call, 0.090) for call in range(7, 157)],
    ]
    found = compare(waits, ["a", "a", "b", "c"])
    assert found[0] == Lateness(0, "a", 100, 0, 0.0, 0, 0.0)
    assert (found[2].late, round(found[2].late_s, 4), found[2].behind) == (100, 0.0405, 0)
    assert (found[3].late, found[3].behind, round(found[3].behind_s, 3)) == (0, 100, 0.050)
    assert (
        str(found[2])
        == "rank 2 on b came 40 ms late to 100 of the last 100 collectives: the others waited for its work"
    )
    assert str(found[1]) == "rank 1 on a was as fast as the others in the last 100"


def test_why_a_rank_was_late() -> None:
    """The cause is its own work, or other processes on its CPUs."""
    waits = [[(call, 0.04) for call in range(10)], []]
    said = [str(compare(waits, ["a", "b"], [(0.1, 0.0), cpus])[1]) for cpus in ((0.96, 0.01), (0.5, 0.45))]
    assert said[0].endswith("the others waited for its work, which used 0.96 CPUs")
    assert said[1].endswith("others have its CPUs, for which it waited 45 % of the time")


def test_one_rank_and_no_calls() -> None:
    assert compare([[(1, 0.5)]], ["a"]) == [Lateness(0, "a", 1)]
    assert [one.calls for one in compare([[], []], ["a", "b"])] == [0, 0]


def late_rank(rounds: int) -> list[Lateness]:
    comm = tidemill.init().comm
    for _ in range(rounds):
        if comm.rank == 1:
            time.sleep(0.05)
        comm.Barrier()
    return comm.lateness()


def test_workers_name_the_one_they_wait_for() -> None:
    told = run(late_rank, 8, workers=3)
    assert told[0] == told[1] == told[2], "all ranks are told the same"
    late = [one.late * one.late_s for one in told[0]]
    assert late[1] == max(late) and told[0][1].late >= 7, told[0]

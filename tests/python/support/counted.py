"""A stream with two steps that number rows by different keys; the results show rows that were lost, duplicated or out
of order.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

SPLITS = 4

#: Writes to ``results`` and ``checkpoints`` next to it, until it is stopped.
APP = f"""
from pathlib import Path

import tidemill as tm

# The folder does not depend on the current directory, so that the job can be started on other hosts.
folder = Path(__file__).parent

SCHEMA = {{"key": "int64", "number": "int64", "of_key": "int64"}}


def of_key(key, rows, context):
    made = []
    for row in rows:
        context.state = (context.state or 0) + 1
        made.append({{**key, "number": row["number"], "of_key": context.state}})
    return made


def of_team(key, rows, context):
    made = []
    for row in rows:
        context.state = (context.state or 0) + 1
        made.append({{**row, "of_team": context.state}})
    return made


rows = tm.stream.from_generator(600, keys=100, splits={SPLITS})
numbered = rows.key_by("key").process(of_key, SCHEMA)
teams = numbered.with_columns(team=tm.col("key") % 7)
twice = teams.key_by("team").process(of_team, {{"team": "int64", **SCHEMA, "of_team": "int64"}})
checkpoint = tm.stream.Checkpoint(folder / "checkpoints", interval="500ms")
twice.write_stream(tm.stream.to_files(folder / "results"), name="numbers", checkpoint=checkpoint)
"""


def results(folder: Path) -> list[dict[str, Any]]:
    """Return all rows that the job has written."""
    files = (folder / "results").glob("part-*")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def check(folder: Path) -> int:
    """Check that the job has written each row once, numbered as by a single copy; return the number of rows."""
    rows = results(folder)
    splits: dict[int, list[int]] = defaultdict(list)
    keys: dict[int, list[int]] = defaultdict(list)
    teams: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        splits[row["number"] % SPLITS].append(row["number"] // SPLITS)
        keys[row["key"]].append(row["of_key"])
        teams[row["team"]].append(row["of_team"])
    for split, numbers in splits.items():
        assert sorted(numbers) == list(range(len(numbers))), f"split {split}"
    for name, counts in (("key", keys), ("team", teams)):
        for of, numbers in counts.items():
            assert sorted(numbers) == list(range(1, len(numbers) + 1)), f"{name} {of}"
    return len(rows)

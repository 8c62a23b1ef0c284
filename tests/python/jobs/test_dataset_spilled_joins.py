"""Joins whose sides exceed memory: the same rows as in memory, by way of the disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import workers

#: Keys with nulls and one that half of the rows have, on the smaller side; texts, so that the side exceeds the budget.
PROGRAM = """
import json
import os
import numpy as np
import pyarrow as pa
import tidemill as tm

job = tm.init()

def table(rows, key, name):
    numbers = np.arange(rows)
    keys = key(numbers)
    return tm.from_arrow(pa.table({
        "k": pa.array(keys, mask=numbers % 17 == 0),
        name: numbers,
        f"{name}_text": pa.array(np.char.add("a text of some length ", numbers.astype(str))),
    }))

a = table(30_000, lambda n: np.where(n % 2 == 0, 7, n), "a")
b = table(40_000, lambda n: np.where(n < 2, 7, n // 3 + 50), "b")
known = b.filter(tm.col("k").is_not_null())

def long_table(rows, letters):
    numbers = np.arange(rows)
    return tm.from_arrow(pa.table({"k": numbers, "v": numbers, "text": np.char.zfill(numbers.astype(str), letters)}))

# Few but long rows, so that even all pairs are few.
c, d, e, f = long_table(160, 10_000), long_table(180, 10_000), long_table(24, 100_000), long_table(26, 100_000)
near = "abs(c.v - 2 * d.v) < 2 and c.v % 3 <> 0 and c.text <> d.text"

def seen(data):
    "How many rows, and a sum that tells them apart."
    names = data.columns
    hashed = tm.sql(f"select count(*) as n, {', '.join(f'sum(length(cast({name} as varchar))) as s_{name}, count({name}) as c_{name}' for name in names)},"
                    f" sum(coalesce({names[-1]} % 1013, 3) * coalesce(k % 1009, 5)) as mixed from data", data=data)
    return list(hashed.collect().to_pylist()[0].values())

queries = {
    "full": a.join(b, on="k", how="full").drop("b_text"),
    "semi": a.join(b, on="k", how="semi").drop("a_text"),
    "mark": tm.sql("select k, a from a where k in (select k from b) or a % 3 = 0", a=a, b=b),
    "not in": tm.sql("select k, a from a where k not in (select k from b)", a=a, b=known),
    "not in nulls": tm.sql("select k, a from a where k not in (select k from b)", a=a, b=b),
    "not in nothing": tm.sql("select k, a from a where k not in (select k from b where b < 0)", a=a, b=b),
    "cross": tm.sql("select e.k, e.text as e, f.text || '' as f, f.v from e cross join f", e=e, f=f),
    "near": tm.sql(f"select d.k, c.text as t, c.v as c, d.v as d from c left join d on {near}", c=c, d=d),
    "all near": tm.sql(f"select c.k, d.v as d, d.text as t, c.v as c from c full join d on {near}", c=c, d=d),
    "none near": tm.sql(f"select c.k, c.text as t, c.v from c where not exists (select 1 from d where {near})", c=c, d=d),
    "two keys": tm.sql("select a.k, a, b from a left join b on a.k = b.k and a.a % 5 = b.b % 5 and a < b", a=a, b=b),
}
for name, query in queries.items():
    found = seen(query)
    if job.rank == 0:
        print(json.dumps([name, found]))
for name, query in {"told": a.join(b, on="k"), "told near": queries["near"], "told cross": queries["cross"]}.items():
    told = query.explain("analyze")
    if job.rank == 0:
        print(json.dumps([name, told]))
spill = os.environ.get("TIDEMILL_SPILL_DIR")
assert spill is None or len(os.listdir(spill)) <= job.size, os.listdir(spill)
"""


def answers(folder: Path, size: int, env: dict[str, str]) -> dict[str, object]:
    folder.mkdir()
    with workers.Job(folder, size, PROGRAM, {"TIDEMILL_THREADS": "2" if size == 1 else "1", **env}) as job:
        lines = job.succeed()[0].splitlines()
    return dict(map(json.loads, lines))


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return answers(tmp_path_factory.mktemp("roomy") / "job", 1, {"TIDEMILL_MEMORY": "none"})


@pytest.mark.parametrize("size", [1, 2])
def test_joins_on_disk_give_the_rows_of_joins_in_memory(
    in_memory: dict[str, object], size: int, tmp_path: Path
) -> None:
    """Of every kind, with a budget far below either side; no spilled data is left."""
    spill = tmp_path / "spill"
    spill.mkdir()
    env = {"TIDEMILL_MEMORY": "2MiB", "TIDEMILL_SPILL_DIR": str(spill)}
    on_disk = answers(tmp_path / "job", size, env)
    for name in [name for name in on_disk if name.startswith("told")]:
        join = next(line for line in str(on_disk.pop(name)).splitlines() if "JoinExec" in line)
        assert "spilled" in join and "spilled_bytes=0" not in join, join
    assert on_disk == {name: seen for name, seen in in_memory.items() if not name.startswith("told")}
    assert list(spill.iterdir()) == []

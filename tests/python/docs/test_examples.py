"""The programs in ``examples/`` that work on DataSets, alone and on two workers: what plain Python finds in the same files."""

from __future__ import annotations

import ast
import os
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import launched
import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("TIDEMILL_DATA", ROOT / "../shared/data"))
WORKERS = pytest.mark.parametrize("workers", [1, 2])
WORDS = ["tide", "mill", "Water,", "wheel", "grain", "miller's", "sluice", "über", "--", "42", "Wheel!", ""]

Table = list[tuple[str, ...]]


def tables(workers: int, name: str, *args: str | Path, data: Path | str = "no-such-folder") -> list[Table]:
    """The tables that an example prints, without their headers."""
    program = [str(ROOT / "examples" / name), *map(str, args)]
    command = [sys.executable, *program] if workers == 1 else launched.command("run", "-n", str(workers), *program)
    env = {**os.environ, "TIDEMILL_DATA": str(data)}
    done = subprocess.run(command, capture_output=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr.decode()
    printed = "".join(line.removeprefix("[0] ") for line in done.stdout.decode().splitlines(keepends=True))
    border = r"\+[-+]+\+\n"
    return [
        [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in rows.splitlines()]
        for rows in re.findall(rf"{border}.*\n{border}((?:\|.*\n)*){border}", printed)
    ]


def texts(folder: Path, files: int) -> dict[str, str]:
    """Texts of words by chance, each written to the file that its key names."""
    chance = random.Random(7)
    made = {}
    for number in range(files):
        lines = [" ".join(chance.choices(WORDS, range(1, len(WORDS) + 1), k=9)) for _ in range(number * 150)]
        made[f"{number}.txt"] = "".join(line + ("\r\n" if number == 2 else "\n") for line in lines)
        (folder / f"{number}.txt").write_text(made[f"{number}.txt"], encoding="utf-8", newline="")
    return made


def words_of(text: str) -> list[str]:
    return re.sub(r"[^\w']+", " ", text.lower()).split()


@WORKERS
def test_word_count(tmp_path: Path, workers: int) -> None:
    counts = Counter(words_of(" ".join(texts(tmp_path, 4).values())))
    top = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:10]
    assert tables(workers, "word_count.py", tmp_path) == [[(word, str(count)) for word, count in top]]


@WORKERS
def test_inverted_index(tmp_path: Path, workers: int) -> None:
    found = defaultdict(set)
    for name, text in texts(tmp_path, 4).items():
        for word in words_of(text):
            found[word].add(name)
    top = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))[:10]
    expected = [(word, str(len(names)), " ".join(sorted(names))) for word, names in top]
    assert tables(workers, "inverted_index.py", *sorted(tmp_path.iterdir())) == [expected]


@WORKERS
def test_log_analysis(tmp_path: Path, workers: int) -> None:
    chance = random.Random(7)
    requests = [
        (
            f"192.0.2.{chance.randrange(50)}",
            chance.randrange(24),
            f"/page/{chance.randrange(20)}",
            chance.choice([200, 304, 404, 500]),
            chance.choice(["-", "0", "512", "70000"]),
        )
        for _ in range(500)
    ]
    lines = [
        f'{host} - someone [17/May/2015:{hour:02}:05:59 +0000] "GET {page}?n={hour} HTTP/1.1" {status} {size} "-" "agent"'
        for host, hour, page, status, size in requests
    ]
    (tmp_path / "access.log").write_text("\n".join([*lines, "no request", ""]))

    status: dict[int, list[int]] = defaultdict(list)
    hosts = defaultdict(list)
    pages = defaultdict(list)
    for host, hour, page, code, size in requests:
        status[code].append(0 if size == "-" else int(size))
        hosts[hour].append(host)
        pages[page].append(code >= 400)
    by_status, by_hour, by_page = tables(workers, "log_analysis.py", tmp_path / "access.log")
    assert by_status == [(str(code), str(len(sizes)), str(sum(sizes))) for code, sizes in sorted(status.items())]
    assert by_hour == [(str(hour), str(len(names)), str(len(set(names)))) for hour, names in sorted(hosts.items())]
    top = sorted(pages.items(), key=lambda item: (-len(item[1]), item[0]))[:10]
    assert by_page == [(page, str(len(failed)), str(sum(failed))) for page, failed in top]


@WORKERS
def test_without_files(workers: int) -> None:
    """Each has a small input of its own, so that it runs anywhere."""
    (words,) = tables(workers, "word_count.py")
    assert words[:3] == [("water", "4"), ("every", "2"), ("where", "2")]
    (index,) = tables(workers, "inverted_index.py")
    assert index[:2] == [("no", "3", "0 1 2"), ("stone", "2", "0 1")]
    by_status, by_hour, pages = tables(workers, "log_analysis.py")
    assert by_status == [("200", "53", "158100"), ("404", "7", "18900")]
    assert by_hour == [("10", "20", "7"), ("11", "20", "7"), ("12", "20", "7")]
    assert pages == [("/page/0", "15", "2"), ("/page/1", "15", "2"), ("/page/2", "15", "2"), ("/page/3", "15", "1")]


@pytest.mark.skipif(not (DATA / "weblog").is_dir(), reason=f"no real data in {DATA}")
def test_real_data() -> None:
    """A hundred novels, 10,000 requests and 40,000 tweets, as they were published."""
    by_status, by_hour, _ = tables(2, "log_analysis.py", data=DATA)
    assert len(by_hour) == 24 and dict(row[:2] for row in by_status)["200"] == "9126"
    (words,) = tables(2, "word_count.py", data=DATA)
    assert words[0][0] == "the" and len(words) == 10
    (index,) = tables(2, "inverted_index.py", data=DATA)
    assert len(index) == 10


def printed(workers: int, name: str, *args: str) -> list[str]:
    done = launched.run("run", "-n", str(workers), "--no-prefix", ROOT / "examples" / name, *args)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


@WORKERS
def test_loops(workers: int) -> None:
    """Centers are where the points were drawn around, ranks those of a product of matrices."""
    centers, ranks = map(ast.literal_eval, printed(workers, "loops.py"))
    assert centers == [[0, 0], [9, 0], [0, 9], [9, 9]]
    pages = 2000
    links = np.random.default_rng(1).zipf(1.5, size=(pages, 10)) % pages
    wanted = np.full(pages, 1 / pages)
    for _ in range(200):
        shares = np.bincount(links.ravel(), np.repeat(wanted / 10, 10), pages)
        wanted = 0.15 / pages + 0.85 * shares
    found = {page: rank for of_copy in ranks.values() for page, rank in of_copy.items()}
    assert len(found) == 6
    assert all(abs(wanted[page] - rank) < 1e-3 for page, rank in found.items())


@WORKERS
def test_networks(workers: int) -> None:
    """Both ways of synchronizing find the same."""
    lines = printed(workers, "networks.py")
    globally, partially = (re.findall(r"farthest (\d+) of ([\d,]+) nodes", line)[0] for line in lines[:4:2])
    assert globally == partially
    assert lines[4].startswith("<tidemill.Network: 10,000 nodes") and lines[5] == "components: 2"


def account(line: str) -> tuple[str, int, int, int]:
    """The way of synchronizing, rounds, sweeps or steps, and bytes of a line that an example of `iterate` prints."""
    found = re.match(r"(\w+): (\d+) rounds, (\d+) \w+, ([\d,]+) bytes", line)
    assert found is not None, line
    return found[1], int(found[2]), int(found[3]), int(found[4].replace(",", ""))


def test_schwarz() -> None:
    """The more rows blocks share, the fewer rounds; and the solution is the one that is known."""
    lines = printed(2, "schwarz.py", "16")
    assert [line.split(":")[0] for line in lines] == [
        "jacobi, 0 rows more, global",
        *(f"schwarz, {rows} rows more, global" for rows in (0, 2, 4)),
        "schwarz, 4 rows more, async",
    ]
    rounds = [int(line.split(": ")[1].split()[0]) for line in lines]
    assert rounds[0] > 3 * rounds[1] > 6 * rounds[2] > 6 * rounds[3], lines
    errors = [float(line.split("error ")[1].split(",")[0]) for line in lines]
    assert errors[0] < 1e-3 and max(errors[1:]) < 1e-5, lines


def test_poisson() -> None:
    """Fewer rounds and bytes, and no larger error."""
    lines = printed(2, "poisson.py")
    plain, partial = map(account, lines)
    assert (plain[0], partial[0]) == ("global", "partial")
    assert plain[1] == plain[2] and 4 * partial[1] < plain[1] and 4 * partial[3] < plain[3]
    errors = [float(re.findall(r"error (\S+),", line)[0]) for line in lines]
    assert errors[1] <= errors[0] < 1e-3


@WORKERS
def test_local_sgd(workers: int) -> None:
    lines = printed(workers, "local_sgd.py")
    assert [account(line)[:3] for line in lines] == [("global", 400, 400), ("partial", 50, 400)]
    assert all(float(re.findall(r"([\d.]+)% right", line)[0]) > 80 for line in lines)


@pytest.mark.parametrize("workers", [1, 3])
def test_applications(workers: int) -> None:
    *plan, found = printed(workers, "applications.py")
    assert plan[0] == f'graph "applications" on {workers} worker{"s" if workers > 1 else ""}'
    counts = np.bincount([s * s % 12 for s in range(3600)], minlength=12)
    numbers = np.arange(10_000)
    prices = [(5 + numbers % 12 + numbers % 7)[numbers % 12 == product].mean() for product in range(12)]
    b, a = np.polyfit(prices, counts, 1)
    assert found == f"clicks = {a:.2f} - {-b:.2f} * price"

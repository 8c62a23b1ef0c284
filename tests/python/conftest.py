"""Fixtures and options of all tests."""

import json
import os
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import benched
import local_servers
import pytest
import seeds
import standing

HERE = Path(__file__).parent

#: Fixtures that are shared between files, the slowest first.
SHARED = ("tiny", "kafka", "rabbitmq", "redis_server")

#: The requirements of the tests in a folder. Each has its folder's name as a marker.
NEEDS = {
    "api": "no processes but this one, an interpreter beside it, and workers that stay from test to test",
    "networks": "as for api, and networkx and SciPy",
    "jobs": "starts jobs, or commands of `tidemill`",
    "recovery": "kills workers and jobs, damages what they have, and starts jobs again",
    "servers": "a server: Kafka, RabbitMQ, Redis, PostgreSQL or S3",
    "hosts": "many workers, or several hosts, which are namespaces of this machine's kernel",
    "browser": "Chromium",
    "docs": "documentation, examples, benchmarks and tools of the repository",
}

#: The number of files reported as the slowest of a run.
SLOWEST = 10

Kind = TypeVar("Kind", local_servers.Kafka, local_servers.Redis, local_servers.RabbitMQ)

# Tests start thousands of interpreters: without bytecode files, each compiles all imported modules of Tidemill, which
# is half of its startup time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The process that starts the tests may ignore signals (`nohup`, a background job), and the launcher passes this on to
# its workers, as it should. Tests of signals therefore start with the defaults of a terminal.
for number, usual in {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


@pytest.fixture(scope="session", autouse=True)
def _runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Separate this run's jobs from those of another run on this machine, which have the same names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _standing_workers() -> Iterator[None]:
    """End the workers that tests have shared."""
    yield
    standing.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all", action="store_true", help="run slow tests too, and every case of matrices that are sampled"
    )


def pytest_configure(config: pytest.Config) -> None:
    for folder, needs in NEEDS.items():
        config.addinivalue_line("markers", f"{folder}: {needs} (all tests in tests/python/{folder})")
    config.addinivalue_line("markers", "slow: runs only with --all (`make test-all`), or when it is asked for by name")
    config.addinivalue_line(
        "markers",
        "sampled(count, always=(), by=None): of the test's cases, runs those with a parameter in `always` and `count` others, "
        "drawn with TIDEMILL_TEST_SEED, or, with the name of a parameter as `by`, all that have one of `count` values of it; "
        "all cases with --all, or when they are asked for by name",
    )


def pytest_report_header() -> str:
    return f"TIDEMILL_TEST_SEED={seeds.SEED}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the slowest files and the seed, and record failures for `tools/run-tests`."""
    stats = terminalreporter.stats
    reports = [report for group in stats.values() for report in group if isinstance(report, pytest.TestReport)]
    seconds: Counter[str] = Counter()
    for report in reports:
        seconds[report.nodeid.partition("::")[0]] += report.duration
    if len(seconds) > SLOWEST:
        terminalreporter.section(f"slowest {SLOWEST} files")
        for name, time in seconds.most_common(SLOWEST):
            terminalreporter.write_line(f"{time:6.1f} s  {name}")
    # With --dist loadgroup, names end with their group.
    failed = [report.nodeid for report in [*stats.get("failed", ()), *stats.get("error", ())]]
    failed = list(dict.fromkeys(re.sub(r"@[^@\]]+$", "", name) for name in failed))
    if failed:
        terminalreporter.write_line(f"to repeat this run: TIDEMILL_TEST_SEED={seeds.SEED}")
    if record := os.environ.get("TIDEMILL_TEST_RECORD"):
        Path(record).write_text(json.dumps(failed))


# Before pytest evaluates markers, and pytest-xdist groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests with their requirements, choose the cases that run, and group those that share something expensive,
    for ``--dist loadgroup``.

    All other tests are distributed to processes individually, so that no process is left with a long file at the end.
    """
    for item in items:
        item.add_marker(item.path.relative_to(HERE).parts[0])
    # Not by a marker: those of folders select all of their tests.
    named = config.option.keyword or any("::" in arg for arg in config.args)
    if not (config.option.all or named):
        left_out = _left_out(items)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        group = _group(item)
        if group is not None and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))


def _left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return slow tests, and cases of sampled tests that were not drawn: the same in all processes, which share the
    seed.
    """
    left_out = {item for item in items if item.get_closest_marker("slow")}
    matrices: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if item not in left_out and (sampled := item.get_closest_marker("sampled")):
            assert isinstance(item, pytest.Function)
            if not any(value in sampled.kwargs.get("always", ()) for value in item.callspec.params.values()):
                matrices[item.nodeid.partition("[")[0]].append(item)
    for name, cases in matrices.items():
        sampled = next(cases[0].iter_markers("sampled"))
        (count,), by = sampled.args, sampled.kwargs.get("by")
        values = [case if by is None else case.callspec.params[by] for case in cases]
        kinds = list(dict.fromkeys(values))
        drawn = seeds.dice(name).sample(kinds, min(count, len(kinds)))
        left_out.update(case for case, value in zip(cases, values, strict=True) if value not in drawn)
    return left_out


def _group(item: pytest.Item) -> str | None:
    """Return the group of a test: one for each shared fixture, so that a run makes it once, and one for each file with
    its own fixtures.
    """
    assert isinstance(item, pytest.Function)
    for shared in SHARED:
        if shared in item.fixturenames:
            return shared
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    return item.path.stem if any(fixture[-1].scope == "module" for fixture in fixtures) else None


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all benchmarks once in their tiny setting, and return the folder with the results."""
    return benched.tiny_run(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[local_servers.Kafka]:
    """A Kafka broker shared by all tests of a process: each creates its own topics."""
    yield from _running(local_servers.Kafka, tmp_path_factory)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[local_servers.Redis]:
    """A Redis shared by all tests of a process: each uses its own keys, and relies on nothing older."""
    yield from _running(local_servers.Redis, tmp_path_factory)


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[local_servers.RabbitMQ]:
    """A RabbitMQ node shared by all tests of a process: each creates its own queues."""
    yield from _running(local_servers.RabbitMQ, tmp_path_factory)


def _running(kind: type[Kind], folders: pytest.TempPathFactory) -> Iterator[Kind]:
    server = kind(folders.mktemp(kind.__name__))
    yield server
    server.stop()

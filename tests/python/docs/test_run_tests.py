"""How `make test` reads what failed: misread output would pass, or fail, without reason."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

CARGO = """
     Running unittests src/lib.rs (target/release/deps/tidemill_net-f1ed147918e183af)

running 3 tests
test frames::tests::empty ... ok
test frames::tests::split - should panic ... FAILED
test frames::tests::long ... FAILED

failures:
    frames::tests::long

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.76s

error: test failed, to rerun pass `-p tidemill-net --lib`
     Running tests/tcp.rs (target/release/deps/tcp-3aef001c1dfd2cbf)

running 1 test
test connects ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.02s

     Running tests/landing.rs (target/release/deps/landing-de9dfcd2e574b1ca)

running 1 test
error: test failed, to rerun pass `-p tidemill-net --test landing`

Caused by:
  process didn't exit successfully: `target/release/deps/landing-de9dfcd2e574b1ca` (signal: 6, SIGABRT: process abort signal)
   Doc-tests tidemill_net

running 1 test
test crates/net/src/lib.rs - open (line 1) ... FAILED

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.56s

error: doctest failed, to rerun pass `-p tidemill-net --doc`
"""


@pytest.fixture(scope="module")
def run_tests() -> Iterator[ModuleType]:
    loader = SourceFileLoader("run_tests", str(Path(__file__).parents[3] / "tools/run-tests"))
    spec = importlib.util.spec_from_loader("run_tests", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "run_tests", module)
        loader.exec_module(module)
        yield module


def test_failures_of_cargo(run_tests: ModuleType) -> None:
    """A crashed target names no test, and must not count as one without failures."""
    found = {name: command[len(run_tests.CARGO_TEST) :] for name, command in run_tests.rust_failures(CARGO)}
    doc = "crates/net/src/lib.rs - open (line 1)"
    assert found == {
        "-p tidemill-net --lib frames::tests::split": [
            "-p",
            "tidemill-net",
            "--lib",
            "--",
            "--exact",
            "frames::tests::split",
        ],
        "-p tidemill-net --lib frames::tests::long": [
            "-p",
            "tidemill-net",
            "--lib",
            "--",
            "--exact",
            "frames::tests::long",
        ],
        "-p tidemill-net --test landing": ["-p", "tidemill-net", "--test", "landing"],
        f"-p tidemill-net --doc {doc}": ["-p", "tidemill-net", "--doc", "--", doc],
    }


@pytest.mark.parametrize(
    ("failing", "flaky", "code"), [(0, 0, 0), (2, 2, 0), (2, 1, 1), (3, 3, 0), (4, 4, 1)], ids="{}".format
)
def test_what_passes_alone(
    run_tests: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    failing: int,
    flaky: int,
    code: int,
) -> None:
    """Up to three tests that pass alone do not fail a run, and are named."""
    commands = {f"test {n}": ["true" if n < flaky else "false"] for n in range(failing)}
    outcome = run_tests.Outcome(not failing, commands, "1 passed")
    monkeypatch.setattr(run_tests, "STAGES", {"python": lambda: outcome})
    monkeypatch.chdir(tmp_path)
    assert run_tests.main(["python"]) == code
    told = capsys.readouterr().out
    rerun = flaky if failing <= run_tests.FLAKY_MAX else 0
    assert told.count("\nFLAKY ") == rerun
    assert ("failed: python" in told) == bool(code)


@pytest.mark.parametrize("named", [True, False])
def test_each_part_is_judged_by_itself(
    run_tests: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    named: bool,
) -> None:
    """A part that failed and names no test stays failed, though the other part's test passes alone."""
    alone = {"test of rust": ["true"]} if named else {}
    parts = {
        "rust": run_tests.Outcome(False, alone),
        "python": run_tests.Outcome(False, {"test": ["true"]}, "1 failed"),
    }
    monkeypatch.setattr(run_tests, "STAGES", {"tests": lambda: parts})
    monkeypatch.chdir(tmp_path)
    assert run_tests.main(["tests"]) == (0 if named else 1)
    assert ("failed: rust;" in capsys.readouterr().out) == (not named)

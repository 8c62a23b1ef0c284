"""``tidemill info`` and the command line around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import launched
import pytest
import tidemill


def test_info_for_programs() -> None:
    facts = json.loads(launched.run("info", "--json").stdout)
    assert facts["machine"]["cores"]["usable"] >= 1
    assert facts["transports"]["TCP"] is True
    assert facts["limits"]["open files"] >= 1
    for problem in facts["problems"]:
        assert problem["problem"] and problem["remedy"]


def test_info_names_what_is_wrong_and_the_remedy() -> None:
    command = " ".join(launched.command("info"))
    result = subprocess.run(["sh", "-c", f"ulimit -n 64; {command}"], capture_output=True, timeout=launched.PATIENCE_S)
    assert result.returncode == 0
    assert b"! open files" in result.stdout and b"remedy: ulimit -n" in result.stdout


@pytest.mark.parametrize(
    ("options", "words"), [([], ["shm", "same host"]), (["--transport", "tcp"], ["tcp", "TIDEMILL_TRANSPORT"])]
)
def test_info_of_a_job_measures_its_links(options: list[str], words: list[str]) -> None:
    done = launched.run("info", "--job", "-n", "2", *options)
    assert done.returncode == 0, done.stderr.decode()
    [link] = [line for line in done.stdout.decode().splitlines() if " us " in line]
    assert "GB/s" in link and all(word in link for word in words), link


def test_few_open_files_are_enough_to_start_many_workers() -> None:
    """The soft limit is raised for the launcher's pipes and put back for the workers."""
    command = " ".join(launched.command("run", "-n", "40", "sh", "-c", "'ulimit -n'"))
    result = subprocess.run(
        ["sh", "-c", f"ulimit -S -n 80; {command}"], capture_output=True, timeout=launched.PATIENCE_S
    )
    assert sorted(result.stdout.splitlines()) == sorted(b"[%d] 80" % rank for rank in range(40))


def test_version_and_help() -> None:
    version = launched.run("--version")
    assert (version.returncode, version.stdout) == (0, b"tidemill " + _version().encode() + b"\n")
    for words in ([], ["run"], ["info"]):
        text = launched.run(*words, "--help")
        assert text.returncode == 0 and b"Usage" in text.stdout
    assert b"kmeans" in launched.run("--help").stdout


def test_an_application_explains_itself_once() -> None:
    """Its options are its own and those of the job; one worker is enough to say so."""
    result = launched.run("kmeans", "-n", "2", "--help")
    assert result.returncode == 0 and not result.stderr
    assert result.stdout.startswith(b"usage: tidemill kmeans") and b"--threads T" in result.stdout


def test_a_program_without_run_is_a_hint() -> None:
    result = launched.run("app.py")
    assert result.returncode == 2 and b"tidemill run app.py" in result.stderr


def test_the_command_starts_quickly_without_numpy() -> None:
    """Half a second of imports before every job would be felt; what is imported is what takes the time."""
    code = "import sys, tidemill.cli; print(sorted({'numpy', 'pyarrow', 'pandas'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, env=os.environ, timeout=launched.PATIENCE_S)
    assert out.stdout == b"[]\n"


def _version() -> str:
    from tidemill import _tidemill

    assert tidemill.__doc__
    return _tidemill.__version__

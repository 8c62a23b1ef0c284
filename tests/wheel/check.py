#!/usr/bin/env python3
"""Install the wheels in `dist/` as a user would, into fresh environments, and try them: check.py [FILE...]. `make test-wheel` runs this.

Beside NumPy alone: `core.py` on one worker and on two, and the viewer with its page. Then with the extras `ml` and `files`: `extras.py`.
A wheel for ARM64 is tried on an x86-64 machine too, emulated. A file may also be an sdist, of which pip makes a wheel first.
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
import venv
from pathlib import Path

import emulation

HERE = Path(__file__).resolve().parent
DIST = HERE.parents[1] / "dist"
# Nothing native comes near it; what is emulated takes tens of times as long.
TIMEOUT_S = 900


class Environment:
    """A fresh environment in a folder, with the wheel installed; programs run in the folder, far from the sources."""

    def __init__(self, folder: Path, wheel: Path, extras: str = "") -> None:
        self.folder = folder
        self.bin = folder / "env/bin"
        # Nothing of the caller's environment may stand in for what the wheel lacks.
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
        self.env["PATH"] = f"{self.bin}:{self.env['PATH']}"
        if wheel.stem.endswith("_aarch64") and platform.machine() != "aarch64":
            emulation.create(folder / "env", f"{wheel}{extras}")
        else:
            venv.create(folder / "env", with_pip=True)
            self.run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}{extras}")

    def run(self, program: str, *arguments: str) -> str:
        """Run a program of the environment and return what it printed."""
        print("+", program, *arguments, flush=True)
        result = subprocess.run(
            [self.bin / program, *arguments],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
        )
        if result.returncode != 0:
            sys.exit(f"{result.stdout}test-wheel: {program} {arguments} failed with exit code {result.returncode}")
        return result.stdout

    def packages(self) -> set[str]:
        """Return the names of what is installed."""
        program = "import importlib.metadata as m, json; print(json.dumps([d.name for d in m.distributions()]))"
        return {name.lower() for name in json.loads(self.run("python", "-c", program))} - {"pip", "setuptools"}


def expect(printed: str, *lines: str) -> None:
    """Check that each line was printed."""
    missing = [line for line in lines if line not in printed.splitlines()]
    if missing:
        sys.exit(f"{printed}test-wheel: not printed: {missing}")


def fetch(url: str) -> str:
    """Return the text that a URL of the viewer answers with."""
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        text: str = answer.read().decode()
        return text


def check_viewer(environment: Environment) -> None:
    """`tidemill view` serves the page, its scripts and the frames, and ends when it is told to."""
    command = [str(environment.bin / "tidemill"), "view", "--demo", "--points", "20", "--frames", "3", "market"]
    print("+ tidemill view --demo market", flush=True)
    with subprocess.Popen(
        command, cwd=environment.folder, env=environment.env, stdout=subprocess.PIPE, text=True
    ) as viewer:
        try:
            assert viewer.stdout is not None
            url = next((found[0] for line in viewer.stdout if (found := re.search(r"http://\S+", line))), None)
            if url is None:
                sys.exit("test-wheel: `tidemill view` ended without printing its URL")
            page = fetch(url)
            scripts = re.findall(r'(?:src|href)="\.?/?(assets/[^"]+)"', page)
            if "<title" not in page or not any(name.endswith(".js") for name in scripts):
                sys.exit(f"test-wheel: this is not the viewer's page:\n{page[:2000]}")
            base = url.split("?")[0].split("#")[0].rsplit("/", 1)[0]
            for name in scripts:
                if len(fetch(f"{base}/{name}")) < 100:
                    sys.exit(f"test-wheel: {name} of the viewer's page is empty")
        finally:
            viewer.send_signal(signal.SIGTERM)
        if viewer.wait(timeout=TIMEOUT_S) != 0:
            sys.exit(f"test-wheel: `tidemill view` ended with exit code {viewer.returncode}")


def wheel_of(sdist: Path, folder: Path) -> Path:
    """Let pip make a wheel of an sdist, in an environment with nothing else."""
    venv.create(folder / "env", with_pip=True)
    print(f"+ pip wheel {sdist.name}", flush=True)
    # Without a cache: pip knows an sdist by its path, and would take the wheel of an earlier one.
    pip = [folder / "env/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    command = [*pip, "wheel", "--no-deps", "--wheel-dir", folder, sdist]
    if subprocess.run(command).returncode != 0:
        sys.exit(f"test-wheel: pip cannot build {sdist.name}")
    (wheel,) = folder.glob("tidemill-*.whl")
    return wheel


def check(wheel: Path) -> None:
    """Try a wheel; the first fault ends the program."""
    with tempfile.TemporaryDirectory() as folder:
        alone = Environment(Path(folder), wheel)
        if alone.packages() != {"numpy", "tidemill"}:
            sys.exit(f"test-wheel: installed are {sorted(alone.packages())}, not NumPy and Tidemill alone")
        expect(alone.run("python", str(HERE / "core.py")), "core: worker 0 of 1 agrees")
        two = alone.run("tidemill", "run", "-n", "2", str(HERE / "core.py"))
        expect(two, "[0] core: worker 0 of 2 agrees", "[1] core: worker 1 of 2 agrees")
        check_viewer(alone)
    with tempfile.TemporaryDirectory() as folder:
        extras = Environment(Path(folder), wheel, "[ml,files]")
        expect(extras.run("python", str(HERE / "extras.py")), "extras: agree")
    print(f"{wheel.name} works: alone, with two workers, as viewer, and with [ml,files]")


def main(arguments: list[str]) -> int:
    """Try the files given, or every wheel in `dist`; the exit code."""
    files = [Path(argument).resolve() for argument in arguments] or sorted(DIST.glob("tidemill-*.whl"))
    if not files:
        print("test-wheel finds no wheel in dist: run `make wheel` first", file=sys.stderr)
        return 2
    for file in files:
        with tempfile.TemporaryDirectory() as folder:
            check(file if file.suffix == ".whl" else wheel_of(file, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""An environment whose Python is Debian's for ARM64, run by QEMU: so an x86-64 machine tries the wheel for ARM64.

Nothing is installed on the machine: apt unpacks that Python and its libraries into the environment's folder, whose `bin/python` is a script
that starts QEMU. Programs find that script as `sys.executable`, so workers are emulated, too.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

QEMU = "qemu-aarch64-static"
TOOLS = {QEMU: "qemu-user-static", "apt-get": "apt", "dpkg-deb": "dpkg"}
#: Which of PyPI's wheels glibc 2.28 takes.
PLATFORMS = [f"manylinux_2_{minor}_aarch64" for minor in (17, 24, 26, 27, 28)]


def unpack_python(root: Path) -> str:
    """Unpack Python for ARM64, and all that it needs, below `root`; return its version, such as `3.11`."""
    apt = root.parent / "apt"
    for folder in (apt / "lists/partial", apt / "archives/partial", root):
        folder.mkdir(parents=True)
    # An empty list of what is installed: apt then takes everything down to the C library, and needs no rights.
    (apt / "status").touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "1",
        "Dir::Cache": str(apt),
        "Dir::Cache::archives": "archives",
        "Dir::State": str(apt),
        "Dir::State::lists": "lists",
        "Dir::State::status": str(apt / "status"),
    }
    command = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in options.items())]
    subprocess.run([*command, "update"], check=True)
    # Wheels for manylinux may take C++'s library from the system.
    packages = ["python3", "libstdc++6"]
    subprocess.run([*command, "install", "--yes", "--no-install-recommends", "--download-only", *packages], check=True)
    for package in (apt / "archives").glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", str(package), str(root)], check=True)
    shutil.rmtree(apt)
    return (root / "usr/bin/python3").readlink().name.removeprefix("python")


def create(environment: Path, requirement: str) -> None:
    """Create an environment for ARM64 and install a wheel into it, with what it depends on."""
    missing = [package for program, package in TOOLS.items() if shutil.which(program) is None]
    if missing:
        sys.exit(f"test-wheel: a wheel for ARM64 is tried here with Debian's packages; install {' '.join(missing)}")
    root = environment / "root"
    version = unpack_python(root)
    binaries = environment / "bin"
    binaries.mkdir()
    for name, arguments in {"python": "", "tidemill": "-m tidemill"}.items():
        # The name given with `-0` is what Python takes for its own: beside it is `pyvenv.cfg`.
        start = f'exec {QEMU} -L "{root}" -0 "{binaries}/python" "{root}/usr/bin/python{version}" {arguments} "$@"'
        (binaries / name).write_text(f"#!/bin/sh\n{start}\n")
        (binaries / name).chmod(0o755)
    (environment / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {version}\n")
    # The machine's own pip chooses and unpacks: emulated, it would take minutes.
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--root-user-action=ignore",
    ]
    site = environment / f"lib/python{version}/site-packages"
    choice = ["--only-binary=:all:", f"--python-version={version}", *(f"--platform={name}" for name in PLATFORMS)]
    subprocess.run([*pip, *choice, f"--target={site}", requirement], check=True)

"""Emulated hosts without root's rights, and the one sentence that says what is missing where they cannot be made."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import launched
import pytest
import tidemill.hosts
from tidemill.hosts import HostsError, _commands, _rights

pytestmark = pytest.mark.xdist_group("hosts")

#: An ordinary user: not root, and without root's rights over anything outside this namespace.
ORDINARY = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]


def ran(before: Sequence[str], *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, *command], env={**os.environ, **env}, capture_output=True, text=True, timeout=launched.PATIENCE_S
    )


def _refused() -> str | None:
    """Why this machine cannot run as an ordinary user, if so."""
    if os.geteuid() != 0:
        return "needs root, to take rights away"
    if shutil.which("unshare") is None:
        return "needs unshare (of util-linux)"
    done = ran([*ORDINARY, "unshare", "--user", "--map-root-user", "--net"], "true")
    return None if done.returncode == 0 else f"needs user namespaces: {done.stderr.strip()}"


needs_users = pytest.mark.skipif(_refused() is not None, reason=str(_refused()))


JOB = """
import os
from tidemill.mpi import MPI

comm = MPI.COMM_WORLD
places = comm.allgather(os.uname().nodename)
if comm.rank == 0:
    print(*places)
"""


@needs_users
def test_an_ordinary_user_has_hosts(tmp_path: Path) -> None:
    """Each command must find its way into the cluster's user namespace, with a PATH that lacks sbin, as on Debian."""
    (tmp_path / "job.py").write_text(JOB)
    tidemill_ = f"{sys.executable} -m tidemill"
    script = f"""
        set -e
        id -u
        {tidemill_} hosts up --hosts 3 --bandwidth 100mbit --name own
        {tidemill_} run --on own -n 3 --no-prefix {tmp_path}/job.py
        {tidemill_} hosts set own 2 --in 20mbit
        {tidemill_} hosts cut own 1
        {tidemill_} hosts show own --once
        {tidemill_} hosts kill own 1
        {tidemill_} run --on own -n 3 --no-prefix {tmp_path}/job.py
        {tidemill_} hosts down own
        {tidemill_} hosts down own
    """
    done = ran(ORDINARY, "sh", "-c", script, PATH="/usr/bin:/bin", XDG_RUNTIME_DIR=str(tmp_path))
    lines = done.stdout.splitlines()
    assert len(lines) == 8, done.stderr
    assert lines[:1] + lines[2:3] + lines[7:] == ["1000", "own-0 own-1 own-2", "own-0 own-0 own-2"]
    assert lines[5].endswith("cut off") and lines[6].split()[5] == "20mbit", done.stdout
    assert done.stderr == "tidemill hosts: there is no cluster 'own'; `tidemill hosts up` makes one\n"
    assert not list((tmp_path / "tidemill-1000" / "hosts").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to take rights away")
@pytest.mark.parametrize(
    ("rights", "names"),
    [("-all", "SYS_ADMIN, NET_ADMIN, SYS_CHROOT"), ("-net_admin", "NET_ADMIN"), ("-sys_chroot", "SYS_CHROOT")],
)
def test_rights_that_root_lacks_are_named(rights: str, names: str) -> None:
    """As in a container, where otherwise the first worker would fail, or `ip` would complain in its own words."""
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv (of util-linux)")
    words = names.split(", ")
    if any(not _rights._capabilities() >> _rights._NEEDED[word] & 1 for word in _rights._NEEDED):
        pytest.skip("root lacks rights here already")
    # Root owns /proc and the program's files, and needs no right to read them.
    done = ran(
        ["setpriv", f"--bounding-set={rights}", "--inh-caps=-all"], *launched.command("hosts", "up", "--hosts", "1")
    )
    have = ", ".join(f"CAP_{word}" for word in words)
    add = " ".join(f"--cap-add {word}" for word in words)
    assert (done.returncode, done.stderr) == (
        1,
        f"tidemill hosts: emulated hosts need {have}, which root does not have here; run this container with {add}, or --privileged\n",
    )


@needs_users
@pytest.mark.parametrize(
    ("before", "words"),
    [
        (
            'unshare --user --map-root-user sh -c \'echo 1 > /proc/sys/user/max_user_namespaces; exec "$@"\' sh "$@"',
            ["No space left on device", "run `sysctl user.max_user_namespaces=10000` as root"],
        ),
        (
            'mount --bind /dev/null /proc/version && exec "$@"',
            ["mount /proc failed", "--security-opt systempaths=unconfined, or --privileged"],
        ),
    ],
    ids=["no namespaces", "hidden parts of /proc"],
)
def test_what_keeps_an_ordinary_user_is_named(before: str, words: list[str]) -> None:
    command = ["sh", "-c", before, "sh", *ORDINARY]
    done = ran(["unshare", "--mount", *command], *launched.command("hosts", "up", "--hosts", "1", "--name", "no"))
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert all(word in done.stderr for word in words), done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make what is mounted read-only")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ('mount -o remount,bind,ro "$m"', "Read-only file system; run this container with --privileged"),
        ("umount -R /sys/fs/cgroup || true; break", "there are none below /sys/fs/cgroup; mount them"),
    ],
    ids=["read-only", "none"],
)
def test_what_keeps_from_limiting_processors_is_named(change: str, words: str) -> None:
    script = f'for m in /sys/fs/cgroup $(ls -d /sys/fs/cgroup/*/); do mountpoint -q "$m" || continue; {change}; done; exec "$@"'
    up = launched.command("hosts", "up", "--hosts", "1", "--cpus", "0.5", "--name", "no")
    done = ran(["unshare", "--mount", "sh", "-c", script, "sh"], *up)
    if "root does not have here" in done.stderr or "cannot be made: unshare" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and words in done.stderr, done.stderr


def test_programs_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(_commands, "_SYSTEM_FOLDERS", ())
    with pytest.raises(HostsError, match=r"need ip, tc, .* does not have; install iproute2 util-linux"):
        tidemill.hosts.up(1)


@pytest.mark.parametrize(
    ("text", "rootless", "ends"),
    [
        ("ip link add hosts type bridge: Error: Unknown device type.", False, "run `modprobe bridge` as root"),
        ("tc qdisc replace dev port0 root tbf rate 1bit: Error: Specified qdisc kind is unknown.", True, "run `modprobe sch_tbf` as root"),
        ("unshare: unshare failed: No space left on device", False, "run `sysctl user.max_net_namespaces=10000` as root"),
        ("unshare: unshare failed: Operation not permitted", False, "run this container with --privileged"),
        ("unshare: cannot change root filesystem propagation: Permission denied", False, "apparmor=unconfined, or --privileged"),
        ("cpus= needs to make cgroups below /x: Permission denied; make the cluster as root", True, "; make the cluster as root"),
    ],
)  # fmt: skip
def test_what_programs_say_has_a_remedy(text: str, rootless: bool, ends: str) -> None:
    told = _rights.refusal(text, rootless=rootless)
    assert told.startswith(f"emulated hosts cannot be made: {text}") and told.endswith(ends)


def test_settings_of_the_kernel_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ubuntu and Debian each have one that others lack."""
    settings = {"kernel.a": ("0", "1"), "kernel.b": ("1", "0"), "user.c": ("0", "9"), "kernel.absent": ("0", "1")}
    monkeypatch.setattr(_rights, "_SETTINGS", settings)
    monkeypatch.setattr(_rights, "_SYSCTL", tmp_path)
    for name, value in {"kernel/a": "1", "kernel/b": "1", "user/c": "0"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    told = _rights.refusal("unshare: unshare failed: Operation not permitted", rootless=True)
    assert told.endswith("; run `sysctl kernel.b=0 user.c=9` as root, or run this as root")


def test_groups_of_a_keeper_that_was_killed_go_with_the_next_cluster() -> None:
    """Nobody was left to remove them, and on a long-lived machine they would accumulate."""
    name = f"swept-{os.getpid()}"
    try:
        killed = tidemill.hosts.up(2, cpus=0.5, name=name)
    except HostsError as error:
        pytest.skip(str(error))
    groups = [Path(host.cpu_group[0]).parent for host in killed.hosts]
    os.kill(killed._keeper, signal.SIGKILL)
    killed.down()
    launched.wait_until(lambda: not any((group / "cgroup.procs").read_text() for group in groups), "empty groups")
    with tidemill.hosts.up(1, cpus=0.5, name=name) as cluster:
        assert not any(group.exists() for group in groups)
        (own,) = cluster.hosts[0].cpu_group
    assert not Path(own).parent.exists()

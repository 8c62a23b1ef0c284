"""``tidemill hosts``: a cluster of emulated hosts on this machine."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from tidemill.apps._arguments import duration_s
from tidemill.hosts import Cluster, HostsError, Traffic, find, names, up

# For people rather than programs: a bandwidth is printed as it is written on the command line.
from tidemill.hosts._commands import described

__all__ = ["main"]

_DESCRIPTION = """\
Make a cluster of emulated hosts on this machine. They talk by real TCP, through links that you limit, cut and heal
while programs run. Start a program there with `tidemill run --on NAME`.

  tidemill hosts up --hosts 4 --bandwidth 100mbit
  tidemill run --on lab -n 16 app.py
  tidemill hosts set lab 3 --in 20mbit
  tidemill hosts down
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 1 with a message that says why."""
    options = _parser().parse_args(argv)
    try:
        options.run(options)
    except HostsError as error:
        print(f"tidemill hosts: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0 if options.command == "show" else 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tidemill hosts", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    made = commands.add_parser("up", help="make a cluster; it stays until `down`, or until its owner ends")
    made.add_argument("--hosts", type=int, required=True, metavar="N", help="number of hosts")
    made.add_argument(
        "--bandwidth",
        metavar="RATE",
        help="how much each host can send, and receive, such as 100mbit (default: no limit)",
    )
    made.add_argument(
        "--cpus", type=float, metavar="X", help="processors of each host, such as 0.5 (default: no limit)"
    )
    made.add_argument("--name", default="lab", help="name of the cluster (default: lab)")
    made.add_argument(
        "--owner",
        type=int,
        metavar="PID",
        help="process at whose end the cluster goes away; 0 for none (default: the shell that runs this command)",
    )
    made.set_defaults(run=_up)

    changed = commands.add_parser("set", help="change the limits of a host")
    _add_host(changed)
    changed.add_argument("--in", dest="incoming", metavar="RATE", help="how much it can receive, or none for no limit")
    changed.add_argument("--out", dest="outgoing", metavar="RATE", help="how much it can send, or none for no limit")
    changed.add_argument("--cpus", type=float, metavar="X", help="number of processors")
    changed.set_defaults(run=_set)

    for name, method, text in (
        ("cut", Cluster.cut, "cut a host off from the others, without notice"),
        ("heal", Cluster.heal, "connect a host that was cut off"),
        ("kill", Cluster.kill, "end all processes of a host at once, like a power failure"),
    ):
        one = commands.add_parser(name, help=text)
        _add_host(one)
        one.set_defaults(run=lambda options, method=method: method(find(options.name), options.host))

    shown = commands.add_parser("show", help="show the bytes and rates of each host; Ctrl-C ends it")
    shown.add_argument("name", nargs="?", default="lab", help="name of the cluster (default: lab)")
    shown.add_argument("--once", action="store_true", help="print once, without rates, and end")
    shown.add_argument("--every", type=duration_s, default=1.0, metavar="TIME", help="refresh interval (default: 1s)")
    shown.set_defaults(run=_show)

    taken = commands.add_parser("down", help="end all processes on the hosts, and remove the cluster")
    taken.add_argument("name", nargs="?", help="name of the cluster (default: the only one)")
    taken.set_defaults(run=_down)
    return parser


def _add_host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="name of the cluster")
    parser.add_argument("host", type=int, help="number of the host, from 0")


def _up(options: argparse.Namespace) -> None:
    owner = os.getppid() if options.owner is None else options.owner
    made = up(options.hosts, bandwidth=options.bandwidth, cpus=options.cpus, name=options.name, owner=owner)
    ends = "until `tidemill hosts down`" + (f", or until process {owner} ends" if owner else "")
    are = "are" if len(made.hosts) > 1 else "is"
    print(f"{made.name}: {', '.join(host.name for host in made.hosts)} {are} up {ends}")


def _set(options: argparse.Namespace) -> None:
    given = {"incoming": options.incoming, "outgoing": options.outgoing, "cpus": options.cpus}
    if all(value is None for value in given.values()):
        raise HostsError("nothing to set: pass --in, --out or --cpus")
    find(options.name).set(options.host, **given)


def _down(options: argparse.Namespace) -> None:
    name = options.name
    if name is None:
        there = list(names())
        if len(there) != 1:
            raise HostsError(f"which one? There are {', '.join(there)}" if there else "no cluster is up")
        (name,) = there
    find(name).down()


def _show(options: argparse.Namespace) -> None:
    if not 0.1 <= options.every <= 3600:
        raise HostsError("--every is from 0.1 to 3600 seconds")
    cluster = find(options.name)
    # On a terminal, each table replaces the previous one.
    up_again = f"\x1b[{len(cluster.hosts) + 1}A\x1b[J" if sys.stdout.isatty() else "\n"
    between = ""
    before, at = None if options.once else cluster.traffic(), time.monotonic()
    while cluster.is_up:
        if before is not None:
            time.sleep(options.every)
        try:
            now, then = cluster.traffic(), time.monotonic()
        except HostsError:
            if cluster.is_up:
                raise
            break
        print(between + _table(cluster, now, before, then - at), flush=True)
        between = up_again
        if before is None:
            return
        before, at = now, then


def _table(cluster: Cluster, now: Sequence[Traffic], before: Sequence[Traffic] | None, seconds: float) -> str:
    """Return the table, with a line for each host."""
    lines = [("host", "address", "in", "rate in", "limit in", "out", "rate out", "limit out", "")]
    for host, traffic in zip(cluster.hosts, now, strict=True):
        state = "" if host.is_alive and not traffic.is_cut else "cut off" if host.is_alive else "killed"
        earlier = None if before is None else before[host.number]
        lines.append(
            (
                host.name,
                host.address,
                _size(traffic.incoming_bytes),
                _rate(traffic.incoming_bytes, None if earlier is None else earlier.incoming_bytes, seconds),
                described(traffic.incoming),
                _size(traffic.outgoing_bytes),
                _rate(traffic.outgoing_bytes, None if earlier is None else earlier.outgoing_bytes, seconds),
                described(traffic.outgoing),
                state,
            )
        )
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return "\n".join(
        "  ".join(f"{word:>{width}}" for word, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _rate(now: int, before: int | None, seconds: float) -> str:
    if before is None:
        return "-"
    return f"{max(0, now - before) * 8 / seconds / 1e6:.1f} Mbit/s"

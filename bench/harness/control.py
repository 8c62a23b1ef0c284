"""The benchmark of the controller: streams on emulated hosts while a link is choked, or a host's processors are taken, static against adaptive.

All hosts read rows and send them to all, so that what a host can receive is the limit. The rates over time are compared with what the links
still allow. The set-up is that of the research on VAYU, on slower links, for these must be the limit and not this machine; the published
figures are in the report.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .once import points_job, watched
from .systems import BENCH
from .tables import table

WORKER = str(BENCH / "harness" / "control_worker.py")
MODES = {"off": "static", "on": "adaptive"}
CASES = {
    "keyed": "rows by key to `process`, one host's inbound link choked",
    "normal": "rows by key to `process`, all inbound links drawn from normal distributions",
    "shuffle": "paced rows over a shuffle edge, one host's inbound link choked",
    "plugs": "rows of smart plugs by key to `process` and to windows, whose rates become unlike",
    "drain": "rows by key to `process`, one host drained of its keys, and back",
    "cpu": "rows by key to `process`, which works; other programs take one host's processors",
}
#: The host that is choked: not that of worker 0, which also coordinates.
CHOKED = 1
#: Of what free links allow. A shuffle edge keeps what has no room elsewhere on the host that has read it, so rows as fast as they go would all stay there.
OFFERED = 0.9
#: Of a link's bytes: of 1514 in a full packet 1448 are TCP's payload, and acknowledgements of what goes the other way, one of 66 for two packets, come on top.
PAYLOAD = 1448 / (1514 + 66 / 2)
#: Of processors, for each row, where they shall be the limit.
WORK_US = 400
HOGS = 2
GOAL_SHARE, GOAL_S = 0.9, 5.0
GOALS = {"keyed": 1.5, "normal": 1.8, "plugs": 1.5, "cpu": 1.5}
#: For a command to the stream: keys move at a checkpoint, which waits behind rows.
COMMAND_S = 60
#: A change is reached when the mean of so many seconds is.
STEADY_S = 3
TABLE_ROWS = 24
PUBLISHED = (
    "Published (16 to 30 hosts, 940 Mbit/s, Java): with one inbound link at 400 Mbit/s static falls by almost 60 % and adaptive returns from 45 to 95 MB/s a host; at 200 "
    "Mbit/s static falls by 80 % and adaptive has about 3 times as much; with all links drawn from Normal(400, 300) adaptive gains more than 50 %; with rates of keys "
    "drawn from Normal(5, 5) more than 20 %."
)


@dataclass(frozen=True)
class Setting:
    hosts: int
    mbit: float  # what a host can send, and receive
    cpus: float  # of a host, where they are the limit
    row_bytes: int
    phase_s: int
    seeds: int
    cases: tuple[str, ...] = tuple(CASES)


SETTINGS = {
    "full": Setting(8, 16.0, 0.2, 4096, 60, 3),
    "quick": Setting(8, 16.0, 0.2, 4096, 20, 1),
    "tiny": Setting(2, 16.0, 0.5, 4096, 1, 1, ("keyed", "shuffle")),
}


@dataclass(frozen=True)
class Point:
    """What `control_worker.py` is told."""

    edge: str
    controller: str
    row_bytes: int
    work_us: int
    rows_per_s: int
    seconds: int
    seed: int
    folder: str
    drawn_s: tuple[int, int]  # when the rates of plugs are drawn, and not alike


@dataclass(frozen=True)
class Phase:
    """What hosts can receive, as shares of their links, and what else happens, most of it to the choked one."""

    name: str
    inbound: tuple[float, ...]
    hogs: int = 0  # other programs that run there
    is_drained: bool = False


def phases(case: str, setting: Setting, seed: int) -> list[Phase]:
    """What happens to the hosts in turn."""
    hosts = setting.hosts
    free = Phase("free", (1.0,) * hosts)

    def choked(share: float) -> Phase:
        return Phase(f"{share:.0%}", tuple(share if host == CHOKED else 1.0 for host in range(hosts)))

    def drawn(mean: float, deviation: float) -> Phase:
        # Cut at both ends; how the published draws were cut is not told.
        shares = tuple(min(max(rng.gauss(mean, deviation), 0.05), 1.0) for _ in range(hosts))
        return Phase(f"Normal({mean:.0%}, {deviation:.0%})", shares)

    if case == "cpu":
        return [free, Phase(f"{HOGS} programs", free.inbound, HOGS), free]
    if case == "drain":
        return [free, Phase("drained", free.inbound, is_drained=True), free]
    if case == "plugs":
        return [Phase(name, free.inbound) for name in ("alike", "Normal(5, 5)", "alike")]
    if case == "normal":
        rng = random.Random(seed)
        return [free, drawn(0.74, 0.21), drawn(0.43, 0.32), free]
    return [free, choked(0.4), choked(0.2), free]


def possible(case: str, phase: Phase, setting: Setting) -> float | None:
    """What the links allow, or what is offered; None where processors are the limit."""
    if case == "cpu":
        return None
    if case == "shuffle":
        return offered(setting)
    # A drained host reads as much as before, and gets nothing.
    return allowed(
        [share for host, share in enumerate(phase.inbound) if not (phase.is_drained and host == CHOKED)], setting
    )


def offered(setting: Setting) -> float:
    """Bytes of paced rows per second."""
    return OFFERED * allowed((1.0,) * setting.hosts, setting)


def allowed(inbound: Sequence[float], setting: Setting) -> float:
    """Bytes of rows per second that the links allow if buckets are where they should be: each host reads as much as any, and what it keeps crosses no link.

    What hosts receive is a share of (H - 1) / H of all rows, and is at most the sum of what their links carry besides headers of packets.
    """
    hosts = setting.hosts
    return sum(inbound) * setting.mbit * 1e6 / 8 * PAYLOAD * hosts / (hosts - 1)


class Weather:
    """Makes the phases happen to a cluster, from when the rows begin; the times at which they did, and what commands said."""

    def __init__(
        self, cluster: Any, given: Sequence[Phase], setting: Setting, is_shaped: bool, mode: str, run_folder: str
    ) -> None:
        self.changes: list[float] = []
        self.said: list[str] = []
        self._mode, self._run_folder, self._is_drained = mode, run_folder, False
        self._cluster, self._phases, self._setting, self._is_shaped = cluster, given, setting, is_shaped
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._hogs: list[subprocess.Popen[bytes]] = []

    def begin(self, begun: float) -> None:
        self._thread = threading.Thread(target=self._run, args=(begun,))
        self._thread.start()

    def end(self) -> None:
        """All is as it was before."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._apply(Phase("free", (1.0,) * self._setting.hosts))

    def _run(self, begun: float) -> None:
        for number, phase in enumerate(self._phases):
            if self._over.wait(max(begun + number * self._setting.phase_s - time.monotonic(), 0)):
                return
            self.changes.append(time.monotonic() - begun)
            self._apply(phase)
            if phase.is_drained != self._is_drained:
                self._drain(phase.is_drained)

    def _command(self, *words: str) -> str:
        """What a command to the stream prints, which it must get on the host of worker 0."""
        environment = {**os.environ, "XDG_RUNTIME_DIR": self._run_folder}
        command = [*self._cluster.prefix(0), sys.executable, "-m", "tidemill", *words, "--timeout", f"{COMMAND_S}s"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return (done.stdout if done.returncode == 0 else done.stderr).strip().partition("\n")[0]

    def _drain(self, is_drained: bool) -> None:
        """Takes all keys from the choked host, or gives it some back; the controller gives them by itself."""
        host = self._cluster.hosts[CHOKED].name
        if is_drained:
            self.said.append(self._command("drain", host))
        else:
            self._command("drain", host, "--undo")
            if self._mode == "off":
                self.said.append(self._command("balance"))
        self._is_drained = is_drained

    def _apply(self, phase: Phase) -> None:
        if self._is_shaped:
            for host, share in enumerate(phase.inbound):
                self._cluster.set(host, incoming=f"{share * self._setting.mbit * 1000:.0f}kbit")
        while len(self._hogs) > phase.hogs:
            hog = self._hogs.pop()
            # With what it has started in the host's own process namespace.
            os.killpg(hog.pid, signal.SIGKILL)
            hog.wait()
        while len(self._hogs) < phase.hogs:
            self._hogs.append(hog_on(self._cluster, CHOKED))


def hog_on(cluster: Any, host: int) -> subprocess.Popen[bytes]:
    """Starts a program that takes what it gets of a host's processors."""
    join = ["sh", "-c", 'echo 0 > "$0" && exec "$@"', cluster.hosts[host].cpu_group[0]]
    return subprocess.Popen(
        [*join, *cluster.prefix(host), sys.executable, "-c", "while True: pass"], start_new_session=True
    )


def measure(name: str, cases: Sequence[str] | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs all cases, or those named in `cases`, static and adaptive in turn; the raw results."""
    setting = SETTINGS[name]
    found: dict[str, Any] = {"setting": asdict(setting), "cases": {}, "failures": {}, "missing": {}}
    for case in CASES if cases else setting.cases:
        if cases and not any(part in case for part in cases):
            continue
        try:
            found["cases"][case] = measure_case(case, setting, found["failures"], say)
        except CannotRun as error:
            found["missing"][case] = str(error)
            say(f"control, {case} is left out: {error}")
    return found


class CannotRun(Exception):
    """This machine has no emulated hosts, or none with processors of their own."""


@contextlib.contextmanager
def cluster_of(case: str, setting: Setting) -> Iterator[Any]:
    from tidemill import hosts

    limits: dict[str, Any] = {"cpus": setting.cpus} if case == "cpu" else {"bandwidth": f"{setting.mbit:g}mbit"}
    try:
        cluster = hosts.up(setting.hosts, name=f"bench-{os.getpid()}", **limits)
    except hosts.HostsError as error:
        raise CannotRun(str(error)) from None
    with cluster:
        yield cluster


def measure_case(
    case: str, setting: Setting, failures: dict[str, str], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    runs = []
    with cluster_of(case, setting) as cluster:
        for seed in range(setting.seeds):
            given = phases(case, setting, seed)
            # Take turns at going first, with cold caches.
            for mode in (*MODES,) if seed % 2 == 0 else (*reversed(MODES),):
                result, failure = run(cluster, case, mode, given, setting, seed)
                if failure:
                    failures[f"{case}, {MODES[mode]}, seed {seed}"] = failure
                    say(f"control, {case}, {MODES[mode]}, seed {seed}: {failure}")
                else:
                    runs.append(result)
                    rate = statistics.mean(result["rates"]) / 1e6
                    say(f"control, {case}, {MODES[mode]}, seed {seed}: {rate:.1f} MB/s on average")
    return runs


def own_folders(cluster: Any, folder: str) -> str:
    """Gives each host a folder of its own under one name, where commands find the stream: hosts number processes alike."""
    os.mkdir(folder)
    for host in range(len(cluster.hosts)):
        subprocess.run([*cluster.prefix(host), "mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    return folder


def run(
    cluster: Any, case: str, mode: str, given: list[Phase], setting: Setting, seed: int
) -> tuple[dict[str, Any], str | None]:
    """What the workers told of one run, and why there is nothing."""
    seconds = setting.phase_s * len(given)
    said: deque[str] = deque(maxlen=5)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tidemill-control-") as folder:
        weather = Weather(cluster, given, setting, case != "cpu", mode, own_folders(cluster, f"{folder}/run"))
        edge = case if case in ("shuffle", "plugs") else "keyed"
        work_us = WORK_US if case == "cpu" else 0
        rows_per_s = round(offered(setting) / setting.row_bytes) if case == "shuffle" else 0
        drawn_s = (setting.phase_s, 2 * setting.phase_s)
        point = Point(edge, mode, setting.row_bytes, work_us, rows_per_s, seconds, seed, folder, drawn_s)
        options = ["--on", cluster.name, "-n", str(setting.hosts), "--threads", "1"]
        with watched(points_job(WORKER, options, True, [point]), seconds + 600) as (process, output, watch):
            try:
                for line in output:
                    if line.startswith('{"begun"'):
                        weather.begin(json.loads(line)["begun"])
                    elif line.startswith('{"rates"'):
                        found = json.loads(line)
                    else:
                        said.append(line.strip())
                code = process.wait()
            finally:
                weather.end()
    if not found or code != 0:
        return {}, watch.killed_because or " | ".join(said) or f"exit code {code}, no output"
    return {
        "mode": mode,
        "seed": seed,
        "phases": [asdict(phase) for phase in given],
        "changes_s": weather.changes,
        "said": weather.said,
        **found,
    }, None


# --- the report ------------------------------------------------------------------------------------------------------
def settled(run: dict[str, Any], number: int, phase_s: int, what: str = "rates") -> float:
    """The median of the second half of a phase."""
    return statistics.median(run[what][number * phase_s + phase_s // 2 : (number + 1) * phase_s])


def fullest(run: dict[str, Any], number: int, phase_s: int) -> float:
    """What the host took that took most in the second half of a phase, over the mean of all."""
    half = slice(number * phase_s + phase_s // 2, (number + 1) * phase_s)
    taken = [sum(rates[half]) for rates in run["by_host"]]
    return max(taken) / max(statistics.mean(taken), 1e-9)


def reached_s(run: dict[str, Any], number: int, phase_s: int, rate: float) -> float | None:
    """Seconds after a change until the mean rate of some seconds is at least `rate`; None if it never is."""
    of = run["rates"][number * phase_s : (number + 1) * phase_s]
    means = [statistics.mean(of[at : at + STEADY_S]) for at in range(len(of) - STEADY_S + 1)]
    return next((float(at) for at, mean in enumerate(means) if mean >= rate), None)


def section(control: dict[str, Any]) -> str:
    """The tables of a report."""
    setting = Setting(**control["setting"])
    parts = [
        "## Controller",
        "",
        f"{setting.hosts} emulated hosts of one worker, links of {setting.mbit:g} Mbit/s, rows of {setting.row_bytes} bytes from all to all; "
        f'phases of {setting.phase_s} s. *Static*: `controller="off"`; *adaptive*: `controller="on"`. Rates are MB/s of rows of all hosts together, medians of the second '
        "half of a phase. *Possible*: what the links allow besides headers, or what is offered. *Fullest*: the rows of the host that took most, as a multiple of the mean: without moves no more passes than "
        "what is possible divided by that. *Reached*: seconds after a change until "
        f"{GOAL_SHARE:.0%} of that is there. *CPU*: the share of this machine's processors that the workers used; where it is high, processors were the limit, not links.",
        "",
        PUBLISHED,
        "",
    ]
    for case, runs in control["cases"].items():
        parts += [f"### {CASES[case][0].upper()}{CASES[case][1:]}", ""]
        parts += (
            [*summary(case, runs, setting), "", *over_time(runs, setting), ""] if pairs(runs) else ["No result.", ""]
        )
    parts += [f"- left out, {case}: {why}" for case, why in control["missing"].items()]
    parts += [f"- {name}: {why}" for name, why in control["failures"].items()]
    return "\n".join([*parts, ""])


def pairs(runs: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Static and adaptive runs of the same seed."""
    by_seed = {(run["mode"], run["seed"]): run for run in runs}
    return [
        (by_seed["off", seed], run)
        for (mode, seed), run in by_seed.items()
        if mode == "on" and ("off", seed) in by_seed
    ]


def summary(case: str, runs: list[dict[str, Any]], setting: Setting) -> list[str]:
    """A row for each phase of each seed, and what of the goals was reached."""
    header = [
        "phase",
        "possible",
        "static",
        "of it",
        "fullest",
        "adaptive",
        "of it",
        "fullest",
        "gain",
        "reached",
        "CPU static",
        "CPU adaptive",
    ]
    rows, gains = [], []
    for static, adaptive in pairs(runs):
        for number, told in enumerate(static["phases"]):
            phase = Phase(**told)
            most = possible(case, phase, setting)
            before, after = (settled(one, number, setting.phase_s) for one in (static, adaptive))
            # At first and at last all is well.
            if 0 < number < len(static["phases"]) - 1:
                gains.append(after / before if before else float("inf"))
            at = None if most is None else reached_s(adaptive, number, setting.phase_s, GOAL_SHARE * most)
            rows.append(
                [
                    f"{phase.name}, seed {static['seed']}",
                    "-" if most is None else f"{most / 1e6:.1f}",
                    f"{before / 1e6:.1f}",
                    "-" if most is None else f"{before / most:.0%}",
                    f"{fullest(static, number, setting.phase_s):.2f}",
                    f"{after / 1e6:.1f}",
                    "-" if most is None else f"{after / most:.0%}",
                    f"{fullest(adaptive, number, setting.phase_s):.2f}",
                    f"{after / before:.2f}" if before else "-",
                    "-" if at is None else f"{at:.0f} s",
                    *(f"{cpu_share(settled(one, number, setting.phase_s, 'cpu')):.0%}" for one in (static, adaptive)),
                ]
            )
    lines = [table(header, rows), ""]
    if case in GOALS and gains:
        lines.append(
            f"- Goal: {GOALS[case]} times static between the first phase and the last; median of phases and seeds: {statistics.median(gains):.2f}."
        )
    for run in runs:
        what = f"{MODES[run['mode']]}, seed {run['seed']}"
        lines += [f"- {what}: {line}." for line in run.get("said", ())]
        lines += [f"- {what}, {at:.0f} s: {line}" for at, line in run["decisions"] if line.startswith("the controller")]
        if run["rows"] != run["taken"]:
            lines.append(f"- {what}: {run['rows']:,} rows were read, and {run['taken']:,} taken.")
        if run.get("late"):
            lines.append(f"- {what}: {run['late']:,} of {run['rows']:,} rows came too late for their windows.")
    if case != "cpu":
        lines.append(f"- Goal: {GOAL_SHARE:.0%} of what is possible, within {GOAL_S:.0f} s of a change.")
    return lines


def cpu_share(processors: float) -> float:
    return processors / (os.cpu_count() or 1)


def over_time(runs: list[dict[str, Any]], setting: Setting) -> list[str]:
    """Rates of the first seed over time, with the processors that they took."""
    static, adaptive = pairs(runs)[0]
    seconds = len(static["rates"])
    step = max(-(-seconds // TABLE_ROWS), 1)
    rows = []
    for at in range(0, seconds, step):
        cells = []
        for one in (static, adaptive):
            rate, cpu = (statistics.mean(one[what][at : at + step]) for what in ("rates", "cpu"))
            cells += [f"{rate / 1e6:.1f}", f"{cpu_share(cpu):.0%}"]
        rows.append([f"{at} s, {static['phases'][at // setting.phase_s]['name']}", *cells])
    return [f"Seed {static['seed']} over time:", "", table(["from", "static", "CPU", "adaptive", "CPU"], rows)]


# --- the plot --------------------------------------------------------------------------------------------------------
def plot(control: dict[str, Any], stem: Path) -> list[Path]:
    """Draws rates over time, a panel for each case, of the first seed."""
    drawn = {case: pairs(runs)[0] for case, runs in control["cases"].items() if pairs(runs)}
    if not drawn:
        return []
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    setting = Setting(**control["setting"])
    figure, axes = pyplot.subplots(len(drawn), 1, figsize=(9, 3 * len(drawn)), squeeze=False, layout="constrained")
    for axis, (case, of) in zip(axes.flat, drawn.items(), strict=True):
        for one in of:
            axis.plot([rate / 1e6 for rate in one["rates"]], label=MODES[one["mode"]])
        for number, told in enumerate(of[0]["phases"]):
            start, end = number * setting.phase_s, (number + 1) * setting.phase_s
            most = possible(case, Phase(**told), setting)
            if most is not None:
                axis.plot([start, end], [most / 1e6, most / 1e6], color="grey", linestyle="--", linewidth=0.8)
            axis.axvline(start, color="grey", linewidth=0.5)
            axis.text(start, 0, f" {told['name']}", fontsize=7)
        axis.set(title=CASES[case].replace("`", ""), xlabel="s", ylabel="MB/s", ylim=(0, None))
        axis.legend(fontsize=7)
    written = [stem.with_name(f"{stem.name}-control{suffix}") for suffix in (".svg", ".png")]
    for path in written:
        figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return written

"""``tidemill top --why``: causes of slowness, and the decisions of the controller."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tidemill.apps._top_cluster import Cluster, Decision, host_names
from tidemill.apps._top_text import Screen, percent, short, table

__all__ = ["decision_lines", "why_lines"]

_MODES = {
    "off": "off, it decides nothing",
    "advise": "advise, it says what it would move and moves nothing",
    "on": "on, it moves buckets by itself",
}
_OUTCOMES = {
    "advised": "advised",
    "moving": "moving",
    "judging": "moved; its rate is watched",
    "kept": "kept",
    "rolled_back": "rolled back: it was slower",
    "failed": "failed",
}
_DECISIONS = ("ago", "buckets", "predicted", "measured", "outcome")
#: Texts are not wrapped at less than this, however narrow the terminal.
_WIDTH_MIN = 40


def why_lines(
    cluster: Cluster, running_s: float, screen: Screen, late: Sequence[str] = (), rounds: Sequence[str] = ()
) -> list[str]:
    """Return the causes with their evidence, heaviest first, who is `late` to collectives, how `rounds` go, and the decisions, newest
    first; the job has run for `running_s` seconds.
    """
    lines = _causes(cluster, screen)
    for sentence in late:
        lines += _text(f"late: {sentence}", 2, screen, hanging=6)
    for sentence in rounds:
        lines += _text(f"rounds: {sentence}", 2, screen, hanging=8)
    lines += _text(f"controller: {_MODES.get(cluster.controller, cluster.controller)}", 2, screen)
    if cluster.controller != "on" and any(cause.remedy is not None for cause in cluster.causes):
        lines += _text('to move buckets: tidemill balance, or write_stream(controller="on")', 2, screen)
    return lines + decision_lines(cluster.decisions, running_s, screen)


def _causes(cluster: Cluster, screen: Screen) -> list[str]:
    if not cluster.causes:
        return _text(f"Nothing holds the job up: {_load(cluster)}", 2, screen)
    lines = _text(
        "what holds the job up, with the share of the sources' time that is waited for it, over the last "
        f"{short(cluster.span_s)}",
        2,
        screen,
    )
    for cause in cluster.causes:
        lines += _text(f"{percent(min(cause.weight, 1)):>4}  {cause.kind}: {cause.sentence}", 2, screen, hanging=6)
        for evidence in cause.evidence:
            lines += _text(evidence, 10, screen, hanging=2)
    return lines


def _load(cluster: Cluster) -> str:
    """Return how busy hosts are, and the fullest link."""
    names = host_names(cluster)
    used = [(host.cpus_used / host.cores if host.cores > 0 else 0.0, at) for at, host in enumerate(cluster.hosts)]
    if not used:
        return "no host has reported yet"
    (least, _), (most, at) = min(used), max(used)
    if len(used) == 1:
        return f"{names[0]} uses {percent(most)} of its CPUs"
    text = f"hosts use {percent(least)} to {percent(most)} of their CPUs, {names[at]} most"
    full = [(rate / capacity, at, way) for rate, capacity, at, way in _ways(cluster) if capacity]
    if not full:
        return f"{text}; no link has been full"
    share, at, way = max(full)
    return f"{text}; the fullest link is {names[at]}'s {way} one, {percent(share)} of what it can carry"


def _ways(cluster: Cluster) -> list[tuple[float, float | None, int, str]]:
    """Return rate, capacity, host and direction of the hosts' traffic."""
    return [
        way
        for at, host in enumerate(cluster.hosts)
        for way in (
            (host.in_bytes_s, host.in_capacity, at, "inbound"),
            (host.out_bytes_s, host.out_capacity, at, "outbound"),
        )
    ]


def decision_lines(decisions: list[Decision], now_s: float, screen: Screen) -> list[str]:
    """Return a table of decisions, newest first; `now_s` is the time on the clock that theirs are of."""
    if not decisions:
        return ["  it has decided nothing yet"]
    newest = decisions[::-1]
    rows = [_DECISIONS, *(_row(decision, now_s) for decision in newest)]
    heading, *told = table(rows, texts=(4,))
    lines = [heading]
    for line, decision in zip(told, newest, strict=True):
        lines += [line, *_text(decision.sentence, 6, screen)]
    return lines


def _row(decision: Decision, now_s: float) -> tuple[str, ...]:
    """Return the cells of a table row, below `_DECISIONS`."""
    outcome = _OUTCOMES.get(decision.outcome.state, decision.outcome.state)
    return (
        short(max(now_s - decision.at_s, 0)),
        f"{decision.buckets:,}",
        _gain(decision.predicted),
        "" if decision.measured is None else _gain(decision.measured),
        outcome if decision.outcome.reason is None else f"{outcome}: {decision.outcome.reason}",
    )


def _gain(gain: float) -> str:
    return f"{100 * gain:+.0f}%"


def _text(text: str, indent: int, screen: Screen, hanging: int = 0) -> list[str]:
    """Break a text into lines; all but the first are indented by `hanging` more."""
    return textwrap.wrap(
        text,
        max(screen.width, _WIDTH_MIN),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_on_hyphens=False,
    )

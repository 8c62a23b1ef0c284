"""A generated animated market, which the viewer shows if there is nothing else to show."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np

from tidemill.viz._write import FrameWriter

__all__ = ["SECTORS", "write_market"]

SECTORS = (
    "Energy", "Materials", "Industrials", "Discretionary", "Staples", "Health care", "Financials", "Technology", "Utilities",
)  # fmt: skip

#: Bins of the relative change in value.
_BINS = ("fell over 10 %", "fell over 2 %", "stayed", "rose over 2 %", "rose over 10 %")
_SIDE = 24


def write_market(folder: Path, points: int = 600, frames: int = 120, seed: int = 0, mode: str = "w") -> None:
    """Write clusters that drift, with a crash in the middle that pulls them together, and points that come and go."""
    rng = np.random.default_rng(seed)
    sector = rng.integers(len(SECTORS), size=points)
    # Evenly spaced on a sphere, by steps of the golden angle.
    turn = np.arange(len(SECTORS)) * np.pi * (3 - np.sqrt(5))
    height = 1 - 2 * (np.arange(len(SECTORS)) + 0.5) / len(SECTORS)
    width = np.sqrt(1 - height**2)
    home = 3 * np.column_stack([width * np.cos(turn), height, width * np.sin(turn)])
    spread = rng.normal(scale=0.55, size=(points, 3)) * rng.gamma(2.0, 0.5, size=(points, 1))
    speed = rng.normal(scale=0.06, size=(points, 3))
    sway = rng.uniform(0, 2 * np.pi, size=(points, 3))
    capital = np.exp(rng.normal(2.5, 1.1, size=points))
    begin = rng.integers(0, max(1, frames // 3), size=points) * (rng.random(points) < 0.1)
    end = frames - rng.integers(0, max(1, frames // 3), size=points) * (rng.random(points) < 0.1)
    tickers = np.array([f"{SECTORS[s][:2].upper()}{number:0{len(str(points))}}" for number, s in enumerate(sector)])
    labels = np.array([f"{SECTORS[s]} company {number}" for number, s in enumerate(sector)])
    glyphs = {str(tickers[0]): "star", str(tickers[1]): "diamond"}
    day = datetime.date(2006, 1, 2)
    categories: dict[str, tuple[str, ...]] = {"sector": (), "change": _BINS}
    with FrameWriter(folder, title="A generated market", glyphs=glyphs, categories=categories, mode=mode) as writer:
        for frame in range(frames):
            at = frame / max(1, frames - 1)
            crash = np.exp(-(((at - 0.55) / 0.08) ** 2))
            angle = 0.5 * at
            rotate = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
            move = 0.35 * np.sin(sway + 2 * np.pi * at * (1 + speed * 4))
            where = (home[sector] * (1 - 0.6 * crash) + (spread + move) * (1 + 0.4 * crash)) @ rotate
            change = rng.normal(scale=0.05, size=points) + 0.04 * np.sin(6 * at + sector) - 0.16 * crash
            capital = capital * (1 + 0.2 * change)
            here = (begin <= frame) & (frame < end)
            true = rng.gamma(4, 0.25, size=4000)
            shown = true * (1 + rng.normal(scale=0.08 + 0.12 * crash, size=4000))
            heat, _, _ = np.histogram2d(shown, true, bins=_SIDE, range=[[0, 2.5], [0, 2.5]])
            writer.write_frame(
                where[here],
                ids=tickers[here],
                labels=labels[here],
                time=day + datetime.timedelta(days=28 * frame),
                groups={
                    "sector": np.array(SECTORS)[sector[here]],
                    "change": np.array(_BINS)[np.digitize(change[here], [-0.1, -0.02, 0.02, 0.1])],
                },
                values={"capital": capital[here], "change in %": 100 * change[here]},
                metrics={"stress": 0.08 + 0.1 * crash + 0.005 * rng.random(), "fit": 0.95 - 0.25 * crash},
                heat_map=heat,
                heat_map_range=[[0, 2.5], [0, 2.5]],
            )

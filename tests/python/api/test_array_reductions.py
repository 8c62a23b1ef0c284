"""Reductions of arrays by name give NumPy's results, whether NumPy is called or not."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tidemill as tm

BY_NAME = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}


def reduced(how: str, messages: list[list[np.ndarray]], rounds: str | None) -> list[np.ndarray]:
    """Send the messages of each copy, and return what arrives."""

    def give(out: tm.graph.Output, context: tm.graph.Context) -> None:
        for message in messages[context.copy]:
            out.send(message)

    graph = tm.Graph()
    source = graph.source("give", give, schema="arrays", parallelism=len(messages))
    sink = graph.sink("take", lambda arrays, context: [np.array(array) for array in arrays], parallelism=1)
    graph.connect(source, sink, tm.exchange.reduce(how, rounds=rounds))
    arrived: list[np.ndarray] = graph.run()["take"][0]
    return arrived


def same(found: np.ndarray, expected: Any) -> None:
    expected = np.asarray(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    # Equal, or both NaN.
    assert bool(np.all((found == expected) | ((found != found) & (expected != expected))))


@pytest.mark.parametrize("rounds", [None, "strict"])
@pytest.mark.parametrize("how", list(BY_NAME))
@pytest.mark.parametrize(
    "dtype", ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", ">i4", ">f8"]
)
def test_types(dtype: str, how: str, rounds: str | None) -> None:
    """Small integers, exact in any order, that can overflow, and NaN."""
    rng = np.random.default_rng(5)
    kind = np.dtype(dtype).kind
    of_copies = []
    for _ in range(3):
        messages = [rng.integers(0, 7, size=(2, 3)).astype(dtype) * (30 if kind in "iu" else 1) for _ in range(2)]
        if kind in "fc":
            messages[1][0, rng.integers(3)] = np.nan
        of_copies.append([message.astype(dtype) for message in messages])
    combine = functools.partial(functools.reduce, BY_NAME[how])
    found = reduced(how, of_copies, rounds)
    if rounds is None:
        expected = [combine([message for messages in of_copies for message in messages])]
    else:
        expected = [combine([messages[n] for messages in of_copies]) for n in range(2)]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        same(one, other)


@pytest.mark.parametrize(
    "messages",
    [
        [np.arange(3), np.array([7])],
        [np.arange(3), np.arange(3) / 2],
        [np.float32(2), np.float32(3)],
        [np.empty((0, 4)), np.empty((0, 4))],
        [np.array(["2020-01-01", "2021-01-01"], "M8[D]"), np.array([3, 4], "m8[D]")],
    ],
    ids=["shapes", "types", "numbers", "empty", "times"],
)
def test_arrays_that_are_not_alike(messages: list[np.ndarray]) -> None:
    (found,) = reduced("sum", [[message] for message in messages], "strict")
    same(found, messages[0] + messages[1])


def test_arrays_that_cannot_be_added() -> None:
    with pytest.raises(tm.graph.GraphError, match="could not be broadcast"):
        reduced("sum", [[np.arange(3)], [np.arange(4)]], "strict")

"""Points by row, by id and by text, in folders whose names are never read as a whole; and the server's responses."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemill.viz import FrameError, FrameReader, FrameWriter, Server, _format, _texts

NAMES = st.lists(st.text("abAB1é ÉßKk", max_size=6), max_size=40)


def packed(parts: list[list[str]]) -> _texts.Texts:
    texts = _texts.Texts()
    for part in parts:
        texts.add("id", len(part), _format.pack_texts("id", part))
    return texts


@given(parts=st.lists(NAMES, max_size=3), wanted=st.text("abAB1é ", min_size=1, max_size=3), most=st.integers(1, 50))
def test_texts_are_found_as_one_by_one(parts: list[list[str]], wanted: str, most: int) -> None:
    """Catches a match across two strings, a wrong position in a second file, or a skipped last string of a piece."""
    whole = [name for part in parts for name in part]
    before = _texts._ROWS_AT_ONCE
    _texts._ROWS_AT_ONCE = 7
    try:
        texts = packed(parts)
        folded = wanted.lower()
        beginning = [row for row, name in enumerate(whole) if name.lower().startswith(folded)]
        assert texts.beginning(wanted, most) == beginning[:most]
        assert texts.having(wanted, most) == [row for row, name in enumerate(whole) if folded in name.lower()][:most]
        assert texts.all() == whole == [texts[row] for row in range(len(whole))]
        found = texts.rows_of([*whole, "none of them"])
        assert set(found) == set(whole) and all(whole.index(name) == row for name, row in found.items())
    finally:
        _texts._ROWS_AT_ONCE = before


def test_a_row_without_text_has_none() -> None:
    """Labels may begin with a later batch of points; rows of the first must not get those of the second."""
    texts = _texts.Texts()
    texts.add("label", 3, {})
    texts.add("label", 2, _format.pack_texts("label", ["one", "two"]))
    texts.add("label", 1, {})
    assert texts.all() == ["", "", "", "one", "two", ""] == [texts[row] for row in range(6)]
    with pytest.raises(FrameError, match="do not fit together"):
        texts.add("label", 3, _format.pack_texts("label", ["one", "two"]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with FrameWriter(tmp_path / "map") as writer:
        names = ["AAPL", "MSFT", "BA"]
        writer.write_frame(
            np.eye(3), ids=names, labels=["Apple", "Microsoft", "Boeing"], groups={"kind": ["a", "", "b"]}
        )
        writer.write_frame(np.eye(3)[:2], ids=["BAE", "MSFT"], groups={"kind": ["b", "b"], "late": ["x", "y"]})
    return tmp_path / "map"


def asked(server: Server, path: str, **query: str) -> Any:
    base, _, token = server.url.partition("/?token=")
    request = urllib.request.Request(
        f"{base}/api/{path}?{urllib.parse.urlencode(query)}", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request) as answer:
        return answer.read()


def test_the_server_tells_points_and_parts_of_files(folder: Path) -> None:
    """The page knows no points by itself: the response must be that of the point it asks for, in any way."""
    with Server(folder) as server:
        told = lambda **query: json.loads(asked(server, "points", **query))  # noqa: E731
        assert told(rows="1,2,99") == [
            {"row": 1, "id": "MSFT", "label": "Microsoft", "codes": {}},
            {"row": 2, "id": "BA", "label": "Boeing", "codes": {"kind": 1}},
        ]
        assert [point["row"] for point in told(ids='["BAE", "ba", "AAPL"]')] == [3, 0]
        assert [point["id"] for point in told(text="ba", most="5")] == ["BA", "BAE"]
        assert [point["id"] for point in told(text="O", most="5")] == ["MSFT", "BA"]
        assert told(text="zz", most="5") == told(text=" ", most="5") == []
        part = asked(server, "files/points-000000.safetensors", tensors='["group.kind", "group.none"]')
        header = json.loads(part[8 : 8 + int.from_bytes(part[:8], "little")])
        assert list(header) == ["group.kind"] and part[-3:] == bytes([0, 255, 1])
        for query in ({"rows": "1;2"}, {"rows": ",".join("1" * 300)}, {"ids": "MSFT"}, {"ids": "[1]"}, {"most": "x"}):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                told(**query)


def test_points_without_ids_are_found_by_number(tmp_path: Path) -> None:
    with FrameWriter(tmp_path / "map") as writer:
        writer.write_frame(np.zeros((20, 3)), labels=[f"label {19 - row}" for row in range(20)])
    reader = FrameReader(tmp_path / "map")
    assert reader.find("7", 5) == [7, 2, 12] and reader.id(3) == "3"
    assert reader.rows_of(["4", "04", "20", "x"]) == [4]

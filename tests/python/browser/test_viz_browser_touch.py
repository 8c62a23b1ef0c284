"""The viewer under fingers: one turns, two move and zoom, one draws the lasso."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browsed
import numpy as np
import pytest
from browsed import PHONE, Page
from tidemill.viz import Server

pytestmark = browsed.NEEDED
browser = browsed.browser
folder = browsed.market(points=200, frames=3)
server = browsed.server


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Page]:
    opened = Page(browser, server.url, **PHONE)
    opened.tab.keyboard.press("Escape")
    yield opened
    opened.close()


def looked(page: Page) -> tuple[Any, Any]:
    """The camera's place relative to its target, and the target, once all is at rest."""
    page.settled()
    state = np.array(page.get("tidemill.view().camera"))
    return state[:3] - state[3:], state[3:]


def drag(page: Page, *ways: tuple[tuple[float, float], tuple[float, float]]) -> None:
    """Move each finger from one place to another."""
    page.touch("Start", *(begin for begin, _ in ways))
    for part in (0.25, 0.5, 0.75, 1.0):
        page.touch("Move", *((a + (c - a) * part, b + (d - b) * part) for (a, b), (c, d) in ways))
    page.touch("End")


def test_fingers_turn_zoom_and_move(page: Page) -> None:
    """None of that may choose a point."""
    away, target = looked(page)
    drag(page, ((120, 400), (260, 420)))
    turned, same = looked(page)
    np.testing.assert_allclose(np.linalg.norm(turned), np.linalg.norm(away), rtol=1e-6)
    np.testing.assert_allclose(same, target, atol=1e-9)
    assert np.linalg.norm(turned - away) > 0.3
    # Spreading two fingers zooms in.
    drag(page, ((180, 400), (90, 400)), ((210, 400), (300, 400)))
    nearer, _ = looked(page)
    assert np.linalg.norm(nearer) < 0.6 * np.linalg.norm(turned)
    drag(page, ((90, 400), (180, 400)), ((300, 400), (210, 400)))
    # Moving side by side, they pan.
    before, target = looked(page)
    drag(page, ((150, 350), (150, 450)), ((230, 350), (230, 450)))
    after, moved = looked(page)
    assert np.linalg.norm(moved - target) > 0.1
    np.testing.assert_allclose(np.linalg.norm(after), np.linalg.norm(before), rtol=0.05)
    assert page.get("tidemill.chosen.rows.length") == 0


def test_a_finger_draws_a_lasso_and_a_second_one_gives_it_up(page: Page, folder: Path) -> None:
    def circle() -> list[tuple[float, float]]:
        return [(195 + 170 * np.cos(a), 470 + 220 * np.sin(a)) for a in np.linspace(0, 6, 20)]

    camera = page.get("tidemill.view().camera")
    page.tab.tap("#lasso")
    page.touch("Start", circle()[0])
    for at in circle()[1:10]:
        page.touch("Move", at)
    # The browser merges moves that come faster than frames.
    page.until("() => tidemill.over.lasso.length >= 6")
    assert (page.over(*page.get("tidemill.over.lasso.slice(4, 6)"), 3)[:, 3] > 0).any()
    page.touch("Start", circle()[9], (20, 500))
    assert page.get("tidemill.over.lasso.length") == 0
    page.touch("End")
    assert page.tab.locator("#name-group").count() == 0 and page.get("tidemill.view().camera") == camera
    page.touch("Start", circle()[0])
    for at in circle()[1:]:
        page.touch("Move", at)
    page.touch("End")
    page.tab.wait_for_selector("#name-group")
    page.picture("lasso")
    page.tab.fill("#group-name", "round")
    page.tab.press("#group-name", "Enter")
    page.until("() => tidemill.dataset.selections.length === 1")
    assert len(json.loads((folder / "selections.json").read_text())[0]["rows"]) > 20

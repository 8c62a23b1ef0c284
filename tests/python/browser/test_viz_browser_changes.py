"""What changes while a page is open: frames that are rewritten, a server that goes away and comes back, groups that
others make.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import browsed
import launched
import numpy as np
import pytest
from browsed import TOKEN, Page
from tidemill.viz import FrameReader, FrameWriter, Server, _write
from tidemill.viz._demo import write_market

pytestmark = browsed.NEEDED
browser = browsed.browser
folder = browsed.market(points=120, frames=6)
server = browsed.server


def test_frames_that_are_written_anew_are_shown_and_not_mixed_with_the_old(
    browser: Any, server: Server, folder: Path
) -> None:
    """Old and new files have the same names: a page that went on would silently show points where none are."""
    page = Page(browser, server.url)
    page.tab.locator("#scrub").fill("3")
    page.tab.select_option("#colour", "capital")
    page.settled()
    page.get("window.old = true")
    # More bytes than before, so that the length of the index reveals nothing.
    write_market(folder, points=150, frames=9, seed=7)
    page.until("() => !window.old && window.tidemill?.frames === 9")
    page.tab.wait_for_selector("#notice:has-text('The frames were rewritten')")
    page.settled()
    # The view has stayed.
    assert page.get("[tidemill.playback.position, tidemill.colouring.name]") == [3, "capital"]
    reader = FrameReader(folder)
    here = page.get("tidemill.chosen.choose([3, 5]), 0")
    page.until("() => tidemill.chosen.trails.places")
    places = page.get("[...tidemill.chosen.trails.places].map(x => Number.isNaN(x) ? null : x)")
    np.testing.assert_allclose(np.array(places, float).reshape(9, 2, 3), reader.trajectories([3, 5]), atol=1e-5)
    assert here == 0 and page.get("tidemill.dataset.points") == reader.points
    # The page said so once, and does not repeat it after a manual reload.
    page.tab.reload()
    page.settled()
    assert page.tab.is_hidden("#notice")
    page.close("409")


def test_the_first_frame_may_come_later_with_groups_and_marks(browser: Any, tmp_path: Path) -> None:
    """As for a page that reloads while frames are being written: without colors and glyphs it would look like another."""
    with FrameWriter(tmp_path / "map", glyphs={"b": "star"}) as writer, Server(tmp_path / "map") as server:
        page = Page(browser, server.url, wait=False)
        page.tab.wait_for_selector("#blank:has-text('There is no frame yet')")
        writer.write_frame([[1, 2, 3], [3, 2, 1]], ids=["a", "b"], groups={"kind": ["x", "y"]})
        # The page says that there is nothing before its program is ready for questions.
        page.until("() => window.tidemill !== undefined")
        page.until("() => tidemill.chosen.marked.join() === '1' && tidemill.chosen.rows.join() === '1'")
        page.settled()
        assert page.get("tidemill.colouring.name") == "kind"
        page.close()


def test_a_server_that_was_gone_is_told_of_and_followed_again(browser: Any, folder: Path) -> None:
    """A notice that disappears after some seconds leaves a page that looks as if nothing were new."""
    with Server(folder, token=TOKEN) as server:
        page = Page(browser, server.url)
        port = server._http.server_address[1]
    page.tab.wait_for_selector("#trouble:has-text('Updates have stopped: the server does not answer')")
    page.picture("trouble")
    with Server(folder, token=TOKEN, port=port):
        page.until("() => document.querySelector('#trouble').textContent === ''")
        with FrameWriter(folder, mode="a") as writer:
            writer.write_frame([[0, 0, 0]], ids=["NEW"], time="later")
        page.until("() => tidemill.frames === 7")
        page.close("net::ERR_")


def test_an_open_page_does_not_keep_the_command_from_ending(browser: Any, folder: Path) -> None:
    """A page keeps connections open, and a request that waits for news."""
    running = launched.start("view", folder, "--token", TOKEN)
    assert running.stdout is not None
    page = Page(browser, running.stdout.readline().decode().split()[-1])
    page.tab.click("#play")
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=launched.PATIENCE_S)
    assert (running.returncode, errors) == (0, b"")
    page.tab.wait_for_selector("#trouble:has-text('Updates have stopped')")
    page.close("net::ERR_")


def test_a_frame_that_was_lost_on_the_way_comes_later(browser: Any, server: Server, folder: Path) -> None:
    """A frame that failed once failed for good: it stayed empty until the page was reloaded."""
    page = Page(browser, server.url, wait=False)
    lost: list[str] = []

    def lose(route: Any) -> None:
        lost.append(route.request.url)
        if len(lost) > 1:
            route.continue_()
        else:
            route.abort()

    page.tab.route("**/files/frame-000005*", lose)
    page.settled()
    page.tab.keyboard.press("End")
    page.settled()
    assert len(lost) == 2 and page.tab.inner_text("#time") == FrameReader(folder)[5].time
    page.close("ERR_FAILED")


def test_what_somebody_has_gone_down_to_outlives_a_late_answer(browser: Any, server: Server) -> None:
    """The first match of a later keystroke took its place, and Enter chose that one."""
    page = Page(browser, server.url)
    page.tab.fill("#query", "te")
    page.tab.wait_for_selector("#found-1")
    held: list[Any] = []
    page.tab.route("**/points?text=te0*", lambda route: held.append(route))
    page.tab.keyboard.type("0")
    while not held:
        page.tab.wait_for_timeout(20)
    page.tab.keyboard.press("ArrowDown")
    name = page.tab.inner_text("#found .at span")
    with page.tab.expect_response("**/points?text=te0*"):
        held[0].continue_()
    page.tab.wait_for_timeout(100)
    assert page.tab.inner_text("#found .at span") == name != page.tab.inner_text("#found-0 span")
    page.tab.keyboard.press("Enter")
    page.until(f"() => tidemill.chosen.rows.some((row) => tidemill.id(row) === '{name}')")
    page.close()


def test_groups_of_two_pages_do_not_lose_each_other(browser: Any, server: Server, folder: Path) -> None:
    """Each page knows the groups from when it was opened: saving must not overwrite all the others."""
    one, two = Page(browser, server.url), Page(browser, server.url)
    for page, name, row in ((one, "first / of two", 1), (two, "second", 2), (one, "third?", 3)):
        page.tab.keyboard.press("Escape")
        page.get(f"tidemill.chosen.choose([{row}])")
        page.tab.keyboard.press("g")
        page.tab.keyboard.press("Enter")
        page.tab.fill("#group-name", name)
        page.tab.keyboard.press("Enter")
        page.tab.wait_for_selector(f"#categories button[title='Show or hide {name}']")
    saved = [{"name": "first / of two", "rows": [1]}, {"name": "second", "rows": [2]}, {"name": "third?", "rows": [3]}]
    assert json.loads((folder / "selections.json").read_text()) == saved
    # The page that saved last knows the other's group, and may delete it.
    one.tab.hover("#categories li:has-text('second')")
    one.tab.click("button[title='Delete the group second']")
    one.until("() => tidemill.dataset.selections.length === 2")
    assert json.loads((folder / "selections.json").read_text()) == [saved[0], saved[2]]
    one.close()
    two.close()


def test_a_name_that_is_taken_replaces_no_group_without_asking(browser: Any, server: Server, folder: Path) -> None:
    """All readers share the groups: the one replaced may be somebody else's, made after the page was opened."""

    def saved() -> dict[str, list[int]]:
        return {group["name"]: group["rows"] for group in json.loads((folder / "selections.json").read_text())}

    def name(page: Page, row: int) -> None:
        page.tab.keyboard.press("Escape")
        page.get(f"tidemill.chosen.choose([{row}])")
        page.tab.keyboard.press("g")
        page.tab.keyboard.press("Enter")
        page.tab.fill("#group-name", "mine")
        page.tab.keyboard.press("Enter")

    one, two = Page(browser, server.url), Page(browser, server.url)
    name(one, 1)
    one.tab.wait_for_selector("#categories button[title='Show or hide mine']")
    name(two, 2)
    two.tab.wait_for_selector("#same-name:has-text('It has 1 point')")
    two.picture("same-name")
    # A reader who declines is asked for another name, and may keep the one typed.
    two.tab.click("#same-name button[value=cancel]")
    two.until("() => document.querySelector('#group-name')?.value === 'mine'")
    two.tab.keyboard.press("Enter")
    two.tab.wait_for_selector("#same-name")
    two.tab.keyboard.press("Enter")
    two.tab.wait_for_selector("#categories button[title='Show or hide mine 2']")
    assert saved() == {"mine": [1], "mine 2": [2]}
    name(one, 3)
    one.tab.click("#same-name .danger")
    one.until("() => tidemill.dataset.selections[0].rows[0] === 3")
    assert saved() == {"mine": [3], "mine 2": [2]}
    one.close()
    two.close()


def sampled(folder: Path, monkeypatch: pytest.MonkeyPatch, frames: int) -> Path:
    """Frames of many points, of which a page fetches a sample first."""
    monkeypatch.setattr(_write, "SAMPLE_FROM", 10_000)
    monkeypatch.setattr(_write, "_SAMPLE_POINTS", 2_000)
    with FrameWriter(folder / "many") as writer:
        for _ in range(frames):
            writer.write_frame(np.random.default_rng(0).normal(size=(40_000, 3)))
    return folder / "many"


def test_a_lasso_has_all_points_in_it_where_only_a_sample_has_come(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of whatever happened to be loaded is wrong, and nothing says so."""
    with Server(sampled(tmp_path, monkeypatch, frames=2)) as server:
        page = Page(browser, server.url, wait=False, hold="**/files/frame-*")
        page.until("() => window.tidemill?.drawn().drawn > 0 && tidemill.shown.available() < 40000")
        page.lasso((300, 100), (900, 100), (900, 640), (300, 640))
        page.tab.wait_for_selector("#notice:has-text('not all points have arrived')")
        assert page.tab.locator("#name-group").count() == 0
        page.until("() => tidemill.shown.available() < 40000")
        while page.tab.locator("#name-group").count() == 0:
            for route in page.held[:]:
                page.held.remove(route)
                route.continue_()
            page.tab.wait_for_timeout(20)
        title = page.tab.inner_text("#name-group-title")
        page.tab.fill("#group-name", "all")
        page.tab.keyboard.press("Enter")
        page.until("() => tidemill.dataset.selections.length === 1")
        rows = json.loads((tmp_path / "many" / "selections.json").read_text())[0]["rows"]
        assert title == f"{len(rows):,} points" and len(rows) > 30_000
        page.close()


def test_a_lasso_makes_no_group_of_a_frame_that_cannot_be_read(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sampled(tmp_path, monkeypatch, frames=1)
    (folder / "frame-000000.safetensors").write_bytes(b"damaged")
    with Server(folder) as server:
        page = Page(browser, server.url, wait=False)
        page.until("() => window.tidemill?.drawn().drawn > 0")
        page.lasso((300, 100), (900, 100), (900, 640), (300, 640))
        page.tab.wait_for_selector("#notice:has-text('No group was made')")
        assert page.tab.locator("#name-group").count() == 0
        page.close("status of 500")

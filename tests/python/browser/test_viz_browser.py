"""The viewer in a real browser: what a reader sees and does. Chromium shows it, without a graphics card.

`make setup-browser` installs Chromium. Pictures of all that is looked at lie in ``out/viewer``.
"""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import browsed
import launched
import numpy as np
import pytest
import tidemill as tm
from browsed import TOKEN, Page
from PIL import Image
from tidemill.viz import FrameError, FrameReader, FrameWriter, Server, _write, export_html

pytestmark = browsed.NEEDED
browser = browsed.browser
folder = browsed.market(points=300, frames=12)


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    """The address of a server in this process."""
    with Server(folder, token=TOKEN) as server:
        yield server.url


@pytest.fixture
def command_url(folder: Path) -> Iterator[str]:
    """The address of a server that `tidemill view` runs."""
    with browsed.viewed(folder, "--token", TOKEN) as url:
        yield url


@pytest.fixture
def size() -> dict[str, Any]:
    return browsed.DESKTOP


@pytest.fixture
def page(browser: Any, url: str, size: dict[str, Any]) -> Iterator[Page]:
    opened = Page(browser, url, **size)
    yield opened
    opened.close()


def projected(page: Page, at: Any) -> list[float]:
    """Where a place in the data appears on the screen."""
    where: list[float] = page.tab.evaluate(
        "at => { const s = tidemill.scene.screen(), m = s.matrix, p = tidemill.scene.toWorld(at);"
        " const dot = (i) => m[i] * p[0] + m[i + 4] * p[1] + m[i + 8] * p[2] + m[i + 12];"
        " return [(dot(0) / dot(3) + 1) / 2 * s.width, (1 - dot(1) / dot(3)) / 2 * s.height] }",
        np.asarray(at).tolist(),
    )
    return where


@browsed.SIZES
def test_points_are_drawn_where_they_are_and_groups_are_hidden(page: Page, folder: Path) -> None:
    """A mistake between file and screen would show no points, or points of the wrong groups."""
    page.picture("market")
    page.panel("legend")
    frame = FrameReader(folder)[0]
    assert page.colours() > 2000
    assert page.tab.inner_text("#status") == f"{len(frame.rows)} points"
    energy = frame.groups["sector"].count("Energy")
    page.tab.click("#categories button[title='Show or hide Energy']")
    page.settled()
    left = len(frame.rows) - energy
    page.until(f"() => document.querySelector('#status').textContent === '{left} of {len(frame.rows)} points'")
    page.tab.click("#categories button[title='Show only Energy, or all']")
    page.until(f"() => document.querySelector('#status').textContent === '{energy} of {len(frame.rows)} points'")
    page.settled()
    few = page.colours()
    page.tab.click("#categories button[title='Show only Energy, or all']")
    page.settled()
    assert page.colours() > 3 * few > 0


@browsed.SIZES
def test_it_plays_and_scrubs(page: Page, folder: Path) -> None:
    """Frames must come in order, and the time shown must be that of the frame shown."""
    reader = FrameReader(folder)
    page.tab.select_option("#speed", "30")
    page.tab.click("#play")
    page.until("() => tidemill.playback.position === 11 && !tidemill.playback.playing")
    page.settled()
    assert page.tab.inner_text("#time") == reader[11].time
    page.tab.locator("#scrub").fill("4.5")
    page.settled()
    assert page.get("[tidemill.playback.position, ...tidemill.loaded]") == [4.5, 4, 5]
    # Halfway between two frames is halfway between two places.
    row = int(np.intersect1d(reader[4].rows, reader[5].rows)[0])
    here, there = (frame.positions[list(frame.rows).index(row)] for frame in (reader[4], reader[5]))
    middle = page.get(f"tidemill.seen.spotOf({row})")
    wanted = projected(page, (here + there) / 2)
    assert abs(middle["x"] - wanted[0]) < 0.1 and abs(middle["y"] - wanted[1]) < 0.1
    page.tab.keyboard.press("Home")
    page.tab.keyboard.press(".")
    page.settled()
    assert page.tab.inner_text("#time") == reader[1].time


@browsed.SIZES
def test_points_are_found_by_name_and_by_pointer(page: Page, folder: Path) -> None:
    """Search, hover and click must all mean the same point, and its trajectory be its own."""
    reader = FrameReader(folder)
    page.tab.keyboard.press("Escape")
    page.tab.keyboard.press("/")
    name = reader.ids[int(reader[0].rows[40])]
    page.tab.keyboard.type(name.lower())
    page.tab.keyboard.press("Enter")
    page.until(f"() => tidemill.view().chosen.join() === {json.dumps(name)}")
    page.until("() => tidemill.chosen.trails.places && tidemill.chosen.trails.places.length === 36")
    trail = page.get("[...tidemill.chosen.trails.places].map(x => Number.isNaN(x) ? null : x)")
    np.testing.assert_allclose(
        np.array(trail, float).reshape(12, 3), reader.trajectories([reader.ids.index(name)])[:, 0]
    )
    page.tab.keyboard.press("End")
    page.settled()
    way_is_drawn(page, reader, reader.ids.index(name))
    page.tab.keyboard.press("Home")
    page.settled()
    if page.phone:
        page.tab.touchscreen.tap(*page.spot(name))
    else:
        page.tab.mouse.move(*page.spot(name))
    page.tab.wait_for_selector("#tip:not([hidden])")
    shown = page.tab.inner_text("#tip")
    front = page.get("tidemill.id(tidemill.over.hover)")
    row = list(reader[0].rows).index(reader.ids.index(front))
    assert front in shown and str(reader[0].groups["sector"][row]) in shown and "capital" in shown
    page.picture("hover")
    # When time moves, the panel describes the frame then shown.
    page.tab.keyboard.press(".")
    page.until("() => Math.round(tidemill.playback.position) === 1")
    after = reader[1]
    place = list(after.rows).index(reader.ids.index(front))
    told = "[...document.querySelectorAll('#tip dt')].find(dt => dt.textContent === %r).nextSibling.textContent"
    capital = float(after.values["capital"][place])
    page.until(f"() => Math.abs({told % 'capital'} / {capital} - 1) < 0.001")
    assert page.get(told % "change") == after.groups["change"][place]
    page.tab.keyboard.press(",")
    page.tab.keyboard.press("Escape")
    assert page.get("tidemill.view().chosen") == []
    (page.tab.touchscreen.tap if page.phone else page.tab.mouse.click)(*page.spot(name))
    page.until(f"() => tidemill.view().chosen.join() === {json.dumps(front)}")


def way_is_drawn(page: Page, reader: FrameReader, row: int) -> None:
    """The past way of the only chosen point, its times and its name must be pixels, in the right colors and places."""
    colour = page.get(f"tidemill.seen.colourOf({row})")
    wanted = np.array([int(word) for word in colour[4:-1].split()])
    spots = [projected(page, at) for at in reader.trajectories([row])[:, 0] if not np.isnan(at).any()]
    assert len(spots) > 5
    inked = 0
    for x, y in spots:
        pixels = page.over(x, y, 4)
        inked += (np.abs(pixels[:, :3].astype(int) - wanted).max(axis=1) < 40)[pixels[:, 3] > 200].any()
    # A name may cover one or the other.
    assert inked >= len(spots) - 2
    # Where no way runs, nothing is drawn.
    assert (page.over(5, 5, 4)[:, 3] == 0).all()
    said = page.get(
        "(() => { const said = [], c = document.querySelector('#overlay').getContext('2d'), fill = c.fillText;"
        "c.fillText = function (text, ...at) { said.push(text); return fill.call(this, text, ...at) };"
        "tidemill.drawOver(); c.fillText = fill; return said })()"
    )
    assert reader.ids[row] in said and set(said) & {frame.time for frame in reader}, said


def test_a_frame_that_is_added_appears(page: Page, folder: Path) -> None:
    """A reader who looks at the last frame must be taken to the new one, with its new points."""
    page.tab.keyboard.press("End")
    page.settled()
    with FrameWriter(folder, mode="a") as writer:
        writer.write_frame(
            [[0, 0, 0], [1, 1, 1]], ids=["NEW", "TE000"], time="just now", groups={"sector": ["Startups"] * 2}
        )
    page.until("() => tidemill.frames === 13 && tidemill.playback.position === 12 && !tidemill.playback.playing")
    page.settled()
    assert page.tab.inner_text("#time") == "just now"
    page.until("() => document.querySelector('#status').textContent === '2 points'")
    page.tab.wait_for_selector("text=Startups")
    assert page.spot("NEW")


@browsed.SIZES
def test_values_heat_map_theme_keys_and_pictures(page: Page, tmp_path: Path, size: dict[str, Any]) -> None:
    """The other tools do what they promise, in the dark theme too."""
    before = page.colours()
    page.panel("legend")
    page.tab.select_option("#colour", "capital")
    page.settled()
    assert page.tab.is_visible("#ramp") and page.colours() != before
    page.panel("legend", not page.phone)
    page.tab.keyboard.press("t")
    page.tab.keyboard.press("h")
    page.tab.wait_for_selector("#heat-map:not([hidden])")
    page.settled()
    page.picture("dark")
    if page.phone:
        page.tab.click("#heat")
    page.tab.keyboard.press("?")
    page.tab.wait_for_selector("#keys[open]")
    page.tab.click("#keys button")
    with page.tab.expect_download() as download:
        page.tab.click("#picture")
    download.value.save_as(tmp_path / "picture.png")
    ratio = size.get("device_scale_factor", 1)
    assert Image.open(tmp_path / "picture.png").size == (size["width"] * ratio, size["height"] * ratio)
    page.tab.click("#record")
    page.tab.click("#play")
    page.until("() => tidemill.playback.position > 1")
    with page.tab.expect_download() as download:
        page.tab.click("#record")
    download.value.save_as(tmp_path / "video.webm")
    assert (tmp_path / "video.webm").read_bytes()[:4] == b"\x1a\x45\xdf\xa3"


def test_a_lasso_makes_a_group_that_stays(browser: Any, command_url: str, folder: Path) -> None:
    """A group that one reader made is there for the next; its name is text, whatever it looks like."""
    page = Page(browser, command_url)
    page.lasso((350, 150), (800, 150), (800, 620), (350, 620))
    page.tab.fill("#group-name", "<b>mine</b>")
    page.tab.click("#name-group button.primary")
    page.tab.wait_for_selector("text=<b>mine</b>")
    page.settled()
    page.picture("group")
    page.close()
    saved = json.loads((folder / "selections.json").read_text())
    assert [group["name"] for group in saved] == ["<b>mine</b>"] and len(saved[0]["rows"]) > 50
    page = Page(browser, command_url + "#colour=my+groups")
    assert page.get("tidemill.categories()[0].name") == "<b>mine</b>"
    page.close()


@browsed.SIZES
def test_a_link_brings_the_view_back(browser: Any, page: Page, size: dict[str, Any]) -> None:
    """Whoever opens a link must see what its maker saw: the same groups, in the same light."""
    page.panel("legend")
    page.tab.select_option("#colour", "change")
    page.tab.click("#categories button[title='Show or hide stayed']")
    page.tab.select_option("#speed", "16")
    page.panel("legend", False)
    page.tab.click("#theme")
    page.tab.locator("#scrub").fill("7")
    page.tab.locator("#points").press("ArrowLeft")
    page.settled()

    def linked() -> str:
        page.get("history.replaceState(null, '', location.search)")
        page.tab.click("#link")
        page.until("() => location.hash.length > 10")
        link: str = page.get("location.href")
        return link

    def shown_by(link: str) -> dict[str, Any]:
        other = Page(browser, link, **size)
        seen: dict[str, Any] = other.get("tidemill.view()")
        other.close()
        return seen

    view, again = page.get("tidemill.view()"), shown_by(linked())
    np.testing.assert_allclose(again.pop("camera"), view.pop("camera"), atol=2e-3)
    assert again == view and view["hidden"] == ["stayed"]
    assert (view["theme"], view["speed"], view["lines"]) == ("dark", 16, True)
    page.panel("legend")
    page.tab.hover("#categories li:has-text('rose over 2')")
    page.tab.click("#categories button[title='Show only rose over 2 %, or all']")
    assert shown_by(linked())["shown"] == ["rose over 2 %"]
    page.tab.select_option("#colour", "")
    assert shown_by(linked())["colour"] == ""
    # The same page follows a link too, and shows again what that link does not hide.
    page.get("location.hash = 'colour=change&hide=stayed'")
    page.until("() => tidemill.colouring.name === 'change'")
    assert page.get("tidemill.view().hidden") == ["stayed"]


def test_light_or_dark_is_kept_for_who_chose_it(browser: Any, url: str) -> None:
    """Readers who chose the dark theme once got a white page after each reload; but what a link asks for is not its
    reader's choice.
    """
    page = Page(browser, url, color_scheme="light")
    theme = "document.documentElement.dataset.theme"
    page.get("location.hash = 'theme=dark'")
    page.until(f"() => {theme} === 'dark'")
    page.get("history.replaceState(null, '', location.search)")
    for shown in ("light", "dark"):
        page.tab.reload()
        page.settled()
        assert page.get(theme) == shown
        page.tab.click("#theme")
    page.close()


@browsed.AXE_NEEDED
@browsed.SIZES
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everybody_can_use_it(browser: Any, folder: Path, theme: str, size: dict[str, Any]) -> None:
    """Finds controls without a name, texts without contrast, lists that a screen reader cannot read, and keys that
    reach nothing.
    """
    with Server(folder) as server:
        page = Page(browser, server.url, color_scheme=theme, reduced_motion="reduce", **size)
        page.panel("legend")
        assert page.get("tidemill.scene.controls.enableDamping") is False
        page.tab.click("#heat")
        page.tab.keyboard.press("/")
        page.tab.keyboard.type("te0")
        page.tab.wait_for_selector("#found [role=option][aria-selected=true]")
        page.tab.keyboard.press("ArrowDown")
        assert page.tab.get_attribute("#query", "aria-activedescendant") == "found-1"
        assert page.accessible() == []
        page.tab.keyboard.press("Enter")
        page.until("() => tidemill.chosen.rows.length === 3")
        # On a phone the heat map has taken the legend's place.
        page.panel("legend")
        assert page.accessible() == []
        page.tab.keyboard.press("?")
        assert page.accessible() == []
        page.tab.keyboard.press("Escape")
        # Pressing a key again undoes what it did, though the list was rebuilt in between.
        page.tab.locator("#categories .show").nth(1).focus()
        for pressed in ["false", "true"]:
            page.tab.keyboard.press("Space")
            page.until(f"() => document.activeElement.getAttribute('aria-pressed') === '{pressed}'")
        # From the first control on, Tab reaches everything visible.
        page.tab.locator("#query").focus()
        reached = set()
        for _ in range(40):
            page.tab.keyboard.press("Tab")
            reached.add(page.get("document.activeElement.id"))
        assert reached >= {
            "legend-toggle",
            "lasso",
            "help",
            "colour",
            "scheme",
            "size",
            "play",
            "scrub",
            "speed",
            "loop",
        }
        page.close()


def test_what_is_not_there_is_said(browser: Any, tmp_path: Path) -> None:
    """A folder without frames, or with a single point, is not an empty page; a frame that arrives is shown at once."""
    with FrameWriter(tmp_path / "map") as writer, Server(tmp_path / "map") as server:
        page = Page(browser, server.url, wait=False)
        page.tab.wait_for_selector("#blank:has-text('There is no frame yet')")
        writer.write_frame([[1, 2, 3]], ids=["x" * 300])
        page.settled()
        assert page.tab.is_hidden("#blank") and not page.tab.is_visible("#timeline")
        page.until("() => document.querySelector('#status').textContent === '1 point'")
        assert page.colours() > 20
        page.tab.mouse.click(*page.spot("x" * 300))
        page.tab.wait_for_selector("#chosen .name")
        page.tab.locator("#query").fill("nobody")
        page.tab.wait_for_selector("#found .nothing")
        assert page.get("document.documentElement.scrollWidth") <= 1100
        page.picture("one-point")
        page.close()


def test_it_fits_a_phone_and_takes_touches(browser: Any, url: str) -> None:
    """Nothing may lie off a narrow screen; a tap chooses a point."""
    page = Page(browser, url, 390, 844, has_touch=True, is_mobile=True, device_scale_factor=2)
    assert page.get("document.documentElement.scrollWidth") <= 390
    for tool in ("#play", "#help", "#legend-toggle", "#scrub", "#query"):
        box = page.tab.locator(tool).bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390, tool
    page.picture("phone")
    chosen = len(page.get("tidemill.chosen.rows"))
    page.tab.touchscreen.tap(*page.spot(page.get("tidemill.known.load([50]).then(() => tidemill.id(50))")))
    assert len(page.get("tidemill.chosen.rows")) != chosen
    page.tab.tap("#legend-toggle")
    page.tab.wait_for_selector("#legend:not([hidden])")
    # The tooltip would cover the point.
    assert page.tab.is_hidden("#tip")
    page.picture("phone-legend")
    page.close()


def test_what_is_wrong_is_said(browser: Any, url: str, folder: Path) -> None:
    """A wrong token, or a damaged frame, must not leave an empty page without an explanation."""
    plain = urllib.parse.urlsplit(url)._replace(query="").geturl()
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(plain)
    tab.wait_for_selector("#blank:not([hidden])")
    assert "token is missing or wrong" in tab.inner_text("#blank") and tab.inner_text("#status") == ""
    damaged = folder / "frame-000000.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:100])
    tab.goto(url)
    tab.wait_for_function("() => document.querySelector('#notice').textContent.includes('frame-000000')")
    context.close()


def test_all_points_are_drawn_at_rest_and_the_page_says_when_not(browser: Any, tmp_path: Path) -> None:
    """Points that there is no time to draw during motion must appear at rest; until then the page says so."""
    rng = np.random.default_rng(0)
    with FrameWriter(tmp_path / "many") as writer:
        for _ in range(2):
            writer.write_frame(rng.normal(size=(200_000, 3)))
    with Server(tmp_path / "many") as server:
        page = Page(browser, server.url)
        # As if the machine were slow; another test, without a browser, checks that the page finds this out.
        page.get("tidemill.loop.detail = { budget: 20000, drawn: 0 }; tidemill.redraw()")
        page.until("() => tidemill.drawn().drawn >= 20000")
        page.settled()
        assert page.get("tidemill.drawn()") == {"drawn": 200_000, "of": 200_000}
        page.get(
            "window.said = []; new MutationObserver(() => said.push(document.querySelector('#status').textContent))"
            ".observe(document.querySelector('#status'), { childList: true });"
            "tidemill.set({ ...tidemill.playback, playing: true, framesPerS: 0.25 });"
        )
        page.until("() => said.some(text => text.includes(' drawn while it moves'))")
        page.close()


@browsed.SIZES
def test_a_page_with_its_frames_opens_as_a_file(
    browser: Any, folder: Path, tmp_path: Path, size: dict[str, Any]
) -> None:
    """The file alone must show what the server shows: frames, groups, ways of points."""
    (folder / "selections.json").write_text('[{"name":"</script><b>mine</b>","rows":[1,2]}]')
    ended = launched.run("view", folder, "--export", tmp_path / "market.html")
    assert ended.returncode == 0 and "market.html" in ended.stdout.decode(), ended
    lone = tmp_path / "alone"
    lone.mkdir()
    (tmp_path / "market.html").rename(lone / "market.html")
    page = Page(browser, (lone / "market.html").as_uri(), **size)
    asked: list[str] = []
    page.tab.on("request", lambda request: asked.append(request.url))
    reader = FrameReader(folder)
    row = int(np.intersect1d(reader[0].rows, reader[11].rows)[5])
    page.get(f"tidemill.chosen.choose([{row}, 0])")
    page.until("() => tidemill.chosen.trails.places")
    places = page.get("[...tidemill.chosen.trails.places].map(x => Number.isNaN(x) ? null : x)")
    np.testing.assert_allclose(np.array(places, float).reshape(12, 2, 3), reader.trajectories([row, 0]), atol=1e-5)
    page.panel("legend")
    page.tab.select_option("#colour", "my groups")
    assert page.get("tidemill.categories()[0].name") == "</script><b>mine</b>"
    page.tab.select_option("#colour", "sector")
    page.tab.select_option("#speed", "30")
    page.tab.click("#play")
    page.until("() => tidemill.playback.position === 11 && !tidemill.playback.playing")
    page.settled()
    page.picture("exported")
    assert page.colours() > 1000
    with page.tab.expect_download() as download:
        page.tab.click("#picture")
    download.value.save_as(tmp_path / "picture.png")
    ratio = size.get("device_scale_factor", 1)
    assert Image.open(tmp_path / "picture.png").size == (size["width"] * ratio, size["height"] * ratio)
    assert [url for url in asked if not url.startswith("blob:")] == []
    page.close()


NOTEBOOK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>A notebook</title>'


@pytest.mark.parametrize("embed", [False, True])
def test_a_notebook_shows_it_in_a_frame(browser: Any, embed: bool, tmp_path: Path) -> None:
    """As Jupyter does, from another port of this host; embedded, with no server to ask any more."""
    rng = np.random.default_rng(0)
    view = tm.viz.show(rng.normal(size=(50, 3)), groups=np.arange(50) % 2, embed=embed)
    (tmp_path / "notebook.html").write_text(f"{NOTEBOOK}{view._repr_html_()}")
    if embed:
        view.close()
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as notebook:
        threading.Thread(target=notebook.serve_forever, daemon=True).start()
        tab = browser.new_context(viewport={"width": 1000, "height": 700}).new_page()
        errors: list[str] = []
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("console", lambda said: said.type == "error" and errors.append(said.text))
        try:
            tab.goto(f"http://localhost:{notebook.server_address[1]}/notebook.html")
            (frame,) = tab.frames[1:]
            frame.wait_for_function("() => window.tidemill && tidemill.frames === 1 && tidemill.drawn().drawn === 50")
            frame.press("body", "h")
            frame.click("#points")
            assert errors == []
        finally:
            browsed.PICTURES.mkdir(parents=True, exist_ok=True)
            tab.screenshot(path=browsed.PICTURES / f"notebook-{'embedded' if embed else 'served'}.png")
            tab.context.close()
            notebook.shutdown()
            view.close()


@browsed.SIZES
def test_a_page_that_is_a_file_makes_gifs_and_groups(
    browser: Any, folder: Path, tmp_path: Path, size: dict[str, Any]
) -> None:
    """Without a server there is no script to load for a GIF's worker, and no folder for groups: a file stores them, and
    restores them.
    """
    export_html(folder, tmp_path / "market.html")
    page = Page(browser, (tmp_path / "market.html").as_uri(), **size)
    page.panel("legend")
    page.tab.click("#gif")
    page.tab.click("#play")
    page.until("() => tidemill.playback.position > 1")
    with page.tab.expect_download() as download:
        page.tab.click("#gif")
    download.value.save_as(tmp_path / "market.gif")
    with Image.open(tmp_path / "market.gif") as gif:
        assert getattr(gif, "n_frames", 1) > 1
    # A group of the chosen points, with keys alone.
    page.get("tidemill.chosen.choose([3, 1])")
    page.tab.keyboard.press("g")
    page.tab.keyboard.press("Enter")
    page.tab.keyboard.type("mine")
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_selector("#categories button[title='Show or hide mine']")
    # Learning that a name is taken keeps the group that was made.
    page.tab.keyboard.press("g")
    page.tab.keyboard.press("Enter")
    page.tab.keyboard.type("mine")
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_selector("#same-name:has-text('It has 2 points')")
    page.tab.click("#same-name .danger")
    page.tab.wait_for_selector("#same-name", state="detached")
    with page.tab.expect_download() as download:
        page.tab.click("#save-groups")
    download.value.save_as(tmp_path / "selections.json")
    assert json.loads((tmp_path / "selections.json").read_text()) == [{"name": "mine", "rows": [1, 3]}]
    page.close()
    page = Page(browser, (tmp_path / "market.html").as_uri(), **size)
    page.panel("legend")
    page.tab.set_input_files("#load-groups", {"name": "bad.json", "mimeType": "application/json", "buffer": b"[1]"})
    page.tab.wait_for_selector("#notice:has-text('bad.json: a saved group lacks a name or rows')")
    page.tab.set_input_files("#load-groups", tmp_path / "selections.json")
    page.tab.wait_for_selector("#categories button[title='Show or hide mine']")
    assert page.get("tidemill.dataset.selections") == [{"name": "mine", "rows": [1, 3]}]
    page.close()


def test_names_are_not_loaded_before_they_are_needed(browser: Any, folder: Path) -> None:
    """With very many points, names outweigh all else: of the points' file, a page must fetch only what it colors by."""
    with Server(folder) as server:
        page = Page(browser, server.url)
        asked: list[str] = []
        page.tab.on("request", lambda request: asked.append(urllib.parse.unquote_plus(request.url)))
        page.tab.reload()
        page.settled()
        of_points = [url for url in asked if "/points-" in url]
        assert of_points and all('tensors=["group.sector"]' in url for url in of_points), of_points
        page.tab.select_option("#colour", "change")
        page.settled()
        assert page.colours() > 1000
        page.close()


def test_what_cannot_be_exported_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FrameWriter(tmp_path / "map") as writer:
        with pytest.raises(FrameError, match="no frame yet"):
            export_html(tmp_path / "map", tmp_path / "map.html")
        writer.write_frame(np.zeros((100, 3)))
    monkeypatch.setattr("tidemill.viz._export.BYTES_MAX", 500)
    with pytest.raises(FrameError, match="can be exported"):
        export_html(tmp_path / "map", tmp_path / "map.html")
    assert [path.name for path in tmp_path.iterdir()] == ["map"]


def test_samples_are_shown_while_very_many_points_move(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Playing must not fetch whole frames, and must say that it shows a sample; at rest all points must be there and
    right.
    """
    monkeypatch.setattr(_write, "SAMPLE_FROM", 10_000)
    monkeypatch.setattr(_write, "_SAMPLE_POINTS", 2_000)
    rng = np.random.default_rng(0)
    with FrameWriter(tmp_path / "many") as writer:
        for _ in range(12):
            writer.write_frame(rng.normal(size=(40_000, 3)), groups={"kind": rng.integers(3, size=40_000)})
    with Server(tmp_path / "many") as server:
        page = Page(browser, server.url)
        page.get(
            "window.said = []; new MutationObserver(() => said.push(document.querySelector('#status').textContent))"
            ".observe(document.querySelector('#status'), { childList: true });"
            "tidemill.set({ ...tidemill.playback, playing: true, framesPerS: 8 });"
        )
        page.until("() => tidemill.playback.position === 11 && !tidemill.playback.playing")
        page.settled()
        said = page.get("said.filter((text) => text.startsWith('40,000 points, 1 in '))")
        assert any(text.endswith("drawn while it moves") for text in said), page.get("said")
        page.until("() => document.querySelector('#status').textContent === '40,000 points'")
        here = "[...Array(12).keys()].filter((frame) => tidemill.{}.has(frame))"
        wholes = page.get(here.format("cache"))
        assert 11 in wholes and len(wholes) <= 3, wholes
        assert page.get(here.format("shown.samples")) == list(range(12))
        # At rest between two frames, both are whole; a point outside all samples is where it belongs.
        page.tab.locator("#scrub").fill("4.5")
        page.settled()
        reader = FrameReader(tmp_path / "many")
        middle = (reader[4].positions[35] + reader[5].positions[35]) / 2
        found = page.get("tidemill.seen.spotOf(35)")
        wanted = projected(page, middle)
        assert abs(found["x"] - wanted[0]) < 0.1 and abs(found["y"] - wanted[1]) < 0.1
        page.close()

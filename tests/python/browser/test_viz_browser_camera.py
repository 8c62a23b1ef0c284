"""The viewer under a mouse and keys: the camera turns, zooms, moves and comes back; size, opacity and colours change the picture."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browsed
import numpy as np
import pytest
from browsed import DESKTOP, PHONE, TOKEN, Page
from numpy.typing import NDArray
from PIL import Image
from tidemill.viz import FrameWriter, Server

pytestmark = browsed.NEEDED
browser = browsed.browser
folder = browsed.market(points=200, frames=3)
server = browsed.server

#: Where drags on the canvas begin: no panel is there.
MIDDLE = (500.0, 380.0)
#: What the shader makes of a color in the middle of a point.
LIGHT = 0.94


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Page]:
    opened = Page(browser, server.url, **DESKTOP)
    opened.tab.keyboard.press("Escape")
    yield opened
    opened.close()


def looked(page: Page) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The camera's place relative to its target, and the target, once all is at rest."""
    page.settled()
    state = np.array(page.get("tidemill.view().camera"))
    return state[:3] - state[3:], state[3:]


def angles(away: NDArray[np.float64]) -> tuple[float, float]:
    """Around the vertical axis, and down from it, in degrees."""
    x, y, z = away
    return float(np.degrees(np.arctan2(x, z))), float(np.degrees(np.arccos(y / np.linalg.norm(away))))


def drag(page: Page, by: tuple[float, float], button: Any = "left") -> None:
    mouse = page.tab.mouse
    mouse.move(*MIDDLE)
    mouse.down(button=button)
    mouse.move(MIDDLE[0] + by[0], MIDDLE[1] + by[1], steps=6)
    mouse.up(button=button)


def zoomed(page: Page, wheel: float) -> float:
    """Turn the wheel, and return how far away the camera is then. The browser scrolls in its own time."""
    before = page.get("JSON.stringify(tidemill.view().camera)")
    page.tab.mouse.move(*MIDDLE)
    page.tab.mouse.wheel(0, wheel)
    page.until(f"() => JSON.stringify(tidemill.view().camera) !== '{before}'")
    return float(np.linalg.norm(looked(page)[0]))


def middle_of_the_box(page: Page) -> NDArray[np.float64]:
    """Its place on the screen."""
    page.settled()
    m, width, height = page.get(
        "(() => { const { matrix, width, height } = tidemill.scene.screen(); return [[...matrix], width, height] })()"
    )
    return np.array([(m[12] / m[15] + 1) / 2 * width, (1 - m[13] / m[15]) / 2 * height])


def pixels(page: Page) -> NDArray[np.int_]:
    """The colors of the points' canvas: height, width, 3."""
    page.settled()
    data = page.get("document.querySelector('#points').toDataURL('image/png')").partition(",")[2]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")).astype(int)


def well_coloured(page: Page) -> float:
    """The fraction of the points that have, on the screen, the color that the page says; others may cover some."""
    picture = pixels(page)
    told = page.get(
        "[...Array(tidemill.slots.points).keys()].filter((row) => tidemill.seen.spotOf(row)).map((row) => {"
        " const { x, y } = tidemill.seen.spotOf(row); return [x, y, ...tidemill.seen.colourOf(row).match(/\\d+/g).map(Number)] })"
    )
    right = [np.abs(picture[int(y), int(x)] - LIGHT * np.array(colour)).max() < 12 for x, y, *colour in told]
    assert len(right) > 15
    return float(np.mean(right))


def swatches(page: Page) -> list[str]:
    found: list[str] = page.get("tidemill.categories().map((category) => category.colour)")
    return found


def test_a_drag_turns(page: Page) -> None:
    """A drag as long as the page is high turns once around, without zooming or panning; it chooses no point."""
    away, target = looked(page)
    drag(page, (90, -60))
    turned, same = looked(page)
    np.testing.assert_allclose(np.linalg.norm(turned), np.linalg.norm(away), rtol=1e-6)
    np.testing.assert_allclose(same, target, atol=1e-9)
    around, over = np.subtract(angles(turned), angles(away))
    a_pixel = 360 / DESKTOP["height"]
    assert abs(around - -90 * a_pixel) < 1 and abs(over - 60 * a_pixel) < 1
    assert page.get("tidemill.chosen.rows.length") == 0


def test_the_wheel_zooms(page: Page) -> None:
    away, target = looked(page)
    far = float(np.linalg.norm(away))
    few = page.colours()
    assert (near := zoomed(page, -400)) < 0.9 * far
    page.settled()
    # What is nearer is larger.
    assert page.colours() > 1.2 * few
    assert zoomed(page, 400) == pytest.approx(far, rel=0.01)
    assert zoomed(page, 400) > 1.1 * far > near
    after, same = looked(page)
    np.testing.assert_allclose(after / np.linalg.norm(after), away / far, atol=1e-6)
    np.testing.assert_allclose(same, target, atol=1e-9)


def test_a_drag_with_the_right_button_moves(page: Page) -> None:
    """The view must follow the pointer, and not turn."""
    away, target = looked(page)
    before = middle_of_the_box(page)
    drag(page, (120, 70), button="right")
    after, moved = looked(page)
    np.testing.assert_allclose(after, away, atol=1e-6)
    assert np.linalg.norm(moved - target) > 0.1
    np.testing.assert_allclose(middle_of_the_box(page) - before, [120, 70], atol=4)


@pytest.mark.parametrize("way", ["key", "button"])
def test_all_comes_back(page: Page, way: str) -> None:
    """Also while the camera still glides after a drag, which would carry it away again."""
    at_first = np.concatenate(looked(page))
    picture = pixels(page)
    drag(page, (150, 40), button="right")
    zoomed(page, -300)
    assert np.abs(np.concatenate(looked(page)) - at_first).max() > 0.1
    assert np.abs(pixels(page) - picture).max() > 60
    drag(page, (-80, 90))
    if way == "key":
        page.tab.keyboard.press("0")
    else:
        page.tab.click("#reset")
    np.testing.assert_allclose(np.concatenate(looked(page)), at_first, atol=1e-9)
    assert (pixels(page) == picture).mean() > 0.999


def test_keys_turn_and_zoom(page: Page) -> None:
    away, target = looked(page)
    page.tab.keyboard.press("+")
    np.testing.assert_allclose(looked(page)[0], 0.85 * away, rtol=1e-6)
    for _ in range(2):
        page.tab.keyboard.press("-")
    np.testing.assert_allclose(looked(page)[0], away / 0.85, rtol=1e-6)
    before = np.array(angles(looked(page)[0]))
    for key, steps in (("ArrowRight", (5, 0)), ("ArrowDown", (0, 5)), ("ArrowLeft", (-5, 0)), ("ArrowUp", (0, -5))):
        page.tab.keyboard.press(key)
        turned, same = looked(page)
        np.testing.assert_allclose(angles(turned) - before, steps, atol=1e-6, err_msg=key)
        np.testing.assert_allclose(same, target, atol=1e-9)
        before = np.array(angles(turned))


def corners(page: Page) -> NDArray[np.float64]:
    """Where the corners of the box are on the screen."""
    page.settled()
    m, width, height, half = page.get(
        "(() => { const { scene } = tidemill, { matrix, width, height } = scene.screen();"
        " return [[...matrix], width, height, scene.half] })()"
    )
    box = np.array([[*(np.array(signs) * half), 1] for signs in np.ndindex(2, 2, 2)])
    box[:, :3] = 2 * box[:, :3] - np.array(half)
    x, y, _, w = (box @ np.reshape(m, (4, 4))).T
    return np.column_stack([(x / w + 1) / 2 * width, (1 - y / w) / 2 * height])


def cover(page: Page, element: str) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of an element."""
    box = page.tab.locator(element).bounding_box()
    assert box is not None
    return box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"]


@pytest.fixture
def flat(tmp_path: Path) -> Iterator[Server]:
    """Frames of a flat plot with a heat map, as long as they are wide: no part of the box is far away, and so small."""
    with FrameWriter(tmp_path / "flat", title="A flat plot with a long name") as writer:
        for _ in range(2):
            where = np.random.default_rng(0).uniform(-1, 1, (100, 2)) * [3, 2]
            writer.write_frame(where, heat_map=np.eye(9), heat_map_range=[[0, 5], [0, 5]], metrics={"stress": 0.1})
    with Server(tmp_path / "flat", token=TOKEN) as server:
        yield server


@pytest.mark.parametrize(("width", "height"), [(900, 600), (1280, 800), (700, 375)])
def test_at_first_nothing_covers_the_box(browser: Any, flat: Server, width: int, height: int) -> None:
    """Nor after panels have been opened and closed; a reader who has looked around keeps the view."""
    page = Page(browser, flat.url, width, height)
    for _ in range(2):
        spots = corners(page)
        _, _, right, bottom = cover(page, "#search")
        assert ((spots[:, 0] > right + 30) | (spots[:, 1] > bottom + 15)).all()
        left, _, _, bottom = cover(page, "#tools")
        assert ((spots[:, 0] < left) | (spots[:, 1] > bottom)).all()
        # The numbers of the axes are below the box.
        assert (spots[:, 1] < cover(page, "#timeline")[1] - 24).all()
        if page.tab.is_visible("#legend"):
            assert (spots[:, 0] < cover(page, "#legend")[0]).all()
        # It is no smaller than necessary.
        assert np.ptp(spots[:, 1]) > 0.3 * height
        page.picture(f"flat-{width}-{page.tab.is_visible('#legend')}")
        if height > 400:
            page.tab.keyboard.press("l")
    page.tab.keyboard.press("ArrowLeft")
    away = looked(page)[0]
    page.tab.keyboard.press("l")
    np.testing.assert_allclose(looked(page)[0], away)
    page.close()


def test_on_an_upright_tablet_the_box_has_the_room_below_the_legend(browser: Any, tmp_path: Path) -> None:
    """The box kept to the column beside the legend, half of the screen, and left the rest empty."""
    rng = np.random.default_rng(0)
    sectors = np.array([f"sector {number}" for number in range(12)])[rng.integers(12, size=300)]
    sides = np.where(np.arange(300) % 2, "left", "right")
    with FrameWriter(tmp_path / "upright") as writer:
        writer.write_frame(rng.normal(size=(300, 3)), groups={"sector": sectors, "side": sides})
        writer.write_frame(rng.normal(size=(300, 3)))
    with Server(tmp_path / "upright", token=TOKEN) as server:
        page = Page(browser, server.url, 768, 1024)
        wide = []
        for grouping in ("sector", "side"):
            page.tab.select_option("#colour", grouping)
            spots = corners(page)
            left, _, _, bottom = cover(page, "#legend")
            assert ((spots[:, 0] < left) | (spots[:, 1] > bottom)).all()
            assert (spots[:, 1] < cover(page, "#timeline")[1] - 24).all()
            wide.append(np.ptp(spots[:, 0]))
            page.picture(f"upright-{grouping}")
        # A shorter legend leaves more room.
        assert 440 < wide[0] < wide[1] - 80
        page.close()


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (768, 1024), (390, 844)])
def test_all_axes_have_their_names_and_both_of_their_ends(
    browser: Any, server: Server, width: int, height: int
) -> None:
    """Where two axes ended in one corner, or at the edge of the screen, one of the numbers was missing."""
    page = Page(browser, server.url, width, height)
    page.get("tidemill.chosen.choose([])")
    page.settled()
    said = page.get(
        "(() => { const said = [], c = document.querySelector('#overlay').getContext('2d'), fill = c.fillText;"
        "c.fillText = function (text, ...at) { said.push(text); return fill.call(this, text, ...at) };"
        "tidemill.drawOver(); c.fillText = fill; return said })()"
    )
    numbers = [float(text) for text in said if re.fullmatch(r"-?[\d.]+", text)]
    ends = page.get("[...tidemill.over.world.low, ...tidemill.over.world.high]")
    np.testing.assert_allclose(sorted(numbers), sorted(ends), rtol=1e-3)
    assert {"x", "y", "z"} <= set(said)
    page.close()


def test_the_heat_map_leaves_room_on_a_phone_that_lies(browser: Any, flat: Server) -> None:
    page = Page(browser, flat.url, 700, 375, has_touch=True, is_mobile=True)
    assert page.tab.is_hidden("#legend")
    page.tab.tap("#heat")
    page.tab.wait_for_selector("#heat-map:not([hidden])")
    left, top, right, bottom = cover(page, "#heat-map")
    assert top > cover(page, "#search")[3] and bottom < cover(page, "#timeline")[1]
    assert right < corners(page)[:, 0].min() and right - left > 100
    page.picture("heat-map-landscape")
    page.close()


def test_the_list_of_keys_begins_at_its_begin(browser: Any, server: Server) -> None:
    """On a screen too small for all of it; keys can scroll it."""
    page = Page(browser, server.url, **{**PHONE, "width": 375, "height": 500})
    page.tab.tap("#help")
    page.tab.wait_for_selector("#keys[open]")
    page.picture("keys")
    assert page.get("document.querySelector('#keys').scrollTop") == 0
    page.tab.keyboard.press("End")
    page.until("() => document.querySelector('#keys').scrollTop > 100")
    page.tab.keyboard.press("Tab")
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_selector("#keys", state="hidden")
    page.close()


def test_a_link_shows_the_same_on_another_screen(browser: Any, flat: Server) -> None:
    """A camera at the distance for a wide screen sees only the middle on a narrow one."""
    wide = Page(browser, flat.url, 1280, 800)
    wide.tab.keyboard.press("ArrowLeft")
    wide.settled()
    wide.tab.click("#link")
    wide.until("() => location.hash.includes('fit=')")
    link = wide.get("location.href")
    camera = wide.get("tidemill.view().camera")
    wide.close()
    narrow = Page(browser, link, 375, 700, has_touch=True, is_mobile=True)
    spots = corners(narrow)
    assert (spots[:, 0] > 0).all() and (spots[:, 0] < 375).all() and np.ptp(spots[:, 0]) > 200
    assert (spots[:, 1] > cover(narrow, "#search")[3]).all() and (spots[:, 1] < cover(narrow, "#timeline")[1]).all()
    narrow.picture("link-from-desktop")
    narrow.close()
    # An older link does not say which screen it comes from.
    old = Page(browser, re.sub("&fit=[^&]*", "", link), 375, 700)
    np.testing.assert_allclose(old.get("tidemill.view().camera"), camera, atol=2e-3)
    old.close()


def test_size_and_opacity_change_the_picture(page: Page) -> None:
    sizes = []
    for size in ("3", "8", "16"):
        page.tab.locator("#size").fill(size)
        page.settled()
        sizes.append(page.colours())
    assert sizes[2] > 1.5 * sizes[1] > 2 * sizes[0] > 0, sizes
    page.tab.locator("#size").fill("8")
    opaque = pixels(page)
    inked = np.ptp(opaque, axis=2) > 60
    page.tab.locator("#opacity").fill("0.2")
    pale = pixels(page)
    # A transparent point is closer to the page behind it, which has hardly any color.
    assert np.ptp(pale[inked], axis=1).mean() < 0.6 * np.ptp(opaque[inked], axis=1).mean()
    page.picture("seen-through")
    page.tab.locator("#opacity").fill("1")
    assert (pixels(page) == opaque).mean() > 0.999
    assert page.get("[tidemill.view().size, tidemill.view().opacity]") == [8, 1]


def test_a_scheme_changes_colours(page: Page) -> None:
    """Both the legend's colors and the points', in the same way."""
    before, first = swatches(page), pixels(page)
    assert well_coloured(page) > 0.7
    page.tab.select_option("#scheme", "Tableau")
    after = swatches(page)
    # The last are the points without a sector, gray in all schemes.
    assert len(before) > 5 and all(a != b for a, b in zip(before[:-1], after[:-1], strict=True))
    painted = page.get(
        "[...document.querySelectorAll('#categories .swatch')].map((swatch) => getComputedStyle(swatch).backgroundColor)"
    )
    assert [colour.replace(",", "") for colour in painted] == after
    assert well_coloured(page) > 0.7
    changed = np.abs(pixels(page) - first).max(axis=2) > 20
    assert changed[np.ptp(first, axis=2) > 60].mean() > 0.7
    page.picture("tableau")
    # Another grouping has other groups.
    page.tab.select_option("#colour", "change")
    page.settled()
    assert swatches(page) != after and well_coloured(page) > 0.7


def test_a_ramp_changes_colours(page: Page) -> None:
    page.tab.select_option("#colour", "change in %")
    assert page.tab.is_visible("#ramp") and well_coloured(page) > 0.7
    first, bar = pixels(page), "getComputedStyle(document.querySelector('#ramp-bar')).backgroundImage"
    before = page.get(bar)
    # Changes are above and below 0.
    assert page.tab.input_value("#scheme") == "Blue to red" and page.tab.inner_text("#ramp-middle") == "0"
    page.tab.select_option("#scheme", "Viridis")
    assert page.get(bar) != before and well_coloured(page) > 0.7
    changed = np.abs(pixels(page) - first).max(axis=2) > 20
    assert changed[np.ptp(first, axis=2) > 60].mean() > 0.5
    page.picture("ramp")


def test_a_value_of_few_large_numbers_has_many_colours(browser: Any, tmp_path: Path) -> None:
    """As capital has: a few points a hundred times as large as most left most in one color, and the legend did not say
    so.
    """
    rng = np.random.default_rng(0)
    with FrameWriter(tmp_path / "few") as writer:
        writer.write_frame(rng.normal(size=(500, 3)), values={"capital": np.append(rng.lognormal(18, 1.5, 499), 0)})
    with Server(tmp_path / "few", token=TOKEN) as server:
        page = Page(browser, server.url)
        colours = page.get("[...Array(500).keys()].map(row => tidemill.seen.colourOf(row))")
        assert len(set(colours)) > 100
        assert page.tab.inner_text("#ramp-low").startswith("≤ ") and page.tab.inner_text("#ramp-high").startswith("≥ ")
        assert page.tab.inner_text("#ramp-note").endswith("The scale is logarithmic.")
        page.picture("logarithmic")
        page.close()


def test_between_two_frames_page_and_picture_agree(browser: Any, tmp_path: Path) -> None:
    """At rest closer to the second frame, its time must not appear beside the count of the first, nor glyphs in another
    color than their points.
    """
    grid = np.stack([*np.meshgrid(range(5), range(5)), np.zeros((5, 5))], axis=-1).reshape(25, 3)
    # Two points at the corners of the box, so that its lines cover none of the others.
    where = np.concatenate([[[-1, -1, -1], [5, 5, 1]], grid])
    height = np.linspace(0, 1, 27)
    with FrameWriter(tmp_path / "grid") as writer:
        writer.write_frame(where, ids=range(27), time="first", values={"height": height})
        writer.write_frame(where[:20], ids=range(20), time="second", values={"height": 1 - height[:20]})
    with Server(tmp_path / "grid", token=TOKEN) as server:
        page = Page(browser, server.url, **DESKTOP)
        for position, time, count in ((0.3, "first", 27), (0.7, "second", 20)):
            page.tab.locator("#scrub").fill(str(position))
            page.until(f"() => document.querySelector('#status').textContent === '{count} points'")
            assert page.tab.inner_text("#time") == time
            assert well_coloured(page) > 0.89
            page.picture(f"between-{time}")
        page.close()


def test_points_that_hardly_differ_are_drawn(browser: Any, tmp_path: Path) -> None:
    """So close to each other that dividing by their extent gives infinity: the page was empty, without an explanation."""
    with FrameWriter(tmp_path / "near") as writer:
        writer.write_frame(1e-310 * np.eye(3))
    with Server(tmp_path / "near", token=TOKEN) as server:
        page = Page(browser, server.url, **DESKTOP)
        assert page.colours() > 20
        page.close()

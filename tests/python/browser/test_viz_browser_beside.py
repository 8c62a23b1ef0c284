"""What stands over and beside the points: glyphs of marked points, the heat map's numbers, lines of figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import browsed
import numpy as np
from browsed import Page
from tidemill.viz import FrameWriter, Library, Server, export_html

pytestmark = browsed.NEEDED
browser = browsed.browser


@browsed.SIZES
def test_all_marked_points_are_drawn_however_many_and_what_is_not_followed_is_said(
    browser: Any, tmp_path: Path, size: dict[str, Any]
) -> None:
    """Beyond fifty marked points, the rest were dropped silently, because they were drawn with the ways."""
    rng = np.random.default_rng(0)
    ids = [f"p{number}" for number in range(200)]
    marked = dict.fromkeys(ids[:120], "star")
    with FrameWriter(tmp_path / "map", glyphs=marked) as writer:
        for _ in range(3):
            writer.write_frame(rng.uniform(-1, 1, size=(200, 3)), ids=ids, groups={"half": [n % 2 for n in range(200)]})
    with Server(tmp_path / "map") as server:
        page = Page(browser, server.url, **size)
        page.until("() => tidemill.chosen.marked.length === 120")
        page.settled()
        page.picture("marked")
        assert page.get("tidemill.chosen.rows.length") == 0 and page.tab.is_hidden("#notice")
        for row in range(0, 120, 10):
            x, y = page.spot(f"p{row}")
            assert (page.over(x, y, 3)[:, 3] == 255).all(), row
        assert filled(page) == 120
        # A reader whose link chooses many points at once learns which ones are not followed.
        page.get(f"location.hash = '{'&'.join(f'point=p{number}' for number in range(60))}'")
        page.tab.wait_for_selector("#notice:has-text('At most 50 points can be followed at once: 10 of 60 left out.')")
        assert page.get("tidemill.chosen.rows.length") == 50
        page.tab.keyboard.press("Escape")
        # Hiding a point's group hides its glyph too.
        page.panel("legend")
        page.tab.click("button[title='Show or hide 0']")
        page.settled()
        assert filled(page) == 60
        page.close()


def filled(page: Page) -> int:
    """How many shapes are filled over the points: without ways and lasso, these are the glyphs."""
    number: int = page.get(
        "(() => { let filled = 0; const c = document.querySelector('#overlay').getContext('2d'), fill = c.fill;"
        "c.fill = function () { filled++; return fill.call(this) }; tidemill.drawOver(); delete c.fill; return filled })()"
    )
    return number


@browsed.SIZES
def test_the_heat_map_has_numbers_and_a_line_where_both_are_the_same(
    browser: Any, tmp_path: Path, size: dict[str, Any]
) -> None:
    """Without them nobody can tell whether the picture is true to the data or half its size."""
    counts = np.diag(np.arange(1, 11))
    with FrameWriter(tmp_path / "map") as writer:
        for ends in ([[0, 2.5], [0, 5]], None):
            writer.write_frame([[0, 0, 0], [1, 1, 1]], heat_map=counts, heat_map_range=ends)
    with Server(tmp_path / "map") as server:
        page = Page(browser, server.url, **size)
        page.tab.click("#heat")
        page.until("() => document.querySelector('#heat-right-high').textContent === '5'")
        texts = [page.tab.inner_text(f"#heat-{end}") for end in ("up-low", "up-high", "right-low", "right-high")]
        assert texts == ["0", "2.5", "0", "5"]
        page.picture("heat-map")
        # The line ends in the middle of the upper edge: the original distances continue where the projected ones end.
        picture, line = (page.tab.locator(f"#heat-{what}").bounding_box() for what in ("picture", "equal"))
        assert picture is not None and line is not None
        assert abs(line["width"] - picture["width"] / 2) < 2 and abs(line["height"] - picture["height"]) < 2
        assert abs(line["x"] - picture["x"]) < 2
        # The histogram is above the map, and its bars above the columns that they count.
        strip = page.tab.locator("#heat-bars").bounding_box()
        assert strip is not None
        assert abs(strip["x"] - picture["x"]) < 2 and abs(strip["width"] - picture["width"]) < 3
        assert strip["y"] + strip["height"] <= picture["y"] + 1
        page.tab.keyboard.press("End")
        page.until("() => document.querySelector('#heat-right-high').textContent === ''")
        assert page.get("document.querySelector('#heat-equal').getAttribute('d')") == ""
        page.close()


def test_on_a_phone_the_heat_map_and_the_legend_are_not_open_at_once(browser: Any, tmp_path: Path) -> None:
    """The map covered the legend, hiding the names of groups and of the sliders."""
    with FrameWriter(tmp_path / "map") as writer:
        writer.write_frame([[0, 0, 0], [1, 1, 1]], groups={"kind": ["a", "b"]}, heat_map=np.eye(3))
    with Server(tmp_path / "map") as server:
        for size in (browsed.PHONE, browsed.DESKTOP):
            page = Page(browser, server.url, **size)
            page.panel("legend")
            for opened, closed in (("heat-map", "legend"), ("legend", "heat-map")):
                page.tab.click("#heat" if opened == "heat-map" else "#legend-toggle")
                if not page.phone and opened == "legend":
                    page.tab.click("#legend-toggle")
                assert page.tab.is_visible(f"#{opened}") and page.tab.is_visible(f"#{closed}") != page.phone
                pressed = {
                    name: page.tab.get_attribute(f"#{name}", "aria-pressed") for name in ("heat", "legend-toggle")
                }
                assert pressed == {
                    "heat": str(page.tab.is_visible("#heat-map")).lower(),
                    "legend-toggle": str(page.tab.is_visible("#legend")).lower(),
                }
            # A window that showed both, and then became as narrow as a phone.
            page.tab.set_viewport_size({"width": 390, "height": 844})
            page.tab.wait_for_selector("#heat-map", state="hidden")
            assert page.tab.is_visible("#legend")
            page.close()


@browsed.AXE_NEEDED
@browsed.SIZES
def test_readers_choose_which_figures_they_see(browser: Any, tmp_path: Path, size: dict[str, Any]) -> None:
    """The last two of six figures were out of sight, and nothing said that there were more."""
    with FrameWriter(tmp_path / "map") as writer:
        for frame in range(5):
            metrics = {f"figure {number}": float(number + frame) for number in range(6)}
            writer.write_frame([[frame, 0, 0], [0, 1, 1]], metrics=metrics)
    with Server(tmp_path / "map") as server:
        page = Page(browser, server.url, **size)
        figures = page.tab.locator("#metrics b")
        assert figures.all_inner_texts() == ["0.000", "1.000", "2.000", "3.000"]
        selects = page.tab.locator("#metrics select")
        selects.nth(1).select_option("figure 5")
        selects.nth(0).select_option("figure 2")
        page.until("() => document.querySelector('#metrics b').textContent === '2.000'")
        assert figures.all_inner_texts() == ["2.000", "5.000", "0.000", "3.000"]
        assert page.get("document.querySelectorAll('#plot path').length") == 4
        page.picture("figures")
        assert page.accessible() == []
        page.close()


#: Run as a script, or parsed as an element, this would set a mark; it has everything that ends an attribute, an element
#: or a text.
EVIL = "\"'`</script></title><img src=x onerror=window.evil=1><script>window.evil=1</script>${window.evil=1}"


def test_names_are_texts_and_never_elements(browser: Any, tmp_path: Path) -> None:
    """Names come from whoever made the data, and the page has a token: a script in a name could do all that its reader
    can.
    """

    def looked_at(url: str, about: str) -> None:
        page = Page(browser, url)
        page.panel("legend")
        spot = page.spot(EVIL + "0")
        page.tab.mouse.move(*spot)
        page.tab.mouse.click(*spot)
        page.until("() => tidemill.chosen.rows.length === 1")
        page.tab.keyboard.press("/")
        for menu in page.tab.locator("select:visible").all():
            for option in menu.locator("option").all():
                menu.select_option(option.get_attribute("value"))
        page.settled()
        assert "<img src=x" in page.tab.inner_text("body") and about in page.tab.content()
        assert page.get("[window.evil ?? null, document.querySelectorAll('img[src=x]').length]") == [None, 0]
        page.close()

    rng, ids = np.random.default_rng(0), [f"{EVIL}{number}" for number in range(20)]
    with FrameWriter(tmp_path / "evil", title=EVIL, axes=[f"{EVIL}{axis}" for axis in "xyz"]) as writer:
        for frame in range(2):
            writer.write_frame(
                rng.uniform(-1, 1, size=(20, 3)),
                ids=ids,
                time=f"{EVIL}{frame}",
                labels=[f"{EVIL} label {number}" for number in range(20)],
                groups={
                    f"{EVIL}a": [f"{EVIL}{number % 3}" for number in range(20)],
                    "half": [number % 2 for number in range(20)],
                },
                values={f"{EVIL}v": rng.uniform(size=20)},
                metrics={f"{EVIL}m{number}": float(frame) for number in range(9)},
                heat_map=np.eye(4),
            )
    with Server(tmp_path / "evil") as server:
        looked_at(server.url, "<title>")
    export_html(tmp_path / "evil", tmp_path / "evil.html")
    looked_at(f"file://{tmp_path / 'evil.html'}", "data-file")
    # A library shows what was written about a plot.
    library = Library(tmp_path / "library")
    library.add(tmp_path / "evil", title=EVIL, description=EVIL, tags=[EVIL[:60]], collection=EVIL[:60])
    with Server(library) as server:
        page = Page(browser, server.url, wait=False)
        page.tab.wait_for_selector("#plots li")
        assert "<img src=x" in page.tab.inner_text("#plots")
        assert page.get("[window.evil ?? null, document.querySelectorAll('img[src=x]').length]") == [None, 0]
        page.close()

"""The library in a real browser: uploads good and bad, search, versions that come back, links that only show."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browsed
import launched
import numpy as np
import pytest
from browsed import TOKEN, Page
from PIL import Image
from tidemill.viz import FrameReader, Library, Server
from tidemill.viz._demo import write_market

pytestmark = browsed.NEEDED
browser = browsed.browser

POINTS = "".join(f"{n} {np.sin(n):.4f} {np.cos(n):.4f} {n / 50} {n % 3} point {n}\n" for n in range(60)).encode()


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "library")


@pytest.fixture
def plot(library: Library, tmp_path: Path) -> str:
    write_market(tmp_path / "market", points=200, frames=6)
    return library.add(tmp_path / "market", tags=["prices"], collection="Finance").id


@pytest.fixture
def url(library: Library) -> Iterator[str]:
    """The address of a server in this process."""
    with Server(library, token=TOKEN) as server:
        yield server.url


@pytest.fixture
def command_url(library: Library) -> Iterator[str]:
    """The address of a server that `tidemill view` runs."""
    with browsed.viewed("--library", library.folder, "--token", TOKEN) as url:
        yield url


def listed(page: Page) -> list[str]:
    return page.tab.locator("#plots .title").all_inner_texts()


def upload(page: Page, *files: tuple[str, bytes]) -> None:
    page.tab.click("#upload")
    page.tab.set_input_files("#files", [{"name": n, "mimeType": "text/plain", "buffer": data} for n, data in files])
    page.tab.click("#send")


@browsed.SIZES
def test_uploads_are_taken_in_found_and_described(
    browser: Any, url: str, library: Library, size: dict[str, Any]
) -> None:
    """A plot's way through the page; the dialog explains a bad file, and the next one goes through."""
    page = Page(browser, url, wait=False, **size)
    page.tab.wait_for_selector("text=No plots yet")
    upload(page, ("bad.txt", b"0 0 0 0 1\n1 2 3\n"))
    page.tab.wait_for_selector("#upload-wrong:not([hidden])")
    assert "bad.txt, line 2: it has 3 fields" in page.tab.inner_text("#upload-wrong")
    page.picture("library-upload")
    assert page.errors.pop().startswith("Failed to load resource") and library.count() == 0
    page.tab.set_input_files("#files", [{"name": "<b>good.txt", "mimeType": "text/plain", "buffer": POINTS}])
    page.tab.fill("#new-tags", "round, <i>text</i>")
    page.tab.fill("#collection", "Shapes and such")
    page.tab.click("#send")
    page.tab.wait_for_selector("#plots li")
    assert listed(page) == ["<b>good"]
    # Two files at once are two frames.
    upload(page, ("f10.txt", POINTS), ("f9.txt", POINTS))
    page.until("() => document.querySelectorAll('#plots > li').length === 2")
    assert [plot.frames for plot in library.plots("f10")] == [2]
    page.tab.fill("#query", "poi 17 good")
    page.until("() => document.querySelectorAll('#plots > li').length === 1")
    page.tab.fill("#query", "nonsense")
    page.tab.wait_for_selector("text=Nothing is found.")
    page.tab.fill("#query", "")
    page.until("() => document.querySelectorAll('#plots > li').length === 2")
    page.tab.click("#collections button")
    page.until("() => document.querySelectorAll('#plots > li').length === 1")
    assert page.tab.input_value("#query") == 'in:"Shapes and such"'
    page.picture("library")
    page.tab.click("#plots .head button")
    page.tab.fill("#edit-title", "Another name")
    page.tab.press("#edit-title", "Enter")
    page.tab.wait_for_selector("text=Another name")
    assert library.plots("tag:round")[0].title == "Another name"
    assert page.get("document.documentElement.scrollWidth") <= size["width"]
    page.tab.click("#plots .head button")
    page.tab.click("text=Remove the plot…")
    page.tab.click("#remove-dialog .danger")
    page.tab.wait_for_selector("text=Nothing is found.")
    assert library.count() == 1
    page.close()


@browsed.SIZES
def test_a_version_is_saved_and_opened_again(
    browser: Any, url: str, library: Library, plot: str, size: dict[str, Any]
) -> None:
    """Colors, names, what is hidden, groups, glyphs and the view must all come back, and the original must stay as it
    was.
    """
    page = Page(browser, url, wait=False, **size)
    page.tab.click("#plots .title")
    page.settled()
    page.panel("legend")
    page.tab.hover("#categories li:has-text('Energy')")
    page.tab.click("button[title='Edit Energy']")
    page.tab.fill("#category-name", "Oil <b>&</b> gas")
    page.tab.fill("#category-colour", "#ff00ff")
    page.tab.press("#category-name", "Enter")
    page.tab.click("button[title='Show or hide Utilities']")
    page.tab.keyboard.press("Escape")
    row = page.get("tidemill.rowsOf(['FI095']).then(([row]) => row ?? 30)")
    page.get(f"tidemill.chosen.choose([{row}])")
    page.panel("legend", not page.phone)
    page.tab.click("#chosen button:not(.follow)")
    page.tab.fill("#point-name", "the odd one")
    page.tab.select_option("#point-glyph", "star")
    page.tab.click("#edit-point button.primary")
    page.get("tidemill.groups.save('mine', [0, 3])")
    page.tab.locator("#scrub").fill("3")
    page.settled()
    page.panel("about")
    page.tab.fill("#version-name", "My version")
    page.tab.fill("#about input.author", "Ada")
    page.tab.click("#save-version button")
    page.tab.wait_for_selector("#versions [aria-current=true]:has-text('My version')")
    page.picture("library-version")
    kept = {change["set"]: change["value"] for change in library.changes(plot, 1)}
    point = page.get(f"tidemill.known.load([{row}]).then(() => tidemill.id({row}))")
    assert kept.pop("view").startswith("frame=3")
    assert kept == {
        "colour": "#ff00ff", "name": "Oil <b>&</b> gas", "hidden": True, "label": "the odd one", "glyph": "star", "group": [0, 3],
    }  # fmt: skip
    assert library.versions(plot)[1].author == "Ada"
    page.tab.click("#versions button:has-text('original')")
    page.until(
        "() => tidemill.categories().some((c) => c.title === 'Energy') && tidemill.categories().every((c) => c.shown)"
    )
    assert page.get("tidemill.categories().map((c) => c.title)").count("Energy") == 1
    page.close()
    # Whoever opens the plot sees the newest version.
    page = Page(browser, url.replace("/?", f"/plots/{plot}?"), **size)
    energy = page.get("tidemill.categories().find((c) => c.name === 'Energy')")
    assert (energy["title"], energy["colour"]) == ("Oil <b>&</b> gas", "rgb(255 0 255)")
    assert not page.get("tidemill.categories().find((c) => c.name === 'Utilities').shown")
    assert page.get("tidemill.playback.position") == 3
    assert page.get("[...tidemill.colours.glyphs()]")[-1] == [point, "star"]
    assert page.tab.inner_text("#chosen").startswith("the odd one")
    page.panel("legend")
    page.tab.select_option("#colour", "my groups")
    assert page.get("tidemill.categories()[0].name") == "mine"
    # A change saved on top of it is the only one in its log.
    page.tab.select_option("#colour", "sector")
    page.tab.click("button[title='Show or hide Utilities']")
    page.panel("about")
    page.tab.fill("#version-name", "Second")
    page.tab.click("#save-version button")
    page.tab.wait_for_selector("#versions [aria-current=true]:has-text('Second')")
    assert library.versions(plot)[2].parent == 1
    assert "hidden" not in {change["set"] for change in library.changes(plot, 2)}
    page.tab.fill("#comment-text", "<script>alert(1)</script>\nsecond line")
    page.tab.click("#add-comment button")
    page.tab.wait_for_selector("#comments li")
    assert page.tab.inner_text("#comments p") == "<script>alert(1)</script>\nsecond line"
    page.tab.click("#comments .remove")
    page.until("() => document.querySelectorAll('#comments li').length === 0")
    page.close()


@browsed.AXE_NEEDED
@browsed.SIZES
def test_a_version_is_renamed_and_deleted(
    browser: Any, url: str, library: Library, plot: str, size: dict[str, Any]
) -> None:
    """This includes the version shown: the page goes back to what it was built on, and keeps what its reader had
    changed since.
    """
    energy = {"set": "name", "grouping": "sector", "category": "Energy"}
    for parent, name in enumerate(["Oil", "Gas", "Wind"]):
        library.save_version(plot, name, [{**energy, "value": name}], parent=parent, author="Ada")
    page = Page(browser, url.replace("/?", f"/plots/{plot}?"), **size)
    title = "tidemill.categories().find((c) => c.name === 'Energy').title"
    page.panel("about")
    assert page.get(title) == "Wind" and page.tab.locator("#versions .edit").count() == 3
    assert page.accessible() == []
    page.tab.click("button[title='Edit version Oil']")
    page.tab.fill("#new-version-name", "<b>Coal</b>")
    page.picture("library-version-edit")
    assert page.accessible() == []
    page.tab.press("#new-version-name", "Enter")
    page.tab.wait_for_selector("#versions :text('<b>Coal</b>')")
    assert library.versions(plot)[1].name == "<b>Coal</b>"
    page.tab.click("button[title='Edit version Wind']")
    page.tab.click("#edit-version button.danger")
    page.tab.wait_for_selector("#versions [aria-current=true]:has-text('Gas')")
    # The page then fetches the list again.
    page.tab.locator("#versions li").nth(3).wait_for(state="detached")
    assert page.get(title) == "Gas" and page.tab.locator("#versions li").count() == 3
    # With an unsaved change.
    page.get("tidemill.groups.save('mine', [0, 3])")
    page.tab.click("button[title='Edit version Gas']")
    page.tab.click("#edit-version button.danger")
    page.tab.wait_for_selector("#versions [aria-current=true]:has-text('Coal')")
    page.tab.fill("#version-name", "Mine")
    page.tab.click("#save-version button")
    page.tab.wait_for_selector("#versions [aria-current=true]:has-text('Mine')")
    saved = library.versions(plot)[-1]
    kept = {change["set"]: change["value"] for change in library.changes(plot, saved.number)}
    assert (saved.parent, kept["name"], kept["group"]) == (1, "Gas", [0, 3])
    page.close()


def test_nothing_unsaved_is_dropped_in_silence(browser: Any, url: str, library: Library, plot: str) -> None:
    """A reader who has changed something is asked before another version takes its place, and before leaving the page;
    nobody else is.
    """
    library.save_version(plot, "Starry", [{"set": "glyph", "point": "TE000", "value": "star"}])
    page = Page(browser, url.replace("/?", f"/plots/{plot}?"))
    leaving: list[str] = []

    def asked(dialog: Any) -> None:
        leaving.append(dialog.type)
        dialog.dismiss()

    page.tab.on("dialog", asked)
    page.panel("about")

    def show(name: str) -> None:
        page.tab.click(f"#versions button:has-text('{name}')")

    def shown(name: str) -> None:
        page.tab.wait_for_selector(f"#versions [aria-current=true]:has-text('{name}')")

    # A reader who has only looked around has nothing to lose.
    page.tab.keyboard.press("+")
    show("original")
    shown("original")
    show("Starry")
    shown("Starry")
    page.get("tidemill.groups.save('mine', [0, 3])")
    show("original")
    page.tab.wait_for_selector("#drop-changes")
    page.settled()
    page.picture("library-unsaved")
    page.tab.click("#drop-changes button:has-text('Cancel')")
    page.tab.wait_for_selector("#drop-changes", state="detached")
    assert page.get("tidemill.dataset.selections.map(({ name }) => name)") == ["mine"]
    shown("Starry")
    # The browser itself asks a reader who leaves.
    with page.tab.expect_event("dialog"):
        page.tab.click("#back")
    assert leaving == ["beforeunload"] and page.tab.url.split("?")[0].endswith(plot)
    # Saved changes can be left behind; so can discarded ones.
    page.tab.fill("#version-name", "Mine")
    page.tab.click("#save-version button")
    shown("Mine")
    show("original")
    shown("original")
    page.get("tidemill.groups.save('ours', [1])")
    show("Mine")
    page.tab.click("#drop-changes .danger")
    shown("Mine")
    assert page.get("tidemill.dataset.selections.map(({ name }) => name)") == ["mine"]
    page.tab.click("#back")
    page.tab.wait_for_selector("#plots .title")
    assert leaving == ["beforeunload"] and [version.name for version in library.versions(plot)][2:] == ["Mine"]
    page.close()
    # A link that hides groups changes nothing.
    page = Page(browser, url.replace("/?", f"/plots/{plot}?") + "#colour=sector&hide=Energy")
    assert not page.get("tidemill.categories().find((c) => c.name === 'Energy').shown")
    page.panel("about")
    show("original")
    shown("original")
    page.close()
    # A reader who can only look loses no more than groups.
    page = Page(browser, url.replace("/?", f"/plots/{plot}?").replace(TOKEN, library.share(plot).token or ""))
    page.tab.click("button[title='Show or hide Utilities']")
    page.panel("about")
    show("Starry")
    shown("Starry")
    page.get("tidemill.groups.save('theirs', [2])")
    show("original")
    page.tab.wait_for_selector("#drop-changes:has-text('groups')")
    page.close()


def test_a_shared_link_only_shows(browser: Any, command_url: str, library: Library, plot: str) -> None:
    """Whoever gets a link must see the plot without any means to change it; once withdrawn, the link says so."""
    library.save_version(plot, "Only this", [{"set": "glyph", "point": "TE000", "value": "cross"}])
    page = Page(browser, command_url.replace("/?", f"/plots/{plot}?"))
    page.tab.click("#about-toggle")
    page.tab.fill("#share-name", "Bob")
    page.tab.check("#share-only")
    page.tab.click("#make-share button")
    page.tab.wait_for_selector("#shared:not([hidden])")
    link = page.tab.input_value("#share-link")
    page.tab.wait_for_selector("#shares li:has-text('Bob')")
    assert TOKEN not in link
    other = Page(browser, link)
    assert not other.tab.is_visible("#back") and other.tab.locator("#categories button:has-text('edit')").count() == 0
    other.tab.click("#about-toggle")
    assert other.tab.locator("#versions button").all_inner_texts()[0].startswith("Only this")
    assert not other.tab.is_visible("#save-version") and not other.tab.is_visible("#make-share")
    assert not other.tab.is_visible("#about-comments") and other.tab.locator("#chosen svg").count() == 0
    other.picture("library-shared")
    other.close()
    page.tab.click("#shares .remove")
    page.until("() => document.querySelectorAll('#shares li').length === 0")
    page.close()
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(link)
    tab.wait_for_selector("#blank:not([hidden])")
    assert "withdrawn" in tab.inner_text("#blank")
    context.close()


@browsed.SIZES
def test_an_exported_plot_has_its_versions(
    browser: Any, library: Library, plot: str, tmp_path: Path, size: dict[str, Any]
) -> None:
    """Finds versions that are missing from the file, in another order, or built on the wrong one; a control that would
    change something; and a request to a server that is not there.
    """
    grouping = next(iter(FrameReader(library.frames(plot)).categories))
    category = FrameReader(library.frames(plot)).categories[grouping][0]
    about = {"grouping": grouping, "category": category}
    first = library.save_version(plot, "Red", [{"set": "colour", **about, "value": "#ff0000"}], author="Ada").number
    renamed = [
        {"set": "name", **about, "value": "</script><i>ours</i>"},
        {"set": "group", "name": "few", "value": [1, 4]},
        {"set": "view", "value": "frame=3"},
    ]
    library.save_version(plot, "Red and named", renamed, parent=first)
    library.save_version(plot, "Other", [{"set": "colour", **about, "value": "#00ff00"}], note="Not red", parent=0)
    library.comment(plot, "between us")
    file = tmp_path / "plot.html"
    ended = launched.run("view", "--library", library.folder, "--plot", plot, "--export", file)
    assert ended.returncode == 0 and "with its versions" in ended.stdout.decode(), ended
    told = re.search(r'data-file="about.json">([^<]*)<', file.read_text())
    assert told is not None and b"between us" not in base64.b64decode(told[1])
    file.rename(tmp_path / "alone.html")
    page = Page(browser, (tmp_path / "alone.html").as_uri(), **size)
    asked: list[str] = []
    page.tab.on("request", lambda request: asked.append(request.url))

    # The newest comes first, then the others, each with its own changes.
    assert page.get("tidemill.colours.edits.colours.size") == 1
    page.panel("about")
    names = page.tab.locator("#versions button span").all_inner_texts()
    assert names == ["original", "Red", "Red and named", "Other"]
    assert page.tab.locator("#versions [aria-current=true] span").all_inner_texts() == ["Other"]
    page.picture("exported-versions")
    edits = "[[...tidemill.colours.edits.colours.values()], [...tidemill.colours.edits.names.values()], tidemill.dataset.selections]"
    few = [{"name": "few", "rows": [1, 4]}]
    for name, expected in (
        ("Red and named", [["#ff0000"], ["</script><i>ours</i>"], few]),
        ("Red", [["#ff0000"], [], []]),
        ("original", [[], [], []]),
        ("Other", [["#00ff00"], [], []]),
    ):
        page.tab.click(f"#versions button:has(span:text-is('{name}'))")
        page.tab.wait_for_selector(f"#versions [aria-current=true]:has(span:text-is('{name}'))")
        page.settled()
        assert page.get(edits) == expected, name
        if name == "Red and named":
            page.until("() => tidemill.playback.position === 3")
            page.picture("exported-versions-named")
    # The page only shows the plot.
    for control in ("#save-version", "#about-comments", "#make-share", "#back", "#chosen button:not(.follow)"):
        assert not page.tab.locator(control).first.is_visible(), control
    assert [url for url in asked if not url.startswith("blob:")] == []
    page.close()
    # The address may say which version to show.
    page = Page(browser, (tmp_path / "alone.html").as_uri() + f"?version={first}", **size)
    assert page.get(edits) == [["#ff0000"], [], []]
    page.close()


def test_what_cannot_be_exported_of_a_library_is_explained(library: Library, plot: str, tmp_path: Path) -> None:
    file = tmp_path / "plot.html"
    unknown = launched.run("view", "--library", library.folder, "--plot", "0" * 16, "--export", file)
    assert unknown.returncode == 1 and b"tidemill view: there is no plot" in unknown.stderr, unknown
    for arguments in (["--export", file], ["--plot", plot]):
        refused = launched.run("view", "--library", library.folder, *arguments)
        assert refused.returncode == 2 and b"--library DIR --plot ID --export FILE" in refused.stderr, refused
    assert not file.exists()


def test_a_gif_is_recorded(browser: Any, url: str, plot: str, tmp_path: Path) -> None:
    """The file must be a GIF of several different pictures, of the promised size."""
    page = Page(browser, url.replace("/?", f"/plots/{plot}?"))
    warnings: list[str] = []
    page.tab.on("console", lambda said: said.type == "warning" and warnings.append(said.text))
    page.tab.click("#gif")
    page.tab.click("#play")
    page.until("() => tidemill.playback.position > 2")
    with page.tab.expect_download() as download:
        page.tab.click("#gif")
    download.value.save_as(tmp_path / "a.gif")
    # Otherwise each picture is read back from the graphics card, which is slow.
    assert not [text for text in warnings if "willReadFrequently" in text]
    page.close()
    picture = Image.open(io.BytesIO((tmp_path / "a.gif").read_bytes()))
    assert picture.format == "GIF" and max(picture.size) == 640 and picture.n_frames > 3
    first = np.asarray(picture.convert("RGB")).astype(int)
    picture.seek(picture.n_frames - 1)
    assert np.abs(np.asarray(picture.convert("RGB")).astype(int) - first).max() > 50


def test_edges_are_drawn_between_points_that_are_shown(
    browser: Any, url: str, library: Library, tmp_path: Path
) -> None:
    told = {
        "points": [{"id": n, "x": n % 2, "y": n // 2, "z": 0, "cluster": n % 2} for n in range(4)],
        "edges": [[0, 1], [2, 3], [0, 2]],
    }
    (tmp_path / "tree.json").write_text(json.dumps(told))
    plot = library.add(tmp_path / "tree.json").id
    page = Page(browser, url.replace("/?", f"/plots/{plot}?"))
    lines = "tidemill.edges.places(tidemill.scene.between(), tidemill.slots).length / 6"
    page.until("() => tidemill.edges.pairs.length === 6")
    page.settled()
    page.picture("tree")
    ends = page.get("[...tidemill.edges.places(tidemill.scene.between(), tidemill.slots)].map(Math.round)")
    assert page.get(lines) == 3 and ends[:6] == [-1, -1, 0, 1, -1, 0]
    page.tab.click("button[title='Show or hide 1']")
    page.settled()
    assert page.get(lines) == 1
    page.tab.click("#edges")
    assert page.get(lines) == 0 and page.tab.get_attribute("#edges", "aria-pressed") == "false"
    page.close()


@browsed.AXE_NEEDED
def test_everybody_can_use_the_library(browser: Any, url: str, plot: str) -> None:
    """Finds controls without a name and texts without contrast: in the list, in its dialogs, and beside a plot."""
    page = Page(browser, url, wait=False)
    page.tab.wait_for_selector("#plots .title")
    assert page.accessible() == []
    page.tab.click("#upload")
    assert page.accessible() == []
    page.tab.click("#cancel")
    page.tab.click("#plots .head button")
    assert page.accessible() == []
    page.tab.keyboard.press("Escape")
    page.tab.click("#plots .title")
    page.settled()
    page.tab.click("#about-toggle")
    page.tab.click("#chosen button:not(.follow) >> nth=0")
    assert page.accessible() == []
    page.tab.keyboard.press("Escape")
    page.get("tidemill.groups.save('mine', [0])")
    page.tab.click("#versions button")
    page.tab.wait_for_selector("#drop-changes")
    assert page.accessible() == []
    page.close()

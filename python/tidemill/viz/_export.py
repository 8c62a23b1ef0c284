"""A page with its frames embedded: one HTML file that opens without a server and loads nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from tidemill.viz._format import INDEX, FrameError
from tidemill.viz._http import STATIC
from tidemill.viz._read import FrameReader
from tidemill.viz._write import OURS

__all__ = ["export_html", "write_page"]

#: Maximum size of frames: browsers hold a page as text, and base64 adds a third.
BYTES_MAX = 256 << 20
#: The page's name for a library's information about the plot.
ABOUT = "about.json"


def export_html(folder: str | PathLike[str], path: str | PathLike[str]) -> None:
    """Write the frames of a folder, and the page that shows them, to one HTML file.

    It contains all frames, viewers' groups, trajectories, and all of the page's tools. It cannot store new groups, but
    you can save those to a separate file and load them again.

    Parameters
    ----------
    folder : path
        Folder written by `FrameWriter`.
    path : path
        Output file; an existing file is replaced.

    Raises
    ------
    FrameError
        If there are no frames, they take more than 256 MiB, or the page was not built.
    """
    write_page(Path(folder), Path(path))


def write_page(folder: Path, path: Path, about: Mapping[str, Any] | None = None) -> None:
    """Run `export_html`; `about` is a library's information about the plot: its versions with their changes."""
    reader = FrameReader(folder)
    if not len(reader):
        raise FrameError(f"{folder} has no frame yet")
    page = STATIC / "standalone" / "index.html"
    if not page.exists():
        raise FrameError("the page was not built; run `make setup`, or install a wheel, which has it")
    # The index is read first, so that everything it names exists even if a writer is active.
    index = (folder / INDEX).read_bytes()
    index = index[: index.rfind(b"\n") + 1]
    files = sorted(file for file in folder.iterdir() if OURS.fullmatch(file.name))
    size = sum(file.stat().st_size for file in files)
    if size > BYTES_MAX:
        raise FrameError(
            f"{folder} has {size >> 20} MiB of frames, which no browser opens as one file; "
            f"at most {BYTES_MAX >> 20} MiB can be exported: write fewer frames or points, or serve the folder"
        )
    text = page.read_text()
    found = re.search(r'<script type="module"[^>]*src="/standalone/(assets/[\w.-]+\.js)"></script>', text) or re.search(
        r'<script type="module"[^>]*src="/(assets/[\w.-]+\.js)"></script>', text
    )
    styles = re.findall(r'<link rel="stylesheet"[^>]*href="/(assets/[\w.-]+\.css)">', text)
    assert found and styles, "the page names its script and its styles"
    script = (page.parent / found[1]).read_text()
    # Sequences that would end the element, or begin a comment in it, occur only within strings, where a backslash has
    # no effect.
    script = re.sub(r"<(?=/script|!--|script)", r"\\x3C", script, flags=re.IGNORECASE)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src blob: data:; media-src blob:; "
        "worker-src blob:; base-uri 'none'; form-action 'none'"
    )
    text = re.sub(r'\s*<link rel="(?:stylesheet|icon|modulepreload)"[^>]*>', "", text).replace(found[0], "")
    style = "\n".join((page.parent / name).read_text() for name in styles)
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}" />\n<style>\n{style}\n</style>\n'
    text = text.replace("<head>", f"<head>\n{head}", 1)
    begin, _, end = text.rpartition("</body>")
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with made.open("w", encoding="utf-8") as out:
            out.write(begin)
            for file in files:
                data = base64.b64encode(index if file.name == INDEX else file.read_bytes()).decode()
                out.write(f'<script type="text/plain" data-file="{file.name}">{data}</script>\n')
            if about is not None:
                data = base64.b64encode(json.dumps(about, ensure_ascii=False).encode()).decode()
                out.write(f'<script type="text/plain" data-file="{ABOUT}">{data}</script>\n')
            # After the data, which the script reads.
            out.write(f'<script type="module">{script}</script>\n</body>{end}')
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise

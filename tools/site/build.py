"""Builds the documentation site: the guide, the papers of the project, and a reference made from the docstrings.

`make docs` runs it. Pages are staged in ``out/site-pages`` under the paths that they have in the repository, so that their links to
each other hold; Sphinx makes ``out/site`` of them, and any warning, such as a link that leads nowhere, fails the build. Nothing is
imported and nothing compiled: `reference.py` reads the sources of the package.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from reference import Reference, label

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "out" / "site-pages"
SITE = ROOT / "out" / "site"

#: Parts of the navigation, and the pages of each.
PARTS = {
    "Guide": [
        "docs/getting-started.md",
        "docs/recipes.md",
        "docs/dataset.md",
        "docs/streams.md",
        "docs/stream-connectors.md",
        "docs/stream-jobs.md",
        "docs/mixing.md",
        "docs/mpi.md",
        "docs/graph.md",
        "docs/kmeans.md",
        "docs/mds.md",
        "docs/networks.md",
        "docs/iterate.md",
        "docs/series.md",
        "docs/viewer.md",
        "docs/library.md",
        "docs/launching.md",
        "docs/commands.md",
        "docs/hosts.md",
        "docs/scaling.md",
        "docs/environment.md",
        "docs/security.md",
        "docs/troubleshooting.md",
        "docs/nexmark.md",
        "docs/tpch.md",
    ],
    "Gallery": ["docs/gallery.md"],
    "Project": [
        "ARCHITECTURE.md",
        "docs/design/*.md",
        "bench/README.md",
        "bench/RESULTS.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
    ],
}

#: What the reference has for a page of the guide, below the page's title.
REFERENCES = {
    "docs/dataset.md": ["tidemill", "tidemill.DataSet", "tidemill.Expr", "tidemill.functions"],
    "docs/streams.md": ["tidemill.stream"],
    "docs/stream-connectors.md": ["tidemill.stream"],
    "docs/stream-jobs.md": ["tidemill.stream"],
    "docs/mpi.md": ["tidemill.mpi"],
    "docs/graph.md": ["tidemill.graph", "tidemill.graph.exchange"],
    "docs/kmeans.md": ["tidemill.ml"],
    "docs/mds.md": ["tidemill.ml"],
    "docs/networks.md": ["tidemill.networks"],
    "docs/iterate.md": ["tidemill"],
    "docs/series.md": ["tidemill.series"],
    "docs/viewer.md": ["tidemill.viz"],
    "docs/library.md": ["tidemill.viz"],
}

FENCED = re.compile(r"^(```.*?^```)[^\n]*$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)]*)?\))")
CODE = re.compile(r"(?<![`\[])`([^`\n]+)`(?![`\]])")


def guide(page: Path, reference: Reference) -> str:
    """A page of the repository as a page of the site: names of the API are links, the first time in each section."""
    pieces = FENCED.split(page.read_text())
    for number in range(0, len(pieces), 2):
        seen: set[str] = set()

        def linked(match: re.Match[str], seen: set[str] = seen) -> str:
            target = reference.target(match[1])
            if target is None or target in seen:
                return match[0]
            seen.add(target)
            return f"[{match[0]}](#{target})"

        # Tables and headings stay as they are: links there are clutter, and headings are link targets themselves.
        lines = [line if line.startswith(("#", "|")) else CODE.sub(linked, line) for line in pieces[number].split("\n")]
        pieces[number] = "\n".join(lines)
    return "".join(pieces)


def stage(page: Path, reference: Reference) -> None:
    """Put a page, and the files that it links to, where Sphinx finds them."""
    at = page.relative_to(ROOT)
    target = PAGES / ("index.md" if at == Path("README.md") else at)
    target.parent.mkdir(parents=True, exist_ok=True)

    def file(match: re.Match[str]) -> str:
        linked = (page.parent / match[2]).resolve()
        if re.match(r"\w+:", match[2]) or not linked.is_file():
            return match[0]
        if linked == ROOT / "README.md":
            return match[0].replace("README.md", "index.md")
        if linked.suffix != ".md":
            copy = PAGES / linked.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(linked, copy)
        return match[0]

    text = LINK.sub(file, guide(page, reference))
    names = REFERENCES.get(at.as_posix())
    if names:
        links = ", ".join(f"[`{name}`](#{label(name)})" for name in names)
        text = text.replace("\n\n", f"\n\n*Reference: {links}*\n\n", 1)
    target.write_text(text)


def navigation(reference: Reference) -> str:
    """The trees of the navigation, for the end of the first page."""
    parts = {**PARTS, "Reference": reference.pages}
    order = ["Guide", "Gallery", "Reference", "Project"]
    trees = []
    for part in order:
        pages = [page for pattern in parts[part] for page in expand(pattern)]
        if len(pages) == 1:
            trees.append(f"```{{toctree}}\n:hidden:\n\n{pages[0]}\n```")
            continue
        (PAGES / f"{part.lower()}.md").write_text(
            f"# {part}\n\n```{{toctree}}\n:maxdepth: 2\n\n" + "\n".join(f"/{page}" for page in pages) + "\n```\n"
        )
        trees.append(f"```{{toctree}}\n:hidden:\n\n{part.lower()}.md\n```")
    return "\n\n" + "\n\n".join(trees) + "\n"


def expand(pattern: str) -> list[str]:
    """The staged pages of a pattern; one that names no page at all is an error."""
    found = sorted(page.relative_to(PAGES).as_posix() for page in PAGES.glob(pattern))
    if not found:
        raise SystemExit(f"tools/site/build.py: the navigation names {pattern}, but there is no such page")
    return found


def main() -> None:
    """Stage everything, and build."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    reference = Reference(ROOT / "python")
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")]):
        stage(page, reference)
    reference.write(PAGES)
    with (PAGES / "index.md").open("a") as index:
        index.write(navigation(reference))
    sphinx = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-j", "auto"]
    code = subprocess.call(
        [*sphinx, "-c", str(Path(__file__).parent), "-d", str(ROOT / "out" / "site-cache"), str(PAGES), str(SITE)]
    )
    if code:
        raise SystemExit(code)
    print(f"the site is in {SITE.relative_to(ROOT)}: open {SITE.relative_to(ROOT)}/index.html")


if __name__ == "__main__":
    main()

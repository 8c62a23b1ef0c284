"""The programs in README and ``docs/`` run and print what the page says, and every link leads somewhere.

A page marks what is to be run with comments, which readers do not see::

    <!-- file: pi.py -->            the next block is this file
    <!-- run: python pi.py -->      the next block is what this command prints; `...` stands for anything in a line
    <!-- run 3: python fails.py --> the same, for a command that exits with 3

All files of a page lie in one folder. The lines of several workers come in any order, so order is not compared.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import launched
import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md"), *ROOT.glob("examples/*.md")])
BLOCK = re.compile(r"<!-- (file|run)(?: (\d+))?: (.+?) -->\n+```[a-z]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)]*))?\)")
IMAGE = re.compile(r'<img src="([^":]+)"')
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def matches(line: str, pattern: str) -> bool:
    """Whether a printed line is what the page says."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("..."))), line) is not None


def difference(printed: list[str], page: list[str]) -> str:
    """Show lines printed but not on the page, and the other way round; empty if there are none."""
    left = list(page)
    extra = []
    for line in printed:
        # Exact lines first, so that a pattern does not use up what only it can match.
        found = next((p for p in left if p == line), None) or next((p for p in left if matches(line, p)), None)
        if found is None:
            extra.append(line)
        else:
            left.remove(found)
    return "\n".join([*(f"only printed: {line}" for line in extra), *(f"only on the page: {line}" for line in left)])


RUNNING = [pytest.param(page, id=page.name) for page in PAGES if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", RUNNING)
def test_programs_run_as_the_page_says(page: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for kind, code, what, text in BLOCK.findall(page.read_text()):
        if kind == "file":
            (tmp_path / what).write_text(text)
            continue
        result = subprocess.run(
            ["sh", "-c", what],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=launched.PATIENCE_S,
        )
        printed = result.stdout.decode()
        assert result.returncode == int(code or 0), f"{what}\n{printed}"
        different = difference(printed.splitlines(), text.splitlines())
        assert not different, f"{what}\n{different}\n\nprinted:\n{printed}"


def places(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(CODE.sub("", page.read_text())) if not re.match(r"\w+:", link[0])]
    links += [(image, "") for image in IMAGE.findall(page.read_text())]
    targets = [(page.parent / file if file else page, place) for file, place in links]
    assert [target for target, _ in targets if not target.exists()] == []
    assert [(target.name, place) for target, place in targets if place and place not in places(target)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_headings_skip_no_level(page: Path) -> None:
    """`make docs`, which no test runs, ends with an error at such a heading."""
    levels = [0, *(len(marks) for marks in re.findall(r"^(#+) ", CODE.sub("", page.read_text()), re.MULTILINE))]
    assert levels.count(1) == 1 and all(after <= before + 1 for before, after in pairwise(levels)), levels


def test_the_reference_has_the_modules_that_pages_refer_to() -> None:
    """As above: `make docs` cannot link to a module without a page."""

    def constant(file: str, name: str) -> Any:
        tree = ast.parse((ROOT / "tools/site" / file).read_text()).body
        found = [node for node in tree if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name]
        return ast.literal_eval(found[0].value)

    classes = {"tidemill.DataSet", "tidemill.Expr"}
    named = {module for modules in constant("build.py", "REFERENCES").values() for module in modules}
    assert named - classes <= set(constant("reference.py", "MODULES"))


def test_the_page_of_variables_is_complete() -> None:
    """Compare the page with the sources: finds a variable that they read but the page lacks, or the other way round."""
    name = re.compile(r"\bTIDEMILL_[A-Z]+(?:_[A-Z]+)*\b")
    sources = [*ROOT.glob("crates/*/src/**/*.rs"), *ROOT.glob("python/tidemill/**/*.py")]
    used = {variable for file in sources for variable in name.findall(file.read_text())}
    listed = set(name.findall((ROOT / "docs/environment.md").read_text()))
    assert used == listed


def test_the_page_of_commands_is_complete() -> None:
    help_ = subprocess.run(launched.command("--help"), capture_output=True, text=True, check=True).stdout
    commands = set(re.findall(r"^  ([a-z]+)  ", help_, re.MULTILINE)) - {"help", "tidemill"}
    rows = [row for row in (ROOT / "docs/commands.md").read_text().splitlines() if row.startswith("| `")]
    listed = set(re.findall(r"(?:`tidemill |, `)([a-z]+)", " ".join(row.split(" | ")[0] for row in rows)))
    assert {"run", "top"} <= commands == listed, commands ^ listed


def test_quoted_messages_are_in_the_sources() -> None:
    """Finds messages in the tables of troubleshooting that the code no longer prints, because their wording has
    changed.
    """

    def words(text: str) -> list[str]:
        return re.findall(r"[a-z']+", text.lower())

    sources = [*ROOT.glob("crates/*/src/**/*.rs"), *ROOT.glob("python/tidemill/**/*.py")]
    # A string may continue on the next line after a backslash, or as another string; words of comments are not
    # messages.
    texts = [re.sub(r'\\\n\s*|"\s*\n\s*f?"', "", file.read_text()) for file in sources]
    strings = re.findall(r'"((?:[^"\\\n]|\\.)+)"', re.sub(r"(?m)^\s*(//|# ).*$", "", "\n".join(texts)))
    known = "\n".join(f" {' '.join(words(string))} " for string in strings)
    stale = []
    for row in re.findall(r"^\| (.+?) \| .+ \|$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE):
        for quoted in re.findall(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", row):
            # Values that a message fills in, such as names and numbers, have other words around them, so half of the
            # triples must match.
            parts = [words(part) for part in re.split(r"\.\.\.|\b\d+\b", quoted[1])]
            triples = [f" {' '.join(part[i : i + 3])} " for part in parts for i in range(len(part) - 2)]
            if sum(triple in known for triple in triples) < len(triples) / 2:
                stale.append(quoted[1])
    assert stale == []

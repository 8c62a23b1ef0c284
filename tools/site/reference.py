"""The reference of the API: Markdown pages with signatures and docstrings of all public names, from the sources alone.

griffe reads the package without importing it, so neither Rust nor NumPy is needed. Each module has a page with its functions, and each
class with methods a page of its own. What griffe finds wrong with a docstring, such as a parameter that the signature lacks, is an error.
"""

from __future__ import annotations

import itertools
import logging
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

import griffe

#: The modules whose public names are shown, in the order of the navigation.
MODULES = [
    "tidemill",
    "tidemill.functions",
    "tidemill.stream",
    "tidemill.mpi",
    "tidemill.graph",
    "tidemill.graph.exchange",
    "tidemill.ml",
    "tidemill.networks",
    "tidemill.series",
    "tidemill.viz",
]
#: Classes that programs reach through properties (`col("x").str`) and do not name.
REACHED = {
    "tidemill": [
        "tidemill.dataset._namespaces.Strings",
        "tidemill.dataset._namespaces.DateTimes",
        "tidemill.dataset._namespaces.Lists",
    ]
}

BACKTICKED = re.compile(r"(?<![`\w])`([A-Za-z_][\w.]*)(\(\))?`(?!`)")


class Faults(logging.Handler):
    """Keeps what griffe complains of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.faults: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one complaint."""
        self.faults.append(record.getMessage())


class Reference:
    """The public names of the package, where each is documented, and the pages."""

    def __init__(self, sources: Path) -> None:
        self._package = griffe.load(
            "tidemill", search_paths=[sources], docstring_parser="numpy", allow_inspection=False, resolve_aliases=True
        )
        self.pages: list[str] = []
        self._targets: dict[str, str] = {}
        self._members: dict[str, list[tuple[str, griffe.Object]]] = {}
        for module in MODULES:
            self._members[module] = list(self._public(module))
            for name, thing in self._members[module]:
                if thing.is_attribute and thing.docstring is None:
                    thing.docstring = comment(thing)
                if not is_bare(thing):
                    self._target(f"{module}.{name}", f"{module}.{name}", thing)
        for module in MODULES:
            self._targets.setdefault(module, label(module))

    def _target(self, name: str, path: str, thing: griffe.Object) -> None:
        self._targets.setdefault(name, label(path))
        if thing.is_class:
            for member in methods(thing):
                self._targets.setdefault(f"{name}.{member.name}", label(f"{path}.{member.name}"))

    def _public(self, module: str) -> Iterable[tuple[str, griffe.Object]]:
        found = self._package if module == "tidemill" else self._package[module.removeprefix("tidemill.")]
        if module == "tidemill.mpi":  # it takes its names from MPI.py by `import *`
            found = self._package["mpi.MPI"]
        exports = found.exports or [name for name in found.members if not name.startswith("_")]
        for name in sorted({str(getattr(export, "name", export)) for export in exports}, key=str.lower):
            if name.startswith("__") or name not in found.members:
                continue
            thing = resolved(found.members[name])
            if thing is not None and not thing.is_module:
                yield name, thing
        for path in REACHED.get(module, []):
            thing = self._package[path.removeprefix("tidemill.")]
            yield thing.name, thing

    def target(self, code: str) -> str | None:
        """The label of what a piece of code names (`tm.read_csv(...)`, `DataSet.map`), if that is a public name."""
        name = re.sub(r"\(.*\)$", "", code)
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name):
            return None
        if name.startswith("tm."):
            return self._targets.get("tidemill." + name[3:])
        return self._targets.get(name) or (self._targets.get("tidemill." + name) if "." in name else None)

    def write(self, folder: Path) -> None:
        """Write the pages below ``folder/api``; docstrings with faults end the build."""
        faults = Faults()
        logger = logging.getLogger("griffe")
        logger.addHandler(faults)
        logger.propagate = False
        (folder / "api").mkdir(parents=True, exist_ok=True)
        for module in MODULES:
            self._write_module(folder, module)
        logger.removeHandler(faults)
        if faults.faults:
            raise SystemExit(
                "\n".join([*sorted(set(faults.faults)), f"{len(set(faults.faults))} faults in docstrings"])
            )

    def _write_module(self, folder: Path, module: str) -> None:
        found = self._package if module == "tidemill" else self._package[module.removeprefix("tidemill.")]
        classes: list[str] = []
        bare: list[str] = []
        parts: dict[str, list[str]] = {"Functions": [], "Classes": [], "Constants": []}
        for name, thing in self._members[module]:
            path = f"{module}.{name}"
            if self._targets.get(path, label(path)) != label(path):  # documented under another module already
                continue
            if thing.is_class and any(True for _ in methods(thing)):
                classes.append(f"{path}.md")
                (folder / "api" / f"{path}.md").write_text(self._class_page(path, thing))
            if is_bare(thing):
                bare.append(name)
                continue
            kind = "Functions" if thing.is_function else "Classes" if thing.is_class else "Constants"
            parts[kind].append(self._summary(path, thing) if f"{path}.md" in classes else self._entry(path, thing, 3))
        if bare:
            parts["Constants"].append(", ".join(f"`{name}`" for name in bare) + "\n")
        text = [f"({label(module)})=\n# {module}\n", self._docstring(found, module)]
        for kind, entries in parts.items():
            if entries:
                text += [f"\n## {kind}\n", *entries]
        if classes:
            text.append("\n```{toctree}\n:hidden:\n\n" + "\n".join(classes) + "\n```\n")
        (folder / "api" / f"{module}.md").write_text("\n".join(text))
        self.pages.append(f"api/{module}.md")

    def _summary(self, path: str, thing: griffe.Object) -> str:
        first = thing.docstring.value.strip().split("\n\n")[0].replace("\n", " ") if thing.docstring else ""
        return f"[`{path.rsplit('.', 1)[1]}`](#{label(path)})\n: {self._linked(first, path)}\n"

    def _class_page(self, path: str, thing: griffe.Object) -> str:
        text = [self._entry(path, thing, 1)]
        text += [self._entry(f"{path}.{member.name}", member, 2) for member in methods(thing)]
        return "\n".join(text)

    def _entry(self, path: str, thing: griffe.Object, level: int) -> str:
        name = path.rsplit(".", 1)[1]
        heading = path if level == 1 else name.replace("__", "\\_\\_")
        text = [f"({label(path)})=\n{'#' * level} {heading}\n"]
        written = signature(name, thing)
        if written:
            text.append(f"```python\n{written}\n```\n")
        text.append(self._docstring(thing, path))
        return "\n".join(text) + "\n"

    def _docstring(self, thing: griffe.Object, path: str) -> str:
        if thing.docstring is None:
            return ""
        text = []
        for section in thing.docstring.parsed:
            if section.kind is griffe.DocstringSectionKind.text:
                text.append(self._prose(section.value, path))
            elif section.kind is griffe.DocstringSectionKind.examples:
                text.append("**Examples**\n")
                text += [
                    self._prose(value, path) if kind is griffe.DocstringSectionKind.text else fence(value, "pycon")
                    for kind, value in section.value
                ]
            elif section.kind is griffe.DocstringSectionKind.admonition:
                text.append(f"**{section.title}**\n\n{self._prose(section.value.description, path)}")
            else:
                text.append(f"**{(section.title or section.kind.value).capitalize()}**\n")
                for item in section.value:
                    text.append(self._item(item, path))
        return "\n".join(text)

    def _item(self, item: griffe.DocstringElement, path: str) -> str:
        name = getattr(item, "name", "")
        annotation = str(item.annotation) if item.annotation is not None else ""
        head = ": ".join(f"`{part}`" for part in (name, annotation) if part)
        body = textwrap.indent(self._prose(item.description, path).strip(), "  ").strip()
        return f"{head}\n: {body or '-'}\n"

    def _prose(self, text: str, path: str) -> str:
        """A docstring's text as Markdown: doctests are fenced, the colons before a block of code are one."""
        paragraphs = re.split(r"\n{2,}", text.strip("\n"))
        done = []
        while paragraphs:
            paragraph = paragraphs.pop(0)
            if paragraph.lstrip().startswith(">>>"):
                done.append(fence(textwrap.dedent(paragraph), "pycon"))
            elif paragraph.startswith("    "):
                block = "\n\n".join([paragraph, *itertools.takewhile(lambda text: text.startswith("    "), paragraphs)])
                del paragraphs[: block.count("\n\n")]
                done.append(fence(textwrap.dedent(block), "python"))
            else:
                done.append(self._linked(re.sub(r"::$", ":", paragraph), path) + "\n")
        return "\n".join(done)

    def _linked(self, text: str, path: str) -> str:
        """Names between backticks lead to what they name: a member of the same class, then of the same module, then of the package."""
        within = [path, path.rsplit(".", 1)[0], path.rsplit(".", 2)[0], "tidemill"]

        def linked(match: re.Match[str]) -> str:
            names = [f"{around}.{match[1]}" for around in within] + [match[1]]
            target = next((self._targets[name] for name in names if name in self._targets), None)
            if target is None or target == label(path):
                return match[0]
            return f"[{match[0]}](#{target})"

        return BACKTICKED.sub(linked, text)


def label(path: str) -> str:
    """What links to a name are called. Sphinx makes labels lower case, and names differ by case alone in `tidemill.mpi`."""
    return "api-" + re.sub(r"[A-Z]+", lambda upper: f"^{upper[0].lower()}", path).replace(".", "-").replace(
        "_", "-"
    ).replace("^", "u--")


def resolved(thing: griffe.Object) -> griffe.Object | None:
    """What a name stands for; nothing where that is not part of the package."""
    try:
        thing = thing.final_target if thing.is_alias else thing
    except griffe.AliasResolutionError:
        return None
    return thing if thing.path.startswith("tidemill.") else None


def comment(thing: griffe.Object) -> griffe.Docstring | None:
    """The ``#:`` lines above a constant, which griffe does not read."""
    lines = thing.filepath.read_text().splitlines()[: thing.lineno - 1]
    above: list[str] = []
    while lines and lines[-1].startswith("#:"):
        above.insert(0, lines.pop()[2:].strip())
    return griffe.Docstring("\n".join(above), parent=thing, parser="numpy") if above else None


def is_bare(thing: griffe.Object) -> bool:
    """Whether all that is to be said of a constant is its name: MPI has hundreds of them."""
    return thing.is_attribute and thing.docstring is None


def fence(code: str, language: str) -> str:
    """A block of code."""
    return f"```{language}\n{code.strip()}\n```\n"


def methods(thing: griffe.Object) -> Iterable[griffe.Object]:
    """The public methods and properties of a class, with those it inherits within the package, by name."""
    members = {**thing.inherited_members, **thing.members}
    for name in sorted(members, key=str.lower):
        member = members[name]
        member = resolved(member)
        if member is None:
            continue
        wanted = not name.startswith("_") or name in ("__getitem__", "__call__")
        if wanted and member.docstring is not None and (member.is_function or member.is_attribute):
            yield member


def signature(name: str, thing: griffe.Object) -> str:
    """The signature of a function or class as a programmer would write it, a parameter a line where it is long."""
    if thing.is_attribute:
        return f"{name}: {thing.annotation}" if thing.annotation is not None else ""
    if thing.is_class:
        parameters = thing.parameters
        made_by_the_package = any("Native" in str(parameter.annotation) for parameter in parameters)
        if "__init__" not in thing.all_members or made_by_the_package:
            return ""
        returned = ""
    else:
        parameters = thing.parameters
        returned = f" -> {thing.returns}" if thing.returns is not None else ""
    written: list[str] = []
    kinds = griffe.ParameterKind
    last = None
    for parameter in parameters:
        if parameter.name in ("self", "cls"):
            continue
        if last is kinds.positional_only and parameter.kind is not kinds.positional_only:
            written.append("/")
        if parameter.kind is kinds.keyword_only and last not in (kinds.keyword_only, kinds.var_positional):
            written.append("*")
        last = parameter.kind
        stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(parameter.kind, "")
        text = f"{stars}{parameter.name}"
        if parameter.annotation is not None:
            text += f": {parameter.annotation}"
        if parameter.default is not None and not stars:
            text += f" = {parameter.default}" if parameter.annotation is not None else f"={parameter.default}"
        written.append(text)
    if last is kinds.positional_only:
        written.append("/")
    line = f"{name}({', '.join(written)}){returned}"
    if len(line) <= 88:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in written) + f"){returned}"

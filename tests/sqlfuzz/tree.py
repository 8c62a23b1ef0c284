"""SQL as a small tree that can be printed and reduced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

#: What an expression of a kind may become.
SIMPLE = {"bool": ["true", "null"], "int": ["0", "1"], "str": ["'a'"], "float": ["1.5"]}


@dataclass(frozen=True)
class Node:
    """A piece of SQL.

    Two nodes of one `kind` can stand for each other. An `optional` node may be left out. A list has a separator `sep` between its
    parts, of which at least `least` stay. `duck` is how DuckDB writes it, if it is another way.
    """

    kind: str
    parts: tuple[Node | str, ...]
    optional: bool = False
    sep: str | None = None
    least: int = 1
    duck: tuple[Node | str, ...] | None = None

    def sql(self, duck: bool = False) -> str:
        """The text, as DuckDB wants it if `duck`."""
        parts = self.duck if duck and self.duck is not None else self.parts
        return (self.sep or "").join(p if isinstance(p, str) else p.sql(duck) for p in parts)

    def size(self) -> int:
        """Number of nodes."""
        return 1 + sum(p.size() for p in self.parts if isinstance(p, Node))

    def inner(self) -> Iterator[Node]:
        """All nodes below, nearest first."""
        for p in self.parts:
            if isinstance(p, Node):
                yield p
        for p in self.parts:
            if isinstance(p, Node):
                yield from p.inner()

    def smaller(self) -> Iterator[Node]:
        """Trees that are a step smaller, those that lose most first."""
        if self.optional and self.parts:
            yield replace(self, parts=(), duck=None, optional=False)
        if not self.parts:
            return
        for node in self.inner():
            if node.kind == self.kind and self.kind not in ("list", "clause"):
                yield node
        for text in SIMPLE.get(self.kind, []):
            if self.parts != (text,):
                yield Node(self.kind, (text,))
        if self.sep is not None and len(self.parts) > self.least:
            for j in range(len(self.parts)):
                yield replace(self, parts=self.parts[:j] + self.parts[j + 1 :])
        for j, p in enumerate(self.parts):
            if isinstance(p, Node):
                for other in p.smaller():
                    parts = (*self.parts[:j], other, *self.parts[j + 1 :])
                    duck = self.duck and tuple(other if q is p else q for q in self.duck)
                    yield replace(self, parts=parts, duck=duck)


def node(kind: str, *parts: Node | str, duck: tuple[Node | str, ...] | None = None) -> Node:
    """Make a node."""
    return Node(kind, parts, duck=duck)


def optional(*parts: Node | str) -> Node:
    """A clause that may be left out."""
    return Node("clause", parts, optional=True)


def listed(parts: list[Node], sep: str = ", ", least: int = 1) -> Node:
    """A list, of which parts may be left out."""
    return Node("list", tuple(parts), sep=sep, least=least)

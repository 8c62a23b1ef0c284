"""Random queries.

What Tidemill and DuckDB mean otherwise is left out or translated here, each with a comment. `KNOWN` are switches for faults that are
known: a query that would run into one is not made, so that the next fault is found.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlfuzz.data import Table
from sqlfuzz.tree import Node, listed, node, optional

#: Columns that can be named: how, and of which kind.
Scope = list[tuple[str, str]]

#: Names of faults to steer around, with what they leave out.
KNOWN: dict[str, str] = {}

LITERALS = {
    "int": ["0", "1", "2", "-1", "3"],
    "big": ["9223372036854775807", "9007199254740993", "0"],
    "str": ["''", "'a'", "'b'", "'x''y'"],
    "float": ["0.5", "cast('nan' as double)", "cast('-0.0' as double)", "2.0"],
    "dec": ["1.10", "0", "-2.25", "0.001"],
    "date": ["date '2024-02-29'", "date '1970-01-01'", "date '9999-12-31'"],
    "time": ["timestamp '2024-02-29 23:59:59.999999'", "timestamp '1600-01-01 00:00:00'"],
    "bool": ["true", "false"],
}
TYPES = {
    "int": "bigint",
    "big": "bigint",
    "str": "varchar",
    "float": "double",
    "dec": "decimal(10, 2)",
    "date": "date",
    "time": "timestamp",
    "bool": "boolean",
}
#: Characters of a query. Many short ones find more than a few long ones, each of which may take seconds to plan: NOT IN of columns that
#: may be null needs the subquery's rows twice, so its plan still doubles with each level.
LENGTH_MAX = 1500
#: Kinds of queries, for `--only`.
FORMS = ["rows", "joins", "distinct", "groups", "sets", "grouping", "windows", "limits", "lateral"]


@dataclass
class Query:
    """A query: named parts, and a body that reads them. `base` and `where` are of a body that can be divided by a condition."""

    parts: list[tuple[str, Node]]
    body: Node
    form: str
    base: Node | None = None
    where: Node | None = None

    def sql(self, duck: bool = False) -> str:
        """The whole text."""
        return self.wrap(self.body.sql(duck), duck)

    def wrap(self, body: str, duck: bool = False) -> str:
        """A body with the named parts before it."""
        if not self.parts:
            return body
        return "with " + ", ".join(f"{name} as ({part.sql(duck)})" for name, part in self.parts) + " " + body


@dataclass
class Maker:
    """Draws queries over tables."""

    r: random.Random
    tables: list[Table]
    avoid: frozenset[str] = frozenset(KNOWN)
    views: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    _names: int = 0
    _flat: bool = False

    def query(self, only: list[str] | None = None) -> Query:
        """Draw one."""
        while True:
            query = self._query(only)
            if len(query.sql()) < LENGTH_MAX:
                return query

    def _query(self, only: list[str] | None) -> Query:
        self.views = {t.name: list(t.columns) for t in self.tables}
        parts = []
        for name in ["q1", "q2"][: self.r.choice([0, 0, 0, 1, 1, 2])]:
            part, kinds = self.select(self.r.choice(["rows", "joins", "groups", "distinct", "limits"]))
            parts.append((name, part))
            self.views[name] = [(f"c{j}", kind) for j, kind in enumerate(kinds)]
        form = self.r.choice(only or FORMS)
        query = Query(parts, node("query"), form)
        if form in ("rows", "joins") and self.r.random() < 0.4:
            source, scope = self.source(form)
            items, _ = self.items(scope)
            query.base = node("query", "select ", items, " from ", source)
            query.where = self.bool(scope, 3)
            query.body = node("query", query.base, " where ", query.where)
        else:
            query.body, _ = self.select(form)
        return query

    # Sources.

    def alias(self) -> str:
        self._names += 1
        return f"x{self._names}"

    def one(self, deep: int = 1) -> tuple[Node, Scope]:
        """A table or a subquery, with an alias."""
        alias = self.alias()
        if deep and self.r.random() < 0.2:
            inner, kinds = self.select(self.r.choice(["rows", "groups", "limits", "distinct", "sets"]), deep - 1)
            return node("source", "(", inner, f") as {alias}"), [(f"{alias}.c{j}", k) for j, k in enumerate(kinds)]
        name = self.r.choice(sorted(self.views))
        return node("source", f"{name} as {alias}"), [(f"{alias}.{c}", kind) for c, kind in self.views[name]]

    def source(self, form: str, deep: int = 1) -> tuple[Node, Scope]:
        """What stands behind FROM."""
        source, scope = self.one(deep)
        joins = self.r.randint(1, 2) if form == "joins" else self.r.choice([0, 0, 0, 1])
        if form == "lateral":
            return self.lateral(source, scope)
        merged = self.r.random() < 0.25
        for n in range(joins):
            other, more = self.one(deep)
            kind = self.r.choice(["join", "left join", "right join", "full join", "join", "left join"])
            if self.r.random() < 0.06:
                source, scope = node("source", source, " cross join ", other), scope + more
                continue
            left = [c.split(".")[-1] for c, _ in scope]
            # A name that is there twice on the left is ambiguous.
            shared = sorted({c for c in left if left.count(c) == 1} & {c.split(".")[-1] for c, _ in more})
            if n == joins - 1 and shared and merged and all("." in c for c, _ in scope):
                # The merged column has the bare name. Only the last join: another table with the name would make it ambiguous.
                using = self.r.sample(shared, min(len(shared), self.r.randint(1, 2)))
                kinds = {c.split(".")[-1]: k for c, k in scope}
                if all({c.split(".")[-1]: k for c, k in more}[u] == kinds[u] for u in using):
                    source = node("source", source, f" {kind} ", other, f" using ({', '.join(using)})")
                    both = [(c, k) for c, k in scope + more if c.split(".")[-1] not in using]
                    scope = [(u, kinds[u]) for u in using] + both
                    continue
            # DuckDB plans full joins of equality conditions only; it says so, and the query is passed over.
            on = self.on(scope, more)
            source, scope = node("source", source, f" {kind} ", other, " on ", on), scope + more
        return source, scope

    def on(self, left: Scope, right: Scope) -> Node:
        pairs = [(a, b) for a, k in left for b, m in right if k == m]
        equal = []
        for a, b in self.r.sample(pairs, min(len(pairs), self.r.choice([0, 1, 1, 1, 2]))):
            equal.append(node("bool", a, self.r.choice([" = ", " = ", " = ", " is not distinct from "]), b))
        if not equal or self.r.random() < 0.4:
            equal.append(self.bool(left + right, 1, subqueries=False))
        return node("bool", listed([node("bool", "(", e, ")") for e in equal], " and "))

    def lateral(self, source: Node, scope: Scope) -> tuple[Node, Scope]:
        inner, kinds = self.select(self.r.choice(["rows", "groups", "limits"]), 0, scope)
        alias = self.alias()
        how, on = self.r.choice(
            [(", lateral (", ""), (" join lateral (", " on true"), (" left join lateral (", " on true")]
        )
        made = node("source", source, how, inner, f") as {alias}", on)
        return made, scope + [(f"{alias}.c{j}", k) for j, k in enumerate(kinds)]

    # Queries.

    def items(self, scope: Scope, kinds: list[str] | None = None, few: int = 3) -> tuple[Node, list[str]]:
        kinds = kinds or [self.r.choice([k for _, k in scope]) for _ in range(self.r.randint(1, few))]
        made = [self.value(scope, k, 2) for k in kinds]
        return listed([node("item", m, f" as c{j}") for j, m in enumerate(made)]), kinds

    def select(
        self, form: str, deep: int = 1, outer: Scope | None = None, kinds: list[str] | None = None
    ) -> tuple[Node, list[str]]:
        """A query of a form, and the kinds of its columns."""
        r = self.r
        if form == "sets":
            one, kinds = self.select("rows", 0, outer, kinds)
            # EXCEPT ALL and INTERSECT ALL are refused.
            how = r.choice([" union ", " union all ", " intersect ", " except "])
            two, _ = self.select("rows", 0, outer, kinds)
            return node("query", one, how, two), kinds
        source, own = self.source(form, deep)
        # A merged column's bare name may be that of a column here, or of two.
        names = {column.split(".")[-1] for column, _ in own}
        scope = own + [(column, kind) for column, kind in outer or [] if "." in column or column not in names]
        where = optional(" where ", self.bool(scope, 2)) if r.random() < (0.95 if outer else 0.6) else node("clause")
        if form in ("groups", "grouping"):
            # An aggregate of an outer query's columns alone belongs to that query, so only own columns are aggregated.
            return self.grouped(form, source, where, own, kinds)
        if form == "windows":
            return self.window(source, own)
        items, kinds = self.items(scope, kinds)
        distinct = "distinct " if form == "distinct" else ""
        body = node("query", f"select {distinct}", items, " from ", source, where)
        if form == "limits":
            # By all columns: rows that are left out are equal to those that stay. Orders of nulls differ unless they are said.
            order = ", ".join(
                f"c{j} {r.choice(['asc', 'desc'])} nulls {r.choice(['first', 'last'])}" for j in range(len(kinds))
            )
            offset = optional(f" offset {r.randint(0, 3)}") if r.random() < 0.3 else node("clause")
            body = node(
                "query",
                "select * from (",
                body,
                f") as {self.alias()} order by {order} limit {r.choice([0, 1, 2, 5, 100])}",
                offset,
            )
        return body, kinds

    def grouped(
        self, form: str, source: Node, where: Node, scope: Scope, kinds: list[str] | None
    ) -> tuple[Node, list[str]]:
        r = self.r
        wanted = kinds or []
        keys = [self.value(scope, k, 1, subqueries=False) for k in wanted[:1]] or [
            self.value(scope, r.choice([k for _, k in scope]), r.choice([0, 0, 1]), subqueries=False)
            for _ in range(r.choice([0, 1, 1, 2]))
        ]
        if kinds is not None:
            keys = []
        if form == "grouping":
            cols = r.sample(scope, min(2, len(scope)))
            names = [c for c, _ in cols]
            sets = r.choice(
                ["rollup ({0})", "cube ({0})", "grouping sets (({1}), ())", "grouping sets (({0}), ({1}), ({2}))"]
            )
            how = sets.format(", ".join(names), names[0], names[-1])
            made = [node("item", f"{c} as c{j}") for j, c in enumerate(names)]
            aggs = [self.aggregate(scope) for _ in range(r.randint(1, 2))]
            made += [node("item", a, f" as c{len(names) + j}") for j, (a, _) in enumerate(aggs)]
            made.append(node("item", f"grouping({names[0]}) as c{len(made)}"))
            body = node("query", "select ", listed(made), " from ", source, where, f" group by {how}")
            return body, [k for _, k in cols] + [k for _, k in aggs] + ["int"]
        if kinds is not None:
            aggs = [(node(k, "min(", self.value(scope, k, 1, subqueries=False), ")"), k) for k in kinds]
        else:
            aggs = [self.aggregate(scope) for _ in range(r.randint(1, 2))]
        made = [node("item", k, f" as c{j}") for j, k in enumerate(keys)]
        made += [node("item", a, f" as c{len(keys) + j}") for j, (a, _) in enumerate(aggs)]
        # A constant as a key is the number of a column, here and there; a cast keeps it a value.
        group = [node("clause", "group by ", listed([node("key", "(", k, ")") for k in keys]))] if keys else []
        having = optional(" having ", self.having(scope)) if r.random() < 0.3 else node("clause")
        body = node("query", "select ", listed(made), " from ", source, where, " ", *group, having)
        return body, [k.kind for k in keys] + [k for _, k in aggs]

    def having(self, scope: Scope) -> Node:
        a, kind = self.aggregate(scope)
        if kind == "bool":
            return a
        if self.r.random() < 0.3:
            return node("bool", a, " >= ", self.leaf([], kind))
        return node("bool", a, self.r.choice([" is null", " is not null"]))

    def aggregate(self, scope: Scope) -> tuple[Node, str]:
        r = self.r
        kind = r.choice([k for _, k in scope])
        x = self.value(scope, kind, 1, subqueries=r.random() < 0.1)
        where: tuple[Node | str, ...] = (
            (" filter (where ", self.bool(scope, 1, subqueries=False), ")") if r.random() < 0.25 else ()
        )
        choice = r.randint(0, 6)
        if choice == 0:
            return node("int", "count(*)", *where), "int"
        if choice == 1:
            return node("int", "count(", x, ")", *where), "int"
        if choice == 2:
            return node("int", "count(distinct ", x, ")", *where), "int"
        if choice == 3 and kind == "int":
            return node("int", "sum(", r.choice(["", "distinct "]), x, ")", *where), "int"
        if choice == 3 and kind == "dec":
            # A sum of decimals has more digits than its summands.
            return node("float", "cast(sum(", x, ")", *where, " as double)"), "float"
        if choice == 3 and kind == "float":
            return node("float", "sum(", x, ")", *where), "float"
        if choice == 4 and kind == "int":
            return node("float", "avg(", x, ")", *where), "float"
        if choice == 4 and kind == "bool":
            return node("bool", r.choice(["bool_and(", "bool_or("]), x, ")", *where), "bool"
        return node(kind, r.choice(["min(", "max("]), x, ")", *where), kind

    def window(self, source: Node, scope: Scope) -> tuple[Node, list[str]]:
        r = self.r
        # An order by all columns: ties are equal rows, whose values may still differ by their place, so they are aggregated only.
        order = ", ".join(f"{c} {r.choice(['asc', 'desc'])} nulls {r.choice(['first', 'last'])}" for c, _ in scope)
        some = ", ".join(
            f"{c} {r.choice(['asc', 'desc'])} nulls {r.choice(['first', 'last'])}" for c, _ in r.sample(scope, 1)
        )
        part = optional(f"partition by {r.choice(scope)[0]} ") if r.random() < 0.6 else node("clause")
        aggregate, kind = self.aggregate(scope)
        choice = r.randint(0, 4)
        if choice == 0:
            fn = r.choice(["rank()", "dense_rank()", "percent_rank()", "cume_dist()"])
            made, kind = (
                node("w", fn, " over (", part, f"order by {some})"),
                "float" if "_" in fn and fn != "dense_rank()" else "int",
            )
        elif choice == 1:
            made, kind = node("w", "row_number() over (", part, f"order by {order})"), "int"
        elif choice == 2:
            column, kind = r.choice(scope)
            fn = r.choice(["lag({0}, 1)", "lead({0}, 2)", "first_value({0})", "last_value({0})"]).format(column)
            made = node("w", fn, " over (", part, f"order by {order})")
        elif choice == 3:
            # Offsets of GROUPS and RANGE of 0 are refused.
            lo = r.choice(["unbounded preceding", "2 preceding", "1 preceding"])
            hi = r.choice(["current row", "1 following", "unbounded following"])
            made = node("w", aggregate, " over (", part, f"order by {order} rows between {lo} and {hi})")
        else:
            made = node("w", aggregate, " over (", part, r.choice(["", f"order by {some}"]), ")")
        kinds = [kind, *(k for _, k in scope)]
        items = [node("item", made, " as c0"), *(node("item", f"{c} as c{j + 1}") for j, (c, _) in enumerate(scope))]
        return node("query", "select ", listed(items), " from ", source), kinds

    # Expressions.

    def leaf(self, scope: Scope, kind: str) -> Node:
        names = [c for c, k in scope if k == kind]
        if names and self.r.random() < 0.8:
            return node(kind, self.r.choice(names))
        text = "null" if self.r.random() < 0.1 else self.r.choice(LITERALS[kind])
        return node(kind, f"cast({text} as {TYPES[kind]})")

    def value(self, scope: Scope, kind: str, deep: int, subqueries: bool = True) -> Node:
        """An expression of a kind."""
        r = self.r
        if deep <= 0 or r.random() < 0.4:
            return self.leaf(scope, kind)
        if kind == "bool":
            return self.bool(scope, deep, subqueries)

        def sub(k: str = kind) -> Node:
            return self.value(scope, k, deep - 1, subqueries)

        def case() -> Node:
            other = optional(" else ", sub()) if r.random() < 0.8 else node("clause")
            return node(kind, "case when ", self.bool(scope, deep - 1, subqueries), " then ", sub(), other, " end")

        makes: list[Callable[[], Node]] = [
            case,
            lambda: node(kind, "coalesce(", sub(), ", ", sub(), ")"),
            lambda: node(kind, "nullif(", sub(), ", ", sub(), ")"),
        ]
        if kind == "int":
            makes += [
                lambda: node(kind, "(", sub(), r.choice([" + ", " - "]), sub(), ")"),
                lambda: node(kind, "(", sub(), f" * {r.choice(['2', '-1'])})"),
                lambda: node(kind, "(", sub(), f" % {r.randint(2, 4)})"),
                lambda: node(kind, "abs(", sub(), ")"),
                lambda: node(kind, "cast(length(", sub("str"), ") as bigint)"),
                lambda: node(kind, r.choice(["greatest(", "least("]), sub(), ", ", sub(), ")"),
                lambda: node(
                    kind, "cast(extract(", r.choice(["year", "month", "day"]), " from ", sub("date"), ") as bigint)"
                ),
                lambda: self.divided(sub(), r.randint(2, 3)),
            ]
        if kind == "str":
            makes += [
                lambda: node(kind, "(", sub(), " || ", sub(), ")"),
                lambda: node(kind, r.choice(["upper(", "lower("]), sub(), ")"),
                lambda: node(kind, "substr(", sub(), ", 1, 1)"),
            ]
        if kind == "float":
            makes += [lambda: node(kind, "(", sub(), " + ", sub(), ")"), lambda: node(kind, "(- ", sub(), ")")]
        if subqueries and not self._flat:
            makes += [lambda: self.scalar(scope, kind)] * 2
        return r.choice(makes)()

    def divided(self, x: Node, by: int) -> Node:
        """`/` of whole numbers is whole here, and a double in DuckDB."""
        return node("int", "(", x, f" / {by})", duck=("(", x, f" // {by})"))

    def scalar(self, scope: Scope, kind: str) -> Node:
        inner, _ = self.select("groups", 0, scope if self.r.random() < 0.7 else None, [kind])
        return node(kind, "(", inner, ")")

    def bool(self, scope: Scope, deep: int, subqueries: bool = True) -> Node:
        """A condition."""
        r = self.r
        k = r.choice([k for _, k in scope])

        def x() -> Node:
            return self.value(scope, k, deep - 1, subqueries)

        if deep and r.random() < 0.35:
            a, b = self.bool(scope, deep - 1, subqueries), self.bool(scope, deep - 1, subqueries)
            return node("bool", "(", a, r.choice([" and ", " or "]), b, ")")
        if deep and r.random() < 0.15:
            return node("bool", "(not ", self.bool(scope, deep - 1, subqueries), ")")
        makes: list[Callable[[], Node]] = [
            lambda: node("bool", "(", x(), f" {r.choice(['=', '=', '<', '>', '<>', '<=', '>='])} ", x(), ")"),
            lambda: node("bool", "(", x(), f" is {r.choice(['', 'not '])}null)"),
            lambda: node("bool", "(", x(), f" is {r.choice(['', 'not '])}distinct from ", x(), ")"),
            lambda: node("bool", "(", x(), r.choice([" between ", " not between "]), x(), " and ", x(), ")"),
            lambda: node(
                "bool",
                "(",
                x(),
                r.choice([" in (", " not in ("]),
                listed([self.leaf(scope, k) for _ in range(r.randint(1, 3))]),
                "))",
            ),
        ]
        if k == "str":
            makes.append(
                lambda: node(
                    "bool", "(", x(), f" {r.choice(['like', 'not like'])} '{r.choice(['%', '', 'a%', '_', '%b'])}')"
                )
            )
        if k in ("dec", "float"):
            other = "float" if k == "dec" else "dec"
            makes.append(
                lambda: node(
                    "bool",
                    "(",
                    x(),
                    f" {r.choice(['=', '<', '>=', '<>'])} ",
                    self.value(scope, other, deep - 1, subqueries),
                    ")",
                )
            )
        if k == "bool":
            makes += [
                lambda: node("bool", "(", x(), f" is {r.choice(['', 'not '])}{r.choice(['true', 'false'])})"),
                lambda: self.leaf(scope, "bool"),
            ]
        if subqueries and deep and not self._flat:
            makes += [lambda: self.subquery(scope, k, x())] * 3
        return r.choice(makes)()

    def subquery(self, scope: Scope, kind: str, x: Node) -> Node:
        r = self.r
        outer = scope if r.random() < 0.7 else None
        form = r.choice(["rows", "rows", "rows", "joins", "groups", "limits", "sets"])
        if r.random() < 0.5:
            inner, _ = self.select(form, 0, outer)
            return node("bool", r.choice(["(exists (", "(not exists ("]), inner, "))")
        # DuckDB (2.0): NULL IN a correlated subquery without rows is null, not false, if its WHERE has a subquery in turn.
        flat, self._flat = self._flat, self._flat or outer is not None
        inner, _ = self.select(form, 0, outer, [kind])
        self._flat = flat
        how = r.choice(["in", "in", "not in", "not in", "= any", "<> all", "> any", "<= all"])
        return node("bool", "(", x, f" {how} (", inner, "))")

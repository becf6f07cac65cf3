"""Estimates of what a statement would read, from the plan of EXPLAIN and the sizes of the tables in it.

The rule: a sequential scan reads the whole main file of its table. A scan through an index reads the expected rows, at
the average size of a row in that file; if the planner repeats it for each row of another table, as often as that is
expected, and at most the whole file. A foreign scan returns rows of the expected width. A node that the planner does
not expect to run to its end, because of a LIMIT or of a merge join, counts in proportion. Index files, TOAST and what
functions read do not count. Columns are not considered, because PostgreSQL reads whole rows.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from queryserver.engines.estimates import CostEstimate
from queryserver.engines.postgresql.catalog import literal
from queryserver.engines.postgresql.connection import Plan
from queryserver.engines.sessions import DriverStatement, StreamedSession, run
from queryserver.sql.formatter import token_spans
from queryserver.sql.markers import BoundStatement
from queryserver.sql.scanner import first_keyword
from queryserver.sql.statements import is_short

EXPLAIN = "EXPLAIN (VERBOSE, FORMAT JSON) "
_EXPLAINABLE = frozenset(
    {"SELECT", "WITH", "VALUES", "TABLE", "INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "EXECUTE", "DECLARE"}
)
_EXECUTES = frozenset({"ANALYZE", "ANALYSE"})
_PLAIN_OPTIONS = _EXECUTES | {"VERBOSE"}
_COMMENTS = ("--", "/*")
_WHOLE = frozenset({"Seq Scan", "Sample Scan"})
_LEADER_SHARE = 0.3
"""The planner expects that the leader of a parallel plan works less by this share for each worker."""
_MAX_TABLES = 5_000

Table = tuple[str, str]
"""The schema and the name of a table, not quoted."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A node of a plan that reads from a table, or from another server if `table` is None."""

    table: Table | None
    is_whole: bool
    """Whether it reads every row, however few it returns."""
    rows: float
    width: int
    share: float
    """The part that the planner expects to be read before a LIMIT is reached."""

    def size(self, sizes: "Mapping[Table, TableSize]") -> float:
        """Return the number of bytes that the scan reads."""
        known = sizes.get(self.table) if self.table is not None else None
        if known is None:
            return self.share * self.rows * self.width
        if self.is_whole:
            return self.share * known.size
        per_row = known.size / known.rows if known.rows > 0 else self.width
        return min(self.share * self.rows * per_row, known.size)


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of a table's main file in bytes, and the number of its rows when it was last analyzed or vacuumed."""

    size: int
    rows: float


@dataclass(frozen=True, slots=True)
class _Use:
    """How often a node runs, and which part of it each time."""

    share: float = 1.0
    loops: float = 1.0
    processes: float = 1.0


def scans(plan: Mapping[str, Any], use: _Use | None = None) -> Iterator[Scan]:
    """Yield the scans of a plan, as EXPLAIN returns it in JSON."""
    use = use or _Use()
    kind, children = plan["Node Type"], plan.get("Plans", [])
    rows = float(plan["Plan Rows"]) * use.loops * (use.processes if plan.get("Parallel Aware") else 1.0)
    if "Relation Name" in plan and plan.get("Operation") is None:
        table = (str(plan.get("Schema", "")), str(plan["Relation Name"]))
        yield Scan(table, kind in _WHOLE, rows, int(plan["Plan Width"]), use.share)
    elif kind == "Foreign Scan":
        yield Scan(None, is_whole=False, rows=rows, width=int(plan["Plan Width"]), share=use.share)
    for child in children:
        yield from scans(child, _use_of_child(plan, child, use))


def _use_of_child(plan: Mapping[str, Any], child: Mapping[str, Any], use: _Use) -> _Use:
    role = child.get("Parent Relationship")
    if role == "InitPlan":
        return _Use()
    if role == "SubPlan":
        return replace(use, loops=use.loops * max(float(plan["Plan Rows"]), 1.0))
    begin, end, first = float(child["Startup Cost"]), float(child["Total Cost"]), float(plan["Startup Cost"])
    share = use.share
    if first >= end:  # the node returns its first row only after the last row of this child
        share = 1.0
    elif end > begin:
        # A node that costs less than its child does not read it to the end: LIMIT, or one side of a merge join.
        share *= min(max((float(plan["Total Cost"]) - begin) / (end - begin), 0.0), 1.0)
    use = replace(use, share=share)
    if plan["Node Type"] == "Nested Loop" and role == "Inner":
        outer = next((one for one in plan["Plans"] if one.get("Parent Relationship") == "Outer"), None)
        use = replace(use, loops=use.loops * max(float(outer["Plan Rows"]) if outer else 1.0, 1.0))
    if workers := plan.get("Workers Planned"):
        use = replace(use, processes=workers + max(1.0 - _LEADER_SHARE * workers, 0.0))
    if plan["Node Type"] in {"Materialize", "Memoize"}:
        use = replace(use, loops=1.0)
    return use


def explained_from(text: str) -> int | None:
    """Return the offset from which EXPLAIN can return the plan of a statement; None if it has no plan.

    EXPLAIN ANALYZE executes its statement, so that one counts. Without ANALYZE, nothing is read.
    """
    keyword = first_keyword(text, "postgresql")
    if keyword in _EXPLAINABLE:
        return 0
    if keyword != "EXPLAIN":
        return None
    words = (
        (stop, text[start:stop].upper())
        for start, stop in token_spans(text, "postgresql")
        if not text.startswith(_COMMENTS, start)
    )
    next((word for _, word in words if word == "EXPLAIN"), None)
    options, after, is_list = list[str](), 0, False
    for stop, word in words:
        if word == "(" and not options:
            is_list = True
        elif not is_list and word not in _PLAIN_OPTIONS:
            break
        options.append(word)
        after = stop
        if is_list and word == ")":
            break
    # ANALYZE may be quoted in a list of options.
    return after if any(option in _EXECUTES or '"' in option for option in options) else None


class PostgresqlSession(StreamedSession):
    """A session that estimates statements.

    `new_plan` makes a statement that runs in a read-only transaction or savepoint, which is rolled back.
    """

    def __init__(
        self, *arguments: Any, new_plan: Callable[[str | BoundStatement, Plan], DriverStatement], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._new_plan = new_plan

    async def estimate(self, statement: str | BoundStatement) -> CostEstimate | None:
        """Return what the planner expects. The statement is not executed; planning may call stable functions."""
        if isinstance(statement, BoundStatement) and statement.rows:
            statement = statement.rows[0]
        text = statement if isinstance(statement, str) else statement.statement
        start = explained_from(text) if is_short(text) else await asyncio.to_thread(explained_from, text)
        if start is None:
            return None
        found = await self._read(statement, Plan(EXPLAIN, start), max_rows=1)
        if not found:
            return None
        plan = await asyncio.to_thread(json.loads, found[0][0])
        top = plan[0].get("Plan")
        if top is None:  # a utility command has no plan
            return None
        every = list(scans(top))
        sizes = await self._sizes({scan.table for scan in every if scan.table is not None})
        return CostEstimate(
            scanned_bytes=round(sum(scan.size(sizes) for scan in every)),
            cost=float(top["Total Cost"]),
            rows=int(top["Plan Rows"]),
        )

    async def _sizes(self, tables: set[Table]) -> Mapping[Table, TableSize]:
        wanted = sorted(tables)[:_MAX_TABLES]
        if not wanted:
            return {}
        values = ", ".join(
            f"({number}, {literal(schema)}, {literal(name)})" for number, (schema, name) in enumerate(wanted)
        )
        rows = await self._read(
            "SELECT v.number, pg_catalog.pg_relation_size(c.oid), c.reltuples::double precision"  # noqa: S608 quoted
            f" FROM (VALUES {values}) AS v (number, schema, name) JOIN pg_catalog.pg_class c"
            " ON c.oid = pg_catalog.to_regclass(pg_catalog.format('%I.%I', v.schema, v.name))::oid",
            Plan(),
            max_rows=len(wanted),
        )
        return {wanted[number]: TableSize(size or 0, tuples) for number, size, tuples in rows}

    async def _read(self, statement: str | BoundStatement, plan: Plan, *, max_rows: int) -> Sequence[tuple[Any, ...]]:
        """Run a statement beside the session's own, which must have ended, and return its rows."""
        await self._close_operation()
        session = StreamedSession(
            lambda sql, _context: self._new_plan(sql, plan), is_connected=self._is_connected, executor=self._executor
        )
        try:
            answer = await run(session, statement, max_rows=max_rows)
        finally:
            await asyncio.shield(session.leave())
            self._in_doubt = self._in_doubt or not session.is_reusable
        rows = list[tuple[Any, ...]]()
        for batch in answer.rows:
            rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return rows

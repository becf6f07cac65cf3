"""Reads a SQLite database's metadata from table-valued pragmas (sqlite.org/pragma.html)."""

from collections.abc import Sequence

from queryserver import errors
from queryserver.engines import protocol
from queryserver.engines.catalog_queries import (
    Row,
    SessionCatalog,
    build_summaries,
    literal,
    merged_functions,
    table_columns,
)
from queryserver.engines.sqlite import REFUSED_FUNCTIONS

_MAIN = "main"
_NO_STATISTICS = "SQLite has statistics only for indexed columns, and only after ANALYZE."
_ARGUMENTS = "XYZ"


class SqliteCatalog(SessionCatalog):
    """Implements `Catalog`. The only database is `main`, because statements cannot attach other databases."""

    nested_refusal = "SQLite has no nested values."

    async def databases(self) -> Sequence[str]:
        return [_MAIN]

    async def database(self, database: str) -> protocol.DatabaseDescription:
        return protocol.DatabaseDescription(_require_main(database))

    async def tables(self, database: str) -> Sequence[protocol.TableSummary]:
        _require_main(database)
        rows = await self._rows(
            r"SELECT name, type FROM main.sqlite_schema"
            r" WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\_%' ESCAPE '\'"
        )
        return await build_summaries(
            rows, lambda row: protocol.TableSummary(row[0], protocol.TableKind.of(is_view=row[1] == "view"))
        )

    async def table(self, database: str, table: str) -> protocol.TableDescription:
        """Describe a table.

        The name matches regardless of case for A to Z, the only letters whose case SQLite ignores.
        """
        _require_main(database)
        found = await self._rows(
            "SELECT s.name, l.type, l.wr FROM main.sqlite_schema s, pragma_table_list(s.name) l"
            f" WHERE l.schema = 'main' AND s.type IN ('table', 'view') AND s.name = {literal(table)} COLLATE NOCASE"
        )
        if not found:
            raise errors.TableNotFound(_MAIN, table)
        ((name, kind, without_rowid),) = found
        rows = await self._rows(
            f'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_xinfo({literal(name)}, {literal(_MAIN)})'
            " WHERE hidden <> 1 ORDER BY cid"
        )
        counts = list[int]()
        if await self._was_analyzed():
            stats = await self._rows(f"SELECT stat FROM main.sqlite_stat1 WHERE tbl = {literal(name)}")
            counts = [int(stat.split()[0]) for (stat,) in stats if stat and stat.split()[0].isdecimal()]
        return protocol.TableDescription(
            database=_MAIN,
            name=name,
            columns=_columns(rows, is_view=kind == "view", has_rowid=not without_rowid),
            kind=protocol.TableKind.of(is_view=kind == "view"),
            support_updates=None if kind == "virtual" else kind == "table",
            foreign_keys=await self._foreign_keys(name),
            statistics={"numRows": str(max(counts))} if counts else {},
        )

    async def column_statistics(self, table: protocol.TableDescription, column: str) -> protocol.ColumnStatistics:
        """Return the number of distinct values of a column that an index starts with.

        The `stat` of an index begins with the row count and the average number of rows per value of the first column.
        """
        if await self._was_analyzed():
            rows = await self._rows(
                "SELECT s.stat FROM main.sqlite_stat1 s, pragma_index_info(s.idx, 'main') i"
                f" WHERE s.tbl = {literal(table.name)} AND i.seqno = 0 AND i.name = {literal(column)}"
            )
            for (stat,) in rows:
                total, per_value, *_ = [*stat.split(), "", ""]
                if total.isdecimal() and per_value.isdecimal() and int(per_value):
                    return protocol.ColumnStatistics(distinct_count=round(int(total) / int(per_value)))
        return protocol.ColumnStatistics(message=_NO_STATISTICS)

    async def functions(self, database: str | None) -> Sequence[protocol.FunctionDescription]:
        """List the connection's functions. Databases have no functions in SQLite, so the list for `main` is empty."""
        if database is not None:
            _require_main(database)
            return []
        return await self._functions("")

    async def function(self, database: str | None, name: str) -> protocol.FunctionDescription | None:
        if database is not None:
            _require_main(database)
            return None
        found = await self._functions(f" WHERE name = {literal(name)} COLLATE NOCASE")
        return found[0] if found else None

    def analyze_statement(self, table: protocol.TableDescription, column: str | None) -> str:
        if column is not None:
            raise errors.NotSupported("SQLite can only analyze whole tables.")
        return f"ANALYZE {self._full_name(table)}"

    async def _foreign_keys(self, table: str) -> tuple[protocol.ForeignKey, ...]:
        """Return the table's foreign keys. A key without target columns references the primary key."""
        rows = await self._rows(
            'SELECT k."from", k."table", coalesce(k."to", p.name)'
            f" FROM pragma_foreign_key_list({literal(table)}, 'main') k"
            """ LEFT JOIN pragma_table_info(k."table", 'main') p ON p.pk = k.seq + 1 ORDER BY k.id, k.seq"""
        )
        return tuple(protocol.ForeignKey(name, f"{_MAIN}.{other}.{column or ''}") for name, other, column in rows)

    async def _was_analyzed(self) -> bool:
        return bool(await self._rows("SELECT 1 FROM main.sqlite_schema WHERE name = 'sqlite_stat1'"))

    async def _functions(self, condition: str) -> list[protocol.FunctionDescription]:
        rows = await self._rows(
            f"SELECT name, narg, max(builtin) FROM pragma_function_list{condition}"
            " GROUP BY name, narg ORDER BY name, narg"
        )
        return merged_functions(
            (name, _arguments(count), "", is_builtin, "")
            for name, count, is_builtin in rows
            if name.lower() not in REFUSED_FUNCTIONS
        )


def _require_main(database: str) -> str:
    if database.lower() not in ("", _MAIN):
        raise errors.database_not_found(database)
    return _MAIN


def _columns(rows: Sequence[Row], *, is_view: bool, has_rowid: bool) -> tuple[protocol.TableColumn, ...]:
    """Build the table's columns.

    A single INTEGER PRIMARY KEY is the rowid, which is never NULL and which SQLite assigns if it is omitted.
    """
    keys = [row for row in rows if row[4]]
    numbered = keys[0][0] if has_rowid and len(keys) == 1 and keys[0][1].upper() == "INTEGER" else None
    described = (
        (name, kind, "", not not_null and name != numbered, default, name == numbered, bool(key), False)
        for name, kind, not_null, default, key in rows
    )
    return table_columns(described, is_view=is_view)


def _arguments(count: int) -> str:
    """Return an argument list of placeholder names, because SQLite reports only the number of arguments.

    A negative number means any number of arguments.
    """
    if count < 0:
        return "..."
    return ", ".join(_ARGUMENTS[:count] if count <= len(_ARGUMENTS) else (f"X{n}" for n in range(1, count + 1)))

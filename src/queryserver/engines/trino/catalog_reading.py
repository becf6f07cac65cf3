"""Questions to Trino's own catalogue, and what its answers are as values."""

import asyncio
import re
from collections.abc import Mapping, Sequence

from queryserver.engines.catalog_queries import Row, identifier, literal, metadata_errors, qualified, read_rows
from queryserver.engines.protocol import EngineSession
from queryserver.errors.statements import EngineError, EngineUnavailable
from queryserver.formats.columns import Column

_EXTRA_S = 3.0
"""How long to wait for what a list is complete without: some connectors ask a metastore about each table."""


class CatalogReading:
    """Rows about catalogs, schemas and tables; names are those of the engine, in lower case."""

    def __init__(self, session: EngineSession) -> None:
        self._session = session

    async def rows(self, sql: str) -> list[Row]:
        """Raises EngineForbidden, StatementRejected, EngineUnavailable."""
        with metadata_errors():
            return await read_rows(self._session, sql)

    async def extra_rows(self, sql: str, *, for_s: float = _EXTRA_S) -> list[Row]:
        """The rows of a question that some connectors refuse, or do not answer in time: then none."""
        try:
            async with asyncio.timeout(for_s):
                return await self.rows(sql)
        except EngineUnavailable:
            raise
        except (EngineError, TimeoutError):
            return []

    async def catalogs(self) -> list[str]:
        """All catalogs that the user may see."""
        return [name for (name,) in await self.rows("SHOW CATALOGS")]

    async def schemas(self, catalog: str) -> list[str]:
        """All schemas of a catalog."""
        source = qualified(catalog, "information_schema", "schemata")
        return [name for (name,) in await self.rows(f"SELECT schema_name FROM {source}")]

    async def has_schema(self, catalog: str, schema: str) -> bool:
        """Raises TrinoRejected with the name CATALOG_NOT_FOUND."""
        source = qualified(catalog, "information_schema", "schemata")
        return bool(await self.rows(f"SELECT 1 FROM {source} WHERE schema_name = {literal(schema)}"))

    async def tables(self, catalog: str, schema: str, *, name: str | None = None) -> list[Row]:
        """Name and `BASE TABLE` or `VIEW`."""
        source = qualified(catalog, "information_schema", "tables")
        only = "" if name is None else f" AND table_name = {literal(name)}"
        return await self.rows(
            f"SELECT table_name, table_type FROM {source} WHERE table_schema = {literal(schema)}{only}"
        )

    async def comments(self, catalog: str, schema: str, *, name: str | None = None) -> dict[str, str]:
        """Comments of tables and views by name."""
        rows = await self.extra_rows(
            "SELECT table_name, comment FROM system.metadata.table_comments"
            + _place(catalog, schema, "table_name", name)
        )
        return {table: comment for table, comment in rows if comment}

    async def materialized_views(self, catalog: str, schema: str, *, name: str | None = None) -> set[str]:
        """Their names; elsewhere Trino calls them tables."""
        rows = await self.extra_rows(
            "SELECT name FROM system.metadata.materialized_views" + _place(catalog, schema, "name", name)
        )
        return {name for (name,) in rows}

    async def columns(self, catalog: str, schema: str, table: str) -> list[Row]:
        """Name, type, `YES` or `NO`, default, comment and what the connector adds, in table order."""
        source = qualified(catalog, "information_schema", "columns")
        return await self.rows(
            f'SELECT column_name, data_type, is_nullable, column_default, "comment", extra_info FROM {source}'
            f" WHERE table_schema = {literal(schema)} AND table_name = {literal(table)} ORDER BY ordinal_position"
        )

    async def row_types(self, table: Sequence[str], columns: Sequence[Row]) -> Mapping[str, str]:
        """Types of columns that hold rows: elsewhere Trino writes names of fields without the quotes they need."""
        names = [name for name, kind, *_ in columns if "row(" in kind]
        if not names:
            return {}
        wanted = ", ".join(map(identifier, names))
        try:
            async with asyncio.timeout(_EXTRA_S):
                found = await self._columns_of(f"SELECT {wanted} FROM {qualified(*table)} LIMIT 0")
        except (EngineError, TimeoutError):
            return {}
        return {column.name: column.native_type for column in found}

    async def _columns_of(self, sql: str) -> Sequence[Column]:
        handle = await self._session.submit(sql)
        try:
            while not (await self._session.poll(handle, wait_s=1)).state.is_terminal:
                pass
            return await self._session.columns(handle)
        finally:
            await asyncio.shield(self._session.close(handle))

    async def creation(self, kind: str, *names: str) -> str:
        """The statement that would make a `SCHEMA`, `TABLE`, `VIEW`; empty where Trino does not tell it."""
        rows = await self.extra_rows(f"SHOW CREATE {kind} {qualified(*names)}")
        return str(rows[0][0]) if rows else ""

    async def statistics(self, catalog: str, schema: str, table: str) -> list[Row]:
        """Column (None: the table), size, distinct values, share of NULLs, rows, least and greatest value."""
        return await self.extra_rows(f"SHOW STATS FOR {qualified(catalog, schema, table)}")

    async def functions(self, place: Sequence[str], pattern: str | None = None) -> list[Row]:
        """Name, return type, argument types, kind, determinism, description. No place: what needs none."""
        source = f" FROM {qualified(*place)}" if place else ""
        like = f" LIKE {literal(pattern)} ESCAPE {literal(_ESCAPE)}" if pattern is not None else ""
        return await self.rows(f"SHOW FUNCTIONS{source}{like}")


_ESCAPE = "!"


def exact_pattern(name: str) -> str:
    """The LIKE pattern, with `!` as escape, that only this name fits."""
    return "".join(_ESCAPE + character if character in f"%_{_ESCAPE}" else character for character in name)


def _place(catalog: str, schema: str, column: str, name: str | None) -> str:
    only = "" if name is None else f" AND {identifier(column)} = {literal(name)}"
    return f" WHERE catalog_name = {literal(catalog)} AND schema_name = {literal(schema)}{only}"


_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[()\[\],=]|[^\s'"()\[\],=]+|\s+""")
_OPEN, _CLOSE = frozenset("(["), frozenset(")]")
_OWNER = re.compile(r'\bAUTHORIZATION\s+(USER|ROLE)?\s*("(?:[^"]|"")*"|[^\s"]+)')
_TEXT = re.compile(r"'((?:[^']|'')*)'")


def properties(statement: str) -> Mapping[str, str]:
    """The entries of `WITH (…)` behind everything else, as Trino writes them; texts without their quotes."""
    words = _TOKEN.findall(statement)
    depth, start = 0, None
    for place, word in enumerate(words):
        if word.upper() == "WITH" and depth == 0:
            start = place + 1
        elif word.upper() == "AS" and depth == 0:
            break
        depth += (word in _OPEN) - (word in _CLOSE)
    return {} if start is None else dict(_entries(words[start:]))


def owner(statement: str) -> tuple[str, str]:
    """Kind (`USER`, `ROLE`) and name behind AUTHORIZATION; empty texts without it."""
    match = _OWNER.search(statement)
    if match is None:
        return "", ""
    name = match[2]
    return match[1] or "USER", name[1:-1].replace('""', '"') if name.startswith('"') else name


def texts(value: str) -> list[str]:
    """The texts of `ARRAY['a','b']`."""
    return [text.replace("''", "'") for text in _TEXT.findall(value)]


def _entries(words: list[str]) -> list[tuple[str, str]]:
    """Pairs of name and value between the first bracket and the one that closes it."""
    entries, current, depth = list[tuple[str, str]](), list[str](), 0
    for word in words:
        depth += (word in _OPEN) - (word in _CLOSE)
        if depth == 1 and word == "(" and not current:
            continue
        if depth == 0 or (depth == 1 and word == ","):
            name, _, value = "".join(current).partition("=")
            if value:
                entries.append((name.strip().strip('"'), _plain(value.strip())))
            current = []
            if depth == 0 and word == ")":
                break
        else:
            current.append(word)
    return entries


def _plain(value: str) -> str:
    match = _TEXT.fullmatch(value)
    return match[1].replace("''", "'") if match else value

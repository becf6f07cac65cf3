"""Metadata of all catalogs of one coordinator: a database is a schema, named `catalog.schema`."""

import asyncio
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from queryserver.engines.catalog_queries import (
    Row,
    identifier,
    literal,
    metadata_errors,
    qualified,
    read_rows,
    sample_query,
)
from queryserver.engines.protocol import (
    SAMPLE_ROWS,
    ColumnStatistics,
    DatabaseDescription,
    EngineSession,
    FunctionDescription,
    SampleKind,
    TableColumn,
    TableDescription,
    TableKind,
    TableProperty,
    TableSummary,
)
from queryserver.engines.trino.protocol import TrinoRejected
from queryserver.errors.base import NotSupported
from queryserver.errors.statements import EngineError, EngineUnavailable, TableNotFound, database_not_found
from queryserver.formats.columns import Column
from queryserver.sql.types import SqlType, parse_type

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


_PART = r'"((?:[^"]|"")+)"|([^".][^.]*)'
_ONE = re.compile(_PART)
_TWO = re.compile(rf"(?:{_PART})\.(?:{_PART})")


def split_database(database: str, default_catalog: str) -> tuple[str, str]:
    """Catalog and schema; parts that hold a dot stand in double quotes."""
    if match := _TWO.fullmatch(database):
        quoted_catalog, catalog, quoted_schema, schema = match.groups()
        return _bare(quoted_catalog, catalog), _bare(quoted_schema, schema)
    if match := _ONE.fullmatch(database):
        return default_catalog, _bare(*match.groups())
    return default_catalog, database


def join_database(catalog: str, schema: str) -> str:
    """The text that `split_database` reads."""
    return ".".join(identifier(part) if "." in part or part.startswith('"') else part for part in (catalog, schema))


def _bare(quoted: str | None, plain: str | None) -> str:
    return plain if quoted is None else quoted.replace('""', '"')  # type: ignore[return-value]


_WITHOUT_ORDER = ("map(", "json")


def sample_of_column(source: str, column: str, type_text: str, path: Sequence[str], kind: SampleKind) -> str:
    """Distinct values of `source`, a quoted name, in order, or the row of the largest or smallest.

    Raises NotSupported for a path not there.
    """
    value, found, joins = _descend(identifier(column), parse_type(type_text), path)
    values = f"SELECT {value} AS {identifier(path[-1] if path else column)} FROM {source} AS t{joins}"
    name = identifier(path[-1] if path else column)
    order = f"json_format(CAST({name} AS json))" if _is_unordered(found) else name
    if kind in (SampleKind.MAX, SampleKind.MIN):
        direction = "DESC" if kind is SampleKind.MAX else "ASC"
        return f"SELECT {name} FROM ({values}) ORDER BY {order} {direction} NULLS LAST LIMIT 1"
    return (
        f"SELECT {name} FROM (SELECT DISTINCT {name} FROM ({values})) ORDER BY {order} NULLS LAST LIMIT {SAMPLE_ROWS}"
    )


def _descend(value: str, kind: SqlType, path: Sequence[str]) -> tuple[str, SqlType, str]:
    """The expression of the values at the path, their type, and the joins that it needs."""
    joins = ""
    for number, segment in enumerate(path):
        part = kind.part(segment)
        if part is None:
            raise NotSupported(f"Values of type {kind.text[:100]} have no part {segment[:100]}.")
        if kind.fields:
            # Fields are named without regard to case; those without name have their number only.
            place = next(n for n, field in enumerate(kind.fields, 1) if field.type is part)
            value = f"{value}[{place}]"
        else:
            array = _elements(value, kind, segment)
            # An array of rows would become a column per field, were each element not a row of one itself.
            joins += f" CROSS JOIN UNNEST(transform({array}, x -> ROW(x))) AS u{number}(v)"
            value = f"u{number}.v"
        kind = part
    return value, kind, joins


def _elements(value: str, kind: SqlType, segment: str) -> str:
    if kind.item is not None:
        return value
    return f"map_keys({value})" if segment == "key" else f"map_values({value})"


def _is_unordered(kind: SqlType) -> bool:
    text = kind.text.lower()
    return any(word in text for word in _WITHOUT_ORDER)


_ALL_SCHEMAS_S = 10.0
_ONE_CATALOG_S = 5.0
_NO_PLACE = frozenset({"CATALOG_NOT_FOUND", "SCHEMA_NOT_FOUND", "MISSING_CATALOG_NAME", "MISSING_SCHEMA_NAME"})
_NO_STATISTICS = "The connector has no statistics of this column."
_FORMATS = {"textfile": "text"}


class TrinoCatalog:
    """A Catalog. Trino keeps names in lower case, whatever the data source does."""

    def __init__(self, session: EngineSession, *, catalog: str = "", schema: str = "") -> None:
        self._reading = CatalogReading(session)
        self._catalog = catalog
        self._schema = schema

    async def databases(self) -> Sequence[str]:
        """See the Protocol. When one catalog does not answer, the others are asked one by one."""
        rows = await self._reading.extra_rows(
            "SELECT table_catalog, table_schem FROM system.jdbc.schemas", for_s=_ALL_SCHEMAS_S
        )
        if rows:
            return [join_database(catalog, schema) for catalog, schema in rows]
        names = list[str]()
        for catalog in await self._reading.catalogs():
            source = qualified(catalog, "information_schema", "schemata")
            found = await self._reading.extra_rows(f"SELECT schema_name FROM {source}", for_s=_ONE_CATALOG_S)
            names += [join_database(catalog, schema) for (schema,) in found]
        return names

    async def database(self, database: str) -> DatabaseDescription:
        place = await self._existing(database)
        statement = await self._reading.creation("SCHEMA", *place)
        owner_type, owner_name = owner(statement)
        entries = properties(statement)
        return DatabaseDescription(
            name=join_database(*place),
            location=entries.get("location", ""),
            owner_name=owner_name,
            owner_type=owner_type,
            parameters=", ".join(f"{name}={value}" for name, value in entries.items()),
        )

    async def tables(self, database: str) -> Sequence[TableSummary]:
        place = await self._existing(database)
        rows = await self._reading.tables(*place)
        if not rows:
            return []
        materialized = await self._reading.materialized_views(*place)
        comments = await self._reading.comments(*place)
        return [TableSummary(name, _kind(name, kind, materialized, {}), comments.get(name, "")) for name, kind in rows]

    async def table(self, database: str, table: str) -> TableDescription:
        catalog, schema = self._place(database)
        name = table.lower()
        with _found(database):
            rows = await self._reading.columns(catalog, schema, name)
        if not rows:
            await self._existing(database)
            raise TableNotFound(join_database(catalog, schema), table)
        types = await self._reading.row_types((catalog, schema, name), rows)
        materialized = await self._reading.materialized_views(catalog, schema, name=name)
        listed = await self._reading.tables(catalog, schema, name=name)
        kind = _kind(name, listed[0][1] if listed else "", materialized, {})
        noun = "MATERIALIZED VIEW" if materialized else "VIEW" if kind is TableKind.VIEW else "TABLE"
        entries = properties(await self._reading.creation(noun, catalog, schema, name))
        partitioned = set(texts(entries.get("partitioned_by", "") + entries.get("partitioning", "")))
        return TableDescription(
            database=join_database(catalog, schema),
            name=name,
            columns=tuple(_column(row, types, partitioned) for row in rows),
            kind=_kind(name, listed[0][1] if listed else "", materialized, entries),
            comment=(await self._reading.comments(catalog, schema, name=name)).get(name, ""),
            location=entries.get("external_location") or entries.get("location", ""),
            format=_format(entries.get("format", "")),
            properties=tuple(TableProperty(key, value) for key, value in entries.items()),
            statistics={} if kind.is_view else await self._statistics(catalog, schema, name),
        )

    async def column_statistics(self, table: TableDescription, column: str) -> ColumnStatistics:
        """See the Protocol. Trino tells shares and totals."""
        if table.kind.is_view:
            return ColumnStatistics(message="Views have no statistics.")
        rows = await self._reading.statistics(*split_database(table.database, ""), table.name)
        total = next((row[4] for row in rows if row[0] is None), None)
        for name, size, distinct, nulls, _, low, high in rows:
            if name == column and any(value is not None for value in (size, distinct, nulls, low, high)):
                filled = None if total is None or nulls is None else total * (1 - nulls)
                return ColumnStatistics(
                    min=low,
                    max=high,
                    num_nulls=None if total is None or nulls is None else round(total * nulls),
                    distinct_count=None if distinct is None else round(distinct),
                    avg_col_len=None if size is None or not filled else size / filled,
                )
        return ColumnStatistics(message=_NO_STATISTICS)

    async def functions(self, database: str | None) -> Sequence[FunctionDescription]:
        place = () if database is None else await self._existing(database)
        return _functions(await self._reading.functions(place), is_builtin=database is None)

    async def function(self, database: str | None, name: str) -> FunctionDescription | None:
        place = () if database is None else self._place(database)
        rows = await self._reading.functions(place, exact_pattern(name.lower()))
        found = [one for one in _functions(rows, is_builtin=database is None) if one.name == name.lower()]
        return found[0] if found else None

    async def sample_statement(
        self, table: TableDescription, column: str | None, nested: Sequence[str], kind: SampleKind
    ) -> str:
        source = _source(table)
        if column is None:
            return sample_query(source, None, kind)
        described = table.column(column)
        type_text = described.type if described else ""
        return sample_of_column(source, described.name if described else column, type_text, nested, kind)

    def analyze_statement(self, table: TableDescription, column: str | None) -> str:
        """See the Protocol. Connectors that keep no statistics refuse it."""
        statement = f"ANALYZE {_source(table)}"
        return statement if column is None else f"{statement} WITH (columns = ARRAY[{literal(column)}])"

    def _place(self, database: str) -> tuple[str, str]:
        """Catalog and schema as Trino keeps them. Raises database_not_found when a part is missing."""
        catalog, schema = split_database(database, self._catalog) if database else (self._catalog, self._schema)
        if not catalog or not schema:
            raise database_not_found(database)
        return catalog.lower(), schema.lower()

    async def _existing(self, database: str) -> tuple[str, str]:
        place = self._place(database)
        with _found(database):
            if not await self._reading.has_schema(*place):
                raise database_not_found(database)
        return place

    async def _statistics(self, catalog: str, schema: str, table: str) -> Mapping[str, str]:
        rows = await self._reading.statistics(catalog, schema, table)
        counts = [row[4] for row in rows if row[0] is None and row[4] is not None]
        return {"numRows": str(round(counts[0]))} if counts else {}


@contextmanager
def _found(database: str) -> Generator[None]:
    """Around a question about a schema that may not be there."""
    try:
        yield
    except TrinoRejected as error:
        if error.name in _NO_PLACE:
            raise database_not_found(database) from error
        raise


def _source(table: TableDescription) -> str:
    return qualified(*split_database(table.database, ""), table.name)


def _kind(name: str, told: str, materialized: set[str], entries: Mapping[str, str]) -> TableKind:
    if name in materialized:
        return TableKind.MATERIALIZED_VIEW
    if told == "VIEW":
        return TableKind.VIEW
    return TableKind.EXTERNAL if entries.get("external_location") else TableKind.MANAGED


def _column(row: Row, types: Mapping[str, str], partitioned: set[str]) -> TableColumn:
    name, kind, nullable, default, comment, extra = row
    return TableColumn(
        name=name,
        type=types.get(name, kind),
        comment=comment or "",
        nullable={"YES": True, "NO": False}.get(nullable),
        default=default,
        partition_key=name in partitioned or "partition" in (extra or ""),
    )


def _format(told: str) -> str:
    return _FORMATS.get(told.lower(), told.lower())


def _functions(rows: Sequence[Row], *, is_builtin: bool) -> list[FunctionDescription]:
    """Overloads in one; `SHOW FUNCTIONS` gives a row for each."""
    overloads = dict[str, list[Row]]()
    for row in rows:
        overloads.setdefault(row[0], []).append(row)
    return [
        FunctionDescription(
            name=name,
            signature="\n".join(dict.fromkeys(f"{name}({row[2]})" for row in found)),
            return_type=str(found[0][1] or ""),
            is_builtin="BUILTIN" if is_builtin else "",
            description=str(found[0][5] or ""),
        )
        for name, found in overloads.items()
    ]

"""Reads metadata from all catalogs of a coordinator. A database is a schema, named `catalog.schema`."""

import asyncio
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from queryserver import errors
from queryserver.engines import protocol
from queryserver.engines.catalog_queries import (
    Row,
    SessionCatalog,
    identifier,
    literal,
    merged_functions,
    nulls_last_key,
    qualified,
    sample_query,
)
from queryserver.engines.sessions import run
from queryserver.engines.trino.protocol import TrinoRejected
from queryserver.sql.types import SqlType, parse_type

_OPTIONAL_S = 3.0  # limit for optional details, because some connectors query a metastore for each table
_ALL_SCHEMAS_S = 10.0
_ONE_CATALOG_S = 5.0
_NO_DATABASE = frozenset({"CATALOG_NOT_FOUND", "SCHEMA_NOT_FOUND", "MISSING_CATALOG_NAME", "MISSING_SCHEMA_NAME"})


class TrinoCatalog(SessionCatalog):
    """Implements `Catalog`. Trino uses lower-case names even if the data source does not."""

    def __init__(self, session: protocol.EngineSession, *, catalog: str = "", schema: str = "") -> None:
        super().__init__(session)
        self._catalog = catalog
        self._schema = schema

    async def databases(self) -> Sequence[str]:
        """List all schemas with one query; if that fails, with one query per catalog."""
        rows = await self._optional_rows(
            "SELECT table_catalog, table_schem FROM system.jdbc.schemas", for_s=_ALL_SCHEMAS_S
        )
        if rows:
            return [join_database(catalog, schema) for catalog, schema in rows]
        names = list[str]()
        for (catalog,) in await self._rows("SHOW CATALOGS"):
            source = qualified(catalog, "information_schema", "schemata")
            schemas = await self._optional_rows(f"SELECT schema_name FROM {source}", for_s=_ONE_CATALOG_S)
            names += [join_database(catalog, schema) for (schema,) in schemas]
        return names

    async def database(self, database: str) -> protocol.DatabaseDescription:
        names = await self._existing(database)
        statement = await self._show_create("SCHEMA", *names)
        owner_type, owner_name = owner(statement)
        entries = properties(statement)
        return protocol.DatabaseDescription(
            name=join_database(*names),
            location=entries.get("location", ""),
            owner_name=owner_name,
            owner_type=owner_type,
            parameters=", ".join(f"{name}={value}" for name, value in entries.items()),
        )

    async def tables(self, database: str) -> Sequence[protocol.TableSummary]:
        catalog, schema = await self._existing(database)
        rows = await self._tables(catalog, schema)
        if not rows:
            return []
        materialized = await self._materialized_views(catalog, schema)
        comments = await self._comments(catalog, schema)
        return [
            protocol.TableSummary(name, _kind(name, kind, materialized, {}), comments.get(name, ""))
            for name, kind in rows
        ]

    async def table(self, database: str, table: str) -> protocol.TableDescription:
        catalog, schema = self._names(database)
        name = table.lower()
        with _database_errors(database):
            rows = await self._rows(
                'SELECT column_name, data_type, is_nullable, column_default, "comment", extra_info'
                f" FROM {qualified(catalog, 'information_schema', 'columns')}"
                f" WHERE table_schema = {literal(schema)} AND table_name = {literal(name)} ORDER BY ordinal_position"
            )
        if not rows:
            await self._existing(database)
            raise errors.TableNotFound(join_database(catalog, schema), table)
        types = await self._row_types((catalog, schema, name), rows)
        materialized = await self._materialized_views(catalog, schema, name)
        listed = await self._tables(catalog, schema, name)
        listed_kind = listed[0][1] if listed else ""
        kind = _kind(name, listed_kind, materialized, {})
        noun = "MATERIALIZED VIEW" if materialized else "VIEW" if kind is protocol.TableKind.VIEW else "TABLE"
        entries = properties(await self._show_create(noun, catalog, schema, name))
        partitioned = set(texts(entries.get("partitioned_by", "") + entries.get("partitioning", "")))
        file_format = entries.get("format", "").lower()
        comments = await self._comments(catalog, schema, name)
        statistics = [] if kind.is_view else await self._statistics(catalog, schema, name)
        counts = [row[4] for row in statistics if row[0] is None and row[4] is not None]
        return protocol.TableDescription(
            database=join_database(catalog, schema),
            name=name,
            columns=tuple(_column(row, types, partitioned) for row in rows),
            kind=_kind(name, listed_kind, materialized, entries),
            comment=comments.get(name, ""),
            location=entries.get("external_location") or entries.get("location", ""),
            format="text" if file_format == "textfile" else file_format,
            properties=tuple(protocol.TableProperty(key, value) for key, value in entries.items()),
            statistics={"numRows": str(round(counts[0]))} if counts else {},
        )

    async def column_statistics(self, table: protocol.TableDescription, column: str) -> protocol.ColumnStatistics:
        """Return statistics computed from the fractions and totals that Trino reports."""
        if table.kind.is_view:
            return protocol.ColumnStatistics(message="Views have no statistics.")
        rows = await self._statistics(*split_database(table.database, ""), table.name)
        total = next((row[4] for row in rows if row[0] is None), None)
        for name, size, distinct, nulls, _, low, high in rows:
            if name == column and any(value is not None for value in (size, distinct, nulls, low, high)):
                filled = None if total is None or nulls is None else total * (1 - nulls)
                return protocol.ColumnStatistics(
                    min=low,
                    max=high,
                    num_nulls=None if total is None or nulls is None else round(total * nulls),
                    distinct_count=None if distinct is None else round(distinct),
                    avg_col_len=None if size is None or not filled else size / filled,
                )
        return protocol.ColumnStatistics(message="The connector has no statistics for this column.")

    async def functions(self, database: str | None) -> Sequence[protocol.FunctionDescription]:
        source = "" if database is None else f" FROM {qualified(*await self._existing(database))}"
        return _functions(await self._rows(f"SHOW FUNCTIONS{source}"), is_builtin=database is None)

    async def function(self, database: str | None, name: str) -> protocol.FunctionDescription | None:
        source = "" if database is None else f" FROM {qualified(*self._names(database))}"
        rows = await self._rows(f"SHOW FUNCTIONS{source} LIKE {literal(exact_pattern(name.lower()))} ESCAPE '!'")
        found = [one for one in _functions(rows, is_builtin=database is None) if one.name == name.lower()]
        return found[0] if found else None

    async def sample_statement(
        self, table: protocol.TableDescription, column: str | None, nested: Sequence[str], kind: protocol.SampleKind
    ) -> str:
        source = self._full_name(table)
        if column is None:
            return sample_query(source, None, kind)
        described = table.column(column)
        type_text = described.type if described else ""
        return sample_of_column(source, described.name if described else column, type_text, nested, kind)

    def analyze_statement(self, table: protocol.TableDescription, column: str | None) -> str:
        """Return the ANALYZE statement. Connectors without statistics reject it."""
        statement = f"ANALYZE {self._full_name(table)}"
        return statement if column is None else f"{statement} WITH (columns = ARRAY[{literal(column)}])"

    def _full_name(self, table: protocol.TableDescription) -> str:
        return qualified(*split_database(table.database, ""), table.name)

    def _names(self, database: str) -> tuple[str, str]:
        """Return catalog and schema in lower case. Raises database_not_found if either is unspecified."""
        catalog, schema = split_database(database, self._catalog) if database else (self._catalog, self._schema)
        if not catalog or not schema:
            raise errors.database_not_found(database)
        return catalog.lower(), schema.lower()

    async def _existing(self, database: str) -> tuple[str, str]:
        catalog, schema = self._names(database)
        source = qualified(catalog, "information_schema", "schemata")
        with _database_errors(database):
            if not await self._rows(f"SELECT 1 FROM {source} WHERE schema_name = {literal(schema)}"):
                raise errors.database_not_found(database)
        return catalog, schema

    async def _optional_rows(self, sql: str, *, for_s: float = _OPTIONAL_S) -> list[Row]:
        """Query optional details. Return no rows if the connector refuses or does not respond in time."""
        try:
            async with asyncio.timeout(for_s):
                return await self._rows(sql)
        except errors.EngineUnavailable:
            raise
        except (errors.EngineError, TimeoutError):
            return []

    async def _tables(self, catalog: str, schema: str, name: str | None = None) -> list[Row]:
        """List tables and views as rows of name and type, which is `BASE TABLE` or `VIEW`."""
        source = qualified(catalog, "information_schema", "tables")
        only = "" if name is None else f" AND table_name = {literal(name)}"
        return await self._rows(
            f"SELECT table_name, table_type FROM {source} WHERE table_schema = {literal(schema)}{only}"
        )

    async def _comments(self, catalog: str, schema: str, name: str | None = None) -> dict[str, str]:
        """Return the non-empty comments of tables and views, by name."""
        condition = _condition(catalog, schema, "table_name", name)
        rows = await self._optional_rows(f"SELECT table_name, comment FROM system.metadata.table_comments{condition}")
        return {table: comment for table, comment in rows if comment}

    async def _materialized_views(self, catalog: str, schema: str, name: str | None = None) -> set[str]:
        """Return the names of materialized views, which `information_schema.tables` reports as tables."""
        condition = _condition(catalog, schema, "name", name)
        rows = await self._optional_rows(f"SELECT name FROM system.metadata.materialized_views{condition}")
        return {name for (name,) in rows}

    async def _row_types(self, table: Sequence[str], columns: Sequence[Row]) -> Mapping[str, str]:
        """Return the types of columns that contain rows.

        The types are read from an empty result, because `information_schema.columns` omits the quotes around field
        names.
        """
        names = [name for name, kind, *_ in columns if "row(" in kind]
        if not names:
            return {}
        sql = f"SELECT {', '.join(map(identifier, names))} FROM {qualified(*table)} LIMIT 0"
        try:
            async with asyncio.timeout(_OPTIONAL_S):
                answer = await run(self._session, sql, max_rows=0)
        except (errors.EngineError, TimeoutError):
            return {}
        return {column.name: column.native_type for column in answer.columns}

    async def _show_create(self, kind: str, *names: str) -> str:
        """Return the CREATE statement of a schema, table or view; empty if Trino does not return it."""
        rows = await self._optional_rows(f"SHOW CREATE {kind} {qualified(*names)}")
        return str(rows[0][0]) if rows else ""

    async def _statistics(self, catalog: str, schema: str, table: str) -> list[Row]:
        """Return one row per column, and one for the whole table, in which the column name is None.

        A row contains the column name, size, number of distinct values, fraction of NULLs, row count, minimum and
        maximum.
        """
        return await self._optional_rows(f"SHOW STATS FOR {qualified(catalog, schema, table)}")


@contextmanager
def _database_errors(database: str) -> Generator[None]:
    """Translate errors about a missing catalog or schema into `database_not_found`."""
    try:
        yield
    except TrinoRejected as error:
        if error.name in _NO_DATABASE:
            raise errors.database_not_found(database) from error
        raise


def exact_pattern(name: str) -> str:
    """Return a LIKE pattern, with the escape character `!`, that matches only this name."""
    return re.sub(r"[%_!]", r"!\g<0>", name)


def _condition(catalog: str, schema: str, column: str, name: str | None) -> str:
    only = "" if name is None else f" AND {identifier(column)} = {literal(name)}"
    return f" WHERE catalog_name = {literal(catalog)} AND schema_name = {literal(schema)}{only}"


def _kind(name: str, listed: str, materialized: set[str], entries: Mapping[str, str]) -> protocol.TableKind:
    if name in materialized:
        return protocol.TableKind.MATERIALIZED_VIEW
    if listed == "VIEW":
        return protocol.TableKind.VIEW
    return protocol.TableKind.EXTERNAL if entries.get("external_location") else protocol.TableKind.MANAGED


def _column(row: Row, types: Mapping[str, str], partitioned: set[str]) -> protocol.TableColumn:
    name, kind, nullable, default, comment, extra = row
    return protocol.TableColumn(
        name=name,
        type=types.get(name, kind),
        comment=comment or "",
        nullable={"YES": True, "NO": False}.get(nullable),
        default=default,
        partition_key=name in partitioned or "partition" in (extra or ""),
    )


def _functions(rows: Sequence[Row], *, is_builtin: bool) -> list[protocol.FunctionDescription]:
    """Convert the rows of `SHOW FUNCTIONS`, which has one row per overload, to one description per function."""
    return merged_functions(
        (name, arguments, returned, is_builtin, text) for name, returned, arguments, _, _, text, *_ in rows
    )


_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[()\[\],=]|[^\s'"()\[\],=]+|\s+""")
_OPEN, _CLOSE = frozenset("(["), frozenset(")]")
_OWNER = re.compile(r'\bAUTHORIZATION\s+(USER|ROLE)?\s*("(?:[^"]|"")*"|[^\s"]+)')
_TEXT = re.compile(r"'((?:[^']|'')*)'")


def properties(statement: str) -> Mapping[str, str]:
    """Parse the last `WITH (…)` in a CREATE statement. String values are returned without quotes."""
    entries, current, depth, is_within = dict[str, str](), list[str](), 0, False
    for word in _TOKEN.findall(statement):
        if depth == 0 and word.upper() == "AS":
            break
        if depth == 0 and word.upper() == "WITH":
            entries, is_within = {}, True
            continue
        depth += (word in _OPEN) - (word in _CLOSE)
        if not is_within or (depth == 1 and word == "(" and not current):
            continue
        if depth > 1 or (depth == 1 and word != ","):
            current.append(word)
            continue
        name, _, value = "".join(current).partition("=")
        if value:
            text = _TEXT.fullmatch(value.strip())
            entries[name.strip().strip('"')] = text[1].replace("''", "'") if text else value.strip()
        current, is_within = [], word != ")"
    return entries


def owner(statement: str) -> tuple[str, str]:
    """Parse the owner's kind (`USER` or `ROLE`) and name after AUTHORIZATION; both are empty if it is missing."""
    match = _OWNER.search(statement)
    if match is None:
        return "", ""
    name = match[2]
    return match[1] or "USER", name[1:-1].replace('""', '"') if name.startswith('"') else name


def texts(value: str) -> list[str]:
    """Return the strings in `ARRAY['a','b']`."""
    return [text.replace("''", "'") for text in _TEXT.findall(value)]


_PART = r'"((?:[^"]|"")+)"|([^".][^.]*)'
_TWO_PARTS = re.compile(rf"(?:{_PART})\.(?:{_PART})")


def split_database(database: str, default_catalog: str) -> tuple[str, str]:
    """Split a name into catalog and schema. Parts that contain a dot must be in double quotes."""
    if match := _TWO_PARTS.fullmatch(database):
        quoted_catalog, catalog, quoted_schema, schema = match.groups()
        return _bare(quoted_catalog, catalog), _bare(quoted_schema, schema)
    if match := re.fullmatch(_PART, database):
        return default_catalog, _bare(*match.groups())
    return default_catalog, database


def join_database(catalog: str, schema: str) -> str:
    """Join catalog and schema so that `split_database` can split them again."""
    return ".".join(identifier(part) if "." in part or part.startswith('"') else part for part in (catalog, schema))


def _bare(quoted: str | None, plain: str | None) -> str:
    return plain if quoted is None else quoted.replace('""', '"')  # type: ignore[return-value]


def sample_of_column(source: str, column: str, type_text: str, path: Sequence[str], kind: protocol.SampleKind) -> str:
    """Return a query for the sorted distinct values, the maximum or the minimum. `source` is a quoted table name.

    Raises NotSupported if the path does not exist in the column's type.
    """
    value, value_type, joins = _descend(identifier(column), parse_type(type_text), path)
    name = identifier(path[-1] if path else column)
    values = f"SELECT {value} AS {name} FROM {source} AS t{joins}"
    has_order = not any(word in value_type.text.lower() for word in ("map(", "json"))
    order = name if has_order else f"json_format(CAST({name} AS json))"
    if kind in (protocol.SampleKind.MAX, protocol.SampleKind.MIN):
        return sample_query(f"({values})", name, kind, order=lambda _, direction: nulls_last_key(order, direction))
    distinct = f"SELECT DISTINCT {name} FROM ({values})"
    return f"SELECT {name} FROM ({distinct}) ORDER BY {order} NULLS LAST LIMIT {protocol.SAMPLE_ROWS}"


def _descend(value: str, kind: SqlType, path: Sequence[str]) -> tuple[str, SqlType, str]:
    """Return an expression for the values at the path, their type, and the joins that the expression needs."""
    joins = ""
    for number, segment in enumerate(path):
        part = kind.part(segment)
        if part is None:
            raise errors.NotSupported(f"Values of type {kind.text[:100]} have no element {segment[:100]}.")
        if kind.fields:
            # Field names ignore case, and unnamed fields can be accessed only by number.
            number_in_row = next(n for n, field in enumerate(kind.fields, 1) if field.type is part)
            value = f"{value}[{number_in_row}]"
        else:
            if kind.item is None:
                value = f"map_keys({value})" if segment == "key" else f"map_values({value})"
            # UNNEST expands each row field into a column, so each element is wrapped in a row with one field.
            joins += f" CROSS JOIN UNNEST(transform({value}, x -> ROW(x))) AS u{number}(v)"
            value = f"u{number}.v"
        kind = part
    return value, kind, joins

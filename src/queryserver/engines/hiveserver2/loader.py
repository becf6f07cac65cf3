"""Loads Hive and Spark tables with INSERT statements that cast string literals to the column types.

All values are written as strings, so that a single function handles escaping. In measurements, Spark loaded 1,000 rows
in 1 s, and Hive ran a job of several seconds per statement. Both engines would need quadratic time to parse all rows
from a single JSON string, as the Trino loader passes them.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

import pyarrow as pa

from queryserver.engines.catalog_queries import backquoted, read_rows
from queryserver.engines.hiveserver2.catalog import literal
from queryserver.engines.loader import RowsWriter, StatementLoader, WrittenRows, cell_texts, execute, refuse_long_names
from queryserver.engines.protocol import EngineSession, LoadColumn, LoadLedger, TableLoad, TableName
from queryserver.errors.statements import StatementRejected

_TABLE = re.compile(r"[A-Za-z0-9_]+")
# Backslash and quote are special in literals; `${name}` is substituted anywhere in a statement.
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in (*map(chr, range(32)), *"\\'$", "\x7f")}


@dataclass(frozen=True, slots=True)
class LoaderDialect:
    """The differences between Hive and Spark in loading tables: syntax, restrictions and settings."""

    create: str  # appended to the column list of CREATE TABLE
    values: str  # a table of literals; `{}` stands for its rows
    refused: str  # characters not allowed in column names
    settings: tuple[str, ...] = ()  # statements to run before the first table is created; a server may reject them
    hides_underscores: bool = False  # a table cannot be read if its name (and thus its directory) starts with `_`


# Unlike text files, ORC and Parquet preserve line breaks, empty strings and NULLs. Hive's Parquet writer fails for
# column names with spaces or parentheses, but its ORC writer accepts them.
HIVE_LOADING = LoaderDialect(
    "STORED AS ORC",
    "TABLE(VALUES {})",
    refused=",:;.",
    hides_underscores=True,
    # Collecting column statistics would take a second job per INSERT.
    settings=("SET hive.stats.column.autogather=false",),
)
SPARK_LOADING = LoaderDialect(
    "USING parquet",
    "(VALUES {})",
    refused=",",
    # By default, Spark refuses to write dates before 1582. With these settings, it writes them and reads them back
    # unchanged.
    settings=tuple(
        f"SET spark.sql.parquet.{name}RebaseModeInWrite=CORRECTED" for name in ("datetime", "int96")
    ),
)  # fmt: skip

LOADER_DIALECTS: Mapping[str, LoaderDialect] = MappingProxyType({"hive": HIVE_LOADING, "sparksql": SPARK_LOADING})


def string_literal(text: str | None) -> str:
    r"""Format a string as a literal for Hive and Spark; None becomes NULL.

    Characters that could end the literal, or be substituted before parsing, are escaped, for example as `\u0027`.
    """
    return "NULL" if text is None else f"'{text.translate(_ESCAPES)}'"


def spark_string_literal(text: str | None) -> str:
    """Format a string as a literal for Spark; None becomes NULL.

    Spark parses escape sequences in quadratic time, so a long string with many of them is written in hexadecimal.
    """
    plain = string_literal(text)
    if text is None or (len(plain) - len(text)) * len(plain) < 10_000_000:
        return plain
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


class Hs2Loader(StatementLoader):
    """Implements `TableLoader`. Both engines store table names in lower case and allow only letters, digits and `_`."""

    mark = "`"
    max_statement_bytes = 512 * 1024

    def __init__(
        self, session: EngineSession, executor: Executor, dialect: LoaderDialect, database: str, *, read_only: bool
    ) -> None:
        super().__init__(session, executor, read_only=read_only)
        self._dialect = dialect
        self._database = database
        self._is_set = False

    async def load(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger) -> int:
        """Load the rows. For an append on Hive, remove leading underscores from the staging table's name.

        An append reads the staging table, and Hive cannot read a table whose name starts with `_`.
        """
        if load.append and self._dialect.hides_underscores:
            load = replace(load, staging=replace(load.staging, name=load.staging.name.lstrip("_")))
        return await super().load(load, batches, ledger)

    async def exists(self, table: TableName) -> bool:
        """Return whether a table or view exists; both share one namespace."""
        if not _TABLE.fullmatch(table.name):
            return False
        database = backquoted(table.database or self._database)
        found = await read_rows(self._session, f"SHOW TABLES IN {database} LIKE {literal(table.name.lower())}")
        # Spark returns the database, the name and an is-temporary flag, Hive only the name. Compare names, because `_`
        # in the pattern matches any character.
        return any(table.name.lower() in map(str, row) for row in found)

    async def is_view(self, table: TableName) -> bool:
        """Return whether the table is a view. Hive reports `Table Type: VIRTUAL_VIEW`, Spark reports `Type VIEW`."""
        rows = await read_rows(self._session, f"DESCRIBE FORMATTED {self.qualified_name(table)}")
        kinds = [str(row[1]) for row in rows if str(row[0]).strip().rstrip(":") in {"Table Type", "Type"}]
        return any("VIEW" in kind for kind in kinds)

    def check_names(self, load: TableLoad) -> None:
        names = [column.name for column in load.columns]
        if not _TABLE.fullmatch(load.target.name):
            raise StatementRejected(
                f'"{load.target.name}" is not a valid table name: only the letters A to Z, digits and _ are allowed.'
            )
        refuse_long_names([load.target.name, *names], max_size=128, unit="characters", size=len)
        for name in names:
            if any(character in self._dialect.refused for character in name) or "${" in name:
                raise StatementRejected(
                    f'"{name}" is not a valid column name: it must not contain any of {self._dialect.refused} or ${{.'
                )

    def qualified_name(self, table: TableName) -> str:
        return backquoted(table.database or self._database, table.name)

    async def create(self, table: TableName, columns: Sequence[LoadColumn]) -> Sequence[str]:
        """Create the table without NOT NULL constraints, which neither engine enforces for file-based tables."""
        if not self._is_set:
            for setting in self._dialect.settings:
                with suppress(StatementRejected):
                    await execute(self._session, setting)
            self._is_set = True
        types = [column.declared for column in columns]
        definitions = ", ".join(f"{backquoted(column.name)} {column.declared}" for column in columns)
        await execute(
            self._session, f"CREATE TABLE {self.qualified_name(table)} ({definitions}) {self._dialect.create}"
        )
        return types

    def writer(self, columns: Sequence[LoadColumn], types: Sequence[str]) -> RowsWriter:  # noqa: ARG002 text fits every type
        constant_of = spark_string_literal if self._dialect is SPARK_LOADING else string_literal

        def write(batch: pa.RecordBatch) -> WrittenRows:
            cells = [map(constant_of, cell_texts(column).to_pylist()) for column in batch.columns]
            return [", ".join(row).encode() for row in zip(*cells, strict=True)]

        return write

    def insert(self, load: TableLoad, types: Sequence[str], rows: Sequence[bytes]) -> str:
        names = [f"c{number}" for number in range(len(types))]
        values = ", ".join(
            f"unbase64({name})" if kind == "BINARY" else f"CAST({name} AS {kind})"
            for name, kind in zip(names, types, strict=True)
        )
        constants = self._dialect.values.replace("{}", f"({b'), ('.join(rows).decode()})")
        table = self.qualified_name(load.staging)
        return f"INSERT INTO {table} SELECT {values} FROM {constants} AS v ({', '.join(names)})"

    async def rename(self, table: TableName, name: TableName) -> bool:
        """Rename the table, which is a single change in the metastore."""
        await execute(self._session, f"ALTER TABLE {self.qualified_name(table)} RENAME TO {self.qualified_name(name)}")
        return True

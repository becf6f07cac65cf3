"""Checks create_table requests before they are answered, and plans the imports (Contract importer 13, 13.1)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypeAlias
from uuid import UUID

import structlog
from pydantic import TypeAdapter

from queryserver import errors
from queryserver.catalog.lookups import Lookups
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.engines.catalog_queries import identifier, qualified
from queryserver.engines.protocol import LoadColumn, LoadingEngine, TableLoad, TableName
from queryserver.errors.base import InvalidRequest
from queryserver.errors.files import invalid_columns
from queryserver.formats.arrow import STRING, BaseType, ColumnType
from queryserver.formats.cell_types.analysis import PreviewColumn
from queryserver.formats.cell_types.value_formats import DateFormat, NumberFormat, UnknownFormat, parse_value_format
from queryserver.formats.conversion import TargetColumn
from queryserver.formats.detection import ReadingOptions
from queryserver.formats.table_files import MAX_COLUMNS, RECORD_TYPES, Delimiters, FileType, SkippedLines
from queryserver.identity.model import User
from queryserver.imports.model import (
    REPLACING_DIALECTS,
    TABLE_DIALECTS,
    Origin,
    allowed_types,
    column_type_of,
    declared_type,
    engine_names,
    name_limit,
    type_name,
)
from queryserver.imports.preview import Previews
from queryserver.imports.uploads import ImportFile, ImportSources
from queryserver.statements.job_submission import JobSubmissions, NewJob
from queryserver.statements.model import RecordedStatement
from queryserver.statements.session_options import SessionCredentials

log = structlog.get_logger(__name__)

_MAX_LOOKUP_TIME = timedelta(seconds=20)
_MAX_PRECISION = 38
_MAX_SHOWN_CHARACTERS = 100
_TEXT_FALLBACK_TYPES = frozenset({BaseType.TIME, BaseType.DURATION})
"""Types that become text columns, with the cells unchanged, in dialects that lack the type."""
_TEXTS = frozenset({BaseType.STRING, BaseType.NULL})
_INTEGERS = {BaseType(f"{sign}{bits}") for sign in ("Int", "UInt") for bits in (8, 16, 32, 64)}
_NUMBERS = _INTEGERS | {BaseType.FLOAT32, BaseType.FLOAT64, BaseType.DECIMAL}
_BACKTICKS = frozenset({"hive", "impala", "sparksql", "mysql"})
_MAX_SHOWN_COLUMNS = 100
_MAX_LENGTH = 10_485_760
_TEXT_TYPES = frozenset({"STRING", "TEXT", "VARCHAR", "VARCHAR(64)"})

BadRowLimit: TypeAlias = int | Literal["few"] | None
"""Maximum number of bad rows to skip: a number, `few`, or None for no limit."""


@dataclass(frozen=True, slots=True)
class FileReading:
    """How to read a file of `width` columns. A workbook is read with `sheet`, a file with its own column names with
    `records` and `fields`, and a text file with `delimiters`, `skipped` and `encoding`.
    """

    origin: Origin
    file_path: str
    has_header: bool
    width: int
    sheet: str | None = None
    delimiters: Delimiters = field(default_factory=Delimiters)
    skipped: SkippedLines = field(default_factory=SkippedLines)
    encoding: str = "utf-8"
    records: FileType | None = None
    """The type of a file that contains its own column names, which are in `fields`; None for other files."""
    fields: tuple[str, ...] = ()

    @property
    def is_text(self) -> bool:
        return self.sheet is None and self.records is None


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The plan for importing one file into one table."""

    shown: str
    """The display name of the file."""
    reading: FileReading
    columns: tuple[TargetColumn, ...]
    declared: tuple[str, ...]
    """The SQL type of each column."""
    database: str | None
    table: str
    append: bool = False
    max_bad_rows: BadRowLimit = 0
    replace: bool = False
    """Whether the new table replaces an existing table of the same name."""

    @property
    def target(self) -> TableName:
        return TableName(self.database, self.table)

    @property
    def target_name(self) -> str:
        return self.table if self.database is None else f"{self.database}.{self.table}"

    def load(self, statement_id: UUID, *, append: bool) -> TableLoad:
        """Return the parameters for the engine's loader. The staging table's name contains the statement id."""
        columns = zip(self.columns, self.declared, strict=True)
        return TableLoad(
            target=self.target,
            staging=TableName(self.database, f"_qs_import_{statement_id.hex}"),
            columns=tuple(LoadColumn(one.name, one.type, declared, one.nullable) for one, declared in columns),
            append=append,
            replace=self.replace,
        )


_PLAN = TypeAdapter(ImportPlan)


def stored_plan(plan: ImportPlan) -> Mapping[str, Any]:
    """Return the plan in the form in which the database stores it.

    The plan is a JSON string within a JSON object, because a separator may be U+0000, which PostgreSQL rejects in
    jsonb.
    """
    return {"plan": json.dumps(_PLAN.dump_python(plan, mode="json"))}


def read_plan(record: Mapping[str, Any]) -> ImportPlan:
    return _PLAN.validate_json(record["plan"])


@dataclass(frozen=True, slots=True)
class ColumnRequest:
    """A requested column. None stands for the preview's value. `source` is a column name or a position, starting at
    1.
    """

    source: int | str
    name: str | None = None
    type: str | None = None
    precision: int | None = None
    scale: int | None = None
    nullable: bool = True
    format: str | None = None
    null_words: tuple[str, ...] | None = None


def target_columns(
    inferred: Sequence[PreviewColumn],
    requests: Sequence[ColumnRequest] | None,
    dialect: str,
    *,
    null_words: tuple[str, ...] | None = None,
) -> tuple[TargetColumn, ...]:
    """Return the table's columns in the order of `requests`. If `requests` is None, return all columns as inferred.

    A column's name defaults to the name in the file, adapted to the dialect. `null_words` applies to every column that
    has no NULL words of its own. Raises invalid_columns; the error's `column` is the position in `requests`, from 1.
    """
    if requests is None:
        requests = [ColumnRequest(position) for position in range(1, len(inferred) + 1)]
    if not 1 <= len(requests) <= MAX_COLUMNS:
        raise invalid_columns(f"columns: must contain 1 to {MAX_COLUMNS} columns.")
    names = engine_names([column.name for column in inferred], dialect)
    columns: list[TargetColumn] = []
    # As in previews, names that differ only in case count as equal.
    used_names: set[str] = set()
    for position, request in enumerate(requests, 1):
        try:
            column = _column(inferred, names, request, dialect, null_words)
            if (folded := column.name.lower()) in used_names:
                raise invalid_columns(f"columns: the name {_quoted(column.name)} occurs twice.")
        except InvalidRequest as error:
            raise invalid_columns(error.message, extra_fields={"column": position}) from None
        used_names.add(folded)
        columns.append(column)
    return tuple(columns)


def _column(
    inferred: Sequence[PreviewColumn],
    names: Sequence[str],
    request: ColumnRequest,
    dialect: str,
    null_words: tuple[str, ...] | None,
) -> TargetColumn:
    source = _source(inferred, names, request.source)
    name = names[source] if request.name is None else request.name
    if not name.strip():
        raise invalid_columns("columns: a name is empty.")
    limit = name_limit(dialect)
    if "\0" in name or not limit.allows(name):
        raise invalid_columns(
            f"columns: {_quoted(name)} is not a valid name; names in {dialect} must have 1 to {limit}."
        )
    source_column = inferred[source]
    column_type = source_column.type
    if request.type is not None:
        column_type = _requested_type(column_type, request, request.type, dialect)
    if column_type.base in _TEXTS and request.format is not None and request.type is not None:
        column_type = _type_of_format(request, request.type, request.format, dialect) or column_type
    words = null_words if request.null_words is None else request.null_words
    if words is None:
        # In text columns, the NULL words that were detected are ordinary values.
        words = () if column_type.base in _TEXTS else tuple(source_column.null_words)
    if column_type.base in _TEXT_FALLBACK_TYPES and declared_type(column_type, dialect) in _TEXT_TYPES:
        column_type = STRING
    # Cells of text columns are stored unchanged, so formats do not apply.
    value_format_text = source_column.format if request.format is None else request.format
    if column_type.base in _TEXTS:
        value_format_text = None
    if value_format_text is not None and not _is_format_of(value_format_text, column_type):
        if request.format is not None:
            raise invalid_columns(
                f"columns: {_quoted(value_format_text)} is not a format for the type {column_type.base.value}."
            )
        value_format_text = None
    return TargetColumn(source, name, column_type, request.nullable, value_format_text, words)


def _type_of_format(request: ColumnRequest, name: str, value_format_text: str, dialect: str) -> ColumnType | None:
    """Return the date or decimal type that the column's format implies if the dialect calls this type `name`, otherwise
    None.

    Such a dialect stores the type as text, so its type name alone does not distinguish it from text.
    """
    known_format = _known_format(value_format_text)
    if isinstance(known_format, NumberFormat):
        decimal = None if request.precision is None else _decimal(ColumnType(BaseType.DECIMAL), request, name)
    else:
        decimal = ColumnType(BaseType.DATETIME if known_format.has_time else BaseType.DATE)
    return decimal if decimal is not None and type_name(decimal, dialect) == name.upper() else None


def _known_format(text: str) -> DateFormat | NumberFormat:
    try:
        return parse_value_format(text)
    except UnknownFormat as error:
        raise invalid_columns(f"columns: the format {_quoted(text)} is not valid: {error}.") from None


def _is_format_of(text: str, column_type: ColumnType) -> bool:
    known_format = _known_format(text)
    if isinstance(known_format, NumberFormat):
        return column_type.base in _NUMBERS
    return column_type.base is BaseType.DATETIME or (column_type.base is BaseType.DATE and not known_format.has_time)


def _source(inferred: Sequence[PreviewColumn], names: Sequence[str], source: int | str) -> int:
    """Return the index of the source column. `names` are the column names as the dialect's preview shows them."""
    if isinstance(source, str):
        for candidates in (names, [column.name for column in inferred]):
            if source in candidates:
                return candidates.index(source)
        if not (source.isascii() and source.isdecimal() and len(source) < len(str(MAX_COLUMNS)) + 1):
            raise invalid_columns(f"columns: the file has no column {_quoted(source)}.")
        source = int(source)
    if not 1 <= source <= len(inferred):
        raise invalid_columns(f"columns: the file has no column {source}.")
    return source - 1


def _requested_type(inferred: ColumnType, request: ColumnRequest, name: str, dialect: str) -> ColumnType:
    is_inferred = " ".join(name.upper().split()) == type_name(inferred, dialect)
    if is_inferred and request.precision in {None, inferred.precision}:
        # A client that returns the preview's type means the inferred type, even if several types share that name.
        if request.scale is None or inferred.base is not BaseType.DECIMAL:
            return inferred
        return _decimal(ColumnType(BaseType.DECIMAL, inferred.precision, request.scale), request, name)
    requested = column_type_of(name, dialect)
    if requested is None:
        valid = ", ".join(allowed_types(dialect))
        raise invalid_columns(
            f"columns: {_quoted(name)} is not a valid column type. Valid types in {dialect}: {valid}."
        )
    if requested.length is not None and not 1 <= requested.length <= _MAX_LENGTH:
        raise invalid_columns(f"columns: {_quoted(name)} requires a length from 1 to {_MAX_LENGTH}.")
    return _decimal(requested, request, name) if requested.base is BaseType.DECIMAL else requested


def _decimal(requested: ColumnType, request: ColumnRequest, name: str) -> ColumnType:
    precision, scale = requested.precision, requested.scale
    if precision is None:
        precision, scale = request.precision, 0 if request.scale is None else request.scale
    elif request.precision not in {None, precision} or request.scale not in {None, scale}:
        raise invalid_columns(f"columns: {_quoted(name)} does not match the specified precision and scale.")
    if precision is None or scale is None or not (1 <= precision <= _MAX_PRECISION and 0 <= scale <= precision):
        raise invalid_columns(
            f"columns: {_quoted(name)} requires a precision from 1 to {_MAX_PRECISION} and a scale from 0"
            " to the precision."
        )
    return ColumnType(BaseType.DECIMAL, precision, scale)


def _quoted(text: str) -> str:
    return json.dumps(text[:_MAX_SHOWN_CHARACTERS], ensure_ascii=False)


def history_text(plan: ImportPlan, dialect: str) -> str:
    """Return the statement text for the history: a comment with the file name, followed by CREATE TABLE."""
    mark = "`" if dialect in _BACKTICKS else '"'
    columns = [
        f"  {identifier(column.name, mark=mark)} {declared}" + ("" if column.nullable else " NOT NULL")
        for column, declared in zip(plan.columns[:_MAX_SHOWN_COLUMNS], plan.declared, strict=False)
    ]
    hidden = len(plan.columns) - len(columns)
    more = f"\n  -- and {hidden} more columns" if hidden else ""
    target = qualified(*(name for name in (plan.database, plan.table) if name is not None), mark=mark)
    head = "CREATE TABLE IF NOT EXISTS" if plan.append else "CREATE TABLE"
    head = "CREATE OR REPLACE TABLE" if plan.replace else head
    # The name must stay on one line, without characters that end a line or comment in any dialect.
    shown = "".join(one if one.isprintable() else " " for one in plan.shown)
    return f"-- Import of {shown}\n{head} {target} (\n" + ",\n".join(columns) + more + "\n)"


@dataclass(frozen=True, slots=True)
class TableRequest:
    """The parameters of create_table. If `columns` is None, the table has all columns of the preview."""

    origin: Origin
    file_path: str
    reading: ReadingOptions
    has_header: bool
    connector: str
    database: str | None
    table: str
    columns: Sequence[ColumnRequest] | None = None
    append: bool = False
    replace: bool = False
    max_bad_rows: BadRowLimit = 0
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class CreatedImport:
    """A recorded import. `table` is the table name for the response."""

    recorded: RecordedStatement
    table: str


@dataclass(slots=True, eq=False)
class TableCreations:
    """Checks and records imports, which `imports/session.py` executes."""

    sources: ImportSources
    previews: Previews
    connectors: Connectors
    credentials: SessionCredentials
    submissions: JobSubmissions
    lookups: Lookups

    async def create(self, user: User, request: TableRequest) -> CreatedImport:
        """Check the request as far as possible without importing, and record the import as a statement.

        Raises import_connector_not_found, invalid_dialect, import_target_denied, invalid_columns, table_exists, the
        errors of `Previews` and `ImportSources` (reading the file), and the errors of `JobSubmissions` (recording
        the import).
        """
        connector = await self._connector(user, request.connector)
        if request.replace and connector.dialect not in REPLACING_DIALECTS:
            raise errors.replacing_not_supported(
                f"Replacing tables is not supported in {connector.dialect}. Drop the existing table first."
            )
        limit = name_limit(connector.dialect)
        if not limit.allows(request.table):
            raise errors.InvalidParameter(f"table must be a name of 1 to {limit} in {connector.dialect}.")
        request.reading.require_separator()
        file = await self.sources.find(user, request.origin, request.file_path)
        plan = await self._plan(user, request, file, connector.dialect)
        text = history_text(plan, connector.dialect)
        new_import = NewJob(text, plan.database, stored_plan(plan), idempotency_key=request.idempotency_key)
        target, target_name = plan.target, plan.target_name
        recorded = None
        if new_import.idempotency_key is not None:
            recorded = await self.submissions.replay(user, connector, new_import)
        if recorded is None:
            is_new = not plan.append and not plan.replace
            if is_new and await is_known_table(self.lookups, user, connector, target):
                raise errors.table_exists(f"The table {target_name} already exists.")
            recorded = await self.submissions.submit(user, connector, new_import)
        return CreatedImport(recorded, target_name)

    async def _connector(self, user: User, name: str) -> Connector:
        try:
            connector = self.connectors.resolve(user, name)
        except errors.UnknownDialect:
            raise errors.import_connector_not_found(name) from None
        engine = self.connectors.engine(connector)
        if engine.capabilities.wants_external_token:
            self.credentials.require_token(user, connector)
        if connector.dialect not in TABLE_DIALECTS or not isinstance(engine, LoadingEngine):
            raise errors.invalid_dialect(
                f"{connector.nice_name} ({connector.dialect}) does not support creating tables from files."
                f" Supported dialects: {', '.join(sorted(TABLE_DIALECTS))}."
            )
        if connector.read_only:
            raise errors.import_target_denied("This connector is read-only.")
        try:
            await self.credentials.required(user, connector)
        except errors.CredentialsRequired as error:
            raise errors.import_target_denied(error.message) from error
        return connector

    async def _plan(self, user: User, request: TableRequest, file: ImportFile, dialect: str) -> ImportPlan:
        reading = request.reading
        analysis = await self.previews.analysis(user.id, file, reading, has_header=request.has_header)
        columns = target_columns(analysis.columns, request.columns, dialect, null_words=reading.null_words)
        return ImportPlan(
            shown=file.display_name,
            reading=FileReading(
                origin=request.origin,
                file_path=request.file_path,
                has_header=request.has_header,
                width=len(analysis.columns),
                sheet=reading.sheet_name,
                delimiters=analysis.delimiters,
                skipped=analysis.skipped,
                encoding=analysis.encoding,
                records=reading.file_type if reading.file_type in RECORD_TYPES else None,
                fields=tuple(analysis.fields),
            ),
            columns=columns,
            declared=tuple([declared_type(column.type, dialect) for column in columns]),
            database=request.database,
            table=request.table,
            append=request.append,
            max_bad_rows=request.max_bad_rows,
            replace=request.replace,
        )


async def is_known_table(lookups: Lookups, user: User, connector: Connector, table: TableName) -> bool:
    """Return whether the table exists. Return False if the lookup fails, because the loader checks again."""
    budget = min(connector.limits.metadata_timeout, _MAX_LOOKUP_TIME)
    try:
        return await lookups.table_exists(user, connector, table, budget=budget)
    except (errors.EngineError, errors.NotSupported) as error:
        log.info("table existence check failed", connector=connector.key, code=error.code)
        return False

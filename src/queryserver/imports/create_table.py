"""create_table: everything that is checked before the answer (Contract importer 13, 13.1)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from queryserver import errors
from queryserver.catalog.lookups import Lookups
from queryserver.connectors.engines import Connectors
from queryserver.connectors.model import Connector
from queryserver.engines.protocol import LoadingEngine, TableName
from queryserver.formats.detection import ReadingOptions
from queryserver.identity.model import User
from queryserver.imports.model import (
    RECORD_TYPES,
    REPLACING_DIALECTS,
    TABLE_DIALECTS,
    Delimiters,
    Origin,
    declared_type,
)
from queryserver.imports.plans import ColumnRequest, FileReading, ImportPlan, history_text, stored, target_columns
from queryserver.imports.preview import Previews
from queryserver.imports.uploads import ImportFile, ImportSources
from queryserver.statements.model import Recorded
from queryserver.statements.session_repository import CredentialBook
from queryserver.statements.submission import NewImport, Submissions

log = structlog.get_logger(__name__)

_TABLE_EXISTS = "import_table_exists"
_LONGEST_LOOKUP = timedelta(seconds=20)


@dataclass(frozen=True, slots=True)
class TableRequest:
    """The parameters of create_table. `columns` None: all, as in the preview. `max_bad_rows` None: no limit."""

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
    max_bad_rows: int | None = 0
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """An import that is recorded; `table` as answers name it."""

    recorded: Recorded
    table: str


@dataclass(slots=True, eq=False)
class TableCreations:
    """Records imports. `imports/running.py` executes them."""

    sources: ImportSources
    previews: Previews
    connectors: Connectors
    credentials: CredentialBook
    submissions: Submissions
    lookups: Lookups

    def __post_init__(self) -> None:
        self.lookups.forwarding.serve(_TABLE_EXISTS, self._exists_here)

    async def create(self, user: User, request: TableRequest) -> Created:
        """Check everything that can be checked now, and record the import.

        Raises import_connector_not_found, invalid_dialect, import_target_denied, invalid_columns, table_exists; what
        reading the file raises (see Previews and ImportSources); what recording raises (see Submissions).
        """
        connector = await self._connector(user, request.connector)
        if request.replace and connector.dialect not in REPLACING_DIALECTS:
            raise errors.replacing_not_supported(
                f"Tables of {connector.dialect} cannot be replaced, for they cannot be renamed: drop the old one first."
            )
        request.reading.require_separator()
        file = await self.sources.find(user, request.origin, request.file_path)
        plan = await self._plan(user, request, file, connector.dialect)
        new = NewImport(history_text(plan, connector.dialect), plan.database, stored(plan), request.idempotency_key)
        recorded = await self.submissions.import_replay(user, connector, new)
        if recorded is None:
            if not plan.append and not plan.replace and await self._exists(user, connector, plan.target):
                raise errors.table_exists(f"The table {plan.shown_target} exists already.")
            recorded = await self.submissions.submit_import(user, connector, new)
        return Created(recorded, plan.shown_target)

    async def _connector(self, user: User, name: str) -> Connector:
        try:
            connector = self.connectors.resolve(user, name)
        except errors.UnknownDialect:
            raise errors.import_connector_not_found(name) from None
        self.credentials.require_token(user, connector)
        engine = self.connectors.engine(connector)
        if connector.dialect not in TABLE_DIALECTS or not isinstance(engine, LoadingEngine):
            raise errors.invalid_dialect(
                f"Tables cannot be created from files in {connector.dialect} by {connector.nice_name}."
                f" They can in {', '.join(sorted(TABLE_DIALECTS))}."
            )
        if connector.read_only:
            raise errors.import_target_denied("This connector is read-only.")
        if await self.credentials.are_missing(user, connector):
            raise errors.import_target_denied(
                "The data source wants credentials: call create_session with user and password."
            )
        return connector

    async def _plan(self, user: User, request: TableRequest, file: ImportFile, dialect: str) -> ImportPlan:
        reading = request.reading
        analysis = await self.previews.analysis(user.id, file, reading, has_header=request.has_header)
        columns = target_columns(analysis.columns, request.columns, dialect)
        return ImportPlan(
            shown=file.shown,
            reading=FileReading(
                origin=request.origin,
                file_path=request.file_path,
                has_header=request.has_header,
                width=len(analysis.columns),
                sheet=reading.sheet_name,
                delimiters=reading.delimiters or Delimiters(),
                encoding=analysis.encoding,
                records=reading.file_type if reading.file_type in RECORD_TYPES else None,
                fields=tuple(analysis.fields),
            ),
            columns=columns,
            declared=tuple(declared_type(column.type, dialect) for column in columns),
            database=request.database,
            table=request.table,
            append=request.append,
            max_bad_rows=request.max_bad_rows,
            replace=request.replace,
        )

    async def _exists(self, user: User, connector: Connector, table: TableName) -> bool:
        """Whether the engine has the table now. When the lookup fails, the import repeats it and fails if it must."""
        budget = min(connector.limits.metadata_timeout, _LONGEST_LOOKUP)
        arguments = [table.database, table.name]
        try:
            return json.loads(await self.lookups.anywhere(user, connector, _TABLE_EXISTS, arguments, budget=budget))
        except (errors.EngineError, errors.NotSupported) as error:
            log.info("existence of a table not known", connector=connector.key, code=error.code)
            return False

    async def _exists_here(self, user: User, connector: Connector, arguments: Sequence[Any]) -> bytes:
        database, name = arguments
        async with self.lookups.loader(user, connector) as loader:
            return json.dumps(await loader.exists(TableName(database, name))).encode()

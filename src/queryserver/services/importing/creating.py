"""create_table: everything that is checked before the answer (Contract importer 13, 13.1)."""

import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from queryserver.domain.connector import Connector
from queryserver.domain.errors.base import NotSupported
from queryserver.domain.errors.files import (
    import_connector_not_found,
    import_target_denied,
    invalid_dialect,
    replacing_not_supported,
    table_exists,
)
from queryserver.domain.errors.statements import EngineError, UnknownDialect
from queryserver.domain.import_types import REPLACING_DIALECTS, TABLE_DIALECTS, declared_type
from queryserver.domain.importing import RECORD_TYPES, SAMPLE_BYTES, Delimiters, Origin
from queryserver.domain.user import User
from queryserver.interfaces.computation import Computing, Task
from queryserver.interfaces.loading import LoadingEngine, TableName
from queryserver.interfaces.statements import Recorded
from queryserver.services.connectors import Connectors
from queryserver.services.credentials import CredentialBook
from queryserver.services.importing.detecting import first_bytes, of_a_file
from queryserver.services.importing.files import ImportFile
from queryserver.services.importing.histories import history_text
from queryserver.services.importing.plans import AskedColumn, FileReading, ImportPlan, stored, target_columns
from queryserver.services.importing.previewing import Previews
from queryserver.services.importing.samples import ReadingOptions
from queryserver.services.importing.sources import ImportSources
from queryserver.services.metadata.elsewhere import Elsewhere
from queryserver.services.metadata.lookups import LookUps
from queryserver.services.statements.submission import NewImport, Submissions

log = structlog.get_logger(__name__)

_TABLE_EXISTS = "import_table_exists"
_LONGEST_LOOK = timedelta(seconds=20)


@dataclass(frozen=True, slots=True)
class AskedTable:
    """What a caller asks for. `columns` None: all, as in the preview. `max_bad_rows` None: no limit."""

    origin: Origin
    file_path: str
    reading: ReadingOptions
    has_header: bool
    connector: str
    database: str | None
    table: str
    columns: Sequence[AskedColumn] | None = None
    append: bool = False
    replace: bool = False
    max_bad_rows: int | None = 0
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """An import that is recorded; `table` as answers name it."""

    recorded: Recorded
    table: str


@dataclass(frozen=True, slots=True)
class TableCreationParts:
    """What it works with."""

    sources: ImportSources
    previews: Previews
    connectors: Connectors
    credentials: CredentialBook
    submissions: Submissions
    lookups: LookUps
    computing: Computing


class TableCreations:
    """Takes tables to be made of files."""

    def __init__(self, parts: TableCreationParts, elsewhere: Elsewhere) -> None:
        self._parts = parts
        elsewhere.serve(_TABLE_EXISTS, self._exists_here)

    async def create(self, user: User, asked: AskedTable) -> Created:
        """Check everything that can be checked now, and record the import.

        Raises import_connector_not_found, invalid_dialect, import_target_denied, invalid_columns, table_exists; what reading
        the file raises (see Previews and ImportSources); what recording raises (see Submissions).
        """
        connector = await self._connector(user, asked.connector)
        if asked.replace and connector.dialect not in REPLACING_DIALECTS:
            raise replacing_not_supported(
                f"Tables of {connector.dialect} cannot be replaced, for they cannot be renamed: drop the old one first."
            )
        asked.reading.require_separator()
        async with self._parts.sources.opened(user, asked.origin, asked.file_path) as file:
            plan = await self._plan(user, asked, file, connector.dialect)
        new = NewImport(history_text(plan, connector.dialect), plan.database, stored(plan), asked.idempotency_key)
        recorded = await self._parts.submissions.import_replay(user, connector, new)
        if recorded is None:
            if not plan.append and not plan.replace and await self._exists(user, connector, plan.target):
                raise table_exists(f"The table {plan.shown_target} exists already.")
            recorded = await self._parts.submissions.submit_import(user, connector, new)
        return Created(recorded, plan.shown_target)

    async def _connector(self, user: User, name: str) -> Connector:
        try:
            connector = self._parts.connectors.resolve(user, name)
        except UnknownDialect:
            raise import_connector_not_found(name) from None
        self._parts.credentials.require_token(user, connector)
        engine = self._parts.connectors.engine(connector)
        if connector.dialect not in TABLE_DIALECTS or not isinstance(engine, LoadingEngine):
            raise invalid_dialect(
                f"Tables cannot be created from files in {connector.dialect} by {connector.nice_name}."
                f" They can in {', '.join(sorted(TABLE_DIALECTS))}."
            )
        if connector.read_only:
            raise import_target_denied("This connector is read-only.")
        if await self._parts.credentials.are_missing(user, connector):
            raise import_target_denied("The data source wants credentials: call create_session with user and password.")
        return connector

    async def _plan(self, user: User, asked: AskedTable, file: ImportFile, dialect: str) -> ImportPlan:
        analysis = await self._parts.previews.analysis(user.id, file, asked.reading, has_header=asked.has_header)
        columns = target_columns(analysis.columns, asked.columns, dialect)
        return ImportPlan(
            shown=file.shown,
            reading=FileReading(
                origin=asked.origin,
                file_path=asked.file_path,
                has_header=asked.has_header,
                width=len(analysis.columns),
                sheet=asked.reading.sheet_name,
                delimiters=asked.reading.delimiters or Delimiters(),
                encoding=asked.reading.encoding or await self._encoding(user, file, asked.reading),
                records=asked.reading.file_type if asked.reading.file_type in RECORD_TYPES else None,
                fields=tuple(analysis.fields),
            ),
            columns=columns,
            declared=tuple(declared_type(column.type, dialect) for column in columns),
            database=asked.database,
            table=asked.table,
            append=asked.append,
            max_bad_rows=asked.max_bad_rows,
            replace=asked.replace,
        )

    async def _encoding(self, user: User, file: ImportFile, reading: ReadingOptions) -> str:
        """As the preview of the file takes it."""
        if reading.sheet_name is not None or reading.file_type in RECORD_TYPES:
            return "utf-8"
        async with aclosing(file.read(length=SAMPLE_BYTES)) as pieces:
            head = await first_bytes(pieces)
        options = {"is_whole": file.size_bytes <= len(head)}
        with of_a_file():
            return await self._parts.computing.run(user.id, Task.DETECT_ENCODING, options, head)

    async def _exists(self, user: User, connector: Connector, table: TableName) -> bool:
        """Whether the engine says so now. One that cannot be asked is asked again by the import, and fails that."""
        budget = min(connector.limits.metadata_timeout, _LONGEST_LOOK)
        try:
            found = await self._parts.lookups.anywhere(
                user, connector, _TABLE_EXISTS, [table.database, table.name], budget=budget
            )
        except (EngineError, NotSupported) as error:
            log.info("existence of a table not known", connector=connector.key, code=error.code)
            return False
        return json.loads(found)

    async def _exists_here(self, user: User, connector: Connector, arguments: Sequence[Any]) -> bytes:
        database, name = arguments
        async with self._parts.lookups.loader(user, connector) as loader:
            return json.dumps(await loader.exists(TableName(database, name))).encode()

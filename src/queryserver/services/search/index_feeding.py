"""What the editor asked of data sources anyway, put into the index (Contract platform 8.4)."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import structlog

from queryserver.db.search import MetadataIndexRecords
from queryserver.domain.catalog import DatabaseDescription, TableDescription, TableKind
from queryserver.domain.connector import Connector
from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.user import User
from queryserver.interfaces.metadata_index import DATABASE, TABLE, VIEW, IndexedColumn, IndexedObject, ScopeKey
from queryserver.services.metadata.questions import Question, TableList
from queryserver.services.search.scoping import Scoping

log = structlog.get_logger(__name__)

_QUEUED = 200  # answers that wait; more are left to the refresh
_CHANGED = "transient_lastDdlTime"


class IndexFeed:
    """Takes answers as they come, and writes them in a task of its own. Use `running()`."""

    def __init__(self, records: MetadataIndexRecords, scoping: Scoping, *, max_tables: int, max_columns: int) -> None:
        self._records = records
        self._scoping = scoping
        self._max_tables = max_tables
        self._max_columns = max_columns
        self._waiting: deque[tuple[ScopeKey, Question[Any], Any]] = deque(maxlen=_QUEUED)
        self._came = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Write while inside."""
        task = asyncio.create_task(self._write(), name="metadata-index-feed")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def heard(self, user: User, connector: Connector, question: Question[Any], answer: object) -> None:
        """An engine answered. Never waits and never fails; when too many answers wait, the oldest is dropped."""
        key = self._scoping.key(user, connector)
        if key is not None and question.kind in ("databases", "database", "tables", "table"):
            self._waiting.append((key, question, answer))
            self._idle.clear()
            self._came.set()

    async def settled(self) -> None:
        """Returns once all that was heard is written."""
        await self._idle.wait()

    async def _write(self) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            while self._waiting:
                key, question, answer = self._waiting.popleft()
                try:
                    scope = await self._records.scope(key)
                    objects = await asyncio.to_thread(objects_of, question, answer, self._max_columns)
                    await self._records.put(scope.id, objects, max_tables=self._max_tables)
                except QueryServerError as error:
                    log.warning("metadata not indexed", connector=key.connector, code=error.code)
                except Exception:  # the outer wall of a task: without it nothing would be indexed any more
                    log.exception("metadata not indexed", connector=key.connector)
            self._idle.set()


def objects_of(question: Question[Any], answer: Any, max_columns: int) -> Sequence[IndexedObject]:
    """What an answer tells of objects."""
    if question.kind == "databases":
        return [IndexedObject(DATABASE, name, "") for name in answer]
    if isinstance(answer, DatabaseDescription):
        return [IndexedObject(DATABASE, answer.name, "", answer.comment, answer.owner_name)]
    if isinstance(answer, TableList):
        database = str(question.names[0] or "")
        told = zip(answer.names, answer.kinds, answer.comments, strict=True)
        return [
            IndexedObject(kind_of(TableKind(kind)), database, name, comment or None) for name, kind, comment in told
        ]
    if isinstance(answer, TableDescription):
        return [described(answer, max_columns)]
    return []


def described(table: TableDescription, max_columns: int) -> IndexedObject:
    """A table with the first `max_columns` of its columns; 0: with none."""
    return IndexedObject(
        kind_of(table.kind),
        table.database,
        table.name,
        table.comment,
        table.owner,
        _modified_at(table),
        [IndexedColumn(one.name, one.comment) for one in table.columns[:max_columns]],
        columns_cut=len(table.columns) > max_columns,
    )


def kind_of(kind: TableKind) -> str:
    """As the search names it."""
    return VIEW if kind.is_view else TABLE


def _modified_at(table: TableDescription) -> datetime | None:
    """When the table was changed last as the hive family tells it, else when it was made."""
    changed = next((one.value for one in table.properties if one.name.strip() == _CHANGED), "").strip()
    try:
        if changed.isdecimal():
            return datetime.fromtimestamp(int(changed), UTC)
        return datetime.fromisoformat(table.create_time) if table.create_time else None
    except (ValueError, OverflowError, OSError):
        return None

"""Feeds the index with metadata that the editor reads anyway, and determines the scope of its rows.

Source: Contract platform 8.4.
"""

import asyncio
import hashlib
import re
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
import structlog

from queryserver.catalog.queries import CatalogQuery, TableList
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.engines.protocol import CatalogEngine, DatabaseDescription, TableDescription, TableKind
from queryserver.errors.base import QueryServerError
from queryserver.identity.model import User
from queryserver.platform.threads import background
from queryserver.search.model import DATABASE, TABLE, VIEW, IndexedColumn, IndexedObject, ScopeKey
from queryserver.search.repository import MetadataIndexRecords

log = structlog.get_logger(__name__)

_PASSWORD = re.compile(r"://[^/@]*@")
_SECRET = re.compile(r"(?i)passw|passphrase|secret|token|private_key|credentials_json|access_key|api_key")
_QUEUED = 200  # maximum number of pending responses; dropped responses are made up for by the next refresh
_CHANGED = "transient_lastDdlTime"  # table property in the Hive family


def scope_key(connectors: Connectors, user: User, connector: Connector) -> ScopeKey | None:
    """Return the scope that the user's lookups belong to. None if the connector has no metadata.

    The address excludes secrets, because they could be guessed from its digest. It includes the engine's endpoints,
    because connectors without options take them from other settings sections.
    """
    try:
        engine = connectors.engine(connector)
    except QueryServerError:  # the connector cannot run on this server
        return None
    if not isinstance(engine, CatalogEngine):
        return None
    capabilities = engine.capabilities
    options = {
        name: _PASSWORD.sub("://", value) if isinstance(value, str) else value
        for name, value in connector.options.items()
        if not _SECRET.search(name)
    }
    location = [sorted(options.items()), sorted(capabilities.endpoints)]
    address = hashlib.sha256(orjson.dumps([connector.dialect, connector.interface, connector.version, *location]))
    acts_as_caller = capabilities.wants_credentials or capabilities.wants_external_token or capabilities.acts_as_caller
    return ScopeKey(connector.key, user.id if acts_as_caller else None, address.digest(), connector.is_stored)


@dataclass(eq=False, repr=False)
class IndexFeed:
    """Collects metadata returned by engines, and writes it to the index in the background, inside `running()`."""

    records: MetadataIndexRecords
    connectors: Connectors
    max_tables: int
    max_columns: int
    _waiting: deque[tuple[ScopeKey, CatalogQuery[Any], Any]] = field(
        default_factory=lambda: deque[tuple[ScopeKey, CatalogQuery[Any], Any]](maxlen=_QUEUED), init=False
    )
    _has_work: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _idle: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self._idle.set()

    def running(self) -> AbstractAsyncContextManager[None]:
        """Write in the background inside the context."""
        return background(self._write(), name="metadata-index-feed")

    def add(self, user: User, connector: Connector, query: CatalogQuery[Any], answer: object) -> None:
        """Queue a response from an engine. Never waits or fails. If 200 responses are queued, the oldest is dropped."""
        key = scope_key(self.connectors, user, connector)
        if key is not None and query.kind in ("databases", "database", "tables", "table"):
            self._waiting.append((key, query, answer))
            self._idle.clear()
            self._has_work.set()

    async def wait_until_idle(self) -> None:
        await self._idle.wait()

    async def _write(self) -> None:
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            while self._waiting:
                key, query, answer = self._waiting.popleft()
                try:
                    scope = await self.records.scope(key)
                    objects = await asyncio.to_thread(_objects_of, query, answer, self.max_columns)
                    await self.records.put(scope.id, objects, max_tables=self.max_tables)
                except QueryServerError as error:
                    log.warning("metadata not indexed", connector=key.connector, code=error.code)
                except Exception:  # last resort of a task: later responses must still be indexed
                    log.exception("metadata not indexed", connector=key.connector)
            self._idle.set()


def _objects_of(query: CatalogQuery[Any], answer: Any, max_columns: int) -> Sequence[IndexedObject]:
    if query.kind == "databases":
        return [IndexedObject(DATABASE, name, "") for name in answer]
    if isinstance(answer, DatabaseDescription):
        return [IndexedObject(DATABASE, answer.name, "", answer.comment, answer.owner_name)]
    if isinstance(answer, TableList):
        database = str(query.names[0] or "")
        return [
            IndexedObject(kind_of(TableKind(kind)), database, name, comment or None)
            for name, kind, comment in zip(answer.names, answer.kinds, answer.comments, strict=True)
        ]
    return [indexed_table(answer, max_columns)] if isinstance(answer, TableDescription) else []


def indexed_table(table: TableDescription, max_columns: int) -> IndexedObject:
    """Return the index object for a table, with its first `max_columns` columns."""
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
    return VIEW if kind.is_view else TABLE


def _modified_at(table: TableDescription) -> datetime | None:
    """Return the time of the last change, which is a table property in the Hive family, or else the creation time."""
    text = next((one.value for one in table.properties if one.name.strip() == _CHANGED), "").strip()
    try:
        if text.isdecimal():
            return datetime.fromtimestamp(int(text), UTC)
        return datetime.fromisoformat(table.create_time) if table.create_time else None
    except (ValueError, OverflowError, OSError):
        return None

"""Answers of catalogues that are kept for a short time (Contract editor 10, `metadata_cache_s`)."""

import asyncio
import hashlib
import random
import zlib
from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import orjson
import structlog

from queryserver.db.catalog import MetadataCacheRecords
from queryserver.domain.connector import Connector
from queryserver.domain.errors.base import DatabaseUnavailable
from queryserver.domain.user import User
from queryserver.interfaces.metadata_cache import CacheKey, CacheLook
from queryserver.services.metadata.questions import Question

log = structlog.get_logger(__name__)

_THREAD_ABOVE_BYTES = 16 * 1024
_MAX_USER_BYTES = 32 * 1024 * 1024
_MIN_SWEEP_S = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found(CacheLook):
    """A look, and the key to keep what the engine will answer."""

    key: CacheKey


class MetadataCache:
    """Compressed answers per user and connector. An answer that cannot be kept is given all the same."""

    def __init__(self, records: MetadataCacheRecords, threads: Executor, *, max_age: timedelta) -> None:
        self._records = records
        self._threads = threads
        self._max_age = max_age

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Sweep what nobody can be given any more, while inside."""
        sweeper = asyncio.create_task(self._sweep(), name="metadata-sweep")
        try:
            yield
        finally:
            sweeper.cancel()
            await asyncio.gather(sweeper, return_exceptions=True)

    async def look(self, user: User, connector: Connector, login: str, question: Question[Any]) -> Found:
        """What is kept; `login` is the name by which the data source knows the caller, if it wants one."""
        # The former version of a connector may have meant another place.
        asked = orjson.dumps([question.kind, question.names, login, connector.version])
        key = CacheKey(user.id, connector.key, hashlib.sha256(asked).digest())
        look = await self._records.look(key, max_age=self._max_age)
        return Found(look.value, look.looked_at, look.changed_at, key)

    async def read(self, question: Question[T], value: bytes) -> T:
        """The answer that was kept."""

        def unpack() -> T:
            return question.decode(zlib.decompress(value))

        if len(value) <= _THREAD_ABOVE_BYTES:
            return unpack()
        return await asyncio.get_running_loop().run_in_executor(self._threads, unpack)

    async def keep(self, question: Question[T], answer: T, *, key: CacheKey, looked_at: datetime) -> None:
        """Keep an answer that the engine gave after `looked_at`."""
        if not self._max_age:
            return

        def pack() -> bytes:
            return zlib.compress(question.encode(answer), 1)

        value = await asyncio.get_running_loop().run_in_executor(self._threads, pack)
        try:
            await self._records.keep(key, value, looked_at=looked_at, max_bytes=_MAX_USER_BYTES)
        except DatabaseUnavailable:
            log.warning("metadata not kept", kind=question.kind)

    async def objects_changed(self, user_id: int, connector: str) -> None:
        """The user changed objects of the connector: nothing from before is given any more, by no instance."""
        await self._records.objects_changed(user_id, connector)

    async def _sweep(self) -> None:
        period_s = max(self._max_age.total_seconds(), _MIN_SWEEP_S)
        while True:
            # Servers started together must not sweep in step.
            await asyncio.sleep(period_s * random.uniform(0.8, 1.0))  # noqa: S311 no secret
            try:
                await self._records.sweep(older_than=timedelta(seconds=period_s))
            except DatabaseUnavailable:
                log.warning("sweep of metadata failed")

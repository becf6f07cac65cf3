"""Cancels statements on the sample database when it exceeds its quota or free disk space is low (ADR 5)."""

import asyncio
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import asyncpg

from queryserver.platform.disk_floor import NO_FLOOR, DiskFloor
from queryserver.platform.embedded.cluster import SAMPLE_DATABASE, SUPERUSER
from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.embedded.sample import connected

_log = logging.getLogger(__name__)

QUOTA_BYTES = 10 * 1024**3
_CHECK_EVERY_S = 0.2
_MEASURE_EVERY = 5
"""The files are measured on every fifth free-space check, but on each check while statements are being canceled."""
_MAX_CANCELS = 5
"""If a statement has been canceled this often, its session is terminated, because functions can catch cancellation."""
_MAX_GROWTH_BY_REMOVALS = 32 * 1024**2
"""Growth of the files after which statements that delete data are canceled too: they may write, as in triggers."""

# Read-only queries and their parallel workers can also fill the disk, with temporary files.
_CANCEL_WRITING_STATEMENTS = rf"""
    SELECT pid, query_start, pg_cancel_backend(pid) FROM pg_stat_activity
    WHERE datname = '{SAMPLE_DATABASE}' AND usename <> '{SUPERUSER}' AND state = 'active'
    AND (
        pid IN (SELECT coalesce(leader_pid, pid) FROM pg_stat_activity WHERE pid = ANY ($1::int[]))
        OR ($2 AND backend_xid IS NOT NULL AND ($3 OR query !~* '^\s*(abort|delete|drop|rollback|truncate)\M'))
    )
"""  # noqa: S608 our own names
_TEMPORARY_FILE = re.compile(r"pgsql_tmp(\d+)\.")


@dataclass(frozen=True, slots=True)
class SampleLimits:
    """Disk limits for statements on the sample database: `quota_bytes` in total, and the minimum free space `floor`.

    Temporary files of queries have a separate quota of the same size.
    """

    quota_bytes: int = QUOTA_BYTES
    floor: DiskFloor = NO_FLOOR


@dataclass(slots=True)
class _Files:
    stored_bytes: int = 0
    temporary_bytes: int = 0
    spilling: set[int] = field(default_factory=set[int])
    """PIDs of the processes that have temporary files."""


class SampleGuard:
    """Watches the disk usage of the cluster in the directory `data` and cancels statements that exceed the limits."""

    def __init__(self, server: EmbeddedPostgres, data: Path, limits: SampleLimits) -> None:
        self._server = server
        self._data = data
        self._limits = limits
        self._files = _Files()
        self._min_stored_bytes = 0
        self._canceled = Counter[tuple[int, datetime]]()
        """How often each statement that the last check found has been canceled."""
        self._ends_statements = False

    async def run(self) -> None:
        """Check the limits periodically until canceled."""
        number = 0
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            try:
                await self._check(measures=number % _MEASURE_EVERY == 0)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                _log.exception("the statements that write into the sample database could not be canceled")
            number += 1

    async def _check(self, *, measures: bool) -> None:
        is_below_floor = await asyncio.to_thread(self._is_below_floor)
        if measures or is_below_floor or self._ends_statements:
            self._files = await asyncio.to_thread(_measure_files, self._data / "base")
        files, quota = self._files, self._limits.quota_bytes
        ends_writers = is_below_floor or files.stored_bytes > quota
        if not ends_writers:
            self._min_stored_bytes = files.stored_bytes
        self._min_stored_bytes = min(self._min_stored_bytes, files.stored_bytes)
        spilling = files.spilling if is_below_floor or files.temporary_bytes > quota else set[int]()
        self._ends_statements = ends_writers or bool(spilling)
        if not self._ends_statements:
            return
        ends_removals = files.stored_bytes > self._min_stored_bytes + _MAX_GROWTH_BY_REMOVALS
        await self._cancel(spilling, ends_writers=ends_writers, ends_removals=ends_removals)
        if ends_removals:
            self._min_stored_bytes = files.stored_bytes

    async def _cancel(self, spilling: Iterable[int], *, ends_writers: bool, ends_removals: bool) -> None:
        """Cancel statements whose processes are in `spilling`; if set, also those that write or only delete data."""
        async with connected(self._server.admin_dsn()) as connection:
            rows = await connection.fetch(_CANCEL_WRITING_STATEMENTS, list(spilling), ends_writers, ends_removals)
            found = [(row["pid"], row["query_start"]) for row in rows]
            for statement in found:
                if self._canceled[statement] >= _MAX_CANCELS:
                    await connection.execute("SELECT pg_terminate_backend($1)", statement[0])
        self._canceled = Counter({statement: self._canceled[statement] + 1 for statement in found})

    def _is_below_floor(self) -> bool:
        floor = self._limits.floor
        return not floor.is_off and floor.room(self._data, fresh=True) <= 0


def _measure_files(base: Path) -> _Files:
    files = _Files()
    for directory, _, names in os.walk(base):
        of_queries = _TEMPORARY_FILE.search(directory)  # a directory of temporary files that parallel workers share
        is_temporary = "pgsql_tmp" in directory
        for name in names:
            size = 0
            with suppress(OSError):
                size = os.stat(f"{directory}/{name}").st_size  # noqa: PTH116 fast: a thousand calls per second
            if not is_temporary:
                files.stored_bytes += size
                continue
            files.temporary_bytes += size
            if owner := of_queries or _TEMPORARY_FILE.match(name):
                files.spilling.add(int(owner[1]))
    return files

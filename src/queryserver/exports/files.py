"""Writes the rows of a statement into files of a store (Contract exports 4, 5)."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from queryserver import errors
from queryserver.engines.external_data import FileSink
from queryserver.errors.base import InsufficientScope
from queryserver.exports.model import ExportSummary, FileDestination, present_rights, require_download, schema_text
from queryserver.files.folder_writes import ExportFiles, NewFolder, part_name
from queryserver.files.moves import Moves
from queryserver.files.statement_files import StatementFileAccess
from queryserver.formats.arrow import Column
from queryserver.formats.download.stream import BackgroundEncoder, FileEncoders, slices
from queryserver.identity.model import Scope, User
from queryserver.identity.users import UserDirectory
from queryserver.imports.session import read_ahead
from queryserver.statements.job_session import JobReport
from queryserver.statements.model import Assignment, Claim
from queryserver.statements.result_reader import ResultReader

MAX_PARTS = 10_000
_REPORT_EVERY_S = 10.0
_UNKNOWN_PROGRESS = 50
_MOVE_CHECKS = 60
_MOVE_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class FileExports:
    """Opens the sinks of statements whose rows go into files. `threads` encode the rows."""

    access: StatementFileAccess
    moves: Moves
    reader: ResultReader
    users: UserDirectory
    threads: Executor
    may_publish: Callable[[Claim], Awaitable[bool]]
    is_enabled: bool = True

    def target(self, destination: FileDestination) -> "FileTarget":
        """Return the destination with its path in normal form. Raises the errors of `PathReader.read`."""
        return FileTarget(self, replace(destination, path=str(self.access.stores.path(destination.path))))

    async def check(self, user: User, destination: FileDestination) -> None:
        """Check rights and target. Raises download_disabled, InsufficientScope, and the errors of `write`."""
        self._require_rights(user)
        files = ExportFiles(self.access, self.moves, user)
        if destination.is_split:
            await files.require_new_folder(destination.path, destination.extension)
        else:
            await files.require_new_file(destination.path, overwrite=destination.replace)

    @asynccontextmanager
    async def open(self, assignment: Assignment, user: User) -> AsyncGenerator["FileRows"]:
        """Open the sink of a statement, with the rights that the user has now. Raises the errors of `check`."""
        destination = FileDestination.read(assignment.destination or {})
        user = await present_rights(self.users, user)
        await self._check_when_moves_have_ended(user, destination)
        known, total = list[pa.Schema](), None
        if assignment.source_operation is not None:
            status, _, _ = await self.reader.overview(user, assignment.source_operation)
            known = [schema async for schema in self.reader.schemas(status.id, status.rows)]
            total = status.rows
        yield FileRows(partial(self._files, assignment, user), destination, self.threads, known, total)

    @asynccontextmanager
    async def _files(
        self, assignment: Assignment, user: User, on_published: Callable[[], object]
    ) -> AsyncGenerator[ExportFiles]:
        """Open the access to stores, with the rights that the user has now: rows may arrive hours after `open`."""
        user, claim = await present_rights(self.users, user), assignment.claim
        self._require_rights(user)

        async def require_claim() -> None:
            if not await self.may_publish(claim):
                raise errors.OutcomeUnknown("The export was canceled, or another server has taken it over.")

        operation_id = str(claim.operation_id or claim.statement_id)
        files = ExportFiles(
            self.access, self.moves, user, operation_id, require_claim=require_claim, on_published=on_published
        )
        try:
            yield files
        finally:
            await files.end()

    async def _check_when_moves_have_ended(self, user: User, destination: FileDestination) -> None:
        """Like `check`, but wait for a move to the target that is ending, for example because its process died."""
        for _ in range(_MOVE_CHECKS):
            with suppress(errors.OperationInProgress):
                return await self.check(user, destination)
            await asyncio.sleep(_MOVE_PAUSE_S)
        return await self.check(user, destination)

    def _require_rights(self, user: User) -> None:
        require_download(user, is_enabled=self.is_enabled)
        if not user.has_scope(Scope.FILES_WRITE):
            raise InsufficientScope(Scope.FILES_WRITE)


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Implements `Destination` for files."""

    exports: FileExports
    destination: FileDestination
    connector: str | None = None

    @property
    def path(self) -> str:
        return self.destination.path

    def stored(self) -> Mapping[str, Any]:
        return self.destination.stored()

    async def check(self, user: User) -> None:
        await self.exports.check(user, self.destination)


@dataclass(slots=True)
class FileRows:
    """Implements `RowSink` for files of one export. `open_files` opens the access to the stores; its argument is called
    once all files are visible.

    `known` are the types of all batches, and `total` is the number of rows, where they are known in advance.
    """

    open_files: Callable[[Callable[[], object]], AbstractAsyncContextManager[ExportFiles]]
    destination: FileDestination
    threads: Executor
    known: Sequence[pa.Schema] = ()
    total: int | None = None
    _counts: "_Counts" = field(init=False)

    async def write(
        self, columns: Sequence[Column], batches: AsyncIterator[pa.RecordBatch], report: JobReport
    ) -> ExportSummary:
        """Write all files, or nothing that others can see. Encodes in a thread while the store receives bytes."""
        run = asyncio.get_running_loop().run_in_executor
        encoders = await run(self.threads, FileEncoders, tuple(columns), self.destination.form, self.known)
        self._counts = _Counts(report, self.total)
        path = self.destination.path
        report.lines.append(f"Writing to {path}.")

        def summary() -> ExportSummary:
            counts = self._counts
            return ExportSummary(counts.rows, schema_text(columns), counts.size_bytes, counts.files, path)

        def succeed() -> None:
            report.summary = summary().batch
            report.lines.append(f"Wrote {self._counts.rows} rows to {path} ({self._counts.size_bytes} bytes).")

        async with self.open_files(succeed) as files, aclosing(_Rows(batches, self.threads)) as rows:
            if self.destination.is_split:
                async with files.write_folder(path, self.destination.extension) as folder:
                    await self._write_parts(folder, encoders, rows)
            else:
                async with files.write(path, overwrite=self.destination.replace) as sink:
                    await self._write_file(sink, encoders, rows)
        return summary()

    async def _write_parts(self, folder: NewFolder, encoders: FileEncoders, rows: "_Rows") -> None:
        while self._counts.files == 0 or await rows.has_more():
            if self._counts.files == MAX_PARTS:
                raise errors.too_many_parts(f"The export has more than {MAX_PARTS} parts; choose larger parts.")
            async with folder.file(part_name(self._counts.files, self.destination.extension)) as sink:
                await self._write_file(sink, encoders, rows)

    async def _write_file(self, sink: FileSink, encoders: FileEncoders, rows: "_Rows") -> None:
        """Write rows until the file is as large as it may be, or until there are no more rows."""
        max_rows, max_bytes = self.destination.split_rows, self.destination.split_bytes
        left, size_bytes = max_rows, 0
        encoder = await asyncio.get_running_loop().run_in_executor(self.threads, encoders.encoder)
        with closing(BackgroundEncoder(encoder, self.threads)) as work:
            while left != 0 and (max_bytes is None or size_bytes < max_bytes):
                piece = await rows.take(left)
                if piece is None:
                    break
                encoded = await work.add(piece)
                await sink.send(encoded)
                size_bytes += len(encoded)
                left = None if left is None else left - piece.num_rows
                self._counts.add(piece.num_rows, len(encoded))
            last = await work.finish()
            await sink.send(last)
        self._counts.add(0, len(last))
        self._counts.files += 1


@dataclass(slots=True)
class _Counts:
    """Counts what is written, and reports it."""

    report: JobReport
    total: int | None
    rows: int = 0
    size_bytes: int = 0
    files: int = 0
    _reported_at: float = field(default_factory=time.monotonic)

    def add(self, rows: int, size_bytes: int) -> None:
        self.rows += rows
        self.size_bytes += size_bytes
        self.report.progress = (
            _UNKNOWN_PROGRESS if self.total is None else min(99, 100 * self.rows // max(self.total, 1))
        )
        if (now := time.monotonic()) - self._reported_at >= _REPORT_EVERY_S:
            self._reported_at = now
            known = "" if self.total is None else f" of {self.total}"
            self.report.lines.append(f"Wrote {self.rows}{known} rows ({self.size_bytes} bytes).")


class _Rows:
    """The rows of an export in pieces of about 1 MiB. The next batch is fetched while the previous one is written."""

    def __init__(self, batches: AsyncIterator[pa.RecordBatch], threads: Executor) -> None:
        self._pieces = self._sliced(batches, threads)
        self._rest: pa.Table | None = None

    async def take(self, max_rows: int | None) -> pa.Table | None:
        """Return the next rows, at most `max_rows`, or None at the end."""
        if not await self.has_more() or self._rest is None:
            return None
        piece, self._rest = self._rest, None
        if max_rows is not None and piece.num_rows > max_rows:
            piece, self._rest = piece.slice(0, max_rows), piece.slice(max_rows)
        return piece

    async def has_more(self) -> bool:
        if self._rest is None:
            self._rest = await anext(self._pieces, None)
        return self._rest is not None

    async def aclose(self) -> None:
        await self._pieces.aclose()

    @staticmethod
    async def _sliced(batches: AsyncIterator[pa.RecordBatch], threads: Executor) -> AsyncGenerator[pa.Table]:
        run = asyncio.get_running_loop().run_in_executor
        async with aclosing(read_ahead(batch async for batch in batches)) as ahead:
            async for batch in ahead:
                if batch.num_rows:
                    for piece in await run(threads, slices, pa.Table.from_batches([batch])):
                        yield piece

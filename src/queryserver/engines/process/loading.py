"""Loads into a database in an engine process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial

import pyarrow as pa

from queryserver.engines.loading import deliver_cancel, refuse_changes, refuse_target, staged
from queryserver.engines.process.channel import ChannelClosed, Frame
from queryserver.engines.process.messages import BatchWriter, count_of, packed
from queryserver.engines.process.sessions import STOP_S, Connection
from queryserver.engines.protocol import LoadLedger, TableLoad, TableName
from queryserver.errors.statements import SessionLost


class ProcessLoader:
    """A TableLoader on one connection, which `end` closes."""

    def __init__(self, connection: Connection, *, read_only: bool) -> None:
        self._connection = connection
        self._read_only = read_only
        self._call: asyncio.Task[Frame] | None = None
        self._over = False

    async def exists(self, table: TableName) -> bool:
        return bool((await self._short("exists", table)).message.get("exists"))

    async def load(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger) -> int:
        refuse_changes(read_only=self._read_only)
        refuse_target(load, exists=await self.exists(load.target))
        async with staged(load.staging, ledger, partial(self.drop, load.staging)) as staging:
            async with self._connection.slots.slot(self._connection.user_id):
                rows, is_late = await self._write(load, batches)
            await staging.publish(asyncio.sleep(0))  # the process has already performed the last step
            if is_late:
                deliver_cancel(None)
            return rows

    async def drop(self, table: TableName) -> None:
        refuse_changes(read_only=self._read_only)
        await self._short("drop", table)

    async def end(self) -> None:
        """Stop the running call and close the connection. Limited in time, idempotent."""
        if not self._over:
            self._over = True
            await self._stop()
            await self._connection.leave()

    async def _write(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch]) -> tuple[int, bool]:
        """The number of rows, and whether a cancellation arrived after they were committed."""
        before = self._call
        try:
            call = await self._begun("load", load)
            await self._feed(batches, call)
            return count_of(await asyncio.shield(call), "rows") or 0, False
        except BaseException as error:  # cancellation too: the process must not continue
            await asyncio.shield(self._stop())
            call = self._call
            has_succeeded = call is not before and call is not None and not call.cancelled() and not call.exception()
            if not isinstance(error, asyncio.CancelledError) or call is None or not has_succeeded:
                raise
            return count_of(call.result(), "rows") or 0, True

    async def _feed(self, batches: AsyncIterator[pa.RecordBatch], call: "asyncio.Task[Frame]") -> None:
        """Send the batches until the process fails, then `end`, up to which the process always reads."""
        writer = BatchWriter()
        async for batch in batches:
            if call.done():
                break
            sizes, contents = writer.parts([batch])
            await self._send({"kind": "batches", "parts": sizes}, *contents)
        await self._send({"kind": "end"})

    async def _send(self, message: dict[str, object], *contents: pa.Buffer) -> None:
        """Send a frame completely, even if the caller is cancelled. The loss of the process is reported by the
        reply.
        """
        sending = asyncio.ensure_future(self._connection.channel.send(message, *contents))
        sending.add_done_callback(lambda done: done.cancelled() or done.exception())
        with suppress(ChannelClosed):
            await asyncio.shield(sending)

    async def _short(self, kind: str, table: TableName) -> Frame:
        return await asyncio.shield(await self._begun(kind, table))

    async def _begun(self, kind: str, content: TableName | TableLoad) -> "asyncio.Task[Frame]":
        """Start a request, after waiting for the end of a previous one that a cancellation left running."""
        if self._call is not None and not self._call.done():
            await asyncio.wait({self._call}, timeout=STOP_S)
        if self._over or (self._call is not None and not self._call.done()):
            raise SessionLost("Invalid session Id: the session is gone.")

        async def request() -> Frame:
            await self._connection.send(kind, packed(content))
            return await self._connection.received()

        call = self._call = asyncio.create_task(request(), name=kind)
        call.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0)  # so that the request is sent before the batches
        return call

    async def _stop(self) -> None:
        if self._call is not None and not self._call.done():
            await self._send({"kind": "abort"})
            await self._connection.stop(self._call)

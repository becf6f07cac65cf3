"""One connection to a HiveServer2: one call at a time, each limited in time."""

import asyncio
from functools import partial

from queryserver.engines.hiveserver2.errors import LOST_IN_TRANSIT, NOT_SENT, LoginRefused, WireLost
from queryserver.engines.hiveserver2.protocol.messages import ServerException, decode_reply, encode_call
from queryserver.engines.hiveserver2.protocol.methods import Method, ReplyT, RequestT
from queryserver.engines.hiveserver2.transports import Expected, Overlong, Transport

REPLY_BYTES = 64 * 1024 * 1024
"""The longest answer that is kept, where no other limit is given."""


class Connection:
    """A PooledConnection.

    A caller who is cancelled leaves its call to itself: the connection waits for the answer and throws it away, for
    closing it would end the session that it opened.
    """

    def __init__(self, transport: Transport, *, most_bytes: int = REPLY_BYTES) -> None:
        self._transport = transport
        self._most_bytes = most_bytes
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._sequence = 0
        self._exchange: asyncio.Task[object] | None = None
        self._broken = False
        self.opened_session = False
        """Whether a session lives as long as this connection."""

    def is_closed(self) -> bool:
        """Whether no call can be made any more."""
        return self._broken or self._transport.is_closed()

    @property
    def is_busy(self) -> bool:
        """Whether a call is on its way, or waits for its turn."""
        return self._waiting > 0 or self._turn.locked()

    async def call(
        self,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        *,
        limit_s: float,
        largest_cell: int | None = None,
    ) -> ReplyT:
        """Send a call and wait for its answer. Raises WireLost, LoginRefused, ServerException, Overlong.

        With `largest_cell`, a limit in bytes, CellFound instead of Overlong where an answer has a larger cell; the
        connection is broken then.
        """
        await self._take_turn(limit_s)
        task = asyncio.create_task(self._carry_out(method, request, limit_s, largest_cell), name=method.name)
        self._exchange = task
        task.add_done_callback(self._end_turn)
        # By `wait`, since a task that `shut` cancels must not look like a caller who is cancelled.
        await asyncio.wait({task})
        if task.cancelled():
            raise WireLost(sent=True)
        return task.result()

    async def clean(self) -> bool:
        """Whether another session may have the connection."""
        return not (self.is_closed() or self.is_busy or self.opened_session)

    async def shut(self) -> None:
        """Close the connection; a call on its way is given up."""
        self._broken = True
        if self._exchange is not None and not self._exchange.done():
            self._exchange.cancel()
            await asyncio.wait({self._exchange})
        await self._transport.close()

    async def _take_turn(self, limit_s: float) -> None:
        self._waiting += 1
        try:
            async with asyncio.timeout(limit_s):
                await self._turn.acquire()
        except TimeoutError:
            raise WireLost(sent=False) from None
        finally:
            self._waiting -= 1

    async def _carry_out(
        self, method: Method[RequestT, ReplyT], request: RequestT, limit_s: float, largest_cell: int | None
    ) -> ReplyT:
        if self.is_closed():
            raise WireLost(sent=False)
        self._sequence = self._sequence % 0x7FFFFFFF + 1
        raw = encode_call(method, request, self._sequence)
        decode = partial(decode_reply, method, sequence=self._sequence)
        try:
            async with asyncio.timeout(limit_s):
                return await self._transport.exchange(raw, Expected(decode, self._most_bytes, largest_cell))
        except (LoginRefused, ServerException, Overlong):
            raise
        except LOST_IN_TRANSIT as error:
            self._broken = True
            is_sent = not isinstance(error, NOT_SENT)
            raise WireLost(sent=is_sent, timed_out=isinstance(error, TimeoutError)) from error
        except BaseException:  # a cancel too: the rest of the answer is unread
            self._broken = True
            raise

    def _end_turn(self, task: asyncio.Task[ReplyT]) -> None:
        self._turn.release()
        if self._exchange is task:
            # An answer may have 40 MiB; a connection that waits for its next call does not keep it.
            self._exchange = None
        if not task.cancelled():
            task.exception()

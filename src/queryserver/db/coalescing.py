"""Look-ups of one loop turn share a query.

Under load most calls ask the same two questions: who is this, and how is that statement doing. Sixty-four clients
that ask at once cost sixty-four round trips, or one. No question is answered with data from before it was asked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from queryserver.domain.errors import QueryServerError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_LARGEST_QUERY = 200


class CoalescingReader(Generic[K, V]):
    """Answers single keys with one `read_many` for all keys asked for while the last query was on its way.

    At most `side_by_side` queries run at once, so that a slow one does not hold up all others.
    A caller that goes away takes nobody with it; an error reaches every caller of its query.
    """

    def __init__(self, read_many: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]], *, side_by_side: int = 2) -> None:
        self._read_many = read_many
        self._side_by_side = side_by_side
        self._waiting: dict[K, asyncio.Future[V | None]] = {}
        self._readers: set[asyncio.Task[None]] = set()

    async def get(self, key: K) -> V | None:
        """The value of `key` or None. Raises what `read_many` raised."""
        future = self._waiting.get(key)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            self._waiting[key] = future
            if len(self._readers) < self._side_by_side:
                self._start_reader()
        return await asyncio.shield(future)

    async def aclose(self) -> None:
        """Stop the queries on their way; their callers are canceled."""
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def _start_reader(self) -> None:
        reader = asyncio.create_task(self._drain(), name="coalescing-reader")
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)

    async def _drain(self) -> None:
        while self._waiting:
            keys = list(self._waiting)[:_LARGEST_QUERY]
            futures = {key: self._waiting.pop(key) for key in keys}
            try:
                found = await self._read_many(keys)
            except QueryServerError as error:
                for future in futures.values():
                    _settle(future, error)
            except BaseException:
                for future in futures.values():
                    future.cancel()
                raise
            else:
                for key, future in futures.items():
                    if not future.done():
                        future.set_result(found.get(key))


def _settle(future: "asyncio.Future[V | None]", error: QueryServerError) -> None:
    if not future.done():
        future.set_exception(error)
        # Its caller may have gone; then nobody is left to read the error, and that is no news.
        future.exception()

"""Look-ups of one loop turn share a query.

Under load most calls ask the same two questions: who is this, and how is that statement doing. Sixty-four clients
that ask at once cost sixty-four round trips, or one. No question is answered with data from before it was asked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

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
        self._waiting: dict[K, list[asyncio.Future[V | None]]] = {}
        self._reading = 0
        self._readers: set[asyncio.Task[None]] = set()

    async def get(self, key: K) -> V | None:
        """The value of `key` or None. Raises what `read_many` raised."""
        future: asyncio.Future[V | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        if self._reading < self._side_by_side:
            self._start_reader()
        return await future

    async def aclose(self) -> None:
        """Stop the queries on their way; their callers are canceled."""
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def _start_reader(self) -> None:
        self._reading += 1
        reader = asyncio.create_task(self._drain(), name="coalescing-reader")
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)

    async def _drain(self) -> None:
        try:
            while self._waiting:
                keys = list(self._waiting)[:_LARGEST_QUERY]
                await self._answer({key: self._waiting.pop(key) for key in keys})
        finally:
            # Counted down in the step that saw nobody waiting. The end of the task is noticed a turn later, and
            # whoever asked in between would wait for a reader that is no more.
            self._reading -= 1

    async def _answer(self, asked: "Mapping[K, Sequence[asyncio.Future[V | None]]]") -> None:
        try:
            found = await self._read_many(list(asked))
        except asyncio.CancelledError:
            for future in _unsettled(asked.values()):
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 passed on to each caller; the reader lives on
            for future in _unsettled(asked.values()):
                future.set_exception(error)
        else:
            for key, futures in asked.items():
                for future in _unsettled([futures]):
                    future.set_result(found.get(key))


def _unsettled(groups: "Iterable[Sequence[asyncio.Future[V | None]]]") -> "list[asyncio.Future[V | None]]":
    """Those whose callers still wait: a caller that went away has canceled its own."""
    return [future for futures in groups for future in futures if not future.done()]

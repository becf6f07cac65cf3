"""A scripted engine whose metadata reads fail or block, or whose database list is incomplete."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.catalog import FakeCatalog, FakeCatalogEngine

from queryserver.engines.protocol import Catalog, SessionOptions
from queryserver.errors.base import QueryServerError
from queryserver.identity.model import User


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of metadata reads. A read is named as in `FakeCatalogEngine.looks`, for example `tables web`.

    `failures` maps a read to the error that it raises. The database list lacks the databases in `unlisted`. `held` maps
    a read to the event for which it waits.
    """

    failures: Mapping[str, QueryServerError] = field(default_factory=dict)
    fails_after_s: float = 0.0
    unlisted: Collection[str] = ()
    held: Mapping[str, asyncio.Event] = field(default_factory=dict)


class FaultyCatalog(FakeCatalog):
    """A catalog with the engine's content, whose reads have these faults."""

    def __init__(self, engine: FakeCatalogEngine, faults: Faults) -> None:
        super().__init__(engine)
        self._faults = faults

    async def databases(self) -> Sequence[str]:
        return [one for one in await super().databases() if one not in self._faults.unlisted]

    async def _look(self, what: str) -> None:
        await super()._look(what)
        if what in self._faults.held:
            await self._faults.held[what].wait()
        if what in self._faults.failures:
            await asyncio.sleep(self._faults.fails_after_s)
            raise self._faults.failures[what]


@contextmanager
def faulty(
    engine: FakeCatalogEngine, failures: Mapping[str, QueryServerError] | None = None, **others: Any
) -> Generator[None]:
    """Apply these faults to the engine until the context exits."""
    faults = Faults(failures or {}, **others)

    @asynccontextmanager
    async def catalog(user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        del user, options
        yield FaultyCatalog(engine, faults)

    vars(engine)["catalog"] = catalog
    try:
        yield
    finally:
        del vars(engine)["catalog"]

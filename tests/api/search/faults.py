"""The scripted engine with faults of single looks, and a list of databases that leaves some out."""

from collections.abc import AsyncGenerator, Collection, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

from tests.fakes.catalog import FakeCatalog, FakeCatalogEngine

from queryserver.domain.errors import QueryServerError
from queryserver.domain.user import User
from queryserver.interfaces.catalog import Catalog
from queryserver.interfaces.engine import SessionOptions


class FaultyCatalog(FakeCatalog):
    """`failures`: by what is asked, as `FakeCatalogEngine.looks` tells it. `unlisted`: databases."""

    def __init__(
        self, engine: FakeCatalogEngine, failures: Mapping[str, QueryServerError], unlisted: Collection[str]
    ) -> None:
        super().__init__(engine)
        self._failures = failures
        self._unlisted = unlisted

    async def databases(self) -> Sequence[str]:
        return [one for one in await super().databases() if one not in self._unlisted]

    async def _look(self, what: str) -> None:
        await super()._look(what)
        if what in self._failures:
            raise self._failures[what]


@contextmanager
def faulty(
    engine: FakeCatalogEngine, failures: Mapping[str, QueryServerError] | None = None, *, unlisted: Collection[str] = ()
) -> Generator[None]:
    """The engine is so while inside."""

    @asynccontextmanager
    async def catalog(user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        del user, options
        yield FaultyCatalog(engine, failures or {}, unlisted)

    vars(engine)["catalog"] = catalog
    try:
        yield
    finally:
        del vars(engine)["catalog"]

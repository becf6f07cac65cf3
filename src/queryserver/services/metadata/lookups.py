"""Looks at data sources: from the cache, or at the engine within limits of time and number (Contract editor 10)."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from queryserver.domain.connector import Connector
from queryserver.domain.errors import (
    CredentialsRequired,
    EngineUnavailable,
    NotSupported,
    OutcomeUnknown,
    SessionLost,
)
from queryserver.domain.user import User
from queryserver.interfaces.catalog import Catalog, CatalogEngine
from queryserver.interfaces.engine import Engine, EngineSession, SessionOptions
from queryserver.services.connectors import Connectors
from queryserver.services.credentials import CredentialBook
from queryserver.services.metadata.cache import MetadataCache
from queryserver.services.metadata.flights import Flights
from queryserver.services.metadata.questions import Question
from queryserver.services.running.slots import Slots

T = TypeVar("T")

PER_CONNECTOR = 8
"""Looks at one connector at once, beside its statements."""
_PER_USER = 4


@dataclass(frozen=True, slots=True)
class LookUpParts:
    """What looks work with. `may_run` tells whether this process can reach the data of a connector."""

    connectors: Connectors
    credentials: CredentialBook
    cache: MetadataCache
    may_run: Callable[[Connector], Awaitable[bool]]


class LookUps:
    """Everything that asks an engine without an operation. Use `running()`."""

    def __init__(self, parts: LookUpParts) -> None:
        self._parts = parts
        self._flights = Flights()
        self._slots = Slots(per_connector=PER_CONNECTOR, per_user=_PER_USER)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Look while inside; at the end all looks are ended."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._parts.cache.running())
            await stack.enter_async_context(self._flights.running())
            yield

    async def ask(self, user: User, connector: Connector, question: Question[T], *, refresh: bool = False) -> T:
        """The answer of the catalogue as this user gets it, not older than the cache allows; equal questions share one.

        Raises NotSupported, CredentialsRequired, EngineUnavailable, EngineTimeout, EngineForbidden, StatementRejected,
        and what the question raises.
        """
        self._catalog_engine(connector)
        login = await self._login(user, connector)
        found = await self._parts.cache.look(user, connector, login, question)
        if found.value is not None and not refresh:
            return await self._parts.cache.read(question, found.value)

        async def work() -> T:
            async with self.catalog(user, connector) as catalog:
                answer = await question.put_to(catalog)
            await self._parts.cache.keep(question, answer, key=found.key, looked_at=found.looked_at)
            return answer

        # Whoever comes after a change of objects, or asks for what is new, waits for no older look.
        shared = object() if refresh else found.changed_at
        return await self._flights.join((found.key, shared), work, budget=connector.limits.metadata_timeout)

    async def within(self, budget: timedelta, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` gives, unless the time is over first: then it is canceled, with what it does at the engine.

        Raises EngineTimeout, and what `work` raises.
        """

        async def working() -> T:
            return await work()

        return await self._flights.join(object(), working, budget=budget)

    @asynccontextmanager
    async def catalog(self, user: User, connector: Connector) -> AsyncGenerator[Catalog]:
        """A catalogue opened as the user, within the limits. Raises as `ask`."""
        engine = self._catalog_engine(connector)
        async with self._place(user, connector) as options:
            with engine_errors():
                async with engine.catalog(user, options) as catalog:
                    yield catalog

    @asynccontextmanager
    async def session(
        self, user: User, connector: Connector, database: str | None = None
    ) -> AsyncGenerator[EngineSession]:
        """An engine session of this look's own, within the limits. Raises as `ask`."""
        async with self._place(user, connector, database) as options:
            with engine_errors():
                async with self._parts.connectors.engine(connector).session(user, options) as session:
                    yield session

    def lists_functions(self, connector: Connector) -> bool:
        """Whether the catalogue has functions at all. Raises NotSupported for an engine without catalogue."""
        return self._catalog_engine(connector).lists_functions

    async def require_access(self, user: User, connector: Connector) -> None:
        """Raises CredentialsRequired when the data source wants a login, EngineUnavailable when held elsewhere."""
        await self._login(user, connector)
        one_process = self._parts.connectors.engine(connector).capabilities.one_process
        if one_process and not await self._parts.may_run(connector):
            message = "Another server holds this database just now: ask again, or run a statement."
            raise EngineUnavailable(message)

    @asynccontextmanager
    async def _place(
        self, user: User, connector: Connector, database: str | None = None
    ) -> AsyncGenerator[SessionOptions]:
        await self.require_access(user, connector)
        async with self._slots.slot(connector.key, user.id):
            credentials = await self._parts.credentials.of(user, connector)
            yield SessionOptions(database=database, credentials=credentials)

    async def _login(self, user: User, connector: Connector) -> str:
        """The name by which the data source knows the caller; empty when the connector has a login of its own."""
        if not self._parts.connectors.engine(connector).capabilities.wants_credentials:
            return ""
        credentials = await self._parts.credentials.of(user, connector)
        if credentials is None:
            raise CredentialsRequired("The data source wants credentials: call create_session with user and password.")
        return credentials.username

    def _catalog_engine(self, connector: Connector) -> CatalogEngine:
        engine: Engine = self._parts.connectors.engine(connector)
        if not isinstance(engine, CatalogEngine):
            raise NotSupported(f"The connector {connector.nice_name} tells no metadata.")
        return engine


@contextmanager
def engine_errors() -> Generator[None]:
    """A connection that was lost in the middle of a look loses nothing: asking again is safe."""
    try:
        yield
    except (OutcomeUnknown, SessionLost) as error:
        raise EngineUnavailable(error.message) from error

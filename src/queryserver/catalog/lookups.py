"""Looks at data sources: from the cache, or at the engine within limits of time and number (Contract editor 10)."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from queryserver.catalog.cache import BY_KIND, MetadataCache, Question
from queryserver.catalog.forwarding import Elsewhere, Flights
from queryserver.connectors.engines import Connectors
from queryserver.connectors.model import Connector
from queryserver.engines.protocol import (
    Catalog,
    CatalogEngine,
    Engine,
    EngineSession,
    LoadingEngine,
    SessionOptions,
    TableLoader,
)
from queryserver.errors.base import NotSupported
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
    SessionLost,
)
from queryserver.identity.model import User
from queryserver.platform.metrics import UNMEASURED, StatementMetrics
from queryserver.platform.shares import Slots
from queryserver.statements.credentials import CredentialBook

T = TypeVar("T")

PER_CONNECTOR = 8
"""Looks at one connector at once, beside its statements."""
_PER_USER = 4
_QUESTION = "question"


Heard = Callable[[User, Connector, Question[Any], object], None]


@dataclass(frozen=True, slots=True)
class LookUpParts:
    """What looks work with. `may_run` tells whether this process can reach the data of a connector."""

    connectors: Connectors
    credentials: CredentialBook
    cache: MetadataCache
    may_run: Callable[[Connector], Awaitable[bool]]
    elsewhere: Elsewhere
    metrics: StatementMetrics = UNMEASURED
    heard: Heard | None = None
    """Told of each answer of an engine; must neither wait nor fail."""


class LookUps:
    """Everything that asks an engine without an operation. Use `running()`."""

    def __init__(self, parts: LookUpParts) -> None:
        self._parts = parts
        self._flights = Flights()
        parts.elsewhere.serve(_QUESTION, self._answer_for_others)
        self._slots = Slots(per_connector=PER_CONNECTOR, per_user=_PER_USER)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Look while inside; at the end all looks are ended."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._parts.cache.running())
            await stack.enter_async_context(self._parts.elsewhere.running())
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
            answer = await self._answer(user, connector, question)
            if self._parts.heard is not None:
                self._parts.heard(user, connector, question, answer)
            await self._parts.cache.keep(question, answer, key=found.key, looked_at=found.looked_at)
            return answer

        # Whoever comes after a change of objects, or asks for what is new, waits for no older look.
        shared = object() if refresh else found.changed_at
        return await self._flights.join((found.key, shared), work, budget=connector.limits.metadata_timeout)

    @asynccontextmanager
    async def catalog(self, user: User, connector: Connector) -> AsyncGenerator[Catalog]:
        """A catalogue opened as the user, within the limits. Raises as `ask`."""
        self._catalog_engine(connector)
        async with self._place(user, connector) as (engine, options):
            with engine_errors():
                async with _as_catalog(engine, connector).catalog(user, options) as catalog:
                    yield catalog

    @asynccontextmanager
    async def session(
        self, user: User, connector: Connector, database: str | None = None
    ) -> AsyncGenerator[EngineSession]:
        """An engine session of this look's own, within the limits. Raises as `ask`."""
        async with self._place(user, connector, database) as (engine, options):
            with engine_errors():
                async with engine.session(user, options) as session:
                    yield session

    @asynccontextmanager
    async def loader(self, user: User, connector: Connector) -> AsyncGenerator[TableLoader]:
        """A loader of this look's own, within the limits. Raises as `ask`."""
        async with self._place(user, connector) as (engine, options):
            if not isinstance(engine, LoadingEngine):
                raise NotSupported(f"The connector {connector.nice_name} makes no tables of files.")
            with engine_errors():
                async with engine.loader(user, options) as loader:
                    yield loader

    async def anywhere(
        self,
        user: User,
        connector: Connector,
        kind: str,
        arguments: Sequence[Any],
        *,
        budget: timedelta,
        owner: str | None = None,
    ) -> bytes:
        """The look `kind` in the process that can take it: `owner` if given, else who has the data.

        Raises EngineTimeout after `budget`, and what the look raises.
        """
        elsewhere = self._parts.elsewhere
        # The process that looks in a session that it holds needs no token, so none is sent to it.
        self._parts.credentials.require_token(user, connector)

        async def looking() -> bytes:
            target = owner or await self._holder(connector)
            if target == elsewhere.owner:
                return await elsewhere.here(user, connector, kind, arguments)
            async with self._slots.slot(connector.key, user.id):
                return await elsewhere.ask(target, user, connector, kind, arguments, budget=budget)

        return await self._flights.join(object(), looking, budget=budget)

    async def runs_here(self, connector: Connector) -> bool:
        """Whether this process can reach the data of a connector. Raises EngineUnavailable when none does just now."""
        return await self._holder(connector) == self._parts.elsewhere.owner

    def lists_functions(self, connector: Connector) -> bool:
        """Whether the catalogue has functions at all. Raises NotSupported for an engine without catalogue."""
        return self._catalog_engine(connector).lists_functions

    async def _answer(self, user: User, connector: Connector, question: Question[T]) -> T:
        target = await self._holder(connector)
        if target == self._parts.elsewhere.owner:
            async with self.catalog(user, connector) as catalog:
                return await question.put_to(catalog)
        async with self._slots.slot(connector.key, user.id):
            return question.decode(
                await self._parts.elsewhere.ask(
                    target,
                    user,
                    connector,
                    _QUESTION,
                    [question.kind, *question.names],
                    budget=connector.limits.metadata_timeout,
                )
            )

    async def _answer_for_others(self, user: User, connector: Connector, arguments: Sequence[Any]) -> bytes:
        kind, *names = arguments
        question = BY_KIND[kind](*names)
        async with self.catalog(user, connector) as catalog:
            return question.encode(await question.put_to(catalog))

    async def _holder(self, connector: Connector) -> str:
        """The process that can reach the data: this one, unless another holds them."""
        data = self._parts.connectors.data_of(connector)
        if data is not None and not await self._parts.may_run(connector):
            return await self._parts.elsewhere.holder(data)
        return self._parts.elsewhere.owner

    @asynccontextmanager
    async def _place(
        self, user: User, connector: Connector, database: str | None = None
    ) -> AsyncGenerator[tuple[Engine, SessionOptions]]:
        await self._login(user, connector)
        if await self._holder(connector) != self._parts.elsewhere.owner:
            raise EngineUnavailable("Another server has taken hold of this database; ask again.")
        async with self._slots.slot(connector.key, user.id):
            options = await self._parts.credentials.options(user, connector, database=database)
            try:
                async with self._parts.connectors.using(connector) as engine:
                    yield engine, options
            except EngineError as error:
                self._parts.metrics.engine_failed(connector.dialect, error.code)
                raise

    async def _login(self, user: User, connector: Connector) -> str:
        """The name by which the data source knows the caller; empty when the connector has a login of its own.

        Raises CredentialsRequired, EngineJwtRequired.
        """
        self._parts.credentials.require_token(user, connector)
        if not self._parts.connectors.engine(connector).capabilities.wants_credentials:
            return ""
        credentials = await self._parts.credentials.of(user, connector)
        if credentials is None:
            raise CredentialsRequired("The data source wants credentials: call create_session with user and password.")
        return credentials.username

    def _catalog_engine(self, connector: Connector) -> CatalogEngine:
        return _as_catalog(self._parts.connectors.engine(connector), connector)


def _as_catalog(engine: Engine, connector: Connector) -> CatalogEngine:
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

"""Lookups: queries of catalogues and samples, from the cache or at the engine within limits (Contract editor 10)."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from queryserver.catalog.cache import MetadataCache
from queryserver.catalog.forwarding import Flights, Forwarding
from queryserver.catalog.questions import BY_KIND, CatalogQuestion
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
from queryserver.platform.limits import Slots
from queryserver.platform.metrics import Metrics
from queryserver.statements.session_repository import CredentialBook

T = TypeVar("T")

PER_CONNECTOR = 8
"""Lookups of one connector at once, beside its statements."""
_PER_USER = 4
_QUESTION = "question"

AnswerListener = Callable[[User, Connector, CatalogQuestion[Any], object], None]


class Lookups:
    """All queries of an engine that are no operation. Use `running()`.

    `may_run`: whether this process can reach the data of a connector. `on_answer` is called with each answer of an
    engine; it must neither wait nor fail.
    """

    def __init__(
        self,
        *,
        connectors: Connectors,
        credentials: CredentialBook,
        cache: MetadataCache,
        may_run: Callable[[Connector], Awaitable[bool]],
        forwarding: Forwarding,
        metrics: Metrics,
        on_answer: AnswerListener | None,
    ) -> None:
        self._connectors = connectors
        self._credentials = credentials
        self._cache = cache
        self._may_run = may_run
        self._forwarding = forwarding
        self._metrics = metrics
        self._on_answer = on_answer
        self._flights = Flights()
        forwarding.serve(_QUESTION, self._forwarded_answer)
        self._slots = Slots(per_connector=PER_CONNECTOR, per_user=_PER_USER)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Look up while inside; at the end all lookups are ended."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._cache.running())
            await stack.enter_async_context(self._forwarding.running())
            await stack.enter_async_context(self._flights.running())
            yield

    async def answer(
        self, user: User, connector: Connector, question: CatalogQuestion[T], *, refresh: bool = False
    ) -> T:
        """The answer of the catalogue as this user gets it, not older than the cache allows; equal questions share one.

        Raises NotSupported, CredentialsRequired, EngineUnavailable, EngineTimeout, EngineForbidden, StatementRejected,
        and what the question raises.
        """
        self._catalog_engine(connector)
        login = await self._login(user, connector)
        found = await self._cache.find(user, connector, login, question)
        if found.value is not None and not refresh:
            return await self._cache.read(question, found.value)

        async def work() -> T:
            answer = await self._engine_answer(user, connector, question)
            if self._on_answer is not None:
                self._on_answer(user, connector, question, answer)
            await self._cache.keep(question, answer, key=found.key, looked_at=found.looked_at)
            return answer

        # After a change of objects, and with `refresh`, an older lookup is not shared.
        shared = object() if refresh else found.changed_at
        return await self._flights.join((found.key, shared), work, budget=connector.limits.metadata_timeout)

    @asynccontextmanager
    async def catalog(self, user: User, connector: Connector) -> AsyncGenerator[Catalog]:
        """A catalogue opened as the user, within the limits. Raises as `answer`."""
        self._catalog_engine(connector)
        async with self._place(user, connector) as (engine, options):
            with engine_errors():
                async with _as_catalog(engine, connector).catalog(user, options) as catalog:
                    yield catalog

    @asynccontextmanager
    async def session(
        self, user: User, connector: Connector, database: str | None = None
    ) -> AsyncGenerator[EngineSession]:
        """An engine session of this lookup's own, within the limits. Raises as `answer`."""
        async with self._place(user, connector, database) as (engine, options):
            with engine_errors():
                async with engine.session(user, options) as session:
                    yield session

    @asynccontextmanager
    async def loader(self, user: User, connector: Connector) -> AsyncGenerator[TableLoader]:
        """A loader of this lookup's own, within the limits. Raises as `answer`."""
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
        """The answer to the lookup `kind`, run by `owner` if given, else by the holder of the data.

        Raises EngineTimeout after `budget`, and the errors of the lookup.
        """
        # A process that uses a session which it holds needs no token, so none is sent to it.
        self._credentials.require_token(user, connector)

        async def work() -> bytes:
            target = owner or await self._holder(connector)
            if target == self._forwarding.owner:
                return await self._forwarding.run_here(user, connector, kind, arguments)
            async with self._slots.slot(connector.key, user.id):
                return await self._forwarding.send(target, user, connector, kind, arguments, budget=budget)

        return await self._flights.join(object(), work, budget=budget)

    async def runs_here(self, connector: Connector) -> bool:
        """Whether this process can reach the data of a connector. Raises EngineUnavailable when none does just now."""
        return await self._holder(connector) == self._forwarding.owner

    def lists_functions(self, connector: Connector) -> bool:
        """Whether the catalogue has functions at all. Raises NotSupported for an engine without catalogue."""
        return self._catalog_engine(connector).lists_functions

    async def _engine_answer(self, user: User, connector: Connector, question: CatalogQuestion[T]) -> T:
        target = await self._holder(connector)
        if target == self._forwarding.owner:
            async with self.catalog(user, connector) as catalog:
                return await question.put_to(catalog)
        async with self._slots.slot(connector.key, user.id):
            budget, arguments = connector.limits.metadata_timeout, [question.kind, *question.names]
            return question.decode(
                await self._forwarding.send(target, user, connector, _QUESTION, arguments, budget=budget)
            )

    async def _forwarded_answer(self, user: User, connector: Connector, arguments: Sequence[Any]) -> bytes:
        kind, *names = arguments
        question = BY_KIND[kind](*names)
        async with self.catalog(user, connector) as catalog:
            return question.encode(await question.put_to(catalog))

    async def _holder(self, connector: Connector) -> str:
        """The process that can reach the data: this one, unless another holds it."""
        data = self._connectors.data_of(connector)
        if data is not None and not await self._may_run(connector):
            return await self._forwarding.holder(data)
        return self._forwarding.owner

    @asynccontextmanager
    async def _place(
        self, user: User, connector: Connector, database: str | None = None
    ) -> AsyncGenerator[tuple[Engine, SessionOptions]]:
        await self._login(user, connector)
        if await self._holder(connector) != self._forwarding.owner:
            raise EngineUnavailable("Another server has taken hold of this database; ask again.")
        async with self._slots.slot(connector.key, user.id):
            options = await self._credentials.options(user, connector, database=database)
            try:
                async with self._connectors.using(connector) as engine:
                    yield engine, options
            except EngineError as error:
                self._metrics.engine_failed(connector.dialect, error.code)
                raise

    async def _login(self, user: User, connector: Connector) -> str:
        """The name by which the data source knows the caller; empty when the connector has a login of its own.

        Raises CredentialsRequired, EngineJwtRequired.
        """
        self._credentials.require_token(user, connector)
        if not self._connectors.engine(connector).capabilities.wants_credentials:
            return ""
        credentials = await self._credentials.of(user, connector)
        if credentials is None:
            raise CredentialsRequired("The data source wants credentials: call create_session with user and password.")
        return credentials.username

    def _catalog_engine(self, connector: Connector) -> CatalogEngine:
        return _as_catalog(self._connectors.engine(connector), connector)


def _as_catalog(engine: Engine, connector: Connector) -> CatalogEngine:
    if not isinstance(engine, CatalogEngine):
        raise NotSupported(f"The connector {connector.nice_name} tells no metadata.")
    return engine


@contextmanager
def engine_errors() -> Generator[None]:
    """A connection that was lost in the middle of a lookup loses nothing: repeating it is safe."""
    try:
        yield
    except (OutcomeUnknown, SessionLost) as error:
        raise EngineUnavailable(error.message) from error

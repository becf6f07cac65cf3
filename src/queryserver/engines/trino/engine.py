"""One coordinator as an Engine."""

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from queryserver.engines.catalog_queries import qualified
from queryserver.engines.protocol import EngineCapabilities, OperationHandle, SessionOptions
from queryserver.engines.trino.catalog import TrinoCatalog, split_database
from queryserver.engines.trino.coordinator import Coordinator, HttpClient
from queryserver.engines.trino.errors import Expired
from queryserver.engines.trino.loading import TrinoLoader
from queryserver.engines.trino.operation import TrinoOperation, TrinoSession
from queryserver.engines.trino.protocol import (
    TRINO,
    Authentication,
    ClientState,
    Login,
    Page,
    TrinoAddress,
    Variant,
)
from queryserver.errors.statements import CredentialsRequired, EngineError, EngineUnavailable, OutcomeUnknown
from queryserver.identity.model import User

_READER_THREADS = 2
_LOOK = "SELECT 1"


class TrinoEngine:
    """Statements on one coordinator. `SessionOptions.database` names `catalog.schema`, or a schema."""

    def __init__(self, address: TrinoAddress, variant: Variant = TRINO, *, read_only: bool = False) -> None:
        self._address = address
        self._read_only = read_only
        self._variant = variant
        self._http = HttpClient(address)
        self._executor = ThreadPoolExecutor(_READER_THREADS, thread_name_prefix=variant.dialect)
        takes_token = self._address.authentication is Authentication.JWT
        self._capabilities = EngineCapabilities(
            explain_prefix="EXPLAIN ",
            reports_progress=True,
            wants_credentials=self._address.username is None and not takes_token,
            wants_external_token=takes_token,
            acts_as_caller=self._address.has_impersonation or not self._address.username,
            places=((self._address.host, self._address.port),),
        )

    @property
    def dialect(self) -> str:
        return self._variant.dialect

    @property
    def capabilities(self) -> EngineCapabilities:
        return self._capabilities

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[TrinoSession]:
        """A session with the catalog, schema and properties of `options`; leaving it stops what still runs in it."""
        coordinator = self._coordinator(self._address.login(user, options), self._first_state(options))
        await self._check(coordinator, options)
        session = TrinoSession(coordinator)
        try:
            yield session
        finally:
            await asyncio.shield(session.leave())

    @asynccontextmanager
    async def reattach(
        self,
        user: User,
        options: SessionOptions,
        token: str,
        *,
        rows_read: int,  # noqa: ARG002 the token says it more exactly
    ) -> AsyncGenerator[tuple[TrinoSession, OperationHandle]]:
        """Follow a statement of another process. Raises OutcomeUnknown, EngineUnavailable, CredentialsRequired."""
        with _readable_token():
            position: dict[str, Any] = json.loads(token)
            state = ClientState.of_json(position["session"])
            coordinator = self._coordinator(self._address.login(user, options), state)
            page = await self._page_at(coordinator, position)
            session = TrinoSession(coordinator)
            handle = session.follow(TrinoOperation(coordinator, page, skip=int(position["skip"])))
        try:
            yield session, handle
        finally:
            await asyncio.shield(session.leave())

    @property
    def lists_functions(self) -> bool:
        return True

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[TrinoCatalog]:
        """The metadata as `user` may see it."""
        async with self.session(user, options) as session:
            yield TrinoCatalog(session, catalog=self._address.catalog, schema=self._address.schema)

    @asynccontextmanager
    async def loader(self, user: User, options: SessionOptions) -> AsyncGenerator[TrinoLoader]:
        catalog, schema = self._address.catalog, self._address.schema
        if options.database:
            catalog, schema = split_database(options.database, catalog)
        async with self.session(user, options) as session:
            yield TrinoLoader(session, self._executor, catalog=catalog, schema=schema, read_only=self._read_only)

    async def ping(self) -> None:
        """Raises EngineUnavailable or CredentialsRequired when statements could not be sent now."""
        # Whoever logs in may always act for itself, if for nobody else.
        itself = User(id=0, username=self._address.username or self._address.source)
        coordinator = self._coordinator(self._address.login(itself, SessionOptions()), ClientState())
        with _one_of_two():
            async with asyncio.timeout(self._address.patience.open_s):
                await coordinator.finish(_LOOK)

    async def close(self) -> None:
        await self._http.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _coordinator(self, login: Login, state: ClientState) -> Coordinator:
        return Coordinator(self._http, self._address, self._variant, login, state, self._executor)

    def _first_state(self, options: SessionOptions) -> ClientState:
        address = self._address
        state = ClientState(catalog=address.catalog, schema=address.schema)
        state.set_properties(address.session_properties)
        state.set_properties(options.settings)
        return state

    async def _check(self, coordinator: Coordinator, options: SessionOptions) -> None:
        """A login, a schema or a property that Trino refuses is refused here, before any statement."""
        try:
            async with asyncio.timeout(self._address.patience.open_s):
                if options.database:
                    catalog, schema = split_database(options.database, self._address.catalog)
                    await coordinator.finish(f"USE {qualified(*filter(None, (catalog, schema)))}")
                elif options.settings:
                    await coordinator.finish(_LOOK)
                else:
                    await coordinator.check()
        except TimeoutError:
            raise EngineUnavailable("Trino did not answer in time.") from None
        except OutcomeUnknown as error:
            raise EngineUnavailable(error.message) from error

    async def _page_at(self, coordinator: Coordinator, position: dict[str, Any]) -> Page:
        if position["uri"] is None:
            return Page("", position["query"], None, columns=position["columns"], update_count=position["changed"])
        try:
            return await coordinator.page(coordinator.own_uri(position["uri"]))
        except Expired:
            raise
        except OutcomeUnknown as error:
            raise EngineUnavailable(error.message) from error


@contextmanager
def _readable_token() -> Generator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise Expired from error


@contextmanager
def _one_of_two() -> Generator[None]:
    """Around a look whose statement cannot be wrong: every failure but a refused login means out of reach."""
    try:
        yield
    except TimeoutError:
        raise EngineUnavailable("Trino did not answer in time.") from None
    except (EngineUnavailable, CredentialsRequired):
        raise
    except EngineError as error:
        raise EngineUnavailable(error.message) from error

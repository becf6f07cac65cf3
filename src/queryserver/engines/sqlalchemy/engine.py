"""A data source of any SQLAlchemy dialect as an Engine."""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

from queryserver.domain.errors.base import ConfigurationError
from queryserver.domain.errors.statements import EngineUnavailable, StatementRejected
from queryserver.domain.user import User
from queryserver.engines.sqlalchemy.address import SqlalchemyAddress
from queryserver.engines.sqlalchemy.catalog import SqlalchemyCatalog
from queryserver.engines.sqlalchemy.connection import SqlalchemyConnection
from queryserver.engines.threaded_session import ThreadedSessions
from queryserver.engines.threads import NO_USER, STATEMENT_THREADS
from queryserver.interfaces.catalog import Catalog
from queryserver.interfaces.engine import EngineCapabilities, EngineSession, SessionOptions
from queryserver.network.guarding import guarded, install_guard

_STOP_THREADS = 2
_OPEN_S = 5.0
"""Added to the connect limit: resolving, the dialect's own questions to the server."""

_MAKE_READ_ONLY = {
    "mysql": "SET SESSION TRANSACTION READ ONLY",
    "mariadb": "SET SESSION TRANSACTION READ ONLY",
    "postgresql": "SET default_transaction_read_only = on",
    "redshift": "SET default_transaction_read_only = on",
}


class SqlalchemyEngine:
    """Statements through one DBAPI driver; `dialect` is the SQL's name. At most `max_statements` run at once.

    A driver that is not installed shows in each session: the server starts without it. Raises ConfigurationError for
    `read_only` where nothing makes the data source refuse changes.
    """

    def __init__(
        self,
        address: SqlalchemyAddress,
        *,
        dialect: str,
        read_only: bool = False,
        max_statements: int = STATEMENT_THREADS,
    ) -> None:
        install_guard()
        self._address = address
        self._dialect = dialect
        backend = address.url.get_backend_name()
        if read_only and backend not in _MAKE_READ_ONLY:
            raise ConfigurationError([f"read_only: cannot be enforced with the driver {backend}."])
        self._read_only = _MAKE_READ_ONLY[backend] if read_only else None
        self._sessions = ThreadedSessions(backend, max_statements=max_statements)
        self._stopping = ThreadPoolExecutor(_STOP_THREADS, thread_name_prefix=f"{backend}-stop")
        self._capabilities = EngineCapabilities(
            wants_credentials=self._address.wants_credentials, places=self._address.places
        )

    @property
    def dialect(self) -> str:
        """See the Protocol."""
        return self._dialect

    @property
    def capabilities(self) -> EngineCapabilities:
        return self._capabilities

    @property
    def host(self) -> str | None:
        """What connections go to, where it is known and no port with it."""
        return None if self._address.places else self._address.host

    @property
    def busy(self) -> int:
        """How many statements are at work just now."""
        return self._sessions.threads.busy

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[EngineSession]:
        """See the Protocol. `options.database` takes the place of the one in the url; there are no settings."""
        self._address.login(options)
        for name in options.settings:
            raise StatementRejected(f"unknown setting {name}")
        async with self._sessions.session(
            partial(self._connect, options), user_id=user.id, within_s=self._open_s
        ) as session:
            yield session

    @property
    def lists_functions(self) -> bool:
        """See CatalogEngine."""
        return False

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        """See CatalogEngine."""
        self._address.login(options)
        threads = self._sessions.threads
        try:
            async with asyncio.timeout(self._open_s):
                connection = await threads.control(partial(self._connect, options), undo=SqlalchemyConnection.close)
        except TimeoutError:
            raise EngineUnavailable("No connection could be made in time.") from None
        try:
            yield SqlalchemyCatalog(connection, threads, user_id=user.id)
        finally:
            await asyncio.shield(threads.control(connection.close))

    async def ping(self) -> None:
        """See the Protocol."""
        options = SessionOptions()
        self._address.login(options)
        connect = partial(self._connect, options)
        async with self._sessions.session(connect, user_id=NO_USER, within_s=self._open_s):
            pass

    async def close(self) -> None:
        """See the Protocol. Statements that still run are stopped."""
        await self._sessions.close()
        await asyncio.to_thread(self._stopping.shutdown, cancel_futures=True)

    @property
    def _open_s(self) -> float:
        return self._address.connect_timeout_s + _OPEN_S

    def _connect(self, options: SessionOptions) -> SqlalchemyConnection:
        rules = self._address.rules
        with guarded(rules):  # dialects are code of others
            engine = self._address.engine(options)
        return SqlalchemyConnection.opened(engine, self._name, self._stopping, read_only=self._read_only, rules=rules)

    @property
    def _name(self) -> str:
        return self._address.url.get_backend_name()

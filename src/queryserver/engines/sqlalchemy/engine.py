"""The engine for any SQLAlchemy dialect."""

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from queryserver import errors
from queryserver.engines.blocking_drivers import NO_USER, ThreadedSessions
from queryserver.engines.protocol import Catalog, Credentials, EngineCapabilities, EngineSession, SessionOptions
from queryserver.engines.sqlalchemy.catalog import SqlalchemyCatalog
from queryserver.engines.sqlalchemy.connection import PARAMETERS, SqlalchemyConnection
from queryserver.identity.model import User
from queryserver.platform.addresses import AddressRules, HostRefused
from queryserver.platform.connection_guard import guarded, install_guard


def driver_of(url: sa.URL, rules: AddressRules) -> tuple[type[sa.Dialect], Any]:
    """Return a URL's dialect and its DBAPI module. Raises DriverNotInstalled.

    Both are third-party packages. A driver whose import fails for any reason is treated as not installed. A driver may
    open connections during its first import, so all imports go through this function and are subject to the rules.
    """
    install_guard()
    try:
        with guarded(rules):
            dialect = url.get_dialect()
            older = getattr(dialect, "dbapi", None)
            if "import_dbapi" not in vars(dialect) and inspect.ismethod(older):
                return dialect, older()
            return dialect, dialect.import_dbapi()
    except HostRefused as error:
        text = f"The driver {url.drivername} cannot be imported on this server: it connects to a forbidden address."
        raise errors.DriverNotInstalled(text) from error
    except Exception as error:  # a third-party package may raise anything on import
        raise errors.DriverNotInstalled(f"The driver {url.drivername} is not installed on this server.") from error


_BY_NAME = frozenset({"snowflake", "bigquery", "awsathena"})
"""Dialects whose URL names a cloud account, from which the driver derives host names."""

_CONNECT_LIMITS = ("connect_timeout", "connection_timeout", "login_timeout")
"""Names of the argument for the connect timeout in seconds, which differ between drivers."""

_PORTS_IN_C = {"psycopg2": 5432, "psycopg2cffi": 5432, "psycopg": 5432, "mysqldb": 3306, "mariadbconnector": 3306}
"""Default ports of drivers written in C. The port is always passed to these drivers.

Otherwise they would use this server's PGPORT or MYSQL_TCP_PORT. These drivers also bypass the guard
(platform/connection_guard.py).
"""

_USUAL_DRIVERS = {"cockroachdb": "psycopg2", "greenplum": "psycopg2", "mariadb": "mysqldb", "redshift": "psycopg2"}
"""Default drivers of the dialects for which the driver must be known before the dialect is imported."""

_PORTS = {
    "clickhouse": 8123, "clickhouse+http": 8123, "clickhouse+native": 9000, "druid": 8082, "elasticsearch+http": 9200,
    "hive": 10000, "impala": 21050, "mariadb+pymysql": 3306, "mysql+pymysql": 3306, "oracle": 1521,
    "oracle+cx_oracle": 1521, "oracle+oracledb": 1521, "presto": 8080, "redshift+redshift_connector": 5439,
}  # fmt: skip
"""The drivers' default ports, which SQLAlchemy does not provide."""
_NO_HOST = "localhost"
"""The default host. It is passed explicitly, because libpq drivers would otherwise read this server's environment."""

_HIDDEN_LIMIT_ARGUMENTS = {"psycopg2": "connect_timeout", "psycopg": "connect_timeout", "mysqldb": "connect_timeout"}


@dataclass(frozen=True, slots=True)
class SqlalchemyAddress:
    """One data source.

    `url` is a SQLAlchemy URL. If `wants_credentials` is set, the URL has no login, and each session has its own.
    """

    url: sa.URL
    wants_credentials: bool = False
    connect_timeout_s: int = 10
    rules: AddressRules = field(default_factory=AddressRules)

    def login(self, options: SessionOptions) -> Credentials | None:
        """Return the login to put into the URL, or None to keep the URL's login. Raises CredentialsRequired."""
        if options.credentials is None and self.wants_credentials:
            raise errors.CredentialsRequired("This data source requires a username and password.")
        return options.credentials

    def engine(self, options: SessionOptions) -> sa.Engine:
        """Create a SQLAlchemy engine for one session, without a pool and not connected yet.

        Raises EngineUnavailable if the driver is not installed or connections to the host are not allowed.
        """
        login = self.login(options)
        try:
            dialect, module = driver_of(self.url, self.rules)
        except errors.DriverNotInstalled as error:
            raise errors.EngineUnavailable(error.message) from error
        if dialect.is_async:
            name = self.url.drivername
            raise errors.EngineUnavailable(f"The driver {name} is asynchronous; name a blocking driver after the +.")
        url = self.checked_url(login, options.database, driver=dialect.driver)
        return sa.create_engine(
            url,
            module=module,
            poolclass=NullPool,
            connect_args=self._limits(dialect.driver, module),
            hide_parameters=True,
        )

    @property
    def endpoints(self) -> tuple[tuple[str, int], ...]:
        """The host and port, if the URL has a port or the driver's default port is known; otherwise empty."""
        host, port = self.host, self._port_of(self._named_driver)
        return () if host is None or port is None else ((host, port),)

    @property
    def host(self) -> str | None:
        """The host name or address; None if the driver derives it from an account name."""
        is_account = self.url.get_backend_name() in _BY_NAME and (not self.url.host or self.url.port is None)
        return None if is_account else self.url.host or _NO_HOST

    def require_driver(self) -> None:
        """Import the driver. Raises DriverNotInstalled."""
        driver_of(self.url, self.rules)

    def checked_url(self, login: Credentials | None, database: str | None, *, driver: str | None = None) -> sa.URL:
        """Return the URL to connect to, with an address that the rules allow. Raises UnknownHost, HostRefused.

        `driver` is the dialect's driver if the dialect has been imported.
        """
        driver = driver or self._named_driver
        url, port = self.url, self._port_of(driver)
        if driver in _PORTS_IN_C:
            url = url.set(port=port)
        if login is not None:
            url = url.set(username=login.username, password=login.password)
        if database is not None:
            url = url.set(database=database)
        if (host := self.host) is None:
            return url
        if url.drivername.endswith("https") or url.get_backend_name() in _BY_NAME:
            # Certificates are issued for names, so the driver must receive the name, which it resolves again.
            self.rules.require_all(host, port or 0)
            return url
        return url.set(host=self.rules.resolve_blocking(host, port or 0)[0])

    @property
    def _named_driver(self) -> str:
        backend, _, driver = self.url.drivername.partition("+")
        return driver or _USUAL_DRIVERS.get(backend, "")

    def _port_of(self, driver: str) -> int | None:
        if self.url.port is not None:
            return self.url.port
        return _PORTS_IN_C.get(driver) or _PORTS.get(self.url.drivername)

    def _limits(self, driver: str, module: Any) -> dict[str, int]:
        name = _HIDDEN_LIMIT_ARGUMENTS.get(driver)
        if name is None:
            try:
                known = inspect.signature(module.connect).parameters
            except (TypeError, ValueError):  # a function written in C has no signature
                return {}
            name = next((limit for limit in _CONNECT_LIMITS if limit in known), None)
        return {} if name is None or name in self.url.query else {name: self.connect_timeout_s}


_STOP_THREADS = 2
_OPEN_S = 5.0
"""Time added to the connect timeout for name resolution and the dialect's own queries."""

_MAKE_READ_ONLY = {
    "mysql": "SET SESSION TRANSACTION READ ONLY",
    "mariadb": "SET SESSION TRANSACTION READ ONLY",
    "postgresql": "SET default_transaction_read_only = on",
    "redshift": "SET default_transaction_read_only = on",
}


class SqlalchemyEngine:
    """Runs statements through one DBAPI driver. `dialect` is the name of its SQL dialect.

    The server starts even if the driver is not installed; each session then raises the error. Raises ConfigurationError
    if `read_only` is set but cannot be enforced in the data source.
    """

    lists_functions = False

    def __init__(self, address: SqlalchemyAddress, *, dialect: str, read_only: bool = False) -> None:
        install_guard()
        self.dialect = dialect
        self._address = address
        self._name = backend = address.url.get_backend_name()
        if read_only and backend not in _MAKE_READ_ONLY:
            raise errors.ConfigurationError([f"read_only: cannot be enforced with the driver {backend}."])
        self._read_only = _MAKE_READ_ONLY[backend] if read_only else None
        self._open_s = address.connect_timeout_s + _OPEN_S
        self._sessions = ThreadedSessions(backend)
        self._stopping = ThreadPoolExecutor(_STOP_THREADS, thread_name_prefix=f"{backend}-stop")
        self.capabilities = EngineCapabilities(
            wants_credentials=address.wants_credentials, endpoints=address.endpoints, parameters=PARAMETERS
        )

    @property
    def host(self) -> str | None:
        """The host to connect to if its port is not known. None if `endpoints` are known or there is no host name."""
        return None if self._address.endpoints else self._address.host

    def session(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[EngineSession]:
        """Open a session. `options.database` replaces the URL's database; settings are not supported."""
        self._address.login(options)
        for name in options.settings:
            raise errors.StatementRejected(f"unknown setting {name}")
        return self._sessions.session(partial(self._connect, options), user_id=user.id, within_s=self._open_s)

    def catalog(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[Catalog]:
        self._address.login(options)
        use = partial(SqlalchemyCatalog, threads=self._sessions.threads, user_id=user.id)
        return self._sessions.opened(partial(self._connect, options), use, within_s=self._open_s)

    async def ping(self) -> None:
        options = SessionOptions()
        self._address.login(options)
        connect = partial(self._connect, options)
        async with self._sessions.session(connect, user_id=NO_USER, within_s=self._open_s):
            pass

    async def close(self) -> None:
        """Cancel running statements and close all sessions."""
        await self._sessions.close()
        await asyncio.to_thread(self._stopping.shutdown, cancel_futures=True)

    def _connect(self, options: SessionOptions) -> SqlalchemyConnection:
        rules = self._address.rules
        with guarded(rules):  # dialects are third-party code
            engine = self._address.engine(options)
        return SqlalchemyConnection.opened(engine, self._name, self._stopping, read_only=self._read_only, rules=rules)

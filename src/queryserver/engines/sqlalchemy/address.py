"""Where a data source of any SQLAlchemy dialect is, and how to log in there. Everything here blocks."""

import inspect
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from queryserver.domain.errors import CredentialsRequired, DriverNotInstalled, EngineUnavailable
from queryserver.engines.sqlalchemy.drivers import driver_of
from queryserver.interfaces.engine import Credentials, SessionOptions
from queryserver.network.addresses import AddressRules

_BY_NAME = frozenset({"snowflake", "bigquery", "awsathena"})
"""Their urls name an account of a cloud, and the driver makes host names of it."""

_CONNECT_LIMITS = ("connect_timeout", "connection_timeout", "login_timeout")
"""Names of the argument that limits the making of a connection, in seconds."""

_LIBPQ = frozenset({"psycopg2", "psycopg2cffi", "psycopg"})
_LIBPQ_PORT = 5432

_PORTS = {
    "clickhouse": 8123,
    "clickhouse+http": 8123,
    "clickhouse+native": 9000,
    "druid": 8082,
    "elasticsearch+http": 9200,
    "hive": 10000,
    "impala": 21050,
    "mariadb": 3306,
    "mariadb+mariadbconnector": 3306,
    "mariadb+mysqldb": 3306,
    "mariadb+pymysql": 3306,
    "mysql+mysqldb": 3306,
    "mysql+pymysql": 3306,
    "oracle": 1521,
    "oracle+cx_oracle": 1521,
    "oracle+oracledb": 1521,
    "presto": 8080,
}
"""What a driver takes for a url without port. SQLAlchemy knows none of them."""
_NO_HOST = "localhost"
"""What drivers take for a url without host; those of libpq would look into the environment of this server."""

_LIMITS_BEHIND_KWARGS = {"psycopg2": "connect_timeout", "psycopg": "connect_timeout", "mysqldb": "connect_timeout"}


@dataclass(frozen=True, slots=True)
class SqlalchemyAddress:
    """One data source; `url` is SQLAlchemy's, without login when `wants_credentials`: then each session brings one."""

    url: sa.URL
    wants_credentials: bool = False
    connect_timeout_s: int = 10
    rules: AddressRules = field(default_factory=AddressRules)

    def login(self, options: SessionOptions) -> Credentials | None:
        """The login that goes into the url; None: what is there. Raises CredentialsRequired."""
        if options.credentials is None and self.wants_credentials:
            raise CredentialsRequired("This data source needs a user and a password.")
        return options.credentials

    def engine(self, options: SessionOptions) -> sa.Engine:
        """SQLAlchemy's engine for one session, without pool; nothing is connected to yet.

        Raises EngineUnavailable: the driver is not installed, or the host may not be connected to.
        """
        url = self.checked_url(self.login(options), options.database)
        try:
            dialect, module = driver_of(url)
        except DriverNotInstalled as error:
            raise EngineUnavailable(error.message) from error
        if dialect.is_async:
            raise EngineUnavailable(f"The driver {url.drivername} is not a blocking one; name another after the +.")
        return sa.create_engine(
            url,
            module=module,
            poolclass=NullPool,
            connect_args=self._limits(dialect.driver, module),
            hide_parameters=True,
        )

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Host and port, where the url names the port or its driver is known to take one."""
        host, port = self.host, self._port
        return () if host is None or port is None else ((host, port),)

    @property
    def host(self) -> str | None:
        """Name or address; None: the driver makes it of an account's name."""
        return None if self._names_account else self.url.host or _NO_HOST

    def require_driver(self) -> None:
        """Raises DriverNotInstalled."""
        driver_of(self.url)

    def checked_url(self, login: Credentials | None, database: str | None) -> sa.URL:
        """The url to connect to, with an address that may be connected to. Raises UnknownHost, HostRefused."""
        url = self.url
        if self._is_libpq:
            url = url.set(port=self._port)
        if login is not None:
            url = url.set(username=login.username, password=login.password)
        if database is not None:
            url = url.set(database=database)
        if (host := self.host) is None:
            return url
        if url.drivername.endswith("https") or url.get_backend_name() in _BY_NAME:
            # A certificate is made out to a name: then the driver must know it, and resolves it once more.
            self.rules.require_every(host, self._port or 0)
            return url
        return url.set(host=self.rules.resolve_blocking(host, self._port or 0)[0])

    @property
    def _names_account(self) -> bool:
        return self.url.get_backend_name() in _BY_NAME and (not self.url.host or self.url.port is None)

    @property
    def _is_libpq(self) -> bool:
        return self.url.drivername.partition("+")[2] in _LIBPQ

    @property
    def _port(self) -> int | None:
        usual = _LIBPQ_PORT if self._is_libpq else _PORTS.get(self.url.drivername)
        return usual if self.url.port is None else self.url.port

    def _limits(self, driver: str, module: Any) -> dict[str, int]:
        name = _LIMITS_BEHIND_KWARGS.get(driver)
        if name is None:
            try:
                known = inspect.signature(module.connect).parameters
            except (TypeError, ValueError):  # written in C, without a signature
                return {}
            name = next((limit for limit in _CONNECT_LIMITS if limit in known), None)
        return {} if name is None or name in self.url.query else {name: self.connect_timeout_s}

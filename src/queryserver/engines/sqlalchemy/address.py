"""Where a data source of any SQLAlchemy dialect is, and how to log in there. Everything here blocks."""

import inspect
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from queryserver.domain.errors.statements import CredentialsRequired, DriverNotInstalled, EngineUnavailable
from queryserver.engines.sqlalchemy.drivers import driver_of
from queryserver.interfaces.engine import Credentials, SessionOptions
from queryserver.network.addresses import AddressRules

_BY_NAME = frozenset({"snowflake", "bigquery", "awsathena"})
"""Their urls name an account of a cloud, and the driver makes host names of it."""

_CONNECT_LIMITS = ("connect_timeout", "connection_timeout", "login_timeout")
"""Names of the argument that limits the making of a connection, in seconds."""

_PORTS_IN_C = {"psycopg2": 5432, "psycopg2cffi": 5432, "psycopg": 5432, "mysqldb": 3306, "mariadbconnector": 3306}
"""By the driver: those of libraries in C, which are told the port. Of themselves they take PGPORT or MYSQL_TCP_PORT of
this server, and connect unheard (network/guarding.py)."""

_USUAL_DRIVERS = {
    "cockroachdb": "psycopg2",
    "greenplum": "psycopg2",
    "mariadb": "mysqldb",
    "redshift": "psycopg2",
}
"""What a url without driver means, as far as it matters here and is known without importing its dialect."""

_PORTS = {
    "clickhouse": 8123,
    "clickhouse+http": 8123,
    "clickhouse+native": 9000,
    "druid": 8082,
    "elasticsearch+http": 9200,
    "hive": 10000,
    "impala": 21050,
    "mariadb+pymysql": 3306,
    "mysql+pymysql": 3306,
    "oracle": 1521,
    "oracle+cx_oracle": 1521,
    "oracle+oracledb": 1521,
    "presto": 8080,
    "redshift+redshift_connector": 5439,
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
        login = self.login(options)
        try:
            dialect, module = driver_of(self.url, self.rules)
        except DriverNotInstalled as error:
            raise EngineUnavailable(error.message) from error
        if dialect.is_async:
            name = self.url.drivername
            raise EngineUnavailable(f"The driver {name} is not a blocking one; name another after the +.")
        url = self.checked_url(login, options.database, driver=dialect.driver)
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
        host, port = self.host, self._port_of(self._named_driver)
        return () if host is None or port is None else ((host, port),)

    @property
    def host(self) -> str | None:
        """Name or address; None: the driver makes it of an account's name."""
        return None if self._names_account else self.url.host or _NO_HOST

    def require_driver(self) -> None:
        """Raises DriverNotInstalled."""
        driver_of(self.url, self.rules)

    def checked_url(self, login: Credentials | None, database: str | None, *, driver: str | None = None) -> sa.URL:
        """The url to connect to, with an address that may be connected to. Raises UnknownHost, HostRefused.

        `driver`: that of the dialect, where it has been imported.
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
            # A certificate is made out to a name: then the driver must know it, and resolves it once more.
            self.rules.require_every(host, port or 0)
            return url
        return url.set(host=self.rules.resolve_blocking(host, port or 0)[0])

    @property
    def _names_account(self) -> bool:
        return self.url.get_backend_name() in _BY_NAME and (not self.url.host or self.url.port is None)

    @property
    def _named_driver(self) -> str:
        backend, _, driver = self.url.drivername.partition("+")
        return driver or _USUAL_DRIVERS.get(backend, "")

    def _port_of(self, driver: str) -> int | None:
        if self.url.port is not None:
            return self.url.port
        return _PORTS_IN_C.get(driver) or _PORTS.get(self.url.drivername)

    def _limits(self, driver: str, module: Any) -> dict[str, int]:
        name = _LIMITS_BEHIND_KWARGS.get(driver)
        if name is None:
            try:
                known = inspect.signature(module.connect).parameters
            except (TypeError, ValueError):  # written in C, without a signature
                return {}
            name = next((limit for limit in _CONNECT_LIMITS if limit in known), None)
        return {} if name is None or name in self.url.query else {name: self.connect_timeout_s}

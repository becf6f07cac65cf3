"""Where a MySQL server is, and how to log in there."""

import asyncio
import ssl as tls
from contextlib import suppress
from dataclasses import dataclass, field

from queryserver.domain.errors.statements import CredentialsRequired, EngineUnavailable
from queryserver.engines.mysql.errors import connect_errors
from queryserver.engines.mysql.wire import Connection
from queryserver.interfaces.engine import SessionOptions
from queryserver.network.addresses import AddressRules


@dataclass(frozen=True, slots=True)
class Login:
    """Who a connection is, and the database that it starts in."""

    user: str
    password: str = field(repr=False)
    database: str | None


@dataclass(frozen=True, slots=True)
class MysqlAddress:
    """One server, its default database, the login used when a session brings none, and the limits of the pool.

    Without `ssl` the connection is plain; servers then cannot ask for the password in clear text.
    """

    host: str
    port: int
    database: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ssl: tls.SSLContext | None = None
    unix_socket: str | None = None
    program_name: str = "queryserver"
    connect_timeout_s: int = 10
    max_idle: int = 8
    idle_s: float = 60.0
    read_timeout_s: int | None = None
    """How long the server may be silent; None: as long as a statement may take."""
    cell_max_bytes: int | None = None
    """Largest value of a result; a row with a larger one is refused before it is in memory."""
    rules: AddressRules = field(default_factory=AddressRules)

    def login(self, options: SessionOptions) -> Login:
        """The login of a session: its own credentials, else those of the address. Raises CredentialsRequired."""
        database = options.database if options.database is not None else self.database
        if options.credentials is not None:
            return Login(options.credentials.username, options.credentials.password, database)
        if self.user is None:
            raise CredentialsRequired("MySQL needs a user and a password.")
        return Login(self.user, self.password or "", database)

    async def connect(self, login: Login) -> Connection:
        """A new connection. Raises EngineUnavailable, CredentialsRequired, StatementRejected (unknown database)."""
        hosts = [self.host] if self.unix_socket else await self.rules.resolve(self.host, self.port)
        *others, last = hosts
        limit_s = self.connect_timeout_s / len(hosts)
        for host in others:
            with suppress(EngineUnavailable):
                return await self._connect_to(host, login, limit_s)
        return await self._connect_to(last, login, limit_s)

    async def _connect_to(self, host: str, login: Login, limit_s: float) -> Connection:
        with connect_errors():
            connection = Connection(
                is_private=self.ssl is not None or self.unix_socket is not None,
                host=host,
                port=self.port,
                unix_socket=self.unix_socket,
                user=login.user,
                password=login.password.encode(),
                database=login.database,
                ssl=self.ssl,
                program_name=self.program_name,
                connect_timeout=limit_s,
                read_timeout=self.read_timeout_s,
            )
            try:
                async with asyncio.timeout(limit_s):
                    await connection.connect()
                    await connection.set_up()
                connection.cell_max_bytes = self.cell_max_bytes
            except BaseException:  # the connection must not stay open, whatever failed
                connection.close()
                raise
        return connection

"""A login role for each user of a server that is our own: what a role can store or see is one user's (ADR 43).

PostgreSQL lets a role change its own password and settings, read the statements of its other sessions and cancel them.
So no two users log in as one role. All sessions act as a group role, which owns the objects and cannot log in.
"""

import asyncio
import hmac
import secrets
from collections.abc import Callable
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import asyncpg

from queryserver.engines.postgresql.address import Login
from queryserver.engines.postgresql.errors import connect_errors

_CALL_S = 10
_MOST_CONNECTIONS = 20
"""Of one user."""

_RULES = f"LOGIN INHERIT CONNECTION LIMIT {_MOST_CONNECTIONS} VALID UNTIL 'infinity'"


class UserLogins:
    """Makes the roles with `admin_dsn`, whose role may create roles and grant `group`.

    `role_of` names the role of a user; a name is a plain identifier. Passwords derive from the one in `admin_dsn`: all
    processes that know it give a role the same password, so that none makes another's invalid.
    """

    def __init__(self, admin_dsn: str, *, group: str, database: str, role_of: Callable[[int], str]) -> None:
        self.group = group
        self._admin_dsn = admin_dsn
        self._database = database
        self._role_of = role_of
        self._key = (urlsplit(admin_dsn).password or secrets.token_urlsafe(32)).encode()
        self._roles = set[str]()
        self._making = WeakValueDictionary[str, asyncio.Lock]()

    def login(self, user_id: int) -> Login:
        """The login of a user; `repair` before it is used."""
        role = self._role_of(user_id)
        self._roles.add(role)
        return Login(role, hmac.digest(self._key, role.encode(), "sha256").hex())

    def is_own(self, login: Login) -> bool:
        """Whether it is the login of a user, and not that of the connector."""
        return login.user in self._roles

    async def repair(self, login: Login) -> None:
        """Make the role, or make it as it was: its password, its rules, its group, and no settings.

        A transaction of the user that changes the role makes it wait: the user's other connections, nobody else's.
        Raises EngineUnavailable, StatementRejected.
        """
        role = login.user
        async with self._making.setdefault(role, asyncio.Lock()):
            with connect_errors():
                connection = await asyncpg.connect(self._admin_dsn, timeout=_CALL_S, command_timeout=_CALL_S)
                try:
                    async with connection.transaction():
                        await self._make(connection, role, login.password)
                finally:
                    await connection.close(timeout=_CALL_S)

    async def _make(self, connection: asyncpg.Connection, role: str, password: str) -> None:
        # Two changes of one role at once would collide, also those of two processes.
        await connection.execute("SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext($1))", role)
        if not await connection.fetchval("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = $1", role):
            await connection.execute(f"CREATE ROLE {role}")
        # The password is hexadecimal: no quoting is needed.
        await connection.execute(f"ALTER ROLE {role} {_RULES} PASSWORD '{password}'")
        await connection.execute(f"GRANT {self.group} TO {role}")
        await connection.execute(f"ALTER ROLE {role} RESET ALL")
        await connection.execute(f"ALTER ROLE {role} IN DATABASE {self._database} RESET ALL")

"""Networks that users have logged in from lately, the same for all servers."""

from queryserver.db.database import Database

_MOST_NETWORKS = 20
"""Of one name. Whoever knows a password cannot make more room for guesses with it than this."""

_IS_KNOWN = """
    select exists (
        select from login_networks
        where name = $1 and network = $2 and last_login_at > now() - interval '30 days')
"""

_NOTE = """
    insert into login_networks (name, network) values ($1, $2)
    on conflict (name, network) do update set last_login_at = now()
"""

_FORGET = """
    delete from login_networks where name = $1 and network not in (
        select network from login_networks where name = $1 order by last_login_at desc, network limit $2)
"""


class LoginNetworkRepository:
    """Networks that users have logged in from within 30 days. Both parts are digests. Raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def is_known(self, name: str, network: str) -> bool:
        """Whether a user of that name has logged in from there."""
        return await self._database.value(_IS_KNOWN, name, network)

    async def note(self, name: str, network: str) -> None:
        """A login has succeeded. The newest networks of a name are kept, a bounded number."""
        async with self._database.transaction() as connection:
            await connection.execute(_NOTE, name, network)
            await connection.execute(_FORGET, name, _MOST_NETWORKS)

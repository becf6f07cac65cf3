"""Which identities of other issuers are which users."""

from collections.abc import Sequence

from queryserver.db.administrators import IS_ADMINISTRATOR
from queryserver.db.database import Database
from queryserver.domain.errors import unknown_user
from queryserver.domain.identities import ExternalIdentity
from queryserver.interfaces.identities import LinkedIdentity

# Locked, so that of two first calls at once, each of another issuer, one is linked.
_FREE_USER = f"""
    select u.id from users u
    where u.id = $1 and u.password_hash is null and not {IS_ADMINISTRATOR}
        and not exists (select from external_identities i where i.user_id = u.id)
    for no key update of u
"""

_LINK_FIRST = """
    insert into external_identities (issuer, subject, user_id)
    select $2, $3, u.id from users u
    where u.id = $1 and not exists (select from external_identities i where i.user_id = u.id)
    on conflict do nothing
"""

_LINK = """
    insert into external_identities as known (issuer, subject, user_id, by_administrator) values ($1, $2, $3, true)
    on conflict (issuer, subject) do update set by_administrator = true where known.user_id = excluded.user_id
    returning true
"""

_UNLINK = """
    delete from external_identities i using users u
    where u.id = i.user_id and ($1::text is null or u.username_key = $1)
        and ($2::text is null or i.issuer = $2) and ($3::text is null or i.subject = $3)
"""

_ALL = """
    select u.username, i.issuer, i.subject, i.by_administrator, i.linked_at
    from external_identities i join users u on u.id = i.user_id
    where $1::text is null or u.username_key = $1
    order by u.username_key collate "C", i.issuer collate "C", i.subject collate "C"
"""


class IdentityRepository:
    """See `interfaces.identities.IdentityRecords`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def link_first(self, user_id: int, identity: ExternalIdentity) -> bool:
        """Link a user who has no password and no identity, and is no administrator."""
        async with self._database.transaction() as connection:
            if await connection.fetchval(_FREE_USER, user_id) is None:
                return False
            # A snapshot of its own: what was linked while this transaction waited for the lock is seen.
            return await connection.execute(_LINK_FIRST, user_id, identity.issuer, identity.subject) == "INSERT 0 1"

    async def link(self, username_key: str, identity: ExternalIdentity) -> bool:
        """Link any user, in the name of an administrator."""
        async with self._database.transaction() as connection:
            user_id = await connection.fetchval(
                "select id from users where username_key = $1 for key share", username_key
            )
            if user_id is None:
                raise unknown_user(username_key)
            return await connection.fetchval(_LINK, identity.issuer, identity.subject, user_id) is True

    async def unlink(self, username_key: str | None, *, issuer: str | None = None, subject: str | None = None) -> int:
        """End links; each part that is given narrows which."""
        return await self._database.execute(_UNLINK, username_key, issuer, subject)

    async def identities(self, username_key: str | None = None) -> Sequence[LinkedIdentity]:
        """Those of one user, or all."""
        return [LinkedIdentity(*row) for row in await self._database.fetch(_ALL, username_key)]

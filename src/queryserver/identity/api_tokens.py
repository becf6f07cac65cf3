"""Creates, lists and revokes API tokens, the only credentials of service accounts (ADR 62)."""

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeAlias
from uuid import UUID, uuid4

from queryserver import errors
from queryserver.identity import model
from queryserver.identity.repository import IS_ADMINISTRATOR
from queryserver.platform.database import Connection, Database, Row
from queryserver.platform.logs import AUDIT
from queryserver.platform.settings.desktop import AuthSettings

PREFIX = "qst_"
"""The prefix of every API token. Secret scanners and log filters recognize tokens by it."""
MAX_NAME_LENGTH = 100
MAX_PAGE = 1000
_RANDOM_BYTES = 32
_FORM = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}", re.ASCII)

TokenState: TypeAlias = Literal["active", "expired", "revoked"]


def is_api_token(text: str) -> bool:
    """Return whether to treat a bearer token as an API token, valid or not."""
    return text.startswith(PREFIX)


def digest_of(token: str) -> bytes | None:
    """Return the digest under which the database stores the token; None if the string does not look like an API token.

    A token has 256 random bits, so it cannot be guessed and a fast, unsalted hash suffices.
    """
    return hashlib.sha256(token.encode("ascii")).digest() if _FORM.fullmatch(token) else None


@dataclass(frozen=True, slots=True)
class NewApiToken:
    name: str
    scopes: frozenset[model.Scope]
    connectors: frozenset[str] | None = None
    """Connector keys; None for all connectors that the user may use."""
    days: int | None = None
    """Lifetime in days; None for `api_tokens_default_days`."""


@dataclass(frozen=True, slots=True)
class ApiToken:
    """An API token as listed. The secret itself is not stored."""

    id: UUID
    name: str
    username: str
    scopes: tuple[model.Scope, ...]
    connectors: tuple[str, ...] | None
    created_at: datetime
    created_by: str
    expires_at: datetime
    last_used_at: datetime | None
    """Recorded at most once per minute."""
    state: TokenState


# A new password, `revoke-tokens` and disabling the user increment the epoch, which invalidates older tokens.
_IS_LIVE = "t.revoked_at is null and t.expires_at > now() and t.token_epoch = u.token_epoch"

_SELECT = f"""
    select t.id, t.name, u.username, t.scopes, t.connectors, t.created_at, t.created_by, t.expires_at, t.last_used_at,
        case when {_IS_LIVE} then 'active'
            when t.revoked_at is null and t.token_epoch = u.token_epoch then 'expired' else 'revoked' end as state
    from api_tokens t join users u on u.id = t.user_id
"""

_PAGE = f"""
    {_SELECT} where $1::text is null or u.username_key = $1
    order by u.username_key collate "C", t.created_at, t.id limit $3 offset $2
"""

_COUNT = """
    select count(*) from api_tokens t join users u on u.id = t.user_id where $1::text is null or u.username_key = $1
"""

# The row lock serializes concurrent calls, so the second call sees the token created by the first.
_OWNER = f"""
    select u.id, u.is_active, u.token_epoch, {IS_ADMINISTRATOR} as is_admin
    from users u where u.username_key = $1 for no key update of u
"""

_LIVE = f"""
    select count(*) as live, coalesce(bool_or(t.name = $2), false) as is_taken
    from api_tokens t join users u on u.id = t.user_id where u.id = $1 and {_IS_LIVE}
"""

_INSERT = """
    insert into api_tokens (id, user_id, name, digest, scopes, connectors, token_epoch, created_by, expires_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, now() + $9::interval)
"""

_REVOKE = """
    update api_tokens t set revoked_at = coalesce(t.revoked_at, now()) from users u
    where t.id = $1 and u.id = t.user_id and ($2::text is null or u.username_key = $2)
    returning t.id
"""


class ApiTokens:
    """Creates, lists and revokes API tokens. Each change is audited with the token's id and name.

    User names are normalized by UsernameRule. All calls raise DatabaseUnavailable.
    """

    def __init__(self, database: Database, auth: AuthSettings) -> None:
        self._database = database
        self._auth = auth
        self._usernames = model.UsernameRule.of(auth)

    async def create(
        self, username: str, new: NewApiToken, *, by: str, facts: Mapping[str, str] | None = None
    ) -> tuple[ApiToken, str]:
        """Create a token for a user. Returns it with its secret, which cannot be retrieved later.

        Raises InvalidUsername, unknown_user, InvalidParameter, NameTaken, too_many_api_tokens.
        """
        facts = {**(facts or {}), "subject_name": new.name, "scopes": ",".join(sorted(new.scopes))}
        with AUDIT.failures(by, "api_token.new", username, facts=facts):
            life = self._checked_life(new)
            text, token_id = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES), uuid4()
            async with self._database.transaction() as connection:
                owner = await self._owner_of_new(connection, username, new)
                await connection.execute(
                    _INSERT,
                    token_id,
                    owner["id"],
                    new.name,
                    digest_of(text),
                    sorted(new.scopes),
                    None if new.connectors is None else sorted(new.connectors),
                    owner["token_epoch"],
                    by,
                    life,
                )
                token = _shown(await connection.fetchrow(f"{_SELECT} where t.id = $1", token_id))
        AUDIT.record(by, "api_token.new", token.username, facts={**facts, "subject_id": str(token_id)})
        return token, text

    async def page(
        self, username: str | None, *, page: int = 1, limit: int = MAX_PAGE
    ) -> tuple[int, Sequence[ApiToken]]:
        """Return the number of the user's tokens (None for all users) and one page, ordered by user, then age.

        Oldest tokens come first. Expired and revoked tokens remain listed for 30 days. Raises InvalidUsername.
        """
        key = None if username is None else self._usernames.read(username).key
        rows = await self._database.fetch(_PAGE, key, min((page - 1) * limit, 2**62), limit)
        return await self._database.value(_COUNT, key), [_shown(row) for row in rows]

    async def revoke(
        self, token_id: UUID, *, of: str | None, by: str, facts: Mapping[str, str] | None = None
    ) -> ApiToken:
        """Revoke a token; if `of` is given, only if that user owns it. Idempotent.

        Raises api_token_not_found, InvalidUsername.
        """
        key = None if of is None else self._usernames.read(of).key
        facts = {**(facts or {}), "subject_id": str(token_id)}
        with AUDIT.failures(by, "api_token.revoke", of or "", facts=facts):
            if await self._database.value(_REVOKE, token_id, key) is None:
                raise errors.api_token_not_found(token_id)
        ended = _shown(await self._database.row(f"{_SELECT} where t.id = $1", token_id))
        AUDIT.record(by, "api_token.revoke", ended.username, facts={**facts, "subject_name": ended.name})
        return ended

    def _checked_life(self, new: NewApiToken) -> timedelta:
        """Validate the request and return the token's lifetime. Raises InvalidParameter."""
        name, most = new.name, self._auth.api_tokens_max_days
        if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable() or name != name.strip():
            raise errors.InvalidParameter(
                f"name: it must have 1 to {MAX_NAME_LENGTH} printable characters, and no blank at its ends."
            )
        if not new.scopes:
            raise errors.InvalidParameter(f"scopes: name at least one of {', '.join(model.Scope)}.")
        if new.connectors is not None and model.Scope.ADMIN in new.scopes:
            # An admin token could manage any connector, so a connector limit would have no effect.
            raise errors.InvalidParameter("connectors: a token with the scope admin cannot be limited to connectors.")
        days = min(self._auth.api_tokens_default_days, most) if new.days is None else new.days
        if not 1 <= days <= most:
            raise errors.InvalidParameter(f"expires_in_days: it must be from 1 to {most}.")
        return timedelta(days=days)

    async def _owner_of_new(self, connection: Connection, username: str, new: NewApiToken) -> Row:
        owner = await connection.fetchrow(_OWNER, self._usernames.read(username).key)
        if owner is None:
            raise errors.unknown_user(username)
        if not owner["is_active"]:
            raise errors.InvalidParameter(f"username: the user {username} is disabled.")
        if model.Scope.ADMIN in new.scopes and not owner["is_admin"]:
            raise errors.InvalidParameter("scopes: admin is for tokens of administrators.")
        live = await connection.fetchrow(_LIVE, owner["id"], new.name)
        if live is not None and live["is_taken"]:
            raise errors.NameTaken(f"An API token with the name {new.name} exists already.")
        if live is not None and live["live"] >= self._auth.api_tokens_per_user:
            raise errors.too_many_api_tokens(
                f"The user has {live['live']} API tokens; revoke one that is not used any more."
            )
        return owner


def _shown(row: Row | None) -> ApiToken:
    assert row is not None  # noqa: S101 rows of tokens are deleted long after the tokens end
    return ApiToken(
        id=row["id"],
        name=row["name"],
        username=row["username"],
        scopes=tuple(sorted(scope for scope in model.Scope if scope in row["scopes"])),
        connectors=None if row["connectors"] is None else tuple(row["connectors"]),
        created_at=row["created_at"],
        created_by=row["created_by"],
        expires_at=row["expires_at"],
        last_used_at=row["last_used_at"],
        state=row["state"],
    )

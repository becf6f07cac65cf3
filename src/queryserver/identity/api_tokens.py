"""API tokens: creates, lists and revokes them, and identifies the callers that send them (ADR 62)."""

import hashlib
import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeAlias
from uuid import UUID, uuid4

import structlog

from queryserver import errors
from queryserver.identity import model
from queryserver.identity.callers import CallerRepository, api_token_user, bearer_of
from queryserver.identity.model import AuthRequest, User
from queryserver.identity.repository import IS_ADMINISTRATOR
from queryserver.platform.caches import LruCache
from queryserver.platform.database import Connection, Database, Row
from queryserver.platform.logs import AUDIT
from queryserver.platform.networks import network_of
from queryserver.platform.settings.desktop import AuthSettings
from queryserver.platform.threads import background, every

PREFIX = "qst_"
"""The prefix of every API token. Secret scanners and log filters recognize tokens by it."""
MAX_NAME_LENGTH = 100
MAX_PAGE = 1000
_RANDOM_BYTES = 32
_FORM = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}", re.ASCII)

TokenState: TypeAlias = Literal["active", "expired", "revoked"]

log = structlog.get_logger(__name__)

_MAX_CACHED_TOKENS = 4096
_MAX_ADDRESSES = 50_000
_RECORD_USES_EVERY_S = 5.0
_REFUSAL_CACHED_S = 10.0
"""How long the rejection of an invalid token is cached."""


def is_api_token(text: str) -> bool:
    """Return whether a bearer token has the prefix of API tokens. The token may still be invalid."""
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
    max_estimated_bytes: int | None = None
    """The most bytes that a data source may expect a statement of the token to read; None for no limit of its own."""


@dataclass(frozen=True, slots=True)
class ApiToken:
    """An API token in a list. The secret itself is not stored."""

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
    max_estimated_bytes: int | None


# A new password, `revoke-tokens` and disabling the user increment the epoch, which invalidates older tokens.
_IS_LIVE = "t.revoked_at is null and t.expires_at > now() and t.token_epoch = u.token_epoch"

_SELECT = f"""
    select t.id, t.name, u.username, t.scopes, t.connectors, t.created_at, t.created_by, t.expires_at, t.last_used_at,
        t.max_estimated_bytes,
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
    insert into api_tokens (id, user_id, name, digest, scopes, connectors, token_epoch, created_by, expires_at,
        max_estimated_bytes)
    values ($1, $2, $3, $4, $5, $6, $7, $8, now() + $9::interval, $10)
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
                    new.max_estimated_bytes,
                )
                token = _shown(await connection.fetchrow(f"{_SELECT} where t.id = $1", token_id))
        AUDIT.record(by, "api_token.new", token.username, facts={**facts, "subject_id": str(token_id)})
        return token, text

    async def page(
        self, username: str | None, *, page: int = 1, limit: int = MAX_PAGE
    ) -> tuple[int, Sequence[ApiToken]]:
        """Return the total number of the user's tokens and one page of them; `username=None` covers all users.

        Tokens are sorted by user, then oldest first. Expired and revoked tokens remain listed for 30 days. Raises
        InvalidUsername.
        """
        key = None if username is None else self._usernames.read(username).key
        rows = await self._database.fetch(_PAGE, key, min((page - 1) * limit, 2**62), limit)
        return await self._database.value(_COUNT, key), [_shown(row) for row in rows]

    async def revoke(
        self, token_id: UUID, *, of: str | None, by: str, facts: Mapping[str, str] | None = None
    ) -> ApiToken:
        """Revoke a token. If `of` is given, the token must belong to that user. Idempotent.

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
                f"name must have 1 to {MAX_NAME_LENGTH} printable characters, without leading or trailing blanks."
            )
        if not new.scopes:
            raise errors.InvalidParameter(f"scopes: at least one of {', '.join(model.Scope)} is required.")
        if new.connectors is not None and model.Scope.ADMIN in new.scopes:
            # An admin token could manage any connector, so a connector limit would have no effect.
            raise errors.InvalidParameter("connectors: a token with the scope admin cannot be limited to connectors.")
        if new.max_estimated_bytes is not None and model.Scope.ADMIN in new.scopes:
            raise errors.InvalidParameter(
                "max_estimated_bytes: a token with the scope admin cannot have this limit, because it can create tokens"
                " without it."
            )
        days = min(self._auth.api_tokens_default_days, most) if new.days is None else new.days
        if not 1 <= days <= most:
            raise errors.InvalidParameter(f"expires_in_days must be from 1 to {most}.")
        return timedelta(days=days)

    async def _owner_of_new(self, connection: Connection, username: str, new: NewApiToken) -> Row:
        owner = await connection.fetchrow(_OWNER, self._usernames.read(username).key)
        if owner is None:
            raise errors.unknown_user(username)
        if not owner["is_active"]:
            raise errors.InvalidParameter(f"username: the user {username} is disabled.")
        if model.Scope.ADMIN in new.scopes and not owner["is_admin"]:
            raise errors.InvalidParameter("scopes: admin is only allowed for tokens of administrators.")
        live = await connection.fetchrow(_LIVE, owner["id"], new.name)
        if live is not None and live["is_taken"]:
            raise errors.NameTaken(f"An API token with the name {new.name} already exists.")
        if live is not None and live["live"] >= self._auth.api_tokens_per_user:
            raise errors.too_many_api_tokens(
                f"The user has the maximum of {live['live']} API tokens (`desktop.auth.api_tokens_per_user`). Revoke"
                " one that is no longer used."
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
        max_estimated_bytes=row["max_estimated_bytes"],
    )


class ApiTokenBearers:
    """Maps API tokens to users with one indexed query per call. Enter `running()` to record token uses."""

    def __init__(
        self, records: CallerRepository, auth: AuthSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._records = records
        self._failures = FailedTokens(auth.login_failures_per_address, auth.login_window_s, clock=clock)
        self._good = LruCache[bytes, bool](_MAX_CACHED_TOKENS)
        """Digests of recently accepted tokens, which are exempt from the throttle of the client's network."""
        self._refused = LruCache[bytes, bool](_MAX_CACHED_TOKENS, life_s=_REFUSAL_CACHED_S, clock=clock)
        """Digests of invalid tokens. Tokens of disabled users are not included, as the users may be enabled again."""
        self._used = set[UUID]()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Record token uses periodically while the context is open, and the remaining uses on exit."""
        async with background(every(_RECORD_USES_EVERY_S, self.note_uses), "api-token-uses"):
            yield
        try:
            await self.note_uses()
        except errors.DatabaseUnavailable:
            log.warning("last uses of API tokens not recorded: database unreachable")

    async def caller(self, request: AuthRequest) -> User | None:
        """Implement the authenticator `api_token`. Returns None if there is no bearer token or it is not an API token.

        Raises InvalidToken, UserInactive, LoginThrottled, bad_authorization_header, DatabaseUnavailable.
        """
        token = bearer_of(request.raw_headers)
        return await self.user(token, request.client) if token is not None and is_api_token(token) else None

    async def user(self, token: str, client: str) -> User:
        """Return the token's user with the rights that the token grants. Raises the same errors as `caller`."""
        digest = digest_of(token)
        if digest is None or self._refused.get(digest):
            raise errors.InvalidToken  # needs no query, so it is not counted as a failure
        if self._good.get(digest) is None:
            self._failures.require_free(client)
        owner = await self._records.api_token(digest)
        try:
            user = api_token_user(owner)
        except errors.NotAuthenticated as error:
            self._good.pop(digest)
            if isinstance(error, errors.InvalidToken):
                self._refused.put(digest, True)
            self._failures.count(client, digest)
            log.info("API token rejected", client=client, code=error.code, user_id=owner.user.id if owner else None)
            raise
        self._good.put(digest, True)
        if owner is not None and user.api_token is not None and owner.is_use_unknown:
            self._used.add(user.api_token.id)
        return user

    async def note_uses(self) -> None:
        """Set the time of last use to now for the tokens used since the previous run. Raises DatabaseUnavailable."""
        used, self._used = self._used, set[UUID]()
        if used:
            try:
                await self._records.note_api_tokens(used)
            except BaseException:
                self._used |= used
                raise


class FailedTokens:
    """Counts rejected API tokens by client network, in the memory of this process.

    Each token counts once per window, so one program that keeps retrying a bad token does not lock out its network.
    Tokens are too long to be guessed; the limit only stops clients with many expired or invented tokens from causing a
    query per call. `limit=0` disables the limit. A window begins with its first failure and is never extended.
    """

    def __init__(self, limit: int, window_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._window_s = window_s
        self._clock = clock
        self._windows = LruCache[str, tuple[float, int]](_MAX_ADDRESSES)
        """End of the window and number of failures in it, by network."""
        self._counted = LruCache[tuple[str, bytes], float](_MAX_ADDRESSES)
        """End of the window in which a token was counted, by network and digest."""

    def require_free(self, client: str) -> None:
        """Raise LoginThrottled if the client's network has reached the limit."""
        until, failures = self._windows.get(network_of(client)) or (0.0, 0)
        left_s = until - self._clock()
        if self._limit and failures >= self._limit and left_s > 0:
            raise errors.LoginThrottled(
                "Too many rejected API tokens. Try again later.", retry_after=timedelta(seconds=left_s)
            )

    def count(self, client: str, digest: bytes) -> None:
        now, network = self._clock(), network_of(client)
        until, failures = self._windows.get(network) or (0.0, 0)
        if until <= now:
            until, failures = now + self._window_s, 0
        if self._counted.get((network, digest)) != until:
            failures += 1
            self._counted.put((network, digest), until)
        self._windows.put(network, (until, failures))

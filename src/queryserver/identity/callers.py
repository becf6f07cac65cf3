"""Identifies callers by own tokens (JWTs issued by this service), API tokens and the other entries of
`desktop.auth.api_auth`.

Contract platform 3.3, 4.2.
"""

import asyncio
import re
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from jose import jwt
from jose.exceptions import JOSEError

from queryserver import errors
from queryserver.identity.external_keys import algorithm_of
from queryserver.identity.keys import Keyring
from queryserver.identity.model import (
    ApiTokenLimits,
    AuthRequest,
    ExternalIdentity,
    Preferences,
    Scope,
    User,
    preferences_of,
)
from queryserver.platform.database import CoalescingReader, Database, Row

ALGORITHM = "HS256"

_MAX_CHARACTERS = 4096
# An own token has 400 characters, so the tokens of 4,000 active users take 4 MB.
_MAX_CACHED_TOKENS = 4096

_HEX32 = re.compile(r"[0-9a-f]{32}")

# The library checks only the signature and the format. Required claims and expiry are checked here: `require_exp` would
# make the library check the expiry by its own clock, and expired tokens could not be read in order to revoke them.
_OPTIONS = {"verify_exp": False, "verify_iat": False, "verify_nbf": False, "verify_aud": False}


class TokenKey(NamedTuple):
    """The claims of an own token that determine whether it is still valid."""

    user_id: int
    family: str
    jti: str


@dataclass(frozen=True, slots=True)
class TokenOwner:
    """The current state of a token's user."""

    user: User
    is_active: bool
    token_epoch: int
    is_revoked: bool
    """Whether the token itself or its family was revoked."""


@dataclass(frozen=True, slots=True)
class CallerKey:
    """A caller without an own token: an identity from another issuer, and the id by which its token can be revoked.

    `username_key` is used to find the user by name if the identity is not linked; None if the name is not a valid user
    name.
    """

    identity: ExternalIdentity
    username_key: str | None
    token_id: str = ""


@dataclass(frozen=True, slots=True)
class KnownCaller(TokenOwner):
    """The current state of a user who was found by linked identity or, failing that, by name."""

    logged_in_recently: bool
    """Whether the last login was less than an hour ago."""
    is_linked: bool
    """Whether the identity is linked to this user; if not, the user was found by name."""
    has_password: bool
    has_identities: bool
    """Whether any identity is linked to the user."""
    is_service_account: bool


@dataclass(frozen=True, slots=True)
class ApiTokenOwner(TokenOwner):
    """The current state of an API token and its user. The user's rights are already narrowed to those of the token."""

    expires_at: datetime
    """UTC."""
    is_expired: bool
    made_in_epoch: int
    is_use_unknown: bool
    """Whether no use was recorded within the last minute, so the current use must be recorded."""


_USER_NOW = """
    u.id, u.username, u.is_admin, u.is_active, u.token_epoch, u.preferences,
        array(
            select g.name from group_members m join groups g on g.id = m.group_id where m.user_id = u.id
        ) as groups,
        array(
            select distinct r."right" from group_members m join group_rights r using (group_id)
            where m.user_id = u.id
        ) as rights,
        (select s.version from connector_state s) as connectors_version
"""
"""The columns that `_state` reads: the fields of `users u`, and the user's groups and rights."""

_OWNERS = f"""
    select k.n, {_USER_NOW},
        exists (select from revoked_tokens t where t.token_id in (k.family, k.jti)) as is_revoked
    from unnest((select $1::bigint[]), (select $2::text[]), (select $3::text[]))
        with ordinality as k (user_id, family, jti, n)
    join users u on u.id = k.user_id
"""

_OWNER = f"""
    select {_USER_NOW},
        exists (select from revoked_tokens t where t.token_id in ($2, $3)) as is_revoked
    from users u where u.id = $1
"""

_EXCHANGE = """
    with first as (
        insert into rotated_tokens (jti, expires_at) values ($1, $2) on conflict do nothing returning jti
    )
    select exists (select from first) as is_first,
        (select now() - rotated_at from rotated_tokens where jti = $1) as since
"""

_REVOKE = """
    insert into revoked_tokens (token_id, expires_at) values ($1, $2)
    on conflict (token_id) do update set expires_at = greatest(revoked_tokens.expires_at, excluded.expires_at)
"""

_LOGIN_COLUMNS = """
        coalesce(u.last_login > now() - interval '1 hour', false) as logged_in_recently,
        l.user_id is not null as is_linked,
        u.password_hash is not null as has_password,
        exists (select from external_identities i where i.user_id = u.id) as has_identities, u.is_service_account
"""

_FACTS = ("logged_in_recently", "is_linked", "has_password", "has_identities", "is_service_account")

# A link takes precedence over a name, because the two may point to different users.
_CALLERS = f"""
    select k.n, {_USER_NOW},
        exists (select from revoked_tokens t where t.token_id = k.token_id) as is_revoked, {_LOGIN_COLUMNS}
    from unnest((select $1::text[]), (select $2::text[]), (select $3::text[]), (select $4::text[]))
        with ordinality as k (username_key, token_id, issuer, subject, n)
    left join external_identities l on l.issuer = k.issuer and l.subject = k.subject
    join users u on u.id = coalesce(
        l.user_id, (select named.id from users named where named.username_key = k.username_key))
"""

_CALLER = f"""
    select {_USER_NOW},
        exists (select from revoked_tokens t where t.token_id = $2) as is_revoked, {_LOGIN_COLUMNS}
    from (select 1) as one
    left join external_identities l on l.issuer = $3 and l.subject = $4
    join users u on u.id = coalesce(
        l.user_id, (select named.id from users named where named.username_key = $1::text))
"""

_API_TOKEN = f"""
        {_USER_NOW}, t.id as api_token_id, t.name, t.scopes, t.connectors, t.max_estimated_bytes,
        t.token_epoch as made_in_epoch,
        t.revoked_at is not null as is_revoked, t.expires_at, t.expires_at <= now() as is_expired,
        coalesce(t.last_used_at <= now() - interval '1 minute', true) as is_use_unknown
"""

_API_TOKEN_FACTS = ("expires_at", "is_expired", "made_in_epoch", "is_use_unknown")

_API_TOKENS = f"""
    select k.n, {_API_TOKEN}
    from unnest((select $1::bytea[])) with ordinality as k (digest, n)
    join api_tokens t on t.digest = k.digest join users u on u.id = t.user_id
"""

_ONE_API_TOKEN = f"select {_API_TOKEN} from api_tokens t join users u on u.id = t.user_id where t.digest = $1"

_NOTE_CALL = """
    update users set last_login = now()
    where id = $1 and (last_login is null or last_login <= now() - interval '1 hour')
"""

_ORDINARY = "not exists (select from group_rights r where r.group_id = g.id and r.\"right\" = 'admin')"

_LEAVE = f"""
    delete from group_members m using groups g
    where m.user_id = $1 and g.id = m.group_id and g.name <> all($2::text[]) and {_ORDINARY}
"""

# Locks the groups against deletion until the memberships are written. Groups deleted before that are skipped.
_JOIN = f"""
    insert into group_members (user_id, group_id)
    select $1, g.id from groups g where g.name = any($2::text[]) and {_ORDINARY}
    for key share of g
    on conflict do nothing
"""

_GROUPS = """
    select array(select g.name from group_members m join groups g on g.id = m.group_id where m.user_id = $1)
"""


class CallerRepository:
    """Finds callers by own token, API token or external identity, and revokes tokens.

    Concurrent lookups are combined into one query. All methods raise DatabaseUnavailable.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._owners = CoalescingReader(database, many=_OWNERS, one=_OWNER)
        self._callers = CoalescingReader(database, many=_CALLERS, one=_CALLER)
        self._api_tokens = CoalescingReader(database, many=_API_TOKENS, one=_ONE_API_TOKEN)

    async def owner(self, token: TokenKey) -> TokenOwner | None:
        row = await self._owners.get(*token)
        return TokenOwner(*_state(row)) if row else None

    async def user(self, user_id: int) -> User | None:
        """Return an active user with rights and groups; None if the user is disabled or deleted."""
        owner = await self.owner(TokenKey(user_id, "", ""))
        return owner.user if owner and owner.is_active else None

    async def active(self, user_ids: Collection[int]) -> AbstractSet[int]:
        """Return which of these users are neither disabled nor deleted."""
        rows = await self._database.fetch(
            "select id from users where id = any($1::bigint[]) and is_active", list(user_ids)
        )
        return {row["id"] for row in rows}

    async def caller(self, key: CallerKey) -> KnownCaller | None:
        """Return the user to whom the identity is linked; if there is none, the user with that name; otherwise None."""
        row = await self._callers.get(key.username_key, key.token_id, key.identity.issuer, key.identity.subject)
        return KnownCaller(*_state(row), *(row[name] for name in _FACTS)) if row else None

    async def api_token(self, digest: bytes) -> ApiTokenOwner | None:
        row = await self._api_tokens.get(digest)
        if row is None:
            return None
        # A newer version of this service may have stored scopes that this version does not know.
        scopes = frozenset(scope for scope in Scope if scope in row["scopes"])
        connectors = None if row["connectors"] is None else frozenset[str](row["connectors"])
        user, is_active, epoch, is_revoked = _state(row)
        most_bytes = row["max_estimated_bytes"]
        limits = ApiTokenLimits(
            row["api_token_id"], row["name"], scopes, connectors, digest, max_estimated_bytes=most_bytes
        )
        facts = (row[name] for name in _API_TOKEN_FACTS)
        return ApiTokenOwner(user.narrowed(limits), is_active, epoch, is_revoked, *facts)

    async def revoke(self, token_id: str, *, keep_until: datetime) -> None:
        """Revoke a token family, or a single token by its jti. Idempotent."""
        await self._database.execute(_REVOKE, token_id, keep_until)

    async def end_all(self, user_id: int, *, epoch: int) -> None:
        """Revoke all tokens of a user by incrementing the token epoch, unless it already differs from `epoch`."""
        await self._database.execute(
            "update users set token_epoch = token_epoch + 1 where id = $1 and token_epoch = $2", user_id, epoch
        )

    async def exchange(self, jti: str, *, expires_at: datetime) -> timedelta | None:
        """Record the exchange of a refresh token. Returns the time since the first exchange; None on the first one."""
        row = await self._database.row(_EXCHANGE, jti, expires_at)
        if row is None or row["is_first"]:
            return None
        # Two calls raced: the loser's snapshot lacks the winner's row, so the exchange has only just happened.
        return row["since"] or timedelta(0)

    async def exchanged_for(self, jti: str) -> timedelta | None:
        """Return the time since a refresh token was exchanged; None if it has not been exchanged."""
        return await self._database.value("select now() - rotated_at from rotated_tokens where jti = $1", jti)

    async def note_call(self, user_id: int) -> None:
        """Set the last login to now, unless it is less than an hour ago."""
        await self._database.execute(_NOTE_CALL, user_id)

    async def note_api_tokens(self, used: Collection[UUID]) -> None:
        """Set the time of last use of these API tokens to now."""
        await self._database.execute("update api_tokens set last_used_at = now() where id = any($1)", list(used))

    async def join_only(self, user_id: int, groups: Sequence[str], *, default_group: str) -> frozenset[str]:
        """Make a user a member of exactly these groups and the default group. Returns the user's groups afterward.

        Unknown names are ignored. Membership in groups with the right `admin` is neither added nor removed.
        """
        names = [default_group, *groups]
        async with self._database.transaction() as connection:
            # Without the lock, concurrent calls for one user could leave the union of their groups.
            await connection.execute("select from users where id = $1 for no key update", user_id)
            await connection.execute(_LEAVE, user_id, names)
            await connection.execute(_JOIN, user_id, names)
            return frozenset(await connection.fetchval(_GROUPS, user_id))

    async def aclose(self) -> None:
        """Cancel running queries."""
        for reader in (self._owners, self._callers, self._api_tokens):
            await reader.aclose()


def _state(row: Row) -> tuple[User, bool, int, bool]:
    """Convert a row with the columns of `_USER_NOW` to `TokenOwner` fields."""
    rights = frozenset[str](row["rights"])
    user = User(
        id=row["id"],
        username=row["username"],
        is_admin=row["is_admin"] or "admin" in rights,
        rights=rights,
        groups=frozenset(row["groups"]),
        connectors_version=row["connectors_version"],
        preferences=preferences_of(stored) if (stored := row["preferences"]) else Preferences(),
    )
    return user, row["is_active"], row["token_epoch"], row["is_revoked"]


Owner = TypeVar("Owner", bound=TokenOwner)


def bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the bearer token in the `Authorization` header.

    Raises NotAuthenticated, bad_authorization_header, InvalidToken.
    """
    token = bearer_of(headers)
    if token is None:
        raise errors.NotAuthenticated
    return token


def bearer_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the bearer token in the `Authorization` header; None if the header is absent or uses another scheme.

    Raises bad_authorization_header, InvalidToken (the token is not ASCII).
    """
    values = [value for name, value in headers if name == b"authorization"]
    if len(values) > 1:
        raise errors.bad_authorization_header()
    parts = values[0].split() if values else []
    if not parts or parts[0].lower() != b"bearer":
        return None
    if len(parts) != 2:
        raise errors.bad_authorization_header()
    try:
        return parts[1].decode("ascii")
    except UnicodeDecodeError:
        raise errors.InvalidToken from None


def require_valid(owner: Owner | None, epoch: int | None = None) -> Owner:
    """Return the owner if the token is valid. `epoch` is the token's epoch; None if the token has no epoch.

    Raises UserNotFound, UserInactive, InvalidToken.
    """
    if owner is None:
        raise errors.UserNotFound
    if not owner.is_active:
        raise errors.UserInactive
    if owner.is_revoked or epoch not in (None, owner.token_epoch):
        raise errors.InvalidToken
    return owner


def api_token_user(owner: ApiTokenOwner | None) -> User:
    """Return the user of an API token, limited to the token's rights. Errors for invalid tokens do not name the user.

    Raises InvalidToken, UserInactive.
    """
    if owner is None or owner.is_revoked or owner.is_expired:
        raise errors.InvalidToken
    return require_valid(owner, owner.made_in_epoch).user


class TokenType(StrEnum):
    ACCESS = "access"
    REFRESH = "refresh"


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """The claims of an own token (Contract platform 3.3)."""

    token_type: TokenType
    user_id: int
    epoch: int
    family: str
    jti: str = field(repr=False)
    issued_at: int
    expires_at: int
    """Seconds since 1970."""

    @property
    def key(self) -> TokenKey:
        """The claims that determine whether the token is still valid."""
        return TokenKey(self.user_id, self.family, self.jti)


class JwtCodec:
    """Signs and verifies own tokens."""

    def __init__(self, keyring: Keyring, *, clock: Callable[[], float] = time.time) -> None:
        self._keyring = keyring
        self._clock = clock
        # Clients send the same token with every call: the signature is checked once, the expiry each time.
        self._good = lru_cache(_MAX_CACHED_TOKENS)(self._verified)

    def sign(self, claims: TokenClaims) -> str:
        content = {
            "token_type": claims.token_type.value,
            "exp": claims.expires_at,
            "iat": claims.issued_at,
            "jti": claims.jti,
            "user_id": claims.user_id,
            "epoch": claims.epoch,
            "family": claims.family,
        }
        key = self._keyring.present
        return jwt.encode(content, key.signing, algorithm=ALGORITHM, headers={"kid": key.id})

    def read(self, token: str, *, expired_too: bool = False) -> TokenClaims:
        """Return the claims of a token. If `expired_too` is set, expired tokens are accepted as well.

        Raises InvalidToken if the token's form, key or signature is invalid, or if it has expired.
        """
        claims = self._good(token)
        if claims.expires_at <= self._clock() and not expired_too:
            raise errors.InvalidToken
        return claims

    def _verified(self, token: str) -> TokenClaims:
        if len(token) > _MAX_CHARACTERS or not token.isascii():
            raise errors.InvalidToken
        try:
            header = jwt.get_unverified_header(token)
            key = self._keyring.find(str(header.get("kid")))
            if key is None or header.get("alg") != ALGORITHM:
                raise errors.InvalidToken
            content = jwt.decode(token, key.signing, algorithms=[ALGORITHM], options=_OPTIONS)
        except (JOSEError, ValueError, TypeError, AttributeError, RecursionError):
            # The library raises built-in Python exceptions for some malformed headers.
            raise errors.InvalidToken from None
        return _claims(content)


def _claims(content: Mapping[str, Any]) -> TokenClaims:
    if "user_id" not in content:
        raise errors.InvalidToken("Token contained no recognizable user identification")
    numbers = [content.get(name) for name in ("user_id", "epoch", "iat", "exp")]
    names = [content.get(name) for name in ("family", "jti")]
    kind = content.get("token_type")
    well_formed = (
        all(type(number) is int and 0 <= number < 2**63 for number in numbers)
        and all(isinstance(name, str) and _HEX32.fullmatch(name) for name in names)
        and kind in ("access", "refresh")
    )
    if not well_formed:
        raise errors.InvalidToken
    return TokenClaims(
        token_type=TokenType(kind),
        user_id=content["user_id"],
        epoch=content["epoch"],
        family=content["family"],
        jti=content["jti"],
        issued_at=content["iat"],
        expires_at=content["exp"],
    )


async def bearer(claims: TokenClaims, expected_type: TokenType, records: CallerRepository) -> User:
    """Return the user of a token, which must be of the expected type.

    Raises InvalidToken, UserNotFound, UserInactive, DatabaseUnavailable.
    """
    if claims.token_type is not expected_type:
        raise errors.InvalidToken("Token has wrong type")
    owner = require_valid(await records.owner(claims.key), claims.epoch)
    return replace(owner.user, token_ids=(claims.family, claims.jti), token_epoch=claims.epoch)


class OwnBearers:
    def __init__(self, codec: JwtCodec, records: CallerRepository) -> None:
        self._codec = codec
        self._records = records

    async def caller(self, request: AuthRequest) -> User | None:
        """Implement the authenticator `jwt`. Returns None if there is no bearer token or it is not an own token.

        Every call queries the database, so revocations take effect immediately.
        Raises NotAuthenticated and its subclasses, DatabaseUnavailable.
        """
        token = bearer_of(request.raw_headers)
        if token is None:
            return None
        try:
            claims = self._codec.read(token)
        except errors.InvalidToken:
            if algorithm_of(token) == ALGORITHM:
                raise
            return None
        return await bearer(claims, TokenType.ACCESS, self._records)


CallerSource: TypeAlias = Callable[[AuthRequest], Coroutine[Any, Any, User | None]]
"""Returns the caller, or None to try the next entry. Raising NotAuthenticated ends the search."""
Challenge: TypeAlias = Callable[[AuthRequest], Coroutine[Any, Any, str | None]]
"""Returns the value of an additional `WWW-Authenticate` header for a 401 response. Takes 2 s at most; never raises."""


class Callers:
    """Tries the entries of `desktop.auth.api_auth` in order until one of them identifies the caller."""

    def __init__(self, sources: Sequence[CallerSource], challenges: Sequence[Challenge] = ()) -> None:
        self._sources = sources
        self._challenges = challenges

    async def authenticate(self, request: AuthRequest) -> User:
        """Return the caller that the first matching entry identifies.

        Raises NotAuthenticated and its subclasses, KeyServerUnavailable, DatabaseUnavailable.
        """
        try:
            for source in self._sources:
                user = await source(request)
                if user is not None:
                    return user
            bearer_token(request.raw_headers)
            raise errors.InvalidToken
        except errors.AuthenticationFailed:
            # An explicit refusal by an authenticator gets no challenges.
            raise
        except errors.NotAuthenticated as refusal:
            # Run concurrently, so that slow challenges do not add up.
            async with asyncio.TaskGroup() as group:
                challenges = [group.create_task(challenge(request)) for challenge in self._challenges]
            refusal.challenges = tuple(text for one in challenges if (text := one.result()))
            raise

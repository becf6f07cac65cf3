"""Who makes a call: the entries of `desktop.auth.api_auth` in their order (Contract platform 4.2)."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import asyncpg
import structlog

from queryserver.errors.base import (
    AuthenticationFailed,
    DatabaseUnavailable,
    InvalidToken,
    NotAuthenticated,
    TooManyRequests,
    TooManyStreams,
    UserInactive,
    UserNotFound,
    bad_authorization_header,
)
from queryserver.identity.model import Preferences, User
from queryserver.identity.protocols import AuthRequest, CallerSource, TokenClaims, TokenCodec, TokenType
from queryserver.identity.repository import CallerKey, KnownCaller, TokenKey, TokenOwner, preferences_of
from queryserver.identity.throttling import network_of
from queryserver.platform.database import CoalescingReader, Database
from queryserver.platform.deployment import RequestCounts

USER_NOW = """
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
"""What a row of `users u` says about a user with all rights; see `user_of`."""

_OWNERS = f"""
    select k.n, {USER_NOW},
        exists (select from revoked_tokens t where t.token_id in (k.family, k.jti)) as is_revoked
    from unnest($1::bigint[], $2::text[], $3::text[]) with ordinality as k (user_id, family, jti, n)
    join users u on u.id = k.user_id
"""

_OWNER = f"""
    select {USER_NOW},
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


class TokenRepository:
    """Revoked and exchanged tokens, and the users behind tokens. All calls raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._owners = CoalescingReader(database, many=_OWNERS, one=_OWNER)

    async def owner(self, token: TokenKey) -> TokenOwner | None:
        """The user behind a token. Calls that come at once share a query."""
        row = await self._owners.get(*token)
        return TokenOwner(user_of(row), row["is_active"], row["token_epoch"], row["is_revoked"]) if row else None

    async def user(self, user_id: int) -> User | None:
        """An active user with rights and groups; None when disabled or deleted."""
        owner = await self.owner(TokenKey(user_id, "", ""))
        return owner.user if owner and owner.is_active else None

    async def revoke(self, token_id: str, *, keep_until: datetime) -> None:
        """Refuse a family, or one token by its jti. Repeating it is harmless."""
        await self._database.execute(_REVOKE, token_id, keep_until)

    async def end_all(self, user_id: int, *, epoch: int) -> None:
        """End all tokens of a user, unless that happened since the token of this epoch was issued."""
        await self._database.execute(
            "update users set token_epoch = token_epoch + 1 where id = $1 and token_epoch = $2", user_id, epoch
        )

    async def exchange(self, jti: str, *, expires_at: datetime) -> timedelta | None:
        """Note that a refresh token is exchanged; None at the first time, later the time since then."""
        row = await self._database.row(_EXCHANGE, jti, expires_at)
        if row is None or row["is_first"]:
            return None
        # Two at once: the loser's snapshot lacks the winner's row, so the exchange is of this moment.
        return row["since"] or timedelta(0)

    async def exchanged_for(self, jti: str) -> timedelta | None:
        """The time since a refresh token was exchanged; None when it was not."""
        return await self._database.value("select now() - rotated_at from rotated_tokens where jti = $1", jti)

    async def aclose(self) -> None:
        """Stop the queries on their way."""
        await self._owners.aclose()


def user_of(row: asyncpg.Record) -> User:
    """The user of a row with the columns of USER_NOW."""
    rights = frozenset[str](row["rights"])
    return User(
        id=row["id"],
        username=row["username"],
        is_admin=row["is_admin"] or "admin" in rights,
        rights=rights,
        groups=frozenset(row["groups"]),
        connectors_version=row["connectors_version"],
        preferences=preferences_of(stored) if (stored := row["preferences"]) else Preferences(),
    )


_STANDING = """
        coalesce(u.last_login > now() - interval '1 hour', false) as came_lately,
        l.user_id is not null as is_linked,
        u.password_hash is not null as has_password,
        exists (select from external_identities i where i.user_id = u.id) as has_identities
"""

# A link goes before a name: the two may be those of different users.
_CALLERS = f"""
    select k.n, {USER_NOW},
        exists (select from revoked_tokens t where t.token_id = k.token_id) as is_revoked, {_STANDING}
    from unnest($1::text[], $2::text[], $3::text[], $4::text[])
        with ordinality as k (username_key, token_id, issuer, subject, n)
    left join external_identities l on l.issuer = k.issuer and l.subject = k.subject
    join users u on u.id = coalesce(
        l.user_id, (select named.id from users named where named.username_key = k.username_key))
"""

_CALLER = f"""
    select {USER_NOW},
        exists (select from revoked_tokens t where t.token_id = $2) as is_revoked, {_STANDING}
    from (select 1) as one
    left join external_identities l on l.issuer = $3 and l.subject = $4
    join users u on u.id = coalesce(
        l.user_id, (select named.id from users named where named.username_key = $1::text))
"""

_NOTE_CALL = """
    update users set last_login = now()
    where id = $1 and (last_login is null or last_login <= now() - interval '1 hour')
"""

_ORDINARY = "not exists (select from group_rights r where r.group_id = g.id and r.\"right\" = 'admin')"

_LEAVE = f"""
    delete from group_members m using groups g
    where m.user_id = $1 and g.id = m.group_id and g.name <> all($2::text[]) and {_ORDINARY}
"""

# Locked against deletion until the memberships are written: what is deleted meanwhile is left out.
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
    """Users who prove by other means than an own token who they are. All calls raise DatabaseUnavailable.

    Calls that come at once share a query.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._callers = CoalescingReader(database, many=_CALLERS, one=_CALLER)

    async def caller(self, key: CallerKey) -> KnownCaller | None:
        """The user that the identity is linked to, else the user of the name; None: there is none."""
        row = await self._callers.get(key.username_key, key.token_id, key.identity.issuer, key.identity.subject)
        if row is None:
            return None
        return KnownCaller(
            user=user_of(row),
            is_active=row["is_active"],
            token_epoch=row["token_epoch"],
            is_revoked=row["is_revoked"],
            came_lately=row["came_lately"],
            is_linked=row["is_linked"],
            has_password=row["has_password"],
            has_identities=row["has_identities"],
        )

    async def note_call(self, user_id: int) -> None:
        """Set the time of the last login to now, unless it is within the hour."""
        await self._database.execute(_NOTE_CALL, user_id)

    async def join_only(self, user_id: int, groups: Sequence[str], *, default_group: str) -> frozenset[str]:
        """Put a user into these groups and the default group, and take others away; the groups after that.

        Unknown names are left out. Groups that give the right `admin` are neither given nor taken.
        """
        names = [default_group, *groups]
        async with self._database.transaction() as connection:
            # Two calls of one user at once, with different groups, must not leave the union.
            await connection.execute("select from users where id = $1 for no key update", user_id)
            await connection.execute(_LEAVE, user_id, names)
            await connection.execute(_JOIN, user_id, names)
            return frozenset(await connection.fetchval(_GROUPS, user_id))

    async def aclose(self) -> None:
        """Stop the queries on their way."""
        await self._callers.aclose()


_SCHEME = b"bearer"


def bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The token of the `Authorization` header. Raises NotAuthenticated, bad_authorization_header, InvalidToken."""
    token = bearer_of(headers)
    if token is None:
        raise NotAuthenticated
    return token


def bearer_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The token of the `Authorization` header; None without one, or with another scheme.

    Raises bad_authorization_header, InvalidToken (not ASCII).
    """
    values = [value for name, value in headers if name == b"authorization"]
    if len(values) > 1:
        raise bad_authorization_header()
    parts = values[0].split() if values else []
    if not parts or parts[0].lower() != _SCHEME:
        return None
    if len(parts) != 2:
        raise bad_authorization_header()
    try:
        return parts[1].decode("ascii")
    except UnicodeDecodeError:
        raise InvalidToken from None


async def bearer(claims: TokenClaims, wanted: TokenType, records: TokenRepository) -> User:
    """The user of a token of the wanted type.

    Raises InvalidToken, UserNotFound, UserInactive, DatabaseUnavailable.
    """
    if claims.token_type is not wanted:
        raise InvalidToken("Token has wrong type", token_type=wanted.value)
    return _alive(claims, await records.owner(key_of(claims)))


def key_of(claims: TokenClaims) -> TokenKey:
    """What the state of the token depends on."""
    return TokenKey(claims.user_id, claims.family, claims.jti)


def _alive(claims: TokenClaims, owner: TokenOwner | None) -> User:
    if owner is None:
        raise UserNotFound
    if not owner.is_active:
        raise UserInactive
    if owner.is_revoked or owner.token_epoch != claims.epoch:
        raise InvalidToken(token_type=claims.token_type.value)
    return replace(owner.user, token_ids=(claims.family, claims.jti), token_epoch=claims.epoch)


class Callers:
    """See `identity.protocols.Authenticator`: the first entry that knows the caller wins."""

    def __init__(self, sources: Sequence[CallerSource]) -> None:
        self._sources = sources

    async def authenticate(self, request: AuthRequest) -> User:
        """The caller. Raises NotAuthenticated and its kinds, KeyServerUnavailable, DatabaseUnavailable."""
        try:
            for source in self._sources:
                user = await source.caller(request)
                if user is not None:
                    return user
            raise _refusal(request)
        except AuthenticationFailed:
            # An entry that refuses the caller at once says all there is to say.
            raise
        except NotAuthenticated as refusal:
            refusal.challenges = await self._challenges(request)
            raise

    async def _challenges(self, request: AuthRequest) -> tuple[str, ...]:
        """In the order of the entries, which are asked side by side: one that is slow adds nothing to another."""
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(source.challenge(request)) for source in self._sources]
        return tuple(challenge for one in asked if (challenge := one.result()))


def _refusal(request: AuthRequest) -> NotAuthenticated:
    """Nobody knew the caller: there was no bearer, or one that is no good."""
    try:
        bearer_token(request.raw_headers)
    except NotAuthenticated as error:
        return error
    return InvalidToken()


class BearerAuthenticator:
    """See `identity.protocols.CallerSource`. Each call reads the database: the end of a token is seen at once."""

    def __init__(self, codec: TokenCodec, records: TokenRepository) -> None:
        self._codec = codec
        self._records = records

    async def caller(self, request: AuthRequest) -> User | None:
        """The user of an own token; None when the bearer, if there is one, is no own token.

        Raises NotAuthenticated and its kinds, DatabaseUnavailable.
        """
        token = bearer_of(request.raw_headers)
        if token is None:
            return None
        try:
            claims = self._codec.read(token)
        except InvalidToken:
            if self._codec.recognises(token):
                raise
            return None
        return await bearer(claims, TokenType.ACCESS, self._records)

    async def challenge(self, request: AuthRequest) -> str | None:
        """None: every 401 asks for a bearer anyway."""
        del request
        return None


log = structlog.get_logger(__name__)

_WINDOW_S = 60
_EXCHANGE_EVERY_S = 1.0
# Users are known by then, addresses are not: a flood from more of them is no matter for a table in memory.
_MOST_ADDRESSES = 50_000


@dataclass(slots=True)
class _Calls:
    own: int = 0
    sent: int = 0
    """Calls already added to the sums in the database."""
    others: int = 0
    """Those of other processes at the last exchange."""


class RequestLimits:
    """Counts calls. Use `running()`. With `most` 0 nothing is counted and nobody is refused."""

    def __init__(self, counts: RequestCounts, *, most: int, clock: Callable[[], float] = time.time) -> None:
        self._counts = counts
        self._most = most
        self._clock = clock
        self._minute = 0
        self._calls: dict[str, _Calls] = {}
        self._addresses = 0

    @property
    def are_on(self) -> bool:
        """Whether there is a limit."""
        return self._most > 0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Share counts with other processes, while inside."""
        if not self.are_on:
            yield
            return
        exchange = asyncio.create_task(self._keep_exchanging(), name="request-counts")
        try:
            yield
        finally:
            exchange.cancel()
            await asyncio.gather(exchange, return_exceptions=True)

    def count_user(self, user_id: int) -> None:
        """One call of a user. Raises TooManyRequests."""
        if self.are_on:
            self._count(f"user {user_id}")

    def count_address(self, address: str) -> None:
        """One call to a public path. Raises TooManyRequests."""
        if self.are_on:
            self._count(f"address {network_of(address)}", is_address=True)

    async def exchange(self) -> None:
        """Add what was counted since the last time to the sums of all processes. Raises DatabaseUnavailable."""
        self._turn()
        minute, calls = self._minute, self._calls
        news = {caller: one.own - one.sent for caller, one in calls.items() if one.own > one.sent}
        if not news:
            return
        sums = await self._counts.add(minute, news)
        for caller, sent in news.items():
            one = calls[caller]
            one.sent += sent
            one.others = max(sums.get(caller, 0) - one.sent, 0)

    def _count(self, caller: str, *, is_address: bool = False) -> None:
        """Calls that are refused do not count: they must not make the others' sums grow."""
        now = self._turn()
        one = self._calls.get(caller)
        if one is None:
            if is_address and self._addresses >= _MOST_ADDRESSES:
                return
            self._addresses += is_address
            one = self._calls[caller] = _Calls()
        if one.own + one.others >= self._most:
            left_s = _WINDOW_S - now % _WINDOW_S
            message = f"More than {self._most} calls in a minute. Try again later."
            raise TooManyRequests(message, retry_after=timedelta(seconds=left_s))
        one.own += 1

    def _turn(self) -> float:
        """The time; with a new minute everybody begins anew."""
        now = self._clock()
        minute = int(now // _WINDOW_S)
        if minute != self._minute:
            self._minute, self._calls, self._addresses = minute, {}, 0
        return now

    async def _keep_exchanging(self) -> None:
        forgotten = 0
        while True:
            await asyncio.sleep(_EXCHANGE_EVERY_S)
            try:
                await self.exchange()
                if forgotten < self._minute:
                    await self._counts.forget(before=self._minute)
                    forgotten = self._minute
            except DatabaseUnavailable:
                log.warning("calls of other servers are not known: the database is out of reach")
            except Exception:  # the outer wall of a task: without it each server would count for itself for ever
                log.exception("counts of calls not exchanged")


class Standing:
    """Reads users again whose calls last. Users that are read at once share a query."""

    def __init__(self, records: TokenRepository) -> None:
        self._records = records

    async def now(self, user: User) -> User:
        """The caller with the rights of this moment; unchanged while the database is out of reach.

        Raises UserNotFound, UserInactive, InvalidToken: the token of the call was ended.
        """
        try:
            owner = await self._records.owner(TokenKey(user.id, *user.token_ids))
        except DatabaseUnavailable:
            log.warning("rights of a lasting call not read: the database is out of reach", user_id=user.id)
            return user
        if owner is None:
            raise UserNotFound
        if not owner.is_active:
            raise UserInactive
        if owner.is_revoked or user.token_epoch not in (None, owner.token_epoch):
            raise InvalidToken
        return replace(
            owner.user, external_token=user.external_token, token_ids=user.token_ids, token_epoch=user.token_epoch
        )


Permits = Callable[[User], object]
"""Raises a domain error when a user may not go on."""


def _anything(user: User) -> None:
    del user


class StreamPlace:
    """The place of one long call."""

    def __init__(self, user: User, standing: Standing, every_s: float, clock: Callable[[], float]) -> None:
        self._user = user
        self._standing = standing
        self._every_s = every_s
        self._clock = clock
        self._due = clock() + every_s

    async def recheck(self, permits: Permits = _anything) -> None:
        """Read the user and the rights again, if that was not done lately; call it at each step of the work.

        Raises UserNotFound, UserInactive, InvalidToken, and what `permits` raises.
        """
        if self._clock() < self._due:
            return
        self._due = self._clock() + self._every_s
        permits(await self._standing.now(self._user))

    async def rechecked(self, pieces: AsyncGenerator[bytes], permits: Permits = _anything) -> AsyncGenerator[bytes]:
        """The pieces, while the user may go on. Raises as `recheck`."""
        async with aclosing(pieces):
            async for piece in pieces:
                await self.recheck(permits)
                yield piece


class Streams:
    """Places for long calls (Contract editor 13: `max_streams_per_user`). Each reads its user again `every`."""

    def __init__(
        self, max_per_user: int, standing: Standing, *, every: timedelta, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_per_user = max_per_user
        self._standing = standing
        self._every_s = every.total_seconds()
        self._clock = clock
        self._open: Counter[int] = Counter()

    @contextmanager
    def place(self, user: User) -> Generator[StreamPlace]:
        """Inside, one place is taken. Raises TooManyStreams."""
        if self._open[user.id] >= self._max_per_user:
            raise TooManyStreams(f"{self._max_per_user} waits, event streams and downloads of yours are open.")
        self._open[user.id] += 1
        try:
            yield StreamPlace(user, self._standing, self._every_s, self._clock)
        finally:
            self._open[user.id] -= 1
            if not self._open[user.id]:
                del self._open[user.id]

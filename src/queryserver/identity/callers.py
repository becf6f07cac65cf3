"""Who makes a call: the entries of `desktop.auth.api_auth` in their order (Contract platform 4.2), and own tokens."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import structlog
from jose import jwt
from jose.exceptions import JOSEError

from queryserver import errors
from queryserver.identity.external_keys import algorithm_of
from queryserver.identity.keys import Keyring
from queryserver.identity.model import AuthRequest, User
from queryserver.identity.repository import ApiTokenOwner, CallerRepository, TokenKey, TokenOwner
from queryserver.platform.deployment import RequestCounts
from queryserver.platform.settings.sections import network_of
from queryserver.platform.threads import background

ALGORITHM = "HS256"

_MOST_CHARACTERS = 4096
# A token of ours has 400 characters: four thousand people at work cost 4 MB.
_REMEMBERED = 4096

_HEX32 = re.compile(r"[0-9a-f]{32}")

# The library is asked for the signature and the form. Which claims there must be, and whether the time is over, is
# decided here: its `require_exp` would switch its own clock on, and an expired token could not be revoked.
_OPTIONS = {"verify_exp": False, "verify_iat": False, "verify_nbf": False, "verify_aud": False}

Owner = TypeVar("Owner", bound=TokenOwner)


def bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The token of the `Authorization` header. Raises NotAuthenticated, bad_authorization_header, InvalidToken."""
    token = bearer_of(headers)
    if token is None:
        raise errors.NotAuthenticated
    return token


def bearer_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The token of the `Authorization` header; None without one, or with another scheme.

    Raises bad_authorization_header, InvalidToken (not ASCII).
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


def alive(owner: Owner | None, epoch: int | None = None) -> Owner:
    """The owner, unless the token is no good; `epoch`: that of an own token.

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
    """The user of an API token, with its rights. A token that has ended does not say whose it was.

    Raises InvalidToken, UserInactive.
    """
    if owner is None or owner.is_revoked or owner.is_expired:
        raise errors.InvalidToken
    return alive(owner, owner.made_in_epoch).user


class TokenType(StrEnum):
    ACCESS = "access"
    REFRESH = "refresh"


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """The content of an own token (Contract platform 3.3)."""

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
        """What the state of the token depends on."""
        return TokenKey(self.user_id, self.family, self.jti)


class JwtCodec:
    """Own tokens as text."""

    def __init__(self, keyring: Keyring, *, clock: Callable[[], float] = time.time) -> None:
        self._keyring = keyring
        self._clock = clock
        # The same token comes with every call of a client: its signature is checked once, its time on each call.
        self._good = lru_cache(_REMEMBERED)(self._verified)

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
        """The content of a good token. Raises InvalidToken for a bad form, key, signature or time."""
        claims = self._good(token)
        if claims.expires_at <= self._clock() and not expired_too:
            raise errors.InvalidToken
        return claims

    def _verified(self, token: str) -> TokenClaims:
        if len(token) > _MOST_CHARACTERS or not token.isascii():
            raise errors.InvalidToken
        try:
            header = jwt.get_unverified_header(token)
            key = self._keyring.find(str(header.get("kid")))
            if key is None or header.get("alg") != ALGORITHM:
                raise errors.InvalidToken
            content = jwt.decode(token, key.signing, algorithms=[ALGORITHM], options=_OPTIONS)
        except (JOSEError, ValueError, TypeError, AttributeError, RecursionError):
            # The library answers some malformed headers with plain Python errors.
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


async def bearer(claims: TokenClaims, wanted: TokenType, records: CallerRepository) -> User:
    """The user of a token of the wanted type.

    Raises InvalidToken, UserNotFound, UserInactive, DatabaseUnavailable.
    """
    if claims.token_type is not wanted:
        raise errors.InvalidToken("Token has wrong type")
    owner = alive(await records.owner(claims.key), claims.epoch)
    return replace(owner.user, token_ids=(claims.family, claims.jti), token_epoch=claims.epoch)


class OwnBearers:
    def __init__(self, codec: JwtCodec, records: CallerRepository) -> None:
        self._codec = codec
        self._records = records

    async def caller(self, request: AuthRequest) -> User | None:
        """The authenticator `jwt`: None when the bearer, if there is one, is no own token.

        Each call reads the database: the end of a token is seen at once.
        Raises NotAuthenticated and its kinds, DatabaseUnavailable.
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
"""The caller; None: the next entry is tried. Raises NotAuthenticated: no other entry is tried."""
Challenge: TypeAlias = Callable[[AuthRequest], Coroutine[Any, Any, str | None]]
"""The text of a further `WWW-Authenticate` when no entry knows the caller; within 2 s. Raises nothing."""


class Callers:
    """The entries of `desktop.auth.api_auth`: the first one that knows the caller wins."""

    def __init__(self, sources: Sequence[CallerSource], challenges: Sequence[Challenge] = ()) -> None:
        self._sources = sources
        self._challenges = challenges

    async def authenticate(self, request: AuthRequest) -> User:
        """The caller. Raises NotAuthenticated and its kinds, KeyServerUnavailable, DatabaseUnavailable."""
        try:
            for source in self._sources:
                user = await source(request)
                if user is not None:
                    return user
            bearer_token(request.raw_headers)
            raise errors.InvalidToken
        except errors.AuthenticationFailed:
            # An entry that refuses the caller at once says all there is to say.
            raise
        except errors.NotAuthenticated as refusal:
            # Side by side: one that is slow adds nothing to another.
            async with asyncio.TaskGroup() as group:
                challenges = [group.create_task(challenge(request)) for challenge in self._challenges]
            refusal.challenges = tuple(text for one in challenges if (text := one.result()))
            raise


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
        self._ahead_s = 0.0
        self._minute = 0
        self._calls: dict[str, _Calls] = {}
        self._addresses = 0

    @property
    def are_on(self) -> bool:
        return self._most > 0

    def running(self) -> AbstractAsyncContextManager[None]:
        """Share counts with other processes, while inside."""
        return background(self._keep_exchanging(), "request-counts") if self.are_on else nullcontext()

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

    async def follow_clock(self) -> None:
        """Count in the minutes of the database's clock, as all processes do. Raises DatabaseUnavailable."""
        self._ahead_s = await self._counts.forget() - self._clock()

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
            raise errors.TooManyRequests(message, retry_after=timedelta(seconds=left_s))
        one.own += 1

    def _turn(self) -> float:
        """The time; with a new minute everybody begins anew."""
        now = self._clock() + self._ahead_s
        minute = int(now // _WINDOW_S)
        if minute != self._minute:
            self._minute, self._calls, self._addresses = minute, {}, 0
        return now

    async def _keep_exchanging(self) -> None:
        followed = None
        while True:
            try:
                if followed != self._minute:
                    await self.follow_clock()
                    followed = self._minute
                await self.exchange()
            except errors.DatabaseUnavailable:
                log.warning("calls of other servers are not known: the database is out of reach")
            except Exception:  # the outer wall of a task: without it each server would count for itself for ever
                log.exception("counts of calls not exchanged")
            await asyncio.sleep(_EXCHANGE_EVERY_S)


Permits = Callable[[User], object]
"""Raises a domain error when a user may not go on."""


def _anything(user: User) -> None:
    del user


class StreamPlace:
    def __init__(self, user: User, records: CallerRepository, every_s: float, clock: Callable[[], float]) -> None:
        self._user = user
        self._records = records
        self._every_s = every_s
        self._clock = clock
        self._due = clock() + every_s

    @property
    def due_in_s(self) -> float:
        """When the next `recheck` reads the user again."""
        return max(self._due - self._clock(), 0)

    async def recheck(self, permits: Permits = _anything) -> None:
        """Read the user and the rights again, if that was not done lately; call it at each step of the work.

        Raises UserNotFound, UserInactive, InvalidToken, and what `permits` raises.
        """
        if self._clock() < self._due:
            return
        self._due = self._clock() + self._every_s
        permits(await self._user_now())

    async def rechecked(self, pieces: AsyncGenerator[bytes], permits: Permits = _anything) -> AsyncGenerator[bytes]:
        """The pieces, while the user may go on. Raises as `recheck`."""
        async with aclosing(pieces):
            async for piece in pieces:
                await self.recheck(permits)
                yield piece

    async def _user_now(self) -> User:
        """The caller with the rights of this moment; unchanged while the database is out of reach."""
        user = self._user
        try:
            if user.api_token is not None:
                return api_token_user(await self._records.api_token(user.api_token.digest))
            owner = await self._records.owner(TokenKey(user.id, *user.token_ids))
        except errors.DatabaseUnavailable:
            log.warning("rights of a lasting call not read: the database is out of reach", user_id=user.id)
            return user
        present = alive(owner, user.token_epoch).user
        return replace(
            present, external_token=user.external_token, token_ids=user.token_ids, token_epoch=user.token_epoch
        )


@dataclass(eq=False, repr=False)
class Streams:
    """Places for long calls (Contract editor 13: `max_streams_per_user`). Each reads its user again `every`."""

    max_per_user: int
    records: CallerRepository
    every: timedelta
    clock: Callable[[], float] = time.monotonic
    _open: Counter[int] = field(default_factory=Counter[int], init=False)

    @contextmanager
    def place(self, user: User) -> Generator[StreamPlace]:
        """Inside, one place is taken. Raises TooManyStreams."""
        if self._open[user.id] >= self.max_per_user:
            raise errors.TooManyStreams(f"{self.max_per_user} waits, event streams and downloads of yours are open.")
        self._open[user.id] += 1
        try:
            yield StreamPlace(user, self.records, self.every.total_seconds(), self.clock)
        finally:
            self._open[user.id] -= 1
            if not self._open[user.id]:
                del self._open[user.id]

"""Authenticates bearers of API tokens (authenticator `api_token`), records last uses and throttles failed attempts."""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

import structlog

from queryserver import errors
from queryserver.identity.api_tokens import digest_of, is_api_token
from queryserver.identity.callers import CallerRepository, api_token_user, bearer_of
from queryserver.identity.model import AuthRequest, User
from queryserver.platform.caches import LruCache
from queryserver.platform.networks import network_of
from queryserver.platform.settings.desktop import AuthSettings
from queryserver.platform.threads import background, every

log = structlog.get_logger(__name__)

_MAX_CACHED_TOKENS = 4096
_MAX_ADDRESSES = 50_000
_RECORD_USES_EVERY_S = 5.0
_REFUSAL_CACHED_S = 10.0
"""How long the rejection of an invalid token is cached."""


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
            log.warning("last uses of API tokens not noted: the database is out of reach")

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
            log.info("API token refused", client=client, code=error.code, user_id=owner.user.id if owner else None)
            raise
        self._good.put(digest, True)
        if owner is not None and user.api_token is not None and owner.is_use_unknown:
            self._used.add(user.api_token.id)
        return user

    async def note_uses(self) -> None:
        """Store the times of last use collected from calls. Raises DatabaseUnavailable."""
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
                "Too many refused API tokens. Try again later.", retry_after=timedelta(seconds=left_s)
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

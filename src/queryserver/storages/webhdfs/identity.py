"""As whom a call is made: the caller's name stands in every single one, so that no connection has an identity.

HttpFS writes the first caller's name into a cookie that counts more than the parameters; no cookie is ever kept.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from queryserver.domain.errors.base import PermissionDenied
from queryserver.domain.lru import LruCache

_RENEWED_AFTER_S = 8 * 3600.0
"""Tokens live for a day after each renewal by default (dfs.namenode.delegation.token.renew-interval)."""
_REPLACED_AFTER_S = 5 * 24 * 3600.0
"""Within the seven days after which they are not renewed (dfs.namenode.delegation.token.max-lifetime)."""
_MOST_TOKENS = 10_000

# Hadoop shortens `name/host@REALM` to `name`: such a user would become another one.
_PRINCIPAL = re.compile(r"[/@\x00-\x1f\x7f]")


def acting_name(name: str) -> str:
    """The name of a caller as the store gets it. Raises PermissionDenied: the store would read it as another one."""
    if not name or _PRINCIPAL.search(name):
        raise PermissionDenied("Users of this name have no access to the store.")
    return name


class Identity(Protocol):
    """How callers are told to the store."""

    async def parameters(self, user: str) -> Mapping[str, str]:
        """Those that name the caller in a call."""
        ...

    def refused(self, user: str) -> bool:
        """The store did not accept them. Whether another try may do better."""
        ...


class NamedIdentity:
    """The service's login and the caller's name, as clusters without Kerberos believe them."""

    def __init__(self, service_user: str) -> None:
        self._service_user = service_user

    async def parameters(self, user: str) -> Mapping[str, str]:
        """See the Protocol."""
        return {"user.name": self._service_user, "doas": user}

    def refused(self, user: str) -> bool:  # noqa: ARG002 the Protocol's
        """See the Protocol."""
        return False


@dataclass(slots=True)
class _Token:
    text: str
    made_at: float
    renewed_at: float


class TokenIdentity:
    """A delegation token for each caller, obtained by the service for him, renewed in time.

    `obtain` and `renew` ask the store with the service's own login.
    """

    def __init__(
        self,
        obtain: Callable[[str], Awaitable[str]],
        renew: Callable[[str], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._obtain = obtain
        self._renew = renew
        self._clock = clock
        self._tokens = LruCache[str, _Token](_MOST_TOKENS)
        self._lock = asyncio.Lock()

    async def parameters(self, user: str) -> Mapping[str, str]:
        """See the Protocol. Raises what obtaining and renewing raise."""
        async with self._lock:
            now = self._clock()
            token = self._tokens.get(user)
            if token is None or now - token.made_at > _REPLACED_AFTER_S:
                token = _Token(await self._obtain(user), now, now)
                self._tokens.put(user, token)
            elif now - token.renewed_at > _RENEWED_AFTER_S:
                await self._renew(token.text)
                token.renewed_at = now
        return {"delegation": token.text}

    def refused(self, user: str) -> bool:
        """See the Protocol."""
        return self._tokens.pop(user) is not None

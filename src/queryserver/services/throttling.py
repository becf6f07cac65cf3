"""Limits on failed logins (Contract platform 3.8)."""

import hashlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from queryserver.domain.errors import LoginThrottled
from queryserver.interfaces.accounts import LoginFailures
from queryserver.services.client_networks import network_of


@dataclass(frozen=True, slots=True)
class ThrottleLimits:
    """Failures within the window after which attempts are refused; 0 switches a limit off."""

    window: timedelta
    per_user_and_address: int
    per_user: int
    per_address: int


class LoginThrottle:
    """Counts failures by name, by address and by both. Unknown names count like known ones.

    Of IPv6, networks of 64 bits count: nobody who has one runs out of addresses in it. Spellings that a directory may
    take for one name count as one.
    """

    def __init__(self, failures: LoginFailures, limits: ThrottleLimits) -> None:
        self._failures = failures
        self._limits = limits

    async def require_free(self, username_key: str, address: str) -> None:
        """Raises LoginThrottled when a limit is reached."""
        if limits := self._keys(username_key, address):
            _refuse(await self._failures.blocked(limits, self._limits.window))

    async def count(self, username_key: str, address: str) -> None:
        """Note a failure. Raises LoginThrottled when attempts at its side have used up the limit."""
        if limits := self._keys(username_key, address):
            _refuse(await self._failures.add(limits, self._limits.window))

    async def forget(self, username_key: str, address: str) -> None:
        """After a success the name is free again from this address."""
        await self._failures.clear(_both_key(username_key, address))

    async def unlock(self, username_key: str) -> None:
        """Free a name from every address. What an address did with other names still counts."""
        key = _user_key(username_key)
        await self._failures.clear(key)
        await self._failures.clear_below(key)

    def _keys(self, username_key: str, address: str) -> Mapping[str, int]:
        limits = self._limits
        every = {
            _both_key(username_key, address): limits.per_user_and_address,
            _user_key(username_key): limits.per_user,
            f"address {_digest(network_of(address))}": limits.per_address,
        }
        return {key: most for key, most in every.items() if most}


def _user_key(username_key: str) -> str:
    return f"user {_digest(_folded(username_key))}"


def _both_key(username_key: str, address: str) -> str:
    return f"{_user_key(username_key)} {_digest(network_of(address))}"


def _folded(name: str) -> str:
    """Without case and accents, whatever the case rule: each spelling would have guesses of its own otherwise."""
    for _ in range(2):  # folding makes marks, and taking letters apart makes capitals
        name = unicodedata.normalize("NFKD", name).casefold()
    return "".join(letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter))


def _refuse(wait: timedelta | None) -> None:
    if wait is not None:
        raise LoginThrottled("Too many failed logins. Try again later.", retry_after=wait)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

"""Limits on failed logins (Contract platform 3.8)."""

import hashlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from queryserver.db.logins import LoginFailureRepository, LoginNetworkRepository
from queryserver.domain.errors.base import LoginThrottled
from queryserver.services.client_networks import is_address, network_of


@dataclass(frozen=True, slots=True)
class ThrottleLimits:
    """Failures within the window after which attempts are refused; 0 switches a limit off."""

    window: timedelta
    per_user_and_address: int
    per_user: int
    per_address: int


class LoginThrottle:
    """Counts failures by name, by address and by both. Names that do not exist count like those that do.

    An address from which the user has logged in lately has a limit of its own for that user. Failures from there do not
    count for the name as a whole, and the limit of the name does not hold there: guesses of another client lock a user
    out of new addresses only. Guesses of one name stay bounded: `per_user` from all unknown addresses together, and
    `per_user_and_address` from each of the few known ones.

    Of IPv6, networks of 64 bits count: nobody who has one runs out of addresses in it. Failures of spellings that a
    directory may take for one name count as one. Known addresses are those of the exact name: those of
    `aná` must not push out those of `ana`.
    """

    def __init__(
        self, failures: LoginFailureRepository, networks: LoginNetworkRepository, limits: ThrottleLimits
    ) -> None:
        self._failures = failures
        self._networks = networks
        self._limits = limits

    async def require_free(self, username_key: str, address: str) -> None:
        """Raises LoginThrottled when a limit is reached."""
        if limits := await self._keys(username_key, address):
            _refuse(await self._failures.blocked(limits, self._limits.window))

    async def count(self, username_key: str, address: str) -> None:
        """Note a failure. Raises LoginThrottled when attempts at its side have used up the limit."""
        if limits := await self._keys(username_key, address):
            _refuse(await self._failures.add(limits, self._limits.window))

    async def succeeded(self, username_key: str, address: str) -> None:
        """After a success the name is free again from this address, and the address is known."""
        await self._failures.clear(_both_key(username_key, address))
        if is_address(address):
            await self._networks.note(_digest(username_key), _network(address))

    async def unlock(self, username_key: str) -> None:
        """Free a name from every address. What an address did with other names still counts."""
        key = _user_key(username_key)
        await self._failures.clear(key)
        await self._failures.clear_below(key)

    async def _keys(self, username_key: str, address: str) -> Mapping[str, int]:
        limits = self._limits
        every = {f"address {_network(address)}": limits.per_address}
        # One query, whether there is such a user or not: the time of an answer says nothing (Rule T15).
        if limits.per_user and await self._networks.is_known(_digest(username_key), _network(address)):
            every[_both_key(username_key, address)] = limits.per_user_and_address or limits.per_user
        else:
            every[_both_key(username_key, address)] = limits.per_user_and_address
            every[_user_key(username_key)] = limits.per_user
        return {key: most for key, most in every.items() if most}


def _user_key(username_key: str) -> str:
    return f"user {_name(username_key)}"


def _both_key(username_key: str, address: str) -> str:
    return f"{_user_key(username_key)} {_network(address)}"


def _name(username_key: str) -> str:
    return _digest(_folded(username_key))


def _network(address: str) -> str:
    return _digest(network_of(address))


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

"""Limits on failed logins (Contract platform 3.8)."""

import hashlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv6Address, IPv6Network, ip_address

from queryserver.errors.base import LoginThrottled
from queryserver.platform.database import Database


def is_address(text: str) -> bool:
    """Whether it is an address: of a caller whom no proxy names clearly, it is the text `unknown`."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def network_of(address: str) -> str:
    """What one caller has: an IPv6 network of 64 bits, or the address itself."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(IPv6Network((parsed, 64), strict=False))
    return str((isinstance(parsed, IPv6Address) and parsed.ipv4_mapped) or parsed)


# A window begins with its first failure and never moves: attempts that are refused neither count nor extend it.
_BLOCKED = """
    select max(f.window_started_at + $3 - now())
    from unnest($1::text[], $2::int[]) as k (key, most)
    join login_failures f on f.key = k.key
    where f.failures >= k.most and f.window_started_at + $3 > now()
"""

# Sorted, so that two statements lock the rows they share in one order.
_ADD = f"""
    with blocked as ({_BLOCKED}),
    counted as (
        insert into login_failures as f (key, window_started_at, failures)
        select k.key, now(), 1 from unnest($1::text[]) as k (key)
        where (select max from blocked) is null
        order by k.key
        on conflict (key) do update set
            failures = case when f.window_started_at + $3 > now() then f.failures + 1 else 1 end,
            window_started_at = case when f.window_started_at + $3 > now() then f.window_started_at else now() end
        returning f.key, f.failures, f.window_started_at
    )
    select coalesce(
        (select max from blocked),
        (
            select max(c.window_started_at + $3 - now())
            from counted c join unnest($1::text[], $2::int[]) as k (key, most) on k.key = c.key
            where c.failures > k.most
        )
    )
"""


class LoginFailureRepository:
    """Failed logins, counted for all servers together. Keys are digests. All calls raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def blocked(self, limits: Mapping[str, int], window: timedelta) -> timedelta | None:
        """How long the first free attempt is away; None when no key has reached its limit."""
        return await self._database.value(_BLOCKED, list(limits), list(limits.values()), window)

    async def add(self, limits: Mapping[str, int], window: timedelta) -> timedelta | None:
        """Count one failure for each key; the time as in `blocked` when it was one too many.

        Attempts that were let in side by side are counted one after another, so that what is above a limit shows.
        """
        return await self._database.value(_ADD, list(limits), list(limits.values()), window)

    async def clear(self, key: str) -> None:
        """Forget the failures of a key."""
        await self._database.execute("delete from login_failures where key = $1", key)

    async def clear_below(self, key: str) -> None:
        """Forget the failures of all keys that begin with this one and a blank."""
        await self._database.execute("delete from login_failures where starts_with(key, $1)", f"{key} ")


_MOST_NETWORKS = 20
"""Of one name. Whoever knows a password cannot make more room for guesses with it than this."""

_IS_KNOWN = """
    select exists (
        select from login_networks
        where name = $1 and network = $2 and last_login_at > now() - interval '30 days')
"""

_NOTE = """
    insert into login_networks (name, network) values ($1, $2)
    on conflict (name, network) do update set last_login_at = now()
"""

_FORGET = """
    delete from login_networks where name = $1 and network not in (
        select network from login_networks where name = $1 order by last_login_at desc, network limit $2)
"""


class LoginNetworkRepository:
    """Networks that users have logged in from within 30 days. Both parts are digests. Raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def is_known(self, name: str, network: str) -> bool:
        """Whether a user of that name has logged in from there."""
        return await self._database.value(_IS_KNOWN, name, network)

    async def note(self, name: str, network: str) -> None:
        """A login has succeeded. The newest networks of a name are kept, a bounded number."""
        async with self._database.transaction() as connection:
            await connection.execute(_NOTE, name, network)
            await connection.execute(_FORGET, name, _MOST_NETWORKS)


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

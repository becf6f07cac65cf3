"""Hashes passwords, rates their strength, and limits failed logins by name and by address (Contract platform 3.8).

`AuthSettings` in `platform/settings/desktop.py` sets the limits and windows.
"""

import hashlib
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import ClassVar, cast

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from queryserver.errors.base import LoginBackendUnavailable, LoginThrottled
from queryserver.identity.threads import LimitedThreads
from queryserver.platform.database import Database
from queryserver.platform.networks import network_of
from queryserver.platform.settings.desktop import AuthSettings

_ESTIMATED_CHARACTERS = 72
"""Only this many characters are rated, because the time grows quadratically and a strong prefix makes a strong
password."""
_THREADS = 2
_MAX_CALLS = 500

# A window begins with its first failure and is never extended. Attempts that the throttle refuses are not counted.
_BLOCKED = """
    select max(f.window_started_at + $3 - now())
    from unnest($1::text[], $2::int[]) as k (key, most)
    join login_failures f on f.key = k.key
    where f.failures >= k.most and f.window_started_at + $3 > now()
"""

# Sorted, so that concurrent statements lock shared rows in the same order.
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


_MAX_NETWORKS = 20
"""Networks remembered per name. This bounds the additional guesses allowed from known addresses."""


@dataclass(frozen=True, slots=True)
class Strength:
    score: int
    """0: guessed within 1,000 attempts; 1: within a million; 2: 100 million; 3: 10 billion; 4: more."""
    reason: str
    """A sentence that explains why the password is weak; empty if there is none."""


def strength(password: str, *, name: str) -> Strength:
    """Rate the password with zxcvbn, which knows common passwords, words, repetitions, keyboard patterns and dates."""
    # Imported here: the import takes 14 MB and 0.2 s, and few processes ever set a password.
    from zxcvbn import zxcvbn  # noqa: PLC0415 as above

    found = zxcvbn(password[:_ESTIMATED_CHARACTERS], user_inputs=[name, "queryserver"])
    return Strength(found["score"], found["feedback"]["warning"] or "")


class Passwords:
    """Hashes passwords with argon2id. Each call takes tens of milliseconds in one of two threads.

    Raises LoginBackendUnavailable if 500 calls are already in progress or a call takes longer than 10 s.
    """

    # OWASP's recommendation for argon2id. RFC 9106 suggests 64 MiB and four lanes, which keeps all CPUs busy for 110 ms
    # per login here: almost a minute when 500 people log in at nine o'clock.
    hasher: ClassVar = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._threads = LimitedThreads("passwords", threads=_THREADS, max_waiting=_MAX_CALLS - _THREADS)
        self.close = self._threads.close
        self._hasher = hasher or self.hasher
        # Verified for unknown users, so that their logins take as long as those of known users.
        self._dummy_hash = self._hasher.hash("nobody's password")

    async def hash(self, password: str) -> str:
        return str(await self._in_thread(lambda: self._hasher.hash(password)))

    async def strength(self, password: str, *, name: str) -> Strength:
        """Rate how hard the password is to guess for an attacker who knows the user name."""
        return cast("Strength", await self._in_thread(lambda: strength(password, name=name)))

    async def verify(self, password_hash: str | None, password: str) -> bool:
        """Return whether the password matches the hash. Takes equally long, and returns False, if the hash is None."""

        def matches() -> bool:
            try:
                return self._hasher.verify(password_hash or self._dummy_hash, password)
            except (VerificationError, InvalidHashError):
                return False

        return await self._in_thread(matches) is True and password_hash is not None

    def is_outdated(self, password_hash: str) -> bool:
        """Return whether the hash was created with outdated parameters."""
        return self._hasher.check_needs_rehash(password_hash)

    async def _in_thread(self, work: Callable[[], object]) -> object:
        try:
            return await self._threads.call(work)
        except TimeoutError:
            raise LoginBackendUnavailable("Too many concurrent logins.") from None


class LoginThrottle:
    """Counts failures by name, by address and by both, across all servers. Unknown names are treated like known names.

    An address from which the user has logged in within 30 days has its own limit for that user. Failures from there do
    not count toward the limit of the name, and the limit of the name does not apply there. So guesses by other clients
    lock the user out of new addresses only. The number of guesses for a name stays bounded: `per_user` from all unknown
    addresses together, and `per_user_and_address` from each of the few known addresses.

    IPv6 addresses are counted by /64 network, because a client with such a network never runs out of addresses.
    Spellings that a directory may accept for the same name are counted together. Known addresses belong to the exact
    name, so that logins as `aná` do not evict the addresses of `ana`. The database stores only digests. All calls raise
    DatabaseUnavailable.
    """

    def __init__(self, database: Database, limits: AuthSettings) -> None:
        self._database = database
        self._limits = limits

    async def require_free(self, username_key: str, address: str) -> None:
        """Raise LoginThrottled if a limit is reached."""
        await self._refuse(_BLOCKED, username_key, address)

    async def count(self, username_key: str, address: str) -> None:
        """Count a failure. Raises LoginThrottled if concurrent attempts have already used up the limit.

        The database counts concurrent attempts one after another, so attempts above the limit are detected.
        """
        await self._refuse(_ADD, username_key, address)

    async def succeeded(self, username_key: str, address: str) -> None:
        """Record a successful login: reset the name's failures at this address and remember the address as known."""
        await self._database.execute(
            "delete from login_failures where key = $1", _user_and_address_key(username_key, address)
        )
        try:
            ip_address(address)
        except ValueError:  # `unknown` if no trusted proxy reports the address
            return
        name = _digest(username_key)
        async with self._database.transaction() as connection:
            await connection.execute(
                "insert into login_networks (name, network) values ($1, $2)"
                " on conflict (name, network) do update set last_login_at = now()",
                name,
                _network(address),
            )
            await connection.execute(
                "delete from login_networks where name = $1 and network not in ("
                " select network from login_networks where name = $1 order by last_login_at desc, network limit $2)",
                name,
                _MAX_NETWORKS,
            )

    async def unlock(self, username_key: str) -> None:
        """Reset a name's failures at all addresses. Failures by address, over all names, still count."""
        key = _user_key(username_key)
        await self._database.execute(
            "delete from login_failures where key = $1 or starts_with(key, $2)", key, f"{key} "
        )

    async def _refuse(self, query: str, username_key: str, address: str) -> None:
        limits = await self._keys(username_key, address)
        arguments = (list(limits), list(limits.values()), self._limits.login_window)
        if limits and (wait := await self._database.value(query, *arguments)) is not None:
            raise LoginThrottled("Too many failed logins. Try again later.", retry_after=wait)

    async def _keys(self, username_key: str, address: str) -> Mapping[str, int]:
        """Return the counter keys that apply to the attempt, and their limits."""
        limits, network = self._limits, _network(address)
        every = {f"address {network}": limits.login_failures_per_address}
        # The query runs whether or not the user exists, so response times do not reveal which names exist (Rule T15).
        is_known = limits.login_failures_per_user and await self._database.value(
            "select exists (select from login_networks"
            " where name = $1 and network = $2 and last_login_at > now() - interval '30 days')",
            _digest(username_key),
            network,
        )
        if is_known:
            every[_user_and_address_key(username_key, address)] = (
                limits.login_failures_per_user_and_address or limits.login_failures_per_user
            )
        else:
            every[_user_and_address_key(username_key, address)] = limits.login_failures_per_user_and_address
            every[_user_key(username_key)] = limits.login_failures_per_user
        return {key: most for key, most in every.items() if most}


def _user_key(username_key: str) -> str:
    """Return the counter key of a name, without case and accents, whatever the case rule.

    Otherwise, each spelling of a name would allow additional guesses.
    """
    name = username_key
    for _ in range(2):  # case folding can produce combining marks, and decomposition can produce capitals
        name = unicodedata.normalize("NFKD", name).casefold()
    letters = (letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter))
    return f"user {_digest(''.join(letters))}"


def _user_and_address_key(username_key: str, address: str) -> str:
    return f"{_user_key(username_key)} {_network(address)}"


def _network(address: str) -> str:
    return _digest(network_of(address))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

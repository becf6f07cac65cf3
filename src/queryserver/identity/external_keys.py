"""The keys of another issuer, remembered by this process (Contract platform 3.9 rule 3)."""

import asyncio
import binascii
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Protocol, Self, cast
from urllib.parse import urlsplit

import orjson
import structlog
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers
from cryptography.hazmat.primitives.hashes import SHA256

from queryserver.errors.base import KeyServerUnavailable
from queryserver.errors.statements import EngineUnavailable
from queryserver.platform.addresses import AddressRules
from queryserver.platform.metrics import UNMEASURED, AccountMetrics
from queryserver.platform.outbound import HttpExchanges, HttpRequest
from queryserver.platform.settings.sections import LOOPBACK, Network

# Certificates of the signer (`x5c`), which nobody here looks at, make headers of several kilobytes.
_MOST_HEADER_CHARACTERS = 16 * 1024
_HEADERS_REMEMBERED = 256


def algorithm_of(token: str) -> object:
    """What a token says its algorithm is; None without a header that can be read."""
    segment, dot, _ = token.partition(".")
    return header_of(segment).get("alg") if dot else None


@lru_cache(_HEADERS_REMEMBERED)
def header_of(segment: str) -> Mapping[str, Any]:
    """The header in the first part of a token; empty when it is none. Tokens of one issuer share theirs."""
    return (_object(segment) or {}) if len(segment) <= _MOST_HEADER_CHARACTERS else {}


def claims_of(segment: str) -> Mapping[str, Any] | None:
    """The claims in the second part; None when they are no JSON object."""
    return _object(segment)


def decoded(segment: str) -> bytes:
    """The bytes of one part. Raises ValueError for what is not base64url without padding."""
    if "=" in segment or not segment.isascii():
        message = "is not base64url"
        raise ValueError(message)
    text = segment + "=" * (-len(segment) % 4)
    content = urlsafe_b64decode(text)
    # The decoder passes over what does not belong there: two texts would be one token.
    if len(content) != len(segment) * 3 // 4:
        message = "is not base64url"
        raise ValueError(message)
    return content


def _object(segment: str) -> Mapping[str, Any] | None:
    try:
        value: object = orjson.loads(decoded(segment))
    except (binascii.Error, ValueError):
        return None
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else None


_LEAST_BITS = 2048
# What OpenSSL refuses to work with; a check with a key of 16384 bits takes a millisecond.
_MOST_BITS = 16384
_MOST_KEYS = 1000


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """One public key. Two are equal when their numbers and their id are."""

    kid: str | None
    modulus: int = field(repr=False)
    exponent: int = field(repr=False)
    _key: RSAPublicKey = field(repr=False, compare=False)

    def has_signed(self, content: bytes, signature: bytes) -> bool:
        """Whether this is an RS256 signature of the content, made with this key."""
        try:
            self._key.verify(signature, content, PKCS1v15(), SHA256())
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class KeySet:
    """The usable keys of a document."""

    keys: tuple[VerifyingKey, ...]

    @classmethod
    def parse(cls, document: bytes) -> Self:
        """Keys for RS256 of at least 2048 bits; others are passed over. Raises ValueError: no JWKS document."""
        content: object = orjson.loads(document)
        entries = cast("dict[str, object]", content).get("keys") if isinstance(content, dict) else None
        if not isinstance(entries, list):
            message = "has no list of keys"
            raise ValueError(message)  # noqa: TRY004 Pydantic reports ValueError as a problem of the value
        return cls(tuple(_usable(cast("list[object]", entries)[:_MOST_KEYS])))

    def find(self, kid: str | None) -> tuple[VerifyingKey, ...]:
        """The keys of that id; without one the only key that there is."""
        if kid is None:
            return self.keys if len(self.keys) == 1 else ()
        return tuple(key for key in self.keys if key.kid == kid)


def _usable(entries: list[object]) -> Iterator[VerifyingKey]:
    for entry in entries:
        key = _key(cast("Mapping[str, Any]", entry)) if isinstance(entry, dict) else None
        if key is not None:
            yield key


def _key(entry: Mapping[str, Any]) -> VerifyingKey | None:
    if entry.get("kty") != "RSA" or entry.get("use", "sig") != "sig" or entry.get("alg", "RS256") != "RS256":
        return None
    kid, modulus, exponent = entry.get("kid"), _number(entry.get("n")), _number(entry.get("e"))
    if not isinstance(kid, str | None) or not _LEAST_BITS <= modulus.bit_length() <= _MOST_BITS:
        return None
    try:
        return VerifyingKey(kid, modulus, exponent, RSAPublicNumbers(exponent, modulus).public_key())
    except (ValueError, UnsupportedAlgorithm):
        return None


def _number(text: object) -> int:
    """The number of a Base64urlUInt (RFC 7518); 0 when it is none."""
    try:
        return int.from_bytes(decoded(text.rstrip("="))) if isinstance(text, str) else 0
    except ValueError:
        return 0


log = structlog.get_logger(__name__)

_MOST_BYTES = 1024 * 1024


class NoKeys(Exception):
    """No key server gave a usable answer."""


class KeySource(Protocol):
    """Gives the keys as they are now."""

    async def fetch(self) -> KeySet:
        """Raises NoKeys."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


class KeyServers:
    """See KeySource: asks a list of addresses, first the one that answered last. `ca`: authorities trusted besides."""

    def __init__(self, urls: Sequence[str], *, rules: AddressRules, ca: Path | None, timeout_s: float) -> None:
        self._urls = list(urls)
        self._timeout_s = timeout_s
        self._secured = HttpExchanges(rules, authorities=ca)
        # What a name means is decided by others: keys in the clear come from this machine or not at all.
        self._plain = HttpExchanges(replace(rules, allowed=tuple(_loopback(rules.allowed)) or _NOWHERE))

    async def fetch(self) -> KeySet:
        """The keys of the first address that answers as it should, each in its time. Raises NoKeys."""
        for url in list(self._urls):
            try:
                keys = await self._from(url)
            except (EngineUnavailable, ValueError, OSError) as error:
                reason = error.message if isinstance(error, EngineUnavailable) else str(error)
                log.warning("key server gives no keys", host=urlsplit(url).hostname, reason=reason)
            else:
                self._urls.sort(key=lambda one: one != url)
                return keys
        raise NoKeys

    async def aclose(self) -> None:
        """Close connections."""
        for exchanges in (self._secured, self._plain):
            await exchanges.__aexit__(None, None, None)

    async def _from(self, url: str) -> KeySet:
        """Raises EngineUnavailable, ValueError (no such document), OSError (the file of authorities)."""
        exchanges = self._secured if urlsplit(url).scheme == "https" else self._plain
        asked = HttpRequest(
            url, headers={"Accept": "application/json"}, max_bytes=_MOST_BYTES, within_s=self._timeout_s
        )
        answered = await exchanges.send(asked)
        if answered.status != 200:
            message = f"it answers {answered.status}"
            raise ValueError(message)
        keys = KeySet.parse(answered.body)
        if not keys.keys:
            log.warning("key server has no usable key", host=urlsplit(url).hostname)
        return keys


# An empty list would allow everything.
_NOWHERE: tuple[Network, ...] = (ip_network("255.255.255.255/32"),)


def _loopback(allowed: Sequence[Network]) -> Iterator[Network]:
    """What of the loopback addresses is allowed; an empty list allows all."""
    for network in LOOPBACK:
        if not allowed:
            yield network
        for one in allowed:
            if one.version == network.version and one.overlaps(network):
                yield max(one, network, key=lambda each: each.prefixlen)


# Keys that are due to be fetched again serve on while a key server is slow; longer nobody waits for it.
_PATIENCE_S = 1.0
# Without any keys every call would ask again, one after the other.
_PAUSE_WITHOUT_KEYS_S = 1.0


@dataclass(frozen=True, slots=True)
class CacheTimes:
    """In seconds; see `desktop.auth.jwt`."""

    cache_s: float = 3600
    refetch_floor_s: float = 30
    max_stale_s: float = 86400


class KeyCache:
    """Fetches when it has to, never twice at once. To be closed by its owner."""

    def __init__(
        self,
        source: KeySource,
        times: CacheTimes,
        *,
        clock: Callable[[], float] = time.monotonic,
        metrics: AccountMetrics = UNMEASURED,
    ) -> None:
        self._source = source
        self._metrics = metrics
        self._times = times
        self._clock = clock
        self._keys: KeySet | None = None
        self._known: frozenset[VerifyingKey] = frozenset()
        self._fetched_at = 0.0
        self._failed_at: float | None = None
        self._unknown_at: float | None = None
        self._flight: asyncio.Task[bool] | None = None

    def still_good(self, key: VerifyingKey) -> bool:
        """Whether a key is in the set, and the set needs no fetch now: a call that need not wait."""
        return key in self._known and self._clock() - self._fetched_at < self._times.cache_s

    async def find(self, kid: str | None) -> tuple[VerifyingKey, ...]:
        """The keys of that id, none when it is unknown; an unknown one may cause a fetch.

        Raises KeyServerUnavailable: there are no keys to judge by.
        """
        was_fetched = await self._refreshed()
        found = self._usable().find(kid)
        if found:
            return found
        now = self._clock()
        if was_fetched:
            self._unknown_at = now
            return ()
        if self._flight is None and _within(self._unknown_at, now, self._times.refetch_floor_s):
            return ()
        if self._flight is None:
            self._unknown_at = now
        await self._fetch()
        return self._usable().find(kid)

    async def aclose(self) -> None:
        """Give up a fetch under way, close connections."""
        if self._flight is not None:
            self._flight.cancel()
            await asyncio.wait([self._flight])
        await self._source.aclose()

    async def _refreshed(self) -> bool:
        """Fetch keys that are missing or due; whether they are new."""
        now = self._clock()
        if self._keys is not None and now - self._fetched_at < self._times.cache_s:
            return False
        has_keys = self._has_usable()
        pause_s = self._times.refetch_floor_s if has_keys else min(_PAUSE_WITHOUT_KEYS_S, self._times.refetch_floor_s)
        if self._flight is None and _within(self._failed_at, now, pause_s):
            return False
        return await self._fetch(patience_s=_PATIENCE_S if has_keys else None)

    async def _fetch(self, *, patience_s: float | None = None) -> bool:
        """Wait for the fetch under way, or for one that begins now; whether new keys came in that time."""
        flight = self._flight
        if flight is None:
            flight = self._flight = asyncio.create_task(self._fly(), name="key-fetch")
        # Whoever waits may leave; the fetch is for all.
        done, _ = await asyncio.wait([flight], timeout=patience_s)
        return bool(done) and flight.result()

    async def _fly(self) -> bool:
        try:
            keys = await self._source.fetch()
        except NoKeys:
            self._failed_at = self._clock()
            self._metrics.keys_fetched("failed")
            return False
        else:
            self._keys, self._known = keys, frozenset(keys.keys)
            self._fetched_at, self._failed_at = self._clock(), None
            self._metrics.keys_fetched("ok")
            log.info("keys fetched", keys=len(keys.keys))
            return True
        finally:
            self._flight = None

    def _has_usable(self) -> bool:
        """Whether there are keys that may be used, be they due or not."""
        longest = max(self._times.cache_s, self._times.max_stale_s)
        return self._keys is not None and self._clock() - self._fetched_at <= longest

    def _usable(self) -> KeySet:
        if self._keys is None or not self._has_usable():
            raise KeyServerUnavailable("The keys of the token's issuer cannot be had. Try again later.")
        return self._keys


def _within(moment: float | None, now: float, seconds: float) -> bool:
    return moment is not None and now - moment < seconds

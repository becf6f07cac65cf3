"""The verification keys of an external issuer, cached in this process (Contract platform 3.9 rule 3)."""

import asyncio
import binascii
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

import orjson
import structlog
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers
from cryptography.hazmat.primitives.hashes import SHA256

from queryserver import errors
from queryserver.identity.issuer_http import IssuerHttp
from queryserver.platform.addresses import AddressRules
from queryserver.platform.http_client import HttpRequest
from queryserver.platform.metrics import NO_METRICS, Metrics
from queryserver.platform.settings.desktop import JwtSettings

# Allows several kilobytes, because a header may contain the signer's certificates (`x5c`), which are ignored.
_MAX_HEADER_CHARACTERS = 16 * 1024
_MAX_CACHED_HEADERS = 256


def algorithm_of(token: str) -> object:
    """Return the algorithm in a token's header; None if the header is missing or unreadable."""
    segment, dot, _ = token.partition(".")
    return header_of(segment).get("alg") if dot else None


@lru_cache(_MAX_CACHED_HEADERS)
def header_of(segment: str) -> Mapping[str, Any]:
    """Decode the header segment of a token; empty if invalid. Cached, because an issuer's tokens share their header."""
    return (object_of(segment) or {}) if len(segment) <= _MAX_HEADER_CHARACTERS else {}


def decoded(segment: str) -> bytes:
    """Decode a token segment. Raises ValueError unless it is base64url without padding."""
    if "=" in segment or not segment.isascii():
        raise ValueError("is not base64url")
    text = segment + "=" * (-len(segment) % 4)
    content = urlsafe_b64decode(text)
    # The decoder skips invalid characters, so without this check several strings would decode to the same token.
    if len(content) != len(segment) * 3 // 4:
        raise ValueError("is not base64url")
    return content


def object_of(segment: str) -> Mapping[str, Any] | None:
    """Decode a token segment that contains JSON, such as the claims; None if it is not a JSON object."""
    try:
        value: object = orjson.loads(decoded(segment))
    except (binascii.Error, ValueError):
        return None
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else None


_MIN_BITS = 2048
# OpenSSL rejects larger keys; verifying a signature with a 16384-bit key takes a millisecond.
_MAX_BITS = 16384
_MAX_KEYS = 1000


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A public key; compared by key id, modulus and exponent."""

    kid: str | None
    modulus: int = field(repr=False)
    exponent: int = field(repr=False)
    _key: RSAPublicKey = field(repr=False, compare=False)

    def has_signed(self, content: bytes, signature: bytes) -> bool:
        try:
            self._key.verify(signature, content, PKCS1v15(), SHA256())
        except InvalidSignature:
            return False
        return True


Keys: TypeAlias = tuple[VerifyingKey, ...]


def keys_in(document: bytes) -> Keys:
    """Read the RS256 keys of at least 2048 bits from a JWKS document; skip all others.

    Raises ValueError if it is not a JWKS document.
    """
    content: object = orjson.loads(document)
    entries = cast("dict[str, object]", content).get("keys") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise ValueError("the document has no list of keys")  # noqa: TRY004 a malformed document is a bad value
    listed = cast("list[object]", entries)[:_MAX_KEYS]
    keys = (_key(cast("Mapping[str, Any]", one)) for one in listed if isinstance(one, dict))
    return tuple(key for key in keys if key is not None)


def keys_named(keys: Keys, kid: str | None) -> Keys:
    """Return the keys with the id `kid`. If `kid` is None, return the only key, or none if there are several."""
    if kid is None:
        return keys if len(keys) == 1 else ()
    return tuple(key for key in keys if key.kid == kid)


def _key(entry: Mapping[str, Any]) -> VerifyingKey | None:
    if entry.get("kty") != "RSA" or entry.get("use", "sig") != "sig" or entry.get("alg", "RS256") != "RS256":
        return None
    kid, modulus, exponent = entry.get("kid"), _number(entry.get("n")), _number(entry.get("e"))
    if not isinstance(kid, str | None) or not _MIN_BITS <= modulus.bit_length() <= _MAX_BITS:
        return None
    try:
        return VerifyingKey(kid, modulus, exponent, RSAPublicNumbers(exponent, modulus).public_key())
    except (ValueError, UnsupportedAlgorithm):
        return None


def _number(text: object) -> int:
    try:
        return int.from_bytes(decoded(text.rstrip("="))) if isinstance(text, str) else 0
    except ValueError:
        return 0


log = structlog.get_logger(__name__)

_MAX_BYTES = 1024 * 1024


class KeyServers:
    """Fetches key sets, trying the server that last succeeded first. `ca` contains additional trusted CAs."""

    def __init__(self, urls: Sequence[str], *, rules: AddressRules, ca: Path | None, timeout_s: float) -> None:
        self._urls = list(urls)
        self._timeout_s = timeout_s
        self._http = IssuerHttp(rules, ca=ca)

    async def fetch(self) -> Keys | None:
        """Fetch keys from the first server that returns a key set; None if all fail. The timeout applies per server."""
        for url in list(self._urls):
            try:
                keys = await self._fetch_from(url)
            except (errors.EngineUnavailable, ValueError, OSError) as error:
                reason = error.message if isinstance(error, errors.EngineUnavailable) else str(error)
                log.warning("key server request failed", host=urlsplit(url).hostname, reason=reason)
            else:
                self._urls.sort(key=lambda one: one != url)
                return keys
        return None

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _fetch_from(self, url: str) -> Keys:
        """Fetch the keys from one server.

        Raises EngineUnavailable, ValueError (a status other than 200, or no JWKS document), OSError (unusable CA file).
        """
        request = HttpRequest(
            url, headers={"Accept": "application/json"}, max_bytes=_MAX_BYTES, within_s=self._timeout_s
        )
        answer = await self._http.send(request)
        if answer.status != 200:
            raise ValueError(f"HTTP status {answer.status}")
        keys = keys_in(answer.body)
        if not keys:
            log.warning("key server returned no usable keys", host=urlsplit(url).hostname)
        return keys


# If stale keys are available, calls wait no longer than this for a fetch, then use the stale keys.
_FETCH_WAIT_S = 1.0
# If there are no keys, fetches after a failure are at least this far apart.
_PAUSE_WITHOUT_KEYS_S = 1.0


@dataclass(slots=True, eq=False)
class KeyCache:
    """Caches the source's keys. Fetches them when they are missing or stale, one fetch at a time. Close it after use.

    The settings define the lifetimes and the minimum interval between fetches.
    """

    source: KeyServers
    settings: JwtSettings
    clock: Callable[[], float] = time.monotonic
    metrics: Metrics = NO_METRICS
    _keys: Keys | None = field(default=None, init=False)
    _known: frozenset[VerifyingKey] = field(default=frozenset(), init=False)
    _fetched_at: float = field(default=0.0, init=False)
    _failed_at: float | None = field(default=None, init=False)
    _unknown_at: float | None = field(default=None, init=False)
    _fetching: "asyncio.Task[bool] | None" = field(default=None, init=False)

    def is_fresh(self, key: VerifyingKey) -> bool:
        """Return whether the key is cached and the cache is fresh."""
        return key in self._known and self.clock() - self._fetched_at < self.settings.cache_s

    async def find(self, kid: str | None) -> Keys:
        """Return the keys with that id, possibly none. An unknown id may trigger a fetch.

        Raises KeyServerUnavailable if there are no keys at all.
        """
        was_fetched = await self._refreshed()
        found = keys_named(self._usable(), kid)
        if found:
            return found
        now = self.clock()
        if was_fetched:
            self._unknown_at = now
            return ()
        if self._fetching is None and _is_recent(self._unknown_at, now, self.settings.refetch_floor_s):
            return ()
        if self._fetching is None:
            self._unknown_at = now
        await self._fetch()
        return keys_named(self._usable(), kid)

    async def aclose(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
        await self.source.aclose()

    async def _refreshed(self) -> bool:
        """Fetch keys if they are missing or stale. Returns whether new keys arrived."""
        now = self.clock()
        if self._keys is not None and now - self._fetched_at < self.settings.cache_s:
            return False
        has_keys = self._has_usable()
        pause_s = (
            self.settings.refetch_floor_s if has_keys else min(_PAUSE_WITHOUT_KEYS_S, self.settings.refetch_floor_s)
        )
        if self._fetching is None and _is_recent(self._failed_at, now, pause_s):
            return False
        return await self._fetch(wait_s=_FETCH_WAIT_S if has_keys else None)

    async def _fetch(self, *, wait_s: float | None = None) -> bool:
        """Wait for the running fetch, or start one. Returns whether new keys arrived within `wait_s`, if given."""
        fetching = self._fetching
        if fetching is None:
            fetching = self._fetching = asyncio.create_task(self._fetch_now(), name="key-fetch")
        # A waiting call may be canceled; the fetch continues, because other calls wait for it too.
        done, _ = await asyncio.wait([fetching], timeout=wait_s)
        return bool(done) and fetching.result()

    async def _fetch_now(self) -> bool:
        try:
            keys = await self.source.fetch()
        finally:
            self._fetching = None
        if keys is None:
            self._failed_at = self.clock()
            self.metrics.key_fetches.labels("failed").inc()
            return False
        self._keys, self._known = keys, frozenset(keys)
        self._fetched_at, self._failed_at = self.clock(), None
        self.metrics.key_fetches.labels("ok").inc()
        log.info("keys fetched", keys=len(keys))
        return True

    def _has_usable(self) -> bool:
        """Return whether there are keys, fresh or stale, that may still be used."""
        longest = max(self.settings.cache_s, self.settings.max_stale_s)
        return self._keys is not None and self.clock() - self._fetched_at <= longest

    def _usable(self) -> Keys:
        if self._keys is None or not self._has_usable():
            raise errors.KeyServerUnavailable("The keys of the token issuer could not be loaded. Try again later.")
        return self._keys


def _is_recent(moment: float | None, now: float, max_age_s: float) -> bool:
    return moment is not None and now - moment < max_age_s

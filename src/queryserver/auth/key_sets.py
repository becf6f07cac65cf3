"""Public keys of another issuer, as a JWKS document tells them (RFC 7517; Contract platform 3.9 rule 2)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, cast

import orjson
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers
from cryptography.hazmat.primitives.hashes import SHA256

from queryserver.auth.compact import decoded

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
            raise ValueError(message)  # noqa: TRY004 a bad document, as for bad JSON
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

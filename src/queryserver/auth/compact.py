"""The compact form of signed tokens (RFC 7515): three parts of base64url. Nothing here is believed yet."""

import binascii
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

import orjson

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

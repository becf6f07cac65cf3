"""Shared Key authorization of Azure storage ("Authorize with Shared Key", storage services REST reference)."""

import base64
import hashlib
import hmac
from collections.abc import Iterable, Mapping

_SIGNED = (
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
)


def signature(
    key: bytes, account: str, method: str, path: str, query: Iterable[tuple[str, str]], headers: Mapping[str, str]
) -> str:
    """Base64 of the HMAC-SHA256. `path` is percent-encoded as sent, `query` decoded; header names are in lower case."""
    text = string_to_sign(account, method, path, query, headers)
    return base64.b64encode(hmac.digest(key, text.encode(), hashlib.sha256)).decode()


def string_to_sign(
    account: str, method: str, path: str, query: Iterable[tuple[str, str]], headers: Mapping[str, str]
) -> str:
    """What is signed, one item per line. A length of 0 is signed as the empty text."""
    fixed = [headers.get(name, "") for name in _SIGNED]
    if headers.get("content-length") == "0":
        fixed[_SIGNED.index("content-length")] = ""
    own = sorted((name, value.strip()) for name, value in headers.items() if name.startswith("x-ms-"))
    values: dict[str, list[str]] = {}
    for name, value in query:
        values.setdefault(name.lower(), []).append(value)
    return "\n".join(
        [
            method,
            *fixed,
            *(f"{name}:{value}" for name, value in own),
            f"/{account}{path}",
            *(f"{name}:{','.join(sorted(values[name]))}" for name in sorted(values)),
        ]
    )

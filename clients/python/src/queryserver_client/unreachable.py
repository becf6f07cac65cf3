"""Describes why a server cannot be reached: the reason, the time that was waited, and the scheme to use instead."""

import asyncio
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import httpx

_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"})
"""Reasons that OpenSSL releases report if the server does not use TLS."""
_HANDSHAKE_WITHIN_S = 2.0
_WAITED: Mapping[type[httpx.TimeoutException], tuple[str, str]] = {
    httpx.ConnectTimeout: ("connect", "no connection within {:g} s"),
    httpx.ReadTimeout: ("read", "no response within {:g} s"),
    httpx.WriteTimeout: ("write", "the request could not be sent within {:g} s"),
}
"""By exception: the name of the timeout in a request of httpx, and the message."""


def reason_of(error: httpx.HTTPError | httpx.StreamError) -> str:
    """Return why a request failed, with the number of seconds if it timed out. Never empty."""
    if isinstance(error, httpx.TimeoutException) and type(error) in _WAITED:
        name, text = _WAITED[type(error)]
        waited_s = _timeouts(error).get(name)
        return text.format(waited_s) if waited_s is not None else str(error) or text.partition(" within")[0]
    if isinstance(error, httpx.ConnectError):
        # httpcore only reports "All connection attempts failed", whatever the reason.
        causes = [one for one in _causes(error) if isinstance(one, OSError) and one.errno]
        if causes and _tls_error(error) is None:
            number = causes[-1].errno or 0
            # asyncio replaces the text of the number by that of the call. Those of name resolution are negative.
            return os.strerror(number) if number > 0 else causes[-1].strerror or str(error)
    return str(error).rstrip(".") or type(error).__name__


def tls_refusal(error: httpx.ConnectError) -> str | None:
    """Return why a TLS connection is permanently impossible; None if the failure may be temporary."""
    cause = _tls_error(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the certificate was not accepted: {cause.verify_message}"
    if cause is not None and cause.reason in _NO_TLS:
        return "the server does not use TLS; use an http:// address (in a SQLAlchemy URL: ?scheme=http)"
    return None


async def requires_tls(url: str) -> bool:
    """Return whether the server at an http:// address accepts a TLS handshake. Sends nothing else; takes up to 2 s."""
    address = httpx.URL(url)
    context = ssl.create_default_context()
    # The handshake only detects TLS. No data follows, so it does not matter who holds the certificate.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError, ValueError, asyncio.TimeoutError):
        connected = asyncio.open_connection(address.host, address.port or 80, ssl=context)
        _, writer = await asyncio.wait_for(connected, _HANDSHAKE_WITHIN_S)
        writer.transport.abort()
        return True
    return False


TLS_REQUIRED = "the server requires TLS; use an https:// address (in a SQLAlchemy URL: without ?scheme=http)"


def _timeouts(error: httpx.HTTPError | httpx.StreamError) -> Mapping[str, Any]:
    try:
        return error.request.extensions.get("timeout", {})  # type: ignore[union-attr]
    except (RuntimeError, AttributeError):  # httpx raises RuntimeError if the error has no request
        return {}


def _tls_error(error: httpx.ConnectError) -> ssl.SSLError | None:
    causes = error.__cause__.args[:1] if error.__cause__ is not None else ()  # httpcore wraps the SSLError
    return next((one for one in causes if isinstance(one, ssl.SSLError)), None)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, outermost first. Of several addresses that failed, the last one is followed."""
    current: BaseException | None = error
    while current is not None:
        yield current
        several = getattr(current, "exceptions", ())  # an ExceptionGroup, which Python 3.10 does not have
        current = several[-1] if several else current.__cause__ or current.__context__

"""TLS towards engines, whose names are resolved before the connection is made."""

import ssl
from typing import Any

_PLAIN_TEXT = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
"""What OpenSSL 3.0, and from 3.2 on, calls an answer that is no TLS at all."""


class _NamedContext(ssl.SSLContext):
    """Expects the certificate of `server_name`, whatever address the driver says it connects to."""

    server_name = ""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,  # noqa: ARG002 an address
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        name = self.server_name
        return super().wrap_bio(incoming, outgoing, server_side=server_side, server_hostname=name, session=session)

    def wrap_socket(self, sock: Any, *_: Any, server_hostname: Any = None, **options: Any) -> ssl.SSLSocket:  # noqa: ARG002 as above
        return super().wrap_socket(sock, server_hostname=self.server_name, **options)


def client_tls(server_name: str, *, validate: bool = True, check_name: bool = True, ca: str = "") -> ssl.SSLContext:
    """What a client of `server_name` needs, for drivers that connect to an address.

    `ca` is PEM text of the authorities to trust, empty for those of the system. Without `validate` any certificate
    will do; without `check_name` one of any server of a trusted authority. Raises ValueError: `ca` is not PEM.
    """
    context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.server_name = server_name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = validate and check_name
    context.verify_mode = ssl.CERT_REQUIRED if validate else ssl.CERT_NONE
    if not validate:
        return context
    if not ca:
        context.load_default_certs()
        return context
    try:
        context.load_verify_locations(cadata=ca)
    except ssl.SSLError as error:
        message = "is not PEM text of certificates"
        raise ValueError(message) from error
    return context


_CAUSES = 10
NO_TLS = "it offers no TLS"


def no_connection(server: str, error: BaseException, *, reason: str = "") -> str:
    """What to tell of a connection that could not be made: with the reason where TLS is it, without any other.

    `reason` is what only the driver of that server can tell.
    """
    told = reason or _reason(error)
    return f"No connection to {server} could be made{': ' if told else ''}{told}."


def _reason(error: BaseException) -> str:
    """In the words of the TLS library, which names neither files nor addresses but those of the certificate."""
    cause: BaseException | None = error
    for _ in range(_CAUSES):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate was not accepted ({cause.verify_message.rstrip('.')})"
        if isinstance(cause, ssl.SSLError):
            return NO_TLS if cause.reason in _PLAIN_TEXT else "TLS could not be agreed on"
        cause = cause and (cause.__cause__ or cause.__context__)
    return ""

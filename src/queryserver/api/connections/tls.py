"""TLS connections that are counted before the handshake.

With asyncio's own TLS server, the protocol gets a connection only after the handshake, so connections that never finish
the handshake would not be counted. Neither would unread response bytes, which that server keeps in its own buffers.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from queryserver.api.connections.admission import Admission, Admissions

_RECORD_BYTES = 16 * 1024
"""Maximum payload of a TLS record."""
_WRITE_BYTES = 16 * _RECORD_BYTES


class TlsConnection(asyncio.Protocol, asyncio.Transport):
    """TLS layer between an asyncio transport and the protocol that `make_protocol` creates after the handshake.

    A connection is closed if its handshake takes longer than `handshake_s`; `failed` is called if a connection ends
    before the handshake has finished. Responses are encrypted as they are written, so all unsent bytes are in the
    buffer of the underlying transport. `close` sends close_notify without waiting for the client's (RFC 8446 §6.1).
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        admissions: Admissions,
        make_protocol: Callable[[Admission], asyncio.Protocol],
        *,
        handshake_s: float,
        failed: Callable[[], None],
    ) -> None:
        super().__init__()
        self._admissions = admissions
        self._make_protocol = make_protocol
        self._handshake_s = handshake_s
        self._failed = failed
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=True)
        self._protocol: asyncio.Protocol | None = None
        """None before the handshake and after the end of the connection."""
        self._is_closing = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._admission = self._admissions.admit(transport.get_extra_info("peername"))
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._handshake_s, transport.abort)
        if self._admission.refusal is not None:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._admission.leave()
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(exc)
        elif self._admission.refusal is None:
            self._failed()

    def data_received(self, data: bytes) -> None:
        self._received.write(data)
        try:
            if self._protocol is not None or self._complete_handshake():
                self._pass_on()
        except ssl.SSLError:  # not TLS, or an unsupported version: send the alert that OpenSSL has prepared
            self._send()
            self._transport.close()

    def _complete_handshake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._send()
        self._deadline.cancel()
        self._protocol = self._make_protocol(self._admission)
        self._protocol.connection_made(self)
        return True

    def _pass_on(self) -> None:
        """Decrypt all received data and pass it to the protocol in one call, because the protocol may pause reading."""
        pieces: list[bytes] = []
        has_ended = False
        with suppress(ssl.SSLWantReadError):
            while piece := self._tls.read(_RECORD_BYTES):
                pieces.append(piece)
            has_ended = True
        self._send()  # TLS protocol messages, such as key updates
        if pieces and self._protocol is not None:
            self._protocol.data_received(b"".join(pieces))
        if has_ended:
            self.close()

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._tls.context
        return self._tls if name == "ssl_object" else self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        while rest and not self.is_closing():
            rest = rest[self._tls.write(rest[:_WRITE_BYTES]) :]
            self._send()

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        self._is_closing = True
        with suppress(ssl.SSLError):  # prepares close_notify, and raises because the client's has not arrived
            self._tls.unwrap()
        self._send()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def _send(self) -> None:
        if self._to_send.pending:
            self._transport.write(self._to_send.read())

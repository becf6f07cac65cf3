"""What stands between a transport and asyncpg's protocol."""

import asyncio


class Tap(asyncio.Protocol):
    """Stands between the transport and asyncpg's protocol, and passes everything on."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def data_received(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

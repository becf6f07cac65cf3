"""SASL GSSAPI (RFC 4752), with the package `gssapi` of the extra `kerberos`."""

import asyncio
import importlib.util
from typing import Any

from queryserver.engines.hiveserver2.errors import LoginRefused

_NO_PROTECTION = b"\x01\0\0\0"


class Gssapi:
    """The login of the process's own ticket to `service/host`."""

    name = "GSSAPI"

    def __init__(self, service: str, host: str) -> None:
        self._gssapi: Any = importlib.import_module("gssapi")
        self._target = f"{service}@{host}"
        self._context: Any = None

    async def step(self, challenge: bytes | None) -> bytes:
        """The next token; ticket servers are asked in a thread."""
        try:
            return await asyncio.to_thread(self._step, challenge)
        except self._gssapi.exceptions.GSSError as error:
            raise LoginRefused("The Kerberos login failed.") from error

    def _step(self, challenge: bytes | None) -> bytes:
        if self._context is None:
            name = self._gssapi.Name(self._target, self._gssapi.NameType.hostbased_service)
            self._context = self._gssapi.SecurityContext(name=name, usage="initiate")
        if not self._context.complete:
            return self._context.step(challenge) or b""
        # The server offers layers of protection in one byte; thrift's frames need none.
        self._context.unwrap(challenge or b"")
        return self._context.wrap(_NO_PROTECTION, encrypt=False).message


def is_installed() -> bool:
    """Whether the extra `kerberos` is there."""
    return importlib.util.find_spec("gssapi") is not None

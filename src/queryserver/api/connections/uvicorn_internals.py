"""Isolates the undocumented parts of uvicorn that this service uses (ADR 80).

Uvicorn's documented hook is the HTTP class (`http` of its `Config`); its own class has no documented
hooks. This file uses these undocumented names:

- `HttpToolsProtocol`: the class that `http="httptools"` selects. Writing our own server would take about 500 lines. Its
  methods `on_url`, `on_header` and so on are called by httptools, which documents them.
- `on_response_complete`: called at the end of each response, including the responses that uvicorn itself
  sends, which applications do not see.
- `send_400_response`: called for input that is not HTTP. Uvicorn's own response is text, ours is JSON.
- `timeout_keep_alive_task`, `timeout_keep_alive`, `timeout_keep_alive_handler`: the timer of idle connections. Uvicorn
  starts it at the end of a response, but not when the rest of a request arrives after its response.
- `Config.load`, `Config.ssl`, `Config.http_protocol_class`: TLS starts after our own connection count (`tls.py`),
  so the listener must not start it.

`tests/unit/api/connections/test_uvicorn_internals.py` fails if any of these names changes.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class UvicornHttp(HttpToolsProtocol):
    """Uvicorn's protocol with two events for subclasses."""

    def response_ended(self) -> None:
        """Called after a response has been written, and the next pipelined request, if any, has been started."""

    def malformed(self, message: str) -> None:
        """Called if the input is not valid HTTP, or a method `on_…` has raised an error. The subclass must respond."""

    def await_next_request(self) -> None:
        """Close the connection if no byte of another request arrives within the idle time."""
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.response_ended()

    def send_400_response(self, msg: str) -> None:
        self.malformed(msg)


def load_without_tls(config: Config) -> ssl.SSLContext | None:
    """Load `config`, and return its TLS context, so that the listener does not start TLS."""
    config.load()
    context, config.ssl = config.ssl, None
    return context


def use_protocol(config: Config, make: Callable[..., asyncio.Protocol]) -> None:
    """Let `make` build each connection's protocol, from the arguments for uvicorn's class. `config` must be loaded."""
    config.http_protocol_class = cast("type[asyncio.Protocol]", make)

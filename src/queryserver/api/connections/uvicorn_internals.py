"""Isolates the undocumented parts of uvicorn that this service uses (ADR 80).

Uvicorn documents that the HTTP protocol class can be replaced (`http` in `Config`), but not how to extend its own
class. This module uses these undocumented names:

- `HttpToolsProtocol`: the class that `http="httptools"` selects. Our own class would take about 500 lines. Its methods
  `on_url`, `on_header` and so on are callbacks that httptools documents.
- `on_response_complete`: called at the end of each response, including those that uvicorn itself sends without the
  application.
- `send_400_response`: called for input that is not HTTP. Uvicorn responds in plain text, this service in JSON.
- `timeout_keep_alive_task`, `timeout_keep_alive`, `timeout_keep_alive_handler`: the timer of idle connections. Uvicorn
  starts the timer at the end of a response, but not if the rest of the request arrives after the response.
- `Config.load`, `Config.ssl`, `Config.http_protocol_class`: connections are counted before TLS (`admission.py`), so
  the listener must not start TLS.

`tests/unit/api/connections/test_uvicorn_internals.py` fails if any of these names changes.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class UvicornHttp(HttpToolsProtocol):
    """Uvicorn's protocol with two hooks for subclasses: `response_ended` and `malformed`."""

    def response_ended(self) -> None:
        """Called after a response has been written and the next pipelined request, if any, has been started."""

    def malformed(self, message: str) -> None:
        """Called if the input is not valid HTTP or an `on_…` callback has raised. The subclass must respond."""

    def await_next_request(self) -> None:
        """Start the idle timer, which closes the connection unless another request begins in time."""
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.response_ended()

    def send_400_response(self, msg: str) -> None:
        self.malformed(msg)


def load_without_tls(config: Config) -> ssl.SSLContext | None:
    """Load `config` and remove its TLS context, so that the listener does not start TLS. Return the context, if any."""
    config.load()
    context, config.ssl = config.ssl, None
    return context


def use_protocol(config: Config, make: Callable[..., asyncio.Protocol]) -> None:
    """Create each connection's protocol with `make`, which gets the arguments of uvicorn's protocol class.

    `config` must be loaded.
    """
    config.http_protocol_class = cast("type[asyncio.Protocol]", make)

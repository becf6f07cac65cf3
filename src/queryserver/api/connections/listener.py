"""How every port of this service speaks HTTP."""

import asyncio
from functools import partial
from typing import Any

from uvicorn.config import Config

from queryserver.api.connections.admission import ConnectionLimits
from queryserver.api.connections.http_connection import ConnectionGuard, HttpConnection
from queryserver.api.connections.tls import TlsConnection
from queryserver.api.connections.uvicorn_internals import load_without_tls, use_protocol
from queryserver.platform.metrics import ConnectionCounts
from queryserver.platform.settings.desktop import DesktopSettings

_KEEP_ALIVE_S = 75


def http_config(app: Any, desktop: DesktopSettings, **options: Any) -> Config:
    """Uvicorn's settings of a port, whose own ones are `options`. Call `guard_connections` before it is served."""
    return Config(
        app,
        http="httptools",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        ssl_certfile=desktop.ssl_certificate or None,
        ssl_keyfile=desktop.ssl_private_key or None,
        **options,
    )


def guard_connections(config: Config, limits: ConnectionLimits, metrics: ConnectionCounts) -> None:
    """Load `config`, and let it accept connections within `limits`. Raises OSError for certificates of no use."""
    guard = ConnectionGuard(limits, metrics)
    context = load_without_tls(config)

    def make(**of_server: Any) -> asyncio.Protocol:
        make_http = partial(HttpConnection, guard, **of_server)
        if context is None:
            return make_http()
        return TlsConnection(
            context,
            guard.admissions,
            make_http,
            handshake_s=limits.request_head_s,
            failed=partial(metrics.cut, "handshake"),
        )

    use_protocol(config, make)

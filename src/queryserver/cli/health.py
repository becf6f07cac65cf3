"""`health`: one request to the server that these settings describe, for container and service managers."""

import asyncio
import os
import re
import ssl
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from queryserver.cli.context import ConfigFile, run
from queryserver.errors.base import InvalidRequest
from queryserver.platform.settings.loading import SettingsReading, read_settings

app = typer.Typer()

_ALIVE, _READY = "/desktop/debug/is_alive", "/desktop/debug/is_ready"
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_ANY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 only compared
_BODY_BYTES = 4096
_USED = ("http_host", "http_port", "url_prefix", "ssl_certificate", "ssl_private_key")


class _Unhealthy(Exception):
    """The reason, for a person."""


@dataclass(frozen=True, slots=True)
class _Check:
    """One request."""

    host: str
    port: int
    is_tls: bool
    path: str

    @property
    def url(self) -> str:
        """For messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}{self.path}"

    async def run(self) -> None:
        """Raises _Unhealthy unless the answer is 200, OSError when there is none."""
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=_any_certificate(self.is_tls))
        try:
            writer.write(f"GET {self.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            found = _STATUS_LINE.match(head)
            if found is None:
                raise _Unhealthy("the answer is not HTTP.")
            if found[1] != b"200":
                body = (await reader.read(_BODY_BYTES)).decode(errors="replace").strip()
                raise _Unhealthy(f"status {found[1].decode()} {body}".strip())
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise _Unhealthy("the answer is not HTTP.") from None
        finally:
            # Waiting for the end of TLS could take longer than the request.
            writer.transport.abort()


@app.command("health")
def health(
    config: ConfigFile = None,
    ready: Annotated[bool, typer.Option("--ready", help="Request is_ready: database and results, too.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds for the whole request.", min=0.1, max=60)] = 3.0,
    host: Annotated[str | None, typer.Option(help="Address, if `serve` was given one.", show_default=False)] = None,
    port: Annotated[
        int | None, typer.Option(help="Port, if `serve` was given one.", min=1, max=65535, show_default=False)
    ] = None,
) -> None:
    """Exit 0 when the server of these settings is alive, else 1."""
    given: dict[str, Any] = {"desktop.http_host": host, "desktop.http_port": port}
    overrides = {key: value for key, value in given.items() if value is not None}
    reading = read_settings(config, os.environ, overrides=overrides, with_secrets=False)
    check = _check(reading, _READY if ready else _ALIVE)
    try:
        run(lambda: _within(timeout, check))
    except (_Unhealthy, OSError) as error:
        for line in _problems(reading):
            typer.echo(f"error {line}", err=True)
        typer.echo(f"{check.url}: {_reason(error, timeout)}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{check.url}: {'ready' if ready else 'alive'}")


def _check(reading: SettingsReading, path: str) -> _Check:
    desktop = reading.settings.desktop
    if not desktop.http_port:
        raise InvalidRequest("desktop.http_port is 0, so the port of the server is not known here: give --port.")
    host = desktop.http_host.strip("[]")
    is_tls = bool(desktop.ssl_certificate)
    return _Check(_ANY_ADDRESS.get(host, host), desktop.http_port, is_tls, desktop.url_prefix.rstrip("/") + path)


async def _within(seconds: float, check: _Check) -> None:
    async with asyncio.timeout(seconds):
        await check.run()


def _any_certificate(is_tls: bool) -> ssl.SSLContext | None:
    """No secret is sent, and the certificate names what clients call, not this address."""
    if not is_tls:
        return None
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _problems(reading: SettingsReading) -> list[str]:
    """What is wrong with the settings that the request is made of."""
    begins = tuple(f"{name}: " for name in (*(f"desktop.{key}" for key in _USED), reading.settings.sources.file))
    return [line for line in reading.problems if line.startswith(begins)]


def _reason(error: Exception, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} s."
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there."
    if isinstance(error, OSError):
        return f"no connection: {error.strerror or type(error).__name__}."
    return str(error)

"""Commands that check a server or a deployment: `health`, `doctor` and `is_worker_alive`."""

import asyncio
import os
import re
import ssl
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queryserver.cli.context import AsJson, ConfigFile, operator, print_json, printable, run, settings_of
from queryserver.errors.base import DatabaseUnavailable, InvalidRequest
from queryserver.platform.settings.loader import read_settings
from queryserver.platform.settings.tree import Settings

if TYPE_CHECKING:
    from queryserver.administration.doctor import Finding


app = typer.Typer()

_ALIVE, _READY = "/desktop/debug/is_alive", "/desktop/debug/is_ready"
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_ANY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 only compared
_BODY_BYTES = 4096
_USED = ("http_host", "http_port", "url_prefix", "ssl_certificate", "ssl_private_key")


class _Unhealthy(Exception):
    """The server is not healthy; the message states the reason."""


@app.command("health")
def health(
    config: ConfigFile = None,
    ready: Annotated[
        bool, typer.Option("--ready", help="Also check the database and the result store (is_ready).")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Time limit of the request in seconds.", min=0.1, max=60)] = 3.0,
    host: Annotated[
        str | None, typer.Option(help="Server address, if it was passed to `serve`.", show_default=False)
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Server port, if it was passed to `serve`.", min=1, max=65535, show_default=False)
    ] = None,
) -> None:
    """Exit with 0 if the server that these settings describe is alive, else with 1."""
    given: dict[str, Any] = {"desktop.http_host": host, "desktop.http_port": port}
    overrides = {key: value for key, value in given.items() if value is not None}
    reading = read_settings(config, os.environ, overrides=overrides, with_secrets=False)
    desktop = reading.settings.desktop
    if not desktop.http_port:
        raise InvalidRequest("desktop.http_port is 0, so the port of the server is unknown. Use --port.")
    address = desktop.http_host.strip("[]")
    address = _ANY_ADDRESS.get(address, address)
    is_tls = bool(desktop.ssl_certificate)
    path = desktop.url_prefix.rstrip("/") + (_READY if ready else _ALIVE)
    shown = f"[{address}]" if ":" in address else address
    url = f"{'https' if is_tls else 'http'}://{shown}:{desktop.http_port}{path}"
    try:
        run(lambda: _require_ok(address, desktop.http_port, path, is_tls=is_tls, within_s=timeout))
    except (_Unhealthy, OSError) as error:
        # Print only problems in settings that the request uses.
        begins = tuple(f"{name}: " for name in (*(f"desktop.{key}" for key in _USED), reading.settings.sources.file))
        for line in reading.problems:
            if line.startswith(begins):
                typer.echo(f"error {line}", err=True)
        typer.echo(f"{url}: {_reason(error, timeout)}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{url}: {'ready' if ready else 'alive'}")


async def _require_ok(host: str, port: int, path: str, *, is_tls: bool, within_s: float) -> None:
    """Request `path`. Raises _Unhealthy unless the status is 200; OSError or TimeoutError if there is no response."""
    context = None
    if is_tls:
        # No secret is sent, and the certificate is issued for the public host name, not for this address.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            found = _STATUS_LINE.match(head)
            if found is None:
                raise _Unhealthy("the response is not HTTP.")
            if found[1] != b"200":
                body = (await reader.read(_BODY_BYTES)).decode(errors="replace").strip()
                raise _Unhealthy(f"status {found[1].decode()} {body}".strip())
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise _Unhealthy("the response is not HTTP.") from None
        finally:
            # A clean close would wait for the TLS shutdown, which could take longer than the request.
            writer.transport.abort()


def _reason(error: Exception, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no response within {timeout:g} s."
    if isinstance(error, ConnectionRefusedError):
        return "connection refused."
    if isinstance(error, OSError):
        return f"connection failed: {error.strerror or type(error).__name__}."
    return str(error)


@app.command("doctor")
def doctor(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Examine the whole deployment and print problems with remedies. Exit with 1 if there is an error."""
    from queryserver.administration.doctor import State  # noqa: PLC0415 slow to import

    settings = settings_of(config)
    found = run(lambda: _examine(settings))
    count = Counter(one.state for one in found)
    if as_json:
        shown = [{"area": one.area, "state": one.state, "what": one.what, "to_do": one.to_do} for one in found]
        print_json({"errors": count[State.ERROR], "warnings": count[State.WARNING], "findings": shown})
    else:
        for one in found:
            typer.echo(f"{one.state.value:8}{one.area}: {printable(one.what)}")
            if one.to_do:
                typer.echo(f"        {printable(one.to_do)}")
        typer.echo(f"\n{count[State.ERROR]} errors, {count[State.WARNING]} warnings.")
    raise typer.Exit(1 if count[State.ERROR] else 0)


async def _examine(settings: Settings) -> "Sequence[Finding]":
    from queryserver.administration.examination import examine_deployment  # noqa: PLC0415 slow to import
    from queryserver.identity.model import User  # noqa: PLC0415 as above
    from queryserver.tasks.instances import examine_fleet  # noqa: PLC0415 as above

    return await examine_deployment(settings, User(id=0, username=operator(), is_admin=True), examine_fleet)


@app.command("is_worker_alive")
def is_worker_alive(
    config: ConfigFile = None,
    beat: Annotated[bool, typer.Option("--beat", help="Check for a beat instead of a worker.")] = False,
) -> None:
    """Exit with 0 if the service database has a record of a live worker on this host, else with 1.

    If the database does not respond, the exit code is 0, because restarting workers would not help.
    """
    from queryserver.platform.migrations import open_service_database  # noqa: PLC0415 slow to import
    from queryserver.platform.roles import Role  # noqa: PLC0415 slow to import
    from queryserver.tasks.instances import Instances  # noqa: PLC0415 slow to import

    settings, role = settings_of(config), Role.BEAT if beat else Role.WORKER
    heartbeat = timedelta(seconds=settings.desktop.task_server.heartbeat_s)

    async def lives() -> bool:
        async with open_service_database(settings) as database:
            return await Instances(database, heartbeat=heartbeat).lives_here(role)

    try:
        is_alive = run(lives)
    except DatabaseUnavailable as error:
        typer.echo(f"The state of the {role.value} is unknown: {error.message}", err=True)
        return
    typer.echo(f"{role.value} {'alive' if is_alive else 'not alive'}")
    raise typer.Exit(0 if is_alive else 1)

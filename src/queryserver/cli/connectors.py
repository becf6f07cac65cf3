"""Commands for stored connectors (Contract platform 12)."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queryserver.cli.context import AsJson, ConfigFile, NoHeader, administrate, print_json, print_listing
from queryserver.errors.base import InvalidParameter, QueryServerError
from queryserver.errors.statements import ConnectorRefused
from queryserver.identity.model import User
from queryserver.platform.text import parse_json

if TYPE_CHECKING:
    from queryserver.connectors.instances import InstanceView, StoredConnectors


app = typer.Typer(help="Manage stored connectors.", no_args_is_help=True)

_OPERATOR = User(id=0, username="(command line)", is_admin=True)


@app.command("list")
def list_connectors(config: ConfigFile = None, as_json: AsJson = False, no_header: NoHeader = False) -> None:
    """List all connectors."""

    async def work(connectors: "StoredConnectors") -> None:
        every = [_exported(one) for one in await connectors.visible(_OPERATOR)]
        header = ("ID", "NAME", "DIALECT", "INTERFACE", "STATE", "GROUPS")
        lines = (
            (
                one["id"],
                one["nice_name"],
                one["dialect"],
                one["interface"],
                "runs" if one["is_runnable"] else "not runnable",
                ",".join(one["groups"]),
            )
            for one in every
        )
        print_listing(every, header, lines, as_json=as_json, no_header=no_header)

    _administrate(config, work)


@app.command("export")
def export_connectors(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Print all connectors as JSON for `connector import`. Secrets are masked."""
    del as_json  # JSON is the only format

    async def work(connectors: "StoredConnectors") -> None:
        print_json([_exported(one) for one in await connectors.visible(_OPERATOR)])

    _administrate(config, work)


@app.command("import")
def import_connectors(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON file in the format of `connector export`.")],
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Update connectors that have an id and create the others. Masked secrets stay unchanged."""
    given_connectors = _read(file)

    async def work(connectors: "StoredConnectors") -> None:
        done = [await _import(connectors, one) for one in given_connectors]
        if as_json:
            print_json(done)
        else:
            for one in done:
                typer.echo(_summary(one), err="error" in one)
        if any("error" in one for one in done):
            raise typer.Exit(1)

    _administrate(config, work)


def _read(file: Path) -> list[dict[str, Any]]:
    """Read the connectors from a file. Raises InvalidParameter."""
    try:
        content: Any = parse_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidParameter(f"{file} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, QueryServerError) as error:
        raise InvalidParameter(f"{file} is not valid JSON.") from error
    every = content.get("connectors", [content]) if isinstance(content, dict) else content
    if not isinstance(every, list) or not all(isinstance(one, dict) for one in every):
        raise InvalidParameter(f"{file} does not contain connectors.")
    return every


async def _import(connectors: "StoredConnectors", connector: Mapping[str, Any]) -> dict[str, Any]:
    from queryserver.api.schemas.fields import parse  # noqa: PLC0415 slow to import
    from queryserver.api.schemas.requests.platform import ConnectorRequest  # noqa: PLC0415 slow to import
    from queryserver.api.v1.connector import submitted_connector  # noqa: PLC0415 slow to import

    name = str(connector.get("nice_name") or connector.get("id") or "")[:100]
    try:
        fields = parse(ConnectorRequest, {"connector": connector}).connector
        shown, is_new = await connectors.save(_OPERATOR, submitted_connector(fields))
    except QueryServerError as error:
        problems = error.errors if isinstance(error, ConnectorRefused) else {}
        return {"nice_name": name, "error": error.code, "message": error.message, "errors": problems}
    return {"id": str(shown.instance.id), "nice_name": shown.instance.nice_name, "created": is_new}


def _summary(done: Mapping[str, Any]) -> str:
    if "error" not in done:
        return f"{'Created' if done['created'] else 'Changed'} {done['id']} {done['nice_name']}"
    problems: Mapping[str, Iterable[str]] = done["errors"]
    texts = [f"{setting}: {text}" for setting, texts in problems.items() for text in texts]
    return f"{done['nice_name']}: {' '.join(texts) or done['message']}"


def _exported(shown: "InstanceView") -> dict[str, Any]:
    """Convert a connector to the format that `connector import` accepts."""
    instance = shown.instance
    return {
        "id": str(instance.id),
        "nice_name": instance.nice_name,
        "dialect": instance.dialect,
        "interface": instance.interface,
        "description": instance.description,
        "settings": [{"name": name, "value": value} for name, value in shown.settings.items()],
        "groups": list(instance.groups),
        "version": instance.version,
        "is_runnable": shown.is_runnable,
    }


def _administrate(config: Path | None, work: "Callable[[StoredConnectors], Awaitable[None]]") -> None:
    from queryserver.connectors.build import open_connectors  # noqa: PLC0415 slow to import

    administrate(open_connectors, config, work)

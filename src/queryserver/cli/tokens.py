"""Commands for the API tokens of users and service accounts."""

from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from typing import Annotated, TypeAlias
from uuid import UUID

import typer

from queryserver.cli.context import AsJson, ConfigFile, NoHeader, administrate, operator, print_json, print_listing
from queryserver.identity.api_tokens import MAX_PAGE, ApiToken, ApiTokens, NewApiToken
from queryserver.identity.model import Scope
from queryserver.platform.settings.tree import Settings

app = typer.Typer(help="Create, list and revoke API tokens.", no_args_is_help=True)

User: TypeAlias = Annotated[str, typer.Argument(metavar="USER", help="User name.", show_default=False)]

_BY_COMMAND = {"by": "command"}


@app.command("new")
def new(
    user: User,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the token.", show_default=False)],
    scope: Annotated[list[Scope], typer.Option(help="Permitted scope; may be repeated.", show_default=False)],
    connector: Annotated[
        list[str] | None,
        typer.Option(
            help="Id of a permitted connector; may be repeated. By default, all connectors of the user.",
            show_default=False,
        ),
    ] = None,
    days: Annotated[int | None, typer.Option(help="Days until expiry.", show_default=False)] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Create an API token and print it. Only its digest is stored, so it cannot be shown again."""
    new_token = NewApiToken(name, frozenset(scope), frozenset(connector) if connector else None, days)

    async def work(tokens: ApiTokens) -> None:
        made, value = await tokens.create(user, new_token, by=operator(), facts=_BY_COMMAND)
        if as_json:
            print_json({"token": asdict(made), "value": value})
        else:
            typer.echo(value)

    administrate(_tokens, config, work)


@app.command("list")
def list_tokens(
    user: Annotated[str | None, typer.Argument(metavar="USER", help="User name.", show_default=False)] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    no_header: NoHeader = False,
) -> None:
    """List the API tokens of one user or all users, including those that ended within the last 30 days."""

    async def work(tokens: ApiTokens) -> None:
        every, page = list[ApiToken](), 1
        while len(found := (await tokens.page(user, page=page))[1]) == MAX_PAGE:
            every, page = [*every, *found], page + 1
        every += found
        lines = (
            (
                one.username,
                one.name,
                one.state,
                ",".join(one.scopes),
                "*" if one.connectors is None else ",".join(one.connectors),
                f"{one.expires_at:%Y-%m-%dT%H:%M:%SZ}",
                f"{one.last_used_at:%Y-%m-%dT%H:%M:%SZ}" if one.last_used_at else "",
                str(one.id),
            )
            for one in every
        )
        header = ("USER", "NAME", "STATE", "SCOPES", "CONNECTORS", "EXPIRES", "LAST USED", "ID")
        print_listing([*map(asdict, every)], header, lines, as_json=as_json, no_header=no_header)

    administrate(_tokens, config, work)


@app.command("revoke")
def revoke(
    token_id: Annotated[UUID, typer.Argument(metavar="ID", help="Id of the token.", show_default=False)],
    config: ConfigFile = None,
) -> None:
    """Revoke an API token. Takes effect immediately."""

    async def work(tokens: ApiTokens) -> None:
        ended = await tokens.revoke(token_id, of=None, by=operator(), facts=_BY_COMMAND)
        typer.echo(f"API token {ended.name} of {ended.username} revoked.")

    administrate(_tokens, config, work)


def _tokens(settings: Settings) -> AbstractAsyncContextManager[ApiTokens]:
    from queryserver.identity.build import open_records  # noqa: PLC0415 slow to import

    return open_records(settings, ApiTokens)

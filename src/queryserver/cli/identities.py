"""Commands that link users to external identities and explain token checks."""

import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from typing import Annotated, TypeAlias

import typer

from queryserver.cli.context import (
    AsJson,
    ConfigFile,
    NoHeader,
    administrate,
    print_json,
    print_listing,
    run,
    settings_of,
)
from queryserver.identity.users import Identities
from queryserver.platform.settings.tree import Settings

app = typer.Typer()

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="User name.", show_default=False)]
SomeName: TypeAlias = Annotated[str | None, typer.Argument(metavar="NAME", help="User name.", show_default=False)]
Subject: TypeAlias = Annotated[
    str | None, typer.Option(help="The user's subject at the issuer; NAME by default.", show_default=False)
]
_ISSUER = "`jwt:` followed by the token issuer, `ldap`, or the class of an authenticator or login back end."


@app.command("link-user")
def link_user(
    name: Name,
    issuer: Annotated[str, typer.Option(help=_ISSUER, show_default=False)],
    subject: Subject = None,
    config: ConfigFile = None,
) -> None:
    """Link an external issuer's subject to an existing user, whatever password or rights the user has."""

    async def work(identities: Identities) -> None:
        linked = await identities.link(name, issuer, subject)
        typer.echo(f"{linked.subject} of {linked.issuer} is now linked to the user {name}.")

    administrate(_identities, config, work, "user.link", name, issuer, subject)


@app.command("unlink-user")
def unlink_user(
    name: SomeName = None,
    issuer: Annotated[str | None, typer.Option(help=_ISSUER, show_default=False)] = None,
    subject: Subject = None,
    everybody: Annotated[bool, typer.Option("--all", help="Remove the links of all users to ISSUER.")] = False,
    config: ConfigFile = None,
) -> None:
    """Remove links of a user. A user without password and administrator rights is linked again on the next call."""
    if everybody == (name is not None) or (everybody and issuer is None):
        raise typer.BadParameter("Specify either NAME, or --all and --issuer.")

    async def work(identities: Identities) -> None:
        typer.echo(f"{await identities.unlink(name, issuer=issuer, subject=subject)} links removed.")

    administrate(_identities, config, work, "user.unlink", name or "*", issuer, subject)


@app.command("list-links")
def list_links(
    name: SomeName = None, config: ConfigFile = None, as_json: AsJson = False, no_header: NoHeader = False
) -> None:
    """List the links between users and subjects of external issuers."""

    async def work(identities: Identities) -> None:
        listed = await identities.all(name)
        made = {True: "administrator", False: "first call"}
        lines = ([one.username, one.issuer, one.subject, made[one.by_administrator]] for one in listed)
        header = ("USER", "ISSUER", "SUBJECT", "MADE BY")
        print_listing([*map(asdict, listed)], header, lines, as_json=as_json, no_header=no_header)

    administrate(_identities, config, work)


def _identities(settings: Settings) -> AbstractAsyncContextManager[Identities]:
    from queryserver.identity.build import open_records  # noqa: PLC0415 slow to import

    return open_records(settings, Identities)


authentication_app = typer.Typer(help="Check tokens.", no_args_is_help=True)

_MAX_CHARACTERS = 64 * 1024


@authentication_app.callback()
def _group() -> None:
    """Keep `explain` a subcommand: without a callback, Typer would turn the only command into the group itself."""


@authentication_app.command("explain")
def explain(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show which check accepts or rejects the token read from standard input. The token is never printed."""
    from queryserver.identity.build import open_explainer  # noqa: PLC0415 as above
    from queryserver.identity.explainer import CheckResult  # noqa: PLC0415 slow to import

    words = sys.stdin.read(_MAX_CHARACTERS).split()
    if len(words) == 2 and words[0].lower() == "bearer":
        words = words[1:]
    if len(words) != 1:
        raise typer.BadParameter("Pass exactly one token on standard input.")
    settings = settings_of(config)

    async def results() -> list[CheckResult]:
        async with open_explainer(settings) as explainer:
            return await explainer.explain(words[0])

    found = run(results)
    is_good = not any(one.passed is False for one in found)
    if as_json:
        print_json({"accepted": is_good, "checks": [asdict(one) for one in found]})
    else:
        for one in found:
            outcome = {True: "ok", False: "refused", None: "-"}[one.passed]
            typer.echo(f"{one.check:<10} {outcome}{': ' if one.text else ''}{one.text}")
        typer.echo("accepted" if is_good else "refused")
    raise typer.Exit(0 if is_good else 1)

"""Commands for users, their tokens, groups, rights and external identities, and one that explains token checks."""

import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, TypeAlias
from uuid import UUID

import typer

from queryserver.cli.context import (
    AsJson,
    ConfigFile,
    NoHeader,
    PasswordFromStdin,
    administrate,
    operator,
    print_json,
    print_listing,
    read_password,
    run,
    settings_of,
)
from queryserver.identity.api_tokens import MAX_PAGE, ApiToken, ApiTokens, NewApiToken
from queryserver.identity.model import AuthenticatedUser, Scope
from queryserver.identity.users import Accounts, Groups, Identities, checked_identity
from queryserver.platform.settings.tree import Settings

app = typer.Typer()

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="User name.", show_default=False)]
GroupName: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="Name of the group.", show_default=False)]
User: TypeAlias = Annotated[str, typer.Argument(metavar="USER", help="User name.", show_default=False)]
Group: TypeAlias = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.", show_default=False)]
Right: TypeAlias = Annotated[
    str, typer.Argument(metavar="RIGHT", help="A right, such as download or connector:7.", show_default=False)
]
SomeName: TypeAlias = Annotated[str | None, typer.Argument(metavar="NAME", help="User name.", show_default=False)]
Subject: TypeAlias = Annotated[
    str | None, typer.Option(help="The user's subject at the issuer; NAME by default.", show_default=False)
]
_ISSUER = "`jwt:` followed by the token issuer, `ldap`, or the class of an authenticator or login back end."

tokens_app = typer.Typer(help="Create, list and revoke API tokens.", no_args_is_help=True)

_BY_COMMAND = {"by": "command"}


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


@app.command("create-user")
def create_user(
    name: Name,
    config: ConfigFile = None,
    admin: Annotated[bool, typer.Option("--admin", help="Grant administrator rights.")] = False,
    email: Annotated[str, typer.Option(help="Email address.")] = "",
    first_name: Annotated[str, typer.Option(help="First name.")] = "",
    last_name: Annotated[str, typer.Option(help="Last name.")] = "",
    group: Annotated[list[str] | None, typer.Option(help="Group of the user; may be repeated.")] = None,
    password_stdin: PasswordFromStdin = False,
    issuer: Annotated[
        str | None, typer.Option(help="Create a user of this issuer, without a password; see link-user.")
    ] = None,
    subject: Annotated[str | None, typer.Option(help="The user's subject at ISSUER; NAME by default.")] = None,
    service_account: Annotated[
        bool,
        typer.Option(
            "--service-account", help="Create a service account, which has only API tokens and no login; see token new."
        ),
    ] = False,
) -> None:
    """Create a user."""
    if service_account and (issuer is not None or password_stdin):
        raise typer.BadParameter("--service-account cannot be combined with --issuer or --password-stdin.")
    if issuer is None and subject is not None:
        raise typer.BadParameter("--subject requires --issuer.")
    identity = None
    if issuer is not None:
        identity = checked_identity(settings_of(config).desktop.auth, name, issuer, subject)
    password = "" if identity or service_account else read_password(from_stdin=password_stdin)
    person = AuthenticatedUser(name, first_name, last_name, email, group)

    async def work(accounts: Accounts) -> None:
        await accounts.ensure_default_group()
        username = await accounts.create(
            person, password, identity=identity, is_admin=admin, is_service_account=service_account
        )
        typer.echo(f"User {username.shown} created.")

    administrate(_accounts, config, work, "user.create", name)


@app.command("disable-user")
def disable_user(name: Name, config: ConfigFile = None) -> None:
    """Disable a user. All tokens of the user become invalid immediately."""
    administrate(_accounts, config, lambda accounts: accounts.disable(name), "user.disable", name)


@app.command("enable-user")
def enable_user(name: Name, config: ConfigFile = None) -> None:
    """Enable a user again. Earlier tokens remain invalid."""
    administrate(_accounts, config, lambda accounts: accounts.enable(name), "user.enable", name)


@app.command("set-password")
def set_password(name: Name, config: ConfigFile = None, password_stdin: PasswordFromStdin = False) -> None:
    """Set a user's password. All tokens of the user become invalid immediately."""
    password = read_password(from_stdin=password_stdin)
    administrate(_accounts, config, lambda accounts: accounts.set_password(name, password), "user.set_password", name)


@app.command("set-admin")
def set_admin(name: Name, state: Switch, config: ConfigFile = None) -> None:
    """Grant or revoke administrator rights."""
    operation = "user.make_admin" if state is Switch.ON else "user.unmake_admin"
    administrate(
        _accounts, config, lambda accounts: accounts.set_admin(name, admin=state is Switch.ON), operation, name
    )


@app.command("unlock")
def unlock(name: Name, config: ConfigFile = None) -> None:
    """Reset the failed logins of a name."""
    administrate(_accounts, config, lambda accounts: accounts.unlock(name), "user.unlock", name)


@app.command("list-users")
def list_users(config: ConfigFile = None, as_json: AsJson = False, no_header: NoHeader = False) -> None:
    """List all users."""

    async def work(accounts: Accounts) -> None:
        every = await accounts.all()
        lines = (
            (
                one.username,
                "admin" if one.is_admin else "service" if one.is_service_account else "user",
                "active" if one.is_active else "disabled",
                ",".join(one.groups),
                one.email,
            )
            for one in every
        )
        header = ("USER", "KIND", "STATE", "GROUPS", "EMAIL")
        print_listing([*map(asdict, every)], header, lines, as_json=as_json, no_header=no_header)

    administrate(_accounts, config, work)


@app.command("revoke-tokens")
def revoke_tokens(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="User name.", show_default=False)] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Revoke the tokens of all users.")] = False,
    config: ConfigFile = None,
) -> None:
    """Revoke all tokens of one user, or of all users."""
    if everybody == (name is not None):
        raise typer.BadParameter("Specify either NAME or --all.")

    async def work(accounts: Accounts) -> None:
        if name is not None:
            await accounts.end_tokens(name)
        else:
            typer.echo(f"Revoked the tokens of {await accounts.end_all_tokens()} users.")

    administrate(_accounts, config, work, "user.revoke_tokens", name or "*")


@app.command("create-group")
def create_group(name: GroupName, config: ConfigFile = None) -> None:
    """Create a group without rights."""
    administrate(_groups, config, lambda groups: groups.create(name), "group.create", name)


@app.command("delete-group")
def delete_group(name: GroupName, config: ConfigFile = None) -> None:
    """Delete a group. Its members lose the rights granted through it."""
    administrate(_groups, config, lambda groups: groups.delete(name), "group.delete", name)


@app.command("add-to-group")
def add_to_group(user: User, group: Group, config: ConfigFile = None) -> None:
    """Add a user to a group."""
    administrate(_groups, config, lambda groups: groups.add(user, group), "group.add_member", group, user)


@app.command("remove-from-group")
def remove_from_group(user: User, group: Group, config: ConfigFile = None) -> None:
    """Remove a user from a group."""
    administrate(_groups, config, lambda groups: groups.remove(user, group), "group.remove_member", group, user)


@app.command("grant")
def grant(group: Group, right: Right, config: ConfigFile = None) -> None:
    """Grant a right to a group. Takes effect with the next call of each member."""
    administrate(_groups, config, lambda groups: groups.grant(group, right), "group.grant", group, right)


@app.command("ungrant")
def ungrant(group: Group, right: Right, config: ConfigFile = None) -> None:
    """Revoke a right from a group."""
    administrate(_groups, config, lambda groups: groups.ungrant(group, right), "group.ungrant", group, right)


@app.command("list-grants")
def list_grants(
    group: Annotated[str | None, typer.Argument(metavar="GROUP", help="Only this group.", show_default=False)] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    no_header: NoHeader = False,
) -> None:
    """List groups with their rights and numbers of members."""

    async def work(groups: Groups) -> None:
        listed = await groups.grants(group)
        lines = ([one.name, ",".join(one.rights), str(one.members)] for one in listed)
        header = ("GROUP", "RIGHTS", "MEMBERS")
        print_listing([*map(asdict, listed)], header, lines, as_json=as_json, no_header=no_header)

    administrate(_groups, config, work)


def _accounts(settings: Settings) -> AbstractAsyncContextManager[Accounts]:
    from queryserver.identity.build import open_administration  # noqa: PLC0415 slow to import

    return open_administration(settings)


def _groups(settings: Settings) -> AbstractAsyncContextManager[Groups]:
    from queryserver.identity.build import open_records  # noqa: PLC0415 slow to import

    return open_records(settings, Groups)


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


@tokens_app.command("new")
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
    max_estimated_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2**63 - 1,
            help="Do not run a statement if the data source expects it to read more bytes.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Create an API token and print it. Only its digest is stored, so it cannot be shown again."""
    new_token = NewApiToken(
        name, frozenset(scope), frozenset(connector) if connector else None, days, max_estimated_bytes
    )

    async def work(tokens: ApiTokens) -> None:
        made, value = await tokens.create(user, new_token, by=operator(), facts=_BY_COMMAND)
        if as_json:
            print_json({"token": asdict(made), "value": value})
        else:
            typer.echo(value)

    administrate(_tokens, config, work)


@tokens_app.command("list")
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


@tokens_app.command("revoke")
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

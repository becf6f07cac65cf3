"""Users and their tokens."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from queryserver.cli.context import (
    AsJson,
    ConfigFile,
    NoHeader,
    PasswordFromStdin,
    administrate,
    print_json,
    print_table,
    read_password,
    settings_of,
)
from queryserver.domain.identities import ExternalIdentity
from queryserver.interfaces.accounts import Account
from queryserver.services.accounts import Accounts, Person

app = typer.Typer()

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="User name.", show_default=False)]


class Switch(StrEnum):
    """On or off."""

    ON = "on"
    OFF = "off"


@app.command("create-user")
def create_user(
    name: Name,
    config: ConfigFile = None,
    admin: Annotated[bool, typer.Option("--admin", help="Make an administrator.")] = False,
    email: Annotated[str, typer.Option(help="Address for mail.")] = "",
    first_name: Annotated[str, typer.Option(help="First name.")] = "",
    last_name: Annotated[str, typer.Option(help="Last name.")] = "",
    group: Annotated[list[str] | None, typer.Option(help="A group to join; may be repeated.")] = None,
    password_stdin: PasswordFromStdin = False,
    issuer: Annotated[
        str | None, typer.Option(help="Make the user of this issuer, without a password; see link-user.")
    ] = None,
    subject: Annotated[str | None, typer.Option(help="The name as ISSUER writes it; without it NAME.")] = None,
) -> None:
    """Make a user."""
    if issuer is None and subject is not None:
        raise typer.BadParameter("Give --subject with --issuer only.")
    identity = None if issuer is None else _identity(config, name, issuer, subject)
    password = "" if identity else read_password(from_stdin=password_stdin)
    person = Person(email, first_name, last_name, tuple(group or ()))

    async def work(accounts: Accounts) -> None:
        await accounts.ensure_default_group()
        if identity:
            username = await accounts.create_linked(name, identity, is_admin=admin, person=person)
        else:
            username = await accounts.create(name, password, is_admin=admin, person=person)
        typer.echo(f"User {username.shown} created.")

    _administrate(config, work, "user.create", name)


@app.command("disable-user")
def disable_user(name: Name, config: ConfigFile = None) -> None:
    """Let a user in no more; all tokens end at once."""
    _administrate(config, lambda accounts: accounts.disable(name), "user.disable", name)


@app.command("enable-user")
def enable_user(name: Name, config: ConfigFile = None) -> None:
    """Let a user in again. Old tokens stay dead."""
    _administrate(config, lambda accounts: accounts.enable(name), "user.enable", name)


@app.command("set-password")
def set_password(name: Name, config: ConfigFile = None, password_stdin: PasswordFromStdin = False) -> None:
    """Give a user a new password; all tokens end at once."""
    password = read_password(from_stdin=password_stdin)
    _administrate(config, lambda accounts: accounts.set_password(name, password), "user.set_password", name)


@app.command("set-admin")
def set_admin(name: Name, state: Switch, config: ConfigFile = None) -> None:
    """Give or take the administrator flag."""
    operation = "user.make_admin" if state is Switch.ON else "user.unmake_admin"
    _administrate(config, lambda accounts: accounts.set_admin(name, admin=state is Switch.ON), operation, name)


@app.command("unlock")
def unlock(name: Name, config: ConfigFile = None) -> None:
    """Forget the failed logins of a name."""
    _administrate(config, lambda accounts: accounts.unlock(name), "user.unlock", name)


@app.command("list-users")
def list_users(config: ConfigFile = None, as_json: AsJson = False, no_header: NoHeader = False) -> None:
    """List all users."""

    async def work(accounts: Accounts) -> None:
        every = await accounts.all()
        if as_json:
            print_json([asdict(account) for account in every])
            return
        print_table(_HEADER, map(_line, every), with_header=not no_header)

    _administrate(config, work)


@app.command("revoke-tokens")
def revoke_tokens(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="User name.", show_default=False)] = None,
    everybody: Annotated[bool, typer.Option("--all", help="End the tokens of all users.")] = False,
    config: ConfigFile = None,
) -> None:
    """End all tokens of a user, or of everybody."""
    if everybody == (name is not None):
        raise typer.BadParameter("Give either NAME or --all.")

    async def work(accounts: Accounts) -> None:
        if name is not None:
            await accounts.end_tokens(name)
        else:
            typer.echo(f"Tokens of {await accounts.end_all_tokens()} users ended.")

    _administrate(config, work, "user.revoke_tokens", name or "*")


_HEADER = ("USER", "KIND", "STATE", "GROUPS", "EMAIL")


def _line(account: Account) -> tuple[str, ...]:
    kind = "admin" if account.is_admin else "user"
    state = "active" if account.is_active else "disabled"
    return account.username, kind, state, ",".join(account.groups), account.email


def _identity(config: Path | None, name: str, issuer: str, subject: str | None) -> ExternalIdentity:
    from queryserver.container.identities import checked_identity  # noqa: PLC0415 slow to import

    return checked_identity(settings_of(config), name, issuer, subject)


def _administrate(
    config: Path | None, work: Callable[[Accounts], Awaitable[None]], operation: str | None = None, *subject: str | None
) -> None:
    from queryserver.container.administration import open_administration  # noqa: PLC0415 slow to import

    administrate(open_administration, config, work, operation, *subject)

"""Users and their tokens."""

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from queryserver.cli.auditing import audited
from queryserver.cli.context import (
    AsJson,
    ConfigFile,
    NoHeader,
    PasswordFromStdin,
    print_json,
    print_table,
    read_password,
    run,
    settings_of,
)
from queryserver.domain.identities import ExternalIdentity
from queryserver.interfaces.accounts import Account
from queryserver.services.accounts import Accounts, Person

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="User name.", show_default=False)]


class Switch(StrEnum):
    """On or off."""

    ON = "on"
    OFF = "off"


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


def disable_user(name: Name, config: ConfigFile = None) -> None:
    """Let a user in no more; all tokens end at once."""
    _administrate(config, lambda accounts: accounts.disable(name), "user.disable", name)


def enable_user(name: Name, config: ConfigFile = None) -> None:
    """Let a user in again. Old tokens stay dead."""
    _administrate(config, lambda accounts: accounts.enable(name), "user.enable", name)


def set_password(name: Name, config: ConfigFile = None, password_stdin: PasswordFromStdin = False) -> None:
    """Give a user a new password; all tokens end at once."""
    password = read_password(from_stdin=password_stdin)
    _administrate(config, lambda accounts: accounts.set_password(name, password), "user.set_password", name)


def set_admin(name: Name, state: Switch, config: ConfigFile = None) -> None:
    """Give or take the administrator flag."""
    operation = "user.make_admin" if state is Switch.ON else "user.unmake_admin"
    _administrate(config, lambda accounts: accounts.set_admin(name, admin=state is Switch.ON), operation, name)


def unlock(name: Name, config: ConfigFile = None) -> None:
    """Forget the failed logins of a name."""
    _administrate(config, lambda accounts: accounts.unlock(name), "user.unlock", name)


def list_users(config: ConfigFile = None, as_json: AsJson = False, no_header: NoHeader = False) -> None:
    """List all users."""

    async def work(accounts: Accounts) -> None:
        every = await accounts.all()
        if as_json:
            print_json([asdict(account) for account in every])
            return
        print_table(_HEADER, map(_line, every), with_header=not no_header)

    _administrate(config, work)


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


COMMANDS: dict[str, Any] = {
    "create-user": create_user,
    "disable-user": disable_user,
    "enable-user": enable_user,
    "set-password": set_password,
    "set-admin": set_admin,
    "unlock": unlock,
    "list-users": list_users,
    "revoke-tokens": revoke_tokens,
}


_HEADER = ("USER", "KIND", "STATE", "GROUPS", "EMAIL")


def _line(account: Account) -> tuple[str, ...]:
    kind = "admin" if account.is_admin else "user"
    state = "active" if account.is_active else "disabled"
    return account.username, kind, state, ",".join(account.groups), account.email


def _identity(config: Path | None, name: str, issuer: str, subject: str | None) -> ExternalIdentity:
    from queryserver.container.identities import checked_identity  # noqa: PLC0415 slow to import

    return checked_identity(settings_of(config), name, issuer, subject)


def _administrate(
    config: Path | None, work: Callable[[Accounts], Awaitable[None]], operation: str | None = None, subject: str = ""
) -> None:
    """Do the work; with an `operation` it is a change, and leaves an audit event."""
    from queryserver.container.administration import open_administration  # noqa: PLC0415 slow to import

    settings = settings_of(config)

    async def opened() -> None:
        async with open_administration(settings) as accounts:
            with audited(operation, subject) if operation else nullcontext():
                await work(accounts)

    run(opened)

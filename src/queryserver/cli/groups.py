"""Groups, their members and their rights."""

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from queryserver.cli.auditing import audited
from queryserver.cli.context import AsJson, ConfigFile, NoHeader, print_json, print_table, run, settings_of
from queryserver.services.groups import Groups

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="Name of the group.", show_default=False)]
User: TypeAlias = Annotated[str, typer.Argument(metavar="USER", help="User name.", show_default=False)]
Group: TypeAlias = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.", show_default=False)]
Right: TypeAlias = Annotated[
    str, typer.Argument(metavar="RIGHT", help="Such as download or connector:7.", show_default=False)
]


def create_group(name: Name, config: ConfigFile = None) -> None:
    """Make a group without rights."""
    _administrate(config, lambda groups: groups.create(name), "group.create", name)


def delete_group(name: Name, config: ConfigFile = None) -> None:
    """Take a group away, with the rights that its members have by it."""
    _administrate(config, lambda groups: groups.delete(name), "group.delete", name)


def add_to_group(user: User, group: Group, config: ConfigFile = None) -> None:
    """Make a user a member of a group."""
    _administrate(config, lambda groups: groups.add(user, group), "group.add_member", group, user)


def remove_from_group(user: User, group: Group, config: ConfigFile = None) -> None:
    """End a user's membership of a group."""
    _administrate(config, lambda groups: groups.remove(user, group), "group.remove_member", group, user)


def grant(group: Group, right: Right, config: ConfigFile = None) -> None:
    """Give a group a right; it counts from the next call of its members on."""
    _administrate(config, lambda groups: groups.grant(group, right), "group.grant", group, right)


def ungrant(group: Group, right: Right, config: ConfigFile = None) -> None:
    """Take a right from a group."""
    _administrate(config, lambda groups: groups.ungrant(group, right), "group.ungrant", group, right)


def list_grants(
    group: Annotated[str | None, typer.Argument(metavar="GROUP", help="One group.", show_default=False)] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    no_header: NoHeader = False,
) -> None:
    """List groups with their rights and how many members they have."""

    async def work(groups: Groups) -> None:
        listed = await groups.grants(group)
        if as_json:
            print_json([asdict(one) for one in listed])
            return
        lines = ([one.name, ",".join(one.rights), str(one.members)] for one in listed)
        print_table(("GROUP", "RIGHTS", "MEMBERS"), lines, with_header=not no_header)

    _administrate(config, work)


COMMANDS: dict[str, Any] = {
    "create-group": create_group,
    "delete-group": delete_group,
    "add-to-group": add_to_group,
    "remove-from-group": remove_from_group,
    "grant": grant,
    "ungrant": ungrant,
    "list-grants": list_grants,
}


def _administrate(
    config: Path | None, work: Callable[[Groups], Awaitable[None]], operation: str | None = None, *subject: str
) -> None:
    """Do the work; with an `operation` it is a change, and leaves an audit event."""
    from queryserver.container.groups import open_groups  # noqa: PLC0415 slow to import

    settings = settings_of(config)

    async def opened() -> None:
        async with open_groups(settings) as groups:
            with audited(operation, *subject) if operation else nullcontext():
                await work(groups)

    run(opened)

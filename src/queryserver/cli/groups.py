"""Groups, their members and their rights."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from queryserver.cli.context import AsJson, ConfigFile, NoHeader, administrate, print_json, print_table
from queryserver.services.groups import Groups

app = typer.Typer()

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="Name of the group.", show_default=False)]
User: TypeAlias = Annotated[str, typer.Argument(metavar="USER", help="User name.", show_default=False)]
Group: TypeAlias = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.", show_default=False)]
Right: TypeAlias = Annotated[
    str, typer.Argument(metavar="RIGHT", help="Such as download or connector:7.", show_default=False)
]


@app.command("create-group")
def create_group(name: Name, config: ConfigFile = None) -> None:
    """Make a group without rights."""
    _administrate(config, lambda groups: groups.create(name), "group.create", name)


@app.command("delete-group")
def delete_group(name: Name, config: ConfigFile = None) -> None:
    """Take a group away, with the rights that its members have by it."""
    _administrate(config, lambda groups: groups.delete(name), "group.delete", name)


@app.command("add-to-group")
def add_to_group(user: User, group: Group, config: ConfigFile = None) -> None:
    """Make a user a member of a group."""
    _administrate(config, lambda groups: groups.add(user, group), "group.add_member", group, user)


@app.command("remove-from-group")
def remove_from_group(user: User, group: Group, config: ConfigFile = None) -> None:
    """End a user's membership of a group."""
    _administrate(config, lambda groups: groups.remove(user, group), "group.remove_member", group, user)


@app.command("grant")
def grant(group: Group, right: Right, config: ConfigFile = None) -> None:
    """Give a group a right; it counts from the next call of its members on."""
    _administrate(config, lambda groups: groups.grant(group, right), "group.grant", group, right)


@app.command("ungrant")
def ungrant(group: Group, right: Right, config: ConfigFile = None) -> None:
    """Take a right from a group."""
    _administrate(config, lambda groups: groups.ungrant(group, right), "group.ungrant", group, right)


@app.command("list-grants")
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


def _administrate(
    config: Path | None, work: Callable[[Groups], Awaitable[None]], operation: str | None = None, *subject: str | None
) -> None:
    from queryserver.container.groups import open_groups  # noqa: PLC0415 slow to import

    administrate(open_groups, config, work, operation, *subject)

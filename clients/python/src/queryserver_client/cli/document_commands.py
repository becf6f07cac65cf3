"""The commands of `qs documents`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from queryserver_client.cli.forms import IfExists, Permission
from queryserver_client.cli.invocation import AnyForm, AsJson, Groups, MaxEstimatedBytes, ReadOnly, Users, connected

documents = typer.Typer(name="documents", no_args_is_help=True, help="Save, run and share queries.")

Document = Annotated[str, typer.Argument(metavar="DOCUMENT", help="Name or uuid of a document.")]
SeveralDocuments = Annotated[list[str], typer.Argument(metavar="DOCUMENT...", help="Names or uuids of documents.")]


@documents.command("list")
def list_documents(
    text: Annotated[str | None, typer.Argument(help="Only documents that contain this text.")] = None,
    folder: Annotated[str | None, typer.Option("--folder", help="Only documents in this folder.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only documents with this tag.")] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only documents of this user.")] = None,
    type_: Annotated[str | None, typer.Option("--type", help="Only documents of this dialect.")] = None,
    all_users: Annotated[bool, typer.Option("-a", "--all", help="Documents of all users; for administrators.")] = False,
    trash: Annotated[bool, typer.Option("--trash", help="Your documents in the trash.")] = False,
    most: Annotated[int, typer.Option("-n", min=1, max=100_000, help="Maximum number of documents.")] = 100,
    output: AnyForm = None,
) -> None:
    """List your documents and those shared with you, last changed first."""
    from queryserver_client.cli import documents as command  # noqa: PLC0415

    filters = {
        "folder": folder,
        "tag": tag,
        "owner": owner,
        "type": type_,
        "of_all_users": all_users,
        "in_trash": trash,
    }
    connected(lambda db: command.show_list(db, output, text=text or "", most=most, filters=filters))


@documents.command("show")
def show_document(
    document: Document,
    version: Annotated[int | None, typer.Option("--version", min=1, help="A former version.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the statement of a document."""
    from queryserver_client.cli import documents as command  # noqa: PLC0415

    connected(lambda db: command.show_document(db, document, version=version, as_json=as_json))


@documents.command("save")
def save_document(
    name: Annotated[str, typer.Argument(help="Name of the document, or the uuid of an existing one.")],
    statement: Annotated[
        str | None, typer.Argument(help="Statement or script; - reads it from stdin. Default: stays as it is.")
    ] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read the statement from a file.")] = None,
    operation: Annotated[
        str | None, typer.Option("--from", metavar="ID", help="Save a statement of your history.")
    ] = None,
    connector: Annotated[str | None, typer.Option("-c", "--connector", help="Connector of its runs.")] = None,
    database: Annotated[str | None, typer.Option("-d", "--database")] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("-p", "--param", help="name:type=default for :name; may be repeated.")
    ] = None,
    description: Annotated[str | None, typer.Option("--description")] = None,
    folder: Annotated[str | None, typer.Option("--folder", help="Folder, such as /reports/daily.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="May be repeated.")] = None,
) -> None:
    """Create a document, or save a new version of the document with this name."""
    from queryserver_client.cli import documents as command  # noqa: PLC0415

    fields: dict[str, Any] = {
        "connector": connector, "database": database, "description": description, "folder": folder, "tags": tag,
    }  # fmt: skip
    new = command.NewDocument(name, statement, file, operation, parameter, fields)
    connected(lambda db: command.save(db, new))


@documents.command("run")
def run_document(
    document: Document,
    parameter: Annotated[
        list[str] | None, typer.Option("-p", "--param", help="name=value or name:type=value; may be repeated.")
    ] = None,
    connector: Annotated[str, typer.Option("-c", "--connector", help="Default: that of the document.")] = "",
    database: Annotated[str | None, typer.Option("-d", "--database", help="Default: that of the document.")] = None,
    output: AnyForm = None,
    to: Annotated[Path | None, typer.Option("--to", help="Write to a file, in the format of its suffix.")] = None,
    into: Annotated[
        str | None, typer.Option("--into", help="Send the rows to store://…, :/… or connector:table, on the server.")
    ] = None,
    if_exists: Annotated[
        IfExists | None, typer.Option("--if-exists", help="With --into: action if the table or file exists.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of rows.")] = None,
    timeout: Annotated[float | None, typer.Option(min=1, help="Time limit in seconds.")] = None,
    max_age: Annotated[
        int | None, typer.Option(min=0, help="Use a stored result of the same run that is at most so many seconds old.")
    ] = None,
    read_only: ReadOnly = False,
    max_estimated_bytes: MaxEstimatedBytes = None,
) -> None:
    """Run a document with your own rights, and print its result, or send the rows to a file or table."""
    from queryserver_client.cli import documents as command  # noqa: PLC0415

    options: dict[str, Any] = {
        "connector": connector, "database": database, "limit": limit, "timeout": timeout, "max_age": max_age,
        "read_only": read_only, "max_estimated_bytes": max_estimated_bytes,
    }  # fmt: skip
    target = command.Target(output, to, into, if_exists)
    connected(lambda db: command.run(db, document, parameter or [], target, options))


@documents.command("share")
def share_document(
    document: Document,
    permission: Annotated[
        Permission, typer.Option("-m", "--permission", help="none revokes the grants of these users and groups.")
    ] = Permission.RUN,
    users: Users = None,
    groups: Groups = None,
) -> None:
    """Let users and groups view, run or edit a document."""
    from queryserver_client.cli import documents as command  # noqa: PLC0415

    connected(lambda db: command.share(db, document, permission.value, users=users or [], groups=groups or []))


@documents.command("move")
def move_document(
    document: Document, folder: Annotated[str, typer.Argument(help="Folder, such as /reports/daily.")]
) -> None:
    """Move a document to another folder."""
    from queryserver_client.cli import documents as command  # noqa: PLC0415

    connected(lambda db: command.move(db, document, folder))


@documents.command("versions")
def list_versions(document: Document, output: AnyForm = None) -> None:
    """List the versions of a document, newest first."""
    from queryserver_client.cli import documents as command  # noqa: PLC0415

    connected(lambda db: command.show_versions(db, document, output))


@documents.command("revert")
def revert_document(
    document: Document, version: Annotated[int, typer.Argument(min=1, help="Number of a former version.")]
) -> None:
    """Save the content of a former version as a new version."""
    from queryserver_client.cli import documents as command  # noqa: PLC0415

    connected(lambda db: command.revert(db, document, version))


@documents.command("give")
def give_documents(
    to_user: Annotated[str, typer.Argument(metavar="USER", help="Name of the new owner.")],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[DOCUMENT...]", help="Names or uuids of documents.")
    ] = None,
    from_user: Annotated[
        str | None, typer.Option("--from", metavar="USER", help="Give all documents of this user, and the trash.")
    ] = None,
    keep: Annotated[Permission, typer.Option("--keep", help="What the former owner may still do.")] = Permission.NONE,
) -> None:
    """Give documents to another user: your own ones or, as an administrator, those of any user."""
    from queryserver_client.cli import documents as command  # noqa: PLC0415

    connected(lambda db: command.give(db, names or [], to_user, from_user=from_user, keep=keep.value))


@documents.command("delete")
def delete_documents(
    names: SeveralDocuments, skip_trash: Annotated[bool, typer.Option("--skip-trash", help="Delete for ever.")] = False
) -> None:
    """Move documents to the trash, or delete them for ever."""
    from queryserver_client.cli import documents as command  # noqa: PLC0415

    connected(lambda db: command.delete(db, names, skip_trash=skip_trash))


@documents.command("restore")
def restore_documents(names: SeveralDocuments) -> None:
    """Take documents out of the trash."""
    from queryserver_client.cli import documents as command  # noqa: PLC0415

    connected(lambda db: command.restore(db, names))

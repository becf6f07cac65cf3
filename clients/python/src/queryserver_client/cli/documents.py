"""`qs documents`: lists, shows, saves, runs, shares and deletes saved queries."""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from queryserver_client.cli.copies import destination_of, follow
from queryserver_client.cli.failures import FAILED, WrongUse, say, text_of
from queryserver_client.cli.forms import Form, IfExists
from queryserver_client.cli.operations import show, stored_id
from queryserver_client.cli.output import form_of
from queryserver_client.cli.parameters import given_text, parameters_of
from queryserver_client.cli.sql import put
from queryserver_client.errors import StatementError
from queryserver_client.exports import Export

if TYPE_CHECKING:
    from queryserver_client.encoding import Parameters
    from queryserver_client.sync import Connection

_PARAMETER = re.compile(r"([A-Za-z_]\w*)(?::(\w+))?(?:=(.*))?", re.DOTALL)


@dataclass(frozen=True)
class NewDocument:
    """The arguments of `qs documents save`."""

    name: str
    statement: str | None
    """The argument."""
    file: Path | None
    operation: str | None
    parameters: Sequence[str] | None
    fields: "dict[str, Any]"


@dataclass(frozen=True)
class Target:
    """Where the rows of a run go."""

    output: Form | None
    to: Path | None
    """A local file."""
    destination: str | None
    """A path or table on the server."""
    if_exists: IfExists | None

    def into(self) -> "dict[str, Any] | None":
        """Return the fields of a destination on the server; None if the rows come here. Raises WrongUse."""
        if self.destination is None:
            if self.if_exists is not None:
                raise WrongUse("--if-exists requires --into")
            return None
        if self.output is not None or self.to is not None:
            raise WrongUse("--into cannot be combined with -o and --to")
        return destination_of(self.destination, self.if_exists)


def show_list(db: "Connection", form: Form | None, *, text: str, most: int, filters: "dict[str, Any]") -> None:
    """Print the newest `most` documents that match."""
    names = ["uuid", "name", "type", "owner", "folder", "permission", "version", "modified"]
    records = [[entry[name] for name in names] for entry in db.documents.list(text, limit=most, **filters)]
    show(names, records, form)


def show_document(db: "Connection", given: str, *, version: int | None, as_json: bool) -> None:
    """Print the statement of a document or, if `as_json` is set, everything."""
    uuid = uuid_of(db, given)
    found: Any = db.documents.get(uuid) if version is None else db.documents.version(uuid, version)
    print(json.dumps(found, indent=2, ensure_ascii=False) if as_json else found["statement"])


def save(db: "Connection", new: NewDocument) -> None:
    """Create a document, or save a new version of your document with this name. Print its uuid and version."""
    fields = {name: value for name, value in new.fields.items() if value is not None}
    if new.parameters is not None:
        fields["parameters"] = [_parameter(text) for text in new.parameters]
    if new.operation is not None:
        fields["operation_id"] = stored_id(db, new.operation)
    statement = given_text(new.statement, new.file)
    existing = _existing(db, new.name)
    if existing is None:
        saved = db.documents.save(new.name, statement, **fields)
    else:
        saved = db.documents.save(None, statement, uuid=existing["uuid"], version=existing["version"], **fields)
    print(f"{saved['uuid']}  version {saved['version']}")


def run(db: "Connection", given: str, parameters: Sequence[str], target: Target, options: "dict[str, Any]") -> int:
    """Run a document. Print its result, which is then deleted on the server, or send the rows to a file or table.

    With `max_age`, the result stays on the server, so that it can answer later calls. Return the exit code.
    """
    into, values = target.into(), parameters_of(parameters)
    if into is not None:
        return _export(db, uuid_of(db, given), values, into, options)
    form = form_of(target.output, target.to)
    try:
        result = db.documents.run(uuid_of(db, given), values, allow_truncated=True, **options)
        with nullcontext() if options["max_age"] else result:
            return put(db, result, form, target.to, is_expanded=False)
    except StatementError as error:
        say(text_of(error))
        return FAILED


def _export(
    db: "Connection", uuid: str, values: "Parameters | None", into: "dict[str, Any]", options: "dict[str, Any]"
) -> int:
    def run(**callbacks: Any) -> Export:
        result = db.documents.run(uuid, values, into=into, **options, **callbacks)
        return Export.of(result.dicts()[0], result.operation_id)

    return follow(db, run)


def move(db: "Connection", given: str, folder: str) -> None:
    db.documents.move(uuid_of(db, given), folder)


def show_versions(db: "Connection", given: str, form: Form | None) -> None:
    """Print the versions of a document, newest first."""
    names = ["version", "name", "modified", "modified_by"]
    versions = db.documents.versions(uuid_of(db, given))
    show(names, [[entry[name] for name in names] for entry in versions], form)


def revert(db: "Connection", given: str, version: int) -> None:
    """Save the content of a former version as a new version, and print its number."""
    document = db.documents.get(uuid_of(db, given))
    saved = db.documents.restore_version(document["uuid"], version, version=document["version"])
    print(f"{saved['uuid']}  version {saved['version']}")


def share(db: "Connection", given: str, permission: str, *, users: Sequence[str], groups: Sequence[str]) -> None:
    """Grant or revoke a permission, and print who may use the document."""
    if not (users or groups):
        raise WrongUse("-u or -g is required")
    shared = db.documents.share(uuid_of(db, given), permission, users=users, groups=groups)
    for grant in shared["grants"]:
        print(f"{grant['permission']}  {grant['user'] or grant['group']}")


def give(db: "Connection", given: Sequence[str], to_user: str, *, from_user: str | None, keep: str) -> None:
    """Change the owner of documents, or of all documents of a user. Print how many have changed. Raises WrongUse."""
    if bool(given) == (from_user is not None):
        raise WrongUse("documents or --from are required, not both")
    if from_user is not None:
        changed = db.documents.change_owner_of_all(from_user, to_user, keep=keep)
    else:
        changed = sum(db.documents.change_owner(uuid_of(db, one), to_user, keep=keep) for one in given)
    print(f"{changed} document{' now belongs' if changed == 1 else 's now belong'} to {to_user}.")


def delete(db: "Connection", given: Sequence[str], *, skip_trash: bool) -> None:
    for one in given:
        db.documents.delete(uuid_of(db, one), skip_trash=skip_trash)


def restore(db: "Connection", given: Sequence[str]) -> None:
    """Take documents out of the trash. A name is looked up there."""
    for one in given:
        db.documents.restore(uuid_of(db, one, in_trash=True))


def uuid_of(db: "Connection", given: str, *, in_trash: bool = False) -> str:
    """Return the uuid of a document; `given` is its uuid or its name. Raises WrongUse."""
    try:
        return str(UUID(given))
    except ValueError:
        pass
    found = _named(given, db.documents.list(given, in_trash=in_trash))
    if found is None:
        raise WrongUse(f"there is no document named {given}")
    return found["uuid"]


def _existing(db: "Connection", name: str) -> "Any | None":
    """Return the document with this uuid, or the one with this name that you may change, if any. Raises WrongUse."""
    try:
        return db.documents.get(str(UUID(name)))
    except ValueError:
        pass
    return _named(name, (one for one in db.documents.list(name) if one["permission"] in ("edit", "manage")))


def _named(name: str, entries: "Iterable[Any]") -> "Any | None":
    """Return the entry with this name; None if there is none. Your own documents come before those of others.

    Otherwise, a user who shares a document could change what your commands mean. Raises WrongUse.
    """
    found = [one for one in entries if one["name"] == name]
    own = [one for one in found if one["permission"] == "manage"]
    found = own or found
    if len(found) > 1:
        raise WrongUse(f"several documents are named {name}; use a uuid: {', '.join(one['uuid'] for one in found)}")
    return found[0] if found else None


def _parameter(text: str) -> "dict[str, Any]":
    """Parse `name`, `name:type`, `name=default` or `name:type=default`. Raises WrongUse."""
    found = _PARAMETER.fullmatch(text)
    if found is None:
        raise WrongUse(f"-p {text}: must have the form name:type=default")
    parameter: dict[str, Any] = {"name": found[1]}
    if found[2]:
        parameter["type"] = found[2].lower()
    if found[3] is not None:
        parameter["default"] = _default(found[3], found[2])
    return parameter


def _default(text: str, kind: str | None) -> Any:
    """Return the JSON value of a default. The values of most types are sent as text, so that no digit is lost.

    Raises WrongUse.
    """
    if kind is not None and kind.lower() == "boolean":
        if text.lower() not in {"true", "false"}:
            raise WrongUse(f"{text!r} is not a valid boolean; use true or false")
        return text.lower() == "true"
    if kind is not None and kind.lower() != "array":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text

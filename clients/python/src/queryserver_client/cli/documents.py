"""`qs documents`: lists, shows, saves, runs, shares and deletes saved queries."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from queryserver_client.cli.failures import FAILED, WrongUse, say, text_of
from queryserver_client.cli.forms import Form
from queryserver_client.cli.operations import show, stored_id
from queryserver_client.cli.output import form_of
from queryserver_client.cli.parameters import parameters_of
from queryserver_client.cli.sql import put
from queryserver_client.errors import StatementError

if TYPE_CHECKING:
    from queryserver_client.sync import Connection

_PARAMETER = re.compile(r"([A-Za-z_]\w*)(?::(\w+))?(?:=(.*))?", re.DOTALL)


@dataclass(frozen=True)
class NewDocument:
    """The arguments of `qs documents save`."""

    name: str
    words: Sequence[str]
    """The statement, if it is an argument."""
    file: Path | None
    operation: str | None
    parameters: Sequence[str] | None
    fields: "dict[str, Any]"


def show_list(db: "Connection", form: Form | None, *, text: str, most: int, filters: "dict[str, Any]") -> None:
    """Print the newest `most` documents that match."""
    names = ["uuid", "name", "type", "owner", "folder", "permission", "version", "modified"]
    records = [[entry[name] for name in names] for entry in db.documents.list(text, limit=most, **filters)]
    show(names, records, form)


def show_document(db: "Connection", given: str, *, version: int | None, as_json: bool) -> None:
    """Print the statement of a document or, if `as_json` is set, everything."""
    uuid = _uuid(db, given)
    found: Any = db.documents.get(uuid) if version is None else db.documents.version(uuid, version)
    print(json.dumps(found, indent=2, ensure_ascii=False) if as_json else found["statement"])


def save(db: "Connection", new: NewDocument) -> None:
    """Create a document, or save a new version of your document with this name. Print its uuid and version."""
    fields = {name: value for name, value in new.fields.items() if value is not None}
    if new.parameters is not None:
        fields["parameters"] = [_parameter(text) for text in new.parameters]
    if new.operation is not None:
        fields["operation_id"] = stored_id(db, new.operation)
    statement = _statement(new)
    existing = _existing(db, new.name)
    if existing is None:
        saved = db.documents.save(new.name, statement, **fields)
    else:
        saved = db.documents.save(None, statement, uuid=existing["uuid"], version=existing["version"], **fields)
    print(f"{saved['uuid']}  version {saved['version']}")


def run(
    db: "Connection",
    given: str,
    parameters: Sequence[str],
    output: Form | None,
    to: Path | None,
    options: "dict[str, Any]",
) -> int:
    """Run a document and print its result, which is then deleted on the server. Return the exit code."""
    form, values = form_of(output, to), parameters_of(parameters)
    try:
        with db.documents.run(_uuid(db, given), values, allow_truncated=True, **options) as result:
            return put(db, result, form, to, is_expanded=False)
    except StatementError as error:
        say(text_of(error))
        return FAILED


def share(db: "Connection", given: str, permission: str, *, users: Sequence[str], groups: Sequence[str]) -> None:
    """Grant or revoke a permission, and print who may use the document."""
    if not (users or groups):
        raise WrongUse("-u or -g is required")
    shared = db.documents.share(_uuid(db, given), permission, users=users, groups=groups)
    for grant in shared["grants"]:
        print(f"{grant['permission']}  {grant['user'] or grant['group']}")


def delete(db: "Connection", given: Sequence[str], *, skip_trash: bool) -> None:
    for one in given:
        db.documents.delete(_uuid(db, one), skip_trash=skip_trash)


def restore(db: "Connection", given: Sequence[str]) -> None:
    """Take documents out of the trash. A name is looked up there."""
    for one in given:
        db.documents.restore(_uuid(db, one, in_trash=True))


def _uuid(db: "Connection", given: str, *, in_trash: bool = False) -> str:
    """Return the uuid of a document; `given` is its uuid or its name. Raises WrongUse."""
    try:
        return str(UUID(given))
    except ValueError:
        pass
    found = [one["uuid"] for one in db.documents.list(given, in_trash=in_trash) if one["name"] == given]
    if not found:
        raise WrongUse(f"there is no document named {given}")
    if len(found) > 1:
        raise WrongUse(f"several documents are named {given}; use a uuid: {', '.join(found)}")
    return found[0]


def _existing(db: "Connection", name: str) -> "Any | None":
    """Return your document with this name, or the document with this uuid; None if there is none. Raises WrongUse."""
    try:
        return db.documents.get(str(UUID(name)))
    except ValueError:
        pass
    found = [one for one in db.documents.list(name) if one["name"] == name and one["permission"] in ("edit", "manage")]
    if len(found) > 1:
        raise WrongUse(f"several documents are named {name}; use a uuid: {', '.join(one['uuid'] for one in found)}")
    return found[0] if found else None


def _statement(new: NewDocument) -> str | None:
    """Return the statement of the command; None if it stays as it is, or comes from an operation."""
    if new.file is not None:
        return new.file.read_text("utf-8-sig")
    if new.words and new.words[0] != "-":
        return new.words[0]
    return sys.stdin.read() if new.words else None


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
    """Return the JSON value of a default. The values of most types are sent as text, so that no digit is lost."""
    if kind is not None and kind.lower() == "boolean":
        return text.lower() == "true"
    if kind is not None and kind.lower() != "array":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text

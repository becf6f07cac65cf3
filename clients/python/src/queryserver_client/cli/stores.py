"""`qs ls`, `qs cat`, `qs mkdir` and `qs rm` for files in stores, and functions for remote paths."""

import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from queryserver_client.cli.failures import FAILED, WrongUse, say, text_of, visible
from queryserver_client.cli.forms import Form
from queryserver_client.cli.operations import show, utc_text
from queryserver_client.cli.output import write_records
from queryserver_client.errors import NotFound, QueryserverError

if TYPE_CHECKING:
    from queryserver_client.files import Entry
    from queryserver_client.sync import Connection

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_ROOT = re.compile(r"(:|[A-Za-z][A-Za-z0-9+.-]+://[^/]*)/*")
_NAMES = ["permissions", "owner", "group", "size", "modified", "path"]


def is_remote(path: str) -> bool:
    """Return whether a path is remote: `s3a://…`, `hdfs://…`, `file:///…`, or `:/…` in the server's default store."""
    return path.startswith(":/") or _URL.match(path) is not None


def remote(path: str) -> str:
    """Return a remote path in the form that the server expects. Raises WrongUse for a local path."""
    if not is_remote(path):
        raise WrongUse(f"{path} is a local path; server paths have the form store://… or :/…")
    return path.removeprefix(":")


def name_of(path: str) -> str:
    """Return the last component of a remote path; empty for a root such as `:/`, `file:///` or `s3a://bucket/`."""
    return "" if _ROOT.fullmatch(path) else path.rstrip("/").rpartition("/")[2]


def join(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"


def list_entries(db: "Connection", paths: Sequence[str], form: Form | None, *, is_long: bool) -> None:
    """List the contents of directories, and files themselves. If there are no paths, list the stores."""
    if not paths:
        stores = [[item.name, item.home, "yes" if item.has_trash else "no"] for item in db.files.filesystems()]
        show(["store", "home", "trash"], stores, form)
        return
    entries = [entry for path in paths for entry in _entries(db, remote(path))]
    if form is None and not is_long:
        for entry in entries:
            print(_name(entry))
        return
    if form not in (None, Form.TABLE):
        write_records(_NAMES, [_record(entry) for entry in entries], form)
        return
    show(_NAMES, [[*_record(entry)[:-1], _name(entry)] for entry in entries], Form.TABLE)


def print_bytes(db: "Connection", paths: Sequence[str]) -> None:
    """Write the bytes of the files to stdout, one file after another. Memory holds one chunk."""
    for path in [remote(path) for path in paths]:
        for chunk in chunks(db, path):
            sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


def chunks(db: "Connection", path: str) -> Iterator[bytes]:
    """Yield the bytes of a file. Resumes after a lost connection."""
    from queryserver_client.downloads import Download  # noqa: PLC0415

    download = Download(db.core.transport, "storage/download", {"path": path})
    return db.loop.iterate(download.chunks)


def make_directories(db: "Connection", paths: Sequence[str], *, parents: bool) -> None:
    """Create directories. If `parents` is set, existing directories are not an error."""
    for path in [remote(path) for path in paths]:
        db.files.mkdir(path, exist_ok=parents)


def remove(db: "Connection", paths: Sequence[str], *, recursive: bool, skip_trash: bool, force: bool) -> int:
    """Remove entries, or move them to the trash if the store has one. Return exit code 1 if any removal failed."""
    places = [remote(path) for path in paths]  # checks all paths before the first entry is removed
    return max([_removed(db, path, recursive, skip_trash, force) for path in places], default=0)


def _removed(db: "Connection", path: str, recursive: bool, skip_trash: bool, force: bool) -> int:
    try:
        _require_file(db, path, recursive)
        removed = db.files.remove(path, skip_trash=True if skip_trash else None)
    except (QueryserverError, WrongUse) as error:
        if isinstance(error, NotFound) and force:
            return 0
        say(text_of(error))
        return FAILED
    if removed.trash_path is not None and sys.stderr.isatty():
        print(f"{visible(path)} was moved to the trash: {visible(removed.trash_path)}", file=sys.stderr)
    return 0


def _require_file(db: "Connection", path: str, recursive: bool) -> None:
    if not recursive and db.files.stat(path).is_directory:
        raise WrongUse(f"{path} is a directory; use -r")


def _entries(db: "Connection", path: str) -> "Iterator[Entry]":
    entry = db.files.stat(path)
    if entry.is_directory:
        return db.files.list(path)
    return iter([entry])


def _name(entry: "Entry") -> str:
    """Return the name of an entry, with control characters escaped on a terminal. Directories end with a slash."""
    name = entry.name + ("/" if entry.is_directory else "")
    return visible(name) if sys.stdout.isatty() else name


def _record(entry: "Entry") -> list[Any]:
    modified = None if entry.modified is None else utc_text(entry.modified)
    return [entry.permissions, entry.owner, entry.group, entry.size, modified, entry.path]

"""`qs cp` and `qs mv`: transfers between this machine and the server's stores, and between stores.

All files are listed before a transfer, so that one progress bar shows the total. Existing files are replaced only if
`--force` is set, and each file appears only once it is complete.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from queryserver_client.cli.failures import WrongUse, say, visible
from queryserver_client.cli.stores import chunks, is_remote, join, name_of, remote
from queryserver_client.cli.terminal import byte_bar
from queryserver_client.errors import NotFound

if TYPE_CHECKING:
    from queryserver_client.sync import Connection

STANDARD = "-"


@dataclass(frozen=True)
class Options:
    """Options for cp and mv."""

    is_recursive: bool = False
    is_forced: bool = False
    is_continued: bool = False
    """Skip existing files of the same size, to resume an interrupted transfer of a directory."""


@dataclass(frozen=True)
class _File:
    source: str
    target: str
    size: int
    version: tuple[int, ...] = ()
    """Identifies the version of a local file. If it changes, the content may have changed."""


def copy(db: "Connection", sources: Sequence[str], target: str, options: Options) -> None:
    """Copy like cp: into `target` if it is an existing directory, otherwise to the path `target`."""
    _transfer(db, sources, target, options, is_moved=False)


def move(db: "Connection", sources: Sequence[str], target: str, options: Options) -> None:
    """Copy like `copy`, and delete each source once its copy is complete.

    Sources in a store with a trash are moved to the trash.
    """
    _transfer(db, sources, target, options, is_moved=True)


def _transfer(db: "Connection", sources: Sequence[str], target: str, options: Options, *, is_moved: bool) -> None:
    if STANDARD in (*sources, target):
        _stream(db, sources, target, options, is_moved=is_moved)
        return
    if not is_remote(target) and not all(is_remote(source) for source in sources):
        raise WrongUse("both paths are local; server paths have the form store://… or :/…")
    into = _is_directory(db, target)
    if len(sources) > 1 and not into:
        raise WrongUse(f"{target} is not a directory, but there are several sources")
    if is_moved and (roots := [source for source in sources if not _name(source)]):
        raise WrongUse(f"{roots[0]} is a root, which cannot be moved")
    for source in sources:
        place = _place(source, target, into=into)
        if not is_remote(source):
            if is_moved and (links := _directory_links(Path(source))):
                raise WrongUse(f"{visible(str(links[0]))} is a link to a directory, which mv would lose; use cp -r")
            files = _upload(db, Path(source), remote(place), options)
            if is_moved:
                _remove_local(Path(source), files)
        elif is_remote(target):
            _change(db, remote(source), remote(place), options, is_moved=is_moved)
        else:
            _take(db, remote(source), Path(place), options, is_moved=is_moved)


def _change(db: "Connection", source: str, target: str, options: Options, *, is_moved: bool) -> None:
    """Copy or move between paths on the server, and wait for completion."""
    if is_moved:
        db.files.move(source, target, overwrite=options.is_forced)
        return
    if db.files.stat(source).is_directory:
        _require_recursive(source, options)
    if name_of(source):
        db.files.copy(source, target, overwrite=options.is_forced)
        return
    # The server cannot copy a root directory, so its entries are copied one by one.
    entries = list(db.files.list(source))
    db.files.mkdir(target, exist_ok=True)
    place = db.files.stat(target).path
    if any(f"{place}/".startswith(f"{entry.path}/") for entry in entries):
        raise WrongUse(f"{target} is inside {source}; nothing was copied")
    for entry in entries:
        db.files.copy(entry.path, join(target, entry.name), overwrite=options.is_forced)


def _take(db: "Connection", source: str, target: Path, options: Options, *, is_moved: bool) -> None:
    if is_moved and db.files.stat(source).is_directory:
        # Entries that cannot be downloaded, such as links, would be deleted with the directory.
        raise WrongUse(f"{source} is a directory; copy it with cp -r, then delete it with rm -r")
    _download(db, source, target, options)
    if is_moved:
        db.files.remove(source)


def _download(db: "Connection", source: str, target: Path, options: Options) -> None:
    entry = db.files.stat(source)
    if not entry.is_directory:
        _carry(
            [_File(entry.path, str(target), entry.size)], options, _local_size, lambda file, on: _fetch(db, file, on)
        )
        return
    _require_recursive(source, options)
    target.mkdir(exist_ok=True)
    files: list[_File] = []
    waiting = [(entry.path, target)]
    while waiting:
        directory, place = waiting.pop()
        for item in db.files.list(directory):
            here = place / _checked(item.name)
            if item.is_directory:
                here.mkdir(exist_ok=True)
                waiting.append((item.path, here))
            elif item.is_file:
                files.append(_File(item.path, str(here), item.size))
            else:
                say(f"{visible(item.path)} was skipped: it is neither a file nor a directory")
    _carry(files, options, _local_size, lambda file, on: _fetch(db, file, on))


def _upload(db: "Connection", source: Path, target: str, options: Options) -> list[_File]:
    if not source.is_dir():
        files = [_local_file(source, target)]
    else:
        _require_recursive(str(source), options)
        files = []
        for link in _directory_links(source):
            say(f"{visible(str(link))} was skipped: it is a link to a directory")
        db.files.mkdir(target, exist_ok=True)
        for root, directories, names in os.walk(source):
            below = Path(root).relative_to(source).parts
            place = "/".join([target.rstrip("/"), *below])
            for name in sorted(directories):
                if Path(root, name).is_symlink():
                    continue
                db.files.mkdir(join(place, name), exist_ok=True)
            files += [_local_file(Path(root, name), join(place, name)) for name in _files_of(root, names)]

    def size(path: str) -> int | None:
        try:
            return db.files.stat(path).size
        except NotFound:
            return None

    def send(file: _File, on_bytes: "Callable[[int, int | None], None]") -> None:
        db.files.upload(file.source, file.target, overwrite=options.is_forced, on_bytes=on_bytes)

    _carry(files, options, size, send)
    return files


def _carry(
    files: Sequence[_File],
    options: Options,
    size_there: "Callable[[str], int | None]",
    transfer: "Callable[[_File, Callable[[int, int | None], None]], None]",
) -> None:
    """Transfer files one after another, with one progress bar for all of them.

    `size_there` returns the size of the file at a target path, or None. Raises FileExistsError.
    """
    total, done, count = sum(file.size for file in files), 0, len(files)
    name = visible(Path(files[0].source).name) if count == 1 else f"{count} files"
    with byte_bar(name) as move_bar:
        for file in files:
            there = size_there(file.target) if options.is_continued or not options.is_forced else None
            if there is not None and options.is_continued and there == file.size:
                done += file.size
                continue
            if there is not None and not options.is_forced:
                raise FileExistsError(f"{file.target} already exists; -f replaces it, -c skips complete files")

            def on_bytes(now: int, _: int | None, before: int = done) -> None:
                if move_bar is not None:
                    move_bar(before + now, total)

            transfer(file, on_bytes)
            done += file.size
        if move_bar is not None:
            move_bar(total, total)


def _stream(db: "Connection", sources: Sequence[str], target: str, options: Options, *, is_moved: bool) -> None:
    """Transfer from stdin or to stdout."""
    if is_moved or len(sources) != 1:
        raise WrongUse("- can only be the single source or the target of cp")
    if target == STANDARD:
        for chunk in chunks(db, remote(sources[0])):
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return
    if target.endswith("/"):
        raise WrongUse("data from stdin needs a file name as the target")
    # Unbuffered, because an abandoned read would still hold the buffer's lock when Python exits.
    with (
        open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as stdin,
        byte_bar(visible(target.rpartition("/")[2])) as on_bytes,
    ):
        db.files.upload(cast("BinaryIO", stdin), remote(target), overwrite=options.is_forced, on_bytes=on_bytes)


def _fetch(db: "Connection", file: _File, on_bytes: "Callable[[int, int | None], None]") -> None:
    db.files.download(file.source, file.target, on_bytes=on_bytes)


def _local_size(path: str) -> int | None:
    try:
        facts = Path(path).stat()
        return facts.st_size if stat.S_ISREG(facts.st_mode) else None  # /dev/null and pipes can always be written to
    except FileNotFoundError:
        return None


def _is_directory(db: "Connection", path: str) -> bool:
    if not is_remote(path):
        return Path(path).is_dir()
    try:
        return db.files.stat(remote(path)).is_directory
    except NotFound:
        if path.endswith("/"):
            raise
        return False


def _place(source: str, target: str, *, into: bool) -> str:
    """Return the path of the copy.

    A root directory has no name, so its contents are copied into the target itself, as with cp and rsync.
    """
    name = _name(source)
    if not into or not name:
        return target
    return join(target, name) if is_remote(target) else str(Path(target) / _checked(name))


def _name(source: str) -> str:
    return name_of(source) if is_remote(source) else Path(source).resolve().name


def _checked(name: str) -> str:
    """Return a file name from the server for local use. Raises OSError if it could point outside the directory."""
    if name in {"", ".", ".."} or "/" in name or "\0" in name or (os.altsep and "\\" in name):
        raise OSError(f"{name!r} is not a valid file name on this machine")
    return name


def _require_recursive(path: str, options: Options) -> None:
    if not options.is_recursive:
        raise WrongUse(f"{path} is a directory; use -r")


def _directory_links(source: Path) -> list[Path]:
    """Return the links to directories inside a directory.

    These links are not followed, because they may point outside the directory or back into it.
    """
    found = (Path(root, name) for root, directories, _ in os.walk(source) for name in sorted(directories))
    return [path for path in found if path.is_symlink()]


def _remove_local(path: Path, files: Sequence[_File]) -> None:
    """Remove the transferred files and then the empty directories.

    A file that changed since is kept, and OSError is raised. A directory with new files is not removed either.
    """
    kept = 0
    for file in files:
        if _version(Path(file.source)) == file.version:
            Path(file.source).unlink()
        else:
            kept += 1
            say(f"{visible(file.source)} changed during the transfer and was not deleted")
    if kept:
        raise OSError(f"{kept} {'file was' if kept == 1 else 'files were'} copied but not moved")
    if path.is_dir():
        for root, _, _ in os.walk(path, topdown=False):
            Path(root).rmdir()


def _files_of(directory: str, names: Sequence[str]) -> Iterator[str]:
    for name in sorted(names):
        path = Path(directory, name)
        # A dangling link is yielded, so that the transfer fails: it may have been included on purpose.
        if path.is_file() or not path.exists():
            yield name
        else:
            say(f"{visible(str(path))} was skipped: it is neither a file nor a directory")


def _local_file(path: Path, target: str) -> _File:
    return _File(str(path), target, path.stat().st_size, _version(path))


def _version(path: Path) -> tuple[int, ...]:
    facts = path.stat()
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns

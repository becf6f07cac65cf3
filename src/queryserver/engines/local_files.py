"""Where the database files of embedded engines may lie (Contract platform 5.11)."""

from pathlib import Path, PurePosixPath

from queryserver.domain.errors.files import InvalidPath
from queryserver.domain.errors.statements import EngineUnavailable

MEMORY = ":memory:"


def database_file(root: Path | None, path: str) -> Path:
    """The file that `path` names below `root`. Raises InvalidPath: absolute, with `..`, odd, or without a root."""
    if root is None:
        raise InvalidPath("Only :memory: is allowed: local_database_dir is not set.")
    parts = PurePosixPath(path).parts
    if path.startswith("~"):
        raise InvalidPath("The path of a database must be relative to local_database_dir: there is no home directory.")
    if not parts or path != "/".join(parts) or path.startswith("/") or ".." in parts or _is_odd(path):
        raise InvalidPath("The path of a database must be relative to local_database_dir, without .. or links.")
    return root.resolve().joinpath(*parts)


def require_folder(root: Path | None, path: str) -> None:
    """Raises InvalidPath when the folder of the database is missing: engines create files, not folders. Blocks."""
    if path != MEMORY and not (folder := database_file(root, path).parent).is_dir():
        name = folder.name if root is not None and folder != root.resolve() else "local_database_dir"
        raise InvalidPath(f"The folder {name} of the database does not exist: create it first.")


def refuse_links(root: Path, file: Path) -> None:
    """Raises EngineUnavailable when a name on the way from `root` to `file` is a link. Blocks; for each open."""
    step = root.resolve()
    for name in file.relative_to(step).parts:
        step = step / name
        if step.is_symlink():
            raise EngineUnavailable("The database file is behind a link.")


def _is_odd(path: str) -> bool:
    return "\\" in path or ":" in path or any(ord(character) < ord(" ") for character in path)

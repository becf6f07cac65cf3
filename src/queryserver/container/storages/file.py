"""Store `file`: the directory `filebrowser.local_root`."""

from collections.abc import Iterator

from queryserver.container.disk import disk_floor
from queryserver.domain.errors.base import ConfigurationError
from queryserver.interfaces.storage import FileSystem
from queryserver.settings import Settings
from queryserver.storages.local import LocalFileSystem


def build(settings: Settings) -> FileSystem | None:
    """None without `local_root`. Raises ConfigurationError."""
    filebrowser = settings.filebrowser
    if problems := list(problems_of(settings)):
        raise ConfigurationError(problems)
    if filebrowser.local_root is None:
        return None
    return LocalFileSystem(
        filebrowser.local_root,
        umask=int(filebrowser.umask, 8),
        floor=disk_floor(settings),
        max_bytes_per_user=filebrowser.max_bytes_per_user,
    )


def problems_of(settings: Settings) -> Iterator[str]:
    """What is wrong with the directory: it is the operator's, so that it is never made."""
    root = settings.filebrowser.local_root
    if root is not None and not root.is_dir():
        yield f"filebrowser.local_root: {root} is not a directory."

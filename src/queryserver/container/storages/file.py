"""Store `file`: the directory `filebrowser.local_root`."""

from queryserver.interfaces.storage import FileSystem
from queryserver.settings import Settings
from queryserver.storages.local import LocalFileSystem


def build(settings: Settings) -> FileSystem | None:
    """None without `local_root`."""
    filebrowser = settings.filebrowser
    if filebrowser.local_root is None:
        return None
    return LocalFileSystem(filebrowser.local_root, umask=int(filebrowser.umask, 8))

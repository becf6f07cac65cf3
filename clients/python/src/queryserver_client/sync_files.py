"""`Connection.files` without `await`."""

import io

from queryserver_client import files as core
from queryserver_client.faces import Face, blocking, iterating
from queryserver_client.reading import buffered


class Files(Face[core.Files]):
    """As the async Files, without `await`."""

    filesystems = blocking(core.Files.filesystems)
    list = iterating(core.Files.list)
    walk = iterating(core.Files.walk)
    stat = blocking(core.Files.stat)
    exists = blocking(core.Files.exists)
    summary = blocking(core.Files.summary)
    view = blocking(core.Files.view)
    read = blocking(core.Files.read)
    download = blocking(core.Files.download)
    upload = blocking(core.Files.upload)
    mkdir = blocking(core.Files.mkdir)
    touch = blocking(core.Files.touch)
    write_text = blocking(core.Files.write_text)
    rename = blocking(core.Files.rename)
    move = blocking(core.Files.move)
    copy = blocking(core.Files.copy)
    remove = blocking(core.Files.remove)
    restore = blocking(core.Files.restore)
    trash = blocking(core.Files.trash)
    purge_trash = blocking(core.Files.purge_trash)
    chmod = blocking(core.Files.chmod)
    chown = blocking(core.Files.chown)

    def open(self, path: str) -> io.BufferedReader:
        """A file object of Python, for `with`: it can be read, from any place, also by pandas, pyarrow or zipfile."""
        return buffered(self.loop, self.loop.run(lambda: self.core.open(path)))

"""New files under names that a rename cannot give."""

from collections.abc import AsyncIterator
from contextlib import suppress

from queryserver.domain.errors.base import NotSupported, QueryServerError
from queryserver.domain.errors.files import PathExists
from queryserver.domain.files import FileStatus
from queryserver.storages.webhdfs.finishing import finished
from queryserver.storages.webhdfs.tree import NewFile, Tree
from queryserver.storages.webhdfs.writing import remove_broken, write_verified


async def written_in_place(tree: Tree, path: str, body: AsyncIterator[bytes], *, overwrite: bool) -> FileStatus:
    """Store a new file under its own name: Ozone shows it when its last byte is there.

    After a failure the gateway may show what came, until this has deleted it; so no file is replaced this way.
    Raises PathExists, VerificationFailed, NotSupported: there is a file that must be replaced.
    """
    former = await tree.find(path)
    if former is not None and (not overwrite or not former.is_file):
        raise PathExists(f"/{path} exists.")
    if former is not None:
        raise NotSupported("Ozone's gateway does not replace files whose path has one of & < > ' \".")
    try:
        return await write_verified(tree, path, body, NewFile(0o666), overwrite=False)
    except PathExists:
        raise
    except BaseException:  # a cancel too: no part of a file may stay
        with suppress(QueryServerError):
            await finished(remove_broken(tree, path))
        raise

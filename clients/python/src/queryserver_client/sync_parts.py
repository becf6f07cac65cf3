"""The parts of a synchronous connection: files, imports, connectors, documents, schedules, history and so on."""

import io

from queryserver_client.connectors import Connectors as AsyncConnectors
from queryserver_client.documents import Documents as AsyncDocuments
from queryserver_client.faces import Face, blocking, iterating
from queryserver_client.files import Files as AsyncFiles
from queryserver_client.history import History as AsyncHistory
from queryserver_client.imports import Imports as AsyncImports
from queryserver_client.metadata import Metadata as AsyncMetadata
from queryserver_client.reading import buffered
from queryserver_client.schedules import Schedules as AsyncSchedules
from queryserver_client.users import Users as AsyncUsers


class Files(Face[AsyncFiles]):
    """Like the async Files, without `await`."""

    filesystems = blocking(AsyncFiles.filesystems)
    list = iterating(AsyncFiles.list)
    walk = iterating(AsyncFiles.walk)
    stat = blocking(AsyncFiles.stat)
    exists = blocking(AsyncFiles.exists)
    summary = blocking(AsyncFiles.summary)
    view = blocking(AsyncFiles.view)
    read = blocking(AsyncFiles.read)
    download = blocking(AsyncFiles.download)
    upload = blocking(AsyncFiles.upload)
    mkdir = blocking(AsyncFiles.mkdir)
    touch = blocking(AsyncFiles.touch)
    write_text = blocking(AsyncFiles.write_text)
    rename = blocking(AsyncFiles.rename)
    move = blocking(AsyncFiles.move)
    copy = blocking(AsyncFiles.copy)
    remove = blocking(AsyncFiles.remove)
    restore = blocking(AsyncFiles.restore)
    trash = blocking(AsyncFiles.trash)
    purge_trash = blocking(AsyncFiles.purge_trash)
    chmod = blocking(AsyncFiles.chmod)
    chown = blocking(AsyncFiles.chown)

    def open(self, path: str) -> io.BufferedReader:
        """Open a file as a seekable Python file object, which pandas, pyarrow and zipfile can also read.

        To be used with `with`.
        """
        return buffered(self.loop, self.loop.run(lambda: self.core.open(path)))


class Imports(Face[AsyncImports]):
    """Like the async Imports, without `await`. `submit` is missing; use `load`, which waits for completion."""

    upload = blocking(AsyncImports.upload)
    discard = blocking(AsyncImports.discard)
    guess = blocking(AsyncImports.guess)
    options = blocking(AsyncImports.options)
    preview = blocking(AsyncImports.preview)
    types = blocking(AsyncImports.types)
    load = blocking(AsyncImports.load)


class Connectors(Face[AsyncConnectors]):
    """Like the async Connectors, without `await`."""

    usable = blocking(AsyncConnectors.usable)
    list = blocking(AsyncConnectors.list)
    types = blocking(AsyncConnectors.types)
    get = blocking(AsyncConnectors.get)
    create = blocking(AsyncConnectors.create)
    update = blocking(AsyncConnectors.update)
    delete = blocking(AsyncConnectors.delete)
    test = blocking(AsyncConnectors.test)


class Documents(Face[AsyncDocuments]):
    """Like the async Documents, without `await`, except `submit` and `run`, which `sync.Documents` adds."""

    list = iterating(AsyncDocuments.list)
    get = blocking(AsyncDocuments.get)
    save = blocking(AsyncDocuments.save)
    delete = blocking(AsyncDocuments.delete)
    restore = blocking(AsyncDocuments.restore)
    move = blocking(AsyncDocuments.move)
    share = blocking(AsyncDocuments.share)
    change_owner = blocking(AsyncDocuments.change_owner)
    change_owner_of_all = blocking(AsyncDocuments.change_owner_of_all)
    versions = blocking(AsyncDocuments.versions)
    version = blocking(AsyncDocuments.version)
    restore_version = blocking(AsyncDocuments.restore_version)


class Schedules(Face[AsyncSchedules]):
    """Like the async Schedules, without `await`."""

    list = iterating(AsyncSchedules.list)
    get = blocking(AsyncSchedules.get)
    create = blocking(AsyncSchedules.create)
    update = blocking(AsyncSchedules.update)
    pause = blocking(AsyncSchedules.pause)
    resume = blocking(AsyncSchedules.resume)
    delete = blocking(AsyncSchedules.delete)
    run = blocking(AsyncSchedules.run)
    runs = iterating(AsyncSchedules.runs)
    beat_is_running = blocking(AsyncSchedules.beat_is_running)


class History(Face[AsyncHistory]):
    """Like the async History, without `await`."""

    search = iterating(AsyncHistory.search)
    count = blocking(AsyncHistory.count)


class Metadata(Face[AsyncMetadata]):
    """Like the async Metadata, without `await`."""

    databases = iterating(AsyncMetadata.databases)
    tables = iterating(AsyncMetadata.tables)
    table = blocking(AsyncMetadata.table)
    columns = blocking(AsyncMetadata.columns)
    functions = blocking(AsyncMetadata.functions)
    sample = blocking(AsyncMetadata.sample)
    explain = blocking(AsyncMetadata.explain)


class Users(Face[AsyncUsers]):
    """Like the async Users, without `await`."""

    list = iterating(AsyncUsers.list)
    preferences = blocking(AsyncUsers.preferences)
    budget = blocking(AsyncUsers.budget)
    prefer = blocking(AsyncUsers.prefer)

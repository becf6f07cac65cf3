"""Builds the services of exports."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from queryserver.catalog.build import MetadataServices
from queryserver.connectors.registry import Connectors
from queryserver.exports.files import FileExports
from queryserver.exports.model import FILES, Destination, FileDestination
from queryserver.exports.submission import ExportSubmissions
from queryserver.exports.tables import TableDestination, TableExports
from queryserver.files.build import StorageServices
from queryserver.identity.model import User
from queryserver.identity.users import UserDirectory
from queryserver.imports.build import ImportFiles
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import Threads
from queryserver.statements.build import StatementServices


@dataclass(frozen=True, slots=True)
class ExportServices:
    submissions: ExportSubmissions
    files: FileExports
    tables: TableExports

    def target(self, user: User, destination: FileDestination | TableDestination) -> Destination:
        """Return the destination in normal form. Raises the errors of both kinds' `target`."""
        if isinstance(destination, TableDestination):
            return self.tables.target(user, destination)
        return self.files.target(destination)

    def stored_target(self, user: User, stored: Mapping[str, Any], *, path_values: Mapping[str, str]) -> Destination:
        """Return a stored destination in normal form, with placeholders in its path replaced by values.

        Raises the errors of `target`.
        """
        if stored["kind"] != FILES:
            return self.tables.stored_target(user, TableDestination.of_stored(stored))
        destination = FileDestination.read(stored)
        path = destination.path
        for placeholder, value in path_values.items():
            path = path.replace(placeholder, value)
        return self.files.target(replace(destination, path=path))


def export_services(
    settings: Settings,
    *,
    storage: StorageServices,
    users: UserDirectory,
    connectors: Connectors,
    statements: StatementServices,
    metadata: MetadataServices,
    import_files: ImportFiles,
    threads: Threads,
) -> ExportServices:
    files = FileExports(
        storage.statement_files,
        storage.moves,
        statements.result_reader,
        users,
        threads.exporting,
        statements.runner.owned.may_publish,
        is_enabled=settings.desktop.enable_download,
    )
    submissions = ExportSubmissions(
        statements.access, statements.result_reader, statements.downloads, connectors, statements.job_submissions
    )
    runner = statements.runner
    tables = TableExports(
        connectors=connectors,
        users=users,
        credentials=statements.credentials,
        lookups=metadata.lookups,
        reader=statements.result_reader,
        unfinished=import_files.unfinished,
        threads=threads.exporting,
        try_acquire=runner.data.try_acquire,
        begin_publishing=runner.owned.begin_publishing,
        is_enabled=settings.desktop.enable_download,
    )
    return ExportServices(submissions, files, tables)

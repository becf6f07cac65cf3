"""Builds the services of exports."""

from dataclasses import dataclass

from queryserver.connectors.registry import Connectors
from queryserver.exports.files import FileExports
from queryserver.exports.submission import ExportSubmissions
from queryserver.files.build import StorageServices
from queryserver.identity.users import UserDirectory
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import Threads
from queryserver.statements.build import StatementServices


@dataclass(frozen=True, slots=True)
class ExportServices:
    submissions: ExportSubmissions
    files: FileExports


def export_services(
    settings: Settings,
    *,
    storage: StorageServices,
    users: UserDirectory,
    connectors: Connectors,
    statements: StatementServices,
    threads: Threads,
) -> ExportServices:
    files = FileExports(
        storage.statement_files,
        storage.moves,
        statements.result_reader,
        users,
        threads.exporting,
        is_enabled=settings.desktop.enable_download,
    )
    submissions = ExportSubmissions(
        statements.access, statements.result_reader, statements.downloads, connectors, statements.job_submissions
    )
    return ExportServices(submissions, files)

"""`qs export`: writes a result, or the rows of a statement, into files of a store."""

import sys
from typing import TYPE_CHECKING, Any

from queryserver_client.cli.failures import FAILED, WrongUse, say, text_of
from queryserver_client.cli.operations import stored_id
from queryserver_client.cli.stores import remote
from queryserver_client.errors import StatementError
from queryserver_client.exports import Export, file_target

if TYPE_CHECKING:
    from queryserver_client.sync import Connection


def export(db: "Connection", source: str, path: str, *, allow_truncated: bool, **options: Any) -> int:
    """Export a result, named by its id, or the rows of `connector:sql`. Return the exit code."""
    connector, colon, sql = source.partition(":")
    if colon and not sql.strip():
        raise WrongUse(f"{source}: must have the form connector:sql, or be the id of a statement")
    target = file_target(remote(path), **options)

    def run(**callbacks: Any) -> Export:
        if not colon:
            statement = db.statement(stored_id(db, source), allow_truncated=allow_truncated)
            return statement.export(**target, **callbacks)
        result = db.query(connector, sql, into=target, **callbacks)
        return Export.of(result.dicts()[0], result.operation_id)

    try:
        if sys.stderr.isatty():
            from queryserver_client.cli.terminal import ProgressLine  # noqa: PLC0415

            waiting = ProgressLine()
            with waiting.shown():
                exported = run(on_progress=waiting.on_progress)
        else:
            exported = run()
    except StatementError as error:
        say(text_of(error))
        return FAILED
    rows = "1 row" if exported.rows == 1 else f"{exported.rows:,} rows"
    files = "" if exported.files == 1 else f" in {exported.files:,} files"
    print(f"{exported.path}: {rows}{files}, {exported.bytes:,} bytes")
    return 0

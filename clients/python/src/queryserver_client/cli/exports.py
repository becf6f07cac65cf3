"""`qs export`: writes a result, or the rows of a statement, into files of a store."""

from typing import TYPE_CHECKING, Any

from queryserver_client.cli.copies import StatementOptions, follow
from queryserver_client.cli.failures import WrongUse
from queryserver_client.cli.operations import readable_id
from queryserver_client.cli.stores import remote
from queryserver_client.exports import Export, file_target

if TYPE_CHECKING:
    from queryserver_client.sync import Connection


def export(
    db: "Connection", source: str, path: str, given: StatementOptions, *, allow_truncated: bool, **options: Any
) -> int:
    """Export a result, named by its id, or the rows of `connector:sql`. Return the exit code."""
    connector, colon, sql = source.partition(":")
    if colon and not sql.strip():
        raise WrongUse(f"{source}: must have the form connector:sql, or be the id of a statement")
    if not colon:
        given.require_none()
    target, values = file_target(remote(path), **options), given.values()

    def run(**callbacks: Any) -> Export:
        if not colon:
            statement = db.statement(readable_id(db, source), allow_truncated=allow_truncated)
            return statement.export(**target, **callbacks)
        result = db.query(connector, sql, into=target, **values, **callbacks)
        return Export.of(result.dicts()[0], result.operation_id)

    return follow(db, run, sql)

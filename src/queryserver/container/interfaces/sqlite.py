"""Interface `sqlite`: a file below `connector_policy.local_database_dir`, or memory."""

from queryserver.container.interfaces.context import BuildContext
from queryserver.container.interfaces.options import options_of
from queryserver.domain.connector import Connector
from queryserver.engines.sqlite.engine import SqliteEngine
from queryserver.interfaces.engine import Engine


def build(connector: Connector, context: BuildContext) -> Engine:
    """See Builder."""
    with options_of(connector) as options:
        path = options.text("path", ":memory:")
        read_only = options.flag("read_only")
    return SqliteEngine(
        path=path,
        root=context.databases_dir,
        read_only=connector.read_only or read_only,
        cell_max_bytes=context.cell_max_bytes,
    )

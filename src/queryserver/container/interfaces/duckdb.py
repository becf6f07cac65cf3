"""Interface `duckdb`: a file below `connector_policy.local_database_dir`, or memory."""

import re

from queryserver.container.interfaces.context import BuildContext
from queryserver.container.interfaces.options import options_of
from queryserver.domain.connector import Connector
from queryserver.engines.duckdb.engine import DuckdbEngine
from queryserver.interfaces.engine import Engine

_AMOUNT = re.compile(r"\d{1,12}(\.\d{1,6})?\s*([KMGT]i?)?B", re.IGNORECASE)


def build(connector: Connector, context: BuildContext) -> Engine:
    """See Builder."""
    with options_of(connector) as options:
        path = options.text("path", ":memory:")
        memory_limit = options.text("memory_limit", "1GB")
        if not _AMOUNT.fullmatch(memory_limit):
            options.refuse("memory_limit", "must be a number and its unit, such as 512MB or 2GB")
        threads = options.whole("threads", 2, least=1, most=256)
        read_only = options.flag("read_only")
    return DuckdbEngine(
        path=path,
        root=context.databases_dir,
        memory_limit=memory_limit,
        threads=threads,
        read_only=connector.read_only or read_only,
        files=context.files,
    )

"""Interface `duckdb`: a file below `connector_policy.local_database_dir`, or memory."""

import re

from queryserver.container.interfaces.context import BuildContext
from queryserver.container.interfaces.options import Options, options_of
from queryserver.domain.connector import Connector
from queryserver.engines.duckdb.engine import FILE_MEMORY_LIMIT, SESSION_MEMORY_LIMIT, DuckdbEngine
from queryserver.engines.duckdb.temporary import TEMPORARY_MAX_BYTES
from queryserver.engines.local_files import MEMORY
from queryserver.interfaces.engine import Engine

_AMOUNT = re.compile(r"(?P<number>\d{1,12}(\.\d{1,6})?)\s*(?P<prefix>[KMGT]i?)?B", re.IGNORECASE)


def build(connector: Connector, context: BuildContext) -> Engine:
    """See Builder."""
    with options_of(connector) as options:
        path = options.text("path", MEMORY)
        memory_limit = options.text("memory_limit", SESSION_MEMORY_LIMIT if path == MEMORY else FILE_MEMORY_LIMIT)
        if not _AMOUNT.fullmatch(memory_limit):
            options.refuse("memory_limit", "must be a number and its unit, such as 512MB or 2GB")
        temporary_max_bytes = _bytes(options)
        threads = options.whole("threads", 2, least=1, most=256)
        read_only = options.flag("read_only")
    return DuckdbEngine(
        path=path,
        root=context.databases_dir,
        memory_limit=memory_limit,
        threads=threads,
        read_only=connector.read_only or read_only,
        files=context.files,
        cell_max_bytes=context.cell_max_bytes,
        temporary_max_bytes=temporary_max_bytes,
        floor=context.disk_floor,
    )


def _bytes(options: Options) -> int:
    """The option `max_temp_directory_size`; 0B: no temporary files."""
    text = options.text("max_temp_directory_size")
    if not text:
        return TEMPORARY_MAX_BYTES
    found = _AMOUNT.fullmatch(text)
    if found is None:
        options.refuse("max_temp_directory_size", "must be a number and its unit, such as 512MB or 20GB")
        return TEMPORARY_MAX_BYTES
    prefix = (found["prefix"] or "").upper()
    base = 1024 if prefix.endswith("I") else 1000
    return int(float(found["number"]) * base ** ("KMGT".index(prefix[0]) + 1 if prefix else 0))

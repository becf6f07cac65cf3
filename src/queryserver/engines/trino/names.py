"""`<DB>` of Trino: `catalog.schema`, or a schema of the connector's own catalog (Contract editor 10)."""

import re

from queryserver.engines.quoting import identifier

_PART = r'"((?:[^"]|"")+)"|([^".][^.]*)'
_ONE = re.compile(_PART)
_TWO = re.compile(rf"(?:{_PART})\.(?:{_PART})")


def split_database(database: str, default_catalog: str) -> tuple[str, str]:
    """Catalog and schema; parts that hold a dot stand in double quotes."""
    if match := _TWO.fullmatch(database):
        quoted_catalog, catalog, quoted_schema, schema = match.groups()
        return _bare(quoted_catalog, catalog), _bare(quoted_schema, schema)
    if match := _ONE.fullmatch(database):
        return default_catalog, _bare(*match.groups())
    return default_catalog, database


def join_database(catalog: str, schema: str) -> str:
    """The text that `split_database` reads."""
    return ".".join(identifier(part) if "." in part or part.startswith('"') else part for part in (catalog, schema))


def _bare(quoted: str | None, plain: str | None) -> str:
    return plain if quoted is None else quoted.replace('""', '"')  # type: ignore[return-value]

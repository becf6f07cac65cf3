"""What the words of a description mean: kind of table, file format, whether rows can be changed, statistics."""

from collections.abc import Mapping

from queryserver.domain.catalog import TableKind
from queryserver.engines.hiveserver2.catalog_text import known

_KINDS = {
    "MANAGED_TABLE": TableKind.MANAGED,
    "MANAGED": TableKind.MANAGED,
    "EXTERNAL_TABLE": TableKind.EXTERNAL,
    "EXTERNAL": TableKind.EXTERNAL,
    "VIRTUAL_VIEW": TableKind.VIEW,
    "VIEW": TableKind.VIEW,
    "MATERIALIZED_VIEW": TableKind.MATERIALIZED_VIEW,
}
_BY_SERDE = {"opencsvserde": "csv", "jsonserde": "json", "jsonserdeutf8": "json", "regexserde": "text"}
_BY_INPUT = (
    ("parquet", "parquet"),
    ("orc", "orc"),
    ("avro", "avro"),
    ("rcfile", "rcfile"),
    ("sequencefile", "sequencefile"),
    ("json", "json"),
    ("kudu", "kudu"),
    ("iceberg", "iceberg"),
    ("text", "text"),
)
_STATISTICS = ("numRows", "totalSize", "numFiles", "rawDataSize")


def table_kind(word: str) -> TableKind:
    """The kind of a table; an unknown word is an ordinary table."""
    return _KINDS.get(word.upper(), TableKind.MANAGED)


def file_format(details: Mapping[str, str], parameters: Mapping[str, str]) -> str:
    """`parquet`, `orc`, `text`, `kudu`, `iceberg`, …; empty when nothing tells it."""
    handler = parameters.get("storage_handler", "").lower()
    if "kudu" in handler:
        return "kudu"
    if "iceberg" in handler or parameters.get("table_type", "").upper() == "ICEBERG":
        return "iceberg"
    serde = (details.get("SerDe Library") or details.get("Serde Library", "")).rpartition(".")[2].lower()
    if serde in _BY_SERDE:
        return _BY_SERDE[serde]
    input_format = details.get("InputFormat", "").rpartition(".")[2].lower()
    return next((name for part, name in _BY_INPUT if part in input_format), "")


def rows_can_change(format_name: str, parameters: Mapping[str, str]) -> bool:
    """Whether UPDATE and DELETE work: Kudu, Iceberg, Delta, and Hive's full ACID tables."""
    if format_name in {"kudu", "iceberg", "delta", "hudi"}:
        return True
    is_acid = parameters.get("transactional", "").lower() == "true"
    return is_acid and parameters.get("transactional_properties", "default").lower() != "insert_only"


def statistics(parameters: Mapping[str, str]) -> dict[str, str]:
    """Those that the engine has."""
    found = {name: known(parameters.get(name, "")) for name in _STATISTICS}
    return {name: value for name, value in found.items() if value is not None}

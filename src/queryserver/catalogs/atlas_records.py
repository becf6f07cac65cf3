"""Entities of Atlas as records of the search (Contract platform 8.2, 8.5)."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from queryserver.domain.searching import Record, SourceName

_TYPES = {
    "hive_db": "DATABASE",
    "hive_table": "TABLE",
    "hive_column": "FIELD",
    "aws_s3_v2_bucket": "S3BUCKET",
    "aws_s3_v2_directory": "DIRECTORY",
    "aws_s3_v2_object": "FILE",
}
_SOURCE_TYPES = {SourceName.SQL: "HIVE", SourceName.HDFS: "HDFS", SourceName.S3: "S3"}
_VIEW = "VIRTUAL_VIEW"

JsonObject = Mapping[str, Any]


def record_of(entity: JsonObject, source: SourceName) -> Record:
    """One entity header of a search. What Atlas leaves out is empty."""
    attributes: JsonObject = entity.get("attributes") or {}
    name = _text(attributes.get("name")) or _text(entity.get("displayText"))
    place = _place(entity, attributes, name, source)
    return Record(
        original_name=place,
        name=name,
        type=_type(entity, attributes),
        source_type=_SOURCE_TYPES[source],
        identity=_text(entity.get("guid")) or place,
        parent_path=_parent(place, source),
        description=_text(attributes.get("description")) or _text(attributes.get("comment")),
        owner=_text(attributes.get("owner")),
        tags=_texts(entity.get("classificationNames")),
        created=_moment(attributes.get("createTime")),
        last_modified=_moment(attributes.get("modifiedTime") or attributes.get("lastModifiedTime")),
        dialect="hive" if source is SourceName.SQL else None,
        properties={key: value for key, value in attributes.items() if isinstance(value, str | int | float | bool)},
        custom_properties=entity.get("customAttributes") or {},
        further={
            "internalType": _text(entity.get("typeName")),
            "meanings": entity.get("meanings") or [],
            "meaningNames": entity.get("meaningNames") or [],
            "classifications": entity.get("classifications") or [],
            "original_name": name,
        },
    )


def _type(entity: JsonObject, attributes: JsonObject) -> str:
    if attributes.get("tableType") == _VIEW:
        return "VIEW"
    kind = _text(entity.get("typeName"))
    if kind == "hdfs_path":
        return "FILE" if attributes.get("isFile") is True else "DIRECTORY"
    return _TYPES.get(kind, kind.upper())


def _place(entity: JsonObject, attributes: JsonObject, name: str, source: SourceName) -> str:
    """The dotted path of an SQL object, the path of a file."""
    qualified = _text(attributes.get("qualifiedName"))
    if source is SourceName.SQL:
        return qualified.rpartition("@")[0] or name
    path = _text(attributes.get("path")) or qualified.rpartition("@")[0]
    return path or _text(entity.get("displayText"))


def _parent(place: str, source: SourceName) -> str:
    if source is SourceName.SQL:
        parents = place.split(".")[:-1]
        return f"/{'/'.join(parents)}" if parents else ""
    return place.rstrip("/").rpartition("/")[0]


def _moment(milliseconds: object) -> datetime | None:
    if not isinstance(milliseconds, int) or isinstance(milliseconds, bool) or milliseconds <= 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(values: object) -> tuple[str, ...]:
    found: Sequence[object] = values if isinstance(values, list) else ()
    return tuple(value for value in found if isinstance(value, str))

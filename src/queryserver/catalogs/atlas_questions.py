"""What Atlas is asked: a query of ours as the body of its basic search (REST v2, `SearchParameters`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from queryserver.domain.search_terms import Query, Term
from queryserver.domain.searching import SourceName

JsonObject = dict[str, Any]

ENTITY_TYPES: Mapping[SourceName, tuple[str, ...]] = {
    SourceName.SQL: ("hive_db", "hive_table", "hive_column"),
    SourceName.HDFS: ("hdfs_path",),
    SourceName.S3: ("aws_s3_v2_bucket", "aws_s3_v2_directory", "aws_s3_v2_object"),
}
"""Types of entities that stand for the objects of a source."""

_BY_FILTER: Mapping[str, str] = {
    "table": "hive_table",
    "database": "hive_db",
    "field": "hive_column",
    "file": "hdfs_path",
    "directory": "hdfs_path",
}
_ATTRIBUTES = (
    "description", "owner", "createTime", "modifiedTime", "lastModifiedTime", "qualifiedName", "comment", "tableType",
    "path", "isFile",
)  # fmt: skip
"""What records are made of; Atlas tells no other."""
_ANYWHERE = ("name", "description")
_OF_SQL = ("db", "table")


def search_body(query: Query, source: SourceName, *, cluster: str, offset: int, limit: int) -> JsonObject | None:
    """The question for one source; None when nothing there can match."""
    types = _types(query, source)
    criteria = _criteria(query, source, cluster)
    if not types or criteria is None:
        return None
    body: JsonObject = {
        "typeName": ",".join(types),
        "excludeDeletedEntities": True,
        "includeSubTypes": False,
        "includeClassificationAttributes": False,
        "attributes": list(_ATTRIBUTES),
        "sortBy": "qualifiedName",
        "sortOrder": "ASCENDING",
        "offset": offset,
        "limit": limit,
    }
    if tags := query.filters.get("tag"):
        # Several of one name are OR-ed; Atlas takes a list of classifications so.
        body["classification"] = ",".join(_wildcards(tag, written=True) for tag in tags)
    if criteria:
        body["entityFilters"] = {"condition": "AND", "criterion": criteria}
    return body


def _types(query: Query, source: SourceName) -> Sequence[str]:
    """Types of the source that the filter `type` leaves."""
    wanted = query.filters.get("type")
    if wanted is None:
        return ENTITY_TYPES[source]
    named = {entity for word, entity in _BY_FILTER.items() if any(term.is_whole(word) for term in wanted)}
    return [entity for entity in ENTITY_TYPES[source] if entity in named]


def _criteria(query: Query, source: SourceName, cluster: str) -> list[JsonObject] | None:
    """All of them must hold; None: nothing can match."""
    found = [_any_of([_contains(name, term) for name in _ANYWHERE]) for term in query.terms]
    if owners := query.filters.get("owner"):
        found.append(_any_of([_is("owner", term) for term in owners]))
    for name, terms in query.filters.items():
        if name in _OF_SQL:
            if source is not SourceName.SQL:
                return None
            found.append(_any_of([_place(name, term) for term in terms]))
        elif name == "source" and not any(term.is_whole(source) or _is_type_of(term, source) for term in terms):
            return None
    if cluster and source is SourceName.SQL:
        found.append({"attributeName": "qualifiedName", "operator": "endsWith", "attributeValue": f"@{cluster}"})
    return found


def _is_type_of(term: Term, source: SourceName) -> bool:
    return source is SourceName.SQL and term.is_whole("hive")


def _contains(attribute: str, term: Term) -> JsonObject:
    if term.is_literal:
        return {"attributeName": attribute, "operator": "contains", "attributeValue": "".join(term.literals)}
    return {"attributeName": attribute, "operator": "like", "attributeValue": f"*{_wildcards(term)}*"}


def _is(attribute: str, term: Term) -> JsonObject:
    if term.is_literal:
        return {"attributeName": attribute, "operator": "eq", "attributeValue": term.head}
    return {"attributeName": attribute, "operator": "like", "attributeValue": _wildcards(term)}


def _place(name: str, term: Term) -> JsonObject:
    """Qualified names are `db@cluster`, `db.table@cluster` and `db.table.column@cluster`."""
    value = _wildcards(term)
    names = [f"{value}@*", f"{value}.*"] if name == "db" else [f"*.{value}@*", f"*.{value}.*"]
    return _any_of([{"attributeName": "qualifiedName", "operator": "like", "attributeValue": one} for one in names])


def _any_of(criteria: list[JsonObject]) -> JsonObject:
    return criteria[0] if len(criteria) == 1 else {"condition": "OR", "criterion": criteria}


def _wildcards(term: Term, *, written: bool = False) -> str:
    """With the signs that Atlas takes, which are ours. `written`: a literal one in its own case."""
    if written and term.is_literal:
        return term.head
    return "".join(piece if isinstance(piece, str) else piece.sign for piece in term.pieces)

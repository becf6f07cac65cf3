"""Reflection of DuckDB with its table functions. It runs in the session and sees temporary and uncommitted objects.

A single query describes all requested tables. Constraints have no names, because DuckDB does not store them.
"""

# SQLAlchemy's dialects narrow the types of overridden members.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportPrivateUsage=false

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import Connection, reflection
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.engine.reflection import ObjectKind, ObjectScope

from queryserver_client.sqlalchemy.types import type_of

TableKey = tuple[str | None, str]
_ANY = {"scope": ObjectScope.ANY, "kind": ObjectKind.ANY}

_RELATIONS = """
SELECT database_name, schema_name, table_name, 'table' AS kind, temporary, comment
  FROM duckdb_tables() WHERE NOT internal
 UNION ALL
SELECT database_name, schema_name, view_name, 'view', temporary, comment FROM duckdb_views() WHERE NOT internal"""
_TEMPORARY = "temporary AND database_name = 'temp'"
_CURRENT = "NOT temporary AND database_name = current_database() AND schema_name = current_schema()"
_NAMED = "NOT temporary AND database_name = current_database() AND lower(schema_name) = lower(?)"
_DESCRIPTIONS = f"""
WITH relations AS ({_RELATIONS}),
wanted AS (SELECT * FROM relations WHERE {{}}),
columns AS (
  SELECT database_name, schema_name, table_name, list({{{{
           'name': column_name, 'type': data_type, 'is_nullable': is_nullable, 'default': column_default,
           'comment': comment, 'generated': if(is_generated, generation_expression, NULL)
         }}}} ORDER BY column_index) AS columns
    FROM duckdb_columns() SEMI JOIN wanted USING (database_name, schema_name, table_name) GROUP BY ALL),
constraints AS (
  SELECT database_name, schema_name, table_name, list({{{{
           'kind': constraint_type, 'columns': constraint_column_names, 'expression': expression,
           'table': referenced_table, 'others': referenced_column_names
         }}}} ORDER BY constraint_index) AS constraints
    FROM duckdb_constraints() SEMI JOIN wanted USING (database_name, schema_name, table_name) GROUP BY ALL),
indexes AS (
  SELECT database_name, schema_name, table_name, list({{{{
           'name': index_name, 'is_unique': is_unique, 'expressions': expressions::VARCHAR[]
         }}}} ORDER BY index_name) AS indexes
    FROM duckdb_indexes() SEMI JOIN wanted USING (database_name, schema_name, table_name) GROUP BY ALL)
SELECT table_name, kind, temporary, comment, columns, constraints, indexes FROM wanted
  LEFT JOIN columns USING (database_name, schema_name, table_name)
  LEFT JOIN constraints USING (database_name, schema_name, table_name)
  LEFT JOIN indexes USING (database_name, schema_name, table_name)
 ORDER BY temporary, table_name"""


@dataclass(frozen=True)
class Relation:
    """A table or a view. The lists contain structs with the field names of the query above."""

    name: str
    kind: str
    is_temporary: bool
    comment: str | None
    columns: Sequence[Mapping[str, Any]]
    constraints: Sequence[Mapping[str, Any]]
    indexes: Sequence[Mapping[str, Any]]

    def is_of(self, scope: ObjectScope, kind: ObjectKind) -> bool:
        wanted_scope = ObjectScope.TEMPORARY if self.is_temporary else ObjectScope.DEFAULT
        wanted_kind = ObjectKind.TABLE if self.kind == "table" else ObjectKind.VIEW
        return wanted_scope in scope and wanted_kind in kind

    def constraints_of(self, kind: str) -> Iterator[Mapping[str, Any]]:
        return (one for one in self.constraints if one["kind"] == kind)

    def primary_key(self) -> dict[str, Any]:
        columns = [name for one in self.constraints_of("PRIMARY KEY") for name in one["columns"]]
        return {"constrained_columns": columns, "name": None}

    def foreign_keys(self, schema: str | None) -> list[dict[str, Any]]:
        """Return the foreign keys. DuckDB requires that both tables are in the same schema."""
        return [
            {
                "name": None,
                "constrained_columns": list(one["columns"]),
                "referred_schema": schema,
                "referred_table": one["table"],
                "referred_columns": list(one["others"]),
                "options": {},
            }
            for one in self.constraints_of("FOREIGN KEY")
        ]

    def unique_constraints(self) -> list[dict[str, Any]]:
        return [{"name": None, "column_names": list(one["columns"])} for one in self.constraints_of("UNIQUE")]

    def check_constraints(self) -> list[dict[str, Any]]:
        return [{"name": None, "sqltext": one["expression"]} for one in self.constraints_of("CHECK")]


class DuckDBReflection(DefaultDialect):
    """Mixin with the reflection methods. Must precede DefaultDialect in the base classes."""

    def type_of_text(self, text: str) -> Any:
        """Return the SQLAlchemy type for a DuckDB type name."""
        return type_of(text)

    @reflection.cache
    def get_schema_names(self, connection: Connection, **kw: Any) -> list[str]:
        sql = "SELECT schema_name FROM duckdb_schemas() WHERE database_name = current_database() ORDER BY schema_name"
        return list(connection.exec_driver_sql(sql).scalars())

    @reflection.cache
    def get_table_names(self, connection: Connection, schema: str | None = None, **kw: Any) -> list[str]:
        return _names(connection, "table", *_place(schema))

    @reflection.cache
    def get_view_names(self, connection: Connection, schema: str | None = None, **kw: Any) -> list[str]:
        return _names(connection, "view", *_place(schema))

    @reflection.cache
    def get_materialized_view_names(self, connection: Connection, schema: str | None = None, **kw: Any) -> list[str]:
        """Return an empty list, because DuckDB has no materialized views."""
        return []

    @reflection.cache
    def get_temp_table_names(self, connection: Connection, schema: str | None = None, **kw: Any) -> list[str]:
        return _names(connection, "table", _TEMPORARY, ())

    @reflection.cache
    def get_temp_view_names(self, connection: Connection, schema: str | None = None, **kw: Any) -> list[str]:
        return _names(connection, "view", _TEMPORARY, ())

    @reflection.cache
    def has_table(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> bool:
        self._ensure_has_table_connection(connection)
        where, values = _searched(schema)
        sql = f"SELECT count(*) FROM ({_RELATIONS}) WHERE ({where}) AND lower(table_name) = lower(?)"
        return bool(connection.exec_driver_sql(sql, (*values, table_name)).scalar())

    @reflection.cache
    def get_view_definition(self, connection: Connection, view_name: str, schema: str | None = None, **kw: Any) -> str:
        where, values = _searched(schema)
        sql = f"SELECT sql FROM duckdb_views() WHERE ({where}) AND lower(view_name) = lower(?) ORDER BY temporary DESC"
        found = connection.exec_driver_sql(sql, (*values, view_name)).scalar()
        if found is None:
            raise exc.NoSuchTableError(f"{schema}.{view_name}" if schema else view_name)
        return str(found)

    def get_multi_columns(self, connection: Connection, **kw: Any) -> Iterator[tuple[TableKey, Any]]:
        return self._each(connection, self._columns, **kw)

    def get_multi_pk_constraint(self, connection: Connection, **kw: Any) -> Iterator[tuple[TableKey, Any]]:
        return self._each(connection, Relation.primary_key, **kw)

    def get_multi_foreign_keys(
        self, connection: Connection, *, schema: str | None = None, **kw: Any
    ) -> Iterator[tuple[TableKey, Any]]:
        return self._each(connection, lambda found: found.foreign_keys(schema), schema=schema, **kw)

    def get_multi_indexes(self, connection: Connection, **kw: Any) -> Iterator[tuple[TableKey, Any]]:
        return self._each(connection, lambda found: [_index(one) for one in found.indexes], **kw)

    def get_multi_unique_constraints(self, connection: Connection, **kw: Any) -> Iterator[tuple[TableKey, Any]]:
        return self._each(connection, Relation.unique_constraints, **kw)

    def get_multi_check_constraints(self, connection: Connection, **kw: Any) -> Iterator[tuple[TableKey, Any]]:
        return self._each(connection, Relation.check_constraints, **kw)

    def get_multi_table_comment(self, connection: Connection, **kw: Any) -> Iterator[tuple[TableKey, Any]]:
        return self._each(connection, lambda found: {"text": found.comment}, **kw)

    def get_multi_table_options(self, connection: Connection, **kw: Any) -> Iterator[tuple[TableKey, Any]]:
        return self._each(connection, lambda _found: {}, **kw)

    def get_columns(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        return self._one(self.get_multi_columns, connection, table_name, schema, **kw)

    def get_pk_constraint(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        return self._one(self.get_multi_pk_constraint, connection, table_name, schema, **kw)

    def get_foreign_keys(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        return self._one(self.get_multi_foreign_keys, connection, table_name, schema, **kw)

    def get_indexes(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        return self._one(self.get_multi_indexes, connection, table_name, schema, **kw)

    def get_unique_constraints(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        return self._one(self.get_multi_unique_constraints, connection, table_name, schema, **kw)

    def get_check_constraints(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        return self._one(self.get_multi_check_constraints, connection, table_name, schema, **kw)

    def get_table_comment(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        return self._one(self.get_multi_table_comment, connection, table_name, schema, **kw)

    def get_table_options(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        return self._one(self.get_multi_table_options, connection, table_name, schema, **kw)

    def _columns(self, found: Relation) -> list[dict[str, Any]]:
        return [self._column(one) for one in found.columns]

    def _column(self, one: Mapping[str, Any]) -> dict[str, Any]:
        default, generated = one["default"], one["generated"]
        column: dict[str, Any] = {
            "name": one["name"],
            "type": self.type_of_text(one["type"]),
            "nullable": one["is_nullable"],
            "default": None if generated is not None else default,
            "autoincrement": default is not None and default.startswith("nextval("),
            "comment": one["comment"],
        }
        if generated is not None:
            column["computed"] = {"sqltext": generated, "persisted": False}
        return column

    def _one(
        self,
        read: Callable[..., Iterable[tuple[TableKey, Any]]],
        connection: Connection,
        name: str,
        schema: str | None,
        **kw: Any,
    ) -> Any:
        found = dict(read(connection, schema=schema, filter_names=[name], **{**_ANY, **kw}))
        if not found:
            raise exc.NoSuchTableError(f"{schema}.{name}" if schema else name)
        return found[(schema, name)]

    def _each(
        self,
        connection: Connection,
        read: Callable[[Relation], Any],
        *,
        schema: str | None = None,
        filter_names: Sequence[str] | None = None,
        scope: ObjectScope,
        kind: ObjectKind,
        **kw: Any,
    ) -> Iterator[tuple[TableKey, Any]]:
        names = None if filter_names is None else tuple(filter_names)
        relations = self._relations(connection, schema=schema, names=names, **kw)
        # A temporary relation comes after others of the same name and, if both match, replaces them in the dict.
        for name, relation in {name: one for name, one in relations if one.is_of(scope, kind)}.items():
            yield (schema, name), read(relation)

    @reflection.cache
    def _relations(
        self, connection: Connection, *, schema: str | None, names: tuple[str, ...] | None, **kw: Any
    ) -> list[tuple[str, Relation]]:
        """Return the relations in a schema, each with its name as requested; all of them if `names` is None."""
        where, values = _searched(schema)
        if names is not None:
            marks = ", ".join("lower(?)" for _ in names)
            where, values = f"({where}) AND lower(table_name) IN ({marks})", (*values, *names)
        rows = connection.exec_driver_sql(_DESCRIPTIONS.format(where), values) if names != () else ()
        requested_names = {name.lower(): name for name in names or ()}
        relations = (Relation(*row[:4], *(part or () for part in row[4:])) for row in rows)
        return [(requested_names.get(one.name.lower(), one.name), one) for one in relations]


_COLUMN = re.compile(r'"((?:[^"]|"")+)"|\w+')


def _index(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return an index in SQLAlchemy's form. In `column_names`, None stands for an expression."""
    found = [(_COLUMN.fullmatch(text), text) for text in one["expressions"]]
    names = [None if match is None else (match[1] or text).replace('""', '"') for match, text in found]
    index = {"name": one["name"], "unique": one["is_unique"], "column_names": names, "dialect_options": {}}
    if None in names:
        index["expressions"] = [
            name or text.removeprefix("(").removesuffix(")") for name, (_, text) in zip(names, found, strict=True)
        ]
    return index


def _names(connection: Connection, kind: str, where: str, values: tuple[str, ...]) -> list[str]:
    sql = f"SELECT table_name FROM ({_RELATIONS}) WHERE kind = ? AND {where} ORDER BY table_name"
    return list(connection.exec_driver_sql(sql, (kind, *values)).scalars())


def _place(schema: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the SQL condition for relations in a schema (by default the current one), and its parameters."""
    return (_CURRENT, ()) if schema is None else (_NAMED, (schema,))


def _searched(schema: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the same as `_place`, but include temporary relations if `schema` is None."""
    return (f"{_CURRENT} OR {_TEMPORARY}", ()) if schema is None else _place(schema)

"""Reflection with the server's metadata calls, for engines for which SQLAlchemy has no dialect (Contract editor 10).

The calls bypass the server's cache, so that new objects are visible. They return columns, primary keys, foreign keys
and comments. Indexes and other constraints are always empty: the engines have none, or the calls do not return them.
"""

# SQLAlchemy's dialects narrow the types of overridden members.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportPrivateUsage=false

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from sqlalchemy import exc
from sqlalchemy.engine import Connection, reflection
from sqlalchemy.engine.default import DefaultDialect

from queryserver_client import dbapi
from queryserver_client.sqlalchemy.types import type_of
from queryserver_client.transport import segment


class MetadataCalls(DefaultDialect):
    """Mixin with the reflection methods. Must precede DefaultDialect in the base classes."""

    def type_of_text(self, text: str) -> Any:
        """Return the SQLAlchemy type for a type name of the engine."""
        return type_of(text)

    @reflection.cache
    def get_schema_names(self, connection: Connection, **kw: Any) -> list[str]:
        return [self._shown(name) for name in _call(connection)["databases"]]

    @reflection.cache
    def get_table_names(self, connection: Connection, schema: str | None = None, **kw: Any) -> list[str]:
        return self._named("Table", connection, schema)

    @reflection.cache
    def get_view_names(self, connection: Connection, schema: str | None = None, **kw: Any) -> list[str]:
        return self._named("View", connection, schema)

    @reflection.cache
    def get_materialized_view_names(self, connection: Connection, schema: str | None = None, **kw: Any) -> list[str]:
        return self._named("Materialized_view", connection, schema)

    def get_temp_table_names(self, connection: Connection, schema: str | None = None, **kw: Any) -> list[str]:
        """Return an empty list: metadata calls run in a separate session, which does not see temporary tables."""
        return []

    def get_temp_view_names(self, connection: Connection, schema: str | None = None, **kw: Any) -> list[str]:
        return []

    @reflection.cache
    def has_table(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> bool:
        self._ensure_has_table_connection(connection)
        try:
            self._table(connection, table_name, schema, **kw)
        except exc.NoSuchTableError:
            return False
        return True

    @reflection.cache
    def get_columns(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        return [
            {
                "name": self._shown(one["name"]),
                "type": self.type_of_text(one["type"]),
                "nullable": one["nullable"] is not False,
                "default": one["default"],
                "autoincrement": "auto" if one["autoincrement"] is None else one["autoincrement"],
                "comment": one["comment"] or None,
            }
            for one in self._table(connection, table_name, schema, **kw)["extended_columns"]
        ]

    @reflection.cache
    def get_pk_constraint(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        keys = self._table(connection, table_name, schema, **kw)["primary_keys"]
        return {"constrained_columns": [self._shown(one["name"]) for one in keys], "name": None}

    @reflection.cache
    def get_foreign_keys(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        return self._keys(self._table(connection, table_name, schema, **kw)["foreign_keys"], schema)

    @reflection.cache
    def get_table_comment(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        return {"text": self._table(connection, table_name, schema, **kw)["comment"] or None}

    def get_indexes(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        return self._nothing(connection, table_name, schema, **kw)

    def get_unique_constraints(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        return self._nothing(connection, table_name, schema, **kw)

    def get_check_constraints(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        return self._nothing(connection, table_name, schema, **kw)

    def get_table_options(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        self._table(connection, table_name, schema, **kw)
        return {}

    def _nothing(self, connection: Connection, table_name: str, schema: str | None, **kw: Any) -> list[Any]:
        self._table(connection, table_name, schema, **kw)
        return []

    @reflection.cache
    def _table(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        try:
            return _call(connection, self._schema(schema), self._denormalized(table_name))
        except exc.DBAPIError as error:
            if _code(error) in {"table_not_found", "database_not_found"}:
                raise exc.NoSuchTableError(f"{schema}.{table_name}" if schema else table_name) from error
            raise

    def _listed(self, connection: Connection, schema: str | None) -> Sequence[Mapping[str, Any]]:
        wanted = self._schema(schema)
        try:
            return _call(connection, wanted)["tables_meta"]
        except exc.DBAPIError as error:
            if _code(error) == "database_not_found" and schema is None:
                return ()
            raise

    def _schema(self, schema: str | None) -> str:
        return self._denormalized(schema if schema is not None else (self.default_schema_name or ""))

    def _named(self, kind: str, connection: Connection, schema: str | None) -> list[str]:
        return [self._shown(one["name"]) for one in self._listed(connection, schema) if one["type"] == kind]

    def _shown(self, name: str) -> str:
        """Return the name as SQLAlchemy expects it: a name stored in upper case is case-insensitive, so convert it to
        lower case.
        """
        return cast("str", self.normalize_name(name)) if name and self.requires_name_normalize else name

    def _denormalized(self, name: str) -> str:
        return cast("str", self.denormalize_name(name)) if name and self.requires_name_normalize else name

    def _keys(self, given: Sequence[Mapping[str, str]], schema: str | None) -> list[dict[str, Any]]:
        """Build foreign keys. Consecutive columns that reference different columns of one table form one key."""
        keys: list[dict[str, Any]] = []
        for one in given:
            *path, table, column = one["to"].split(".")
            database = ".".join(path)
            # A reference to the default schema names the schema only if the table was requested with a schema.
            other = None if schema is None and database in {self.default_schema_name, ""} else database or None
            last = keys[-1] if keys else None
            if (
                last is not None
                and (last["referred_schema"], last["referred_table"]) == (other, table)
                and column not in last["referred_columns"]
            ):
                last["constrained_columns"].append(one["name"])
                last["referred_columns"].append(column)
                continue
            keys.append(
                {
                    "name": None,
                    "constrained_columns": [one["name"]],
                    "referred_schema": other,
                    "referred_table": table,
                    "referred_columns": [column],
                    "options": {},
                }
            )
        return keys


def _call(connection: Connection, *names: str) -> dict[str, Any]:
    """Call `autocomplete` for the connector, a database or a table. Raises DBAPIError."""
    raw: Any = connection.connection.dbapi_connection
    path = "/".join(["editor/autocomplete", *map(segment, names)])
    if names and not names[-1]:
        path += "/"  # an unnamed schema is an empty path segment; one trailing slash alone would be ignored
    fields = {"snippet": {"type": raw.connector}, "refresh": True}
    try:
        answer: dict[str, Any] = raw.run(partial(raw.client.transport.call, "POST", path, fields, is_repeatable=True))
        if answer.get("status"):  # the data source requires credentials
            raise dbapi.OperationalError(str(answer.get("message")))
    except dbapi.Error as error:
        raise exc.DBAPIError.instance(f"POST {path}", None, error, dbapi.Error) from error
    return answer


def _code(error: exc.DBAPIError) -> str:
    return str(getattr(error.orig, "code", ""))

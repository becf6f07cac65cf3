"""Chooses the dialect class for `queryserver://` URLs, which do not name a dialect, with a request to the server."""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sqlalchemy import exc
from sqlalchemy.engine import URL

from queryserver_client.dbapi import Error, connect
from queryserver_client.sqlalchemy.connector import QueryserverDialect, connect_arguments
from queryserver_client.sqlalchemy.duckdb import DuckDBDialect
from queryserver_client.sqlalchemy.hive import HiveDialect, ImpalaDialect, SparkDialect
from queryserver_client.sqlalchemy.mysql import MySQLDialect
from queryserver_client.sqlalchemy.other import OtherDialect, TrinoDialect
from queryserver_client.sqlalchemy.phoenix import PhoenixDialect
from queryserver_client.sqlalchemy.postgresql import PostgresqlDialect
from queryserver_client.sqlalchemy.sqlite import SqliteDialect

if TYPE_CHECKING:
    from queryserver_client.generated import ClientConfiguration

CLASSES: Mapping[str, type[QueryserverDialect]] = {
    name: kind
    for kind in (
        DuckDBDialect,
        HiveDialect,
        ImpalaDialect,
        MySQLDialect,
        PhoenixDialect,
        PostgresqlDialect,
        SparkDialect,
        SqliteDialect,
        TrinoDialect,
    )
    for name in kind.engine_dialects
}
"""Dialect class by connector dialect."""

_known: dict[URL, str] = {}
_lock = threading.Lock()


class AnyDialect(OtherDialect):
    """The dialect of `queryserver://`, replaced with the class for the connector's dialect."""

    supports_statement_cache = True

    @classmethod
    def get_dialect_cls(cls, url: URL) -> type[QueryserverDialect]:
        """Return the dialect class for the connector in the URL. The server is called once for each URL.

        Raises ArgumentError if the call fails or the user has no such connector.
        """
        with _lock:
            dialect = _known.get(url)
            if dialect is None:
                dialect = _known[url] = _dialect_of(url)
        return CLASSES.get(dialect, OtherDialect)


def _dialect_of(url: URL) -> str:
    arguments = connect_arguments(url)
    wanted = str(arguments["connector"])
    try:
        with connect(**arguments) as connection:
            transport = connection.client.transport
            config: ClientConfiguration = connection.run(
                lambda: transport.call("POST", "get_config", is_repeatable=True)
            )
    except Error as error:
        raise exc.ArgumentError(
            f"the dialect of {url!r} could not be determined, because the server did not respond: {error}\n"
            "To create an engine without calling the server, add the dialect to the URL, such as queryserver+duckdb://…."
        ) from None
    found = named_interpreter(config, wanted)
    if found is None:
        raise exc.ArgumentError(f"{url!r}: the connector {wanted!r} does not exist, or this user may not use it")
    return found


def named_interpreter(config: "ClientConfiguration", wanted: str) -> str | None:
    """Return the dialect of the connector with the given id, key or dialect; None if there is none.

    Contract editor 1.7.
    """
    editor = config["app_config"]["editor"]
    name = (wanted or editor["default_sql_interpreter"]).lower()
    name = "hive" if name == "beeswax" else name
    listed = [one for one in editor["interpreters"] if one["is_sql"]]
    for form in ("type", "dialect"):
        for one in listed:
            if str(one[form]).lower() == name:
                return str(one["dialect"])
    dialect, _, number = name.rpartition("-")
    return next((str(one["dialect"]) for one in listed if one["id"] == number and one["dialect"] == dialect), None)

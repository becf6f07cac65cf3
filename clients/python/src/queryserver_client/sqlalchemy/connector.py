"""Base class of all dialects in this package: connecting, executing statements and closing."""

# SQLAlchemy's dialects narrow the types of overridden members.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false, reportPrivateUsage=false

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from sqlalchemy import event, exc, util
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.engine.interfaces import ExecuteStyle

from queryserver_client import __version__, dbapi
from queryserver_client.credentials import hidden

AUTOCOMMIT = "AUTOCOMMIT"
CHECK_AFTER_S = 60.0
"""If a pooled connection has been idle for this long, its session is checked before the connection is used again."""


class QueryserverDialect(DefaultDialect):
    """Base class of dialects. Must precede the engine's own dialect in the base classes."""

    driver = "queryserver"
    supports_statement_cache = True
    supports_native_decimal = True
    returns_native_bytes = True
    supports_sane_multi_rowcount = True
    use_insertmanyvalues_wo_returning = True  # one request per row would be much slower
    default_paramstyle = "qmark"
    insertmanyvalues_max_parameters = 10_000  # maximum number of values per statement
    engine_dialects: Sequence[str] = ()
    """The connector dialects that this class supports; empty for any."""

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        return dbapi

    @classmethod
    def engine_created(cls, engine: Engine) -> None:
        """Let the pool replace a connection whose session the server has closed while idle.

        The connection does not replace the session by itself, because settings made by "connect" listeners would be
        silently lost.
        """
        event.listen(engine, "checkout", _check_idle)

    def create_connect_args(self, url: URL) -> tuple[Sequence[Any], dict[str, Any]]:
        return (), connect_arguments(url)

    def retrieve_dbapi_version(self, dbapi: Any) -> Any:
        return util.parse_version_string(__version__)

    def connect(self, *cargs: Any, **cparams: Any) -> dbapi.Connection:
        """Create a connection. Raises ArgumentError if this class does not support the connector's dialect."""
        connection = dbapi.connect(*cargs, **cparams)
        if self.engine_dialects:
            try:
                found = connection.dialect
            except BaseException:
                connection.close()
                raise
            if found not in self.engine_dialects:
                connection.close()
                message = f"the connector has the dialect {found}, but the URL is for {', '.join(self.engine_dialects)}"
                raise exc.ArgumentError(message)
        return connection

    def do_execute(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        """Execute a statement. If there are no parameters, the text is sent unchanged unless it contains `??`."""
        if context is not None and context.isddl and not statement:
            return  # compiled to nothing, because the engine has no such object, for example no indexes
        cursor.execute(statement, parameters if parameters or "??" in statement else None)
        # One of several batches of rows: make `rowcount` the total of all batches so far.
        is_batch = context is not None and context.execute_style is ExecuteStyle.INSERTMANYVALUES
        if context is not None and is_batch and cursor.rowcount >= 0:
            cursor.count_before(getattr(context, "queryserver_rows", 0))
            context.queryserver_rows = cursor.rowcount

    def do_ping(self, dbapi_connection: Any) -> bool:
        """Run `SELECT 1` in the session. Raises an error if the session no longer exists."""
        dbapi_connection.ping()
        return True

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        return isinstance(e, dbapi.Error) and (e.is_disconnect or "connection is closed" in str(e))

    def get_isolation_level_values(self, dbapi_connection: Any) -> Sequence[Any]:
        return [AUTOCOMMIT, *self._engine_levels(dbapi_connection)]

    def get_default_isolation_level(self, dbapi_conn: Any) -> Any:
        return self.get_isolation_level(dbapi_conn)

    def get_isolation_level(self, dbapi_connection: Any) -> Any:
        if dbapi_connection.autocommit or not dbapi_connection.has_transactions:
            return AUTOCOMMIT
        return self._engine_level(dbapi_connection)

    def set_isolation_level(self, dbapi_connection: Any, level: Any) -> None:
        dbapi_connection.autocommit = level == AUTOCOMMIT
        if level != AUTOCOMMIT:
            self._set_engine_level(dbapi_connection, level)

    def detect_autocommit_setting(self, dbapi_conn: Any) -> bool:
        return bool(dbapi_conn.autocommit)

    def _engine_levels(self, dbapi_connection: Any) -> Sequence[str]:
        return ["SERIALIZABLE"]

    def _engine_level(self, dbapi_connection: Any) -> str:
        return "SERIALIZABLE"

    def _set_engine_level(self, dbapi_connection: Any, level: str) -> None:
        """Do nothing by default, because the engine has only one isolation level."""

    def _get_server_version_info(self, connection: Connection) -> Any:
        return None


def connect_arguments(url: URL) -> dict[str, Any]:
    """Convert `queryserver://user:password@host:port/connector?scheme=…&database=…` to arguments of `dbapi.connect`.

    A password without a user name is a token, which SQLAlchemy then masks; the parameter `token` is also accepted. If
    there is no host, the address is that of QUERYSERVER_URL. Raises ArgumentError for unknown or repeated parameters
    and for invalid numbers.
    """
    read = _query(url)
    arguments: dict[str, Any] = {"url": _address(url, read), "connector": url.database or ""}
    if url.username:
        arguments |= {"user": url.username, "password": hidden(url.password)}
    elif url.password:
        arguments["token"] = hidden(url.password)
    arguments |= {name: read[name] for name in ("token", "database") if read.get(name)}
    for name, kind in _NUMBERS.items():
        if read.get(name):
            try:
                arguments[name] = kind(read[name])
            except ValueError:
                raise exc.ArgumentError(f"the URL argument {name} must be a number") from None
    if "verify" in read:
        arguments["verify"] = read["verify"].lower() not in {"0", "false", "no"}
    return arguments


_NUMBERS: Mapping[str, Any] = {"limit": int, "timeout": float, "timeout_s": float}


def _query(url: URL) -> dict[str, Any]:
    """Return the query parameters of a URL, with `token` as a Secret. Raises ArgumentError."""
    read: dict[str, Any] = {}
    for name, value in url.query.items():
        if name not in _QUERY:
            raise exc.ArgumentError(
                f"the URL has an unknown argument {name}; valid arguments: {', '.join(sorted(_QUERY))}"
            )
        if not isinstance(value, str):
            raise exc.ArgumentError(f"the URL has {name} twice")
        read[name] = hidden(value) if name == "token" else value
    return read


def _address(url: URL, read: Mapping[str, Any]) -> str | None:
    if not url.host:
        return None
    scheme = read.get("scheme") or "https"
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{scheme}://{host}{f':{url.port}' if url.port else ''}{read.get('path', '')}"


_QUERY = frozenset({"scheme", "path", "token", "database", "limit", "timeout", "timeout_s", "verify"})


def _check_idle(dbapi_connection: Any, _record: Any, _proxy: Any) -> None:
    if dbapi_connection.closed:  # the garbage collector closed it before it was returned to the pool
        raise exc.DisconnectionError("the connection is closed")
    if dbapi_connection.idle_s < CHECK_AFTER_S:
        return
    try:
        dbapi_connection.ping()
    except dbapi.Error as error:
        if not error.is_disconnect:
            raise
        raise exc.DisconnectionError(str(error)) from error

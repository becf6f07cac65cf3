"""Interface `sqlalchemy`: `driver://user:password@host:port/database?option=value`."""

from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from queryserver.container.interfaces.context import BuildContext
from queryserver.container.interfaces.options import options_of
from queryserver.domain.connector import Connector
from queryserver.engines.mysql import MysqlAddress, MysqlEngine
from queryserver.engines.postgresql import PostgresqlAddress, PostgresqlEngine
from queryserver.interfaces.engine import Engine

_URL_OPTIONS = {
    "postgresql": {"sslmode", "connect_timeout", "application_name"},
    "mysql": {"charset", "connect_timeout"},
}


def build(connector: Connector, context: BuildContext) -> Engine:  # noqa: ARG001 addresses come next
    """See Builder."""
    with options_of(connector) as options:
        options.no_tunnel()
        url = urlsplit(options.required("url"))
        driver = url.scheme.partition("+")[0].lower()
        driver = {"postgres": "postgresql"}.get(driver, driver)
        if driver not in _URL_OPTIONS:
            options.refuse("url", f"the driver {url.scheme or '(none)'} cannot be run here")
        for name, _value in parse_qsl(url.query):
            if name not in _URL_OPTIONS.get(driver, set()):
                options.refuse("url", f"the option {name} is not allowed")
    build_native = _postgresql if driver == "postgresql" else _mysql
    return build_native(url, read_only=connector.read_only)


def _postgresql(url: SplitResult, *, read_only: bool) -> Engine:
    options = dict(parse_qsl(url.query))
    return PostgresqlEngine(
        PostgresqlAddress(
            host=url.hostname or "localhost",
            port=url.port or 5432,
            database=unquote(url.path.lstrip("/")),
            user=_own_login(url.username),
            password=_own_login(url.password),
            ssl=options.get("sslmode", "prefer"),
            application_name=options.get("application_name", "queryserver"),
            connect_timeout_s=int(options.get("connect_timeout", 10)),
        ),
        read_only=read_only,
    )


def _mysql(url: SplitResult, *, read_only: bool) -> Engine:
    options = dict(parse_qsl(url.query))
    return MysqlEngine(
        MysqlAddress(
            host=url.hostname or "localhost",
            port=url.port or 3306,
            database=unquote(url.path.lstrip("/")) or None,
            user=_own_login(url.username),
            password=_own_login(url.password),
            connect_timeout_s=int(options.get("connect_timeout", 10)),
        ),
        read_only=read_only,
    )


def _own_login(part: str | None) -> str | None:
    """None for `${USER}` and `${PASSWORD}`: callers give theirs through create_session."""
    if part is None:
        return None
    text = unquote(part)
    return None if text in {"${USER}", "${PASSWORD}"} else text

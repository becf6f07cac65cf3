"""A DBAPI driver that sends HTTP requests through urllib, as third-party drivers do, and follows redirects.

It sends one GET request per statement. The response is `{"rows": [...], "next": <url>}`, in which the rows have one
column. If it contains `"report_to": <url>`, the driver also sends a request to that URL and ignores all failures. If it
contains `"error": <text>`, the driver raises an error.
"""

import json
import urllib.request
from contextlib import suppress
from typing import Any

from sqlalchemy.dialects import registry
from sqlalchemy.engine.default import DefaultDialect

apilevel, threadsafety, paramstyle = "2.0", 1, "qmark"
NAME = "qshttp"


_straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Ignores proxies set in the environment, because otherwise all requests would go to the proxy."""


class Error(Exception):
    """The DBAPI base error (PEP 249)."""


class OperationalError(Error):
    """The DBAPI error (PEP 249) for failed statements. This driver also raises it for all connection failures."""


usual_port = 80
"""The port of URLs that specify none. SQLAlchemy does not know it."""


def connect(host: str, port: int | None = None, database: str = "", **_login: object) -> "Connection":
    """Return a connection. Like similar drivers, this function sends no request, unless the database is named
    `login`.
    """
    connection = Connection(f"http://{host}:{port or usual_port}/")
    if database == "login":
        connection.cursor().execute("SELECT 1")
    return connection


class Connection:
    """A connection, which has no network state between statements."""

    def __init__(self, url: str) -> None:
        self.url = url

    def cursor(self) -> "Cursor":
        return Cursor(self.url)

    def commit(self) -> None:
        pass

    def rollback(self) -> None:
        pass

    def close(self) -> None:
        pass


class Cursor:
    """Executes one statement at a time."""

    rowcount = -1
    arraysize = 1

    def __init__(self, url: str) -> None:
        self._url = url
        self._rows: list[tuple[Any, ...]] = []
        self._next: str | None = None
        self.description: list[tuple[Any, ...]] | None = None

    def execute(self, _statement: str, _parameters: object = None) -> None:
        self._fetch(self._url)
        self.description = [("a", "text", None, None, None, None, None)]

    def fetchmany(self, size: int = 1) -> list[tuple[Any, ...]]:
        while len(self._rows) < size and self._next is not None:
            self._fetch(self._next)
        taken, self._rows = self._rows[:size], self._rows[size:]
        return taken

    def fetchone(self) -> tuple[Any, ...] | None:
        return next(iter(self.fetchmany(1)), None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self.fetchmany(1_000_000)

    def close(self) -> None:
        pass

    def _fetch(self, url: str) -> None:
        body = _answer(url)
        if "report_to" in body:
            with suppress(OperationalError):
                _answer(body["report_to"])
        if "error" in body:
            raise OperationalError(body["error"])
        self._rows += [tuple(row) for row in body["rows"]]
        self._next = body.get("next")


def _answer(url: str) -> dict[str, Any]:
    try:
        with _straight.open(url, timeout=30) as answer:
            return dict(json.load(answer))
    except (OSError, ValueError) as error:
        raise OperationalError("the server cannot be talked to") from error


class HttpDialect(DefaultDialect):
    """The SQLAlchemy dialect of this driver."""

    name = NAME
    driver = "urllib"
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> Any:
        return __import__(__name__, fromlist=["connect"])


def register() -> None:
    """Register the SQLAlchemy URL scheme `qshttp://`."""
    registry.register(NAME, __name__, HttpDialect.__name__)

"""A DBAPI driver that speaks HTTP by urllib, as those of other packages do: it goes where the server sends it.

It asks for a statement's rows by one GET; the answer is `{"rows": [...], "next": <url>}`, with one column. With
`"report_to": <url>` it tells somebody else of it, and does without when that fails; `"error": <text>` is its error.
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
"""A proxy in the environment of the tests would be all that they see."""


class Error(Exception):
    """As PEP 249 has it."""


class OperationalError(Error):
    """As above; also what hides every failure of the line."""


usual_port = 80
"""For urls without one; SQLAlchemy does not know it."""


def connect(host: str, port: int | None = None, database: str = "", **_login: object) -> "Connection":
    """Asks the server for nothing, as such drivers do; the database `login` has it ask."""
    connection = Connection(f"http://{host}:{port or usual_port}/")
    if database == "login":
        connection.cursor().execute("SELECT 1")
    return connection


class Connection:
    """Nothing is open between two statements."""

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
    """One statement at a time."""

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
        told = _answer(url)
        if "report_to" in told:
            with suppress(OperationalError):
                _answer(told["report_to"])
        if "error" in told:
            raise OperationalError(told["error"])
        self._rows += [tuple(row) for row in told["rows"]]
        self._next = told.get("next")


def _answer(url: str) -> dict[str, Any]:
    try:
        with _straight.open(url, timeout=30) as answer:
            return dict(json.load(answer))
    except (OSError, ValueError) as error:
        raise OperationalError("the server cannot be talked to") from error


class HttpDialect(DefaultDialect):
    """The driver in SQLAlchemy."""

    name = NAME
    driver = "urllib"
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> Any:
        return __import__(__name__, fromlist=["connect"])


def register() -> None:
    """From here on `qshttp://` is a url of SQLAlchemy's."""
    registry.register(NAME, __name__, HttpDialect.__name__)

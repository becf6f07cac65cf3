"""Completion of SQL keywords, databases, tables and columns."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from queryserver_client.cli.splitting import tables_in, unquoted, word_before
from queryserver_client.errors import QueryserverError

if TYPE_CHECKING:
    from queryserver_client.cli.catalog import Catalog

_WORDS = tuple(
    word
    for line in (
        "ALTER AND AS ASC BETWEEN BY CASE CAST COUNT CREATE CROSS DELETE DESC DESCRIBE DISTINCT DROP ELSE END EXCEPT",
        "EXISTS EXPLAIN FROM FULL GROUP HAVING IN INNER INSERT INTERSECT INTO IS JOIN LEFT LIKE LIMIT NOT NULL OFFSET",
        "ON OR ORDER OUTER OVER PARTITION RIGHT SELECT SET SHOW SUM TABLE THEN UNION UPDATE USE USING VALUES VIEW WHEN",
        "WHERE WITH",
    )
    for word in line.split()
)


class SqlCompleter(Completer):
    """Completes SQL in its own thread, so requests never block the prompt. If a request fails, it suggests nothing."""

    def __init__(self, catalog: "Catalog", commands: Iterable[str]) -> None:
        self._catalog = catalog
        self._commands = tuple(commands)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:  # noqa: ARG002
        before = document.text_before_cursor
        if before.startswith("\\") and " " not in before:
            for command in self._commands:
                if command.startswith(before):
                    yield Completion(command, -len(before))
            return
        typed = unquoted(word_before(before))
        if not typed and not before.endswith((".", " ")):
            return
        owner, dot, start = typed.rpartition(".")
        seen: set[str] = set()
        found = self._members(owner, document.text) if dot else self._names(document.text, start)
        for name, kind in found:
            if name.lower().startswith(start.lower()) and name.lower() not in seen:
                seen.add(name.lower())
                yield Completion(name, -len(start), display_meta=kind)

    def _members(self, owner: str, text: str) -> Iterator[tuple[str, str]]:
        """Yield the columns of a table or alias, or the tables of a database."""
        table = tables_in(text).get(owner.lower(), owner)
        if any(owner.lower() == name.lower() for name in self._databases()):
            yield from self._tables(owner)
        else:
            yield from self._columns(table)

    def _names(self, text: str, start: str) -> Iterator[tuple[str, str]]:
        for table in dict.fromkeys(tables_in(text).values()):
            yield from self._columns(table)
        if not start and not tables_in(text):
            return
        current = self._current()
        if current is not None:
            yield from self._tables(current)
        yield from ((name, "database") for name in self._databases())
        if start:
            yield from ((word if start.isupper() else word.lower(), "") for word in _WORDS)

    def _columns(self, table: str) -> list[tuple[str, str]]:
        try:
            return [(column.name, column.type) for column in self._catalog.columns(table)]
        except QueryserverError:
            return []

    def _tables(self, database: str) -> list[tuple[str, str]]:
        try:
            return [(table.name, table.type.lower().replace("_", " ")) for table in self._catalog.tables(database)]
        except QueryserverError:
            return []

    def _databases(self) -> list[str]:
        try:
            return self._catalog.databases()
        except QueryserverError:
            return []

    def _current(self) -> str | None:
        try:
            return self._catalog.current()
        except QueryserverError:
            return None

"""Functions of a MySQL or MariaDB server."""

import re
from collections.abc import Awaitable, Callable, Sequence

from queryserver.domain.catalog import FunctionDescription
from queryserver.domain.errors.statements import EngineForbidden, StatementRejected
from queryserver.engines.catalog_queries import Row
from queryserver.engines.mysql import catalog_sql as sql

_NAME = re.compile(r"\w+")
_SYNTAX_LINES = 12


class FunctionReader:
    """Built-in functions are named by MariaDB since release 10.6, and by MySQL's help tables where they may be read."""

    def __init__(self, rows: Callable[[str], Awaitable[list[Row]]], *, mariadb: bool) -> None:
        self._rows = rows
        self._mariadb = mariadb

    async def stored(self, database: str) -> Sequence[FunctionDescription]:
        """The functions of a database."""
        arguments: dict[str, list[str]] = {}
        for function, name, kind in await self._rows(sql.parameters(database)):
            arguments.setdefault(function, []).append(f"{name} {kind}")
        return [
            FunctionDescription(
                name=name,
                signature=f"{name}({', '.join(arguments.get(specific, []))})",
                return_type=result or "",
                is_persistent="true",
                description=comment or "",
            )
            for specific, name, result, comment in await self._rows(sql.functions(database))
        ]

    async def builtin(self) -> Sequence[FunctionDescription]:
        """The server's own functions, explained where the help tables may be read; none where it tells none."""
        sources = (sql.EXPLAINED_MARIADB_FUNCTIONS, sql.MARIADB_FUNCTIONS)
        for query in sources if self._mariadb else (sql.EXPLAINED_MYSQL_FUNCTIONS,):
            try:
                rows = await self._rows(query)
            except (StatementRejected, EngineForbidden):
                continue
            described = {name: text for name, text in rows if _NAME.fullmatch(name)}
            return [
                FunctionDescription(name, _signature(name, text), is_builtin="BUILTIN", description=text)
                for name, text in described.items()
            ]
        return []


def _signature(name: str, text: str) -> str:
    """The calls in the syntax that the help begins with: `ABS(X)`, several apart by commas or on lines of their own."""
    calls: list[str] = []
    syntax = text.partition("\nDescription")[0] if text.startswith("Syntax") else ""
    for line in syntax.splitlines()[:_SYNTAX_LINES]:
        *whole, last = line.strip().rstrip(",").split("), ")
        calls += [call for call in (*(f"{part})" for part in whole), last) if _is_call(name, call)]
    return "\n".join(dict.fromkeys(calls)) or f"{name}()"


def _is_call(name: str, text: str) -> bool:
    return text.upper().startswith(f"{name.upper()}(") and text.endswith((")", "]"))

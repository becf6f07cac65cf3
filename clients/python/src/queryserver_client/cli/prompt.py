"""The `qs sql` prompt, which runs statements and commands one after another in one engine session."""

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from queryserver_client.cli import pager
from queryserver_client.cli.catalog import Catalog
from queryserver_client.cli.failures import say, text_of
from queryserver_client.cli.login import private_directory
from queryserver_client.cli.running import Settings, StatementFailed, results, summary, truncation
from queryserver_client.cli.signals import SignalExit, passed_to
from queryserver_client.cli.splitting import unquoted, word_command
from queryserver_client.engine_sessions import LOST, close_session, open_session
from queryserver_client.errors import NotFound, QueryserverError, StatementError

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

    from queryserver_client.sync import Connection, Result

_MAX_LISTED = 20
"""`\\d` lists the tables of all databases if there are at most this many, otherwise only the databases."""
_USE = re.compile(r"\s*use\s+([\w.\"`]+)\s*;?\s*", re.IGNORECASE)
_CHANGES = re.compile(r"\b(create|drop|alter|rename|use|attach|detach)\b", re.IGNORECASE)
HELP = """\\d            tables
\\d NAME       columns of a table, or tables of a database
\\l            databases
\\timing       print the duration of each statement
\\pager        show long results in $PAGER (by default less), or no longer
\\x            print each cell on its own line, without truncation
\\q            quit, as do exit, quit and Ctrl-D
\\?            print this help, as does help
A statement may have several lines and ends with ; Ctrl-C cancels it, and Meta-Enter runs it without ;"""


class Shell:
    """Runs the input of the prompt, and holds its state between statements."""

    def __init__(self, db: "Connection", settings: Settings, *, is_expanded: bool) -> None:
        self._db = db
        self._settings = settings
        self._is_expanded = is_expanded
        self._is_timed = False
        self._session_id: int | None = None
        self.catalog = Catalog(db, settings.connector, settings.database)
        self.commands: dict[str, Callable[[str], None]] = {
            "\\d": self._describe,
            "\\l": lambda _: self._list(["database"], [[name] for name in self.catalog.databases()]),
            "\\timing": lambda _: self._toggle_timing(),
            "\\pager": lambda _: self._toggle_pager(),
            "\\x": lambda _: self._toggle_expanded(),
            "\\?": lambda _: print(HELP),
        }

    def open_session(self) -> None:
        """Open one session for all statements, so that SET, USE, temporary tables and transactions persist."""
        transport, settings = self._db.core.transport, self._settings
        opened = self._db.loop.run(lambda: open_session(transport, settings.connector, database=settings.database))
        self._session_id, self.catalog.chosen = opened.id, settings.database

    def close_session(self) -> None:
        session_id, self._session_id = self._session_id, None
        if session_id is not None:
            core = self._db.core
            self._db.loop.run(lambda: close_session(core.transport, self._settings.connector, session_id))

    def carry_out(self, text: str) -> bool:
        """Run one statement, script or command, and print failures. Return False if the prompt should exit."""
        word, _, rest = (word_command(text) or text.strip()).partition(" ")
        if word == "\\q":
            return False
        try:
            if not word.startswith("\\"):
                self._execute(text)
            elif word in self.commands:
                self.commands[word](rest.strip().rstrip(";"))
            else:
                say(f"unknown command {word}; \\? lists the commands")
        except StatementFailed as error:
            if isinstance(error.__cause__, StatementError) and error.__cause__.code in LOST:
                self._renew_session()
        except QueryserverError as error:
            say(text_of(error))
            if getattr(error, "code", "") in LOST:
                self._renew_session()
        except KeyboardInterrupt:
            say("canceled")
        return True

    def _execute(self, text: str) -> None:
        began = time.monotonic()
        with closing(results(self._db, self._settings, text, session_id=self._session_id)) as each:
            for result in each:
                took_s = time.monotonic() - began
                self._show(result)
                if self._is_timed:
                    print(f"Time: {took_s * 1000:.0f} ms ({result.status.elapsed_ms} ms on the server)")
                began = time.monotonic()
        if found := _USE.fullmatch(text):
            self.catalog.chosen = unquoted(found[1])
        if _CHANGES.search(text):
            self.catalog.forget()

    def _show(self, result: "Result") -> None:
        from queryserver_client.cli.tables import print_table  # noqa: PLC0415

        if not result.has_rows:
            print(summary(result))
            return
        print_table(result, is_expanded=self._is_expanded, switch="\\x")
        if cut := truncation(result):
            say(f"the result is truncated: {cut}")

    def _describe(self, name: str) -> None:
        if not name:
            self._list_tables()
            return
        name = unquoted(name)
        try:
            columns = self.catalog.columns(name)
        except NotFound:
            databases = [known for known in self.catalog.databases() if known.lower() == name.rstrip(".").lower()]
            if not databases:
                raise
            self._list(["table", "kind"], [[table.name, table.type] for table in self.catalog.tables(databases[0])])
            return
        rows = [
            [
                column.name,
                column.type,
                "not null" if column.nullable is False else "",
                "primary key" if column.primary_key else "",
                column.comment,
            ]
            for column in columns
        ]
        self._list(["column", "type", "null", "key", "comment"], rows)

    def _list_tables(self) -> None:
        databases = [self.catalog.chosen] if self.catalog.chosen else self.catalog.databases()
        if len(databases) > _MAX_LISTED:
            self._list(["database"], [[name] for name in databases])
            print("\\d NAME lists the tables of a database.")
            return
        rows = [[database, table.name, table.type] for database in databases for table in self.catalog.tables(database)]
        self._list(["database", "table", "kind"], rows)

    def _list(self, names: "list[str]", rows: "list[list[str]]") -> None:
        from queryserver_client.cli.forms import Form  # noqa: PLC0415
        from queryserver_client.cli.operations import show  # noqa: PLC0415

        show(names, rows, Form.TABLE)

    def _toggle_timing(self) -> None:
        self._is_timed = not self._is_timed
        print(f"Timing is {'on' if self._is_timed else 'off'}.")

    def _toggle_pager(self) -> None:
        pager.switch(is_on=not pager.is_on())
        print(f"The pager is {'on' if pager.is_on() else 'off'}.")

    def _toggle_expanded(self) -> None:
        self._is_expanded = not self._is_expanded
        print(f"Expanded display is {'on' if self._is_expanded else 'off'}.")

    def _renew_session(self) -> None:
        try:
            self.open_session()
            say("the session was lost; a new one was opened, without the settings and temporary tables of the old one")
        except QueryserverError as error:
            say(text_of(error))


def converse(db: "Connection", settings: Settings, *, is_expanded: bool) -> int:
    """Run the prompt until the user exits. Return the exit code."""
    shell = Shell(db, settings, is_expanded=is_expanded)
    shell.open_session()
    try:
        session = _prompt_session(shell, settings.connector)
        if sys.stdout.isatty():
            print(f"{db.core.transport.url}, {settings.connector}. help lists the commands, exit quits.")
        while True:
            try:
                text = _input(session)
            except KeyboardInterrupt:
                continue  # discards the current input
            except EOFError:
                break
            if text.strip() and not shell.carry_out(text):
                break
    finally:
        shell.close_session()
    return 0


def _input(session: "PromptSession[str]") -> str:
    """Return what the user enters.

    SIGTERM and SIGHUP cancel the prompt. If the signal handler raised the exception itself, it could end up in any of
    prompt_toolkit's tasks and callbacks, and the prompt would continue.
    """
    prompt: asyncio.Task[str] | None = None
    is_canceled = False

    def cancel(_error: SignalExit) -> None:
        nonlocal is_canceled
        is_canceled = True
        if prompt is not None:
            prompt.get_loop().call_soon_threadsafe(prompt.cancel)

    async def run() -> str:
        nonlocal prompt
        prompt = asyncio.current_task()
        try:
            if is_canceled:  # the signal arrived before there was a task to cancel
                raise asyncio.CancelledError
            return await session.prompt_async()
        finally:
            prompt = None

    with passed_to(cancel):
        return asyncio.run(run())


def _prompt_session(shell: Shell, connector: str) -> "PromptSession[str]":
    from prompt_toolkit import PromptSession  # noqa: PLC0415
    from prompt_toolkit.history import FileHistory  # noqa: PLC0415
    from prompt_toolkit.lexers import PygmentsLexer  # noqa: PLC0415
    from pygments.lexers.sql import SqlLexer  # noqa: PLC0415

    from queryserver_client.cli.completion import SqlCompleter  # noqa: PLC0415
    from queryserver_client.cli.keys import key_bindings  # noqa: PLC0415

    completer = SqlCompleter(shell.catalog, [*shell.commands, "\\q"])
    history = private_directory() / "history"
    os.close(os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))  # statements may contain secrets
    return PromptSession(
        f"{connector}> ",
        multiline=True,
        prompt_continuation=lambda width, _number, _wrapped: "-> ".rjust(width),
        history=FileHistory(str(history)),
        completer=completer,
        complete_in_thread=True,
        complete_while_typing=True,
        enable_history_search=False,
        key_bindings=key_bindings(completer, connector),
        lexer=PygmentsLexer(SqlLexer),
    )

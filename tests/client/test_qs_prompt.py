"""The prompt of `qs sql`, through a pseudo terminal (issue 20, section 4)."""

import asyncio
import fcntl
import os
import re
import signal
import struct
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.client.conftest import Server
from tests.client.shell import Qs, until

_TERMINAL = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "COLUMNS": "100"}
_CONTROLS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07")


@dataclass
class Terminal:
    """A program at a terminal of 100 columns, and all that it has printed, without its control sequences."""

    descriptor: int
    code: "asyncio.Task[bytes]"
    printed: bytearray = field(default_factory=bytearray)

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def read(self) -> None:
        try:
            self.printed += os.read(self.descriptor, 65_536)
        except OSError:  # the program has ended
            asyncio.get_running_loop().remove_reader(self.descriptor)

    @property
    def text(self) -> str:
        return _CONTROLS.sub(b"", bytes(self.printed)).decode(errors="replace")

    async def shows(self, text: str) -> None:
        """Wait until this was printed after what was waited for before."""
        try:
            await until(lambda: text in self.text)
        except TimeoutError:
            raise AssertionError(f"{text!r} is not in {self.text!r}") from None
        self.printed.clear()

    async def end(self) -> int:
        """The exit code, when all was read."""
        async with asyncio.timeout(60):
            return int(await self.code)


@asynccontextmanager
async def terminal(qs: Qs, *words: str) -> AsyncIterator[Terminal]:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    at_terminal = replace(qs, environment={**qs.environment, **_TERMINAL})
    pid, code = await at_terminal.start_at([theirs, os.dup(theirs), os.dup(theirs)], *words)
    shown = Terminal(ours, code)
    asyncio.get_running_loop().add_reader(ours, shown.read)
    try:
        yield shown
    finally:
        if not code.done():
            os.kill(pid, signal.SIGKILL)
            await code
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)


async def test_the_prompt_runs_statements_of_many_lines_and_ctrl_c_cancels_at_the_engine(server: Server, qs: Qs):
    async with terminal(qs, "sql", "mysql") as shown:
        await shown.shows("mysql>")
        shown.type("text first\r")
        await shown.shows("->")
        shown.type("second;\r")
        await shown.shows("(1 row)")
        shown.type("set x 7;\r")
        await shown.shows("done")
        shown.type("get x;\r")  # in the same session
        await shown.shows("(1 row)")
        shown.type("fail badly;\r")
        await shown.shows("qs: badly")

        cancels = server.engine.cancels
        shown.type("sleep 58;\r")
        await until(lambda: any("sleep 58" in text for text in server.engine.executions))
        shown.type("\x03")
        await shown.shows("qs: canceled")
        assert server.engine.cancels == cancels + 1

        shown.type("text still here;\r")
        await shown.shows("still here")
        await shown.shows("(1 row)")
        shown.type("\x04")
        assert await shown.end() == 0
    history = Path(qs.environment["QUERYSERVER_CONFIG_DIR"]) / "history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "+text still here;" in history.read_text()


async def test_the_prompt_completes_names_of_the_server_and_describes_tables(qs: Qs):
    assert (
        await qs("sql", "duckdb", "CREATE TABLE qs_completed (identifier INTEGER NOT NULL, name VARCHAR)")
    ).code == 0
    async with terminal(qs, "sql", "duckdb") as shown:
        await shown.shows("duckdb>")
        shown.type("select qs_c")
        await shown.shows("qs_completed")  # offered below the line
        shown.type("\t\x03")
        await shown.shows("duckdb>")
        shown.type("select * from qs_completed where ident")
        await shown.shows("identifier")
        shown.type("\x03")
        await shown.shows("duckdb>")
        shown.type("\\d qs_completed\r")
        await shown.shows("not null")
        shown.type("\\timing\r")
        await shown.shows("Timing is on.")
        shown.type("select 1 as one;\r")
        await shown.shows("Time: ")
        shown.type("\\q\r")
        assert await shown.end() == 0


async def test_a_table_fits_the_terminal(qs: Qs):
    sql = (
        "SELECT i AS n, repeat('wide ', 100) AS wide, NULL AS nothing, 'a' || chr(27) || '[2Jb' AS steers "
        "FROM range(2) AS r(i)"
    )
    async with terminal(qs, "sql", "duckdb", sql) as shown:
        await until(lambda: "(2 rows" in shown.text)
        assert await shown.end() == 0
    lines = [line for line in shown.text.replace("\r", "").split("\n") if line]
    assert max(map(len, lines)) <= 100
    assert "…" in shown.text
    assert "NULL" in shown.text
    assert r"a\x1b[2Jb" in shown.text
    assert b"\x1b[2J" not in shown.printed

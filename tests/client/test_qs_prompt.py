"""The prompt of `qs sql`, and the output of other commands, in a pseudo terminal (issue 20, section 4)."""

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
from tests.client.shell import Qs
from tests.timing import until

from queryserver_client import connect

_TERMINAL = {"PROMPT_TOOLKIT_NO_CPR": "1", "COLUMNS": "100"}
_CONTROLS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07")


@dataclass
class Terminal:
    """A program in a terminal of 100 columns. `text` is its whole output without control sequences."""

    pid: int
    descriptor: int
    code: "asyncio.Task[bytes]"
    printed: bytearray = field(default_factory=bytearray)
    seen: int = 0
    """The position in `text` after the last match that was awaited."""

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def read(self) -> None:
        try:
            self.printed += os.read(self.descriptor, 65_536)
        except OSError:  # the program has exited
            asyncio.get_running_loop().remove_reader(self.descriptor)

    @property
    def text(self) -> str:
        return _CONTROLS.sub(b"", bytes(self.printed)).decode(errors="replace")

    async def shows(self, text: str) -> None:
        """Wait until `text` has been printed after the last match."""
        try:
            await until(lambda: text in self.text[self.seen :])
        except TimeoutError:
            raise AssertionError(f"{text!r} is not in {self.text[self.seen :]!r}") from None
        self.seen = self.text.index(text, self.seen) + len(text)

    async def enter(self, text: str, answer: str = "", *, prompt: str = "mysql>") -> None:
        """Wait for the prompt, type the text and press Enter. If `answer` is given, wait until it is printed."""
        await self.shows(prompt)
        self.type(f"{text}\r")
        if answer:
            await self.shows(answer)

    async def end(self) -> int:
        """Wait for the program's end; return its exit code."""
        async with asyncio.timeout(60):
            return int(await self.code)


@asynccontextmanager
async def terminal(qs: Qs, *words: str, term: str = "xterm") -> AsyncIterator[Terminal]:
    test_end, program_end = os.openpty()
    fcntl.ioctl(program_end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    at_terminal = replace(qs, environment={**qs.environment, **_TERMINAL, "TERM": term})
    pid, code = await at_terminal.start_at([program_end, os.dup(program_end), os.dup(program_end)], *words)
    shown = Terminal(pid, test_end, code)
    asyncio.get_running_loop().add_reader(test_end, shown.read)
    try:
        yield shown
    finally:
        if not code.done():
            os.kill(pid, signal.SIGKILL)
            await code
        asyncio.get_running_loop().remove_reader(test_end)
        os.close(test_end)


async def test_prompt_runs_multiline_statements_and_ctrl_c_cancels_in_engine(server: Server, qs: Qs):
    async with terminal(qs, "sql", "mysql") as shown:
        await shown.shows("mysql>")
        shown.type("text first\r")
        await shown.shows("->")
        shown.type("second;\r")
        await shown.shows("(1 row)")
        await shown.enter("set x 7;", "done")
        await shown.enter("get x;", "(1 row)")  # the setting is still in effect, because the session is the same
        await shown.enter("fail badly;", "qs: badly")

        cancels = server.engine.cancels
        await shown.enter("sleep 58;")
        await until(lambda: any("sleep 58" in text for text in server.engine.executions))
        shown.type("\x03")
        await shown.shows("qs: canceled")
        assert server.engine.cancels == cancels + 1

        await shown.enter("text still here;", "(1 row)")
        await shown.shows("mysql>")
        shown.type("\x04")
        assert await shown.end() == 0
    history = Path(qs.environment["QUERYSERVER_CONFIG_DIR"]) / "history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "+text still here;" in history.read_text()


async def test_termination_signal_cancels_statement_and_closes_prompt_session(server: Server, qs: Qs):
    async with terminal(qs, "sql", "mysql") as shown:
        await shown.enter("sleep 54;")
        await until(lambda: any("sleep 54" in text for text in server.engine.executions))
        cancels = server.engine.cancels
        os.kill(shown.pid, signal.SIGTERM)
        assert await shown.end() == 128 + signal.SIGTERM
    assert server.engine.cancels == cancels + 1
    async with terminal(qs, "sql", "mysql") as shown:
        await shown.shows("mysql>")
        os.kill(shown.pid, signal.SIGTERM)
        assert await shown.end() == 128 + signal.SIGTERM
        assert "Traceback" not in shown.text
    # This SIGTERM is sent while prompt_toolkit reads the history in a separate task.
    history = Path(qs.environment["QUERYSERVER_CONFIG_DIR"]) / "history"
    history.write_text("".join(f"\n# then\n+select {number};\n" for number in range(400_000)))
    async with terminal(qs, "sql", "mysql") as shown:
        await shown.shows("mysql>")
        os.kill(shown.pid, signal.SIGTERM)
        assert await shown.end() == 128 + signal.SIGTERM
        assert "Traceback" not in shown.text
    # In terminals that have no control sequences, prompt_toolkit starts its event loop after it has shown the prompt.
    async with terminal(qs, "sql", "mysql", term="dumb") as shown:
        await shown.shows("mysql>")
        os.kill(shown.pid, signal.SIGTERM)
        assert await shown.end() == 128 + signal.SIGTERM
        assert "Traceback" not in shown.text
    async with connect(server.url, token=qs.environment["QUERYSERVER_TOKEN"]) as db:
        # No session has remained open, because closing all sessions of a type returns null (Contract editor 9.2).
        closed = await db.transport.call("POST", "editor/close_session", {"session": {"type": "mysql"}})
    assert closed["session"]["session"] is None


async def test_prompt_completes_server_names_and_describes_tables(qs: Qs):
    assert (
        await qs("sql", "duckdb", "CREATE TABLE qs_completed (identifier INTEGER NOT NULL, name VARCHAR)")
    ).code == 0
    async with terminal(qs, "sql", "duckdb") as shown:
        await shown.shows("duckdb>")
        shown.type("select qs_c")
        await shown.shows("qs_completed")  # suggested below the prompt
        shown.type("\t\x03")
        await shown.shows("duckdb>")
        shown.type("select * from qs_completed where ident")
        await shown.shows("identifier")
        shown.type("\x03")
        await shown.shows("duckdb>")
        shown.type("\\d qs_completed\r")
        await shown.shows("not null")
        await shown.enter("\\timing", "Timing is on.", prompt="duckdb>")
        await shown.enter("select 1 as one;", "Time: ", prompt="duckdb>")
        await shown.enter("\\q", prompt="duckdb>")
        assert await shown.end() == 0


async def test_table_fits_terminal(qs: Qs):
    sql = (
        "SELECT i AS n, repeat('wide ', 100) AS wide, NULL AS nothing, 'a' || chr(27) || '[2Jb' AS steers "
        "FROM range(2) AS r(i)"
    )
    async with terminal(qs, "sql", "duckdb", sql) as shown:
        await until(lambda: "(2 rows" in shown.text)
        assert await shown.end() == 0
    lines = [line for line in re.split(r"[\r\n]+", shown.text) if line]
    assert max(map(len, lines)) <= 100
    assert "…" in shown.text
    assert "NULL" in shown.text
    assert r"a\x1b[2Jb" in shown.text
    assert b"\x1b[2J" not in shown.printed


async def test_long_table_is_shown_in_pager_unless_it_is_switched_off(qs: Qs):
    paging = replace(qs, environment={**qs.environment, "PAGER": "sed s/^/paged:/"})
    long, short = (f"SELECT i FROM range({rows}) AS r(i)" for rows in (60, 9))
    async with terminal(paging, "sql", "duckdb", long) as shown:
        await shown.shows("paged:59")
        await shown.shows("paged:(60 rows)")
        assert await shown.end() == 0
    for words in (("sql", "duckdb", short), ("--no-pager", "sql", "duckdb", long)):
        async with terminal(paging, *words) as shown:
            await shown.shows("rows)")
            assert await shown.end() == 0
        assert "paged:" not in shown.text
    async with terminal(paging, "sql", "duckdb") as shown:
        await shown.enter("\\pager", "The pager is off.", prompt="duckdb>")
        await shown.enter(f"{long};", "(60 rows)", prompt="duckdb>")
        await shown.enter("help", "as do exit, quit and Ctrl-D", prompt="duckdb>")
        await shown.enter("select", "->", prompt="duckdb>")
        shown.type("exit\r")
        await shown.shows("the statement is not complete")
        shown.type("\x03")
        await shown.enter("exit", prompt="duckdb>")
        assert await shown.end() == 0
    assert "paged:" not in shown.text


async def test_file_copy_shows_progress(qs: Qs, folder: str):
    here, there = qs.directory / "large [red].bin", f"{folder}/large.bin"
    here.write_bytes(os.urandom(12 * 1024 * 1024))
    for words, name in (((str(here), there), here.name), ((there, str(qs.directory / "back.bin")), "large.bin")):
        async with terminal(qs, "cp", *words) as shown:
            await shown.shows(name)
            await shown.shows("12.0/12.0 MiB")
            assert await shown.end() == 0
        lines = [line for line in re.split(r"[\r\n]+", shown.text) if line]
        assert max(map(len, lines)) <= 100
    assert (qs.directory / "back.bin").read_bytes() == here.read_bytes()

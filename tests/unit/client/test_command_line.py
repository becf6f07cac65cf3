"""The parts of `qs` that need no server: parameters, statement terminators, completion and column widths (issue 20,
section 4).
"""

import asyncio
import datetime as dt
import importlib.util
from decimal import Decimal
from typing import Any

import pytest
from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent, WordCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console
from tests.timing import until

from queryserver_client import cli
from queryserver_client.cli import pager
from queryserver_client.cli.completion import SqlCompleter
from queryserver_client.cli.failures import WrongUse, place_of, report, visible
from queryserver_client.cli.keys import key_bindings
from queryserver_client.cli.parameters import parameters_of, value_of
from queryserver_client.cli.splitting import is_whole, tables_in, word_command
from queryserver_client.cli.tables import fitted
from queryserver_client.errors import StatementError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ('[{"a": 1}]', '[{"a": 1}]'),
        ("[[1], [2]]", [[1], [2]]),
        ("-7", -7),
        ("9223372036854775808", 2**63),
        ("12.50", Decimal("12.50")),
        ("1e3", 1000.0),
        ("true", True),
        ("null", None),
        ("[1, 2.5]", [1, Decimal("2.5")]),
        ('"7"', "7"),
        ("007", "007"),
        ("text", "text"),
        ("a=b", "a=b"),
        ('{"type": "date"}', '{"type": "date"}'),
    ],
)
def test_value_is_parsed_as_json_or_text(text: str, value: Any):
    read = value_of(text)
    assert (read, type(read)) == (value, type(value))


def test_parameters_are_named_or_positional():
    assert parameters_of(["a=1", "day:date=2024-01-31", "t:text=7"]) == {"a": 1, "day": dt.date(2024, 1, 31), "t": "7"}
    assert parameters_of(["1", ":decimal=2"], ["x=y"]) == [1, Decimal(2), "x=y"]
    assert parameters_of([]) is None
    assert parameters_of(["b:binary=AP8=", "z:timestamp_tz=2024-01-31T10:00:00Z"]) == {
        "b": b"\x00\xff",
        "z": dt.datetime(2024, 1, 31, 10, tzinfo=dt.UTC),
    }
    for wrong in (["a=1", "2"], ["a=1", "a=2"], ["a:nothing=1"], ["a:date=tomorrow"], ["a:timestamp_tz=2024-01-31"]):
        with pytest.raises(WrongUse):
            parameters_of(wrong)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("select 1", False),
        ("select 1;", True),
        ("select 1; -- one", True),
        ("select 1 -- ;", False),
        ("select ';", False),
        ("select ';'", False),
        ("select 'it''s;';", True),
        ('select ";" /* ; */ ;\n', True),
        ("select $$ ; $$", False),
        ("select $a$ ; $$ $a$;", True),
        ("select /* ;", False),
        ("\\d sales", True),
        ("exit", True),
        ("Quit;", True),
        ("help", True),
        ("help me", False),
        ("", True),
    ],
)
def test_statement_ends_at_a_semicolon_outside_quotes_and_comments(text: str, whole: bool):
    assert is_whole(text) is whole


def test_postgresql_semicolon_within_parentheses_does_not_end_a_statement():
    rule = "create rule r as on insert to a do also (delete from b;"
    assert not is_whole(rule, "postgresql")
    assert not is_whole(f"{rule} select ')';", "postgresql")
    assert is_whole(f"{rule} delete from c);", "postgresql")
    assert is_whole("select (1;", "duckdb")


def test_backslash_escapes_in_quotes_depend_on_the_engine():
    assert is_whole(r"select 'a\';", "duckdb")
    assert not is_whole(r"select 'a\';", "hive")


def test_tables_are_found_with_their_aliases():
    assert tables_in('select from a.b x join "c" on x.i = c.i where') == {"b": "a.b", "x": "a.b", "c": "c"}


def test_words_stand_for_commands_of_the_prompt():
    commands = {text: word_command(text) for text in ("exit", " QUIT ; ", "help", "?", "select", "exit 1", "")}
    assert commands == {
        "exit": "\\q", " QUIT ; ": "\\q", "help": "\\?", "?": "\\?", "select": None, "exit 1": None, "": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        ('Parser Error: near "a"\n\nLINE 1: select a\n        ^', 'qs: Parser Error: near "a"\nline 1: select a\n'),
        ('near "a"\nPosition: 8', 'qs: near "a"\nline 1: select a\n'),
        ("Binder Error: a\nCandidates: b", "qs: Binder Error: a\nCandidates: b\nline 1: select a\n"),
    ],
)
def test_line_of_an_error_is_printed_once(message: str, printed: str, capsys: pytest.CaptureFixture[str]):
    report(StatementError(message, code="engine_error"), "line 1: select a")
    assert capsys.readouterr().err == printed
    report(StatementError(message, code="engine_error"), "")
    assert capsys.readouterr().err == f"qs: {message}\n"


@pytest.mark.parametrize(
    ("names", "typed", "after"),
    [
        (["orders"], "select * from ord", "select * from orders"),
        (["Orders"], "select * from ord", "select * from Orders"),
        (["orders_a", "orders_b"], "select * from ord", "select * from orders_"),
        ([], "select * from ord", "select * from ord"),
    ],
)
async def test_first_tab_inserts_what_all_candidates_have_in_common(names: list[str], typed: str, after: str):
    completer = WordCompleter(names, ignore_case=True)
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        session: PromptSession[str] = PromptSession(completer=completer, key_bindings=key_bindings(completer, "duckdb"))
        prompt = asyncio.create_task(session.prompt_async())
        keys.send_text(f"{typed}\t")
        await until(lambda: session.default_buffer.text == after)
        if len(names) == 1:  # the next Enter runs the statement instead of accepting the candidate
            keys.send_text(";\r")
            assert await prompt == f"{after};"
        else:
            prompt.cancel()


def test_pager_is_skipped_without_terminal_or_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PAGER", "false")
    console = Console(height=5)
    with pager.paged(console):
        console.print("\n" * 9)
    assert capsys.readouterr().out == "\n" * 10
    for given, command in (("less -S", ["less", "-S"]), ("cat", []), ("", []), ("'open", [])):
        monkeypatch.setenv("PAGER", given)
        assert pager.pager_command() == command


def test_widest_columns_shrink_first():
    assert fitted([3, 5], [3, 5], 10) == [3, 5]
    assert fitted([3, 50, 40], [3, 6, 6], 43) == [3, 20, 20]
    assert fitted([36, 50], [36, 6], 50) == [36, 14]
    assert fitted([6, 6, 6], [6, 6, 6], 17) is None


def test_error_position_is_marked_below_wide_characters():
    error = StatementError("", code="engine_error", line=2, column=5)
    assert place_of(error, "select\n日本, nothing", 10) == "line 11: 日本, nothing\n               ^"
    assert place_of(StatementError("", code="engine_error", line=9), "one") == ""


def test_control_characters_are_escaped():
    assert visible("a\x1b[2J\u202eb\nü") == "a\\x1b[2J\\u202eb\\nü"


class _Catalog:
    """A catalog client whose calls fail, as if the server were unreachable."""

    def databases(self) -> list[str]:
        raise StatementError("", code="engine_unavailable")

    current = databases


def test_completion_offers_sql_keywords_if_the_server_fails():
    completer = SqlCompleter(_Catalog(), ["\\d", "\\q"])  # type: ignore[arg-type]
    found = [one.text for one in completer.get_completions(Document("SEL"), CompleteEvent())]
    assert found == ["SELECT"]
    assert [one.text for one in completer.get_completions(Document("\\"), CompleteEvent())] == ["\\d", "\\q"]


def test_missing_extra_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == "rich" else found(name))
    with pytest.raises(SystemExit, match=r"^qs: .*pip install 'queryserver-client\[cli\]'$"):
        cli.main()

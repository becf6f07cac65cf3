"""The examples in docs/qs.md run as printed, and all commands and options that the page mentions exist."""

import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import typer.main
from tests.client.shell import Qs

from queryserver_client.cli.commands import app

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "qs.md"
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
TABLE = """CREATE TABLE sales AS SELECT generate_series(1, 20) AS id, DATE '2024-01-31' AS day;
INSERT INTO sales VALUES (7, DATE '2023-01-31')"""


def examples() -> list[list[str]]:
    """Return the arguments of those documented commands that need nothing but the table `sales`."""
    lines = re.findall(r"^(?:    )?(qs sql \w+ \".*)$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line)[1:] for line in lines if "--keep" not in line and " -r " not in line]


async def test_examples_run_as_printed(qs: Qs, target: Path, monkeypatch: pytest.MonkeyPatch):
    assert len(examples()) == 2
    assert (await qs("sql", "postgresql", TABLE)).code == 0
    for printed in examples():
        words = ["postgresql" if word == "duckdb" else word for word in printed]
        words = [*words[:-1], str(target / words[-1])] if words[-1].endswith(".parquet") else words
        ended = await qs(*words)
        assert ended.code == 0, ended.err
        if words[-1].endswith(".parquet"):
            assert pq.read_table(words[-1]).column("id").to_pylist() == [7]
        else:
            assert len(ended.records) == 10
    assert (await qs("sql", "postgresql", "DROP TABLE sales")).code == 0


async def test_kept_result_is_a_table_of_the_next_statement(qs: Qs):
    lines = re.findall(r"^    (qs sql \w+ \".* (?:--keep|-r .*))$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    keeps, names = (shlex.split(line)[1:] for line in lines)
    assert (await qs("sql", "postgresql", TABLE)).code == 0
    kept = await qs(*keeps)
    assert (kept.code, len(kept.records)) == (0, 13), kept.err
    name, _, _ = names[-1].partition("=")
    shown = await qs(*names[:-1], f"{name}={kept.err.strip().removeprefix('kept: ')[:8]}")
    assert (shown.code, shown.text) == (0, "n\n13\n"), shown.err
    assert (await qs("sql", "postgresql", "DROP TABLE sales")).code == 0


def test_every_documented_command_and_option_exists():
    group: Any = typer.main.get_command(app)
    text = GUIDE.read_text(encoding="utf-8")
    shown = set(re.findall(r"`qs ([a-z]+)", text))
    assert shown == set(group.commands)
    for call in re.findall(r"`qs ([a-z]+ [^`]*)`", text):
        command = group.commands[call.split()[0]]
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(OPTION.findall(call)) <= known | {"--help"}, call

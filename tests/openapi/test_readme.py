"""The commands in the README work as printed, on a server with the sample data."""

import ast
import asyncio
import csv
import hashlib
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path

import pytest
from tests.e2e.harness import ServerProcess, running_server

from queryserver.platform.embedded.sample import SampleTable, sample_tables

README = Path(__file__).resolve().parents[2] / "README.md"
PASSWORD = "a password & nothing but a password"


def block(language: str, section: str | None = None) -> str:
    """Return the only code block in this language in the README, or in the given section of it."""
    text = README.read_text()
    if section is not None:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return found


def login() -> str:
    """Return the commands that precede the first statement in the README's first code block."""
    return block("bash").partition("# The answer comes at once")[0]


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    """A server on its first start with `queryserver serve --embedded`."""
    state = tmp_path_factory.mktemp("readme") / "data"
    async with running_server(state, settings={"QUERYSERVER_ADMIN_PASSWORD": PASSWORD}) as server:
        yield server


@pytest.fixture(scope="module")
def sample() -> Mapping[str, SampleTable]:
    return {table.name: table for table in sample_tables()}


async def output_of_second_run(script: Path, server: ServerProcess) -> str:
    """Run a shell script from the README twice; return the output of the second run. The script stops at its first
    failing command.
    """
    command = ["bash", "-e", "-u", "-o", "pipefail", str(script)]
    await printed(command, server, script.parent)
    return await printed(command, server, script.parent)


async def printed(command: Sequence[str], server: ServerProcess, directory: Path) -> str:
    """Run a command in `directory`; return its output. Fails if the command does."""
    code, output, errors = await run(command, server, directory)
    assert (code, errors) == (0, "")
    return output


async def run(command: Sequence[str], server: ServerProcess, directory: Path) -> tuple[int | None, str, str]:
    """Run a command with the variables that the README sets, such as the server's address; return the exit code, stdout
    and stderr.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=directory,
        env=os.environ | {"B": server.base_url, "QUERYSERVER_ADMIN_PASSWORD": PASSWORD},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), 60)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return process.returncode, output.decode(), errors.decode()


def sales_by_country(sample: Mapping[str, SampleTable]) -> list[tuple[str, int, Decimal]]:
    """Return the rows that the statement in the README's shell commands must return, computed from the sample data."""
    country_of_customer = {row[0]: row[3] for row in sample["customers"].rows}
    country_of_order = {row[0]: country_of_customer[row[1]] for row in sample["orders"].rows}
    sales: defaultdict[str, Decimal] = defaultdict(Decimal)
    for order, _line, _product, quantity, unit_price, _discount in sample["order_items"].rows:
        sales[country_of_order[order]] += quantity * unit_price
    orders = Counter(country_of_order.values())
    found = [(country, orders[country], amount) for country, amount in sales.items()]
    return sorted(found, key=lambda row: row[2], reverse=True)


async def test_documented_shell_commands_run(server, sample, tmp_path) -> None:
    script = tmp_path / "sequence.sh"
    script.write_text(block("bash"))
    status, rows, *log, closed = (await output_of_second_run(script, server)).splitlines()

    expected = sales_by_country(sample)
    assert status == "available"
    assert [(country, orders, Decimal(sales)) for country, orders, sales in ast.literal_eval(rows)] == expected[:3]
    assert log
    assert closed == "Query closed."
    with (tmp_path / "sales.csv").open(newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["country", "orders", "sales"]
    assert [(country, int(orders), Decimal(sales)) for country, orders, sales in lines] == expected


async def test_documented_file_commands_run_twice(server: ServerProcess, tmp_path: Path) -> None:
    script = tmp_path / "files.sh"
    script.write_text(login() + block("shell", "Files"))
    content = "country,sales\nPortugal,12.50\n"
    (tmp_path / "sales.csv").write_text(content)
    count, *shown, made, digest, renamed, restored = (await output_of_second_run(script, server)).splitlines()

    assert int(count) >= 6
    assert len("\n".join(shown)) <= 201
    assert re.fullmatch(r"file:///shared/reports-[0-9]+-[0-9]+", made)
    assert digest == hashlib.sha256(content.encode()).hexdigest()
    assert renamed.startswith(f"Renamed '{made}/sales.csv' to '{made}/2026.csv'")
    assert restored == f"{made}/2026.csv"
    assert (tmp_path / "end.csv").read_text() == content[-10:]


@pytest.mark.importer(52)
async def test_documented_commands_import_a_file(server: ServerProcess, tmp_path: Path) -> None:
    script = tmp_path / "tables.sh"
    script.write_text(login() + block("shell", "From a file to a table"))
    (tmp_path / "sales.csv").write_text("country,orders,sales\nPortugal,3,12.50\nChile,5,99.25\n")
    kind, has_header, columns, *tables = (await output_of_second_run(script, server)).splitlines()

    assert (kind, has_header) == ("csv", "True")
    assert ast.literal_eval(columns) == [
        {"name": "country", "type": "STRING", "source": 1},
        {"name": "orders", "type": "INT", "source": 2},
        {"name": "sales", "type": "DOUBLE", "source": 3},
    ]
    for imported, selected, rows in (tables[:3], tables[3:]):
        assert (imported, selected) == ("available", "available")
        assert ast.literal_eval(rows) == [["Chile", 5, 99.25]]


async def test_documented_commands_export_save_and_reuse(
    server: ServerProcess, sample: Mapping[str, SampleTable], tmp_path: Path
) -> None:
    script = tmp_path / "exports.sh"
    folder = 'DIR=file:///shared/exports-$$\ncall "$B/api/v1/storage/mkdir" -d "path=$DIR" >folder.json\n'
    script.write_text(login() + folder + block("shell", "From a result to files, tables and other people"))
    lines = (await output_of_second_run(script, server)).splitlines()

    states, summaries = lines[:4:2], [ast.literal_eval(line)[0] for line in lines[1:4:2]]
    rows = len(sample["orders"].rows)
    assert states == ["available", "available"]
    assert [(one[0], one[2], one[4]) for one in summaries] == [(rows, 1, None), (rows, None, "orders_copy")]
    orders = ast.literal_eval(lines[4])
    assert orders
    assert {order[1] for order in orders} == {2}
    assert lines[5] == "0"


@pytest.mark.platform(66)
async def test_documented_commands_add_a_data_source(server: ServerProcess, tmp_path: Path) -> None:
    script = tmp_path / "sources.sh"
    script.write_text(login() + block("shell", "Data sources"))
    assert (await output_of_second_run(script, server)).splitlines() == ["True", "[[42]]", "duckdb", "0", "0", "0"]


async def test_documented_python_script_runs(server, sample, tmp_path) -> None:
    script = tmp_path / "ask.py"
    script.write_text(block("python"))
    lines = (await printed([sys.executable, str(script)], server, tmp_path)).splitlines()

    prices: defaultdict[str, list[Decimal]] = defaultdict(list)
    for _number, _name, category, price, _weight, _discontinued in sample["products"].rows:
        prices[category].append(price)
    expected = [(category, len(found), max(found)) for category, found in sorted(prices.items())]
    rows = [ast.literal_eval(re.sub(r"Decimal\((.*?)\)", r"\1", line)) for line in lines]
    assert [(category, count, Decimal(str(dearest))) for category, count, dearest in rows] == expected * 3


def test_python_script_has_about_ten_lines() -> None:
    lines = [line for line in block("python").splitlines() if line]
    assert len(lines) <= 11
    assert max(map(len, lines)) <= 120


def test_shell_sequence_needs_only_curl_and_python() -> None:
    """Each command must be a shell keyword, curl, python3 or a function, because new users may not have other programs
    such as jq.
    """
    sections = ("Files", "From a file to a table", "From a result to files, tables and other people", "Data sources")
    shown = block("bash") + "".join(block("shell", section) for section in sections)
    begins = re.findall(r"(?:^|\$\(|\| )([a-z][a-z0-9]*)\b", shown, re.MULTILINE)
    assert begins
    assert set(begins) <= {
        "curl",
        "python3",
        "pick",
        "call",
        "look",
        "date",
        "for",
        "do",
        "done",
        "body",
        "try",
        "except",
    }


async def test_refused_call_of_shell_sequence_shows_server_message(server, tmp_path) -> None:
    script = tmp_path / "refused.sh"
    script.write_text(login() + 'call "$B/api/v1/editor/execute/nope" -d "statement=SELECT 1" | pick history_uuid\n')
    _, _, errors = await run(["bash", str(script)], server, tmp_path)
    assert "dialect_not_found" in errors
    script.write_text(login().replace("username=admin", "username=stranger"))
    _, _, errors = await run(["bash", str(script)], server, tmp_path)
    assert "No active account" in errors


def test_readme_toml_is_a_valid_settings_file(tmp_path: Path) -> None:
    from queryserver.platform.settings.loader import load_settings

    file = tmp_path / "queryserver.toml"
    file.write_text(block("toml"))
    assert list(load_settings(file, {}).notebook.interpreters) == ["warehouse"]

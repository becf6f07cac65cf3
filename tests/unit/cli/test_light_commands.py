"""What commands load: an operator's script may start many of them."""

import subprocess
import sys

import pytest

from queryserver.cli import statements
from queryserver.statements.overview import LONGEST_AGE_S, StatementStates

HEAVY = {"duckdb", "fastapi", "pandas", "pyarrow", "sqlalchemy"}


@pytest.mark.parametrize("module", ["queryserver.cli.commands", "queryserver.identity.build"])
def test_commands_about_users_and_groups_load_nothing_of_a_server(module: str) -> None:
    embedded = "queryserver.platform.embedded.postgres"
    script = f"import sys, {module}, {embedded}; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert HEAVY.isdisjoint(ended.stdout.split())


def test_the_words_of_statements_list_are_those_of_the_overview() -> None:
    assert list(statements.States) == list(StatementStates)
    assert statements.LONGEST_AGE_S == LONGEST_AGE_S

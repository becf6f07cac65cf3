"""The modules that the commands load. Loading must be fast, because an operator's script may start many commands."""

import subprocess
import sys

from queryserver.statements.states import StateFilter, StatementState

HEAVY = {"duckdb", "fastapi", "pandas", "pyarrow", "sqlalchemy"}


def test_user_and_group_commands_load_no_server_modules() -> None:
    modules = "queryserver.cli.commands, queryserver.identity.build, queryserver.platform.embedded.postgres"
    script = f"import sys, {modules}; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert HEAVY.isdisjoint(ended.stdout.split())


def test_every_statement_state_can_be_listed() -> None:
    assert {state.value for state in StateFilter} == {state.value for state in StatementState} | {"active", "all"}

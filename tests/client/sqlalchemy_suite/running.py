"""Runs SQLAlchemy's dialect suite against a connector."""

import asyncio
import os
import re
import sys
from pathlib import Path

import sqlalchemy as sa

SUITE = Path(__file__).parent
WIDTH = os.environ.get("SQLALCHEMY_SUITE", "")
"""How much of the suite runs: `engines` runs it on all engines, and `all` also runs the combinations of arguments."""
NO_COMBINATIONS = "not test_multi_get and not test_get_multi"
"""Excludes the 700 tests with combinations of arguments for reflecting several tables at once."""


async def run_suite(url: str) -> None:
    """Run the suite in a separate process, because SQLAlchemy's plugin would change pytest for all other tests."""
    chosen = () if WIDTH == "all" else ("-k", NO_COMBINATIONS)
    schemas = ("CREATE SCHEMA test_schema", "CREATE SCHEMA test_schema_2")
    if "+sqlite:" not in url:
        await asyncio.to_thread(run_all, url, *schemas)
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "pytest", "-c", "suite.ini", "--confcutdir=.", "-q", "suite.py", f"--dburi={url}"],
        *["-p", "tests.client.sqlalchemy_suite.plugin", *chosen],
        cwd=SUITE,
        env={**os.environ, "PYTHONPATH": str(SUITE.parents[2])},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output.decode()[-8000:]
    assert re.search(rb"[1-9]\d* passed", output)


def run_all(url: str, *statements: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()

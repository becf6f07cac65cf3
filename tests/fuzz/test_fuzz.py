"""Runs `make fuzz` with fixed seeds: the document and the server agree about requests and responses.

Seeds and numbers of calls are fixed, so that a run makes the same calls on any machine and its findings are
reproducible. `make fuzz` itself uses a new seed each time, and a duration instead of a number of calls.
"""

import json
import re
from typing import Any

import pytest
from scripts.export_openapi import TARGET
from tests.fuzz.__main__ import fuzz

PATHS: dict[str, Any] = json.loads(TARGET.read_text(encoding="utf-8"))["paths"]
READ_BY_THE_RUN = {"GET /api/v1/openapi.json"}
"""The run itself reads the document with this call, so it may or may not also test the call."""
RUNS = {
    r"^/api/v1/storage/": 66920036706526481991582396392002703071,
    r"^/api/v1/(editor|query)/": 2,
    r"^(?!/api/v1/(storage|editor|query)/)": 3,
}
"""The seed of each run, by the pattern of the paths that the run calls."""
EXAMPLES = 4
ENOUGH = 0.25


def operations(pattern: str) -> set[str]:
    return {f"{method.upper()} {path}" for path, calls in PATHS.items() if re.search(pattern, path) for method in calls}


def test_every_operation_is_called_in_one_run():
    assert sum(len(operations(pattern)) for pattern in RUNS) == len(operations("")) > 100
    assert set().union(*map(operations, RUNS)) == operations("")


@pytest.mark.slow
@pytest.mark.timeout(1800)  # an idle machine takes two minutes
@pytest.mark.parametrize(("pattern", "seed"), RUNS.items())
async def test_exactly_the_documented_calls_succeed_with_documented_responses(pattern: str, seed: int):
    calls = ("--include-path-regex", pattern, "--max-examples", str(EXAMPLES), "--no-shrink")
    run = await fuzz(None, *calls, seed=seed)
    assert run.code == 0, run.findings
    called = {operation for operation, _ in run.answers}
    assert called - READ_BY_THE_RUN == operations(pattern) - READ_BY_THE_RUN
    assert len(run.served) > ENOUGH * len(called), run.answers  # a run in which most calls are refused proves little

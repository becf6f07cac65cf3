"""A short run of `make fuzz`: no fault, no status and no shape that the document does not name."""

import pytest
from tests.fuzz.__main__ import fuzz

SECONDS = 10


@pytest.mark.slow
async def test_nothing_is_answered_that_the_document_does_not_name():
    run = await fuzz(SECONDS, "--phases", "examples,fuzzing", "--max-examples", "4", "--no-shrink")
    assert run.code == 0, run.report[-6000:]
    assert len(run.served) > 20, run.answers  # nothing but refusals would say little

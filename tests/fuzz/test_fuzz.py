"""A short run of `make fuzz`: no fault, no status and no shape that the document does not name."""

import pytest
from tests.fuzz.__main__ import Run, fuzz

SECONDS, PATIENT_SECONDS = 10, 60
ENOUGH = 20


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_nothing_is_answered_that_the_document_does_not_name():
    run = await short_run(SECONDS)
    if run.code == 0 and len(run.served) <= ENOUGH:  # a busy machine answers few calls in this time
        run = await short_run(PATIENT_SECONDS)
    assert run.code == 0, run.report[-6000:]
    assert len(run.served) > ENOUGH, run.answers  # nothing but refusals would say little


async def short_run(seconds: int) -> Run:
    return await fuzz(seconds, "--phases", "examples,fuzzing", "--max-examples", "4", "--no-shrink")

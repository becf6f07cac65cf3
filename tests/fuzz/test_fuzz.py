"""A short run of `make fuzz`: no fault, no status and no shape that the document does not name."""

import pytest
from tests.fuzz.__main__ import fuzz

SECONDS = 10


@pytest.mark.platform(10)
@pytest.mark.platform(16)
async def test_nothing_is_answered_that_the_document_does_not_name():
    code, report = await fuzz(SECONDS, "--phases", "examples,fuzzing", "--max-examples", "4", "--no-shrink")
    assert code == 0, report[-6000:]
    assert "API Operations" in report

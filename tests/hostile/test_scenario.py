"""All attacks beside ten ordinary users, for a few seconds; `make bench ARGS="hostile"` goes on for two minutes."""

from pathlib import Path

import pytest
from tests.hostile import attacks, scenario

# What must never be passed again, on a busy machine too. The goals, which `make bench` compares with, are lower.
_PEAK_MIB, _AFTERWARDS_MIB = 700, 500


@pytest.mark.timeout(240)
async def test_a_hostile_user_costs_the_others_nothing(tmp_path: Path) -> None:
    report = await scenario.run(tmp_path, attacked_s=12, afterwards_s=5)
    assert report.errors == []
    assert report.calls > 100
    assert report.peak_mib < _PEAK_MIB
    assert report.afterwards_mib < _AFTERWARDS_MIB
    # Each attack was tried, whatever it was answered.
    tried = {outcome.partition(":")[0] for outcome in report.outcomes}
    assert tried == set(attacks.ATTACKS)

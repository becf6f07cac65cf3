"""Fire times of schedules around real clock changes (Contract platform 10.7)."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from queryserver.errors.base import InvalidParameter
from queryserver.tasks.model import next_cron_time, next_interval_time, require_cron, require_zone

BERLIN = ZoneInfo("Europe/Berlin")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(cron: str, zone: str, after: str, until: str) -> list[str]:
    """Return all fire times in the interval, in UTC and without the year."""
    found: list[str] = []
    moment: datetime | None = utc(after)
    while (moment := next_cron_time(cron, require_zone(zone), moment)) is not None and moment <= utc(until):
        found.append(f"{moment:%m-%d %H:%M}")
    return found


def test_skipped_local_time_fires_once_at_the_next_existing_minute():
    # In Berlin, the clock moves from 02:00 to 03:00 on 2026-03-29 (at 01:00 UTC).
    around = "2026-03-28T12:00", "2026-03-30T12:00"
    assert fires("30 2 * * *", "Europe/Berlin", *around) == ["03-29 01:00", "03-30 00:30"]
    assert fires("0,30 2 * * *", "Europe/Berlin", *around) == ["03-29 01:00", "03-30 00:00", "03-30 00:30"]
    # CronSim alone would skip these times, because the minute field starts with a star.
    assert fires("*/20 2 * * *", "Europe/Berlin", *around)[0] == "03-29 01:00"
    assert fires("0 2,3 * * *", "Europe/Berlin", *around) == ["03-29 01:00", "03-30 00:00", "03-30 01:00"]
    assert fires("30 * * * *", "Europe/Berlin", "2026-03-29T00:00", "2026-03-29T02:00") == [
        "03-29 00:30",
        "03-29 01:00",
        "03-29 01:30",
    ]


def test_repeated_local_time_fires_once():
    # In Berlin, the clock moves from 03:00 to 02:00 on 2026-10-25 (at 01:00 UTC); the first 02:30 is 00:30 UTC.
    around = "2026-10-24T12:00", "2026-10-26T12:00"
    assert fires("30 2 * * *", "Europe/Berlin", *around) == ["10-25 00:30", "10-26 01:30"]
    assert fires("30 * * * *", "Europe/Berlin", "2026-10-24T23:00", "2026-10-25T02:00") == [
        "10-24 23:30",
        "10-25 00:30",
    ]
    # A beat process started in the second pass through the hour does not repeat fires of the first pass.
    assert next_cron_time("30 2 * * *", BERLIN, utc("2026-10-25T01:10")) == utc("2026-10-26T01:30")


def test_clock_changes_of_half_an_hour_or_a_day_are_respected():
    # On Lord Howe Island, the clock moves from 02:00 to 02:30 on 2026-10-04 (at 15:30 UTC of the previous day).
    howe = fires("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00", "2026-10-04T23:00")
    assert howe == ["10-03 15:30", "10-04 15:15"]
    # Samoa skipped 2011-12-30 when it crossed the date line.
    assert fires("0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00", "2011-12-31T23:00") == ["12-30 10:00"]


def test_zone_applies_and_fire_time_is_strictly_later():
    assert next_cron_time("0 9 * * mon-fri", BERLIN, utc("2026-01-02T08:00")) == utc("2026-01-05T08:00")
    assert next_cron_time("* * * * *", UTC, utc("2026-01-02T08:00")) == utc("2026-01-02T08:01")
    assert next_cron_time("* * * * *", UTC, utc("2026-01-02T08:00:59.5")) == utc("2026-01-02T08:01")


@pytest.mark.parametrize(
    "text", ["", "* * * *", "* * * * * *", "60 * * * *", "@daily", "0 0 31 2 *", "x * * * *", "*/0 * * * *", "1" * 300]
)
def test_invalid_cron_expressions_are_rejected(text: str):
    with pytest.raises(InvalidParameter, match="cron"):
        require_cron(text)


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "/etc/localtime", "x\0y", "a" * 5000])
def test_unknown_zones_are_rejected(name: str):
    with pytest.raises(InvalidParameter, match="IANA"):
        require_zone(name)


def test_next_fire_after_missed_ones_is_a_whole_number_of_intervals_later():
    due, step = utc("2026-01-01T00:00:00"), timedelta(seconds=10)
    assert next_interval_time(due, step, due) == utc("2026-01-01T00:00:10")
    assert next_interval_time(due, step, utc("2026-01-01T00:01:03")) == utc("2026-01-01T00:01:10")
    # If the database clock is set back, the schedule does not immediately fire a second time.
    assert next_interval_time(due, step, utc("2025-12-31T23:59:00")) == utc("2026-01-01T00:00:10")

"""When schedules fire: five-field cron texts in a time zone, and intervals (Contract platform 10.7)."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

from cronsim import CronSim, CronSimError

from queryserver.errors.base import InvalidParameter
from queryserver.platform.settings.desktop import time_zone

_FIELDS = 5
_LONGEST_CRON = 200
_MINUTE = timedelta(minutes=1)


def require_zone(name: str) -> tzinfo:
    """The time zone of an IANA name. Raises InvalidParameter."""
    try:
        return time_zone(name)
    except ValueError as error:
        raise InvalidParameter(f"schedule.timezone {error}") from None


def require_cron(text: str) -> None:
    """Raises InvalidParameter unless it has five fields and names a time that comes."""
    if len(text) > _LONGEST_CRON or len(text.split()) != _FIELDS:
        raise InvalidParameter("schedule.cron must have five fields: minute, hour, day of month, month, day of week.")
    try:
        next(CronSim(text, datetime(2024, 1, 1)))  # noqa: DTZ001 a local time
    except CronSimError as error:
        raise InvalidParameter(f"schedule.cron is not valid: {error}.") from None
    except StopIteration:
        raise InvalidParameter("schedule.cron names no time that ever comes.") from None


def next_cron_time(text: str, zone: tzinfo, after: datetime) -> datetime | None:
    """The first moment after `after` that the cron text names in the zone, in UTC; None: there is none.

    Each local time fires once: of one that comes twice, when clocks are set back, the first; one that is skipped, when
    they are set forward, at the next minute that exists. CronSim itself does so only where neither minute nor hour
    begins with a star, so it gets local times without a zone.
    """
    for local in _local_times(text, after.astimezone(zone).replace(tzinfo=None)):
        moment = _moment(local, zone)
        if moment > after:
            return moment
    return None


def next_interval_time(due: datetime, interval: timedelta, now: datetime) -> datetime:
    """The first moment after `now` of the grid of the interval through `due`."""
    missed = max((now - due) // interval, 0)
    return due + interval * (missed + 1)


def _local_times(text: str, after: datetime) -> Iterator[datetime]:
    try:
        yield from CronSim(text, after)
    except CronSimError as error:
        raise ValueError(f"{text}: {error}") from None


def _moment(local: datetime, zone: tzinfo) -> datetime:
    while True:
        moment = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
        if moment.astimezone(zone).replace(tzinfo=None, fold=0) == local:
            return moment
        local += _MINUTE

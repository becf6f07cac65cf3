"""The framework of `queryserver doctor`: findings about a deployment, and checks that run concurrently."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import structlog

from queryserver.errors.base import ConfigurationError, QueryServerError
from queryserver.platform.settings.tree import Level, SettingsFinding

log = structlog.get_logger(__name__)

INSTANCES = "instances"
"""The area of the processes of the fleet."""

_WITHIN_S = 10.0


class State(StrEnum):
    """The severity of a finding.

    An error means that something does not work. A warning means that something may fail later, or is probably a
    mistake.
    """

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about one area, with its remedy. Never contains secrets."""

    area: str
    state: State
    what: str
    to_do: str = ""

    @classmethod
    def ok(cls, area: str, what: str) -> "Finding":
        return cls(area, State.OK, what)

    @classmethod
    def warning(cls, area: str, what: str, to_do: str) -> "Finding":
        return cls(area, State.WARNING, what, to_do)

    @classmethod
    def error(cls, area: str, what: str, to_do: str) -> "Finding":
        return cls(area, State.ERROR, what, to_do)

    @classmethod
    def of_settings(cls, area: str, found: SettingsFinding) -> "Finding":
        """Convert a finding of `config check`, whose text continues its key and includes the remedy."""
        state = State.ERROR if found.level is Level.ERROR else State.WARNING
        return cls(area, state, f"{found.key} {found.text}", f"See {found.key} in docs/configuration.md.")


Check: TypeAlias = Callable[[], Awaitable[Iterable[Finding]]]


@dataclass(frozen=True, slots=True)
class AreaCheck:
    """The check of one area, with a time limit of `within_s` seconds."""

    area: str
    check: Check
    within_s: float = _WITHIN_S


async def examine(checks: Sequence[AreaCheck]) -> Sequence[Finding]:
    """Run all checks concurrently, and return their findings in order. An error raised by a check becomes a finding."""
    found = await asyncio.gather(*map(_findings, checks))
    return [finding for findings in found for finding in findings]


async def _findings(one: AreaCheck) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(one.within_s):
            return list(await one.check())
    except TimeoutError:
        what = f"The check did not finish within {one.within_s:g} s."
        return [Finding.error(one.area, what, "Check the network, and the load of the services in this area.")]
    except ConfigurationError as error:
        return [Finding.of_settings(one.area, SettingsFinding.of_problem(problem)) for problem in error.problems]
    except QueryServerError as error:
        return [Finding.error(one.area, error.message, "Check the service in the message, and its log.")]
    except Exception as error:  # a defect in one check must not hide the other areas
        log.exception("doctor check failed", area=one.area)
        what = f"The check itself failed: {type(error).__name__}."
        return [Finding.error(one.area, what, "This is a bug in queryserver. Report it, and attach the log.")]


async def of_settings(
    area: str, check: Awaitable[Iterable[SettingsFinding]], well: Callable[[int], str]
) -> Sequence[Finding]:
    """Run a check from `config check` and convert its findings for the doctor.

    If there are no findings, the result is a single OK finding, whose text `well` returns for the duration in
    milliseconds.
    """
    began = time.monotonic()
    found = [Finding.of_settings(area, one) for one in await check]
    return found or [Finding.ok(area, well(round(1000 * (time.monotonic() - began))))]

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

_WITHIN_S = 10.0


class State(StrEnum):
    """Error: something does not work; warning: something will fail or is probably a mistake."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding about one area, and the remedy. Contains no secrets."""

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
        """A finding of `config check`, whose text continues after the key and includes the remedy."""
        state = State.ERROR if found.level is Level.ERROR else State.WARNING
        return cls(area, state, f"{found.key} {found.text}", f"See {found.key} in docs/configuration.md.")


Check: TypeAlias = Callable[[], Awaitable[Iterable[Finding]]]


@dataclass(frozen=True, slots=True)
class AreaCheck:
    """The check of one area, with `within_s` seconds of time."""

    area: str
    check: Check
    within_s: float = _WITHIN_S


async def examine(checks: Sequence[AreaCheck]) -> Sequence[Finding]:
    """Run all checks concurrently. The findings are in the order of the checks; a check that raises is a finding."""
    found = await asyncio.gather(*map(_findings, checks))
    return [finding for findings in found for finding in findings]


async def _findings(one: AreaCheck) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(one.within_s):
            return list(await one.check())
    except TimeoutError:
        what = f"The check did not end within {one.within_s:g} s."
        return [Finding.error(one.area, what, "Look at the network and the load of what does not answer.")]
    except ConfigurationError as error:
        return [Finding.of_settings(one.area, SettingsFinding.of_problem(problem)) for problem in error.problems]
    except QueryServerError as error:
        return [Finding.error(one.area, error.message, "Look at the service that is named, and at its log.")]
    except Exception as error:  # the other areas are still reported
        log.exception("check of the doctor failed", area=one.area)
        what = f"The check itself failed: {type(error).__name__}."
        return [Finding.error(one.area, what, "This is a mistake of the program: report it with the log.")]


async def of_settings(
    area: str, check: Awaitable[Iterable[SettingsFinding]], well: Callable[[int], str]
) -> Sequence[Finding]:
    """The findings of a check of `config check`; if there are none, the text `well` with the duration in
    milliseconds.
    """
    began = time.monotonic()
    found = [Finding.of_settings(area, one) for one in await check]
    return found or [Finding.ok(area, well(round(1000 * (time.monotonic() - began))))]

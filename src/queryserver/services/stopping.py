"""The steps of a stop, in the log."""

import time
from collections.abc import Generator
from contextlib import contextmanager

import structlog

log = structlog.get_logger(__name__)


@contextmanager
def stop_step(step: str, *, within_s: float, **facts: object) -> Generator[None]:
    """One line about a step of the stop, when it is over: how long it took, and how long it may take."""
    started = time.monotonic()
    try:
        yield
    finally:
        seconds = round(time.monotonic() - started, 2)
        log.info("stop", step=step, seconds=seconds, limit_s=within_s, **facts)

"""The steps of a shutdown and their time limits (Contract platform 9.5)."""

import logging
import math
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import structlog

from queryserver.platform.logs import stop_logging

log = structlog.get_logger(__name__)

STATEMENTS_STOPPED_WITHIN_S = 5.0
"""Time after the grace period in which engines can confirm that running statements were canceled."""
STATEMENTS_RECORDED_WITHIN_S = 1.5
"""Time to record the end of statements whose cancellation the engine did not confirm."""
SESSIONS_CLOSED_WITHIN_S = 1.5
"""Time to close engine sessions and to release the rows of this process."""
CALLS_ANSWERED_WITHIN_S = 3.0
"""Time for calls that are still running after statements have used up the grace period."""
ENGINES_CLOSED_WITHIN_S = 2.0
"""Time to close engine connections, including threads that are inside drivers."""
SPANS_EXPORTED_WITHIN_S = 2.0
"""Time to export the spans that are still waiting."""
REST_S = 15.0
"""Total time for all steps after the grace period. Then the process exits, even if something is still running."""
THREADS_END_WITHIN_S = 2.0
"""Time for threads to end after everything else has been closed."""
_LOG_WITHIN_S = 1.0
_CHECK_EVERY_S = 0.1


@contextmanager
def stop_step(step: str, *, within_s: float, **facts: object) -> Generator[None]:
    """Log the duration of a shutdown step together with its time limit. Does not enforce the limit."""
    started = time.monotonic()
    try:
        yield
    finally:
        seconds = round(time.monotonic() - started, 2)
        log.info("stop", step=step, seconds=seconds, limit_s=within_s, **facts)


class StopClock:
    """Exits the process at a deadline, which is set when the stop signal arrives and can only be moved earlier."""

    def __init__(self) -> None:
        self._ends_at = math.inf
        self._is_watched = False

    def set(self, within_s: float) -> None:
        """Set the deadline to `within_s` from now, unless it is already earlier. Safe in signal handlers (no lock)."""
        self._ends_at = min(self._ends_at, time.monotonic() + within_s)
        if not self._is_watched:
            self._is_watched = True
            threading.Thread(target=self._watch, name="stop-clock", daemon=True).start()

    def _watch(self) -> None:
        while time.monotonic() < self._ends_at:
            time.sleep(_CHECK_EVERY_S)
        ours = threading.current_thread()
        busy = sorted({one.name for one in threading.enumerate() if one is not ours and not one.daemon})
        logging.getLogger(__name__).error("Shutdown takes too long; exiting now. Busy threads: %s", ", ".join(busy))
        writing = threading.Thread(target=stop_logging, daemon=True)
        writing.start()
        writing.join(_LOG_WITHIN_S)
        os._exit(0)  # does not join threads, since a thread inside a driver may never return

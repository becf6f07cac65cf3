"""The bound of a stop: a process that was told to stop ends in time, whatever still runs in it."""

import logging
import math
import os
import threading
import time

from queryserver.logs.setup import stop_logging

_LOG_WITHIN_S = 1.0
_LOOK_EVERY_S = 0.1

log = logging.getLogger(__name__)


def _leave() -> None:
    """End the process without waiting for its threads: one inside a driver may never come back."""
    writing = threading.Thread(target=stop_logging, daemon=True)
    writing.start()
    writing.join(_LOG_WITHIN_S)
    os._exit(0)


class StopClock:
    """Ends the process at a time that is set when it is told to stop. It may be moved forward, never back."""

    def __init__(self) -> None:
        self._ends_at = math.inf
        self._is_watched = False

    def set(self, within_s: float) -> None:
        """The process has that long from now on, at most. For signal handlers, too: it takes no lock of ours."""
        self._ends_at = min(self._ends_at, time.monotonic() + within_s)
        if not self._is_watched:
            self._is_watched = True
            threading.Thread(target=self._watch, name="stop-clock", daemon=True).start()

    def _watch(self) -> None:
        while time.monotonic() < self._ends_at:
            time.sleep(_LOOK_EVERY_S)
        ours = threading.current_thread()
        busy = sorted({one.name for one in threading.enumerate() if one is not ours and not one.daemon})
        log.error("The stop takes too long: the process ends now. Threads at work: %s", ", ".join(busy))
        _leave()

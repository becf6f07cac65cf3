"""Calls to an engine that are repeated after a break of the network."""

import asyncio

RETRY_S = 60.0
"""How long a call about a statement at an engine is repeated without success, before its outcome counts as unknown."""

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class Retries:
    """Growing pauses between the attempts of one call. They end `for_s` seconds after this object was created."""

    def __init__(self, for_s: float) -> None:
        self._until = asyncio.get_running_loop().time() + for_s
        self._pause_s = _FIRST_PAUSE_S

    async def pause(self, *, least_s: float = 0) -> bool:
        """Wait for the next attempt. False, without a wait, when no time is left for one."""
        pause_s = max(self._pause_s, least_s)
        if asyncio.get_running_loop().time() + pause_s > self._until:
            return False
        await asyncio.sleep(pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return True

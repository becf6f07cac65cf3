"""Scripts laid out for people (Contract editor 8.4). No engine is called."""

from collections.abc import Mapping
from typing import Any

import structlog

from queryserver.domain.errors.base import MissingParameter, PayloadTooLarge, TooComplex
from queryserver.formats.sql import SCANNED_CHARACTERS, formatted
from queryserver.interfaces.computation import Computing, Task

log = structlog.get_logger(__name__)


class Formatting:
    """Formats scripts in processes of their own: the time of the formatter grows faster than a text."""

    def __init__(self, computing: Computing, *, max_bytes: int) -> None:
        self._computing = computing
        self._max_bytes = max_bytes

    async def format_script(self, user_id: int, script: str | None, dialect: str | None) -> str:
        """The script formatted, or as it came where that cannot be done for sure or within the limits of a computation.

        By the rules of `dialect` if given. Raises MissingParameter, PayloadTooLarge, TooManyRequests.
        """
        if script is None:
            raise MissingParameter("statements is required and must not be blank.")
        if len(script) > self._max_bytes or len(script.encode(errors="surrogatepass")) > self._max_bytes:
            raise PayloadTooLarge(f"statements: above the limit of {self._max_bytes} bytes.")
        if len(script) > SCANNED_CHARACTERS:
            return script
        content = script.encode(errors="surrogatepass")
        try:
            done = await self._computing.run(user_id, Task.FORMAT, {"dialect": dialect}, content)
        except TooComplex:
            log.info("script not formatted: it takes too long", characters=len(script))
            return script
        return script if done is None else done


def format_text(options: Mapping[str, Any], content: bytes) -> object:
    """The script formatted; None: unchanged."""
    script = content.decode(errors="surrogatepass")
    done = formatted(script, options["dialect"])
    return None if done == script else done

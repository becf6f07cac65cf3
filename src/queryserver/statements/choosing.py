"""The statement that runs next, found in a process of its own when the script is large."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import structlog

from queryserver.errors.base import MissingParameter, PayloadTooLarge, TooComplex
from queryserver.platform.computing_protocol import Computing, Task
from queryserver.sql.splitter import Choice, Position, PreviousStatement, Script, Steering, choose, explainable
from queryserver.sql.tokens import SCANNED_CHARACTERS, formatted

INLINE_CHARACTERS = 20_000
"""Shorter scripts take 10 ms at most, and usually less than it takes to hand them over."""
_CHARACTERS_OF_A_STATEMENT = 10
"""A statement takes as long as so many characters, whatever stands in it."""


class Choosing:
    """Finds statements in scripts. All methods raise TooComplex and TooManyRequests."""

    def __init__(self, computing: Computing) -> None:
        self._computing = computing

    async def next(self, user_id: int, script: str, dialect: str, steering: Steering) -> Choice | None:
        """The statement that runs next; None: the script has none."""
        if _is_short(script):
            return choose(script, dialect, steering)
        options = {"dialect": dialect, **asdict(steering)}
        found = await self._computing.run(user_id, Task.CHOOSE_STATEMENT, options, _bytes(script))
        if found is None:
            return None
        return replace(Choice(**found), start=Position(**found["start"]), end=Position(**found["end"]))

    async def first_to_explain(self, user_id: int, script: str, dialect: str) -> tuple[str, str] | None:
        """The first statement, and what of it may stand behind EXPLAIN; None: the script has none.

        Raises InvalidParameter.
        """
        if _is_short(script):
            return _first(script, dialect)
        found = await self._computing.run(user_id, Task.FIRST_TO_EXPLAIN, {"dialect": dialect}, _bytes(script))
        if found is None:
            return None
        first, stop, start = found
        return script[first:stop], script[start:stop]


def choose_statement(options: Mapping[str, Any], content: bytes) -> object:
    """A Choice as JSON, or None."""
    previous = options["previous"]
    steering = Steering(previous and PreviousStatement(**previous), options["full_form"])
    choice = choose(_text(content), options["dialect"], steering)
    return None if choice is None else asdict(choice)


def first_to_explain(options: Mapping[str, Any], content: bytes) -> object:
    """Where the first statement begins and ends, and where what may stand behind EXPLAIN begins in it; or None."""
    script = _text(content)
    found = _first(script, options["dialect"])
    if found is None:
        return None
    first, stop = Script(script, options["dialect"]).span(0)
    return first, stop, stop - len(found[1])


def _first(script: str, dialect: str) -> tuple[str, str] | None:
    statements = Script(script, dialect)
    if not statements:
        return None
    text = statements[0].text
    return text, explainable(text, dialect)


def _is_short(script: str) -> bool:
    if len(script) > INLINE_CHARACTERS:
        return False
    return len(script) + _CHARACTERS_OF_A_STATEMENT * script.count(";") <= INLINE_CHARACTERS


def _bytes(script: str) -> bytes:
    return script.encode(errors="surrogatepass")


def _text(content: bytes) -> str:
    return content.decode(errors="surrogatepass")


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

"""Converts command-line parameters (`7`, `name=value` or `name:type=value`) to Python values."""

import base64
import binascii
import datetime as dt
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from queryserver_client.cli.failures import WrongUse

_NAMED = re.compile(r"([A-Za-z_]\w*)(?::(\w+))?=(.*)", re.DOTALL)
_TYPED = re.compile(r":(\w+)=(.*)", re.DOTALL)
_DURATION = re.compile(r"([1-9][0-9]{0,7})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DECIMAL = re.compile(r"-?\d+\.\d+")


def parameters_of(given: Sequence[str], values: Sequence[str] = ()) -> "list[Any] | dict[str, Any] | None":
    """Return the parameters of a statement as a dict (named) or a list (positional); None if there are none.

    `given` are the values of -p. `values` are the arguments after the statement, which are always positional. Raises
    WrongUse.
    """
    named: dict[str, Any] = {}
    ordered: list[Any] = []
    for text in given:
        if found := _NAMED.fullmatch(text):
            if found[1] in named:
                raise WrongUse(f"-p {found[1]} is specified twice")
            named[found[1]] = value_of(found[3], found[2])
        elif found := _TYPED.fullmatch(text):
            ordered.append(value_of(found[2], found[1]))
        else:
            ordered.append(value_of(text))
    ordered += [value_of(text) for text in values]
    if named and ordered:
        raise WrongUse("parameters must be either all named or all positional")
    return named or ordered or None


def value_of(text: str, kind: str | None = None) -> Any:
    """Convert text to a Python value: by `kind` if given, otherwise as JSON.

    Text that is not JSON, or contains a JSON object, stays a string. Raises WrongUse.
    """
    if kind is not None:
        convert = _KINDS.get(kind.lower())
        if convert is None:
            raise WrongUse(f"unknown type {kind}; valid types: {', '.join(_KINDS)}")
        try:
            return convert(text)
        except (ValueError, InvalidOperation, binascii.Error) as error:
            raise WrongUse(f"{text!r} is not a valid {kind}") from error
    if _DECIMAL.fullmatch(text):
        return Decimal(text)
    try:
        value = json.loads(text, parse_float=_float, parse_constant=str)
    except ValueError:
        return text
    return text if _has_object(value) else value


def given_text(argument: str | None, file: Path | None) -> str | None:
    """Return the text of a file, or an argument, which is read from stdin if it is `-`; None if neither is given."""
    if file is not None:
        return file.read_text("utf-8-sig")
    return sys.stdin.read() if argument == "-" else argument


def required_text(argument: str | None, file: Path | None) -> str:
    """Return the text like `given_text`, by default from stdin. Raises WrongUse if there is none."""
    if argument is None and file is None and sys.stdin.isatty():
        raise WrongUse("give a statement, or a file with -f")
    text = given_text("-" if argument is None else argument, file) or ""
    if not text.strip():
        raise WrongUse("there is no statement")
    return text


def seconds_of(option: str, text: str) -> int:
    """Parse a duration: `90s`, `15m`, `12h` or `7d`. Raises WrongUse."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise WrongUse(f"{option} {text}: use a duration such as 90s, 15m, 12h or 7d")
    return int(found[1]) * _SECONDS[found[2]]


def moment_of(option: str, text: str | None) -> dt.datetime | None:
    """Parse a duration from now on, such as `7d`, or a local time such as `2026-05-31`. Raises WrongUse."""
    if text is None:
        return None
    try:
        if _DURATION.fullmatch(text):
            return dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=seconds_of(option, text))
        return dt.datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise WrongUse(f"{option} {text}: use 12h, 7d or a time such as 2026-05-31T18:00") from None


def _has_object(value: Any) -> bool:
    """Return whether the value contains an object. Objects are not valid parameters; their JSON is sent as a string."""
    return isinstance(value, dict) or (isinstance(value, list) and any(map(_has_object, value)))


def _float(text: str) -> Any:
    return Decimal(text) if _DECIMAL.fullmatch(text) else float(text)


def _zoned(text: str) -> dt.datetime:
    moment = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        raise ValueError(text)
    return moment


def _plain(text: str) -> dt.datetime:
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        raise ValueError(text)
    return moment


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_KINDS: Mapping[str, Callable[[str], Any]] = {
    "varchar": str,
    "text": str,
    "bigint": int,
    "int": int,
    "double": float,
    "decimal": Decimal,
    "boolean": _boolean,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "timestamp": _plain,
    "timestamp_tz": _zoned,
    "binary": lambda text: base64.b64decode(text, validate=True),
}

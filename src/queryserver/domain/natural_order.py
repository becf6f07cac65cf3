"""Names in the order in which people look for them: `t2` before `t10`, without regard to case."""

import re

_NUMBER = re.compile(r"([0-9]{1,18})")


def natural_key(name: str) -> tuple[tuple[str | tuple[int, str], ...], str]:
    """What to sort by. Digits count as numbers; names that differ in case only keep one order."""
    parts = _NUMBER.split(name.casefold())
    # Text stands at even places and numbers at odd ones, so that like is compared with like.
    return tuple((int(part), part) if place % 2 else part for place, part in enumerate(parts)), name

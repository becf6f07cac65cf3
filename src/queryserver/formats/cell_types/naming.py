"""Names of the columns of an imported file (Contract importer 7.3)."""

import re
from collections.abc import Sequence

from queryserver.domain.importing import Cells

MAX_NAME_CHARACTERS = 255

_LINE_BREAKS = re.compile("[\\n\\v\\f\\r\x85\u2028\u2029]+")


def numbered_names(width: int) -> Sequence[str]:
    """`column_1`, `column_2` and so on: names of columns without a header."""
    return [f"column_{position}" for position in range(1, width + 1)]


def header_names(header: Cells, width: int) -> Sequence[str]:
    """Names from a header: one per column, all different even if case does not count.

    The first column of a name keeps it; the others get the first of `_2`, `_3`, … that no column has, be it further
    right.
    """
    cells = [*header[:width], *[""] * (width - len(header))]
    wanted = [_cleaned(cell) or f"column_{position}" for position, cell in enumerate(cells, 1)]
    taken = {name.lower() for name in wanted}
    seen: set[str] = set()
    tried: dict[str, int] = {}
    names: list[str] = []
    for name in wanted:
        names.append(_free_name(name, taken, tried) if name.lower() in seen else name)
        seen.add(name.lower())
    return names


def _cleaned(cell: str) -> str:
    return _LINE_BREAKS.sub(" ", str(cell).strip()).strip()[:MAX_NAME_CHARACTERS].rstrip()


def _free_name(name: str, taken: set[str], tried: dict[str, int]) -> str:
    """The name with the lowest number that is free; takes it. `tried`: the highest number of each name so far."""
    number = tried.get(name.lower(), 1)
    while True:
        number += 1
        suffix = f"_{number}"
        numbered = name[: MAX_NAME_CHARACTERS - len(suffix)] + suffix
        if numbered.lower() not in taken:
            break
    tried[name.lower()] = number
    taken.add(numbered.lower())
    return numbered

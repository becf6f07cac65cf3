"""Prints rows as a table that fits the terminal or, if there are too many columns, as one record below another."""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from queryserver_client.cli.failures import visible
from queryserver_client.cli.pager import paged
from queryserver_client.cli.running import summary
from queryserver_client.cli.terminal import output_console

if TYPE_CHECKING:
    from queryserver_client.sync import Result
    from queryserver_client.values import Column

SHOWN_ROWS = 1000
"""Maximum number of rows in a table. The response that reports the end of the statement already includes these rows."""
_LEAST_CELLS = 6
"""Minimum column width in terminal cells, unless the content of the column is narrower."""
_GAP = "  "
_CUT = "…"
_NULL = "NULL"
_NUMBERS = frozenset(
    {"TINYINT_TYPE", "SMALLINT_TYPE", "INT_TYPE", "BIGINT_TYPE", "FLOAT_TYPE", "DOUBLE_TYPE", "DECIMAL_TYPE"}
)


def cell_text(value: Any) -> str:
    """Return a value as one line of text, without characters that could control a terminal."""
    match value:
        case None:
            return _NULL
        case str():
            return visible(value)
        case bool():
            return "true" if value else "false"
        case bytes():
            return "\\x" + value.hex()
        case Decimal():
            return format(value, "f")
        case datetime():
            return value.isoformat(sep=" ")
        case list() | dict() | tuple():
            return visible(json.dumps(value, ensure_ascii=False, default=cell_text))
        case _:
            return visible(str(value))


def print_table(result: "Result", *, is_expanded: bool, switch: str = "-x") -> None:
    """Print the first rows of a result, followed by the number of rows and a note if cells were truncated.

    The note names `switch` as the option that shows cells in full.
    """
    page = next(result.pages(SHOWN_ROWS), [])
    console = output_console()
    with paged(console):
        is_whole = print_rows(result.columns, page, console, expanded=is_expanded)
        notes = [summary(result)]
        if len(page) < result.row_count:
            notes.append(f"showing the first {len(page):,}")
        if not is_whole:
            notes.append(f"cells are truncated; {switch} shows them in full")
        console.print(f"({', '.join(notes)})", style="dim")


def print_rows(
    columns: "Sequence[Column]", rows: Sequence[Sequence[Any]], console: Console, *, expanded: bool = False
) -> bool:
    """Print rows. Return False if cells were truncated to make the table fit."""
    names = [column.name for column in columns]
    numeric = [column.type in _NUMBERS for column in columns]
    return print_cells(names, numeric, rows, console, expanded=expanded)


def print_cells(
    names: Sequence[str],
    numeric: Sequence[bool],
    rows: Sequence[Sequence[Any]],
    console: Console,
    *,
    expanded: bool = False,
    whole: Collection[str] = (),
) -> bool:
    """Print rows as `print_rows` does, but with column names instead of result columns.

    Columns in `whole` are never truncated. If the output is not a terminal, no cell is truncated.
    """
    titles = [visible(name) for name in names]
    cells = [[cell_text(value) for value in row] for row in rows]
    widest = [
        max([cell_len(name), *(cell_len(row[place]) for row in cells)], default=0) for place, name in enumerate(titles)
    ]
    least = [width if name in whole else min(width, _LEAST_CELLS) for name, width in zip(names, widest, strict=True)]
    room = console.width if console.is_terminal else sum(widest) + len(_GAP) * len(widest)
    widths = fitted(widest, least, room - len(_GAP) * (len(widest) - 1))
    if expanded or widths is None:
        for line in _records(titles, cells, rows):
            console.print(line, overflow="fold", no_wrap=False)
        return True
    console.print(_line(titles, widths, numeric, ["bold"] * len(names)), no_wrap=True, overflow="ignore", crop=False)
    console.print(Text(_GAP.join("─" * width for width in widths), "dim"), no_wrap=True, overflow="ignore", crop=False)
    for texts, values in zip(cells, rows, strict=True):
        styles = ["dim" if value is None else "" for value in values]
        console.print(_line(texts, widths, numeric, styles), no_wrap=True, overflow="ignore", crop=False)
    return widths == widest


def fitted(widest: Sequence[int], least: Sequence[int], room: int) -> list[int] | None:
    """Return column widths whose sum is at most `room` terminal cells; None if the minimum widths exceed it.

    The widest columns are narrowed first.
    """
    if sum(least) > room:
        return None

    def capped(max_width: int) -> list[int]:
        return [max(lowest, min(width, max_width)) for width, lowest in zip(widest, least, strict=True)]

    low, high = 0, max(widest, default=0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(capped(middle)) <= room else (low, middle - 1)
    widths = capped(low)
    spare = room - sum(widths)
    for place, width in enumerate(widest):
        if width > widths[place] == low and spare:
            widths[place], spare = low + 1, spare - 1
    return widths


def _line(texts: Sequence[str], widths: Sequence[int], numeric: Sequence[bool], styles: Sequence[str]) -> Text:
    line = Text()
    last = len(texts) - 1
    for place, (text, width) in enumerate(zip(texts, widths, strict=True)):
        length = cell_len(text)
        if length > width:
            # A double-width character may not fit, so the text may be one cell narrower.
            cut = set_cell_size(text, width - 1).rstrip() + _CUT
            text, length = cut, cell_len(cut)  # noqa: PLW2901
        blanks = " " * (width - length)
        if numeric[place]:
            line.append(blanks)
        line.append(text, styles[place])
        if place < last:
            line.append(_GAP if numeric[place] else blanks + _GAP)
    return line


def _records(names: Sequence[str], cells: Iterable[Sequence[str]], rows: Sequence[Sequence[Any]]) -> Iterator[Text]:
    width = max((cell_len(name) for name in names), default=0)
    for number, (texts, values) in enumerate(zip(cells, rows, strict=True), start=1):
        yield Text(f"── row {number} ──", "dim")
        for name, text, value in zip(names, texts, values, strict=True):
            line = Text(" " * (width - cell_len(name)))
            line.append(name, "bold").append(_GAP).append(text, "dim" if value is None else "")
            yield line

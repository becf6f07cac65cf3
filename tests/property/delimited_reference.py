"""A reference reader that splits delimited text one character at a time. It is slow and follows the wording of Contract
importer 8.2 as closely as possible.
"""

from queryserver.formats.table_files import Delimiters

BLANKS = " \t\n\r\f\v"


def records_of(text: str, delimiters: Delimiters) -> tuple[list[list[tuple[str, bool]]], list[int]]:
    """Return the cells of each record, as pairs of the text and whether it is quoted, and the numbers of the records
    with an unclosed quote.
    """
    records: list[list[tuple[str, bool]]] = []
    unclosed: list[int] = []
    position = 0
    while position < len(text):
        cells: list[tuple[str, bool]] = []
        is_broken = False
        while True:
            quoted = _quoted(text, position, delimiters)
            if quoted is None:
                is_broken = is_broken or _opens(text, position, delimiters)
                cell, end = _unquoted(text, position, delimiters)
                cells.append((cell, False))
            else:
                cell, end = quoted
                cells.append((cell, True))
            kind, position = _end_at(text, end, delimiters)
            if kind != "field":
                break
        if len(cells) > 1 or cells[0][1] or cells[0][0].strip(BLANKS):
            records.append(cells)
            if is_broken:
                unclosed.append(len(records))
    return records, unclosed


def _end_at(text: str, at: int, delimiters: Delimiters) -> tuple[str | None, int]:
    """Return what ends at this position (`text`, `record`, `field` or None), and the position after the delimiter."""
    if at == len(text):
        return "text", at
    ends = ("\r\n", "\n") if delimiters.record == "\n" else (delimiters.record,)
    for end in ends:
        if text.startswith(end, at):
            return "record", at + len(end)
    if text.startswith(delimiters.field, at):
        return "field", at + len(delimiters.field)
    return None, at


def _skips_blanks(delimiters: Delimiters) -> bool:
    return " " not in {delimiters.field, delimiters.quote}


def _start(text: str, at: int, delimiters: Delimiters) -> int:
    while _skips_blanks(delimiters) and at < len(text) and text[at] == " ":
        at += 1
    return at


def _opens(text: str, at: int, delimiters: Delimiters) -> bool:
    at = _start(text, at, delimiters)
    return delimiters.quote is not None and text[at : at + 1] == delimiters.quote


def _quoted(text: str, at: int, delimiters: Delimiters) -> tuple[str, int] | None:
    if not _opens(text, at, delimiters):
        return None
    quote = delimiters.quote
    at = _start(text, at, delimiters) + 1
    cell = ""
    while at < len(text):
        if text[at] != quote:
            cell += text[at]
            at += 1
        elif text[at + 1 : at + 2] == quote:
            cell += text[at]
            at += 2
        else:
            end = at + 1
            while True:
                # A separator of several characters may begin with a blank; what counts is the first position at which a
                # cell can end.
                if _end_at(text, end, delimiters)[0] is not None:
                    return cell, end
                if not _skips_blanks(delimiters) or text[end : end + 1] != " ":
                    return None
                end += 1
    return None


def _unquoted(text: str, at: int, delimiters: Delimiters) -> tuple[str, int]:
    end = at
    while _end_at(text, end, delimiters)[0] is None:
        end += 1
    return text[at:end], end

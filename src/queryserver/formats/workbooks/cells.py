"""Cells of workbooks as text with a class (Contract importer 12.2)."""

import re
from collections.abc import Callable, Mapping
from math import isfinite

from queryserver.domain.errors import FileCorrupt, file_too_complex
from queryserver.domain.importing import MAX_FIELD_CHARACTERS, CellKind, TypedText
from queryserver.formats.workbooks.serials import Temporal, iso_cell, temporal_cell

EMPTY = TypedText("", CellKind.NULL)
_TRUE, _FALSE = TypedText("true", CellKind.BOOLEAN), TypedText("false", CellKind.BOOLEAN)

_EXACT = 2**53
_PLAIN_DIGITS = 15
_MAX_STRING_DIGITS = 9
_NUMBER = re.compile(r"[ \t\r\n]*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,5})?[ \t\r\n]*", re.ASCII)
_ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")


class CellReader:
    """Makes cells of what stands in the XML of a sheet."""

    def __init__(
        self, temporal_styles: Mapping[str, Temporal], shared: Callable[[int], TypedText], *, is_1904: bool
    ) -> None:
        """`temporal_styles`: what the styles of dates and times show, by their number as it stands in cells.

        `shared` gives the shared string of a number.
        """
        self._temporal_styles = temporal_styles
        self._shared = shared
        self._is_1904 = is_1904

    def cell(self, kind: str | None, style: str | None, text: str) -> TypedText:
        """The cell. `kind` and `style` are its attributes `t` and `s` (18.3.1.4), if any. Raises FileCorrupt.

        Called for each cell, a million times: hence no layers for the usual ones.
        """
        if not kind or kind == "n":
            temporal = self._temporal_styles.get(style) if style else None
            if temporal is not None:
                return self._serial(text, temporal)
            if len(text) <= _PLAIN_DIGITS and text.isdecimal() and text[0] != "0" and text.isascii():
                return TypedText(text, CellKind.INTEGER)
            return number_cell(float(text)) if _NUMBER.fullmatch(text) else _no_number(text)
        if kind == "s":
            return self._shared(_string_number(text))
        if kind in ("str", "inlineStr"):
            return text_cell(text)
        if kind == "b":
            return boolean_cell(is_true=text.strip() in ("1", "true"))
        return (iso_cell(text.strip()) or text_cell(text)) if kind == "d" else EMPTY

    def _serial(self, text: str, temporal: Temporal) -> TypedText:
        if _NUMBER.fullmatch(text):
            return serial_cell(float(text), temporal, is_1904=self._is_1904)
        return _no_number(text)


def serial_cell(serial: float, temporal: Temporal, *, is_1904: bool) -> TypedText:
    """A number that is shown as a date, time or duration, if it is one."""
    return temporal_cell(serial, temporal, is_1904=is_1904) or number_cell(serial)


def number_cell(number: float) -> TypedText:
    """Whole numbers up to 2^53 are integers, all else is a double in its shortest form."""
    if -_EXACT <= number <= _EXACT and number == int(number):
        return TypedText(str(int(number)), CellKind.INTEGER)
    return TypedText(repr(number), CellKind.DOUBLE) if isfinite(number) else EMPTY


def boolean_cell(*, is_true: bool) -> TypedText:
    """`true` or `false`."""
    return _TRUE if is_true else _FALSE


def text_cell(text: str) -> TypedText:
    """Text with its escaped characters, which XML cannot hold, in place."""
    if "_x" in text:
        text = unescaped(text)
    return plain_text_cell(text)


def plain_text_cell(text: str) -> TypedText:
    """Text as it is. Raises file_too_complex above the limit of all cells (Contract importer 8.5)."""
    if len(text) > MAX_FIELD_CHARACTERS:
        raise file_too_complex("A cell of the workbook has more than 1,048,576 characters.")
    return TypedText(text, CellKind.TEXT) if text else EMPTY


def unescaped(text: str) -> str:
    """`_x000D_` is a carriage return, `_x005F_` an underscore (ECMA-376 part 1, 22.9.2.19, ST_Xstring)."""
    plain = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
    # Two escapes may make one character; half of a pair is no character.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _no_number(text: str) -> TypedText:
    """NaN and the like are no value; other text is shown as it stands."""
    return EMPTY if text.strip().lower() in ("", "nan", "inf", "-inf", "infinity", "-infinity") else text_cell(text)


def _string_number(text: str) -> int:
    number = text.strip()
    if not number.isdecimal() or len(number) > _MAX_STRING_DIGITS:
        raise FileCorrupt("A cell of the workbook names a text that is none.")
    return int(number)

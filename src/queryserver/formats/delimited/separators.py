"""Separators as clients send them (Contract importer 7.2): raw characters or backslash escapes."""

import re

from queryserver.domain.errors.base import InvalidParameter
from queryserver.domain.importing import Delimiters, FileType

USUAL_SEPARATORS = {FileType.CSV: ",", FileType.TSV: "\t"}
"""The field separators of the types that name one."""

NO_QUOTE = "\0"
"""What `quote_char` becomes by `\\0`: nothing is quoted."""

_MAX_CHARACTERS = 8
_ESCAPE = re.compile(r"\\(?:([tnr\\\"'abfv0])|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4}))")
_ESCAPED = {
    "t": "\t",
    "n": "\n",
    "r": "\r",
    "\\": "\\",
    '"': '"',
    "'": "'",
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "0": "\0",
}


def unescaped(value: str) -> str:
    """The characters that a value stands for; unknown escapes stay as sent, pairs of `\\u` surrogates are joined."""
    text = _ESCAPE.sub(lambda found: _ESCAPED.get(found[1] or "") or chr(int(found[2] or found[3], 16)), value)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def type_of_separator(field: str) -> FileType:
    """What a file with this field separator is called (Contract importer 4)."""
    return {",": FileType.CSV, "\t": FileType.TSV}.get(field, FileType.DELIMITED)


def delimiters_of(field: str, *, quote: str | None = None, record: str | None = None) -> Delimiters:
    """How to cut a file, by the parameters of a call: `field` is never empty, the others count as absent if empty.

    Raises InvalidParameter: too long, equal, one within the other, or no characters at all.
    """
    field_text = _checked("field_separator", field)
    quote_text = _checked("quote_char", quote or '"')
    record_text = _checked("record_separator", record or "\n")
    if record_text == "\r\n":
        record_text = "\n"
    if len(quote_text) != 1:
        raise InvalidParameter("quote_char must be one character.")
    if quote_text == NO_QUOTE:
        quote_text = ""
    if record_text in field_text or (quote_text and quote_text in field_text + record_text):
        raise InvalidParameter("field_separator, quote_char and record_separator must differ and not hold each other.")
    return Delimiters(field=field_text, quote=quote_text or None, record=record_text)


def _checked(name: str, value: str) -> str:
    if "\0" in value:
        raise InvalidParameter(f"{name} must not hold U+0000.")
    text = unescaped(value)
    if not 1 <= len(text) <= _MAX_CHARACTERS:
        raise InvalidParameter(f"{name} must have 1 to {_MAX_CHARACTERS} characters.")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidParameter(f"{name} must hold whole characters.")
    return text

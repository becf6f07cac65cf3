"""Names in the header Content-Disposition of a multipart part (RFC 7578, RFC 6266, RFC 5987, RFC 2047).

A file name is data: nothing is cut off it, whatever it holds. Libraries cut `C:\\dir\\x` to `x`, as an old browser sent
whole paths, and do not read `filename*`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.errors import MessageError
from email.header import decode_header, make_header
from urllib.parse import unquote_to_bytes

from queryserver.domain.errors.base import InvalidParameter
from queryserver.domain.errors.files import InvalidName

_KIND = re.compile(r"\s*form-data\s*", re.IGNORECASE)
_PARAMETER = re.compile(r';\s*([^\s=;"]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^;\s"]*)\s*', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\])')
_ENCODED_WORDS = re.compile(r"=\?[^?\s]+\?[bq]\?[^?\s]*\?=(?:\s+=\?[^?\s]+\?[bq]\?[^?\s]*\?=)*", re.IGNORECASE)
_CHARSETS = frozenset({"utf-8", "iso-8859-1"})


@dataclass(frozen=True, slots=True)
class PartNames:
    """What a part is called. `file_name` is None for a text field."""

    field: str
    file_name: str | None


def names_of_part(disposition: bytes) -> PartNames:
    """The names in the value of a header Content-Disposition. Raises InvalidParameter, InvalidName."""
    try:
        parameters = _parameters(disposition.decode())
    except UnicodeDecodeError:
        raise InvalidParameter("The headers of a multipart part are not valid UTF-8.") from None
    if "name" not in parameters:
        raise InvalidParameter("A part of the multipart body has no name.")
    return PartNames(parameters["name"], _file_name(parameters))


def _parameters(disposition: str) -> Mapping[str, str]:
    kind = _KIND.match(disposition)
    position = kind.end() if kind else 0
    found: dict[str, str] = {}
    while position and position < len(disposition) and (match := _PARAMETER.match(disposition, position)):
        name, value = match[1].lower(), match[2]
        if name in found:
            raise InvalidParameter("A part of the multipart body has two names.")
        found[name] = _ESCAPED.sub(r"\1", value[1:-1]) if value.startswith('"') else value
        position = match.end()
    if position < len(disposition) or not found:
        raise InvalidParameter("The Content-Disposition of a multipart part does not parse.")
    return found


def _file_name(parameters: Mapping[str, str]) -> str | None:
    if "filename*" in parameters:
        return _extended(parameters["filename*"])
    if any(name.startswith("filename*") for name in parameters):
        raise InvalidName("A file name in several pieces is not read.")
    name = parameters.get("filename")
    return _encoded_words(name) if name and _ENCODED_WORDS.fullmatch(name) else name


def _extended(value: str) -> str:
    """The text of `UTF-8'en'a%20b`."""
    charset, first, rest = value.partition("'")
    _, second, encoded = rest.partition("'")
    if not first or not second or charset.lower() not in _CHARSETS:
        raise InvalidName("The extended file name does not parse.")
    try:
        return unquote_to_bytes(encoded).decode(charset)
    except UnicodeDecodeError:
        raise InvalidName("The extended file name does not parse.") from None


def _encoded_words(value: str) -> str:
    try:
        return str(make_header(decode_header(value)))
    except (MessageError, LookupError, ValueError):  # the client chooses among all codecs there are
        raise InvalidName("The encoded file name does not parse.") from None

"""Paths as the contract has them: a last slash is optional, segments are decoded once and only after splitting.

Routes are matched against the percent-encoded path in one normal form, so that `%2F` stays part of a name; a path
parameter declared `{database:segment}` or `{table:name}` is decoded when it is read.
"""

import re
from urllib.parse import quote, unquote_to_bytes

from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import URL
from starlette.types import Scope

# Characters that a segment may show as they are (RFC 3986 pchar); everything else is written percent-encoded.
_PLAIN = "!$&'()*+,;=:@-._~"
_ASCII = "".join(map(chr, range(0x21, 0x7F)))
AS_IT_CAME = "queryserver.as_it_came"
"""Key of a scope: the one of the server, whose method and path are not yet put in order for matching."""
_PATH_FORM = re.compile(rb"/api/v1/storage/(?:view|stat|download|content_summary)=")


class SegmentConvertor(Convertor[str]):
    """One path segment, possibly empty, decoded once. Invalid UTF-8 and U+0000 never match: 404."""

    regex = "[^/]*"

    def convert(self, value: str) -> str:
        """The decoded name."""
        return unquote_to_bytes(value).decode()

    def to_string(self, value: str) -> str:
        """The encoded name."""
        return quote(value, safe=_PLAIN)


class FullSegmentConvertor(SegmentConvertor):
    """A segment that must not be empty."""

    regex = "[^/]+"


class RestConvertor(Convertor[str]):
    """One segment or more that are not empty, still encoded: `names_of` takes them apart."""

    regex = "[^/]+(?:/[^/]+)*"

    def convert(self, value: str) -> str:
        """As it is: `%2F` is still part of a name."""
        return value

    def to_string(self, value: str) -> str:
        """As it is."""
        return value


def names_of(rest: str) -> tuple[str, ...]:
    """The decoded names of the segments that a parameter `{…:rest}` took."""
    return tuple(unquote_to_bytes(part).decode() for part in rest.split("/"))


class RawConvertor(RestConvertor):
    """Everything up to the end of the path, as it came: what stands behind `=` in storage calls."""

    regex = ".*"


class WordConvertor(Convertor[str]):
    """One segment of plain characters that fits a pattern; any other text is an unknown path."""

    def convert(self, value: str) -> str:
        """As it is."""
        return value

    def to_string(self, value: str) -> str:
        """As it is."""
        return value


class InterfaceConvertor(WordConvertor):
    """What contexts are asked for."""

    regex = "(?!status$)[A-Za-z0-9_-]+"


class OptimizerConvertor(WordConvertor):
    """The optimizer calls of Hue (Contract platform 7.8)."""

    regex = (
        "top_databases|top_tables|top_columns|top_filters|top_joins|top_aggs"
        "|query_risk|query_compatibility|similar_queries|predict"
    )


register_url_convertor("interface", InterfaceConvertor())
register_url_convertor("optimizer", OptimizerConvertor())
register_url_convertor("raw", RawConvertor())
register_url_convertor("rest", RestConvertor())
register_url_convertor("segment", SegmentConvertor())
register_url_convertor("name", FullSegmentConvertor())


def normalized(raw_path: bytes, *, prefix: str = "") -> str | None:
    """The path for matching: prefix and one last slash removed, each segment in one form of encoding.

    None when no path of ours can be meant: another prefix, invalid UTF-8 or U+0000 in a segment.
    """
    path = raw_path.partition(b"?")[0]
    if path.startswith(prefix.encode()) and _PATH_FORM.match(path, len(prefix.encode())):
        # The argument is the caller's own path: double slashes, encoded slashes and a last slash are part of it.
        return quote(path, safe=_ASCII)[len(prefix) :]
    if b"%" not in path and path.isascii():
        text = path.decode()
    else:
        try:
            text = "/".join(_segment(part) for part in path.split(b"/"))
        except UnicodeDecodeError:
            return None
    if "%00" in text or not text.startswith(prefix):
        return None
    text = text[len(prefix) :] or "/"
    return text[:-1] if len(text) > 1 and text.endswith("/") else text


def whole_url(scope: Scope) -> URL:
    """The address of a call as the client wrote it: with our prefix, a last slash and its own way of encoding."""
    raw_path = scope.get("raw_path")
    if raw_path:
        scope = {**scope, "path": quote(raw_path.partition(b"?")[0], safe=_ASCII)}
    return URL(scope=scope)


def answers_head(path: str) -> bool:
    """Whether a path that has GET also has HEAD: an event stream has no end to wait for, so it has none."""
    return not path.startswith("/api/v1/editor/events/")


def _segment(raw: bytes) -> str:
    return quote(unquote_to_bytes(raw).decode(), safe=_PLAIN)

"""Headers of a request that decide whether, how and which part of a file is sent (RFC 9110 sections 12 to 14)."""

from fastapi import Request

from queryserver.formats.download import ContentCoding, preferred_coding
from queryserver.services.ranges import Conditions


def conditions_of(request: Request) -> Conditions:
    """Range and preconditions as they came."""
    given = request.headers
    return Conditions(
        range=given.get("range", ""),
        if_range=given.get("if-range", ""),
        if_none_match=", ".join(given.getlist("if-none-match")),
        if_modified_since=given.get("if-modified-since", ""),
    )


def coding_for(request: Request) -> ContentCoding:
    """How the body is compressed: not at all for parts, whose positions are those of the file itself."""
    if "range" in request.headers:
        return ContentCoding.IDENTITY
    return preferred_coding(", ".join(request.headers.getlist("accept-encoding")))

"""Types of path parameters, and the names in their values.

Routes are matched against the percent-encoded path in a canonical form, so that `%2F` stays part of a name. A parameter
declared as `{database:segment}` or `{table:name}` is decoded when it is read.
"""

from urllib.parse import unquote_to_bytes

from starlette.convertors import Convertor, register_url_convertor


class RawConvertor(Convertor[str]):
    """A part of the path in encoded form, in which `%2F` is part of a name."""

    def __init__(self, regex: str) -> None:
        self.regex = regex  # pyright: ignore[reportAttributeAccessIssue] Starlette reads it from the instance

    def convert(self, value: str) -> str:
        return value


class NameConvertor(RawConvertor):
    """A path segment, decoded once. Invalid UTF-8 and U+0000 do not match, which gives 404."""

    def convert(self, value: str) -> str:
        return unquote_to_bytes(value).decode()


def register() -> None:
    """Register the types with Starlette, before the first route that uses one."""
    # The interface of a context, in the optimizer calls of Hue (Contract platform 7.8); anything else is an unknown
    # path.
    register_url_convertor("interface", RawConvertor("(?!status$)[A-Za-z0-9_-]+"))
    calls = "query_risk|query_compatibility|similar_queries|predict"
    register_url_convertor("optimizer", RawConvertor(f"top_(?:databases|tables|columns|filters|joins|aggs)|{calls}"))
    # The id of a task; `submit` is a separate call with another method.
    register_url_convertor("task", NameConvertor("(?!submit$)[^/]+"))
    # The id of a schedule; the excluded names are separate calls with another method.
    register_url_convertor("schedule", NameConvertor("(?!(?:new|update|delete|run)$)[^/]+"))
    # The text after `=` in storage calls.
    register_url_convertor("raw", RawConvertor(".*"))
    # One or more non-empty segments, split by `names_of`.
    register_url_convertor("rest", RawConvertor("[^/]+(?:/[^/]+)*"))
    register_url_convertor("segment", NameConvertor("[^/]*"))
    register_url_convertor("name", NameConvertor("[^/]+"))


def names_of(rest: str) -> tuple[str, ...]:
    """The decoded names of the segments of a `{…:rest}` parameter."""
    return tuple(unquote_to_bytes(part).decode() for part in rest.split("/"))

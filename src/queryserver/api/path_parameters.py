"""Parameters of paths: the convertors of their types, and the names that they hold.

Routes are matched against the percent-encoded path in one normal form, so that `%2F` stays part of a name; a parameter
that is declared as `{database:segment}` or `{table:name}` is decoded when it is read.
"""

from urllib.parse import unquote_to_bytes

from starlette.convertors import Convertor, register_url_convertor


class RawConvertor(Convertor[str]):
    """A part of the path as it stands there, still encoded: `%2F` is part of a name."""

    def __init__(self, regex: str) -> None:
        self.regex = regex  # pyright: ignore[reportAttributeAccessIssue] Starlette reads it from the instance

    def convert(self, value: str) -> str:
        return value


class NameConvertor(RawConvertor):
    """One path segment, decoded once. Invalid UTF-8 and U+0000 never match: 404."""

    def convert(self, value: str) -> str:
        return unquote_to_bytes(value).decode()


def register() -> None:
    """Make the types known to Starlette, before the first route with one of them is declared."""
    # The interface of a context, the optimizer calls of Hue (Contract platform 7.8); any other text is an unknown path.
    register_url_convertor("interface", RawConvertor("(?!status$)[A-Za-z0-9_-]+"))
    calls = "query_risk|query_compatibility|similar_queries|predict"
    register_url_convertor("optimizer", RawConvertor(f"top_(?:databases|tables|columns|filters|joins|aggs)|{calls}"))
    # The id of a task; `submit` is a call of its own, by another method.
    register_url_convertor("task", NameConvertor("(?!submit$)[^/]+"))
    # The id of a schedule; the others are calls of their own, by another method.
    register_url_convertor("schedule", NameConvertor("(?!(?:new|update|delete|run)$)[^/]+"))
    # What stands behind `=` in storage calls.
    register_url_convertor("raw", RawConvertor(".*"))
    # One segment or more that are not empty: `names_of` takes them apart.
    register_url_convertor("rest", RawConvertor("[^/]+(?:/[^/]+)*"))
    register_url_convertor("segment", NameConvertor("[^/]*"))
    register_url_convertor("name", NameConvertor("[^/]+"))


def names_of(rest: str) -> tuple[str, ...]:
    """The decoded names of the segments that a parameter `{…:rest}` took."""
    return tuple(unquote_to_bytes(part).decode() for part in rest.split("/"))

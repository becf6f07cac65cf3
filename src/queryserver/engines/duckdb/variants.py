"""The type VARIANT is refused: a cast of a JSON value nested 100,000 deep ends the process (DuckDB 2.0.0).

Columns, tables and aliases may have that name. A name is a type by its place in the text.
"""

from collections.abc import Sequence

from queryserver.domain.errors.statements import StatementRejected
from queryserver.engines.duckdb.tokens import Token

_VARIANT = "variant"
_CASTS = frozenset({"cast", "try_cast"})
_FIELDS = frozenset({"struct", "row", "union"})
_OF_QUERIES = frozenset({"select", "from", "with", "values", "table", "pivot", "unpivot", "summarize", "describe"})
_CREATED = frozenset({"table", "macro", "function", "type"})
# Behind these words of ALTER TABLE stands the name of a column or a table.
_BEFORE_NAMES = frozenset({
    "add", "alter", "by", "default", "drop", "exists", "key", "only", "rename", "set", "table", "to", "using",
})  # fmt: skip


def refuse_variants(tokens: Sequence[Token]) -> None:
    """Raises StatementRejected where VARIANT is a type."""
    if any(token.is_name and token.name == _VARIANT for token in tokens) and _Types(tokens).name(_VARIANT):
        raise StatementRejected("Permission Error: the type VARIANT is switched off on this server.")


class _Types:
    """Which names of a statement are types."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._openings = list[int | None]()
        """For each token, the place of the bracket around it."""
        self._created = ""
        around = list[int]()
        for place, token in enumerate(tokens):
            if not self._created and token.name in _CREATED and any(t.name == "create" for t in tokens[:place]):
                self._created = token.name
            self._openings.append(around[-1] if around else None)
            if token.kind == "operator":
                for sign in token.text:
                    if sign in "([{":
                        around.append(place)
                    elif sign in ")]}" and around:
                        around.pop()

    def name(self, name: str) -> bool:
        """Whether a token of this name is a type."""
        return any(
            token.is_name and token.name == name and self._is_type(place) for place, token in enumerate(self._tokens)
        )

    def _is_type(self, place: int) -> bool:
        following = self._at(place + 1)
        while self._at(place - 1).text == ".":  # a qualified name
            place -= 2
        before = self._at(place - 1)
        if before.text.endswith("::") or (following.kind == "string_const" and before.name != "as"):
            return True
        opening = self._openings[place]
        opener = self._at(opening - 1).name if opening is not None else ""
        if before.name == "as":
            return opener in _CASTS or (self._created == "type" and opening is None)
        if opening is None:
            return self._is_altered(place)
        first = opening + 1
        if opener in _FIELDS and self._at(first).name not in _OF_QUERIES and before.text not in {"(", ","}:
            return True
        if opener == "map":
            return self._is_type(opening - 1)
        # The second word of a column or a parameter.
        is_second = before.is_name and (place - 2 < first or self._at(place - 2).text == ",")
        return is_second and bool(self._created) and self._openings[opening] is None and self._is_declaring(opening)

    def _is_declaring(self, opening: int) -> bool:
        """Whether the bracket has the columns of a table or the parameters of a macro."""
        before = [token.name for token in self._tokens[:opening]]
        return self._created in {"macro", "function"} or ("as" not in before and "(" not in before)

    def _is_altered(self, place: int) -> bool:
        words = [token.name for token in self._tokens]
        if "alter" not in words[:place]:
            return False
        before = self._at(place - 1)
        if before.name == "type":
            return True
        if before.kind == "keyword" and (before.name == "column" or before.name in _BEFORE_NAMES):
            # A column may be called by such a word itself, but for the reserved one.
            return before.name != "column" and self._at(place - 2).name in {"add", "column", "exists"}
        return before.is_name

    def _at(self, place: int) -> Token:
        return self._tokens[place] if 0 <= place < len(self._tokens) else Token("operator", "")

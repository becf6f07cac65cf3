"""Calls and texts that end the process of DuckDB 2.0.0, hold its planner, or take memory that no limit bounds.

DuckDB runs in the process of the server, so these are refused by their tokens (ADR 43). What a statement computes
instead of writing it down is not found.
"""

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import TYPE_CHECKING

from queryserver.errors.statements import StatementRejected, cell_too_large

if TYPE_CHECKING:
    from queryserver.engines.duckdb.guard import Token

MOST_DOTS = 64
"""Names behind each other in `a.b.c`: the planner takes time by their square for each such name, 0.2 s for 300."""

MOST_LAMBDAS = 8
"""Lambdas inside each other: each level doubles the memory of the planner, which is 270 MB at 14 levels."""

MOST_LIST = 10_000_000
"""Elements of a list that a literal says: 80 MB, of which neither `range` nor `list_resize` counts any."""

_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
# Called by these names, functions do not check the types of their arguments: SIGSEGV, or an internal error.
_OPERATORS = frozenset({
    "!=", "!__postfix", "!~~", "!~~*", "%", "&", "&&", "*", "**", "+", "-", "->", "->>", "/", "//", "<", "<->", "<<",
    "<=", "<=>", "<>", "<@", "=", "==", ">", ">=", ">>", "@", "@>", "^", "^@", "is distinct from",
    "is not distinct from", "|", "||", "~", "~~", "~~*", "~~~",
})  # fmt: skip
# A constant is computed while DuckDB plans, where no limit of memory holds.
_REPEATING = frozenset({"lpad", "repeat", "rpad"})
_FORMATTING = frozenset({"format", "printf"})
_SERIES, _RESIZING = frozenset({"generate_series", "range"}), frozenset({"array_resize", "list_resize"})
_WIDTH = re.compile(r"%[^%a-zA-Z*]*?(\d{7,})|\{[^{}]*:[^{}]*?(\d{7,})")
_COMPUTED_WIDTH = re.compile(r"%[^%a-zA-Z]*\*|\{[^{}]*:[^{}]*\{")
_CLAUSES = frozenset({"from", "group", "having", "limit", "offset", "order", "qualify", "select", "using", "where"})
BEFORE_TABLES = frozenset({"into", "table", "exists"})
"""A name before a bracket is that of a table behind these words, and no call."""
# Before a table function; a comma and a bracket are one behind FROM as well.
_BEFORE_TABLE_FUNCTIONS = frozenset({"call", "from", "join", "lateral", "using"})


def refuse_defects(tokens: Sequence["Token"]) -> None:
    """Raises StatementRejected for what ends the process or holds the planner, wherever it stands in a statement."""
    _refuse_chains(tokens)
    _refuse_nested_lambdas(tokens)
    for place, token in enumerate(tokens[:-1]):
        if token.is_name and tokens[place + 1].text.startswith("("):
            name = token.name
            # `a OPERATOR(=) b` is the same call.
            is_operator = token.text[0] == '"' and name in _OPERATORS and not _names_table(tokens, place)
            if is_operator or (name == "operator" and token.kind == "keyword"):
                raise StatementRejected(
                    f"Permission Error: calls of operators by name, such as {token.text[:60]}(…), are switched off on "
                    "this server; write the operator between its operands."
                )


def refuse_sizes(tokens: Sequence["Token"], cell_max_bytes: int) -> None:
    """Raises cell_too_large for a text longer than a cell, StatementRejected for a list of more than `MOST_LIST`
    elements, where a literal says so.
    """
    for call in _calls(tokens, _REPEATING):
        if any((_number(argument) or 0) > cell_max_bytes for argument in call):
            raise cell_too_large(limit_bytes=cell_max_bytes)
    for call in _calls(tokens, _FORMATTING):
        if _width(call) > cell_max_bytes:
            raise cell_too_large(limit_bytes=cell_max_bytes)
    for call in _calls(tokens, _RESIZING):
        _refuse_list(_number(call[1]) if len(call) > 1 else None)
    for call in _calls(tokens, _SERIES):
        _refuse_list(_length([_number(argument) for argument in call]))


def arguments(tokens: Sequence["Token"], opening: int) -> list[list["Token"]]:
    """The tokens of each argument of a call whose bracket opens at `opening`."""
    found, depth = [list["Token"]()], 0
    for token in tokens[opening:]:
        depth += sum(map(token.text.count, "([{")) if token.kind == "operator" else 0
        closing = sum(map(token.text.count, ")]}")) if token.kind == "operator" else 0
        if depth == closing and closing:
            break
        if depth == 1 and token.text == ",":
            found.append([])
        elif depth > 1 or token.text != "(":
            found[-1].append(token)
        depth -= closing
    return found


def _names_table(tokens: Sequence["Token"], place: int) -> bool:
    """Whether columns of a table follow, as in `INSERT INTO a.b (c)`."""
    while place > 1 and tokens[place - 1].text == ".":
        place -= 2
    return place > 0 and tokens[place - 1].kind == "keyword" and tokens[place - 1].name in BEFORE_TABLES


def _refuse_chains(tokens: Sequence["Token"]) -> None:
    length, last = 0, -2
    for place, token in enumerate(tokens):
        if token.text == ".":
            length = length + 1 if place - last == 2 else 1
            last = place
            if length > MOST_DOTS:
                raise StatementRejected(f"Parser Error: a name has more than {MOST_DOTS} parts.")


def _refuse_nested_lambdas(tokens: Sequence["Token"]) -> None:
    """By the height of brackets: a comprehension names its list behind the expression that is run for each element."""
    heights, lambdas = [0], [False]
    for place, token in enumerate(tokens):
        if token.kind == "keyword" and token.name in {"lambda", "for"}:
            lambdas[-1] = True
        elif token.text == "->" and not any(_is_literal(key) for key in tokens[place + 1 : place + 2]):
            lambdas[-1] = True  # a literal behind it is the key of a JSON value
        elif token.kind == "operator":
            for sign in token.text:
                if sign in _OPENING:
                    heights.append(0)
                    lambdas.append(False)
                elif sign in _CLOSING and len(heights) > 1:
                    height = heights.pop() + lambdas.pop()
                    heights[-1] = max(heights[-1], height)
                    if height > MOST_LAMBDAS:
                        raise StatementRejected(f"Parser Error: more than {MOST_LAMBDAS} lambdas inside each other.")


def _is_literal(token: "Token") -> bool:
    return token.kind in {"string_const", "numeric_const"}


def _calls(tokens: Sequence["Token"], names: AbstractSet[str]) -> Iterator[list[list["Token"]]]:
    """The arguments of each call of a scalar function, with what stands before the dot of `x.f(y)` as the first."""
    if not any(token.name in names for token in tokens):
        return
    for place, clause in _clauses(tokens):
        token = tokens[place]
        if token.is_name and token.name in names and tokens[place + 1].text.startswith("("):
            first = place
            while first > 1 and tokens[first - 1].text == "." and tokens[first - 2].is_name:  # a schema
                first -= 2
            before = tokens[first - 1] if first else None
            if before is None or not _is_before_table(before, clause):
                call = [argument for argument in arguments(tokens, place + 1) if argument]
                yield call if before is None or before.text != "." else [_receiver(tokens[: first - 1]), *call]


def _clauses(tokens: Sequence["Token"]) -> Iterator[tuple[int, str]]:
    """The place of each token but the last, and the clause of the query or bracket that it stands in."""
    clauses = [""]
    for place, token in enumerate(tokens[:-1]):
        if token.kind == "operator":
            for sign in token.text:
                if sign in _OPENING:
                    clauses.append("")
                elif sign in _CLOSING and len(clauses) > 1:
                    clauses.pop()
        elif token.kind == "keyword" and token.name in _CLAUSES and not _is_distinct_from(tokens, place):
            clauses[-1] = token.name
        yield place, clauses[-1]


def _is_distinct_from(tokens: Sequence["Token"], place: int) -> bool:
    return tokens[place].name == "from" and place > 0 and tokens[place - 1].name == "distinct"


def _is_before_table(token: "Token", clause: str) -> bool:
    if token.text == ",":
        return clause == "from"
    return token.kind == "keyword" and token.name in _BEFORE_TABLE_FUNCTIONS and clause in {"", "from", "using"}


def _receiver(tokens: Sequence["Token"]) -> list["Token"]:
    """The literal at the end, which may stand in brackets; empty for other expressions."""
    if len(tokens) > 2 and tokens[-1].text == ")" and tokens[-3].text == "(":
        tokens = tokens[:-1]
    return [tokens[-1]] if tokens and _is_literal(tokens[-1]) else []


def _number(argument: Sequence["Token"]) -> float | None:
    sign = 1.0
    if len(argument) > 1 and argument[0].text in {"+", "-"}:
        sign, argument = (-1.0 if argument[0].text == "-" else 1.0), argument[1:]
    if len(argument) == 1 and argument[0].kind == "numeric_const":
        with suppress(ValueError):
            return sign * float(argument[0].text.replace("_", ""))
    return None


def _width(call: Sequence[Sequence["Token"]]) -> float:
    """The widest field of `format` or `printf`, as far as literals say it."""
    text = call[0][0].string if len(call[0]) == 1 else None
    if text is None:
        return 0
    widths = [float(found[1] or found[2]) for found in _WIDTH.finditer(text)]
    if _COMPUTED_WIDTH.search(text):
        widths += [_number(argument) or 0 for argument in call[1:]]
    return max(widths, default=0)


def _length(numbers: Sequence[float | None]) -> float | None:
    """Of `range` with these bounds and this step."""
    known = [number for number in numbers if number is not None]
    if len(known) != len(numbers) or not known:
        return None
    first, last = (0.0, known[0]) if len(known) == 1 else (known[0], known[1])
    step = known[2] if len(known) > 2 else 1.0
    return (last - first) / step if step else None


def _refuse_list(length: float | None) -> None:
    if length is not None and length > MOST_LIST:
        raise StatementRejected(
            f"Out of Memory Error: a list of more than {MOST_LIST} elements; a table function of the same name, behind "
            "FROM, makes rows of them."
        )

"""SQL with named parameters. asyncpg and PostgreSQL support only numbered ones."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

# not the second colon of a cast
_PARAMETER = re.compile(r"(?<!:):([a-z][a-z_]*)")


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A query with parameters such as `:user_id`, created once from its text and sent as a prepared statement.

    A colon before a lower-case letter is always a parameter, even in a string literal.
    """

    sql: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "NamedQuery":
        """Number the parameters in the order of their first use."""
        numbers: dict[str, int] = {}

        def number(found: re.Match[str]) -> str:
            return f"${numbers.setdefault(found[1], len(numbers) + 1)}"

        return cls(_PARAMETER.sub(number, text), tuple(numbers))

    def arguments(self, values: Mapping[str, object]) -> list[object]:
        """The values in the order of their numbers.

        Raises KeyError for a missing one, ValueError for an unknown one.
        """
        if len(values) != len(self.names):
            raise ValueError(f"unknown parameters: {sorted(values.keys() - set(self.names))}")
        return [values[name] for name in self.names]

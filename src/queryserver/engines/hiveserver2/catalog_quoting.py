"""Names and texts of Hive's family in statements."""

from queryserver.engines.quoting import escaped_literal, identifier

literal = escaped_literal
"""A string constant: backslashes escape in Hive, Impala and Spark alike."""


def quoted(name: str) -> str:
    """A name between back-ticks, those within it doubled."""
    return identifier(name, mark="`")


def qualified(*names: str) -> str:
    """Quoted names joined by points."""
    return ".".join(quoted(name) for name in names)

"""Names and texts written into statements for MySQL."""

from queryserver.engines.quoting import qualified


def quoted(*parts: str) -> str:
    """A name between backquotes, with its database where two parts are given."""
    return qualified(*parts, mark="`")


def literal(text: str) -> str:
    """A string constant that reads the same in every `sql_mode`: hexadecimal."""
    return f"_utf8mb4 X'{text.encode().hex()}'" if text else "''"

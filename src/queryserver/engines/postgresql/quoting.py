"""Texts written into statements for PostgreSQL."""


def literal(text: str) -> str:
    """A string constant that reads the same whatever `standard_conforming_strings` is."""
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"

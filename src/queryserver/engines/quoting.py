"""Names and texts written into statements, for dialects that cannot bind them."""


def identifier(name: str, *, mark: str = '"') -> str:
    """The name between quote characters; those within it are doubled."""
    return f"{mark}{name.replace(mark, mark * 2)}{mark}"


def qualified(*names: str, mark: str = '"') -> str:
    """Quoted names joined by points: `"shop"."items"`."""
    return ".".join(identifier(name, mark=mark) for name in names)


def literal(text: str) -> str:
    """A string constant where a backslash is a character like any other (standard SQL)."""
    return "'" + text.replace("'", "''") + "'"


def escaped_literal(text: str) -> str:
    r"""A string constant where a backslash escapes the next character: `'` becomes `\'`, a backslash two."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

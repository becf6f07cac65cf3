"""Values inside of filters (RFC 4515) and of distinguished names (RFC 4514): text of others stays text (Rule T16)."""

_IN_FILTERS = frozenset("\\*()\0")
_IN_NAMES = frozenset('\\,+"<>;=#/\0')


def filter_value(text: str) -> str:
    """`text` as one assertion value of a filter."""
    return _escaped(text, _IN_FILTERS)


def name_value(text: str) -> str:
    """`text` as one attribute value of a distinguished name."""
    return _escaped(text, _IN_NAMES)


def _escaped(text: str, special: frozenset[str]) -> str:
    """Bytes in hexadecimal, which both grammars have; blanks too, for libraries and servers trim them at the ends."""
    return "".join(
        "".join(f"\\{byte:02x}" for byte in character.encode())
        if character in special or character.isspace()
        else character
        for character in text
    )


def both(*filters: str) -> str:
    """The conjunction of filters; each may stand without its parentheses, as settings have them."""
    return f"(&{''.join(part if part.startswith('(') else f'({part})' for part in filters)})"

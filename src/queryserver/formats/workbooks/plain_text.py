"""Text between tags that needs no parser."""

_ENTITY = "&(?:amp|lt|gt|quot|apos);"
# Line ends and control characters are the parser's business.
_CHARACTERS = r"[^<&\x00-\x08\x0b-\x1f\ufffe\uffff]*+"

PLAIN_TEXT = rf"{_CHARACTERS}(?:{_ENTITY}{_CHARACTERS})*+"
"""The pattern of such text."""


def plain_text(text: str) -> str:
    """What the text says."""
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&apos;", "'"), ("&amp;", "&")):
        text = text.replace(entity, character)
    return text

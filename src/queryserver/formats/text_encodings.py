"""The encodings in which text of files is shown and saved (Contract storage 5.3)."""

from queryserver.domain.errors.base import InvalidParameter

ENCODINGS = (
    "utf-8",
    "utf-16",
    "utf-16-le",
    "utf-16-be",
    "ascii",
    "iso-8859-1",
    *(f"windows-125{digit}" for digit in range(9)),
    "shift_jis",
    "euc-jp",
    "euc-kr",
    "gbk",
    "gb18030",
    "big5",
    "koi8-r",
)
"""Names on the wire, in lower case; Python calls them the same."""


def codec_of(name: str) -> str:
    """Python's name of an encoding, whatever the case. Raises InvalidParameter."""
    codec = name.strip().lower()
    if codec not in ENCODINGS:
        raise InvalidParameter(f"encoding must be one of {' '.join(ENCODINGS)}.")
    return codec


def encoded(text: str, encoding: str) -> bytes:
    """The text as bytes. Raises InvalidParameter: an unknown encoding, or text that it cannot write."""
    try:
        return text.encode(codec_of(encoding))
    except UnicodeEncodeError:
        raise InvalidParameter(f"contents cannot be written as {encoding}.") from None

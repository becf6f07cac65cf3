"""What must never stand in a log (Rule T29): secrets, and characters that forge lines or steer terminals."""

import re
from collections.abc import Sequence

MASK = "********"

# Longer texts are cut: a log is no place for them, and patterns take their time.
MOST_CHARACTERS = 32 * 1024

_NAMES = (
    r"password|passwd|passphrase|pwd|secret|token|credentials?|signature|\bsig"
    r"|(?:api|access|account|secret|private)[_-]?key(?:[_-]?id)?"
)
# Quoted in JSON text within JSON text, quoted (also as bytes of Python, as drivers log headers), or bare.
_VALUE = r"""\\"(?:[^"\\]|\\[^"])*\\"|b?"(?:[^"\\]|\\.)*"|b?'(?:[^'\\]|\\.)*'|[^\s,;&"'}\])]+"""

# Every pattern begins with fixed text and repeats only what the next part cannot match: time is linear in the line.
_NAMED = re.compile(rf"({_NAMES})(\\?[\"']?\s{{0,4}}[:=]\s{{0,4}})({_VALUE})", re.IGNORECASE)
_OTHERS = (
    # An Authorization header, wherever it is quoted.
    (re.compile(r"\b(bearer|basic)\s{1,4}[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE), rf"\1 {MASK}"),
    (re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]*)*"), MASK),
    # What opens an uploaded file (Contract importer 14.2).
    (re.compile(r"(?<=upload)(/|%2[Ff])([A-Za-z0-9_-]{4})[A-Za-z0-9_-]{39}(?![A-Za-z0-9_-])"), rf"\1\2{MASK}"),
    # The login of an address: scheme://user:password@host.
    (re.compile(r"(?<=://)([^\s/@:]*):[^\s/@]+@"), rf"\1:{MASK}@"),
    # Parts of signed links that the names above leave out.
    (
        re.compile(r"([?&](?:x-amz-|x-goog-)?(?:credential|awsaccesskeyid|se|skoid)=)[^&\s\"']+", re.IGNORECASE),
        rf"\1{MASK}",
    ),
)


class Redactor:
    """Masks secrets in a line, by the built-in patterns and those of `desktop.logging.redact`."""

    def __init__(self, extra: Sequence[str] = ()) -> None:
        self._extra = [re.compile(pattern) for pattern in extra]

    def __call__(self, line: str) -> str:
        """The line without secrets."""
        if len(line) > MOST_CHARACTERS:
            line = f"{line[:MOST_CHARACTERS]}… ({len(line)} characters)"
        for pattern, masked in _OTHERS:
            line = pattern.sub(masked, line)
        # Last, for `token: Bearer x` would lose its first word to it and show the second.
        line = _NAMED.sub(_masked_value, line)
        for pattern in self._extra:
            line = pattern.sub(MASK, line)
        return line


def _masked_value(found: re.Match[str]) -> str:
    """The name as it stands; a quoted value keeps its quotes, so that JSON stays JSON."""
    name, between, value = found.groups()
    quote = value[: value.startswith("\\") + 1] if value.startswith(('"', "'", '\\"')) else ""
    return f"{name}{between}{quote}{MASK}{quote}"


def escaped(text: str) -> str:
    """The text with everything that does not print as an escape; a line stays a line."""
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")

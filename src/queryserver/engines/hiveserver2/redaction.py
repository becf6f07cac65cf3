"""What is removed from the texts of servers: stack traces of Java, addresses, and paths of the server's own disk.

Contract editor 1.3. Paths of data stay: those with the scheme of a distributed store (`hdfs:`, `s3a:`, `abfs:`), and
those without a scheme that do not begin with a directory of the system, such as `/user/hive/warehouse`.
"""

import re
from collections import deque
from collections.abc import Iterable

LONGEST_LINE = 64 * 1024
_MOST_CAUSES = 100
_PATH, _ADDRESS, _HOST = "(path)", "(address)", "(host)"

_PACKAGES = r"(?:[a-z][\w$]*\.)+"
_SOURCE = r"(?:Native Method|Unknown Source|<generated>|[\w$-]+\.(?:java|scala|kt|groovy)(?::\d+)?)"
_FRAME_TEXT = rf"at [\w$.<>/@-]+\({_SOURCE}\)(?: ~?\[[^\]\n]*\])?"
_MORE = r"\.\.\. \d+ (?:more|common frames omitted)"
_FRAME = re.compile(rf"(?<![\w.]){_FRAME_TEXT}")
_ESCAPED_FRAME = re.compile(rf"(?:\\[nrt]){{1,4}}(?:{_FRAME_TEXT}|{_MORE})")
"""Where line breaks are written as two characters."""
_FRAME_LINE = re.compile(rf"[ \t]+at [\w$.<>/@-]+\(.*|[ \t]*{_MORE}[ \t]*|[ \t]+@ +0x[0-9a-f]+\b.*")
"""The last form is a frame of Impala."""
_HEADINGS = frozenset({"Driver stacktrace:", "Full stacktrace:"})
_CAUSE = re.compile(r"[ \t]*(?:Caused by|Suppressed):[ \t]*")

_EXCEPTION = re.compile(rf"(?<![\w$.]){_PACKAGES}[A-Z][\w$]*(?:Exception|Error|Throwable|Failure):\s*")
"""The name of an exception before its message goes."""
_BARE_EXCEPTION = re.compile(rf"(?<![\w$.]){_PACKAGES}(?=[A-Z][\w$]*(?:Exception|Error)\b)")
"""Of one without a message the package goes."""
_CLASSES = re.compile(r"(?<![\w$.'\"`])(?:org\.apache|javax?|scala|jdk|sun|com\.sun)(?:\.[a-z_][\w$]*)+\.(?=[A-Z])")
"""Packages of the classes that servers themselves are made of."""

_PLACES = re.compile(
    r"\bjdbc:[a-z0-9]+:[^\s'\"<>)\]]*[^\s'\"<>)\],;.]"  # may end with a user and a password
    r"|\b(?:https?|ldaps?|thrift|spark|tcp):/{1,2}[^\s'\"<>)\],;]*[^\s'\"<>)\],;.]"
    # as Java prints an address
    r"|(?<![\w/:.-])[\w-]+(?:\.[\w-]+)*/(?:\d{1,3}(?:\.\d{1,3}){3}|<unresolved>)(?::\d+)?"
    r"|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}:\d{2,5}\b"
)
_HOSTS = re.compile(
    r"(HS2 Host: \[)[^\]\s]+(?=\])|(\bError: Node: )[\w.-]+|(\()[\w.-]+(?= executor (?:driver|\d+)\))"
    r"|(\bto )[\w.-]+:\d+(?= failed on )"
)
_ENDS = r"[^\s'\"`,;()\[\]{}<>]*[^\s'\"`,;()\[\]{}<>.:]"
_PATHS = re.compile(
    rf"(\b(?:hdfs|viewfs|s3[an]?|abfss?|wasbs?|adl|gs|o3?fs|oss|cosn|obs|maprfs|s?webhdfs|har):/{_ENDS})"
    rf"|\bfile:/{_ENDS}"
    rf"|(?<![\w/.*-])/(?:opt|tmp|var|usr|etc|home|root|srv|mnt|run|proc|sys|dev|lib|lib64|bin|sbin|grid)/{_ENDS}"
    # where YARN and Spark keep the files of jobs
    rf"|(?<![\w:/.*-])(?:/[\w.-]+)*/(?:usercache|filecache|nm-local-dir|blockmgr-)(?:{_ENDS})?"
)


def in_plain_words(text: str) -> str:
    """The text without frames of stacks, names of exceptions, addresses, and paths of the server's own disk."""
    text = _FRAME.sub("", _ESCAPED_FRAME.sub("", text))
    text = _CLASSES.sub("", _BARE_EXCEPTION.sub("", _EXCEPTION.sub("", text)))
    text = _PLACES.sub(_ADDRESS, text)
    text = _HOSTS.sub(lambda found: f"{found[found.lastindex or 0]}{_HOST}", text)
    return _PATHS.sub(lambda found: found[1] or _PATH, text) if "/" in text else text


class LogFilter:
    """Clean lines of one log, which is given from its first line on, in pieces of any size.

    A stack trace loses its frames and the names of exceptions. The message of a cause stays, once: servers repeat it
    for each attempt of a task. Lines are cut after LONGEST_LINE characters.
    """

    def __init__(self) -> None:
        self._causes: deque[str] = deque(maxlen=_MOST_CAUSES)

    def lines(self, lines: Iterable[str]) -> list[str]:
        """What is left of some lines."""
        return [kept for line in lines if (kept := self._kept(line)) is not None]

    def _kept(self, line: str) -> str | None:
        line = line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"
        if _FRAME_LINE.fullmatch(line) or line.strip() in _HEADINGS:
            return None
        is_cause = (found := _CAUSE.match(line)) is not None
        text = line[found.end() :] if found else line
        shown = in_plain_words(text)
        if not is_cause:
            return shown if shown.strip() or not line.strip() else None
        if not shown.strip() or shown in self._causes:
            return None
        self._causes.append(shown)
        return f"Cause: {shown}"

"""PostgreSQL's text forms of arrays, composite values and hstore, taken apart (manual 8.15.6, 8.16.6, F.16.1)."""

import re

Nested = str | list["Nested"] | None

_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_DIMENSIONS = re.compile(r"(?:\[[-+\d]+:[-+\d]+\])+=")
_ATTRIBUTE = re.compile(r'((?:"(?:[^"\\]|\\.|"")*"|\\.|[^",\\])*)(,|$)', re.DOTALL)
_QUOTED_PART = re.compile(r'"((?:[^"\\]|\\.|"")*)"|\\(.)|([^"\\]+)', re.DOTALL)
_IN_QUOTES = re.compile(r'\\(.)|"(")', re.DOTALL)
_PAIR = re.compile(rf"{_QUOTED}=>(?:{_QUOTED}|(NULL))(?:, |$)", re.DOTALL)


def array(text: str, delimiter: str) -> list[Nested]:
    """`{1,NULL,"a b"}` as a list, inner arrays as lists; leaves are text or None."""
    body = _DIMENSIONS.sub("", text, count=1)
    if "{" not in body[1:] and '"' not in body and "\\" not in body:
        inner = body[1:-1]
        return [_bare(item) for item in inner.split(delimiter)] if inner else []
    return _quoted_array(body, delimiter)


def _quoted_array(body: str, delimiter: str) -> list[Nested]:
    mark = re.escape(delimiter)
    token = re.compile(rf'{_QUOTED}|([{{}}])|((?:[^"{{}}\\{mark}]|\\.)+)', re.DOTALL)
    enclosing: list[list[Nested]] = [[]]
    for match in token.finditer(body):
        quoted, bracket, bare = match.groups()
        if bracket == "{":
            inner: list[Nested] = []
            enclosing[-1].append(inner)
            enclosing.append(inner)
        elif bracket == "}":
            enclosing.pop()
        else:
            enclosing[-1].append(_bare(bare) if quoted is None else _ESCAPE.sub(r"\1", quoted))
    outermost = enclosing[0][0]
    return outermost if isinstance(outermost, list) else []


def _bare(item: str) -> str | None:
    return None if item.upper() == "NULL" else _ESCAPE.sub(r"\1", item)


def attributes(text: str) -> list[str | None]:
    """`(1,,"a b")` as texts; an attribute without any character is NULL."""
    found: list[str | None] = []
    body, position = text[1:-1], 0
    while True:
        match = _ATTRIBUTE.match(body, position)
        if match is None:
            return found
        found.append(_attribute(match[1]))
        if not match[2]:
            return found
        position = match.end()


def _attribute(raw: str) -> str | None:
    if not raw:
        return None
    if '"' not in raw and "\\" not in raw:
        return raw
    parts = _QUOTED_PART.finditer(raw)
    return "".join(p[3] or p[2] or _IN_QUOTES.sub(lambda m: m[1] or m[2], p[1] or "") for p in parts)


def pairs(text: str) -> list[tuple[str, str | None]]:
    """`"a"=>"1", "b"=>NULL` as pairs."""
    return [(_ESCAPE.sub(r"\1", m[1]), None if m[3] else _ESCAPE.sub(r"\1", m[2])) for m in _PAIR.finditer(text)]

"""What no code says, as data: words about fields, bodies as they are sent, meanings of error codes."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

_HERE = files("queryserver.api.document")
_CITED = re.compile(r"\s*\((?:Spec|Contract) [^)]*\)")
_SOURCE = re.compile(r"\s*(?:Spec §|Contract [a-z]+ \d).*$", re.DOTALL)
"""Where the last sentence of a docstring says who decides it."""


@dataclass(frozen=True, slots=True)
class Texts:
    """The files beside this one."""

    words: Mapping[str, Any]
    """About the service, its tags, fields, headers and failures."""
    samples: Mapping[str, Any]
    """A body of each answer, by its schema."""
    guide: str
    """The text for a reader who begins, in Markdown."""
    codes: Mapping[str, str | Mapping[str, Any]]
    """What each error code means; with `http` where the error classes do not say the status."""


def without_citations(text: str) -> str:
    """A docstring without the sections that it cites: readers of the description do not have them."""
    return _SOURCE.sub("", _CITED.sub("", text)).strip()


@cache
def texts() -> Texts:
    """Read once per process, when somebody asks for the document."""
    samples = {name: json.loads(text) for name, text in _read("samples.yaml").items()}
    guide = _HERE.joinpath("guide.md").read_text(encoding="utf-8")
    return Texts(_read("words.yaml"), samples, guide, _read("codes.yaml"))


def _read(name: str) -> dict[str, Any]:
    return yaml.load(_HERE.joinpath(name).read_bytes(), Loader=yaml.CSafeLoader)

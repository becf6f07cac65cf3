"""What no code can tell, as data: names and examples of operations, words about fields, bodies as they are sent."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

_HERE = files("queryserver.api.document")


@dataclass(frozen=True, slots=True)
class Texts:
    """The three files beside this one."""

    operations: Mapping[str, Mapping[str, Any]]
    """By method and path: `id`, `request`, `parameters`, `headers`, and `fails` where nothing ever succeeds."""
    words: Mapping[str, Any]
    """About the service, its tags, fields, headers and failures."""
    samples: Mapping[str, Any]
    """A body of each answer, by its schema."""


@cache
def texts() -> Texts:
    """Read once per process, when somebody asks for the document."""
    samples = {name: json.loads(text) for name, text in _read("samples.yaml").items()}
    return Texts(_read("operations.yaml"), _read("words.yaml"), samples)


def _read(name: str) -> dict[str, Any]:
    return yaml.load(_HERE.joinpath(name).read_bytes(), Loader=yaml.CSafeLoader)

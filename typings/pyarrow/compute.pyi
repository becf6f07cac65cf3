# Functions on arrays. pyarrow makes most of them when it is imported; what they return depends on their arguments.

from collections.abc import Sequence
from typing import Any

class FunctionOptions: ...

class MatchSubstringOptions(FunctionOptions):
    def __init__(self, pattern: str | bytes, *, ignore_case: bool = False) -> None: ...

class ReplaceSubstringOptions(FunctionOptions):
    def __init__(
        self, pattern: str | bytes, replacement: str | bytes, *, max_replacements: int | None = None
    ) -> None: ...

def call_function(name: str, args: Sequence[Any], options: FunctionOptions | None = None) -> Any: ...
def __getattr__(name: str) -> Any: ...

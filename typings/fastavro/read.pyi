from collections.abc import Callable
from typing import Any

LOGICAL_READERS: dict[str, Callable[..., Any]]

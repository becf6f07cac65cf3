"""What a statement may do and read."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Guards:
    """The arguments `read_only` and `max_estimated_bytes` of the methods that run statements."""

    read_only: bool
    max_estimated_bytes: int | None

    def fields(self) -> dict[str, Any]:
        """Return the fields of execute (Contract editor 4.9 and 4.10). None stands for a field that is not sent."""
        # False is not sent: the statement may then change data only if the token and the connector permit it.
        return {"read_only": True if self.read_only else None, "max_estimated_bytes": self.max_estimated_bytes}

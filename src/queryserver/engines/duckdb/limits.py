"""The resources and limits of one DuckDB database. The server uses this module without importing the driver."""

from dataclasses import dataclass, field

from queryserver import errors
from queryserver.engines.storage_watch import StorageLimits
from queryserver.platform.text import parse_byte_amount

TEMPORARY_MAX_BYTES = 10 * 1024**3
MEMORY_LIMIT = "256MB"

_PROCESS_BYTES = 1024**3
"""Memory that a process may use in addition to twice its database's memory limit.

The process gets more than the database's limit, because that limit covers only part of a statement's memory use.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckdbResources:
    """Memory and threads of one database, shared by all its sessions."""

    memory_limit: str = MEMORY_LIMIT
    """A number and its unit, such as 512MB."""
    threads: int = 2

    @property
    def process_bytes(self) -> int:
        """Maximum memory of the process that opens the database. Raises ConfigurationError."""
        if (limit_bytes := parse_byte_amount(self.memory_limit)) is None:
            raise errors.ConfigurationError(["memory_limit: must be a number with a unit, such as 512MB"])
        return 2 * limit_bytes + _PROCESS_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckdbLimits:
    """Limits on cells, temporary files, and the database's files."""

    cell_max_bytes: int = 16 * 1024 * 1024
    temporary_max_bytes: int = TEMPORARY_MAX_BYTES
    storage: StorageLimits = field(default_factory=StorageLimits)

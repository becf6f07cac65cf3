"""Drops a process's privileges before it works on user input (ADR 75).

Call `confine` before other imports, since Landlock and capabilities only apply to the calling thread and threads it
starts later, and importing NumPy or Arrow starts threads. Python's own paths stay readable. After the imports, call
`limit_memory`, whose limit includes the memory that the imports use.
"""

from queryserver.platform.confinement.process import (
    Confinement,
    ConfinementResult,
    KernelSupport,
    address_space_bytes,
    confine,
    detect_support,
    limit_memory,
    limit_processor_time,
    lower_limit,
    resident_bytes,
)

__all__ = [
    "Confinement",
    "ConfinementResult",
    "KernelSupport",
    "address_space_bytes",
    "confine",
    "detect_support",
    "limit_memory",
    "limit_processor_time",
    "lower_limit",
    "resident_bytes",
]

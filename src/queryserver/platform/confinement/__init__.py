"""Drops a process's privileges before it processes user input (ADR 75).

Call `confine` before other imports: Landlock and capabilities apply only to the calling thread and to threads started
later, and importing NumPy or Arrow starts threads. Python's own paths stay readable. Call `limit_memory` after the
imports, because its limit includes the memory that the imports use.
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
    name_thread,
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
    "name_thread",
    "resident_bytes",
]

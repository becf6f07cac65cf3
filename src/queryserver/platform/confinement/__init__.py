"""A process gives up what it does not need, before it works on anything of a user (ADR 75).

Call `confine` first, before other imports: Landlock and the capabilities hold for the calling thread and those that it
starts, and NumPy and Arrow start threads when they are imported. The paths of Python stay readable. Then import, and
call `limit_memory`, for a limit that counts what the imports have taken.
"""

from queryserver.platform.confinement.limits import (
    address_space_bytes,
    limit_memory,
    limit_processor_time,
    lower_limit,
    resident_bytes,
)
from queryserver.platform.confinement.process import Confined, Confinement, KernelSupport, confine, detected

__all__ = [
    "Confined",
    "Confinement",
    "KernelSupport",
    "address_space_bytes",
    "confine",
    "detected",
    "limit_memory",
    "limit_processor_time",
    "lower_limit",
    "resident_bytes",
]

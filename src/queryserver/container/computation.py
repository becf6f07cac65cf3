"""Settings to what computes on texts and files of users."""

from queryserver.computation.processes import ComputationLimits, ProcessComputing
from queryserver.settings.desktop import DesktopSettings


def computing_of(settings: DesktopSettings) -> ProcessComputing:
    """Worker processes, which are started when they are needed."""
    return ProcessComputing(
        ComputationLimits(
            processes=settings.computation_processes,
            time_s=settings.computation_timeout_s,
            memory_bytes=settings.computation_memory_bytes,
        )
    )

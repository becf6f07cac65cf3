"""The floor of free space, of the settings."""

from queryserver.domain.disk_floor import DiskFloor
from queryserver.settings import Settings


def disk_floor(settings: Settings) -> DiskFloor:
    """What every writer of this machine keeps to."""
    desktop = settings.desktop
    return DiskFloor(percent=desktop.min_free_percent, min_bytes=desktop.min_free_bytes)

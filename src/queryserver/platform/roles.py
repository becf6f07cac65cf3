"""The roles of processes in a deployment."""

from enum import StrEnum


class Role(StrEnum):
    """What a process of the deployment does; stored with its instance record."""

    SERVER = "server"
    """Serves calls; also runs statements unless the task server is on."""
    WORKER = "worker"
    """Runs statements and tasks."""
    BEAT = "beat"
    """Fires schedules; runs no statements or tasks."""

"""The roles of processes in a deployment."""

from enum import StrEnum


class Role(StrEnum):
    """A process's role in the deployment; stored in its instance record."""

    SERVER = "server"
    """Serves calls; also runs statements unless the task server is on."""
    WORKER = "worker"
    """Runs statements and tasks."""
    BEAT = "beat"
    """Fires schedules; runs no statements or tasks."""

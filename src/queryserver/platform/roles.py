"""The roles of processes in a deployment."""

from enum import StrEnum


class Role(StrEnum):
    """The role of a process in the deployment, which is stored in its instance record."""

    SERVER = "server"
    """Serves calls, and runs statements unless the task server is enabled."""
    WORKER = "worker"
    """Runs statements and tasks."""
    BEAT = "beat"
    """Fires schedules; does not run statements or tasks itself."""

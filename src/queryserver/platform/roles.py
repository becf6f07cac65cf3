"""The roles of processes in a deployment."""

from enum import StrEnum


class Role(StrEnum):
    """What a process of the deployment does; stored with the instance."""

    SERVER = "server"
    """Answers calls; runs statements too where the task server is off."""
    WORKER = "worker"
    """Runs statements and tasks."""
    BEAT = "beat"
    """Fires schedules; runs nothing itself."""

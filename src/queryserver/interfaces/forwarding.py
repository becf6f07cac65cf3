"""Looks at data sources that another process must take, for it holds their data or the session."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ForwardedLook:
    """What a process is asked; `request` is for the services of the process that takes it."""

    user_id: int
    request: bytes

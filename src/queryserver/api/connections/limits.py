"""The bounds of connections, and the file descriptors that they need."""

import resource
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from queryserver.settings.desktop import DesktopSettings
from queryserver.settings.networks import Network

log = structlog.get_logger(__name__)

# Files, engines and the service database also need descriptors: a fifth of the limit, at least these.
_OTHER_DESCRIPTORS = 256


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds for the connections of one process."""

    request_head_s: float
    """From the connection, or from the first byte of a further request, to the end of the request head."""
    response_stall_s: float
    """A client must take at least 1 KiB per second of a response, measured over this time."""
    in_all: int
    per_address: int
    """Trusted proxies are exempt: one proxy connects for many clients."""
    unsent_bytes: int
    """Responses that are written and that clients have not taken yet."""
    trusted_proxies: Sequence[Network] = ()


def limits_of(desktop: DesktopSettings) -> ConnectionLimits:
    """The bounds that the settings give, lowered in the same proportion to what the limit of open files permits."""
    in_all = min(desktop.max_connections, affordable_connections())
    return ConnectionLimits(
        request_head_s=desktop.request_head_timeout_s,
        response_stall_s=desktop.response_stall_timeout_s,
        in_all=in_all,
        per_address=max(desktop.max_connections_per_address * in_all // desktop.max_connections, 1),
        unsent_bytes=desktop.unsent_max_bytes,
        trusted_proxies=desktop.trusted_proxies,
    )


def affordable_connections(*, at_most: bool = False) -> int:
    """How many connections the limit of open files permits; `at_most`: once it is raised as far as possible."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[at_most]
    if limit == resource.RLIM_INFINITY:
        return 2**31
    return max(limit - max(_OTHER_DESCRIPTORS, limit // 5), 1)


def raise_file_limit(max_connections: int) -> None:
    """Raise the soft limit of open files to what `max_connections` need; log when the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max_connections + max(_OTHER_DESCRIPTORS, max_connections // 4) + 1
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(raised, soft), hard))
    if (affordable := affordable_connections()) < max_connections:
        log.warning(
            "desktop.max_connections is above what the limit of open files permits",
            max_connections=max_connections,
            permitted=affordable,
            advice="raise the hard limit (ulimit -Hn, LimitNOFILE of systemd)",
        )

"""The operating system's limit on open files."""

import resource

import structlog

log = structlog.get_logger(__name__)

# Files, engines and the service database need descriptors too: a fifth of the limit, and at least this many.
_OTHER_DESCRIPTORS = 256


def affordable_connections(*, at_most: bool = False) -> int:
    """How many connections the limit on open files permits. `at_most`: after raising it as far as possible."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[at_most]
    if limit == resource.RLIM_INFINITY:
        return 2**31
    return max(limit - max(_OTHER_DESCRIPTORS, limit // 5), 1)


def raise_file_limit(max_connections: int) -> None:
    """Raise the soft limit to what `max_connections` need; log if the hard limit is too low."""
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

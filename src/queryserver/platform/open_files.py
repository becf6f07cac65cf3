"""The operating system's limit on open files, and how many connections it permits."""

import resource

import structlog

log = structlog.get_logger(__name__)

# Files, engines and the service database need descriptors too: a fifth of the limit, but at least this many.
_OTHER_DESCRIPTORS = 256


def permitted_connections(*, hard: bool = False) -> int:
    """Return how many connections the soft limit on open files permits, or the hard limit if `hard` is set."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[hard]
    if limit == resource.RLIM_INFINITY:
        return 2**31
    return max(limit - max(_OTHER_DESCRIPTORS, limit // 5), 1)


def raise_file_limit(max_connections: int) -> None:
    """Raise the soft limit as far as `max_connections` requires. Logs a warning if the hard limit is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max_connections + max(_OTHER_DESCRIPTORS, max_connections // 4) + 1
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(raised, soft), hard))
    if (affordable := permitted_connections()) < max_connections:
        log.warning(
            "desktop.max_connections exceeds the limit on open files",
            max_connections=max_connections,
            permitted=affordable,
            advice="increase the hard limit (ulimit -Hn, LimitNOFILE in systemd)",
        )

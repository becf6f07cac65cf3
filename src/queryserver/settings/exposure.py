"""Settings that open more to callers from other machines than they seem to."""

from collections.abc import Iterator

from queryserver.settings.networks import LOOPBACK, contains
from queryserver.settings.tree import Settings

_HERE = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


def exposure(settings: Settings) -> Iterator[tuple[str, str]]:
    """Key and text of each. A server of the embedded mode that listens on loopback is taken for one without proxy."""
    if not _is_on_loopback(settings) or _has_proxy(settings):
        yield from _any_host(settings)
    if _is_on_loopback(settings) and _has_proxy(settings):
        yield from _metrics_by_proxy(settings)


def _any_host(settings: Settings) -> Iterator[tuple[str, str]]:
    if "*" in settings.desktop.allowed_hosts:
        text = (
            "holds `*`: calls with any `Host` header are served, also those of a page whose name was rebound to this"
            " server. List the names by which clients call it."
        )
        yield "desktop.allowed_hosts", text


def _metrics_by_proxy(settings: Settings) -> Iterator[tuple[str, str]]:
    """A proxy on this machine calls from loopback; one that is trusted names its client."""
    desktop = settings.desktop
    opened = [one for one in ("127.0.0.1", "::1") if contains(desktop.metrics.allowed_networks, one)]
    believed = [one for one in opened if contains(desktop.trusted_proxies, one)]
    if desktop.metrics.enable_prometheus and len(opened) > len(believed):
        text = (
            "holds loopback, and this server listens on loopback only: a proxy on this machine calls from there, so"
            " that /metrics is open to every caller whom it passes on. Do not pass /metrics on, list the proxy's"
            " loopback addresses in desktop.trusted_proxies, or empty this list and set desktop.metrics.token."
        )
        yield "desktop.metrics.allowed_networks", text


def _is_on_loopback(settings: Settings) -> bool:
    host = settings.desktop.http_host.strip("[]")
    return host.lower() == "localhost" or contains(LOOPBACK, host)


def _has_proxy(settings: Settings) -> bool:
    """Whether calls of other machines are meant to come in, although the server listens on loopback only."""
    desktop = settings.desktop
    named = [host for host in desktop.allowed_hosts if host != "*" and host.lower() not in _HERE]
    is_trial = desktop.database.embedded or desktop.database.dsn is None
    return bool(desktop.trusted_proxies or desktop.url_prefix or named) or not is_trial

"""The address of this server as browsers reach it, and the protection of calls that use a cookie (Contract platform
3.11).
"""

from typing import Annotated
from urllib.parse import urlsplit

from starlette.requests import Request

from queryserver.api.dependencies import ReceivedCall, dependency, services_of
from queryserver.errors.base import csrf_header_missing, origin_not_allowed
from queryserver.platform.settings.tree import Settings

CSRF_HEADER = "X-Requested-With"
CSRF_VALUE = "queryserver"

_SECURE = "https"
_SCHEMES = frozenset({"http", _SECURE})
_FOREIGN = (
    "The origin of the web page is not that of this server. A proxy in front of this server must pass on the header"
    " Host."
)


def scheme_of(request: Request, settings: Settings) -> str:
    """Return `http` or `https`: how the client reached this server, or the proxy in `desktop.trusted_proxies`."""
    scheme = request.url.scheme
    if ReceivedCall(request, settings.desktop.trusted_proxies).is_from_trusted_proxy:
        forwarded = request.headers.get("x-forwarded-proto", "")
        scheme = forwarded if forwarded in _SCHEMES else scheme
    return scheme


def root_url(request: Request, settings: Settings) -> str:
    """Return the URL of this server's root as the client reached it, with the configured prefix and no final slash."""
    host = "".join(one for one in request.headers.get("host", "") if one.isalnum() or one in ".-:[]")
    return f"{scheme_of(request, settings)}://{host}{settings.desktop.url_prefix.rstrip('/')}"


def is_secure(request: Request, settings: Settings) -> bool:
    """Return whether the browser reached this server by https.

    The scheme of `Origin` counts as well, because a proxy that ends TLS may be missing in `desktop.trusted_proxies`.
    """
    return _SECURE in {scheme_of(request, settings), request.headers.get("origin", "").partition(":")[0]}


async def require_own_page(request: Request) -> None:
    """Check that no page of another site sent the call: browsers send cookies with calls of any page (Rule T18).

    Pages of other origins cannot set the header without CORS, and browsers add `Origin` to every POST. Programs send no
    `Origin`. Raises csrf_header_missing, origin_not_allowed.
    """
    if request.headers.get(CSRF_HEADER) != CSRF_VALUE:
        raise csrf_header_missing(f"The call needs the header {CSRF_HEADER}: {CSRF_VALUE}.")
    origins = request.headers.getlist("origin")
    if any(not _is_own(origin, request) for origin in origins):
        raise origin_not_allowed(_FOREIGN)


OwnPageDep = Annotated[None, dependency(require_own_page)]
"""Rejects calls from web pages of other origins."""


def _is_own(origin: str, request: Request) -> bool:
    """Return whether host and port of the origin are those of `Host`, and the page is not less secure than the call."""
    try:
        page = urlsplit(origin)
        port = page.port
    except ValueError:  # an invalid port or IPv6 address
        return False
    if page.scheme not in _SCHEMES or not page.netloc or "@" in page.netloc:
        return False
    own = scheme_of(request, services_of(request).settings)
    if own == _SECURE and page.scheme != _SECURE:
        return False
    default = 443 if page.scheme == _SECURE else 80
    host = request.headers.get("host", "").casefold()
    names = {page.netloc.casefold()}
    if port in (None, default):
        name = page.netloc.casefold().removesuffix(f":{default}")
        names |= {name, f"{name}:{default}"}
    return host in names

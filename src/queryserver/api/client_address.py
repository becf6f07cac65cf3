"""The address of a client (Contract platform 1.6)."""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.requests import Request

from queryserver.settings.networks import Network, contains, parsed_address


def client_address(request: Request, trusted: Sequence[Network]) -> str:
    """The peer; behind trusted proxies the last address of their chain that is not one of them."""
    peer = request.client.host if request.client else ""
    if not contains(trusted, peer):
        return peer
    for hop in reversed(_forwarded(request.headers)):
        address = parsed_address(hop)
        if address is None:
            # A proxy of ours wrote what is no address: behind it nothing can be believed.
            return peer
        peer = str(address)
        if not contains(trusted, peer):
            return peer
    return peer


def _forwarded(headers: Headers) -> list[str]:
    """The addresses of the chain, the nearest last. `X-Forwarded-For` goes first: more proxies write it themselves."""
    chain = [hop.strip() for value in headers.getlist("x-forwarded-for") for hop in value.split(",")]
    if not chain:
        elements = [element for value in headers.getlist("forwarded") for element in value.split(",")]
        chain = [_for(element) for element in elements]
    return [_without_port(hop) for hop in chain]


def _for(element: str) -> str:
    """The `for` of one element of `Forwarded` (RFC 7239)."""
    for pair in element.split(";"):
        name, _, value = pair.strip().partition("=")
        if name.lower() == "for":
            return value.strip('"')
    return ""


def _without_port(hop: str) -> str:
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop

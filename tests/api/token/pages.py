"""Web pages that log in, each with the cookies of one browser (Contract platform 3.11)."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.cookies import Morsel, SimpleCookie
from typing import Any

import httpx
from tests.api.answers import require_contract
from tests.api.driving import Api
from tests.api.transport import AppTransport

OWN_PAGE = {"X-Requested-With": "queryserver"}
COOKIE = "queryserver_session"


@dataclass(frozen=True, slots=True)
class Page:
    """A page in a browser. `headers` are those that the page and the browser add to each call."""

    http: httpx.AsyncClient
    headers: Mapping[str, str]

    async def post(self, path: str, *, headers: Mapping[str, str] | None = None, **fields: Any) -> httpx.Response:
        """Send a POST below /api/v1/token/. `headers` replace those of the page."""
        response = await self.http.post(
            f"/api/v1/token/{path}", json=fields, headers=self.headers if headers is None else headers
        )
        require_contract(response)
        return response

    @property
    def cookie(self) -> str | None:
        """The refresh token in the browser's cookie, or None."""
        return self.http.cookies.get(COOKIE)


@asynccontextmanager
async def open_page(
    api: Api, url: str = "http://test", *, peer: str = "127.0.0.1", **headers: str
) -> AsyncGenerator[Page]:
    """Open a page of the server under `url`. Browsers send `Origin` with each POST."""
    sent = {**OWN_PAGE, "Origin": url, **headers}
    async with httpx.AsyncClient(transport=AppTransport(api.app, peer), base_url=url, timeout=90) as http:
        yield Page(http, sent)


def set_cookie(response: httpx.Response, name: str = COOKIE) -> Morsel[str]:
    """Return the cookie of this name that the response sets."""
    cookies = SimpleCookie[str]()
    for header in response.headers.get_list("set-cookie"):
        cookies.load(header)
    return cookies[name]

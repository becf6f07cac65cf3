"""Calls from pages of other origins (Contract platform 1.5)."""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PATHS = ("/api/", "/desktop/")
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "DELETE, GET, HEAD, OPTIONS, POST, PUT",
    "Access-Control-Allow-Headers": (
        "accept, authorization, content-type, x-requested-with, x-csrftoken, idempotency-key, x-request-id, "
        "if-none-match, if-range, last-event-id, range"
    ),
    "Access-Control-Max-Age": "86400",
}
_EXPOSED = {
    "Access-Control-Expose-Headers": (
        "X-Request-Id, Retry-After, Content-Disposition, X-Unknown-Fields, Accept-Ranges, Content-Range, ETag, "
        "X-Result-Rows, X-Result-Truncated, X-Result-Truncated-Reason"
    )
}


@dataclass(frozen=True, slots=True)
class CorsPolicy:
    """Which origins may call. None by default; `*` stands for all, and never goes with credentials."""

    origins: frozenset[str] = frozenset()
    allow_credentials: bool = False

    def headers(self, origin: str | None) -> Mapping[str, str]:
        """What an answer tells the browser of a page from `origin`; nothing when it is not listed."""
        if origin is None:
            return {}
        if "*" in self.origins and not self.allow_credentials:
            return {"Access-Control-Allow-Origin": "*"}
        if origin not in self.origins:
            return {}
        credentials = {"Access-Control-Allow-Credentials": "true"} if self.allow_credentials else {}
        return {"Access-Control-Allow-Origin": origin, **credentials}


class Cors:
    """Answers preflights of listed origins, and marks all other answers to them."""

    def __init__(self, app: ASGIApp, policy: CorsPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] != "http" or not scope["path"].startswith(_PATHS):
            await self._app(scope, receive, send)
            return
        asked = Headers(scope=scope)
        told = self._policy.headers(asked.get("origin"))

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                headers.update(told)
                # Also without an origin: a cache must not give this answer to a page.
                headers.add_vary_header("Origin")
            await send(message)

        if told and scope["method"] == "OPTIONS" and "access-control-request-method" in asked:
            await Response(headers=_PREFLIGHT)(scope, receive, marked)
            return
        told = {**told, **_EXPOSED} if told else told
        await self._app(scope, receive, marked)

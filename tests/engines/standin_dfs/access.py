"""Authorization: signatures made with the account key, and tokens from the login service."""

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import parse_qsl

from aiohttp import web
from tests.engines.standin_dfs.tree import Refusal

_LINES = ("Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date")
_CONDITIONS = ("If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range")


@dataclass
class Access:
    """The accepted credentials. `tokens` are the login service's tokens that have not expired."""

    account: str
    key: str
    tokens: set[str] = field(default_factory=set[str])

    def check(self, request: web.Request) -> None:
        """Check the request's credentials. Raises Refusal if the request is not authorized."""
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if not scheme:
            raise Refusal(401, "NoAuthenticationInformation")
        if scheme == "Bearer":
            if given not in self.tokens:
                raise Refusal(401, "InvalidAuthenticationInfo")
            return
        parsedate_to_datetime(request.headers["x-ms-date"])
        if scheme != "SharedKey" or not hmac.compare_digest(given, f"{self.account}:{self._signature(request)}"):
            raise Refusal(403, "AuthenticationFailed")

    def _signature(self, request: web.Request) -> str:
        headers = request.headers
        lines = [request.method, *(headers.get(name, "") for name in (*_LINES, *_CONDITIONS))]
        if lines[3] == "0":
            lines[3] = ""
        own = {name.lower(): value for name, value in headers.items() if name.lower().startswith("x-ms-")}
        lines += [f"{name}:{own[name]}" for name in sorted(own)]
        path, _, query = request.raw_path.partition("?")
        lines.append(f"/{self.account}{path}")
        lines += [f"{name.lower()}:{value}" for name, value in sorted(parse_qsl(query, keep_blank_values=True))]
        digest = hmac.new(base64.b64decode(self.key), "\n".join(lines).encode(), hashlib.sha256).digest()
        return base64.b64encode(digest).decode()


@dataclass
class LoginService:
    """A service that issues tokens to a single application. `asked` counts all calls, including refused calls."""

    access: Access
    tenant_id: str = "tenant-of-tests"
    client_id: str = "application-of-tests"
    client_secret: str = "secret of tests"
    life_s: float = 3600
    asked: int = 0
    is_down: bool = False

    async def token(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.is_down:
            return web.json_response({"error": "temporarily_unavailable"}, status=503)
        form = dict(parse_qsl((await request.read()).decode()))
        expected = {
            "grant_type": "client_credentials",
            "client_id": self.client_id,
            "client_secret": self.client_secret,
            "scope": "https://storage.azure.com/.default",
        }
        if form != expected or request.match_info["tenant"] != self.tenant_id:
            text = f"AADSTS7000215: Invalid client secret for application {self.client_id}. Trace ID: 1"
            return web.json_response({"error": "invalid_client", "error_description": text}, status=401)
        token = f"token {self.asked}".replace(" ", "-")
        self.access.tokens.add(token)
        return web.json_response({"token_type": "Bearer", "expires_in": self.life_s, "access_token": token})

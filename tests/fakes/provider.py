"""An OpenID provider on the loopback interface, with the code flow (PKCE) and the device flow.

It checks requests as RFC 6749, RFC 7636 and RFC 8628 demand, and answers as providers do.
"""

import base64
import hashlib
import json
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from tests.fakes.issuer import Issuer
from tests.fakes.webhdfs import Answer, ReceivedRequest, scripted_name_node

CLIENT = "queryserver console"
SECRET = "s3cret: of the+client"
USER_CODE = "WDJB-MJHT"


@dataclass
class Grant:
    """A login that a user has approved, or has still to approve."""

    claims: Mapping[str, Any]
    challenge: str = ""
    redirect_uri: str = ""
    state: str = "approved"
    """Of a device code: `authorization_pending`, `slow_down`, `access_denied`, `expired_token` or `approved`."""


@dataclass
class Provider:
    """`secret` is empty for public clients. `document` replaces entries of the discovery document."""

    secret: str = SECRET
    issuer: str = ""
    signer: Issuer = field(default_factory=Issuer)
    document: dict[str, Any] = field(default_factory=dict)
    broken: dict[str, Answer] = field(default_factory=dict)
    """Responses that replace those of a path."""
    requests: list[ReceivedRequest] = field(default_factory=list)
    codes: dict[str, Grant] = field(default_factory=dict)
    devices: dict[str, Grant] = field(default_factory=dict)
    interval: object = 5
    denies: bool = False
    """Whether logins with a browser are denied."""

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[str]:
        """Serve the provider, and yield the URL of the issuer."""
        async with scripted_name_node(self._serve) as server:
            self.issuer = f"http://127.0.0.1:{server.port}/realms/data"
            yield self.issuer

    def approve(self, url: str, subject: str = "ana", **claims: Any) -> dict[str, str]:
        """Log in as the browser that opens `url` would, and return the parameters of the redirect back.

        `claims` replace those of the ID token.
        """
        assert url.startswith(f"{self.issuer}/authorize?")
        requested = dict(parse_qsl(urlsplit(url).query, strict_parsing=True))
        assert (requested["response_type"], requested["client_id"]) == ("code", CLIENT)
        assert "openid" in requested["scope"].split()
        assert requested["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        granted = {"sub": subject, "nonce": requested["nonce"], **claims}
        self.codes[code] = Grant(granted, requested["code_challenge"], requested["redirect_uri"])
        return {"code": code, "state": requested["state"], "iss": self.issuer}

    def decide(self, state: str, subject: str = "ana", **claims: Any) -> None:
        """Set the state of the newest device code."""
        grant = list(self.devices.values())[-1]
        grant.state, grant.claims = state, {"sub": subject, **claims}

    async def _serve(self, request: ReceivedRequest) -> Answer:
        self.requests.append(request)
        path = request.path.removeprefix("/realms/data")
        if path in self.broken:
            return self.broken[path]
        form = dict(parse_qsl(request.body.decode(), keep_blank_values=True))
        match request.method, path:
            case "GET", "/.well-known/openid-configuration":
                return _json(self._discovery())
            case "GET", "/authorize":
                return self._authorize(request)
            case "GET", "/keys":
                return _json(self.signer.document())
            case "POST", "/token" if (refusal := self._client_problem(request, form)) is not None:
                return refusal
            case "POST", "/token":
                return self._token(form)
            case "POST", "/device":
                return self._client_problem(request, form) or self._device()
        return Answer(404)

    def _authorize(self, request: ReceivedRequest) -> Answer:
        """Send the browser back at once, as a provider does at which the user has logged in before."""
        if self.denies:
            back = {"error": "access_denied", "state": request.query["state"]}
        else:
            back = self.approve(f"{self.issuer}/authorize?{urlencode(request.query)}")
        return Answer(302, headers={"Location": f"{request.query['redirect_uri']}?{urlencode(back)}"})

    def _discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "device_authorization_endpoint": f"{self.issuer}/device",
            "jwks_uri": f"{self.issuer}/keys",
            "response_types_supported": ["code"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            **self.document,
        }

    def _client_problem(self, request: ReceivedRequest, form: Mapping[str, str]) -> Answer | None:
        assert request.headers["content-type"] == "application/x-www-form-urlencoded"
        assert form["client_id"] == CLIENT
        sent = form.get("client_secret", "")
        if basic := request.headers.get("authorization", "").removeprefix("Basic "):
            client, _, sent = base64.b64decode(basic).decode().partition(":")
            assert unquote_plus(client) == CLIENT
            sent = unquote_plus(sent)
        return None if sent == self.secret else _error("invalid_client", 401)

    def _token(self, form: Mapping[str, str]) -> Answer:
        if form["grant_type"] == "urn:ietf:params:oauth:grant-type:device_code":
            grant = self.devices[form["device_code"]]
            return self._tokens(grant) if grant.state == "approved" else _error(grant.state)
        assert form["grant_type"] == "authorization_code"
        grant = self.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if grant is None or grant.challenge != challenge or grant.redirect_uri != form["redirect_uri"]:
            return _error("invalid_grant")
        return self._tokens(grant)

    def _tokens(self, grant: Grant) -> Answer:
        token = self.signer.token(**{"iss": self.issuer, "aud": CLIENT, **grant.claims})
        return _json({"access_token": "opaque", "token_type": "Bearer", "expires_in": 300, "id_token": token})

    def _device(self) -> Answer:
        code = secrets.token_urlsafe(24)
        self.devices[code] = Grant({"sub": "ana"}, state="authorization_pending")
        page = f"{self.issuer}/activate"
        return _json(
            {
                "device_code": code,
                "user_code": USER_CODE,
                "verification_uri": page,
                "verification_uri_complete": f"{page}?user_code={USER_CODE}",
                "expires_in": 600,
                "interval": self.interval,
            }
        )


def _json(content: Mapping[str, Any], status: int = 200) -> Answer:
    return Answer(status, json.dumps(content).encode(), {"Content-Type": "application/json"})


def _error(code: str, status: int = 400) -> Answer:
    return _json({"error": code, "error_description": "Refused by the test."}, status)

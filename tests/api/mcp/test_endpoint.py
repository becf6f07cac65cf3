"""The endpoint `/mcp` before a tool runs: paths, credentials, origins and limits (Contract mcp 1)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from tests.api.conftest import ApiOpener, make_settings
from tests.api.driving import Api, Caller, open_api
from tests.api.mcp.conftest import OpenClient, connected, posted
from tests.api.test_api_token_statements import program_of
from tests.fakes.issuer import AUDIENCE, ISSUER, Issuer

from queryserver.api.mcp.endpoint import MAX_BODY_BYTES, may_call
from queryserver.platform.logs import ACCESS_LOGGER, FIELDS
from queryserver.platform.settings.desktop import DesktopSettings

METADATA = "/.well-known/oauth-protected-resource"


@pytest.mark.mcp(1)
async def test_both_revisions_list_the_tools(connect: OpenClient, ana: Caller) -> None:
    async with connect(ana) as agent:
        tools = {tool.name: tool for tool in (await agent.list_tools()).tools}
    assert {"list_connectors", "run_sql", "get_status", "get_result", "cancel"} <= tools.keys()
    for tool in tools.values():
        assert tool.description
        assert tool.output_schema
        assert tool.annotations is not None


@pytest.mark.mcp(1)
@pytest.mark.parametrize("mode", ["2026-07-28", "legacy", "auto"])
async def test_trailing_slash_makes_no_difference(mcp_url: str, ana: Caller, mode: str) -> None:
    async with connected(f"{mcp_url}/", ana, mode=mode) as agent:
        assert (await agent.list_tools()).tools


@pytest.mark.mcp(1)
@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"])
async def test_no_response_opens_a_session(api: Api, ana: Caller, version: str) -> None:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    response = await posted(api.http, "initialize", headers=ana.headers, **params)
    assert response.status_code == 200
    assert f'"protocolVersion":"{version}"' in response.text
    assert "mcp-session-id" not in response.headers


@pytest.mark.mcp(2)
@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "HEAD"])
async def test_other_methods_are_not_allowed(api: Api, ana: Caller, method: str) -> None:
    response = await api.http.request(method, "/mcp", headers={**ana.headers, "Accept": "text/event-stream"})
    assert (response.status_code, response.headers["Allow"]) == (405, "POST")
    assert (await api.http.request(method, "/mcp")).status_code == 401
    assert (await api.http.options("/mcp")).headers["Allow"] == "POST"


@pytest.mark.mcp(3)
async def test_disabled_endpoint_does_not_exist(tmp_path: Path, database_dsn: str, users_url: str) -> None:
    jwt = {"key_server_url": ("http://127.0.0.1:9/keys",), "issuer": ISSUER, "audience": AUDIENCE}
    settings = make_settings(tmp_path, database_dsn, users_url, desktop={"auth": {"jwt": jwt}})
    off = settings.model_copy(update={"mcp": settings.mcp.model_copy(update={"enabled": False})})
    async with open_api(off) as api:
        ana = await api.user("ana")
        assert (await posted(api.http, headers=ana.headers)).status_code == 404
        assert (await api.http.get(f"{METADATA}/mcp")).status_code == 404


@pytest.mark.mcp(4)
@pytest.mark.parametrize("method", ["tools/list", "initialize", "server/discover"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer qs_wrong"}, {"Authorization": "Basic YTpi"}])
async def test_calls_without_valid_credentials_are_refused(api: Api, method: str, headers: dict[str, str]) -> None:
    response = await posted(api.http, method, headers=headers)
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == 'Bearer realm="api"'


@pytest.mark.mcp(4)
async def test_api_tokens_are_accepted(connect: OpenClient, ana: Caller) -> None:
    program, _ = await program_of(ana, scopes=["query:read"])
    async with connect(program) as agent:
        assert (await agent.list_tools()).tools


class TestWithIssuer:
    @pytest.fixture
    async def issuer(self) -> Issuer:
        return Issuer()

    @pytest.fixture
    async def external(self, issuer: Issuer, tmp_path: Path, database_dsn: str, users_url: str) -> AsyncIterator[Api]:
        async with issuer.serving() as url:
            jwt = {"key_server_url": (url,), "issuer": ISSUER, "audience": AUDIENCE}
            desktop = {"auth": {"jwt": jwt}, "trusted_proxies": ("127.0.0.1/32",), "url_prefix": "/sql"}
            async with open_api(make_settings(tmp_path, database_dsn, users_url, desktop=desktop)) as api:
                yield api

    @pytest.mark.mcp(4)
    async def test_external_tokens_are_accepted(self, external: Api, issuer: Issuer) -> None:
        headers = {"Authorization": f"Bearer {issuer.token()}"}
        assert (await posted(external.http, path="/sql/mcp", headers=headers)).status_code == 200

    @pytest.mark.mcp(5)
    async def test_challenge_names_the_metadata_and_the_metadata_the_issuer(self, external: Api) -> None:
        proxied = {"X-Forwarded-Proto": "https", "Host": "sql.example.com"}
        refused = await posted(external.http, path="/sql/mcp", headers=proxied)
        url = f"https://sql.example.com/sql{METADATA}/mcp"
        assert refused.headers["WWW-Authenticate"] == f'Bearer realm="api", resource_metadata="{url}"'
        for path in (METADATA, f"{METADATA}/mcp"):
            found = await external.http.get(f"/sql{path}", headers=proxied)
            assert found.json() == {
                "resource": "https://sql.example.com/sql/mcp",
                "authorization_servers": [ISSUER],
                "bearer_methods_supported": ["header"],
                "resource_name": "Query Server",
            }


@pytest.mark.mcp(5)
async def test_no_metadata_without_an_issuer(api: Api) -> None:
    for path in (METADATA, f"{METADATA}/mcp"):
        assert (await api.http.get(path)).status_code == 404


@pytest.mark.mcp(6)
@pytest.mark.parametrize(
    ("origin", "host", "settings", "allowed"),
    [
        (None, "any.example", {}, True),
        ("http://localhost:8888", "localhost:8888", {}, True),
        ("http://127.0.0.1:8888", "127.0.0.1:8888", {}, True),
        ("http://[::1]:8888", "[::1]:8888", {}, True),
        ("http://localhost:3000", "localhost:8888", {}, False),
        ("https://rebound.example", "rebound.example", {}, False),
        ("null", "localhost", {}, False),
        ("", "", {}, False),
        ("https://sql.example", "sql.example", {"allowed_hosts": ("SQL.example",)}, True),
        ("https://bi.example", "sql.example", {"allowed_hosts": ("sql.example", "bi.example")}, False),
        ("https://bi.example", "sql.example", {"cors_allowed_origins": ("https://bi.example",)}, False),
        ("https://bi.example", "s", {"cors_enabled": True, "cors_allowed_origins": ("https://bi.example",)}, True),
        ("https://other.example", "s", {"cors_enabled": True, "cors_allowed_origins": ("https://bi.example",)}, False),
        ("http://[", "[", {}, False),
        ("https://any.example", "s", {"cors_enabled": True, "cors_allowed_origins": ("*",)}, True),
    ],
)
def test_only_permitted_origins_may_call(
    origin: str | None, host: str, settings: dict[str, Any], allowed: bool
) -> None:
    assert may_call(origin, host, DesktopSettings(**settings)) is allowed


@pytest.mark.mcp(6)
async def test_origin_of_another_page_is_refused_before_the_credentials(api: Api, ana: Caller) -> None:
    response = await posted(api.http, headers={"Origin": "https://evil.example"})
    assert (response.status_code, response.json()["code"]) == (403, "origin_not_allowed")
    same = {**ana.headers, "Origin": "http://localhost", "Host": "localhost"}
    assert (await posted(api.http, headers=same)).status_code == 200


@pytest.mark.mcp(6)
async def test_listed_origins_and_hosts_only(small_api: ApiOpener) -> None:
    desktop = {"allowed_hosts": ("test",), "cors_enabled": True, "cors_allowed_origins": ("https://bi.example",)}
    async with small_api(desktop=desktop) as api:
        ana = await api.user("ana")
        allowed = await posted(api.http, headers={**ana.headers, "Origin": "https://bi.example"})
        assert allowed.status_code == 200
        assert allowed.headers["Access-Control-Allow-Origin"] == "https://bi.example"
        preflight = {
            "Origin": "https://bi.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type, mcp-protocol-version, mcp-method",
        }
        assert (await api.http.options("/mcp", headers=preflight)).status_code == 200
        assert (await posted(api.http, headers={**ana.headers, "Host": "other"})).status_code == 400


@pytest.mark.mcp(7)
async def test_large_body_is_refused(api: Api, ana: Caller) -> None:
    response = await posted(api.http, headers=ana.headers, text="x" * MAX_BODY_BYTES)
    assert (response.status_code, response.json()["code"]) == (413, "payload_too_large")


@pytest.mark.mcp(7)
@pytest.mark.parametrize("body", [b"", b"{", b'{"a": "\\u0000"}', b'{"a": 1, "a": 2}', b"[" * 5000, b"\xff", b"NaN"])
async def test_malformed_body_is_a_parse_error(api: Api, ana: Caller, body: bytes) -> None:
    accept = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    response = await api.http.post("/mcp", content=body, headers={**ana.headers, **accept})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == -32700


@pytest.mark.mcp(8)
async def test_calls_are_limited_and_logged_with_their_user(
    tmp_path: Path, database_dsn: str, users_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = make_settings(tmp_path, database_dsn, users_url, desktop={"logging": {"access_log": True}})
    limits = settings.limits.model_copy(update={"api_requests_per_minute": 3})
    caplog.set_level("INFO", ACCESS_LOGGER)
    async with open_api(settings.model_copy(update={"limits": limits})) as api:
        ana = await api.user("ana")
        statuses = [(await posted(api.http, headers=ana.headers)).status_code for _ in range(12)]
        assert statuses[0] == 200
        assert 429 in statuses
    logged = [vars(record)[FIELDS] for record in caplog.records if record.name == ACCESS_LOGGER]
    assert [(line["user"], line["path"], line["status"]) for line in logged] == [
        (ana.username, "/mcp", status) for status in statuses
    ]
    assert 'route="/mcp",status="200"' in generate_latest(api.services.registry).decode()

"""Logins with a password on a real server (issue 20, section 3)."""

import httpx
import pytest
from tests.api.token.logins import PASSWORD, accounts
from tests.client.conftest import QUICK, Server, api_token

from queryserver_client import AuthenticationError, Connection, PermissionDenied, connect


class TokenRecorder(httpx.AsyncHTTPTransport):
    """The real transport, which also records the token of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.bearers: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if "Authorization" in request.headers:
            self.bearers.append(request.headers["Authorization"])
        return await super().handle_async_request(request)


@pytest.fixture
async def username(server: Server) -> str:
    caller = await server.api.user("password")
    await accounts(server.api).set_password(caller.username, PASSWORD)
    return caller.username


async def test_user_logs_in_and_token_ends_with_block(server: Server, username: str):
    watched = TokenRecorder()
    async with connect(server.url, user=username, password=PASSWORD, retries=QUICK, http_transport=watched) as db:
        assert await (await db.query("duckdb", "SELECT 1")).rows() == [(1,)]
    (bearer,) = set(watched.bearers)
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as plain:
        answer = await plain.get("/api/v1/editor/get_history", headers={"Authorization": bearer})
    assert answer.status_code == 401


async def test_token_revoked_between_calls_is_replaced(server: Server, username: str):
    watched = TokenRecorder()
    async with connect(server.url, user=username, password=PASSWORD, retries=QUICK, http_transport=watched) as db:
        await db.transport.call("GET", "editor/get_history")
        token = watched.bearers[-1].removeprefix("Bearer ")
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as plain:
            answer = await plain.post("/api/v1/token/revoke", json={"token": token, "all": True})
        assert answer.status_code == 200
        assert await (await db.query("duckdb", "SELECT 2")).rows() == [(2,)]
    assert len(set(watched.bearers)) == 2


async def test_wrong_password_raises_clear_error(server: Server, username: str):
    async with connect(server.url, user=username, password="wrong", retries=QUICK) as db:
        with pytest.raises(AuthenticationError, match="No active account"):
            await db.query("duckdb", "SELECT 1")


async def test_api_token_suffices_until_revoked(server: Server, db: Connection):
    token = await api_token(db, "query")
    async with connect(server.url, token=token, retries=QUICK) as program:
        assert await (await program.query("duckdb", "SELECT ? + 1", [1])).rows() == [(2,)]
        with pytest.raises(PermissionDenied) as refused:
            await program.transport.call("GET", "token/api_tokens")
        assert refused.value.code == "insufficient_scope"
        (made,) = (await db.transport.call("GET", "token/api_tokens"))["tokens"]
        await db.transport.call("POST", "token/api_tokens/revoke", {"id": made["id"]})
        with pytest.raises(AuthenticationError):
            await program.query("duckdb", "SELECT 1")

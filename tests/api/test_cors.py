"""Calls from pages of other origins (Contract platform 1.5)."""

import httpx
import pytest
from tests.api.conftest import ApiOpener
from tests.api.driving import Api

pytestmark = pytest.mark.platform(14)

LISTED = "https://bi.example.com"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


async def call(api: Api, method: str, path: str, origin: str | None, **headers: str) -> httpx.Response:
    given = headers if origin is None else {"Origin": origin, **headers}
    return await api.http.request(method, path, headers=given)


def told(answer: httpx.Response) -> dict[str, str]:
    prefix = "access-control-"
    return {name.removeprefix(prefix): value for name, value in answer.headers.items() if name.startswith(prefix)}


async def test_it_is_off_by_default(api: Api):
    for method, status in (("GET", 401), ("OPTIONS", 204)):
        answer = await call(api, method, "/api/v1/editor/get_history", LISTED, **PREFLIGHT)
        assert (answer.status_code, told(answer)) == (status, {})
        assert "vary" not in answer.headers


async def test_a_listed_origin_is_echoed_and_no_other(small_api: ApiOpener):
    desktop = {"cors_enabled": True, "cors_allowed_origins": [LISTED]}
    async with small_api(desktop=desktop) as api:
        for path in ("/api/v1/editor/get_history", "/desktop/debug/is_alive", "/api/v1/nope"):
            answer = await call(api, "GET", path, LISTED)
            assert told(answer) == {
                "allow-origin": LISTED,
                "allow-credentials": "true",
                "expose-headers": (
                    "X-Request-Id, Retry-After, Content-Disposition, X-Unknown-Fields, Accept-Ranges, Content-Range, "
                    "ETag, X-Result-Rows, X-Result-Truncated, X-Result-Truncated-Reason"
                ),
            }
            assert answer.headers["vary"] == "Origin"
            for origin in ("https://bi.example.com.evil.org", "HTTPS://bi.example.com", "null", None):
                answer = await call(api, "GET", path, origin)
                assert (told(answer), answer.headers["vary"]) == ({}, "Origin")
        assert told(await call(api, "GET", "/metrics", LISTED)) == {}


async def test_a_preflight_of_a_listed_origin_needs_no_login(small_api: ApiOpener):
    desktop = {"cors_enabled": True, "cors_allowed_origins": [LISTED]}
    async with small_api(desktop=desktop) as api:
        answer = await call(api, "OPTIONS", "/api/v1/editor/execute/mysql/", LISTED, **PREFLIGHT)
        assert answer.status_code == 200
        assert told(answer) == {
            "allow-origin": LISTED,
            "allow-credentials": "true",
            "allow-methods": "DELETE, GET, HEAD, OPTIONS, POST, PUT",
            "allow-headers": (
                "accept, authorization, content-type, x-requested-with, x-csrftoken, idempotency-key, x-request-id, "
                "if-none-match, if-range, last-event-id, range"
            ),
            "max-age": "86400",
        }
        other = await call(api, "OPTIONS", "/api/v1/editor/execute/mysql", "https://evil.org", **PREFLIGHT)
        assert (other.status_code, told(other)) == (204, {})


@pytest.mark.security("T18")
async def test_any_origin_goes_without_credentials_only(small_api: ApiOpener):
    desktop = {"cors_enabled": True, "cors_allowed_origins": ["*"], "cors_allow_credentials": False}
    async with small_api(desktop=desktop) as api:
        answer = await call(api, "GET", "/api/v1/editor/get_history", "https://any.org")
        assert told(answer)["allow-origin"] == "*"
        assert "allow-credentials" not in told(answer)

"""HTML pages, the API description, cells that contain markup, and CORS (Contract platform 1.5, 9.4; T31)."""

import gzip
import json
import re
from collections.abc import AsyncIterator

import httpx
import pytest
import yaml
from scripts.export_openapi import TARGET
from tests.api.conftest import ApiOpener
from tests.api.driving import Api, Caller

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
_LINK = re.compile(r"(?:href|src)=\"([^\"#]+)[^\"]*\"")


async def fetched(api: Api, path: str, **headers: str) -> httpx.Response:
    return await api.http.get(path, headers=headers)


@pytest.fixture
async def without_console(small_api: ApiOpener) -> AsyncIterator[Api]:
    """An application with the console disabled, whose root is a page about the server."""
    async with small_api(desktop={"console": {"enabled": False}}) as opened:
        yield opened


async def pages(api: Api) -> dict[str, httpx.Response]:
    found = {path: await fetched(api, path) for path in ("/api/docs", "/api/docs/", "/api/swagger")}
    return found | {"/": await fetched(api, "/", Accept=BROWSER)}


@pytest.mark.platform(101)
async def test_pages_load_everything_from_this_server_without_inline_code(without_console: Api):
    api = without_console
    for path, page in (await pages(api)).items():
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8"), path
        assert page.headers["content-security-policy"] == POLICY
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "no-referrer"
        assert "://" not in page.text
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", page.text)
        links = _LINK.findall(page.text)
        assert len(links) > 5
        for link in links:
            found = await fetched(api, link.replace("&amp;", "&"), Accept=BROWSER)
            assert found.status_code == 200, link
            if "/api/docs/" in link:
                assert found.headers["content-security-policy"] == POLICY
                assert found.headers["cache-control"] == "public, max-age=31536000, immutable"


async def test_assets_have_their_types_and_versions(api: Api):
    types = {
        "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
        "swagger-ui.css": "text/css; charset=utf-8",
        "docs.js": "text/javascript; charset=utf-8",
        "icon.svg": "image/svg+xml",
    }
    for name, media_type in types.items():
        path = f"/api/docs/{name}"
        plain = await fetched(api, path, **{"Accept-Encoding": "identity"})
        packed = await fetched(api, path, **{"Accept-Encoding": "br;q=1, gzip;q=0.8"})
        assert plain.headers["content-type"] == packed.headers["content-type"] == media_type
        assert "content-encoding" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.content == plain.content
        assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
        # A new version has the same name, so browsers must revalidate the file at each visit.
        assert plain.headers["cache-control"] == "no-cache"
        assert plain.headers["etag"] != packed.headers["etag"]
        for known, encoding in ((plain, "identity"), (packed, "gzip")):
            for given in (known.headers["etag"], f'"x", W/{known.headers["etag"]}', "*"):
                again = await fetched(api, path, **{"If-None-Match": given, "Accept-Encoding": encoding})
                assert (again.status_code, again.content) == (304, b""), given
                assert again.headers["etag"] == known.headers["etag"]
        assert (await fetched(api, path, **{"If-None-Match": '"x"'})).status_code == 200
        refused = await fetched(api, path, **{"Accept-Encoding": "gzip;q=0, *"})
        assert "content-encoding" not in refused.headers
        assert (await fetched(api, f"{path}?v=0")).headers["cache-control"] == "no-cache"
    for name in ("docs.html", "root.html", "index.html", "..%2Fdocs.js", "__init__.py", ""):
        answer = await fetched(api, f"/api/docs/{name}")
        assert answer.status_code == (404 if name else 200), name


async def test_api_description_is_compressed_and_cacheable(api: Api):
    for path in ("/api/schema", "/api/schema?format=yaml", "/api/v1/openapi.json"):
        async with api.http.stream("GET", path, headers={"Accept-Encoding": "gzip"}) as answer:
            sent = b"".join([piece async for piece in answer.aiter_raw()])
        assert answer.headers["content-encoding"] == "gzip"
        plain = await fetched(api, path, **{"Accept-Encoding": "identity"})
        assert gzip.decompress(sent) == plain.content
        assert len(sent) * 5 < len(plain.content)
        # The format of /api/schema depends on `Accept`: JSON or YAML. The other path has only one format.
        assert ("Accept," in plain.headers["vary"]) is path.startswith("/api/schema")
        again = await fetched(api, path, **{"Accept-Encoding": "identity", "If-None-Match": plain.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


async def test_root_serves_html_to_browsers_and_404_to_other_clients(api: Api):
    browsers = (BROWSER, "text/html", "application/xhtml+xml", "application/json;q=0.5, TEXT/HTML; q=0.9")
    programs = (
        "*/*",
        "application/json",
        "",
        "text/plain",
        "text/*",
        "text/html;q=0",
        "application/json, text/html;q=0.5",
    )
    for accept in browsers:
        page = await fetched(api, "/", Accept=accept)
        assert (page.status_code, page.headers["vary"]) == (200, "Accept, Accept-Encoding"), accept
        head = await api.http.head("/", headers={"Accept": accept})
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == page.headers["content-length"]
    for accept in programs:
        answer = await fetched(api, "/", Accept=accept)
        assert answer.json() == {"status": -1, "code": "not_found", "message": "Not found."}
        assert (answer.status_code, answer.headers["vary"]) == (404, "Accept"), accept
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert (await api.http.request(method, "/", headers={"Accept": BROWSER})).status_code == 404
    known = await fetched(api, "/", Accept=BROWSER)
    again = await fetched(api, "/", Accept=BROWSER, **{"If-None-Match": known.headers["etag"]})
    assert (again.status_code, again.headers["vary"]) == (304, "Accept, Accept-Encoding")


async def test_root_page_contains_nothing_from_the_request(api: Api):
    plain = await fetched(api, "/", Accept=BROWSER)
    for headers in (
        {"Host": "<script>alert(1)</script>"},
        {"X-Forwarded-Host": "evil.example"},
        {"Host": "evil.example"},
    ):
        assert (await fetched(api, "/?a=<b>", Accept=BROWSER, **headers)).content == plain.content


@pytest.mark.platform(101)
async def test_pages_follow_prefix_allowed_hosts_and_docs_setting(small_api: ApiOpener):
    async with small_api(desktop={"url_prefix": "/sql", "allowed_hosts": "test", "console": {"enabled": False}}) as api:
        for path in ("/sql", "/sql/", "/sql/api/docs"):
            page = await fetched(api, path, Accept=BROWSER)
            assert page.status_code == 200, path
            assert 'data-prefix="/sql"' in page.text
            for link in _LINK.findall(page.text):
                assert link.startswith("/sql/"), link
                assert (await fetched(api, link, Accept=BROWSER)).status_code == 200, link
            answer = await fetched(api, path, Accept=BROWSER, Host="evil.example")
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_host")
        assert (await fetched(api, "/", Accept=BROWSER)).status_code == 404
    async with small_api(desktop={"docs_enabled": False, "console": {"enabled": False}}) as api:
        for path in ("/", "/api/docs", "/api/docs/root.css"):
            assert (await fetched(api, path, Accept=BROWSER)).status_code == 404


@pytest.mark.platform(101)
async def test_api_description_is_identical_in_all_forms(api: Api):
    described = (await api.http.get("/api/schema/")).json()
    assert (await api.http.get("/api/v1/openapi.json")).json() == described == json.loads(TARGET.read_bytes())
    by_query = await api.http.get("/api/schema", params={"format": "yaml"})
    by_header = await api.http.get("/api/schema/", headers={"Accept": "application/yaml"})
    for answer in (by_query, by_header):
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/yaml")
    assert by_query.content == by_header.content
    assert yaml.load(by_query.content, yaml.CSafeLoader) == described


@pytest.mark.platform(101)
async def test_disabled_docs_make_their_paths_unknown(small_api: ApiOpener):
    async with small_api(desktop={"docs_enabled": False}) as api:
        ana = await api.user("ana")
        for path in ("schema", "v1/openapi.json", "docs", "swagger", "docs/page.js"):
            for headers in ({}, ana.headers):
                answer = await api.http.get(f"/api/{path}/", headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path


MARKUP = "<script>alert(1)</script>&<b>"
STATEMENT = f"SELECT '{MARKUP}' AS cell"

TYPES = {
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.stream",
    "ndjson": "application/x-ndjson",
}


@pytest.mark.security("T31")
async def test_json_states_whether_cells_are_escaped(ana: Caller):
    operation = (await ana.run("duckdb", STATEMENT))["history_uuid"]
    for escape in (True, False):
        answer = await ana.post("editor/fetch_result_data", operationId=operation, start_row=0, escape=escape)
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        result = answer.json()["result"]
        assert result["isEscaped"] is escape
        (cell,) = result["data"][0]
        assert ("<" in cell) is not escape
        if not escape:
            assert cell == MARKUP


@pytest.mark.security("T31")
@pytest.mark.parametrize("kind", TYPES)
async def test_downloads_have_exact_types_and_are_attachments(ana: Caller, kind: str):
    operation = (await ana.run("duckdb", STATEMENT))["history_uuid"]
    answer = await ana.get(f"editor/download/{operation}", format=kind)
    assert answer.headers["content-type"].partition(";")[0] == TYPES[kind]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"].startswith("attachment;")


@pytest.mark.security("T31")
async def test_names_and_messages_with_markup_are_returned_as_json(ana: Caller):
    for answer in (
        await ana.post(f"editor/execute/{'<script>'}", statement="rows 1"),
        await ana.post("editor/execute/duckdb", statement=f"SELECT {MARKUP}", wait=30),
        await ana.get("editor/get_history", doc_text=MARKUP),
        await ana.get(f"connector/instance/get/{'<b>'}"),
    ):
        assert answer.headers["content-type"] == "application/json"
        assert json.loads(answer.content)


@pytest.mark.security("T31")
@pytest.mark.platform(101)
@pytest.mark.parametrize("path", ["/api/docs", "/api/swagger/"])
async def test_docs_page_loads_nothing_external(api: Api, path: str):
    page = await api.stranger.get(path)
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"].startswith("default-src 'self'; ")
    assert "://" not in page.text
    for asset in ("docs.js", "docs.css", "root.js", "root.css"):
        found = await api.stranger.get(f"/api/docs/{asset}")
        assert found.status_code == 200
        assert "://" not in found.text


LISTED = "https://bi.example.com"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


async def call(api: Api, method: str, path: str, origin: str | None, **headers: str) -> httpx.Response:
    given = headers if origin is None else {"Origin": origin, **headers}
    return await api.http.request(method, path, headers=given)


def cors_headers(answer: httpx.Response) -> dict[str, str]:
    prefix = "access-control-"
    return {name.removeprefix(prefix): value for name, value in answer.headers.items() if name.startswith(prefix)}


@pytest.mark.platform(14)
async def test_cors_is_off_by_default(api: Api):
    for method, status in (("GET", 401), ("OPTIONS", 204)):
        answer = await call(api, method, "/api/v1/editor/get_history", LISTED, **PREFLIGHT)
        assert (answer.status_code, cors_headers(answer)) == (status, {})
        assert "vary" not in answer.headers


@pytest.mark.platform(14)
async def test_only_listed_origins_are_echoed(small_api: ApiOpener):
    desktop = {"cors_enabled": True, "cors_allowed_origins": [LISTED]}
    async with small_api(desktop=desktop) as api:
        for path in ("/api/v1/editor/get_history", "/desktop/debug/is_alive", "/api/v1/nope"):
            answer = await call(api, "GET", path, LISTED)
            assert cors_headers(answer) == {
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
                assert (cors_headers(answer), answer.headers["vary"]) == ({}, "Origin")
        assert cors_headers(await call(api, "GET", "/metrics", LISTED)) == {}


@pytest.mark.platform(14)
async def test_preflight_of_a_listed_origin_needs_no_login(small_api: ApiOpener):
    desktop = {"cors_enabled": True, "cors_allowed_origins": [LISTED]}
    async with small_api(desktop=desktop) as api:
        answer = await call(api, "OPTIONS", "/api/v1/editor/execute/mysql/", LISTED, **PREFLIGHT)
        assert answer.status_code == 200
        assert cors_headers(answer) == {
            "allow-origin": LISTED,
            "allow-credentials": "true",
            "allow-methods": "DELETE, GET, HEAD, OPTIONS, POST, PUT",
            "allow-headers": (
                "accept, authorization, content-type, x-requested-with, x-csrftoken, idempotency-key, x-request-id, "
                "if-none-match, if-range, last-event-id, range, mcp-method, mcp-name, mcp-protocol-version"
            ),
            "max-age": "86400",
        }
        for name, value in {"Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "x-y"}.items():
            refused = await call(api, "OPTIONS", "/api/v1/editor/execute/mysql", LISTED, **PREFLIGHT | {name: value})
            assert refused.status_code == 400
        other = await call(api, "OPTIONS", "/api/v1/editor/execute/mysql", "https://evil.org", **PREFLIGHT)
        assert (other.status_code, cors_headers(other)) == (204, {})


@pytest.mark.platform(14)
@pytest.mark.security("T18")
async def test_wildcard_origin_works_only_without_credentials(small_api: ApiOpener):
    desktop = {"cors_enabled": True, "cors_allowed_origins": ["*"], "cors_allow_credentials": False}
    async with small_api(desktop=desktop) as api:
        answer = await call(api, "GET", "/api/v1/editor/get_history", "https://any.org")
        assert cors_headers(answer)["allow-origin"] == "*"
        assert "allow-credentials" not in cors_headers(answer)

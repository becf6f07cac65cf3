"""The addresses and files of the web console (Contract console 1)."""

import gzip
import re

import httpx
import pytest
from tests.api.conftest import ApiOpener
from tests.api.driving import Api

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
VIEWS = (
    "/",
    "/login",
    "/login/callback",
    "/editor",
    "/editor/",
    "/results/0c0f6d1e-2f0b-4a55-9a53-5d3c8e6c9a10",
    "/tables/duckdb/main/a%2Fb",
    "/queries",
    "/history",
    "/files",
    "/import",
    "/admin",
    "/admin/statements",
)
_LINKS = re.compile(r"(?:href|src)=\"([^\"]+)\"")


async def fetched(api: Api, path: str, **headers: str) -> httpx.Response:
    return await api.http.get(path, headers=headers)


@pytest.mark.console(1)
@pytest.mark.parametrize("path", VIEWS)
async def test_browsers_get_the_same_page_at_every_view(api: Api, path: str):
    page = await fetched(api, f"{path}?a=<b>", Accept=BROWSER)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["vary"] == "Accept, Accept-Encoding"
    assert page.headers["cache-control"] == "no-cache"
    assert page.headers["content-security-policy"] == POLICY
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.content == (await fetched(api, "/", Accept=BROWSER)).content
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", page.text)
    head = await api.http.head(path, headers={"Accept": BROWSER})
    assert (head.status_code, head.content) == (200, b"")
    again = await fetched(api, path, Accept=BROWSER, **{"If-None-Match": page.headers["etag"]})
    assert again.status_code == 304


@pytest.mark.console(1)
@pytest.mark.parametrize("path", VIEWS)
@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/json, text/html;q=0.5"])
async def test_programs_get_404_at_every_view(api: Api, path: str, accept: str):
    answer = await fetched(api, path, Accept=accept)
    assert answer.json() == {"status": -1, "code": "not_found", "message": "Not found."}
    assert (answer.status_code, answer.headers["vary"]) == (404, "Accept")


@pytest.mark.console(1)
async def test_other_paths_are_unknown_to_browsers_too(api: Api):
    for path in (
        "/operate",
        "/editors",
        "/filesystem",
        "/logins",
        "/console",
        "/console/assets",
        "/console/assets/nope.js",
    ):
        assert (await fetched(api, path, Accept=BROWSER)).status_code == 404, path


@pytest.mark.console(2)
async def test_files_are_immutable_and_compressed_and_have_their_types(api: Api):
    page = await fetched(api, "/", Accept=BROWSER)
    links = _LINKS.findall(page.text)
    types = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
    assert {link.rpartition(".")[2] for link in links} == types.keys()
    for link in links:
        assert link.startswith("/console/assets/")
        plain = await fetched(api, link, **{"Accept-Encoding": "identity"})
        packed = await fetched(api, link, **{"Accept-Encoding": "gzip"})
        assert plain.headers["content-type"] == types[link.rpartition(".")[2]]
        assert plain.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert plain.headers["content-security-policy"] == POLICY
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.content == plain.content
        assert int(packed.headers["content-length"]) == len(gzip.compress(plain.content, mtime=0))


@pytest.mark.console(2)
async def test_addresses_have_the_url_prefix(small_api: ApiOpener):
    async with small_api(desktop={"url_prefix": "/sql"}) as api:
        page = await fetched(api, "/sql/tables/duckdb/main/orders", Accept=BROWSER)
        assert '<meta name="url-prefix" content="/sql">' in page.text
        for link in _LINKS.findall(page.text):
            assert link.startswith("/sql/console/assets/")
            assert (await fetched(api, link)).status_code == 200, link
        assert (await fetched(api, "/editor", Accept=BROWSER)).status_code == 404


@pytest.mark.console(1)
async def test_disabled_console_has_no_paths(small_api: ApiOpener, api: Api):
    asset = _LINKS.findall((await fetched(api, "/", Accept=BROWSER)).text)[0]
    async with small_api(desktop={"console": {"enabled": False}}) as other:
        for path in (*VIEWS[1:], asset):
            assert (await fetched(other, path, Accept=BROWSER)).status_code == 404, path
        assert "runs SQL over HTTP" in (await fetched(other, "/", Accept=BROWSER)).text


@pytest.mark.console(1)
async def test_console_is_served_without_the_api_description(small_api: ApiOpener):
    async with small_api(desktop={"docs_enabled": False}) as api:
        assert (await fetched(api, "/", Accept=BROWSER)).status_code == 200
        assert (await fetched(api, "/api/docs", Accept=BROWSER)).status_code == 404
